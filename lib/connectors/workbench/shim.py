"""``display`` and ``dbutils`` outside a workspace.

``display`` shows tables, figures and HTML in a notebook, text elsewhere. ``dbutils`` has the parts that notebooks of jobs
use, with the same names and behaviour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from ..ground.secrets import SecretMissing, secret, variable_of

ROWS: Final = 100
"""The rows of a table that ``display`` shows by default."""


def display(content: Any, rows: int = ROWS) -> None:
    """Shows ``content``: a Spark DataFrame (classic or Connect), a pandas frame, a figure, or what IPython can show.

    Shows the first ``rows`` rows of a table, and reads no more of a Spark DataFrame. Raises ``TypeError`` for a streaming one.
    """
    if _is(content, "pyspark.sql", "DataFrame"):
        _show_spark(content, rows)
    elif _is(content, "pandas", "DataFrame"):
        _show_table(content, rows)
    elif _is(content, "matplotlib.figure", "Figure") and in_notebook():
        _show_figure(content)
    else:
        _publish(content)


def display_html(html: str) -> None:
    """Shows HTML; outside a notebook only its text."""
    from IPython.display import HTML

    _publish(HTML(html) if in_notebook() else html)


def _is(content: Any, package: str, name: str) -> bool:
    """True for an instance of that class or a subclass, without importing the package to find out."""
    return any(kind.__module__.startswith(package) and kind.__name__ == name for kind in type(content).__mro__)


def _show_spark(frame: Any, rows: int) -> None:
    if frame.isStreaming:
        raise TypeError("display shows no streams: write this one with trigger(availableNow=True), and show the result")
    _show_table(frame.limit(rows + 1).toPandas(), rows)


def _show_table(frame: Any, rows: int) -> None:
    from IPython.display import HTML

    shown = frame.head(rows)
    more = f"the first {rows} rows" if len(frame) > rows else f"{len(shown)} row{'' if len(shown) == 1 else 's'}"
    if in_notebook():
        table = shown.to_html(index=False, max_rows=rows, border=0, na_rep="null")
        _publish(HTML(f"{table}<small>{more}</small>"))
    else:
        print(f"{shown.to_string(index=False, max_rows=rows, na_rep='null')}\n({more})")


def _show_figure(figure: Any) -> None:
    from IPython.core.pylabtools import print_figure
    from IPython.display import Image

    _publish(Image(print_figure(figure, fmt="png"), format="png"))
    # Jupyter's inline backend would show an open figure once more at the end of the cell.
    from matplotlib import pyplot

    pyplot.close(figure)


def _publish(content: Any) -> None:
    from IPython.display import display as publish

    if in_notebook():
        publish(content)
    else:
        print(content)


def in_notebook() -> bool:
    """True in Jupyter, in the job runner and in a workspace, where IPython shows output."""
    from IPython.core.getipython import get_ipython

    return get_ipython() is not None


LARGEST_TASK_VALUE: Final = 48 * 1024
"""The most bytes of JSON of one task value (the Jobs service's limit)."""


class NotebookExit(BaseException):
    """Ends a notebook with success. Not an ``Exception``, so that a notebook's own ``except`` does not swallow it."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def _render_traceback_(self) -> list[str]:  # what Jupyter shows in place of a traceback
        return [f"Notebook exited: {self.value}"]


class TaskValueStore(Protocol):
    """The store of the values of a job's tasks while it runs."""

    def set(self, key: str, value: Any) -> None:
        """Stores ``value`` for the running task."""

    def get(self, task: str, key: str) -> Any:
        """The value that the upstream ``task`` set; raises ``KeyError`` with the reason if there is none."""


class Widgets:
    """``dbutils.widgets``: parameters of a notebook. A value that the job passes wins over a widget's default."""

    def __init__(self, passed: Mapping[str, str]) -> None:
        self._passed = dict(passed)
        self._defaults: dict[str, str] = {}

    def text(self, name: str, defaultValue: str, label: str | None = None) -> None:  # noqa: N803 - Databricks' name
        """A parameter of any text."""
        self._defaults[name] = str(defaultValue)

    def dropdown(self, name: str, defaultValue: str, choices: Sequence[str], label: str | None = None) -> None:  # noqa: N803
        """A parameter that is one of ``choices``."""
        if defaultValue not in choices:
            raise ValueError(f'the default of widget "{name}", "{defaultValue}", is not among {", ".join(choices)}')
        self._defaults[name] = str(defaultValue)

    def combobox(self, name: str, defaultValue: str, choices: Sequence[str], label: str | None = None) -> None:  # noqa: N803
        """A parameter of any text, with ``choices`` to pick from."""
        self._defaults[name] = str(defaultValue)

    def multiselect(self, name: str, defaultValue: str, choices: Sequence[str], label: str | None = None) -> None:  # noqa: N803
        """A parameter that is some of ``choices``, joined by commas."""
        self.dropdown(name, defaultValue, choices, label)

    def get(self, name: str) -> str:
        """The value of a parameter; raises ``ValueError`` if it is neither declared nor passed."""
        values = self.getAll()
        if name not in values:
            known = ", ".join(sorted(values)) or "none"
            raise ValueError(
                f'there is no widget "{name}"; known: {known}. Declare it: dbutils.widgets.text("{name}", "a default")'
            )
        return values[name]

    def getAll(self) -> dict[str, str]:  # noqa: N802 - Databricks' name
        """All parameters, declared or passed."""
        return {**self._defaults, **self._passed}

    def remove(self, name: str) -> None:
        """Forgets a widget; a passed value stays."""
        self._defaults.pop(name, None)

    def removeAll(self) -> None:  # noqa: N802 - Databricks' name
        """Forgets all widgets."""
        self._defaults.clear()


class TaskValues:
    """``dbutils.jobs.taskValues``: small values that a task passes to the tasks downstream of it."""

    def __init__(self, store: TaskValueStore | None) -> None:
        self._store = store

    def set(self, key: str, value: Any) -> None:
        """Sets a value of this task: at most 48 KiB of JSON. Outside a job it only checks the value."""
        checked = task_value(key, value)
        if self._store is not None:
            self._store.set(key, checked)

    def get(self, taskKey: str, key: str, default: Any = None, debugValue: Any = None) -> Any:  # noqa: N803
        """The value that the upstream task ``taskKey`` set, else ``default``.

        Outside a job: ``debugValue``. Raises ``ValueError`` if there is neither.
        """
        if self._store is None:
            return _or_raise(debugValue, f'outside a job taskValues.get("{taskKey}", "{key}") needs a debugValue')
        try:
            return self._store.get(taskKey, key)
        except KeyError as missing:
            return _or_raise(default, str(missing.args[0]))


class Secrets:
    """``dbutils.secrets`` from the environment: scope ``kv``, key ``db-password`` is ``SECRET_KV_DB_PASSWORD``.

    If the variable is missing and databricks-sdk is configured, the secret comes from that workspace.
    """

    def get(self, scope: str, key: str) -> str:
        """The secret; raises ``ValueError``, which names the variable, if it is not set."""
        try:
            return secret(scope, key)
        except SecretMissing as missing:
            text = f'secret "{key}" of scope "{scope}" is not here: locally it is read from ${variable_of(scope, key)}'
            raise ValueError(f"{text} ({missing})") from None

    def getBytes(self, scope: str, key: str) -> bytes:  # noqa: N802 - Databricks' name
        """The secret as UTF-8 bytes."""
        return self.get(scope, key).encode()


class NotebookNamespace:
    """``dbutils.notebook``."""

    def exit(self, value: str = "") -> NoReturn:
        """Ends the notebook here, with success; the job's log shows ``value``. In Jupyter it ends the cell."""
        raise NotebookExit(str(value))


class Jobs:
    """``dbutils.jobs``."""

    def __init__(self, store: TaskValueStore | None) -> None:
        self.taskValues = TaskValues(store)


class DbUtils:
    """``dbutils`` with ``widgets``, ``jobs.taskValues``, ``notebook.exit`` and ``secrets``.

    ``parameters`` are those that a job passes to the notebook; ``task_values`` is the store of a running job.
    """

    def __init__(self, parameters: Mapping[str, str] | None = None, task_values: TaskValueStore | None = None) -> None:
        self.widgets = Widgets(parameters or {})
        self.jobs = Jobs(task_values)
        self.notebook = NotebookNamespace()
        self.secrets = Secrets()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"dbutils.{name} is not here: locally there are {', '.join(sorted(vars(self)))}")


def task_value(key: str, value: Any) -> Any:
    """``value`` as the service would store it (through JSON); raises ``ValueError`` if it is no JSON or too large."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as wrong:
        got = f"{type(value).__name__}: {wrong}"
        raise ValueError(f'task value "{key}" must be what JSON can hold; got {got}') from None
    if len(text.encode()) > LARGEST_TASK_VALUE:
        raise ValueError(
            f'task value "{key}" has {len(text.encode())} bytes of JSON; at most {LARGEST_TASK_VALUE} are allowed. '
            "Hand over a path or a table name instead."
        )
    return json.loads(text)


def _or_raise(value: Any, why: str) -> Any:
    if value is None:
        raise ValueError(why)
    return value

"""``display`` outside a workspace: tables, figures and HTML in a notebook, text elsewhere."""

from __future__ import annotations

from typing import Any, Final

ROWS: Final = 100
"""Rows of a table that are shown when the caller does not say."""


def display(thing: Any, rows: int = ROWS) -> None:
    """Shows ``thing``: a Spark DataFrame (classic or Connect), a pandas frame, a figure, or what IPython can show.

    Of a table the first ``rows`` rows; a Spark DataFrame is read only so far. Raises ``TypeError`` for a streaming one.
    """
    if _is(thing, "pyspark.sql", "DataFrame"):
        _show_spark(thing, rows)
    elif _is(thing, "pandas", "DataFrame"):
        _show_table(thing, rows)
    elif _is(thing, "matplotlib.figure", "Figure") and _in_notebook():
        _show_figure(thing)
    else:
        _publish(thing)


def display_html(html: str) -> None:
    """Shows HTML; outside a notebook its text."""
    from IPython.display import HTML

    _publish(HTML(html) if _in_notebook() else html)


def _is(thing: Any, package: str, name: str) -> bool:
    """True for an instance of that class or a subclass, without importing the package to find out."""
    return any(kind.__module__.startswith(package) and kind.__name__ == name for kind in type(thing).__mro__)


def _show_spark(frame: Any, rows: int) -> None:
    if frame.isStreaming:
        raise TypeError("display shows no streams: write this one with trigger(availableNow=True), and show the result")
    _show_table(frame.limit(rows + 1).toPandas(), rows)


def _show_table(frame: Any, rows: int) -> None:
    from IPython.display import HTML

    shown = frame.head(rows)
    more = f"the first {rows} rows" if len(frame) > rows else f"{len(shown)} row{'' if len(shown) == 1 else 's'}"
    if _in_notebook():
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


def _publish(thing: Any) -> None:
    from IPython.display import display as publish

    if _in_notebook():
        publish(thing)
    else:
        print(thing)


def _in_notebook() -> bool:
    from IPython.core.getipython import get_ipython

    return get_ipython() is not None

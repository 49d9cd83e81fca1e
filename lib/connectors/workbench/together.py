"""Several pipelines on one driver: their notebooks in one session, each in a thread of its own."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from ..ground.errors import ConnectorError, Misconfigured, Problem, StateError
from ..ground.messages import is_permanent, own_message
from ..metrics.frame import as_dict
from ..spark.session import session_thread
from .bootstrap import BOOTSTRAP, code_cells
from .shim import DbUtils, NotebookExit
from .start import session

if TYPE_CHECKING:
    import pandas as pd

_NOTEBOOK: Final = "notebook"
_FAILURE: Final = "failure"
"""The key of what has ended a pipeline, for its gate."""
_SHOWN: Final = 200
_ENDS: Final = "availableNow"
"""The trigger of a pipeline that ends."""
_IMPORTS: Final = BOOTSTRAP.rpartition("\nspark, dbutils")[0]
"""The bootstrap without its call, which would begin another record of the task."""
_WAIT: Final = "workbench.wait("
_POLL_SECONDS: Final = 0.5
_NOT_RUN: Final = "its thread has ended before its last cell, as the output says"
_INTERVALS: Final = {"10 s": 10.0, "1 min": 60.0, "10 min": 600.0}


@dataclass
class PipelineRun:
    """The run of a pipeline: its ``notebook``, the ``parameters`` of that, and the ``error`` that has ended it."""

    notebook: str
    parameters: dict[str, str] = field(repr=False)
    error: BaseException | None = None
    batches: Sequence[Mapping[str, Any]] = ()
    """The newest micro-batches, as Spark reports them; none of a pipeline without a query."""

    @property
    def name(self) -> str:
        """The name of the pipeline; of its notebook, where the parameters do not say another."""
        return self.parameters.get("name", self.notebook)

    @cached_property
    def seconds(self) -> list[float]:
        """The duration of each batch."""
        return [batch["durationMs"]["triggerExecution"] / 1000 for batch in self.batches]


class PipelineRuns(list[PipelineRun]):
    """The runs of several pipelines."""

    def table(self) -> pd.DataFrame:
        """A row for each pipeline: its newest batches, a hundred at most, and how busy these keep the driver at an interval.

        ``seconds a batch`` is the median. A record waits for the interval of the trigger and the seconds of a batch, at most.
        """
        import pandas as pd

        rows = []
        for run in self:
            typical = statistics.median(run.seconds) if run.seconds else None
            costs = {f"busy every {name}": _share(typical, seconds) for name, seconds in _INTERVALS.items()}
            rows.append({
                "pipeline": run.name,
                "state": "FAILED" if run.error else "SUCCESS",
                "batches": len(run.batches),
                "rows": sum(batch["numInputRows"] for batch in run.batches),
                "seconds a batch": None if typical is None else round(typical, 2),
                **costs,
            })  # fmt: skip
        return pd.DataFrame(rows)

    def parameters(self) -> list[dict[str, str]]:
        """What :func:`together` takes: each pipeline with all values of its widgets, also those of the notebook itself.

        One that has failed says so, since a job whose last task succeeds counts as a success: its gate fails, too.
        """
        failures = ({} if run.error is None else {_FAILURE: _message(run.error)[:_SHOWN]} for run in self)
        return [{_NOTEBOOK: run.notebook, **run.parameters, **failure} for run, failure in zip(self, failures, strict=True)]

    def enforce(self) -> None:
        """Raises the errors of pipelines that have failed as one: :class:`StateError` if no new try can mend any of them."""
        failures = {run.name: run.error for run in self if run.error is not None}
        if failures:
            kind = StateError if all(map(is_permanent, failures.values())) else ConnectorError
            texts = [f"{name}: {_message(error)}" for name, error in failures.items()]
            text = "\n".join([f"{len(failures)} of {len(self)} failed:", *texts])
            raise kind(text, way_out="mend the cause, and run this again")


def together(pipelines: str | Sequence[Mapping[str, Any]], *, gates: bool = False, folder: str | Path = ".") -> PipelineRuns:
    """Runs pipelines side by side in one session, and returns when all have ended. One that fails does not stop the others.

    ``pipelines``: for each an object (or all as JSON) with ``notebook``, the name of its notebook in ``folder``, and parameters
    of that. Of a notebook the cells run up to the one that waits for its query. Each has a pool of its own where Spark
    schedules fairly. ``gates``: runs the gates of the pipelines instead. Raises :class:`Misconfigured` for impossible entries,
    and for a pipeline without an end.
    """
    entries = _entries(pipelines)
    notebooks = [_gate_of(str(entry[_NOTEBOOK]), Path(folder)) if gates else str(entry[_NOTEBOOK]) for entry in entries]
    sources = [_cells(Path(folder), notebook) for notebook in notebooks]
    runs = PipelineRuns()
    threads = []
    for entry, notebook, cells in zip(entries, notebooks, sources, strict=True):
        parameters = {name: _text(value) for name, value in entry.items() if name not in (_NOTEBOOK, _FAILURE)}
        runs.append(PipelineRun(str(entry[_NOTEBOOK]), parameters, ConnectorError(_NOT_RUN)))
        threads.append(_thread(runs[-1], notebook, cells, entry.get(_FAILURE) if gates else None))
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)  # an interruption is noticed between two
    return runs


def _entries(pipelines: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    try:
        entries = json.loads(pipelines) if isinstance(pipelines, str) else pipelines
    except ValueError as wrong:
        raise _refused(f"must be JSON: {wrong}.") from None
    if not isinstance(entries, Sequence) or not entries:
        raise _refused('must be a list such as [{"notebook": "kafka_to_delta", "name": "orders"}].')
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get(_NOTEBOOK), str):
            raise _refused(f'has an entry without a "notebook": {json.dumps(entry)[:100]}.')
        if (trigger := entry.get("trigger", _ENDS)) != _ENDS:
            text = f'gives {entry.get("name", entry[_NOTEBOOK])} the trigger "{trigger}": it would never end. '
            raise _refused(f"{text}Leave the trigger out, or give it a job of its own.")
    names = [str(entry.get("name", entry[_NOTEBOOK])) for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise _refused(f'has "{twice[0]}" twice; give each a name of its own.')
    return entries


def _gate_of(notebook: str, folder: Path) -> str:
    own = f"{notebook}_quality"
    return own if (folder / f"{own}.ipynb").exists() else "quality"


def _cells(folder: Path, notebook: str) -> list[str]:
    """The code of a notebook, without its bootstrap, up to the cell that waits for the query."""
    file = folder / f"{notebook}.ipynb"
    if Path(notebook).name != notebook or not file.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.ipynb"))) or "none"
        raise _refused(f'names the notebook "{notebook}", which is not in {folder.resolve()}. There are: {known}.')
    cells = code_cells(file)
    last = max((number for number, source in enumerate(cells) if _WAIT in source), default=len(cells) - 1)
    return [source for source in cells[: last + 1] if source.strip() != BOOTSTRAP.strip()]


def _thread(run: PipelineRun, notebook: str, cells: Sequence[str], failure: str | None) -> Thread:
    spark = session()
    end = None if failure is None else ConnectorError(f"its gate has passed, and the pipeline has failed: {failure}")
    dbutils = DbUtils(run.parameters)
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "dbutils": dbutils, "display": _hide}
    exec(_IMPORTS, names)

    def work() -> None:
        try:
            with contextlib.suppress(NotebookExit):
                for number, source in enumerate(cells, start=1):
                    exec(compile(source, f"{notebook}.ipynb, cell {number}", "exec"), names)
            run.error = end
        except BaseException as error:
            run.error = error
            print(f"{run.name} has failed: {_message(error)}", flush=True)
        run.parameters |= dbutils.widgets.getAll()
        events = getattr(names.get("query"), "recentProgress", ())
        run.batches = [progress for event in events if (progress := as_dict(event)) is not None]

    return session_thread(spark, work, run.name)


def _hide(*_: Any, **__: Any) -> None:
    """Shows nothing: the pipelines share one cell."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _share(seconds: float | None, interval: float) -> str:
    return "" if seconds is None else f"{min(1.0, seconds / interval):.0%}"


def _message(error: BaseException) -> str:
    return own_message(error) or f"{type(error).__name__}: {error}"


def _refused(text: str) -> Misconfigured:
    return Misconfigured("several pipelines", [Problem("pipelines", text)])

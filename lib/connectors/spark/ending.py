"""When a streaming query is over, for a sink whose work does not end with its last batch. Classic sessions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .session import ended, execution_of, offsets_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BY_ITSELF = ("AvailableNowTrigger", "OneTimeTrigger")


@runtime_checkable
class Watching(Protocol):
    """A sink that wants to know of the query that it writes for."""

    def watch(self, find: Callable[[], Run | None] | None) -> None:
        """Called on the driver: when the function of ``foreachBatch`` is made, then for each batch, to ``find`` its run."""


class Run:
    """One run of a streaming query: what its ``foreachBatch`` function is not told."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self.id = str(execution.runId().toString())
        trigger = str(execution.trigger().toString())
        self.ends_by_itself = trigger.startswith(_BY_ITSELF)

    def offsets(self, batch: int) -> list[Any] | None:
        """Where each source will be after ``batch``; ``None`` where Spark does not tell."""
        return offsets_of(self._execution, batch)

    def wait(self, seconds: float) -> str:
        """Waits for the end, at most so long: ``"running"``, ``"ended"`` or ``"failed"``."""
        return ended(self._execution, seconds)


def run_of(frame: DataFrame, query: str) -> Run | None:
    """The run of ``query`` whose batch ``frame`` is; ``None`` where that cannot be known (Spark Connect)."""
    execution = execution_of(frame.sparkSession, query)
    return Run(execution) if execution is not None else None

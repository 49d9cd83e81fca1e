"""When a streaming query is over, for a sink whose work does not end with its last batch. Classic sessions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .session import is_connect

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

    def wait(self, seconds: float) -> str:
        """Waits for the end, at most so long: ``"running"``, ``"ended"`` or ``"failed"``."""
        from py4j.protocol import Py4JJavaError

        try:
            ended = self._execution.awaitTermination(max(1, round(seconds * 1000)))
        except Py4JJavaError:  # it throws what the query died of
            return "failed"
        return "ended" if ended else "running"


def run_of(frame: DataFrame, query: str) -> Run | None:
    """The run of ``query`` whose batch ``frame`` is; ``None`` where that cannot be known (Spark Connect)."""
    spark: Any = frame.sparkSession
    if is_connect(frame.sparkSession):
        return None
    jvm = spark.sparkContext._jvm
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    execution = running.get(jvm.java.util.UUID.fromString(query)) if _is_id(query) else None
    return Run(execution) if execution is not None else None


def _is_id(query: str) -> bool:
    return len(query) == 36 and query.count("-") == 4

"""The run of a streaming query, and ``taskTimeout``: a task that gives no sign of life is ended, so that it is tried again.

In ``foreach_batch`` the driver cancels the jobs of the batch. The sign of life is a task that ends; on Spark Connect, where
nobody can ask for that, it is the end of all tasks. By ``format`` no driver code runs while tasks run: the task watches itself
and ends its Python process, which Spark takes for a failed attempt. Its sign of life is a record batch that it has taken.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.metrics import Meter
from ..core.sink import Offsets, QueryRun
from ..ground import machine
from ..ground.errors import Transient
from .execution import ended, execution_of, offsets_of
from .session import ended_tasks, tagged_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession



_BY_ITSELF = ("AvailableNowTrigger", "OneTimeTrigger")


class SparkRun(QueryRun):
    """A run of a streaming query, as the JVM knows it. Classic sessions only."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self.id = str(execution.runId().toString())
        trigger = str(execution.trigger().toString())
        self.ends_by_itself = trigger.startswith(_BY_ITSELF)

    def offsets(self, batch: int) -> Offsets | None:
        return offsets_of(self._execution, batch)

    def wait(self, seconds: float) -> str:
        return ended(self._execution, seconds)


def run_of(frame: DataFrame, query: str) -> SparkRun | None:
    """The run of ``query`` whose batch ``frame`` is; ``None`` where that cannot be known (Spark Connect)."""
    execution = execution_of(frame.sparkSession, query)
    return SparkRun(execution) if execution is not None else None


_CHECKS = 8
"""The number of times that the tasks are checked within the timeout."""


@contextlib.contextmanager
def watched_tasks(spark: SparkSession, timeout: float | None) -> Iterator[None]:
    """Cancels the jobs that are run inside when none of their tasks has ended for ``timeout`` seconds.

    Raises :class:`Transient` then: what a cancelled task answers later belongs to an attempt that is never committed.
    """
    if timeout is None:
        yield
        return
    over, expired, tasks = machine.event(), machine.event(), ended_tasks(spark)

    def watch(cancel: Callable[[], object]) -> None:
        last, since = tasks(), machine.monotonic()
        while not over.wait(timeout / _CHECKS):
            if (ended := tasks()) != last:
                last, since = ended, machine.monotonic()
            elif machine.monotonic() - since >= timeout:
                expired.set()
                cancel()
                return

    with tagged_jobs(spark, f"connectors-{machine.token()}") as cancel:
        watcher = machine.thread(partial(watch, cancel), "connectors.taskTimeout")
        watcher.start()
        try:
            yield
        except Exception:
            if expired.is_set():
                raise Transient(
                    f"no task of the batch has ended for {timeout:g} s (taskTimeout), so it was cancelled",
                    way_out="look at what the tasks wait for; raise taskTimeout if they only take long",
                ) from None
            raise
        finally:
            over.set()
            watcher.join()


@contextlib.contextmanager
def ends_when_silent(timeout: float | None, meter: Meter) -> Iterator[None]:
    """In a task: ends this process when ``meter`` has had no sign of life for ``timeout`` seconds.

    The table of the query names it until the next attempt; the log of the executor has the place where the task stood.
    """
    if timeout is None:
        yield
        return
    over, seconds = machine.event(), timeout
    meter.last_sign = machine.monotonic()

    def watch() -> None:
        while not over.wait(seconds / _CHECKS):
            if machine.monotonic() - meter.last_sign >= seconds:
                faulthandler.dump_traceback(2)
                silence = Transient(f"a task that gave no sign for {seconds:g} s (taskTimeout) was ended; it is tried again")
                meter.waits(silence, machine.time() - seconds, machine.time() + seconds)
                os._exit(1)

    machine.thread(watch, "connectors.taskTimeout").start()
    try:
        yield
    finally:
        over.set()

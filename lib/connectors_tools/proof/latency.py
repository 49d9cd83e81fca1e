"""How long a row takes from the source into the target, while the pipeline of a proof runs without an end."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connectors.ground import machine
from connectors.testing.demo import orders_of
from connectors.testing.scratch import is_cut_off

from .driver import Driver, Task
from .subject import Subject
from .verdict import delivered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORTIONS: Final = 30
_ROWS: Final = 20
"""Rows of a portion."""
_PAUSE: Final = 1.0
"""Seconds between two portions."""
_LONGEST: Final = 120.0
"""Seconds after which a portion counts as not delivered."""


def latencies(spark: SparkSession, subject: Subject, fed: int, log: Path) -> list[float]:
    """The seconds from each of some portions of rows to the commit of the batch with its last row.

    ``fed`` rows are in the source, and delivered. Those that are not delivered in time are left out. The log of the driver
    goes to ``log``. The pipeline needs a table of its batches' counts.
    """
    parameters = {**subject.parameters("out"), "trigger": "continuous"}
    task = Task(str(subject.notebook.absolute()), parameters, str(subject.folder / "faults"), (), "local[2]")
    driver, base = Driver(task, log), _total(spark, subject)
    orders = (order for order in orders_of(fed, 2 * _ROWS * (PORTIONS + 1)) if not is_cut_off(order))  # no dead letters

    def put() -> None:
        subject.put(list(islice(orders, _ROWS)))

    def wait(rows: int) -> None:
        until = machine.monotonic() + _LONGEST
        while _total(spark, subject) < base + rows and machine.monotonic() < until and driver.process.poll() is None:
            machine.sleep(_PAUSE)

    times = []
    try:
        put()  # for which the pipeline starts
        wait(_ROWS)
        for _ in range(PORTIONS):
            times.append(machine.time())
            put()
            machine.sleep(_PAUSE)
        wait((PORTIONS + 1) * _ROWS)
        commits = delivered(spark, subject, "rows")
    finally:
        driver.kill()
    totals = [rows for _, rows in commits]
    places = [(time, bisect_left(totals, base + (number + 2) * _ROWS)) for number, time in enumerate(times)]
    return [commits[place][0] - time for time, place in places if place < len(commits)]


def _total(spark: SparkSession, subject: Subject) -> int:
    commits = delivered(spark, subject, "rows")
    return commits[-1][1] if commits else 0

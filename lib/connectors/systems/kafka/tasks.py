"""Batches that tasks send themselves, without a stage: one task in one transaction, or several in one each."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ...core.errors import ConnectorError, Fatal, Misconfigured, Problem
from ...core.ledger import Entry
from ...core.sink import Batch
from .transacting import Incoming, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .book import Layout
    from .sink import KafkaSink
    from .slots import Slots

Told = dict[str, Any]


class Delivery(NamedTuple):
    """The rows of a batch, and the seconds that the longest of its transactions was open."""

    rows: int
    seconds: float

    @classmethod
    def of(cls, reports: Sequence[Told]) -> Delivery:
        return cls(sum(report["rows"] for report in reports), max((report["seconds"] for report in reports), default=0.0))


def funnel(sink: KafkaSink, frame: DataFrame, batch: Batch) -> Delivery:
    """Sends ``frame`` in one task and one transaction."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield reported(lambda: _send_all(sink, batch, batches)._asdict())

    return Delivery.of(run(frame.repartition(1), task))


def _send_all(sink: KafkaSink, batch: Batch, batches: Iterator[pa.RecordBatch]) -> Delivery:
    incoming = Incoming(sink, batch, batches)
    if not incoming:  # an empty batch opens no transaction
        return Delivery(0, 0.0)
    query, number = batch.query, batch.number
    seconds = publish(sink, query, number, incoming, incoming.rejects, lambda _: Entry(query, number, incoming.count))
    return Delivery(incoming.count or 1, seconds or 0.0)  # a batch that is there already had rows


def spread(slots: Slots, frame: DataFrame, batch: Batch, layout: Layout) -> Delivery:
    """Sends ``frame`` in a task and a transaction for each slot."""
    from pyspark.sql import functions as F

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        slot = context.partitionId()
        yield reported(
            lambda: {"slot": slot, "rows": slots.write(layout, batch, slot, batches), "seconds": slots.seconds}
        )

    placed = frame.repartitionById(layout.slots, F.expr(f"CAST(pmod({_hash(frame)}, {layout.slots}) AS INT)"))
    reports = run(placed, task)
    if sorted(report["slot"] for report in reports) != list(range(layout.slots)):
        raise Fatal(f"{batch}: Spark ran other tasks than the {layout.slots} slots")
    return Delivery.of(reports)


def _hash(frame: DataFrame) -> str:
    """Of the key, so that the order of its records stays; of the value where there is none."""
    sides = [name for name in ("key", "value") if name in frame.columns]
    for name in sides:
        if any(kind in frame.schema[name].dataType.simpleString() for kind in ("map<", "variant")):
            text = (
                f"above 1 places rows by their {name}, and a {frame.schema[name].dataType.simpleString()} has no hash."
            )
            raise Misconfigured("connectors.kafka", [Problem("slots", text)])
    if len(sides) == 2:
        return "IF(key IS NULL, xxhash64(value), xxhash64(key))"
    return f"xxhash64({', '.join(sides)})"


def reported(work: Callable[[], Told]) -> pa.RecordBatch:
    """What ``work`` tells, or the error that it raises: Spark would try the task again at once, and hide the error's kind."""
    try:
        told = work()
    except ConnectorError as error:
        told = {"error": base64.b64encode(pickle.dumps(error)).decode()}
    return pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})


def run(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Told]:
    """What the tasks tell. Raises the error that one of them reports."""
    reports: list[Told] = [json.loads(row.told) for row in frame.mapInArrow(task, "told string").collect()]
    for report in reports:
        if "error" in report:
            raise pickle.loads(base64.b64decode(report["error"]))
    return reports

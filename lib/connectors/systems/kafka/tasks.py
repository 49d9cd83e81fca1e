"""Batches that tasks send themselves, without a stage: in one transaction by one task."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...core.errors import ConnectorError
from ...core.ledger import Entry
from ...core.sink import Batch
from .committer import publish
from .records import Serializer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .sink import KafkaSink

Told = dict[str, Any]


def funnel(sink: KafkaSink, frame: DataFrame, batch: Batch) -> int:
    """Sends ``frame`` in one task and one transaction, and returns how many rows it had."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield reported(lambda: {"rows": _send_all(sink, batch, batches)})

    reports = run(frame.repartition(1), task)
    return sum(report["rows"] for report in reports)


def _send_all(sink: KafkaSink, batch: Batch, batches: Iterator[pa.RecordBatch]) -> int:
    rows = 0

    def records() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for one in _with_first(first, batches):
            rows += one.num_rows
            yield serializer.records(one, rejects)

    first = next((one for one in batches if one.num_rows), None)
    if first is None:  # an empty batch opens no transaction
        return 0
    serializer, rejects = Serializer(sink.values, first.schema), sink.rejects(batch)
    written = publish(
        sink, batch.query, batch.number, records(), rejects, lambda _: Entry(batch.query, batch.number, rows)
    )
    return rows if written else first.num_rows


def _with_first(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


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

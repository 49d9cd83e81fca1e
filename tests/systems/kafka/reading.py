"""A query over topics, batch by batch, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from connectors.core.planning import INITIAL, Offset, Planner
from connectors.core.reading import read_slice
from connectors.systems.kafka.source import KafkaSource

from .source_contexts import SCHEMA


class Query:
    """Made again with the same ``log``, it is the query after a restart."""

    def __init__(self, options: dict[str, str], log: list[Offset] | None = None, schema: pa.Schema = SCHEMA) -> None:
        self.source = KafkaSource.of(options, streaming=True)
        self.planner = Planner(self.source)
        self.schema = schema
        self.log = [] if log is None else log

    def next(self) -> list[dict[str, Any]] | None:
        """The rows of the next batch; ``None`` when there is nothing new."""
        assert len(self.log) < 200, "the query does not come to its end"
        start = self.log[-1] if self.log else INITIAL
        end = self.planner.latest(start, self.source.limit())
        if end == start:
            return None
        return self.run(start, json.loads(json.dumps(end)))

    def run(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        """The rows of the batch up to ``end``, which this run or an earlier one has planned."""
        parts = self.planner.slices(start, end)
        self.log.append(end)
        return [
            row for part in parts for batch in read_slice(self.source, part, self.schema) for row in batch.to_pylist()
        ]

    def values(self) -> list[Any]:
        """The values of all batches until there is nothing new."""
        values: list[Any] = []
        while (rows := self.next()) is not None:
            values += [row["value"] for row in rows]
        return values

    def at(self, topic: str) -> dict[str, int]:
        """How far the query is in each partition."""
        at: dict[str, int] = self.log[-1]["at"]["topics"][topic]["at"]
        return at


def batch(options: dict[str, str]) -> list[Any]:
    """The values that a batch read gives."""
    source = KafkaSource.of(options)
    parts = Planner(source).whole()
    return [row["value"] for part in parts for batch in read_slice(source, part, SCHEMA) for row in batch.to_pylist()]

"""A source with partitions, as a user would write one, that can fail on purpose; and calls that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.async_io import AsyncFunction
from connectors.core import (
    Int,
    Options,
    PartitionProgress,
    Position,
    ReadLimit,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    Text,
    Transient,
)


@dataclass(frozen=True)
class Part(Split):
    """The numbers from ``first`` to ``last``, both included, of the partition ``name``."""

    name: str
    first: int
    last: int


class PartsEnumerator(SplitEnumerator[Part]):
    """Three partitions of ``count`` numbers each, read ``step`` at a time."""

    def __init__(self, source: Source) -> None:
        self.count, self.step = source.values["count"], source.values["step"]

    def start(self) -> Position:
        return {"a": 0, "b": 0, "c": 0}

    def head(self) -> int:
        return int(self.count)

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        return {name: min(head, position + self.step) for name, position in at.items()}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Part]:
        for name in sorted(end):
            if end[name] > start[name]:
                yield Part(name, start[name] + 1, end[name])

    def progress(self, at: Position, head: int) -> Sequence[PartitionProgress]:
        return [PartitionProgress(name, position, head, head - position) for name, position in at.items()]

    def partition_of(self, split: Part) -> str:
        return split.name


class PartsReader(SplitReader[Part]):
    """Fails once in the partition ``b``: with an outage in the middle of a split, or for good after it."""

    def __init__(self, schema: pa.Schema, trouble: str | None) -> None:
        super().__init__()
        self.schema, self.trouble = schema, Path(trouble) if trouble else None

    def read(self, split: Part) -> Iterator[pa.RecordBatch]:
        half = (split.first + split.last) // 2
        yield self._rows(split, split.first, half)
        self._fail(split, "outage")
        yield self._rows(split, half + 1, split.last)
        self._fail(split, "error")

    def _rows(self, split: Part, first: int, last: int) -> pa.RecordBatch:
        rows = [{"name": split.name, "number": number} for number in range(first, last + 1)]
        return pa.RecordBatch.from_pylist(rows, self.schema)

    def _fail(self, split: Part, how: str) -> None:
        if split.name == "b" and self.trouble and (self.trouble / how).exists():
            (self.trouble / how).unlink()
            if how == "outage":
                raise Transient("down", retry_after=0.01)
            raise RuntimeError("broken on purpose")


class PartsSource(Source):
    """Three partitions. Options: ``count`` (40), ``step`` (10) records per partition and batch, ``trouble`` (a folder)."""

    name, schema = "parts_of_test", "name string, number long"
    options = Options(count=Int(40), step=Int(10), trouble=Text(None))

    def enumerator(self) -> PartsEnumerator:
        return PartsEnumerator(self)

    def reader(self, schema: pa.Schema) -> PartsReader:
        return PartsReader(schema, self.values["trouble"])

    def parallelism(self) -> int:
        return 3


class Shaky(AsyncFunction):
    """Every tenth call fails at first; number 7 always."""

    def __init__(self) -> None:
        self.failed: set[int] = set()

    async def async_invoke(self, row: Any) -> Any:
        number = row["number"]
        if number == 7 or (number % 10 == 0 and number not in self.failed):
            self.failed.add(number)
            raise ConnectionError("refused")
        return {"double": 2 * number}

    def timeout(self, row: Any) -> Any:
        return {}

"""``connectors.sequence``: whole numbers in order. The reference for a source: bounded or not, as a batch or a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..core import (
    Int,
    Misconfigured,
    Options,
    PartitionProgress,
    Position,
    Problem,
    ReadLimit,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
)
from ..core.planning import even_ranges
from ..ground import machine
from ..ground.options import Values

_LARGEST: Final = 2**63 - 2  # one below the largest long, so that the end after it is one too
_BATCH: Final = 100_000


@dataclass(frozen=True)
class Range(Split):
    """The numbers ``first..last``, both included."""

    first: int
    last: int


class SequenceSource(Source):
    """The numbers from ``start`` to ``end``, in order inside each split. Column: ``value long``.

    Guarantee: exactly-once; it can be read again from any number.
    """

    name, schema = "sequence", "value long"
    conditions = "none: any number can be read again"
    options = Options(
        start=Int(1, at_least=-_LARGEST, at_most=_LARGEST, meaning="the first number"),
        end=Int(
            None,
            at_least=-_LARGEST,
            at_most=_LARGEST,
            meaning="the last number; without it the source goes on, as a stream only",
        ),
        rowsPerSecond=Int(None, at_least=1, meaning="a stream gets numbers as time passes"),
    )

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        self.bounded = values["end"] is not None

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if values["end"] is not None and values["end"] < values["start"] - 1:
            yield Problem("end", f"must not be below start - 1 ({values['start'] - 1}); got {values['end']}.")
        if values["end"] is None and not (values["rowsPerSecond"] or values["maxRowsPerTrigger"]):
            yield Problem("end", "missing; a sequence without end needs rowsPerSecond or maxRowsPerTrigger.")

    def enumerator(self) -> SequenceEnumerator:
        return SequenceEnumerator(self)

    def reader(self, schema: pa.Schema) -> SequenceReader:
        return SequenceReader(schema)


class SequenceEnumerator(SplitEnumerator[Range]):
    """The position is the next number, and for a rate also the time when the sequence began (milliseconds since 1970)."""

    def __init__(self, source: SequenceSource) -> None:
        values = source.values
        self.first, self.last = values["start"], _LARGEST if values["end"] is None else values["end"]
        self.endless = values["end"] is None
        self.rate = values["rowsPerSecond"] if source.streaming else None

    def start(self) -> Position:
        start = {"since": int(machine.time() * 1000)} if self.rate else {}
        return {"next": self.first, **start}

    def head(self) -> float:
        return machine.time() * 1000

    def freeze(self) -> Any:
        if self.endless and not self.rate:
            raise Misconfigured(
                "connectors.sequence", [Problem("end", "missing; without it an availableNow query would never end.")]
            )
        return self.head()

    def _end(self, at: Position, head: float) -> int:
        """The number after the newest one."""
        if self.rate:
            return min(int(self.last) + 1, int(self.first + (head - at["since"]) * self.rate // 1000))
        return int(self.last) + 1

    def progress(self, at: Position, head: float) -> Sequence[PartitionProgress]:
        if self.endless and not self.rate:
            return [PartitionProgress("0", at["next"])]
        lag = max(0, self._end(at, head) - at["next"])
        seconds = lag / self.rate if self.rate else None
        return [PartitionProgress("0", at["next"], at["next"] + lag, lag, seconds)]

    def partition_of(self, split: Range) -> str:
        return "0"

    def advance(self, at: Position, head: float, limit: ReadLimit) -> Position:
        end = self._end(at, head)
        if limit.rows is not None:
            end = min(end, at["next"] + limit.rows)
        return {**at, "next": max(at["next"], end)}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Range]:
        for first, last in even_ranges(start["next"], end["next"] - 1, parallelism):
            yield Range(first, last)


class SequenceReader(SplitReader[Range]):
    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema

    def read(self, split: Range) -> Iterator[pa.RecordBatch]:
        return self.resume(split, 0)

    def resume(self, split: Range, records: int) -> Iterator[pa.RecordBatch]:
        for first in range(split.first + records, split.last + 1, _BATCH):
            numbers = np.arange(first, min(first + _BATCH, split.last + 1), dtype=np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(numbers)], schema=self.schema)

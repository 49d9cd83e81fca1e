"""The batching engine alone: python tests/benchmarks/bench_batching.py

Goal: at least 300,000 records per second through the engine to a target that answers at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from figures import figure

from connectors.batching import BatchingSink, BatchingWriter, Failure
from connectors.core import Batch
from connectors.core.writing import stage

RECORDS, ROUNDS, CHUNK = 2_000_000, 3, 10_000


class Null(BatchingSink):
    name = "null"

    def target(self) -> str:
        return "nowhere"

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> BatchingWriter:
        return NullWriter(self, batch)


class NullWriter(BatchingWriter):
    def entries(self, rows: pa.RecordBatch) -> list[Any]:
        return rows.column(0).to_numpy().tolist()  # type: ignore[no-any-return]

    def sizes(self, entries: Any) -> list[int]:
        return [8] * len(entries)

    def send(self, entries: list[Any]) -> Iterable[Failure]:
        return ()


class KeyedWriter(NullWriter):
    def keys(self, entries: Any) -> Any:
        return entries


class Keyed(Null):
    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> BatchingWriter:
        return KeyedWriter(self, batch)


def numbers() -> Iterator[pa.RecordBatch]:
    for first in range(0, RECORDS, CHUNK):
        yield pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + CHUNK), pa.int64())})


def engine(kind: type[Null]) -> float:
    batches = list(numbers())
    began = time.perf_counter()
    staged = stage(kind.of({}), Batch("null", "q", 0), batches[0].schema, 0, iter(batches))
    assert staged.rows == RECORDS
    return RECORDS / (time.perf_counter() - began)


def main() -> None:
    for what, kind in (("rows → batching engine", Null), ("rows → batching engine, in order of each key", Keyed)):
        figure(what, "rows/s", [engine(kind) for _ in range(ROUNDS)], least=300_000)


if __name__ == "__main__":
    main()

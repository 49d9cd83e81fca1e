"""What the tests of files share: a clock that stands still, small batches, and the view of a reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Batch
from connectors.systems.files import FilesSink

from .. import batches
from ..reference_contexts import FilesContext


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class TimedSink(FilesSink):
    """The sink with a clock of its own."""

    clock: ClassVar[Clock] = Clock()  # type: ignore[assignment]


def rolling(folder: Path, **options: str) -> TimedSink:
    """A sink with ``rolling=policy`` whose clock is new."""
    kind = type("TimedSink", (TimedSink,), {"clock": Clock()})
    made: TimedSink = kind.of({"path": str(folder), "rolling": "policy", **options})  # type: ignore[attr-defined]
    return made


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(numbers, pa.int64()), "name": [f"row {number}" for number in numbers]})


def write(sink: FilesSink, number: int, *tasks: pa.RecordBatch, query: str = "q") -> Batch:
    """Stages ``tasks`` and commits them as batch ``number``."""
    return batches.write(sink, *tasks, number=number, query=query)


def visible(folder: Path) -> list[Path]:
    return FilesContext(folder).files()


def read(folder: Path) -> list[Any]:
    """The numbers that a reader of a Parquet folder sees, sorted."""
    return sorted(row["id"] for row in FilesContext(folder).rows())

"""What the tests of files share: a clock that stands still, small batches, and the view of a reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Batch
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.files import FilesSink, FilesSource

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
    sink: TimedSink = kind.of({"path": str(folder), "rolling": "policy", **options})  # type: ignore[attr-defined]
    return sink


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


def days_read_once(path: str, options: Mapping[str, Any]) -> FilesSource:
    """Writes a file into each of three folders below ``path``, and reads two of them, once; the source that did."""
    for number in range(3):
        write(FilesSink.of({**options, "path": f"{path}/day={number}"}), 0, rows(number))  # type: ignore[arg-type]
    source = FilesSource.of({**options, "path": f"{path}/day=[01]"}, streaming=True)
    planner = Planner(source)
    first = planner.latest(INITIAL)
    schema = pa.schema([("id", pa.int64()), ("day", pa.int32())])
    batches = (batch for part in planner.slices(INITIAL, first) for batch in read_slice(source, part, schema))
    records = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(records, key=lambda row: row["id"]) == [{"id": 0, "day": 0}, {"id": 1, "day": 1}]
    assert planner.latest(first) == first
    return source  # type: ignore[return-value]


def swept(folder: Any, put: Callable[[str, bytes], None], everything: Callable[[], list[str]]) -> None:
    """Old staging goes, that of a live batch stays."""
    for attempt in ("old-1", "live-1"):
        put(f"{folder.begin(attempt)}/rows", b"")
    folder.sweep(3600, frozenset())
    assert len(everything()) == 2
    folder.sweep(-1, frozenset({"live"}))
    assert everything() == [f"{folder.begin('live-1')}/rows"]

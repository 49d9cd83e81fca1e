"""A history in files and a clock that goes on, as parts of one stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.core import (
    REQUIRED,
    Int,
    Options,
    Position,
    ReadLimit,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    Text,
)
from connectors.core.planning import even_ranges
from connectors.systems import add_system
from connectors.systems.hybrid import HybridSource
from connectors.testing import SourceContext

BEGIN = datetime(2023, 1, 1, tzinfo=timezone.utc)
SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def row(number: int) -> dict[str, Any]:
    """One row for each second."""
    return {"id": number, "ts": BEGIN + timedelta(seconds=number)}


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [row(number) for number in range(first, end)]


@dataclass(frozen=True)
class Seconds(Split):
    first: int
    last: int


class ClockSource(Source):
    """A row for each second up to the number in the file ``path``."""

    name, schema = "clock", "id bigint, ts timestamp"
    options = Options(path=Text(REQUIRED), startingTime=Int(None))
    bounded = False

    @classmethod
    def start_options(cls, time: int | None) -> Mapping[str, str]:
        return {} if time is None else {"startingTime": str(time)}

    def enumerator(self) -> ClockEnumerator:
        return ClockEnumerator(self.values["path"], self.values["startingTime"])

    def reader(self, schema: pa.Schema) -> ClockReader:
        return ClockReader(schema)


class ClockEnumerator(SplitEnumerator[Seconds]):
    def __init__(self, path: str, time: int | None) -> None:
        self.path = Path(path)
        self.first = 0 if time is None else max(0, -(-(time - int(BEGIN.timestamp()) * 1000) // 1000))

    def start(self) -> Position:
        return {"next": self.first}

    def head(self) -> int:
        return int(self.path.read_text()) if self.path.exists() else 0

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        return {"next": max(at["next"], min(head, at["next"] + (limit.rows or head)))}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Seconds]:
        return (Seconds(first, last) for first, last in even_ranges(start["next"], end["next"] - 1, parallelism))


class ClockReader(SplitReader[Seconds]):
    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema

    def read(self, split: Seconds) -> Iterator[pa.RecordBatch]:
        for first in range(split.first, split.last + 1, 2):
            yield pa.RecordBatch.from_pylist(rows(first, min(first + 2, split.last + 1)), self.schema)


add_system(ClockSource)


def write_history(folder: Path, first: int, end: int) -> None:
    """A file of parquet with some rows."""
    folder.mkdir(exist_ok=True, parents=True)
    file = folder / f"{len(list(folder.iterdir())):03}.parquet"
    pq.write_table(pa.Table.from_pylist(rows(first, end), SCHEMA), folder / f".{file.name}")
    (folder / f".{file.name}").rename(file)


class HybridContext(SourceContext):
    """Files have the first half of what is written first. The clock begins with the last of their rows, and 5 s before."""

    source = HybridSource
    classes = (ClockSource,)
    schema = SCHEMA
    unordered = "files and clock may be read side by side"
    undated = "the last part ends where its data end when the query comes to it"
    count = 0

    def options(self) -> dict[str, str]:
        parts = [
            {"format": "files", "options": {"path": str(self.folder / "history")}},
            {"format": "connectors.clock", "options": {"path": str(self.folder / "now")}},
        ]
        extra = {"startFrom": "ts - 5 seconds", "deduplicateBy": "id", "stateLocation": str(self.folder / "state")}
        return {"sources": json.dumps(parts), **extra}

    limit: ClassVar[Mapping[str, str]] = {"maxRowsPerTrigger": "7", "maxFilesPerTrigger": "1"}
    never_empty = "a part without a record is an error"

    def write(self, count: int) -> list[dict[str, Any]]:
        first, self.count = self.count, self.count + count
        if not first:
            half = -(-count // 2)
            for begin in range(0, half, 5):
                write_history(self.folder / "history", begin, min(begin + 5, half))
        (self.folder / "now").write_text(str(self.count))
        return rows(first, self.count)


class Parts(HybridContext):
    """Parts that a test describes one by one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.parts: list[dict[str, Any]] = []
        self.more: dict[str, str] = {}

    def files(self, name: str, first: int, end: int) -> None:
        write_history(self.folder / name, first, end)
        if name not in [part.get("name") for part in self.parts]:
            self.parts.append({"format": "files", "name": name, "options": {"path": str(self.folder / name)}})

    def clock(self, end: int, **options: Any) -> None:
        (self.folder / "now").write_text(str(end))
        if "clock" not in [part["format"] for part in self.parts]:
            self.parts.append({"format": "clock", "options": {"path": str(self.folder / "now"), **options}})

    def options(self) -> dict[str, str]:
        return {"sources": json.dumps(self.parts), **self.more}

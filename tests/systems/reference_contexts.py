"""The reference connectors, as the suites see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.core import Guarantee
from connectors.systems.buffered import BufferedSink
from connectors.systems.file_stream import FileStreamSink, FileStreamSource
from connectors.systems.files import FilesSink
from connectors.systems.print_rows import PrintSink
from connectors.systems.sequence import SequenceSource
from connectors.testing import FolderContext, SinkContext, SourceContext
from connectors.testing.queue_double import QueueDouble
from tests.queue_source import QueueDoubleSource
from tests.shard_double import SCHEMA as SHARD_SCHEMA
from tests.shard_double import ShardDouble, ShardDoubleSource


class SequenceContext(SourceContext):
    """The system is a number in a file: how far the sequence goes now."""

    source = SequenceSource
    schema = pa.schema([("value", pa.int64())])

    def options(self) -> dict[str, str]:
        return {"end": str(self._end())}

    def write(self, count: int) -> list[dict[str, Any]]:
        first = self._end() + 1
        (self.folder / "end").write_text(str(first + count - 1))
        return [{"value": value} for value in range(first, first + count)]

    def _end(self) -> int:
        file = self.folder / "end"
        return int(file.read_text()) if file.exists() else 0


class QueueContext(SourceContext):
    """A message queue, which cannot be read twice."""

    source = QueueDoubleSource
    schema = pa.schema([("value", pa.int64())])
    unordered = "several readers take messages from one queue"
    short_lease: ClassVar[Mapping[str, str]] = {"lease": "1s"}
    misbehaviour = "{}"

    count = 0

    @cached_property
    def queue(self) -> QueueDouble:
        return QueueDouble(self.folder / "queue.db")

    def options(self) -> dict[str, str]:
        return {
            "path": str(self.queue.path),
            "stateLocation": str(self.folder / "log"),
            "pollInterval": "20ms",
            "drainTimeout": "20ms",
            "misbehaviour": self.misbehaviour,
        }

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        self.queue.publish(numbers)
        return [{"value": number} for number in numbers]

    def set_time(self, now: float) -> None:
        self.queue.set_time(now)

    def settle(self) -> None:
        self.queue.end_leases()


class MisbehavingQueueContext(QueueContext):
    """A queue that delivers twice, out of order, and again what was acknowledged."""

    misbehaviour = '{"duplicate": 0.5, "reorder": 0.5, "forget": 0.3}'


class ShardContext(SourceContext):
    """Shards, which can be read again, and are split while they are read."""

    source = ShardDoubleSource
    schema = SHARD_SCHEMA
    count = 0

    @cached_property
    def shards(self) -> ShardDouble:
        return ShardDouble(self.folder / "shards.db")

    def options(self) -> dict[str, str]:
        return {
            "path": str(self.shards.path),
            "stateLocation": str(self.folder / "log"),
            "pollInterval": "20ms",
            "drainTimeout": "20ms",
        }

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        return [{"value": number, "shard": shard} for number, shard in zip(numbers, self.shards.write(numbers), strict=True)]

    def partition(self, row: Mapping[str, Any]) -> str:
        return str(row["shard"])

    def lose(self) -> bool:
        self.shards.trim()
        return True


class FileStreamContext(SourceContext):
    """Two files that grow, with every kind of line end."""

    source = FileStreamSource
    schema = pa.schema([("filename", pa.string()), ("position", pa.int64()), ("value", pa.string())])
    limit: ClassVar[Mapping[str, str]] = {"maxBytesPerTrigger": "60"}

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder / "*.log")}

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = []
        for number in range(count):
            file = self.folder / f"{number % 2}.log"
            with file.open("ab") as log:
                log.write(f"line {number}".encode() + (b"\n", b"\r\n", b"\r")[number // 2 % 3])
                rows.append({"filename": str(file), "position": log.tell(), "value": f"line {number}"})
        for name in ("0.log", "1.log"):  # ends of a kind that does not wait for what follows
            with (self.folder / name).open("ab") as log:
                log.write(b"last\n")
                rows.append({"filename": str(self.folder / name), "position": log.tell(), "value": "last"})
        return rows

    def partition(self, row: Mapping[str, Any]) -> str:
        return str(row["filename"])

    def lose(self) -> bool:
        for name in ("0.log", "1.log"):
            (self.folder / name).write_bytes(b"")
        return True


class BufferedContext(FolderContext):
    sink = BufferedSink

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.files() for line in file.read_text().splitlines()]


class FilesContext(FolderContext):
    sink = FilesSink

    def rows(self) -> list[dict[str, Any]]:
        return [row for file in self.files() for row in pq.read_table(file).to_pylist()]


class LinesContext(FolderContext):
    sink = FileStreamSink
    schema = pa.schema([("value", pa.string())])
    select = ("concat('line ', value) AS value",)

    def row(self, number: int) -> dict[str, Any]:
        return {"value": f"line {number}"}

    def rows(self) -> list[dict[str, Any]]:
        return [{"value": line} for file in self.files() for line in file.read_text().splitlines()]


class PrintContext(SinkContext):
    """Standard output cannot be read back by a suite, so the printed lines also go to a file."""

    sink = PrintSink
    guarantee = Guarantee.AT_LEAST_ONCE
    schema = pa.schema([("value", pa.string())])

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        output = folder / "output"

        class Teed(PrintSink):
            def lines(self, rows: pa.RecordBatch, subtask: int) -> list[str]:
                printed = super().lines(rows, subtask)
                with output.open("a") as copy:
                    copy.writelines(line + "\n" for line in printed)
                return printed

        self.sink = Teed  # type: ignore[misc]

    def options(self) -> dict[str, str]:
        return {}

    def row(self, number: int) -> dict[str, Any]:
        return {"value": f"line {number}"}

    def rows(self) -> list[dict[str, Any]]:
        lines = (self.folder / "output").read_text().splitlines() if (self.folder / "output").exists() else []
        return [{"value": line.partition("> ")[2]} for line in lines]

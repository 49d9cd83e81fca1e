"""The pair of file connectors of Connect's guide, in Python: a worked example of a source and a sink, to copy.

Production reads files by ``connectors.file_stream``: it follows files that are rotated or truncated, and reads a file in many
tasks.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from connectors.connect import (
    ConfigDef,
    ConnectException,
    ExactlyOnceSupport,
    Schema,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceBatch,
    SourceConnector,
    SourceTask,
    TopicPartition,
    between,
    non_empty,
)

SOURCE: Final = f"{__name__}.FileStreamSourceConnector"
SINK: Final = f"{__name__}.FileStreamSinkConnector"
"""The names of the classes in properties."""
_BLOCK: Final = 4 << 20
_WAIT: Final = 0.05
FILENAME, POSITION = "filename", "position"

SOURCE_CONFIG: Final = (
    ConfigDef()
    .define("file", "STRING", None, "HIGH", "the file to read; without it standard input is read")
    .define("topic", "STRING", importance="HIGH", documentation="the topic of its lines", validator=non_empty)
    .define("batch.size", "INT", 2000, "LOW", "lines of one poll, at most", validator=between(1))
)


class FileStreamSourceConnector(SourceConnector):
    """Reads a file line by line, and what is appended to it, as long as nothing else happens to the file. One task.

    Settings: ``file``, ``topic``, ``batch.size``. The source partition is ``{"filename": …}``, the offset ``{"position": …}``,
    the byte after the line. A file that does not exist yet is waited for. A line ends with ``\n`` or ``\r\n``: a lone ``\r``
    is a part of it.

    The offset says nothing about the file itself. So a file that is truncated and written anew is read from the middle of a
    line, and one that takes the place of the file is not read before the next start, and then from the old position.
    ``connectors.file_stream`` follows both.
    """

    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)

    def task_class(self) -> type[SourceTask]:
        return FileStreamSourceTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self._props]

    def stop(self) -> None:
        """There is nothing to end: the connector watches nothing."""

    def config(self) -> ConfigDef:
        return SOURCE_CONFIG

    def exactly_once_support(self, props: Mapping[str, str]) -> ExactlyOnceSupport | None:
        """A position does not say whether the file is still the one that was read; standard input cannot be read again."""
        return ExactlyOnceSupport.UNSUPPORTED


class FileStreamSourceTask(SourceTask):
    """Reads whole lines in blocks; an unfinished last line waits."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._rest = b""
        self._at = 0
        self._block: tuple[pa.Array, pa.Array] | None = None

    def start(self, props: Mapping[str, str]) -> None:
        self._name: str | None = props.get("file")
        self._topic = props["topic"]
        self._most = int(props.get("batch.size", 2000))
        self._open()

    def poll(self) -> SourceBatch | None:
        """The next lines, at most ``batch.size``; ``None`` when there is no whole line."""
        if self._block is None and not self._read():
            return None
        assert self._block is not None
        positions, texts = self._block
        self._block = (positions[self._most :], texts[self._most :]) if len(texts) > self._most else None
        return SourceBatch(
            {FILENAME: self._name},
            POSITION,
            positions[: self._most],
            self._topic,
            texts[: self._most],
            Schema.STRING_SCHEMA,
            timestamp=int(time.time() * 1000),
        )

    def _read(self) -> bool:
        """Reads a block; false when there is no whole line in it."""
        with self._lock:
            file = self._open()
        if file is None:
            self._stopping.wait(_WAIT)
            return False
        try:
            block = file.read(_BLOCK)
        except ValueError:  # closed by stop() meanwhile
            return False
        if not block:
            self._stopping.wait(_WAIT)
            return False
        self._block = self._lines(block)
        return self._block is not None

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            if self._file is not None and self._name is not None:
                self._file.close()

    def _open(self) -> BinaryIO | None:
        """The file at the place to go on from; ``None`` while it does not exist."""
        if self._file is None and not self._stopping.is_set():
            if self._name is None:
                self._file = sys.stdin.buffer
                return self._file
            with contextlib.suppress(FileNotFoundError):
                file = open(self._name, "rb")  # noqa: SIM115 - open until stop()
                self._at = self._recorded()
                if self._at > file.seek(0, io.SEEK_END):
                    file.close()
                    raise ConnectException(f"{self._name} is shorter than what was read of it: it was truncated")
                file.seek(self._at)
                self._rest = b""
                self._file = file
        return self._file

    def _recorded(self) -> int:
        offset = self.context.offset_storage_reader().offset({FILENAME: self._name})
        if offset is None:
            return 0
        if not isinstance(offset.get(POSITION), int):
            raise ConnectException("Offset position is the incorrect type")
        return int(offset[POSITION])

    def _lines(self, block: bytes) -> tuple[pa.Array, pa.Array] | None:
        """The whole lines of what was left and ``block``, with the place after each. They end with ``\\n`` or ``\\r\\n``."""
        data = self._rest + block
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._rest = data
            return None
        self._rest = data[end:]
        lines = np.frombuffer(data, np.uint8, end)
        ends = np.flatnonzero(lines == ord("\n")).astype(np.int64) + 1
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        first = self._at
        self._at += end
        return pa.array(ends + first), _texts(data, lines, starts, ends)


def _texts(data: bytes, lines: Any, starts: Any, ends: Any) -> pa.Array:
    """The lines without their terminators, as an Arrow column over one copy of the bytes."""
    lengths = ends - starts - 1
    last = lines[np.maximum(ends - 2, 0)]
    lengths = lengths - ((lengths > 0) & (last == ord("\r")))
    keep = np.ones(len(lines), bool)
    keep[ends - 1] = False
    carriage = ends[(ends - starts > 1) & (last == ord("\r"))] - 2
    keep[carriage] = False
    offsets = np.zeros(len(ends) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    text = pa.Array.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(lines[keep].tobytes())]
    )
    try:
        return text.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([line.decode("utf-8", "replace") for line in text.to_pylist()], pa.string())


SINK_CONFIG: Final = ConfigDef().define(
    "file", "STRING", None, "HIGH", "the file to append to; without it standard output"
)


class FileStreamSinkConnector(SinkConnector):
    """Appends the value of each record to a file, as a line. Settings: ``file``. At-least-once."""

    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)

    def task_class(self) -> type[SinkTask]:
        return FileStreamSinkTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self._props] * max_tasks

    def stop(self) -> None:
        """There is nothing to end."""

    def config(self) -> ConfigDef:
        return SINK_CONFIG


class FileStreamSinkTask(SinkTask):
    """Writes lines in ``put``, and makes them durable in ``flush``."""

    def start(self, props: Mapping[str, str]) -> None:
        name = props.get("file")
        self._file: BinaryIO = open(name, "ab", buffering=0) if name else sys.stdout.buffer  # noqa: SIM115 - open until stop()

    def put(self, records: Sequence[SinkRecord]) -> None:
        # one write per block, so that the lines of tasks that append to one file do not mix
        self._file.write(b"".join(f"{record.value}\n".encode() for record in records))

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._file.flush()
        if self._file is not sys.stdout.buffer:
            import os

            os.fsync(self._file.fileno())

    def stop(self) -> None:
        if self._file is not sys.stdout.buffer:
            self._file.close()

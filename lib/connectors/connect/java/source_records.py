"""Records of a Java source on their way out of the JVM, where each is transformed, converted and written.

A polled list becomes rows by one call (``RecordWriter.java``). Where a record fails, the call ends there; the record is set
aside or fails the task, and the next call goes on behind it. Rows come as buffers of Arrow in a file (``ColumnFile.java``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from ...ground import machine
from ...ground.state import dumps
from ..host import HEADERS, SOURCE_COLUMNS, DeadLetter
from ..tolerance import ERRORS
from .failures import JavaFailure, failure
from .jvm import Jvm
from .steps import Steps

_FIRST_PAUSE: Final = 0.04
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")


class RecordFailure(Exception):
    """A record that a transform or converter cannot take, with ``errors.tolerance=none``."""

    def __init__(self, failure: JavaFailure, stage: str) -> None:
        super().__init__(f"Tolerance exceeded in error handler: {stage} failed: {failure}")
        self.failure = failure


@dataclass
class Rows:
    """The outcome of some polled records."""

    table: pa.Table
    polled: int
    offsets: dict[str, Any]
    """The newest offset of each source partition, also of records that became no row."""
    letters: list[DeadLetter] = field(default_factory=list)
    retries: int = 0
    groups: dict[str, Any] = field(default_factory=dict)
    """The state that a start needs of each source partition beside its offset."""
    is_again: bool = False
    """A snapshot was begun anew before these records."""
    time: float = 0.0
    """The time of the newest change, in seconds since 1970, if the records tell."""
    number: int = 0
    """The number of the list."""
    next: str = ""
    """The step that must follow: ``start`` of the task, or ``stop`` where no start helps; empty for nothing."""


class RecordWriter:
    """Makes rows of polled records, all in the JVM (``RecordWriter.java``)."""

    def __init__(self, jvm: Jvm, steps: Steps, store: Any, folder: Path) -> None:
        self.jvm, self.steps = jvm, steps
        path = folder / "rows"
        self._java_steps = steps.java()
        self.java = jvm.compiled("RecordWriter", self._java_steps, store, str(path))
        self._file = path.open("rb")
        path.unlink()  # both sides have it open; nothing is left of it when they are gone
        errors = ERRORS.parse({key: value for key, value in steps.properties.items() if key in ERRORS.keys})
        self.tolerates = errors["errors.tolerance"] == "all"
        self.timeout, self.longest = errors["errors.retry.timeout"] / 1000, errors["errors.retry.delay.max.ms"] / 1000

    def rows(self, polled: Any, task: int) -> Rows:
        """The rows of a ``PolledList`` that the store has entered.

        Raises :class:`RecordFailure` where errors are not tolerated, and for an outage.
        """
        parts, letters, at, retries = [], [], 0, 0
        size = 1  # at least; the first report says it
        pause, until = _FIRST_PAUSE, 0.0
        report: dict[str, Any] = {}
        while at < size:
            report = json.loads(self.java.write(polled, at))
            parts.append(source_rows(os.pread(self._file.fileno(), report["length"], 0), report["columns"]))
            advanced, at, size = report["end"] - at, report["end"], report["size"]
            if not report["failed"]:
                continue
            if advanced or not until:
                pause, until = _FIRST_PAUSE, machine.monotonic() + self.timeout if self.timeout >= 0 else float("inf")
            thrown = failure(self.java.failure(), self.jvm.masked)
            if thrown.is_retriable and (left := until - machine.monotonic()) > 0:
                machine.sleep(min(pause, left))
                pause, retries = min(2 * pause, self.longest), retries + 1
                continue
            letters.append(self._letter(polled.get(at), thrown, task))
            at, until = at + 1, 0.0
        places = [(dumps(partition), offset, group) for partition, offset, group in report["offsets"]]
        offsets = {partition: offset for partition, offset, _ in places}
        groups = {partition: group for partition, _, group in places}
        facts = {"is_again": report["again"], "time": report["time"] / 1000, "number": report["number"], "next": report["next"]}
        return Rows(pa.concat_tables(parts), size, offsets, letters, retries, groups, **facts)

    def close_files(self) -> None:
        self._file.close()

    def close(self) -> None:
        self.close_files()
        with contextlib.suppress(Py4JJavaError):
            self.java.close()
            self.steps.close()

    def _letter(self, record: Any, thrown: JavaFailure, task: int) -> DeadLetter:
        stage, executing = str(self._java_steps.stage()), str(self._java_steps.executingClass())
        if not self.tolerates or thrown.is_retriable:
            raise RecordFailure(thrown, f"{stage} by {executing}")
        return DeadLetter(
            record.topic(), record.kafkaPartition(), None, self._shown(record, "key"), self._shown(record, "value"), [],
            record.timestamp(), stage, executing, thrown.kind, thrown.message, thrown.trace, task,
        )  # fmt: skip

    def _shown(self, record: Any, part: str) -> bytes | None:
        """The key or value as bytes: as its converter has it, else its text."""
        schema, value = (record.keySchema(), record.key()) if part == "key" else (record.valueSchema(), record.value())
        try:
            converted = self.steps.converters[part].fromConnectData(record.topic(), schema, value)
        except Py4JJavaError:
            return str(self.jvm.java.java.lang.String.valueOf(value)).encode()
        return None if converted is None else bytes(converted)


def source_rows(content: bytes, sizes: Iterable[Sequence[int]]) -> pa.Table:
    """The rows in the ``content`` of a file: its buffers, which are not copied.

    ``sizes`` has rows, nulls, and bytes or items of each column, as ``RecordWriter.java`` reports them.
    """
    buffers, columns = _Buffers(content), iter(sizes)
    arrays = [
        buffers.cells(pa.string(), *next(columns)),
        buffers.numbers(pa.int32(), *next(columns)),
        buffers.cells(pa.binary(), *next(columns)),
        buffers.cells(pa.binary(), *next(columns)),
        buffers.headers(*(next(columns) for _ in range(3))),
        buffers.numbers(_MILLISECONDS, *next(columns)).cast(SOURCE_COLUMNS.field("timestamp").type),
        buffers.cells(pa.string(), *next(columns)),
        buffers.cells(pa.string(), *next(columns)),
    ]
    return pa.table(arrays, schema=SOURCE_COLUMNS)


class _Buffers:
    """Buffers behind each other, each at a multiple of 8 bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self._end = pa.py_buffer(content), 0

    def cells(self, kind: pa.DataType, rows: int, nulls: int, size: int) -> pa.Array:
        buffers = [self._valid(rows, nulls), self._next(4 * (rows + 1)), self._next(size)]
        return pa.Array.from_buffers(kind, rows, buffers, nulls)

    def numbers(self, kind: pa.DataType, rows: int, nulls: int, _: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [self._valid(rows, nulls), self._next(rows * kind.bit_width // 8)], nulls)

    def headers(self, lists: Sequence[int], keys: Sequence[int], values: Sequence[int]) -> pa.Array:
        rows, nulls, _ = lists
        buffers = [self._valid(rows, nulls), self._next(4 * (rows + 1))]
        children = [self.cells(pa.string(), *keys), self.cells(pa.binary(), *values)]
        pairs = pa.Array.from_buffers(HEADERS.value_type, keys[0], [None], 0, children=children)
        return pa.Array.from_buffers(HEADERS, rows, buffers, nulls, children=[pairs])

    def _valid(self, rows: int, nulls: int) -> pa.Buffer | None:
        return self._next((rows + 7) // 8) if nulls else None

    def _next(self, size: int) -> pa.Buffer:
        start = self._end
        self._end += -(-size // 8) * 8
        return self._content.slice(start, size)

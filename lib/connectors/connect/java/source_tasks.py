"""The tasks of a Java source: each polls in a thread of the JVM and puts what it gets into one queue (``PolledQueue.java``).

A polled list becomes rows by one call: the JVM transforms, converts and writes each record (``RecordWriter.java``). Where a
record fails, the call ends there; the record is set aside or fails the task, and the next call goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from ...core.state import dumps
from ..host import DeadLetter, Offsets
from ..tolerance import ERRORS
from .column_file import source_rows
from .failures import JavaFailure, failure, failure_of
from .jvm import Jvm
from .steps import Steps

_FIRST_PAUSE: Final = 0.04
_NEWEST_SUFFICES: Final = "io.debezium."
"""Debezium acknowledges a position, so the newest record of each list stands for the others."""


class RecordFailure(Exception):
    """A record that a transform or converter cannot take, with ``errors.tolerance=none``."""

    def __init__(self, failure: JavaFailure, stage: str) -> None:
        super().__init__(f"Tolerance exceeded in error handler: {stage} failed: {failure}")
        self.failure = failure


class SourceThread:
    """One task: its Java object, and the loop that polls it in a thread (``PollLoop.java``)."""

    def __init__(self, jvm: Jvm, number: int, task: Any, queue: Any) -> None:
        self.jvm, self.number, self.task = jvm, number, task
        self.loop = jvm.compiled("PollLoop", number, task, queue)
        self.future: Any = None
        self.class_name = str(task.getClass().getName())
        self._commits_records = self._overrides("commitRecord")
        self._newest_suffices = self.class_name.startswith(_NEWEST_SUFFICES)

    @property
    def retains_records(self) -> bool:
        """True if all records stay in the JVM until Spark has committed them."""
        return self._commits_records and not self._newest_suffices

    def retained(self, polled: Any) -> Any:
        """A Java list of those of the ``polled`` records whose ``commitRecord`` is to be called, if there are any."""
        if not self._commits_records:
            return None
        return polled.newest() if self._newest_suffices else polled.records()

    def start(self, executor: Any) -> None:
        self.future = executor.submit(self.loop)

    def is_done(self) -> bool:
        return self.future is not None and bool(self.future.isDone())

    def result(self) -> JavaFailure | None:
        """Why the loop has ended; ``None`` if it was told to."""
        try:
            self.future.get()
        except Py4JJavaError as error:
            return failure_of(error, self.jvm.masked)
        return None

    def stop_polling(self) -> None:
        """Ends the loop after the poll that is under way."""
        self.loop.stop()

    def stop(self) -> None:
        """Ends the loop and the task; the caller waits for the loop."""
        self.stop_polling()
        with contextlib.suppress(Py4JJavaError):
            self.task.stop()

    def _overrides(self, name: str) -> bool:
        methods = self.task.getClass().getMethods()
        owners = {str(method.getDeclaringClass().getName()) for method in methods if method.getName() == name}
        return owners != {"org.apache.kafka.connect.source.SourceTask"}


@dataclass
class Rows:
    """What became of some polled records."""

    table: pa.Table
    polled: int
    offsets: dict[str, Any]
    """The newest offset of each source partition, also of records that became no row."""
    letters: list[DeadLetter] = field(default_factory=list)
    retries: int = 0


class RecordWriter:
    """Makes rows of polled records, all in the JVM (``RecordWriter.java``)."""

    def __init__(self, jvm: Jvm, steps: Steps, folder: Path) -> None:
        self.jvm, self.steps = jvm, steps
        path = folder / "rows"
        self._java_steps = steps.java()
        self.java = jvm.compiled("RecordWriter", self._java_steps, str(path))
        self._file = path.open("rb")
        path.unlink()  # both sides have it open; nothing is left of it when they are gone
        errors = ERRORS.parse({key: value for key, value in steps.properties.items() if key in ERRORS.keys})
        self.tolerates = errors["errors.tolerance"] == "all"
        self.timeout, self.longest = errors["errors.retry.timeout"] / 1000, errors["errors.retry.delay.max.ms"] / 1000

    def rows(self, polled: Any, task: int) -> Rows:
        """The rows of a ``PolledList``. Raises :class:`RecordFailure` where errors are not tolerated."""
        parts, letters, at, retries = [], [], 0, 0
        size = 1  # at least; the first report says it
        pause, until = _FIRST_PAUSE, 0.0
        offsets: dict[str, Any] = {}
        while at < size:
            report = json.loads(self.java.write(polled, at))
            parts.append(source_rows(os.pread(self._file.fileno(), report["length"], 0), report["columns"]))
            offsets = {dumps(partition): offset for partition, offset in report["offsets"]}
            advanced, at, size = report["end"] - at, report["end"], report["size"]
            if not report["failed"]:
                continue
            if advanced or not until:
                pause, until = _FIRST_PAUSE, time.monotonic() + self.timeout if self.timeout >= 0 else float("inf")
            thrown = failure(self.java.failure(), self.jvm.masked)
            if thrown.is_retriable and (left := until - time.monotonic()) > 0:
                time.sleep(min(pause, left))
                pause, retries = min(2 * pause, self.longest), retries + 1
                continue
            letters.append(self._letter(polled.get(at), thrown, task))
            at, until = at + 1, 0.0
        return Rows(pa.concat_tables(parts), size, offsets, letters, retries)

    def close_files(self) -> None:
        self._file.close()

    def close(self) -> None:
        self.close_files()
        with contextlib.suppress(Py4JJavaError):
            self.java.close()
            self.steps.close()

    def _letter(self, record: Any, thrown: JavaFailure, task: int) -> DeadLetter:
        stage, executing = str(self._java_steps.stage()), str(self._java_steps.executingClass())
        if not self.tolerates:
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


class Committer:
    """The records of epochs that Spark has not committed yet."""

    def __init__(self) -> None:
        self._epochs: deque[tuple[int, int, Any, Offsets]] = deque()

    def add(self, epoch: int, task: int, records: Any, offsets: Offsets) -> None:
        self._epochs.append((epoch, task, records, offsets))

    def offsets(self, epoch: int) -> dict[str, Any]:
        """The newest offsets of the epochs up to ``epoch``."""
        newest: dict[str, Any] = {}
        for number, _, _, offsets in self._epochs:
            if number <= epoch:
                newest.update(offsets)
        return newest

    def commit(self, epoch: int, threads: Mapping[int, SourceThread]) -> None:
        """``commitRecord`` for the records of the epochs up to ``epoch``, then ``commit`` of the tasks."""
        while self._epochs and self._epochs[0][0] <= epoch:
            _, number, records, _ = self._epochs.popleft()
            if records is not None and (thread := threads.get(number)):
                thread.loop.commitRecords(records)
                thread.jvm.release(records)
        for thread in list(threads.values()):  # the collector may start one meanwhile
            thread.task.commit()

    def clear(self) -> None:
        self._epochs.clear()

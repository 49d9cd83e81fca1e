"""The tasks of a Java source: each polls in a thread of the JVM and puts what it gets into one queue.

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
from ..host import SOURCE_COLUMNS, DeadLetter
from ..tolerance import ERRORS
from .column_file import source_rows
from .failures import JavaFailure, failure, failure_of
from .handles import Handles
from .steps import Steps

_QUEUED_RECORDS: Final = 10_000
"""So many records wait in the JVM: their heap is small."""
_FIRST_PAUSE: Final = 0.04
_NEWEST_SUFFICES: Final = "io.debezium."
"""Debezium acknowledges a position, so the newest record of each list stands for the others."""


class RecordFailure(Exception):
    """A record that a transform or converter cannot take, with ``errors.tolerance=none``."""

    def __init__(self, failure: JavaFailure, stage: str) -> None:
        super().__init__(f"Tolerance exceeded in error handler: {stage} failed: {failure}")
        self.failure = failure


@dataclass
class Polled:
    """A list of records that a task has polled."""

    task: int
    records: Any
    size: int


class PolledQueue:
    """The lists that wait in the JVM for the collector: so many records of all tasks, or one longer list."""

    def __init__(self, handles: Handles) -> None:
        self.handles = handles
        concurrent = handles.java.java.util.concurrent
        self._milliseconds = concurrent.TimeUnit.MILLISECONDS
        self._lists = concurrent.LinkedBlockingQueue()
        self._room = concurrent.Semaphore(_QUEUED_RECORDS)

    def put_handle(self, task: int) -> Any:
        """A handle that waits for room and puts a list of ``task``."""
        handles = self.handles
        entry = handles.cast(handles.constructor("Entry", "Object", "Object"), "Object", "Object", "List")
        entry = handles.make.insertArguments(entry, 0, handles.objects(task))
        # py4j calls no method of a class that is not public, as many lists of Java are.
        public = handles.cast(handles.constructor("ArrayList", "Collection"), "List", "List")
        put = handles.bound(self._lists, "BlockingQueue", "put", "void", "Object")
        least = handles.static("java.lang.Math", "min", "int", "int", "int")
        share = handles.make.insertArguments(least, 1, handles.objects(_QUEUED_RECORDS))
        acquire = handles.bound(self._room, "Semaphore", "acquire", "void", "int")
        wait = handles.chain(handles.chain(handles.method("List", "size", "int"), share), acquire)
        return handles.in_turn([wait, handles.chain(handles.chain(public, entry), put)])

    def take(self, seconds: float) -> list[Polled]:
        """All lists that wait; none if there is none within ``seconds``."""
        first = self._lists.poll(round(seconds * 1000), self._milliseconds)
        if first is None:
            return []
        entries = self.handles.java.java.util.ArrayList()
        entries.add(first)
        self._lists.drainTo(entries)
        lists = [Polled(int(entry.getKey()), entry.getValue(), int(entry.getValue().size())) for entry in list(entries)]
        self._room.release(sum(min(polled.size, _QUEUED_RECORDS) for polled in lists))
        return lists

    def is_empty(self) -> bool:
        return bool(self._lists.isEmpty())

    def clear(self) -> None:
        """Drops the lists that wait; a task that waits for room goes on."""
        self._lists.clear()
        self._room.drainPermits()
        self._room.release(_QUEUED_RECORDS)


class SourceThread:
    """One task: its Java object, and the loop that polls it."""

    def __init__(self, handles: Handles, number: int, task: Any, queue: PolledQueue) -> None:
        self.handles, self.number, self.task = handles, number, task
        self.running = handles.java.java.util.concurrent.atomic.AtomicBoolean(True)
        self.loop = handles.implement("Callable", self._loop(queue.put_handle(number)))
        self.future: Any = None
        self.class_name = str(task.getClass().getName())
        self._commits_records = self._overrides("commitRecord")
        self._newest_suffices = self.class_name.startswith(_NEWEST_SUFFICES)

    @property
    def retains_records(self) -> bool:
        """True if all records stay in the JVM until Spark has committed them."""
        return self._commits_records and not self._newest_suffices

    def retained(self, records: Any, size: int) -> Any:
        """Those of the polled ``records`` whose ``commitRecord`` is to be called."""
        if not self._commits_records or not size:
            return ()
        return (records.get(size - 1),) if self._newest_suffices else records

    def start(self, executor: Any) -> None:
        self.future = executor.submit(self.loop)

    def is_done(self) -> bool:
        return self.future is not None and bool(self.future.isDone())

    def result(self) -> JavaFailure | None:
        """Why the loop has ended; ``None`` if it was told to."""
        try:
            self.future.get()
        except Py4JJavaError as error:
            return failure_of(error, self.handles.jvm.masked)
        return None

    def stop(self) -> None:
        """Ends the loop and the task; the caller waits for the loop."""
        self.running.set(False)
        with contextlib.suppress(Py4JJavaError):
            self.task.stop()

    def _overrides(self, name: str) -> bool:
        methods = self.task.getClass().getMethods()
        owners = {str(method.getDeclaringClass().getName()) for method in methods if method.getName() == name}
        return owners != {"org.apache.kafka.connect.source.SourceTask"}

    def _loop(self, put: Any) -> Any:
        """A handle that polls as long as :attr:`running`, and hands each list that is not empty to ``put``."""
        handles = self.handles
        poll = handles.bound(self.task, "SourceTask", "poll", "List")
        is_empty = handles.method("List", "isEmpty", "bool")
        some = handles.make.guardWithTest(is_empty, handles.make.empty(put.type()), put)
        body = handles.make.collectArguments(handles.unless_null(some, "List"), 0, poll)
        return handles.make.doWhileLoop(None, body, handles.bound(self.running, "Flag", "get", "bool"))


@dataclass
class Rows:
    """What became of some polled records."""

    table: pa.Table
    offsets: dict[str, Any]
    """The newest offset of each source partition, also of records that became no row."""
    letters: list[DeadLetter] = field(default_factory=list)
    retries: int = 0


class RecordWriter:
    """Makes rows of polled records, all in the JVM (``RecordWriter.java``)."""

    def __init__(self, handles: Handles, steps: Steps, folder: Path) -> None:
        self.handles, self.steps = handles, steps
        path = folder / "rows"
        self.java = handles.compiled("RecordWriter", steps.java, str(path))
        self._file = path.open("rb")
        path.unlink()  # both sides have it open; nothing is left of it when they are gone
        errors = ERRORS.parse({key: value for key, value in steps.properties.items() if key in ERRORS.keys})
        self.tolerates = errors["errors.tolerance"] == "all"
        self.timeout, self.longest = errors["errors.retry.timeout"] / 1000, errors["errors.retry.delay.max.ms"] / 1000

    def rows(self, records: Any, size: int, task: int) -> Rows:
        """The rows of ``records``, a Java list. Raises :class:`RecordFailure` where errors are not tolerated."""
        parts, letters, at, retries = [], [], 0, 0
        pause, until = _FIRST_PAUSE, 0.0
        offsets: dict[str, Any] = {}
        while at < size:
            report = json.loads(self.java.write(records, at))
            parts.append(source_rows(os.pread(self._file.fileno(), report["length"], 0), report["columns"]))
            offsets = {dumps(partition): offset for partition, offset in report["offsets"]}
            advanced, at = report["end"] - at, report["end"]
            if not report["failed"]:
                continue
            if advanced or not until:
                pause, until = _FIRST_PAUSE, time.monotonic() + self.timeout if self.timeout >= 0 else float("inf")
            thrown = failure(self.java.failure(), self.handles.jvm.masked)
            if thrown.is_retriable and (left := until - time.monotonic()) > 0:
                time.sleep(min(pause, left))
                pause, retries = min(2 * pause, self.longest), retries + 1
                continue
            letters.append(self._letter(records.get(at), thrown, task))
            at, until = at + 1, 0.0
        return Rows(pa.concat_tables(parts) if parts else SOURCE_COLUMNS.empty_table(), offsets, letters, retries)

    def close_files(self) -> None:
        self._file.close()

    def close(self) -> None:
        self.close_files()
        with contextlib.suppress(Py4JJavaError):
            self.java.close()
            self.steps.close()

    def _letter(self, record: Any, thrown: JavaFailure, task: int) -> DeadLetter:
        stage, executing = str(self.steps.java.stage()), str(self.steps.java.executingClass())
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
            return str(self.handles.java.java.lang.String.valueOf(value)).encode()
        return None if converted is None else bytes(converted)


class Committer:
    """The records of epochs that Spark has not committed yet."""

    def __init__(self, handles: Handles) -> None:
        self.handles = handles
        self._epochs: deque[tuple[int, int, Any]] = deque()

    def add(self, epoch: int, task: int, records: Any) -> None:
        self._epochs.append((epoch, task, records))

    def commit(self, epoch: int, threads: Mapping[int, SourceThread]) -> None:
        """``commitRecord`` for the records of the epochs up to ``epoch``, then ``commit`` of the tasks."""
        while self._epochs and self._epochs[0][0] <= epoch:
            _, number, records = self._epochs.popleft()
            if thread := threads.get(number):
                if isinstance(records, tuple):
                    for record in records:
                        thread.task.commitRecord(record, None)
                else:
                    records.forEach(self._consumer(thread))
        for thread in list(threads.values()):  # the collector may start one meanwhile
            thread.task.commit()

    def clear(self) -> None:
        self._epochs.clear()

    def _consumer(self, thread: SourceThread) -> Any:
        handles = self.handles
        commit = handles.bound(thread.task, "SourceTask", "commitRecord", "void", "SourceRecord", "Metadata")
        return handles.implement("Consumer", handles.make.insertArguments(commit, 1, handles.objects(None)))


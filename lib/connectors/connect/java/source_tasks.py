"""The tasks of a Java source: each polls in a thread of the JVM and puts what it gets into one queue.

A polled list becomes rows by one call: the JVM transforms, converts and writes each record (:mod:`.cells`). Where a record
fails, the call ends there; the record is set aside or fails the task, and the call goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from ...core.state import dumps
from ..host import HEADERS, SOURCE_COLUMNS, DeadLetter
from ..tolerance import ERRORS
from .cells import Cells, numbers, text
from .failures import JavaFailure, failure_of
from .handles import Handles
from .steps import Steps

_COLUMNS: Final = 8
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
    polled: int
    letters: list[DeadLetter] = field(default_factory=list)
    retries: int = 0


class RecordWriter:
    """Makes rows of polled records, all in the JVM."""

    def __init__(self, handles: Handles, steps: Steps, folder: Path) -> None:
        self.handles, self.steps = handles, steps
        self.cells = Cells(handles, folder, "records", _COLUMNS)
        self.headers = Cells(handles, folder, "headers", 2)
        self.done = handles.java.java.util.concurrent.atomic.AtomicLongArray(2)
        """How many records are done, and how many of them have become a row."""
        self.consumer = handles.implement("Consumer", self._record_handle())
        errors = ERRORS.parse({key: value for key, value in steps.properties.items() if key in ERRORS.keys})
        self.tolerates = errors["errors.tolerance"] == "all"
        self.timeout, self.longest = errors["errors.retry.timeout"] / 1000, errors["errors.retry.delay.max.ms"] / 1000

    def rows(self, records: Any, size: int, task: int) -> Rows:
        """The rows of ``records``, a Java list. Raises :class:`RecordFailure` where errors are not tolerated."""
        parts, letters, at, retries = [], [], 0, 0
        pause, until = _FIRST_PAUSE, 0.0
        while at < size:
            self.done.set(0, 0)
            self.done.set(1, 0)
            try:
                rest = records if at == 0 else self.handles.java.java.util.ArrayList(records.subList(at, size))
                rest.forEach(self.consumer)
                parts.append(self._take())
                break
            except Py4JJavaError as error:
                advanced = int(self.done.get(0))
                parts.append(self._take().slice(0, int(self.done.get(1))))
                if advanced or not until:
                    pause, until = _FIRST_PAUSE, time.monotonic() + self.timeout if self.timeout >= 0 else float("inf")
                at += advanced
                thrown = failure_of(error, self.handles.jvm.masked)
                if thrown.is_retriable and (left := until - time.monotonic()) > 0:
                    time.sleep(min(pause, left))
                    pause, retries = min(2 * pause, self.longest), retries + 1
                    continue
                letters.append(self._letter(records.get(at), thrown, task))
                at, until = at + 1, 0.0
        return Rows(pa.concat_tables(parts) if parts else SOURCE_COLUMNS.empty_table(), size, letters, retries)

    def newest_offsets(self, records: Any, rows: Rows) -> dict[str, Any]:
        """The last offset of each source partition, also of records that became no row."""
        if rows.table.num_rows == rows.polled:
            partitions = rows.table["sourcePartition"].combine_chunks().dictionary_encode()
            newest = dict(zip(partitions.indices.to_pylist(), range(rows.polled), strict=True))
            offsets, names = rows.table["sourceOffset"], partitions.dictionary
            pairs = [(names[index].as_py(), offsets[row].as_py()) for index, row in newest.items() if index is not None]
            return {_canonical(name): _loads(offset) for name, offset in pairs}
        handles, streams = self.handles, self.handles.java.java.util.stream.Collectors
        kinds = [handles.implement("Function", handles.method("SourceRecord", name, "Map")) for name in _PLACE]
        second = handles.implement("BinaryOperator", handles.make.dropArguments(
            handles.make.identity(handles["Object"]), 0, handles.class_array(handles["Object"])
        ))
        newest_map = records.stream().collect(streams.toMap(*kinds, second))
        return {handles.canonical(key): handles.to_json(newest_map.get(key)) for key in list(newest_map.keySet())}

    def close_files(self) -> None:
        self.cells.close()
        self.headers.close()

    def close(self) -> None:
        self.close_files()
        with contextlib.suppress(Py4JJavaError):
            self.steps.close()

    def _record_handle(self) -> Any:
        """A handle that takes a record, writes its row and its headers, and counts it."""
        handles = self.handles
        record, source = "Record", "SourceRecord"
        cells = [
            handles.chain(handles.method("Record", "topic", "String"), handles.text_bytes("String")),
            handles.chain(handles.method("Record", "kafkaPartition", "Integer"), handles.text_bytes("Integer")),
            self.steps.converted("key"),
            self.steps.converted("value"),
            handles.chain(
                handles.method("Record", "headers", "Headers"),
                handles.chain(handles.method("Headers", "size", "int"), handles.text_bytes("int")),
            ),
            handles.chain(handles.method("Record", "timestamp", "Long"), handles.text_bytes("Long")),
            handles.chain(handles.method(source, _PLACE[0], "Map"), handles.remembered(handles.json_bytes("Map"), "Map")),
            handles.chain(handles.method(source, _PLACE[1], "Map"), handles.json_bytes("Map")),
        ]
        typed = [handles.cast(cell, "Bytes", record) for cell in cells]
        writer = handles.make.filterArguments(self.cells.writer(), 0, handles.handles(*typed))
        row = handles.spread(writer, _COLUMNS, handles[record])
        whole = handles.unless_null(handles.in_turn([row, self._header_handle(), self._counter(1)]), record)
        return handles.in_turn([handles.chain(self.steps.transformed(), whole), self._counter(0)])

    def _counter(self, index: int) -> Any:
        """A handle that takes a record and counts it in :attr:`done`."""
        handles = self.handles
        add = handles.bound(self.done, "Longs", "getAndIncrement", "long", "int")
        count = handles.cast(handles.make.insertArguments(add, 0, handles.objects(index)), "void")
        return handles.make.dropArguments(count, 0, handles.class_array(handles["Record"]))

    def _header_handle(self) -> Any:
        handles = self.handles
        key = handles.chain(handles.method("Header", "key", "String"), handles.text_bytes("String"))
        both = handles.make.filterArguments(self.headers.writer(), 0, handles.handles(key, self.steps.header_bytes()))
        write = handles.implement("Consumer", handles.spread(both, 2, handles["Header"]))
        each = handles.make.insertArguments(handles.method("Headers", "forEach", "void", "Consumer"), 1, handles.objects(write))
        return handles.chain(handles.method("Record", "headers", "Headers"), each)

    def _take(self) -> pa.Table:
        """The rows that were written. The last one may be half of a record that has failed."""
        columns = self.cells.take()
        headers = self.headers.take()
        counts = numbers(columns[4], pa.int32())
        return pa.table(
            [
                text(columns[0]),
                numbers(columns[1], pa.int32()),
                columns[2].cast(pa.binary()),
                columns[3].cast(pa.binary()),
                _header_column(counts, headers),
                numbers(columns[5], pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
                text(columns[6]),
                text(columns[7]),
            ],
            schema=SOURCE_COLUMNS,
        )

    def _letter(self, record: Any, thrown: JavaFailure, task: int) -> DeadLetter:
        stage, executing = self._place(record)
        if not self.tolerates:
            raise RecordFailure(thrown, f"{stage} by {executing}")
        return DeadLetter(
            record.topic(), record.kafkaPartition(), None, self._shown(record, "key"), self._shown(record, "value"), [],
            record.timestamp(), stage, executing, thrown.kind, thrown.message, thrown.trace, task,
        )  # fmt: skip

    def _place(self, record: Any) -> tuple[str, str]:
        """The stage at which ``record`` fails, in Connect's words, and the class that runs there."""
        for step in self.steps.transforms:
            try:
                transformed = self._applied(step.handle, record)
            except Py4JJavaError:
                return "TRANSFORMATION", step.class_name()
            if transformed is None:
                break
            record = transformed
        for part, converter in self.steps.converters.items():
            try:
                self._convert(record, part)
            except Py4JJavaError:
                return f"{part.upper()}_CONVERTER", str(converter.getClass().getName())
        return "HEADER_CONVERTER", str(self.steps.header_converter.getClass().getName())

    def _applied(self, handle: Any, record: Any) -> Any:
        return self.handles.implement("Function", handle).apply(record)

    def _convert(self, record: Any, part: str) -> bytes | None:
        schema, value = (record.keySchema(), record.key()) if part == "key" else (record.valueSchema(), record.value())
        converted = self.steps.converters[part].fromConnectData(record.topic(), schema, value)
        return None if converted is None else bytes(converted)

    def _shown(self, record: Any, part: str) -> bytes | None:
        """The key or value as bytes: as its converter has it, else its text."""
        try:
            return self._convert(record, part)
        except Py4JJavaError:
            return str(self.handles.java.java.lang.String.valueOf(record.key() if part == "key" else record.value())).encode()


_PLACE: Final = ("sourcePartition", "sourceOffset")


def _header_column(counts: pa.Array, headers: Sequence[pa.Array]) -> pa.Array:
    total = sum(counts.to_pylist()) if len(headers[0]) else 0
    if not total:
        return pa.nulls(len(counts), HEADERS)
    pairs = list(zip(text(headers[0]).to_pylist(), headers[1].to_pylist(), strict=True))
    rows, at = [], 0
    for count in counts.to_pylist():
        rows.append([{"key": key, "value": value} for key, value in pairs[at : at + count]] or None)
        at += count
    return pa.array(rows, HEADERS)


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


def _canonical(partition: str) -> str:
    return dumps(_loads(partition))


def _loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)

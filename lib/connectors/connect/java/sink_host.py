"""A Java sink connector in a child JVM of a worker, kept there from batch to batch."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from ...ground import machine
from ...ground.errors import Fatal, Problem, Transient
from ..common_settings import check_task_count
from ..errors import ConnectException
from ..host import ConnectorSettings, DeadLetter, LetterBox, SinkHost, SinkHostTask, rewind_error, unacknowledged_error
from .failures import JavaFailure, failure, failure_of
from .jars import plugin_class_path
from .jvm import Jvm, JvmDied
from .sink_records import BadRow, RecordReader, chunks, milliseconds
from .validation import connector_jvm, validated

Output = TypeVar("Output")
_CALL_SECONDS: Final = 600.0
"""The seconds that a task may take for a ``put`` or a ``preCommit``, beside ``outage_timeout``."""
_START_SECONDS: Final = 180.0
_POLL_RECORDS: Final = 500
_UNACKNOWLEDGED: Final = 20_000
"""So many rows are put before they are flushed: they are put again when the JVM dies."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_ACKNOWLEDGED_PAUSE: Final = 0.05
_INTERFACES: Final = "org.apache.kafka.connect.sink"
_log = logging.getLogger("connectors.connect")


class JavaSinkHost(SinkHost):
    """Runs a Java sink. Its tasks stay started for the next batch; a JVM that dies is replaced."""

    def __init__(self, settings: ConnectorSettings) -> None:
        self.settings, self.properties = settings, dict(settings.properties)
        self._engine: _SinkEngine | None = None
        self._folder: Path | None = None

    def validate(self) -> list[Problem]:
        return validated(self.settings, sink=True)

    def task(
        self, number: int, topics: Sequence[str], *, uses_offsets: bool = False, letters: LetterBox | None = None
    ) -> JavaSinkTask:
        return JavaSinkTask(self, number)

    @property
    def pid(self) -> int | None:
        """The process of the JVM, for tests and messages."""
        return self._engine.jvm.pid if self._engine is not None else None

    def engine(self) -> _SinkEngine:
        """Connector and tasks in the running JVM, which is started where there is none."""
        if self._engine is None or not self._engine.jvm.is_alive():
            self._folder = self._folder or Path(tempfile.mkdtemp(prefix="connect-"))
            jars = plugin_class_path(self.settings.plugin_path, self.settings.plugin_packages)
            self._engine = _SinkEngine(connector_jvm(self.settings, jars), self.settings, self.properties, self._folder)
        self._engine.wake()
        return self._engine

    def rest(self) -> None:
        """Nothing is under way until the next batch: should the worker end meanwhile, connector and tasks are stopped."""
        if self._engine is not None:
            with contextlib.suppress(JvmDied):
                self._engine.rest()

    def close(self) -> None:
        engine, folder = self._engine, self._folder
        self._engine = self._folder = None
        if engine is not None:
            engine.stop()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


class JavaSinkTask(SinkHostTask):
    """A task of the host's JVM, for the rows of one Spark task."""

    def __init__(self, host: JavaSinkHost, number: int) -> None:
        self.host, self.number = host, number
        self.settings = host.settings
        self._unacknowledged: list[pa.Table] = []
        self._letters: list[DeadLetter] = []
        """Those of rows that are not acknowledged: they come again with their rows when the JVM dies."""
        self._deaths = 0

    def put(self, rows: pa.Table) -> list[DeadLetter]:
        letters = []
        for part in chunks(rows, _UNACKNOWLEDGED):
            self._unacknowledged.append(part)
            self._letters += self._surviving(lambda part=part: self._engine().put(self.number, part))  # type: ignore[misc]
            if sum(table.num_rows for table in self._unacknowledged) >= _UNACKNOWLEDGED:
                letters += self.flush()
        return letters

    def flush(self) -> list[DeadLetter]:
        if not self._unacknowledged:
            return []
        letters = self._surviving(lambda: self._engine().flush(self.number))
        letters, self._letters = [*self._letters, *letters], []
        self._unacknowledged.clear()
        return letters

    def close(self, failed: bool = False) -> list[DeadLetter]:
        if failed:
            self.host.close()
        else:
            self.host.rest()
        return []

    def _engine(self) -> _SinkEngine:
        return self.host.engine()

    def _surviving(self, work: Callable[[], list[DeadLetter]]) -> list[DeadLetter]:
        """``work``; when the JVM dies, all that is not acknowledged is put again, by a new one."""
        while True:
            try:
                return work()
            except JvmDied as death:
                self._deaths += 1
                _log.warning("%s", death)
                if self._deaths > self.settings.restarts:
                    raise Fatal(f"{death.message}; it was started {self._deaths} times", connector=self.settings.log) from None
                self._letters.clear()
                again = list(self._unacknowledged)
                work = lambda again=again: self._put_again(again)  # type: ignore[misc]  # noqa: E731

    def _put_again(self, tables: Sequence[pa.Table]) -> list[DeadLetter]:
        engine = self._engine()
        letters = [letter for table in tables for letter in engine.put(self.number, table)]
        return [*letters, *engine.flush(self.number)]


class _SinkEngine:
    """A connector and its tasks in one running JVM."""

    def __init__(self, jvm: Jvm, settings: ConnectorSettings, properties: dict[str, str], folder: Path) -> None:
        self.jvm, self.settings, self.properties = jvm, settings, properties
        self.tasks: dict[int, _JavaTask] = {}
        self._rests = False
        try:
            with jvm.within(_START_SECONDS, "start the connector"):
                self.reader = RecordReader(jvm, properties, folder)
                self.calls = self.jvm.java.java.util.concurrent.ConcurrentLinkedQueue()
                self.connector = self.jvm.instance(properties["connector.class"])
                context = self.jvm.context(f"{_INTERFACES}.SinkConnectorContext", {}, self.calls)
                self.connector.initialize(context)
                self.connector.start(properties)
                self.configs = [dict(config) for config in self.connector.taskConfigs(int(properties.get("tasks.max", "1")))]
                check_task_count(len(self.configs), properties, settings.log)
        except Py4JJavaError as error:
            failed = failure_of(error, jvm.masked)
            jvm.close()
            raise ConnectException(f"the connector did not start: {failed}\n{failed.trace}") from None
        except BaseException:
            jvm.kill()
            raise
        if not self.configs:
            jvm.close()
            raise ConnectException("the connector gave no task configuration, so nothing can be written")

    def put(self, number: int, rows: pa.Table) -> list[DeadLetter]:
        with self.jvm.within(_CALL_SECONDS + self.settings.outage_timeout, "put records"):
            return self._told(lambda: self._task(number).put(rows))

    def flush(self, number: int) -> list[DeadLetter]:
        with self.jvm.within(_CALL_SECONDS + self.settings.outage_timeout, "flush records"):
            return self._told(lambda: self._task(number).flush())

    def rest(self) -> None:
        """From now on, the end of the JVM stops tasks and connector."""
        with self.jvm.within(_START_SECONDS, "rest"):
            for task in self.tasks.values():
                self.jvm.at_exit.add(task.task)
            self.jvm.at_exit.add(self.connector)
        self._rests = True

    def wake(self) -> None:
        """A batch begins: a call that is under way must not meet a task that is being stopped."""
        if self._rests:
            with self.jvm.within(_START_SECONDS, "go on"):
                self.jvm.at_exit.clear()
            self._rests = False

    def stop(self) -> None:
        with contextlib.suppress(JvmDied, Py4JJavaError):
            if self.jvm.is_alive():
                with self.jvm.within(10.0, "stop"):
                    for task in self.tasks.values():
                        task.stop()
                    self.connector.stop()
        self.jvm.close()

    def _task(self, number: int) -> _JavaTask:
        """The task of a configuration; Spark's tasks share them where they are more."""
        index = number % len(self.configs)
        if index not in self.tasks:
            self.tasks[index] = _JavaTask(self, index)
        return self.tasks[index]

    def _told(self, work: Callable[[], Output]) -> Output:
        try:
            return work()
        except Py4JJavaError as error:
            failed = failure_of(error, self.jvm.masked)
            raise ConnectException(f"{failed}\n{failed.trace}") from None


class _JavaTask:
    """A started ``SinkTask``."""

    def __init__(self, engine: _SinkEngine, index: int) -> None:
        self.engine, self.jvm, self.settings = engine, engine.jvm, engine.settings
        self.reader = engine.reader
        config = {**engine.properties, **engine.configs[index]}
        util = self.jvm.java.java.util
        self.most = int(config.get("consumer.override.max.poll.records", _POLL_RECORDS))
        self.calls = util.concurrent.ConcurrentLinkedQueue()
        self.reports = util.concurrent.ConcurrentLinkedQueue()
        self.assignment = util.HashSet()
        self.number = index
        self._partitions: dict[tuple[str, int], Any] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        """The offset of the first row of each topic and partition, and the one behind its last row."""
        self._unacknowledged: dict[tuple[str, int], int] = {}
        """The offset behind the last record put since the last flush; transforms may have dropped the rows behind."""
        self._acknowledged: dict[tuple[str, int], int] = {}
        self.task = self.jvm.instance(engine.connector.taskClass().getName())
        self.task.initialize(self._context(config))
        self._retried(lambda: self.task.start(config))

    def put(self, rows: pa.Table) -> list[DeadLetter]:
        self._open(rows)
        self.calls.clear()
        records, bad, ends = self.reader.records(rows)
        size = int(records.size())
        for first in range(0, size, self.most):
            part = records.subList(first, min(first + self.most, size))
            self._retried(lambda part=part: self._put(part))  # type: ignore[misc]
            self.jvm.release(part)
        self.jvm.release(records)
        for place, end in ends.items():
            self._unacknowledged[place] = max(end, self._unacknowledged.get(place, 0))
            self._acknowledged.pop(place, None)
        self._refuse_rewind()
        return [*(self._letter(rows, row) for row in bad), *self._reported()]

    def _put(self, records: Any) -> None:
        """Puts a copy of ``records``: a task may empty its list, and is given all of it again."""
        part = self.jvm.java.java.util.ArrayList(records)
        try:
            self.task.put(part)
        finally:
            self.jvm.release(part)

    def flush(self) -> list[DeadLetter]:
        end = machine.monotonic() + self.settings.outage_timeout
        while True:
            named = self._note_acknowledged(self._retried(lambda: self.task.preCommit(self._offsets())))
            self._refuse_rewind()
            behind = self._behind(self._unacknowledged if self.settings.awaits_offsets else named)
            if behind is None:
                self._unacknowledged.clear()
                return self._reported()
            if machine.monotonic() > end:
                raise unacknowledged_error(*behind, self.settings)
            machine.sleep(_ACKNOWLEDGED_PAUSE)
            self._retried(lambda: self.task.put(self.jvm.java.java.util.ArrayList()))

    def stop(self) -> None:
        self.task.close(self.assignment)
        self.task.stop()

    def _context(self, config: Mapping[str, str]) -> Any:
        answers = {"configs": dict(config), "assignment": self.assignment}
        if self.reader.tolerates:
            reported = {"report": self.jvm.java.java.util.concurrent.CompletableFuture.completedFuture(None)}
            reporter = self.jvm.context(f"{_INTERFACES}.ErrantRecordReporter", reported, self.reports)
            answers["errantRecordReporter"] = reporter
        return self.jvm.context(f"{_INTERFACES}.SinkTaskContext", answers, self.calls)

    def _open(self, rows: pa.Table) -> None:
        """Opens the partitions that are new, and notes how far each of them goes."""
        bounds = rows.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
        fresh = []
        for bound in bounds.to_pylist():
            place, start = (bound["topic"], bound["partition"]), bound["offset_min"]
            self._starts[place] = min(start, self._starts.get(place, start))
            if place not in self._partitions:
                self._partitions[place] = self.jvm.java.org.apache.kafka.common.TopicPartition(*place)
                fresh.append(self._partitions[place])
            self._ends[place] = bound["offset_max"] + 1
        if fresh:
            added = self.jvm.java.java.util.ArrayList()
            for partition in fresh:
                added.add(partition)
                self.assignment.add(partition)
            self.task.open(added)

    def _refuse_rewind(self) -> None:
        """Raises :class:`Transient` where the task wants rows again that it has had; what else it asks for has no effect."""
        while (call := self.calls.poll()) is not None:
            if str(call.getKey()) != "offset":
                continue
            asked = call.getValue()
            for partition, offset in asked[0].items() if len(asked) == 1 else [(asked[0], asked[1])]:
                place = (str(partition.topic()), int(partition.partition()))
                if self._starts.get(place, offset + 1) <= offset < self._ends.get(place, 0):
                    raise rewind_error(*place, offset, self.settings)

    def _offsets(self) -> Any:
        """The offsets behind the task's last rows, by topic and partition, as a map of Java."""
        offsets = self.jvm.java.java.util.HashMap()
        for place, end in self._ends.items():
            metadata = self.jvm.java.org.apache.kafka.clients.consumer.OffsetAndMetadata(end)
            offsets.put(self._partitions[place], metadata)
        return offsets

    def _note_acknowledged(self, offsets: Any) -> list[tuple[str, int]]:
        """Keeps what ``preCommit`` answers, and gives what it has named: a task may name each offset in one answer only."""
        named = []
        for place in self._unacknowledged:
            reached = offsets.get(self._partitions[place]) if offsets is not None else None
            if reached is not None:
                self._acknowledged[place] = int(reached.offset())
                named.append(place)
        return named

    def _behind(self, places: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
        """One of the topics and partitions whose records the target does not have, as far as answers have named them."""
        behind = (place for place in places if self._acknowledged.get(place, 0) < self._unacknowledged[place])
        return next(behind, None)

    def _retried(self, work: Callable[[], Output]) -> Output:
        """``work``, done again with the same records while the connector says that this may help."""
        end, pause = machine.monotonic() + self.settings.outage_timeout, _FIRST_PAUSE
        while True:
            try:
                return work()
            except Py4JJavaError as error:
                failed = failure_of(error, self.jvm.masked)
                if not failed.is_retriable:
                    raise
                if machine.monotonic() + pause > end:
                    raise Transient(str(failed), is_waited_for=True, connector=self.settings.log) from None
                _log.warning("%s is tried again: %s", self.settings.log, failed)
                machine.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _reported(self) -> list[DeadLetter]:
        """The dead letters of records that the task has refused by its reporter; once, also where its call was tried again."""
        reported, letters = None, []
        while (report := self.reports.poll()) is not None:
            reported = self.jvm.java.java.util.IdentityHashMap() if reported is None else reported
            if str(report.getKey()) == "report" and reported.put(report.getValue()[0], True) is None:
                record, thrown = report.getValue()[0], report.getValue()[1]
                letters.append(self._letter_of_record(record, failure(thrown, self.jvm.masked)))
        return letters

    def _letter_of_record(self, record: Any, cause: JavaFailure) -> DeadLetter:
        key, value = self._shown(record.key()), self._shown(record.value())
        name = str(self.task.getClass().getName())
        return DeadLetter(
            record.originalTopic(), record.originalKafkaPartition(), record.originalKafkaOffset(), key, value, [],
            record.timestamp(), "TASK_PUT", name, cause.kind, cause.message, cause.trace, self.number,
        )  # fmt: skip

    def _shown(self, value: Any) -> bytes | None:
        return None if value is None else str(self.jvm.java.java.lang.String.valueOf(value)).encode()

    def _letter(self, rows: pa.Table, row: BadRow) -> DeadLetter:
        cells = {name: rows[name][row.place].as_py() for name in ("topic", "partition", "offset", "key", "value", "headers")}
        headers = [(header["key"], header["value"]) for header in cells["headers"] or ()]
        at = milliseconds(rows["timestamp"].slice(row.place, 1))[0].as_py()
        return DeadLetter(
            cells["topic"], cells["partition"], cells["offset"], _bytes(cells["key"]), _bytes(cells["value"]), headers, at,
            row.stage, row.executing_class, row.failure.kind, row.failure.message, row.failure.trace, self.number,
        )  # fmt: skip


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else repr(value)).encode()

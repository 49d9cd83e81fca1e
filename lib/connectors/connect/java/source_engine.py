"""A Java source connector and its tasks in one running JVM: what is polled, handed over, committed, restarted.

A thread of this process, the *collector*, makes rows of what the tasks poll, also while Spark computes a batch; an epoch takes
what it has collected. It also looks after the tasks: those that fail are started again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from ...core.source import ReadLimit
from ...ground import machine
from ...ground.errors import Fatal
from ...ground.state import dumps
from ..common_settings import check_task_count
from ..host import ConnectorSettings, Groups, Offsets, TaskRecords, TaskStatus, merged
from .debezium import LOSS_WAY_OUT, groups_of, is_behind, marked_again, offset_store, source_log
from .failures import JavaFailure, failure_of
from .jvm import Jvm, JvmDied
from .source_records import RecordFailure, RecordWriter, Rows
from .source_tasks import Committer, SourceThread
from .steps import Steps

CALL_SECONDS: Final = 60.0
"""The seconds that the JVM may take for a call that only takes what there is."""
START_SECONDS: Final = 180.0
"""The seconds that connector and tasks may take to start, stop or commit: they talk to their system meanwhile."""
_STOP_SECONDS: Final = 10.0
_COLLECTED_ROWS: Final = 200_000
_COLLECTED_BYTES: Final = 64 << 20
"""So much is collected before an epoch takes it."""
_RETAINED: Final = 20_000
"""So many rows where records stay in the JVM for their ``commitRecord``."""
_QUEUED_RECORDS: Final = 10_000
"""So many records wait in the JVM: its heap is small."""
_JOINED_ROWS: Final = 2_000
"""Polled lists are joined up to so many rows."""
_LOOK_MILLISECONDS: Final = 200
"""The milliseconds between two looks of the collector at the tasks."""
_CONNECTOR: Final = -1
"""In place of the number of a task: what the connector itself reads."""
_log = logging.getLogger("connectors.connect")


@dataclass
class _Failed:
    """A task that has failed and waits for its next start."""

    failure: JavaFailure
    restarts: int
    at: float


@dataclass
class _Collected:
    """The rows of a polled list, which an epoch takes whole, and the records that wait for their ``commitRecord``."""

    rows: TaskRecords
    retained: Any
    thread: SourceThread | None
    number: int
    time: float


class SourceEngine:
    """Connector and tasks in one running JVM."""

    def __init__(self, jvm: Jvm, settings: ConnectorSettings, properties: dict[str, str], folder: Path) -> None:
        self.jvm, self.settings, self.properties = jvm, settings, properties
        with self.jvm.within(CALL_SECONDS, "start"):
            util = jvm.java.java.util
            self.calls = util.concurrent.ConcurrentLinkedQueue()
            self.queue = jvm.compiled("PolledQueue", _QUEUED_RECORDS)
            self.executor = util.concurrent.Executors.newCachedThreadPool()
            self.log = source_log(jvm, properties)
            self.store = offset_store(jvm, properties, self.log)
            self.writer = RecordWriter(jvm, Steps(jvm, properties), self.store, folder)
        self.committer = Committer()
        self.threads: dict[int, SourceThread] = {}
        self.failed: dict[int, _Failed] = {}
        self.configs: dict[int, Any] = {}
        self.restarts: dict[int, int] = {}
        self.retries: dict[int, int] = {}
        self._collected: deque[_Collected] = deque()
        self._change = threading.Condition()
        """Guards what is collected, and the thread that collects."""
        self._collector: threading.Thread | None = None
        self._is_stopping = False
        self._error: Exception | None = None
        self._is_idle = False
        self._limit = ReadLimit()
        self._row_bytes = 1024
        """The average size of the newest rows, in bytes; at first a guess."""
        self._last_records = machine.monotonic()
        self._newest_time = 0.0
        """The time of the newest change that is handed over, in seconds since 1970, if the records tell."""

    def start(self, offsets: Offsets, groups: Groups) -> None:
        with self.jvm.within(START_SECONDS, "start the connector"):
            self._store(offsets, groups)
            self.connector = self.jvm.instance(self.properties["connector.class"])
            reader = self.store.reader(_CONNECTOR)
            self.connector.initialize(self._context("org.apache.kafka.connect.source.SourceConnectorContext", reader))
            try:
                self.connector.start(self.properties)
            except Py4JJavaError as error:
                raise self._fatal(failure_of(error, self.jvm.masked), "the connector did not start") from None
            self._start_tasks()

    def idle_seconds(self) -> float:
        is_idle = self._is_idle and self.threads and not (self.failed or self._collected)
        return machine.monotonic() - self._last_records if is_idle else 0.0

    def end(self) -> int | None:
        """The end of the database's log now; ``None`` where nobody knows."""
        with self.jvm.within(CALL_SECONDS, "ask where the log ends"):
            try:
                return None if self.log is None else int(self.log.end())
            except Py4JJavaError as error:
                _log.warning("%s: %s", self.settings.log, failure_of(error, self.jvm.masked))
                return None

    def has_caught_up(self, offsets: Offsets, end: int | None, begin: float, seconds: float) -> bool:
        """As :meth:`~connectors.connect.host.SourceHost.has_caught_up`: up to ``end`` of a log, or changes after ``begin``."""
        threads = dict(self.threads)
        if self.failed or threads.keys() != self.configs.keys():
            return False
        if end is not None and offsets and all(is_behind(offset, end) for offset in offsets.values()):
            return True
        if end is None and self._newest_time > begin and len(threads) == 1:
            return True
        with self.jvm.within(CALL_SECONDS, "tell how long its tasks have rested"):
            return bool(threads) and all(thread.has_rested(seconds) for thread in threads.values())

    def poll(self, epoch: int, limit: ReadLimit, seconds: float) -> list[TaskRecords]:
        self._limit = limit
        if self._collector is None:
            self._is_stopping = False
            self._collector = machine.thread(self._collect, f"{self.settings.log}-collector")
            self._collector.start()
        with self._change:
            self._change.wait_for(lambda: self._collected or self._error is not None, seconds)
            if not self._collected and self._error is not None:
                raise self._error
            taken = self._take(limit)
            self._change.notify_all()
        for collected in taken:
            self._newest_time = max(self._newest_time, collected.time)
            if collected.thread is not None:
                collected.thread.taken = collected.number
            self.committer.add(epoch, collected.rows.task, collected.retained, collected.rows.offsets)
        return merged(collected.rows for collected in taken)

    def commit(self, epoch: int) -> None:
        try:
            self.store.commit(_pairs(self.committer.offsets(epoch)))
            self.committer.commit(epoch, self.threads)
        except Py4JJavaError as error:
            _log.warning("%s: commit failed, the next one may not: %s", self.settings.log, failure_of(error, self.jvm.masked))

    def requests_reconfiguration(self) -> bool:
        with self.jvm.within(CALL_SECONDS, "answer"):
            names = [str(call.getKey()) for call in self.calls.toArray()]
            if "raiseError" in names:
                raised = next(call.getValue()[0] for call in self.calls.toArray() if call.getKey() == "raiseError")
                raise Fatal(f"the connector reports {raised.toString()}", connector=self.settings.log)
            return "requestTaskReconfiguration" in names

    def quiesce(self) -> None:
        with self.jvm.within(CALL_SECONDS, "pause"):
            for thread in list(self.threads.values()):  # the collector may start one meanwhile
                thread.stop_polling()

    def reconfigure(self, offsets: Offsets, groups: Groups) -> None:
        with self.jvm.within(START_SECONDS, "start new tasks"):
            self.stop_collector()
            self._stop_tasks()
            self.calls.clear()
            self.queue.clear()
            self._collected.clear()
            self.committer.clear()
            self._store(offsets, groups)
            self._start_tasks()

    def statuses(self) -> list[TaskStatus]:
        out = []
        for number in sorted(self.configs):
            restarts = self.restarts.get(number, 0)
            if failed := self.failed.get(number):
                final = restarts > self.settings.restarts
                out.append(TaskStatus(number, "FAILED" if final else "RESTARTING", failed.failure.trace, restarts, final))
            else:
                out.append(TaskStatus(number, "RUNNING" if number in self.threads else "STOPPED", "", restarts))
        return out

    def stop(self) -> None:
        """Stops tasks and connector, as far as the JVM still answers."""
        try:
            self.stop_collector(_STOP_SECONDS)
            with self.jvm.within(_STOP_SECONDS, "stop"):
                self._stop_tasks()
                self.connector.stop()
                self.writer.close()
        except (JvmDied, Py4JJavaError, AttributeError) as error:
            _log.info("%s: %s", self.settings.log, error)

    def stop_collector(self, seconds: float | None = None) -> None:
        """Ends the collector, and waits for its last list: ``seconds``, or as long as its call to the JVM may take."""
        with self._change:
            self._is_stopping = True
            self._change.notify_all()
        if self._collector is not None:
            self._collector.join(seconds)
            self._collector = None

    def abandon(self) -> None:
        """Leaves the engine of a JVM that is gone."""
        self.stop_collector(1.0)
        self.writer.close_files()

    def _context(self, interface: str, reader: Any, config: Mapping[str, str] | None = None) -> Any:
        answers = {"offsetStorageReader": reader, "configs": dict(config or self.properties)}
        return self.jvm.context(interface, answers, self.calls)

    def _store(self, offsets: Offsets, groups: Groups) -> None:
        """Sets what the offset readers of connector and tasks answer from now on."""
        groups = groups_of(self.properties, offsets, groups)
        entries = (f"[{partition},{dumps(offset)},{dumps(groups.get(partition))}]" for partition, offset in offsets.items())
        self.store.reset(f"[{','.join(entries)}]")

    def _start_tasks(self) -> None:
        number = int(self.properties.get("tasks.max", "1"))
        try:
            configs = list(self.connector.taskConfigs(number))
        except Py4JJavaError as error:
            raise self._fatal(failure_of(error, self.jvm.masked), "the connector gives no task configurations") from None
        check_task_count(len(configs), self.properties, self.settings.log)
        self.configs, self.failed, self.restarts = dict(enumerate(configs)), {}, {}
        for task in self.configs:
            self._start_task(task)

    def _start_task(self, number: int) -> None:
        config = self.configs[number]
        task, reader = self.jvm.instance(self.connector.taskClass().getName()), self.store.reader(number)
        try:
            task.initialize(self._context("org.apache.kafka.connect.source.SourceTaskContext", reader, config))
            task.start(config)
        except Py4JJavaError as error:
            failure = failure_of(error, self.jvm.masked)
            self._refuse_loss(failure)
            self._fail(number, failure)
            return
        self.failed.pop(number, None)
        self._last_records = machine.monotonic()
        self.threads[number] = SourceThread(self.jvm, number, task, reader, self.queue)
        self.threads[number].start(self.executor)

    def _stop_tasks(self) -> None:
        for thread in self.threads.values():
            thread.stop_polling()
        self.queue.clear()  # a loop that waits for room ends
        for thread in self.threads.values():
            thread.stop()
        until = machine.monotonic() + _STOP_SECONDS / 2
        for thread in self.threads.values():
            while not thread.is_done() and machine.monotonic() < until:
                self.queue.clear()
                machine.sleep(0.02)
        self.threads.clear()

    def _take(self, limit: ReadLimit) -> list[_Collected]:
        """Takes what is collected, at least one list, and then as many as fit into ``limit``."""
        taken: list[_Collected] = []
        rows = size = 0
        while self._collected:
            table = self._collected[0].rows.rows
            rows, size = rows + table.num_rows, size + table.nbytes
            if taken and (rows > (limit.rows or rows) or size > (limit.bytes or size)):
                break
            taken.append(self._collected.popleft())
        return taken

    def _collect(self) -> None:
        """Runs in the collector."""
        try:
            looked = machine.monotonic()
            while not self._is_stopping:
                if self._waits_for_room():
                    polled = self._receive()
                    self._is_idle = polled is None
                    if polled is not None:
                        with self.jvm.within(CALL_SECONDS, "convert records"):
                            self._convert(polled)
                            self.jvm.release(polled)
                if machine.monotonic() - looked >= _LOOK_MILLISECONDS / 1000:
                    with self.jvm.within(START_SECONDS, "start a task again"):
                        self._look_after_tasks()
                    looked = machine.monotonic()
        except Exception as error:  # whatever it is, the planner must hear of it
            with self._change:
                self._error = error
                self._change.notify_all()

    def _waits_for_room(self) -> bool:
        """Waits a moment until more may be collected; false if it may not, or the collector is to end."""
        with self._change:
            self._change.wait_for(lambda: self._is_stopping or self._has_room(), _LOOK_MILLISECONDS / 1000)
            return self._has_room() and not self._is_stopping

    def _has_room(self) -> bool:
        most = _RETAINED if any(thread.retains_records for thread in self.threads.values()) else _COLLECTED_ROWS
        rows: int = sum(collected.rows.rows.num_rows for collected in self._collected)
        size: int = sum(collected.rows.rows.nbytes for collected in self._collected)
        return rows < most and size < _COLLECTED_BYTES

    def _receive(self) -> Any:
        """Takes the next list that a task has polled, a ``PolledList``; ``None`` if there is nothing for a moment.

        Small lists of one task come as one, as each costs some calls into the JVM.
        """
        most = min(_JOINED_ROWS, self._limit.rows or _JOINED_ROWS)
        if self._limit.bytes:
            most = min(most, self._limit.bytes // self._row_bytes)
        with self.jvm.within(CALL_SECONDS, "hand over records"):
            polled = self.queue.take(_LOOK_MILLISECONDS, most)
        if polled is not None:
            self._last_records = machine.monotonic()
        return polled

    def _convert(self, polled: Any) -> None:
        """Makes rows of a ``PolledList`` and adds them to what is collected."""
        task = int(polled.task())
        if not self.store.enter(polled):  # the task has started again since, and polls it again
            return
        try:
            rows = self.writer.rows(polled, task)
        except RecordFailure as bad:
            self._fail(task, JavaFailure(bad.failure.kind, str(bad), bad.failure.trace))
            return
        if not self.store.accept(polled, rows.table.num_rows):
            return
        if rows.next == "stop":
            raise Fatal(
                "a blocking snapshot is asked for in a transaction that changes other rows, too: Debezium would read these "
                "behind the snapshot, with the columns that their tables have by then",
                connector=self.settings.log,
                way_out="run once with signal.enabled.channels=jmx, which passes the signal over; then ask again, in a "
                "transaction of its own",
            )
        if rows.polled:
            self._add(polled, rows, task)
        if rows.next == "start":
            self._start_anew(task)

    def _add(self, polled: Any, rows: Rows, task: int) -> None:
        retries, restarts = rows.retries + self.retries.pop(task, 0), self.restarts.pop(task, 0)
        counts = {"polled": rows.polled, "errors": len(rows.letters), "retries": retries, "restarts": restarts}
        counts = {name: count for name, count in counts.items() if count}
        thread = self.threads.get(task)
        retained = thread.retained(polled) if thread else None
        table = marked_again(rows.table) if rows.is_again else rows.table
        with self._change:
            records = TaskRecords(task, table, rows.offsets, rows.letters, counts, rows.groups)
            self._collected.append(_Collected(records, retained, thread, rows.number, rows.time))
            self._row_bytes = max(1, rows.table.nbytes // max(1, rows.table.num_rows))
            self._last_records = machine.monotonic()
            self._change.notify_all()

    def _look_after_tasks(self) -> None:
        """Restarts what has failed and whose pause is over. Raises :class:`Fatal` when every task has failed for good."""
        for number, thread in list(self.threads.items()):
            if number in self.failed or not thread.is_done() or self.queue.holds(number):
                continue
            if (failure := thread.result()) is None:
                continue
            self._refuse_loss(failure)
            if failure.is_retriable:
                self._pause(number, failure)
            else:
                self._fail(number, failure)
        for number, failed in list(self.failed.items()):
            if failed.restarts <= self.settings.restarts and machine.monotonic() >= failed.at:
                self._begin_again(number)
        final = [failed for failed in self.failed.values() if failed.restarts > self.settings.restarts]
        if self.configs and len(final) == len(self.configs):
            raise self._fatal(final[0].failure, f"{'the task has' if len(final) == 1 else 'all tasks have'} failed for good")

    def _pause(self, number: int, failure: JavaFailure) -> None:
        """The task is polled again after a pause, as often as it takes."""
        self.retries[number] = self.retries.get(number, 0) + 1
        at = machine.monotonic() + pause(self.settings, min(self.retries[number], 10))
        self.failed[number] = _Failed(failure, 0, at)
        _log.warning("%s: task %d is tried again (%d): %s", self.settings.log, number, self.retries[number], failure)

    def _fail(self, number: int, failure: JavaFailure) -> None:
        """The task is stopped, and started anew after a pause."""
        self.restarts[number] = self.restarts.get(number, 0) + 1
        restarts = self.restarts[number]
        at = machine.monotonic() + pause(self.settings, restarts)
        self.failed[number] = _Failed(failure, restarts, at)
        _log.warning("%s: task %d failed (%d): %s", self.settings.log, number, restarts, failure)
        if thread := self.threads.get(number):
            thread.stop()
            self._drop_thread(number)

    def _start_anew(self, number: int) -> None:
        """The task is stopped, and started anew at once: it has not failed."""
        _log.info("%s: task %d starts again behind a blocking snapshot", self.settings.log, number)
        self.threads[number].stop()
        self._drop_thread(number)
        self.failed[number] = _Failed(JavaFailure("", "", ""), 0, machine.monotonic())

    def _drop_thread(self, number: int) -> None:
        thread = self.threads.pop(number)
        until = machine.monotonic() + _STOP_SECONDS
        while not thread.is_done() and machine.monotonic() < until:
            self.queue.discard(number)
            machine.sleep(0.02)
        self.queue.discard(number)

    def _begin_again(self, number: int) -> None:
        if thread := self.threads.get(number):  # RetriableException: the same task is asked again
            del self.failed[number]
            thread.start(self.executor)
        else:
            self._start_task(number)

    def _refuse_loss(self, failure: JavaFailure) -> None:
        if failure.is_final:
            raise Fatal(f"changes are lost: {failure.message}", connector=self.settings.log, way_out=LOSS_WAY_OUT)

    def _fatal(self, failure: JavaFailure, what: str) -> Fatal:
        return Fatal(f"{what}: {failure}\n{failure.trace}", connector=self.settings.log)


def _pairs(offsets: Offsets) -> str:
    """JSON as ``OffsetReader.java`` takes it."""
    return f"[{','.join(f'[{partition},{dumps(offset)}]' for partition, offset in offsets.items())}]"


def pause(settings: ConnectorSettings, failures: int) -> float:
    """Seconds before the next start."""
    return float(min(settings.restart_backoff * 2 ** (failures - 1), settings.restart_max_backoff))

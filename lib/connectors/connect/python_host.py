"""The host of Python connectors: the connector in the planner process, each task in a thread beside it."""

from __future__ import annotations

import json
import logging
from collections import deque
from types import MappingProxyType

import pyarrow as pa

from ..core.source import ReadLimit
from ..ground import machine
from ..ground.errors import Fatal, Misconfigured, Problem
from ..ground.options import masker
from ..ground.process_end import call_at_end
from .common_settings import check_task_count
from .connector import ConnectorContext, SourceConnector, SourceTask
from .errors import class_name, masked_error, masking
from .host import ConnectorSettings, Groups, Offsets, SourceHost, TaskRecords, TaskStatus, merged, refused_offsets
from .offsets import OffsetStorageReader, OffsetStore
from .plugins import connector_class
from .records import RecordMetadata
from .task_thread import Signal, TaskThread, Transaction
from .validation import property_problems

_JOIN_SECONDS = 10.0
_LINGER, _LONGEST_LINGER = 0.05, 1.0
"""An epoch waits so long for more records, and so long in all: few large epochs cost less than many small ones."""
_log = logging.getLogger("connectors.connect")


class PythonSourceHost(SourceHost):
    """Runs a :class:`SourceConnector`. Tasks poll ahead while a batch runs, as far as their buffers go."""

    def __init__(self, settings: ConnectorSettings) -> None:
        self.settings = settings
        self._mask = masker(settings.secrets())
        self._signal = Signal()
        self._store = OffsetStore({})
        self._connector: SourceConnector | None = None
        self._threads: list[TaskThread] = []
        self._in_epochs: deque[tuple[int, TaskThread, Transaction]] = deque()
        self._requested = machine.event()
        self._raised: Exception | None = None
        self._generation = 0
        self._turn = 0
        self._dealt = machine.monotonic()
        self._closed = machine.event()

    def validate(self) -> list[Problem]:
        return property_problems(self.settings, sink=False)

    def alter_offsets(self, offsets: Offsets) -> bool:
        connector = connector_class(self.settings.class_name, SourceConnector)()
        pairs = [(json.loads(partition), offset) for partition, offset in offsets.items()]
        try:
            return bool(connector.alter_offsets(self.settings.properties, pairs))
        except Exception as error:
            raise refused_offsets(self._mask(f"{class_name(error)}: {error}"), self.settings.log) from None

    def start(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        if problems := self.validate():
            raise Misconfigured(self.settings.log, problems)
        pa.array([0])  # imports pandas, where it is: for a second or two, which is no time of a poll
        self._store = OffsetStore(offsets)
        call_at_end(self.close)
        with masking(self._mask):
            self._connector = connector_class(self.settings.class_name, SourceConnector)()
            self._connector.initialize(_Context(self))
            self._connector.start(self.settings.properties)
        self._deal()

    def poll(self, epoch: int, limit: ReadLimit, seconds: float) -> list[TaskRecords]:
        end = machine.monotonic() + seconds
        taken: dict[TaskThread, list[Transaction]] = {}
        with self._signal.changed:
            while not self._take(taken, limit):
                self._check()
                left = end - machine.monotonic()
                if left <= 0 or self._closed.is_set() or self._is_quiet():
                    return []
                self._signal.changed.wait(left)
            last = machine.monotonic() + _LONGEST_LINGER
            while self._lingers(last):
                self._take(taken, limit)
                if any(thread.next_transaction() for thread in self._threads):  # which do not fit
                    break
        records = []
        for thread, transactions in taken.items():
            for transaction in transactions:
                self._in_epochs.append((epoch, thread, transaction))
                records.append(_records_of(thread, transaction))
        return merged(records)

    def idle_seconds(self) -> float:
        with self._signal.changed:
            since = [thread.idle_since for thread in self._threads]
            if any(moment is None for moment in since) or any(thread.next_transaction() for thread in self._threads):
                return 0.0
            moments = [moment for moment in since if moment is not None]
            return machine.monotonic() - max([self._dealt, *moments])

    def has_caught_up(self, seconds: float) -> bool:
        with self._signal.changed:
            return bool(self._threads) and all(thread.has_rested(seconds) for thread in self._threads)

    def committed(self, epoch: int) -> None:
        touched: list[TaskThread] = []
        while self._in_epochs and self._in_epochs[0][0] <= epoch:
            number, thread, transaction = self._in_epochs.popleft()
            if thread not in touched:
                touched.append(thread)
            self._commit_records(thread.task, transaction, number)
        for thread in touched:
            try:
                if thread.task is not None:
                    thread.task.commit()
            except Exception as error:  # as in Connect: the offsets are recorded, and the next commit comes
                self._warn(f"commit() of task {thread.number}", error)

    def reconfiguration_requested(self) -> bool:
        return self._requested.is_set()

    def quiesce(self) -> None:
        for thread in self._threads:
            thread.quiesce()
        for thread in self._threads:
            thread.await_quiet(_JOIN_SECONDS)

    def reconfigure(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        self._stop_tasks()
        self._store.update(offsets)
        self._deal()

    def statuses(self) -> list[TaskStatus]:
        return [thread.status() for thread in self._threads]

    def generation(self) -> int:
        return self._generation

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._signal.notify()
        self._stop_tasks()
        if self._connector is not None:
            try:
                self._connector.stop()
            except Exception as error:
                self._warn("stop() of the connector", error)

    def fail(self, error: Exception) -> None:
        """The connector has failed outside a call."""
        self._raised = masked_error(error, self._mask)

    def _warn(self, what: str, error: Exception) -> None:
        _log.warning("%s: %s failed", self.settings.log, what, exc_info=masked_error(error, self._mask))

    def _commit_records(self, task: SourceTask | None, transaction: Transaction, epoch: int) -> None:
        if task is None or type(task).commit_record is SourceTask.commit_record:
            return
        for record, is_delivered in transaction.records:
            try:
                task.commit_record(record, RecordMetadata(record.topic or "", epoch) if is_delivered else None)
            except Exception as error:
                self._warn("commit_record()", error)

    def _deal(self) -> None:
        """Asks the connector for task configurations and starts a task for each."""
        connector = self._connector
        assert connector is not None
        self._requested.clear()
        most = int(self.settings.properties.get("tasks.max", 1))
        with masking(self._mask):
            configs = [dict(config) for config in connector.task_configs(most)]
        check_task_count(len(configs), self.settings.properties, self.settings.log)
        kind = connector.task_class()
        self._generation += 1
        self._dealt = machine.monotonic()
        self._threads = [
            TaskThread(number, kind, {**self.settings.properties, **config}, self._store, self.settings, self._signal)
            for number, config in enumerate(configs)
        ]
        for thread in self._threads:
            thread.start()

    def _stop_tasks(self) -> None:
        for thread in self._threads:
            thread.stop()
        end = machine.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - machine.monotonic()))

    def _take(self, taken: dict[TaskThread, list[Transaction]], limit: ReadLimit) -> bool:
        """Adds whole transactions of the tasks in turn, at least one, within ``limit``. Needs the lock of the signal."""
        rows = sum(transaction.rows for transactions in taken.values() for transaction in transactions)
        size = sum(transaction.bytes for transactions in taken.values() for transaction in transactions)
        waiting = deque([*self._threads[self._turn :], *self._threads[: self._turn]])
        while waiting:
            thread = waiting.popleft()
            following = thread.next_transaction()
            if following is None:
                continue
            fits = (limit.rows is None or rows + following.rows <= limit.rows) and (
                limit.bytes is None or size + following.bytes <= limit.bytes
            )
            if taken and not fits:
                continue
            thread.pop_transaction()
            taken.setdefault(thread, []).append(following)
            rows, size = rows + following.rows, size + following.bytes
            waiting.append(thread)
        self._turn = (self._turn + 1) % max(1, len(self._threads))
        return bool(taken)

    def _lingers(self, last: float) -> bool:
        """Waits for more; false when the epoch is to be recorded as it is."""
        is_over = self._is_quiet() or self._requested.is_set() or machine.monotonic() > last
        return not is_over and self._signal.changed.wait(_LINGER)

    def _is_quiet(self) -> bool:
        return bool(self._threads) and all(thread.is_quiet for thread in self._threads)

    def _check(self) -> None:
        """Raises for a failure that ends the query."""
        if self._raised is not None:
            raise Fatal(f"the connector has failed: {self._raised}") from self._raised
        if outage := next((thread.outage for thread in self._threads if thread.outage is not None), None):
            raise outage
        statuses = self.statuses()
        if statuses and all(status.final for status in statuses):
            failed = statuses[0]
            what = "the task has" if len(statuses) == 1 else f"all {len(statuses)} tasks have"
            raise Fatal(
                f"{what} failed {failed.restarts + 1} times, in the end without progress; task {failed.task}:\n{failed.trace}",
                way_out="mend the cause and start the query again: it goes on from the recorded offsets",
            )


class _Context(ConnectorContext):
    """The runtime, as a connector sees it."""

    def __init__(self, host: PythonSourceHost) -> None:
        self._host = host

    def request_task_reconfiguration(self) -> None:
        self._host._requested.set()
        self._host._signal.notify()

    def raise_error(self, error: Exception) -> None:
        self._host.fail(error)
        self._host._signal.notify()

    def offset_storage_reader(self) -> OffsetStorageReader:
        return OffsetStorageReader(self._host._store)


def _records_of(thread: TaskThread, transaction: Transaction) -> TaskRecords:
    rows = pa.concat_tables(transaction.tables)
    return TaskRecords(thread.number, rows, transaction.offsets, transaction.letters, transaction.counts)


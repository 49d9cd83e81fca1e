"""The thread of one source task: it polls and converts, and fills a bounded buffer of transactions.

A task that fails is started again from the offsets of what it has given, after a pause that doubles. Without progress that
happens a bounded number of times. The trace of the last failure is kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Transient
from ..ground.options import masker
from .columns import Records, batch_offsets, of_source_batch, offsets_of
from .connector import SourceTask, SourceTaskContext, TransactionContext
from .errors import RetriableException, masked_error, trace
from .host import SOURCE_COLUMNS, ConnectorSettings, DeadLetter, TaskStatus
from .offsets import OffsetStorageReader, OffsetStore
from .pipeline import SourcePipeline
from .records import SourceBatch, SourceRecord
from .transactions import Boundaries, TaskTransactions

_BUFFER_ROWS: Final = 200_000
_BUFFER_BYTES: Final = 64 << 20
_EMPTY_PAUSE: Final = 0.05
_RETRY_PAUSE: Final = 0.1
_REST_WAIT: Final = 0.02
"""A task that gives few records and had to wait so long for them has nothing else to give."""

_log = logging.getLogger("connectors.connect")


class Signal:
    """The signal of a change between the threads of a host: one lock, one condition."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


@dataclass
class Transaction:
    """Records that are recorded in one epoch, or not at all; ``records`` are those that ``commit_record`` gets."""

    tables: list[pa.Table] = field(default_factory=list)
    offsets: dict[str, Any] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    records: list[tuple[SourceRecord, bool]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    def add(self, other: Transaction) -> None:
        """Takes what a further poll has given."""
        self.tables += other.tables
        self.offsets.update(other.offsets)
        self.letters += other.letters
        self.records += other.records
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def aborted(self) -> Transaction:
        """The rest of a transaction that the connector aborts: its records count as read."""
        return Transaction([SOURCE_COLUMNS.empty_table()], self.offsets, counts=self.counts)


class TaskThread:
    """Runs one task from its start to its stop, over any number of restarts."""

    def __init__(
        self,
        number: int,
        kind: type[SourceTask],
        config: Mapping[str, str],
        store: OffsetStore,
        settings: ConnectorSettings,
        signal: Signal,
    ) -> None:
        self.number = number
        self.task: SourceTask | None = None
        self.is_quiet = False
        self.idle_since: float | None = None
        """Since when the task polls and gives nothing; ``None`` while it does something else."""
        self._rest: tuple[float, int] | None = None
        """Since when the task gives little or nothing, and how many transactions it gave before."""
        self._waits_since: float | None = None
        """Since when the polls give nothing."""
        self._longest_poll = self._delivered = self._taken = 0
        self.outage: Transient | None = None
        """The error of a system that was away for longer than ``outage_timeout``."""
        self._away_since: float | None = None
        self._kind = kind
        self._config = config
        self._store = store
        self._settings = settings
        self._mask = masker(settings.secrets())
        self._signal = signal
        self._stopping = machine.event()
        self._quiescing = machine.event()
        self._buffer: deque[Transaction] = deque()
        self._buffered_rows = self._buffered_bytes = 0
        self._boundaries = Boundaries.of(settings.properties)
        self._state, self._trace, self._restarts, self._is_final = "RUNNING", "", 0, False
        self._failures = 0
        self._thread = machine.thread(self._run, f"connectors.connect-task-{number}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the task; a ``poll`` that blocks returns, and what it raises then is no failure."""
        self._stopping.set()
        self._signal.notify()
        task = self.task
        if task is not None:
            with contextlib.suppress(Exception):
                task.stop()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("%s: task %d does not stop; its thread is left behind", self._settings.log, self.number)

    def quiesce(self) -> None:
        """Polls no more, after the poll that runs now."""
        self._quiescing.set()
        self._signal.notify()

    def await_quiet(self, seconds: float) -> None:
        """Returns when the task polls no more; one whose poll blocks for longer is stopped under it."""
        end = machine.monotonic() + seconds
        with self._signal.changed:
            while not self.is_quiet and (left := end - machine.monotonic()) > 0:
                self._signal.changed.wait(left)
        if not self.is_quiet:
            self.stop()
            self._thread.join(seconds)
            self.is_quiet = True

    def status(self) -> TaskStatus:
        return TaskStatus(self.number, self._state, self._trace, self._restarts, self._is_final)

    def has_rested(self, seconds: float) -> bool:
        """True if the task has given little or nothing for ``seconds``, and all before that is taken. Needs the lock, too."""
        rest = self._rest
        return rest is not None and machine.monotonic() - rest[0] >= seconds and self._taken >= rest[1]

    def next_transaction(self) -> Transaction | None:
        """The oldest whole transaction. Needs the lock of the signal, as :meth:`pop_transaction` does."""
        return self._buffer[0] if self._buffer else None

    def pop_transaction(self) -> None:
        transaction = self._buffer.popleft()
        self._taken += 1
        self._buffered_rows -= transaction.rows
        self._buffered_bytes -= transaction.bytes
        self._signal.changed.notify_all()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_once()
                break
            except Exception as error:
                if self._stopping.is_set() or not self._restarts_after(error):
                    break
        self.is_quiet = True
        self.idle_since = machine.monotonic()
        if not self._is_final:
            self._state = "STOPPED"
        self._signal.notify()

    def _run_once(self) -> None:
        """A life of the task."""
        task = self._kind()
        transactions = TaskTransactions() if self._boundaries.by_connector else None
        task.initialize(_TaskContext(self._config, self._store, transactions))
        pipeline = SourcePipeline(self._config, self._stopping.wait, self.number)
        self.task = task
        try:
            task.start(self._config)
            self._state = "RUNNING"
            pending = Transaction()
            began = machine.monotonic()
            while not self._stopping.is_set():
                if self._quiescing.is_set() and not self._must_go_on(pending):
                    self._deliver(pending)
                    break
                if self.idle_since is None and self._away_since is None:
                    self.idle_since = machine.monotonic()
                polled = self._polled(task)
                if polled is not None:
                    self.idle_since = None
                    for transaction, commits in self._cut(polled, pipeline, transactions):
                        pending.add(transaction)
                        if commits is not None:
                            self._deliver(pending if commits else pending.aborted())
                            pending = Transaction()
                # Without records an interval ends early: a run that ends when there is nothing more must deliver its last one.
                interval = self._boundaries.interval
                if interval is not None and (polled is None or machine.monotonic() - began >= interval):
                    self._deliver(pending)
                    pending, began = Transaction(), machine.monotonic()
        finally:
            with contextlib.suppress(Exception):
                task.stop()

    def _must_go_on(self, pending: Transaction) -> bool:
        """True inside a transaction that only the connector can end."""
        return self._boundaries.by_connector and bool(pending.tables)

    def _polled(self, task: SourceTask) -> Sequence[SourceRecord] | Sequence[SourceBatch] | None:
        """Polls ``task`` once, and returns its records or batches; ``None`` for nothing."""
        began = machine.monotonic()
        try:
            polled = task.poll()
        except RetriableException as error:
            self._await_return(error)
            return None
        self._away_since = None
        self._note(0 if polled is None else len(polled), began)
        if isinstance(polled, SourceBatch):
            return [polled] if len(polled) else None
        if not polled:
            if machine.monotonic() - began < _EMPTY_PAUSE:
                self._stopping.wait(_EMPTY_PAUSE)
            return None
        return polled

    def _note(self, size: int, began: float) -> None:
        """Notes a poll: whether the task rests, as what it gives has only just come to be."""
        began = self._waits_since or began
        self._waits_since = None if size else began
        if size and (machine.monotonic() - began < _REST_WAIT or size > max(1, self._longest_poll // 10)):
            self._rest = None
        elif self._rest is None:
            self._rest = machine.monotonic(), self._delivered
        self._longest_poll = max(self._longest_poll, size)

    def _await_return(self, error: Exception) -> None:
        """Pauses in an outage, which is no idleness. Raises :class:`Transient` when it has lasted for too long."""
        self.idle_since = self._rest = None
        self._away_since = self._away_since or machine.monotonic()
        error = masked_error(error, self._mask)
        timeout = self._settings.outage_timeout
        if machine.monotonic() - self._away_since > timeout:
            text = f"task {self.number} could not poll for outageTimeout={timeout:g}s: {error}"
            raise Transient(text, is_waited_for=True, connector=self._settings.log) from error
        _log.warning("%s: task %d failed to poll records and tries again: %s", self._settings.log, self.number, error)
        self._stopping.wait(_RETRY_PAUSE)

    def _cut(
        self, polled: Sequence[Any], pipeline: SourcePipeline, transactions: TaskTransactions | None
    ) -> list[tuple[Transaction, bool | None]]:
        """The transactions in what was polled, and whether each is committed, aborted (false) or goes on (``None``)."""
        end = True if self._boundaries.each_poll else None
        if isinstance(polled[0], SourceBatch):
            transaction = Transaction()
            for batch in polled:
                transaction.add(
                    self._transaction([of_source_batch(batch)], (), batch_offsets(batch), len(batch), pipeline)
                )
            return [(transaction, end if transactions is None else transactions.batch_end())]
        parts = [(polled, end)] if transactions is None else transactions.cut(polled)
        cut = []
        for records, commits in parts:
            delivered = () if commits is False else records
            batches = pipeline.in_columns(delivered)
            cut.append((self._transaction(batches, delivered, offsets_of(records), len(records), pipeline), commits))
        return cut

    def _transaction(
        self,
        batches: Sequence[Records],
        records: Sequence[SourceRecord],
        offsets: Mapping[str, Any],
        polled: int,
        pipeline: SourcePipeline,
    ) -> Transaction:
        retries = pipeline.tolerance.retries
        outcome = pipeline.run(batches)
        counts = {"polled": polled, "errors": len(outcome.letters), "retries": pipeline.tolerance.retries - retries}
        wants_records = self._kind.commit_record is not SourceTask.commit_record
        committed = (
            [(record, place not in outcome.failed) for place, record in enumerate(records)] if wants_records else []
        )
        return Transaction([outcome.rows], dict(offsets), outcome.letters, counts, committed)

    def _deliver(self, transaction: Transaction) -> None:
        """Puts a transaction into the buffer, when there is room."""
        if not transaction.tables:
            return
        with self._signal.changed:
            while not self._stopping.is_set() and (
                self._buffered_rows >= _BUFFER_ROWS or self._buffered_bytes >= _BUFFER_BYTES
            ):
                self._signal.changed.wait()
            if self._stopping.is_set():
                return
            self._store.update(transaction.offsets)
            self._buffer.append(transaction)
            self._delivered += 1
            self._buffered_rows += transaction.rows
            self._buffered_bytes += transaction.bytes
            self._failures = 0
            self._signal.changed.notify_all()

    def _restarts_after(self, error: Exception) -> bool:
        """Notes a failure and pauses; false where the task is not started again."""
        error = masked_error(error, self._mask)
        self._trace = trace(error)
        self.idle_since = self._rest = None
        self._state = "FAILED"
        _log.error("%s: task %d failed", self._settings.log, self.number, exc_info=error)
        if isinstance(error, Transient) and error.is_waited_for:
            self.outage, self._is_final = error, True
            return False
        if self._failures >= self._settings.restarts:
            self._is_final = True
            return False
        pause = min(self._settings.restart_backoff * 2**self._failures, self._settings.restart_max_backoff)
        self._failures += 1
        self._signal.notify()
        if self._stopping.wait(pause) or self._quiescing.is_set():
            return False
        self._restarts += 1
        self._state = "RESTARTING"
        return True


class _TaskContext(SourceTaskContext):
    def __init__(self, config: Mapping[str, str], store: OffsetStore, transactions: TaskTransactions | None) -> None:
        self._config = config
        self._store = store
        self._transactions = transactions

    def offset_storage_reader(self) -> OffsetStorageReader:
        return OffsetStorageReader(self._store)

    def transaction_context(self) -> TransactionContext | None:
        return self._transactions

    def configs(self) -> Mapping[str, str]:
        return self._config

"""The session of a transactional id: its producer, and a ledger on which that producer can rely.

Kafka decides who may write. ``init_transactions`` ends the open transaction of an earlier producer with the same id, and
fences that producer. The ledger that a session reads afterwards stays valid until its commit, or its commit fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any, Final

from ...ground import machine
from ...ground.errors import ConnectorError, Fatal, Misconfigured, Problem, Transient
from .cluster import SinkTopics, transaction_maximum
from .config import producer_config
from .errors import FENCED, ClientReports, Fenced, Stuck, client, error_name, fenced, new_client, producer_error
from .ledger import LedgerClient, LedgerState, TransactionSettings
from .producer import RecordFeeder

_CALL_SECONDS: Final = 5.0
_GRACE: Final = 3.0
"""The seconds beyond its timeout after which a call counts as stuck."""
_CONNECT_SECONDS: Final = 1.0
_LEDGER: Final = "ledgerTopic"
_OUTAGE: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")
_MAX_IDLE: Final = 64
"""The most idle sessions of a process. Each has two clients with their own threads; a process has room for 1,024 clients."""
_log = logging.getLogger("connectors.kafka")

_sessions: OrderedDict[tuple[int, TransactionSettings], KafkaSession] = OrderedDict()
"""The sessions of each process, the last used at the end. A forked process can neither use nor close its parent's sessions.

This is no pool: a second session with the same transactional id fences the first. Each thread has its own sessions too: of two
threads in one session, the later would commit a decision from a ledger that the other has changed since.
"""
_lock = threading.Lock()


def open_session(settings: TransactionSettings) -> KafkaSession:
    """The session of this thread, or a new one. Closes the sessions that have been idle for longest."""
    key = (os.getpid(), settings)
    with _lock:
        if is_cached(settings):
            _sessions.move_to_end(key)
            return _sessions[key]
    session = KafkaSession(settings)
    with _lock:
        _sessions[key] = session
        idle = [cached for (process, _), cached in _sessions.items() if process == key[0] and not cached.in_transaction]
    for old in idle[:-_MAX_IDLE]:
        old.close()
    return session


def is_cached(settings: TransactionSettings) -> bool:
    """True if this thread has a session from an earlier batch: another process or thread may have fenced it since."""
    session = _sessions.get((os.getpid(), settings))
    return session is not None and session.thread == threading.get_ident()


class KafkaSession:
    """Reads the ledger and commits transactions. An error closes it, and the next session starts clean."""

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self.thread = threading.get_ident()
        self.in_transaction = False
        self._began = 0.0
        self._alarm: threading.Timer | None = None
        self._reports = ClientReports()
        self.topics = SinkTopics(dict(settings.config))
        self.config = self._producer_config()
        self.producer: Any = new_client("Producer", self.config, self._reports)
        self._ledger = LedgerClient(settings, self._reports)
        self._connect()
        failure = f"the transactions of {settings.transactional_id} cannot be prepared"
        self._until(self.producer.init_transactions, failure)

    def _producer_config(self) -> dict[str, Any]:
        settings, config = self.settings, dict(self.settings.config)
        own = {
            "transactional.id": settings.transactional_id,
            "transaction.timeout.ms": round(settings.timeout * 1000),
            "message.timeout.ms": round(min(settings.patience, settings.timeout) * 1000),
        }
        return {**own, **producer_config(config, self.topics.largest_record(settings.topic), self._reports)}

    def _connect(self) -> None:
        """Connects before the client looks for its coordinator: without a connection it would retry only after 0.5 s.

        The client drops its first connection after the first answer, and keeps the second.
        """
        if self.settings.topic:
            with contextlib.suppress(client().KafkaException):
                for _ in range(2):
                    self.producer.list_topics(self.settings.topic, timeout=_CONNECT_SECONDS)

    def read_ledger(self, *partitions: int) -> list[LedgerState]:
        """The ledger's entries at ``partitions``. Waits while a transaction that would change them is open."""
        with self.guarded("the ledger cannot be read", _LEDGER):
            return self._ledger.read(*partitions)

    def begin(self, ledger: LedgerState) -> None:
        """Opens a transaction and writes ``ledger``, the present ledger.

        If another producer has taken over, this raises :class:`~.errors.Fenced` before any record is sent.
        """
        self._began = machine.monotonic()
        self.in_transaction = True
        self._reports.clear()
        self._alarm = threading.Timer(self.settings.timeout / 2, self._warn_of_time)
        self._alarm.daemon = True
        self._alarm.start()
        self.producer.begin_transaction()
        self._add_offset(ledger)

    def feeder(self) -> RecordFeeder:
        """A feeder that adds records to the open transaction."""
        return RecordFeeder(self.producer, self.config, self.topics, self.settings.topic, self.settings.patience)

    def commit(self, ledger: LedgerState) -> float:
        """Commits the transaction with ``ledger``. Returns the seconds that it was open."""
        settings = self.settings
        key = settings.record_key(settings.offset_partition)
        self.feeder().wait_for_room(1)
        self.producer.produce(settings.ledger_topic, ledger.text(), key, partition=settings.record_partition)
        self._add_offset(ledger)
        self._until(self.producer.commit_transaction, "the transaction cannot be committed")
        self._leave_transaction()
        return machine.monotonic() - self._began

    def _add_offset(self, ledger: LedgerState) -> None:
        settings = self.settings
        token = client().TopicPartition(settings.ledger_topic, settings.offset_partition, ledger.version, ledger.text())

        def add(seconds: float) -> None:
            send = self.producer.send_offsets_to_transaction
            _call_in_time(partial(send, [token], self._ledger.group(), seconds), seconds + _GRACE)

        self._until(add, "the ledger entry cannot be added", _LEDGER)

    def _leave_transaction(self) -> None:
        self.in_transaction = False
        if self._alarm is not None:
            self._alarm.cancel()

    def _warn_of_time(self) -> None:
        """Called by the alarm's thread while the transaction is open."""
        text = "the transaction %s is open for %g s, half of transactionTimeout (%g s), after which the broker ends it"
        _log.warning(text, self.settings.transactional_id, self.settings.timeout / 2, self.settings.timeout)

    # ---- errors

    @contextlib.contextmanager
    def guarded(self, failure: str, topic: str = "topic") -> Iterator[None]:
        """On an error inside, aborts the open transaction, closes the session, and raises an error of this library.

        ``topic`` is the option that names the topic of the calls inside.
        """
        try:
            yield
        except client().KafkaException as error:
            raise self._failed(producer_error(error, failure, self._reports.errors, topic=topic)) from None
        except Transient as error:
            raise self._failed(error) from None
        except BaseException:
            self.abort()
            raise

    def _until(self, call: Callable[[float], Any], failure: str, topic: str = "topic") -> None:
        """Repeats ``call`` for ``patience`` seconds, while the client says that it may be retried."""
        deadline = machine.monotonic() + self.settings.patience
        while True:
            try:
                call(_CALL_SECONDS)
                return
            except client().KafkaException as error:
                with contextlib.suppress(client().KafkaException):  # after a fatal error it raises that one
                    self.producer.poll(0)
                is_refused = self._reports.has("_AUTHENTICATION", "_SSL")
                if error.args[0].retriable() and machine.monotonic() < deadline and not is_refused:
                    continue
                if error_name(error) == "INVALID_TRANSACTION_TIMEOUT":
                    raise self._timeout_error() from None
                raise self._failed(producer_error(error, failure, self._reports.errors, topic=topic)) from None

    def _timeout_error(self) -> Misconfigured:
        maximum = transaction_maximum(dict(self.settings.config))
        limit = f"the broker's transaction.max.timeout.ms{f' ({maximum} ms)' if maximum else ''}"
        text = f"{round(self.settings.timeout * 1000)} ms is above {limit}. Lower the option or raise the broker's limit."
        return Misconfigured("connectors.kafka", [Problem("transactionTimeout", text)])

    def _failed(self, error: ConnectorError) -> ConnectorError:
        """Closes the session, and returns the error to raise.

        That is ``error``, unless the client finally says that the producer is fenced. Then it is the expiry of a transaction
        that took too long, which the client also reports as a fence; else :func:`fenced` instead of an outage.
        """
        seconds = machine.monotonic() - self._began if self.in_transaction else 0.0
        is_fenced = self.abort() in FENCED or isinstance(error, Fenced)
        if is_fenced and seconds > self.settings.timeout:
            return self._expiry(seconds)
        return fenced(error.message) if is_fenced and type(error) is Transient else error

    def _expiry(self, seconds: float) -> ConnectorError:
        """The error of an expired transaction: it would take too long again, unless an outage has delayed it."""
        maximum = transaction_maximum(dict(self.settings.config))
        limit = f"at most {maximum / 1000:g} s, by its" if maximum else "no more than its"
        message = f"the transaction was open for {seconds:.0f} s; the broker ended it after {self.settings.timeout:g} s"
        way_out = (
            f"raise transactionTimeout (the broker takes {limit} transaction.max.timeout.ms), or make batches smaller, "
            "such as by maxOffsetsPerTrigger of the source"
        )
        kind = Transient if self._reports.has(*_OUTAGE) else Fatal
        return kind(f"{message} (transactionTimeout)", connector="connectors.kafka", way_out=way_out)

    def abort(self) -> str:
        """Aborts the open transaction, so that readers do not wait for it, and closes the session.

        If it cannot, returns the name of the client's error, such as that of a fence.
        """
        self._leave_cache()
        self._leave_transaction()
        refusal = ""
        try:
            self.producer.purge(in_flight=False)
            self.producer.abort_transaction(_CALL_SECONDS)
        except Exception as error:
            refusal = error_name(error)
        self.close()
        return refusal

    def close(self) -> None:
        """Closes the clients of a session without an open transaction."""
        self._leave_cache()
        with contextlib.suppress(Exception):
            self._ledger.close()
        for name in ("producer", "_ledger"):  # a producer is closed when nothing refers to it
            self.__dict__.pop(name, None)

    def _leave_cache(self) -> None:
        key = (os.getpid(), self.settings)
        with _lock:
            if _sessions.get(key) is self:
                del _sessions[key]


def _call_in_time(call: Callable[[], Any], seconds: float) -> None:
    """Runs ``call`` in a thread; raises :class:`Stuck` and leaves the thread if it does not return in time.

    After the restart of a broker, the client may wait forever for the old one, whatever its timeout.
    """
    done: Future[None] = Future()

    def work() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    machine.thread(work, "connectors-kafka").start()
    try:
        done.result(seconds)
    except FutureTimeout:
        raise Stuck("the Kafka client does not return: its broker was restarted or has left the cluster") from None

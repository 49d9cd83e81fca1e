"""Transactions that carry records and the book in which they are entered, whoever sends them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...core.dead_letters import Rejects
from ...core.errors import CommitRefused, ConnectorError, Fatal, Misconfigured, Problem, Transient
from ...core.ledger import Entry
from ...core.sink import Batch
from .cluster import Topics, transaction_maximum
from .config import FENCED, Fenced, Stuck, client, connection_config, error_of, explained, producer_config
from .ledger import BOOK, SEEN, Address, Book, LedgerReader
from .producer import Feeder
from .records import Serializer, last_of_each_key

if TYPE_CHECKING:
    from .sink import KafkaSink


class Incoming:
    """The rows of one task, serialized on their way. ``count`` is how many have come, bad ones too."""

    def __init__(self, sink: KafkaSink, batch: Batch, batches: Iterator[pa.RecordBatch]) -> None:
        self._values = sink.values
        self._batches = (one for one in batches if one.num_rows)
        self._first = next(self._batches, None)
        self.rejects: Rejects = sink.rejects(batch)
        self.count = 0

    def __bool__(self) -> bool:
        """False when there are no rows."""
        return self._first is not None

    def counted(self) -> int:
        """Takes in what is left, and returns how many rows there are."""
        self.count += sum(one.num_rows for one in self._all())
        return self.count

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        serializer: Serializer | None = None
        for one in self._all():
            serializer = serializer or Serializer(self._values, one.schema)
            self.count += one.num_rows
            yield serializer.records(one, self.rejects)

    def _all(self) -> Iterator[pa.RecordBatch]:
        return self._batches if self._first is None else itertools.chain([self._first], self._batches)


def publish(
    sink: KafkaSink,
    query: str,
    number: int,
    records: Iterable[pa.RecordBatch],
    rejects: Rejects,
    entry: Callable[[int], Entry],
) -> float | None:
    """One transaction with ``records`` and ``entry`` (which is told their number).

    Returns the seconds that it was open; ``None`` if the batch was there already.
    """
    begun = begin(sink.address(), query, number, lambda ours: _in_one(ours.books(BOOK)[0], query, number))
    if begun is None:
        return None
    return transact(sink, *begun, number, records, rejects, lambda book, sent: book.with_entry(entry(sent)))


def transact(
    sink: KafkaSink,
    ours: Session,
    book: Book,
    number: int,
    records: Iterable[pa.RecordBatch],
    rejects: Rejects,
    written: Callable[[Book, int], Book],
) -> float:
    """Sends ``records`` in the open transaction of ``ours``, and commits it with the book that ``written`` makes.

    Returns the seconds that the transaction was open.
    """
    with ours.guarded(f"batch {number} cannot be written"):
        sent = send(sink, ours, records, rejects)
        if rejects.count:
            rejects.decide()
        return ours.commit(written(book, sent))


def begin(address: Address, query: str, number: int, read: Callable[[Session], Book]) -> tuple[Session, Book] | None:
    """A session with an open transaction, and the book that ``read`` gave; ``None`` if the batch is there already.

    Spark gives batches to its workers in turns, and each of them keeps a session: the last one that wrote has the id. And
    brokers may have been restarted since.
    """
    was_kept = is_kept(address)
    ours = session(address)
    try:
        with ours.guarded(f"batch {number} cannot be begun"):
            book = read(ours)
            if is_there(book, query, number):
                return None
            ours.begin(book)
        return ours, book
    except (Fenced, Stuck):
        if not was_kept:
            raise
        return begin(address, query, number, read)


def _in_one(book: Book, query: str, number: int) -> Book:
    """``book``, unless the batch may be there in parts. Raises ``CommitRefused`` then."""
    if book.layout is not None and book.layout.query == query and not is_there(book, query, number):
        raise CommitRefused(
            f"batch {number} may be written in part, by a run with slots={book.layout.slots}: it cannot be one transaction",
            way_out="let foreach_batch, without stagingLocation, write it; the batches after it are written as you say",
        )
    return book


def send(sink: KafkaSink, ours: Session, records: Iterable[pa.RecordBatch], rejects: Rejects) -> int:
    """Puts ``records`` into the open transaction; how many."""
    feeder = Feeder(ours.producer, ours.config, ours.topics, sink.values["topic"], sink.patience())
    if sink.values["operation"] == "upsert":
        whole = list(records)
        records = last_of_each_key(pa.Table.from_batches(whole)).to_batches() if whole else []
    return sum(feeder.feed(batch, rejects) for batch in records)


def is_there(book: Book, query: str, number: int) -> bool:
    last = book.entries.get(query)
    if last is not None and last.batch > number:
        raise CommitRefused(
            f"batch {number} is older than batch {last.batch}, which is committed: another run has taken over"
        )
    return last is not None and last.batch == number


# MERGED One transactional id in one process: its producer, the ledger it reads, and transactions that carry the
# ledger entry.
#
# Who may write is decided by Kafka: ``init_transactions`` ends what an earlier producer of the same id has open and
# shuts it
# out. What was read after it therefore stays true until our commit, or our commit fails.

_STEP: Final = 5.0
_GRACE: Final = 3.0
"""Seconds beyond those that the client was given, after which it is not going to return."""
_CONNECTING: Final = 1.0
_OUTAGE: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"})
_MOST_AT_REST: Final = 64
"""Sessions that are kept; each has two clients with threads of their own, and a process has room for 1,024 clients."""
_log = logging.getLogger("connectors.kafka")


_open: OrderedDict[tuple[int, Address], Session] = OrderedDict()
"""By process: a client does not live on in a forked one, and must not even be closed there. Last used, last in order."""
_lock = threading.Lock()


def session(address: Address) -> Session:
    """The session of this process; made when there is none."""
    key = (os.getpid(), address)
    with _lock:
        if key in _open:
            _open.move_to_end(key)
            return _open[key]
    made = Session(address)
    with _lock:
        _open[key] = made
        resting = [one for (process, _), one in _open.items() if process == key[0] and not one.in_transaction]
        unused = resting[:-_MOST_AT_REST]
    for one in unused:
        one.close()
    return made


def is_kept(address: Address) -> bool:
    """This process has a session, from an earlier batch or an earlier look: somebody may have taken over since."""
    return (os.getpid(), address) in _open


def _in_time(call: Callable[[], Any], seconds: float) -> None:
    """Raises :class:`Stuck` if ``call`` does not return: after a broker was restarted, the client may wait for the old one
    for ever, whatever time it is given. The thread stays with it."""
    done: Future[None] = Future()

    def work() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=work, name="connectors-kafka", daemon=True).start()
    try:
        done.result(seconds)
    except FutureTimeout:
        raise Stuck("the Kafka client does not return: its broker was restarted or has left the cluster") from None


class Session:
    """Reads the ledger and commits transactions. After an error it is thrown away, and the next one starts clean."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.began = 0.0
        self.in_transaction = False
        self._alarm: threading.Timer | None = None
        self._told: list[tuple[str, str]] = []
        self._noted: frozenset[str] = frozenset()
        config = dict(address.config)
        self.topics = Topics(config)
        self.config = self._producer_config(config)
        self.producer: Any = self._made("Producer", self.config)
        self._consumer: Any = self._made_consumer({})
        self._ledger = LedgerReader(address, self._consumer, self._made_consumer)
        self._connect()
        self._until(
            self.producer.init_transactions, f"the transactions of {address.transactional_id} cannot be prepared"
        )
        self._group = self._consumer.consumer_group_metadata()

    def _connect(self) -> None:
        """A client that looks for its coordinator before it has a connection tries again after half a second only.

        The first answer makes it drop the connection that it was given, and the second one has come over one to stay.
        """
        if self.address.topic:
            with contextlib.suppress(client().KafkaException):
                for _ in range(2):
                    self.producer.list_topics(self.address.topic, timeout=_CONNECTING)

    def books(self, *places: int) -> list[Book]:
        """What the ledger has at ``places``. Waits while a transaction that would change it is open."""
        with self.guarded("the ledger cannot be read"):
            return self._ledger.books(*places)

    def begin(self, book: Book) -> None:
        """Opens a transaction. ``book`` is what the ledger has: writing it again shows, before any record is sent, whether
        somebody else has taken over since (:class:`~.client_errors.Fenced`)."""
        self.began = time.monotonic()
        self.in_transaction = True
        self._told = []
        self._alarm = threading.Timer(self.address.timeout / 2, self._warn_of_time)
        self._alarm.daemon = True
        self._alarm.start()
        self.producer.begin_transaction()
        self._add(book)

    def commit(self, book: Book) -> float:
        """Adds ``book`` to the transaction and commits it: the rows and the entry are there, or neither.

        Returns the seconds that the transaction was open.
        """
        to = self.address
        self.producer.produce(to.ledger, book.text(), to.key(to.place), partition=to.partition)
        self._add(book)
        self._until(self.producer.commit_transaction, "the transaction cannot be committed")
        self._leave_transaction()
        return time.monotonic() - self.began

    def _leave_transaction(self) -> None:
        self.in_transaction = False
        if self._alarm is not None:
            self._alarm.cancel()

    def _add(self, book: Book) -> None:
        token = [client().TopicPartition(self.address.ledger, self.address.place, book.version, book.text())]
        self._until(
            lambda seconds: _in_time(
                lambda: self.producer.send_offsets_to_transaction(token, self._group, seconds), seconds + _GRACE
            ),
            "the ledger entry cannot be added",
        )

    def note(self, book: Book) -> None:
        """Writes ``book`` as the note of queries without rows, outside of transactions; once is enough for a session.

        The record comes first: it stays when the broker forgets the offset.
        """
        if frozenset(book.entries) <= self._noted:
            return
        to = self.address
        token = [client().TopicPartition(to.ledger, SEEN, book.version, book.text())]
        with self.guarded("the ledger cannot be written"):
            producer = self._plain_producer()
            producer.produce(to.ledger, book.text(), to.key(SEEN), partition=to.partition, on_delivery=self._raise_refusal)
            if producer.flush(to.patience):
                raise Transient("the brokers did not take a record of the ledger in time")
            self._consumer.commit(offsets=token, asynchronous=False)
        self._noted = frozenset(book.entries)

    def _plain_producer(self) -> Any:
        """A producer without transactions; what it sends twice is the same."""
        connection = connection_config(dict(self.address.config))
        limits = {"acks": "all", "message.timeout.ms": round(self.address.patience * 1000)}
        return self._made("Producer", {**connection, **limits, "error_cb": self._heard})

    @staticmethod
    def _raise_refusal(error: Any, _: Any) -> None:
        if error is not None:
            raise client().KafkaException(error)

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """An error inside ends the open transaction, throws the session away, and is raised as one of ours."""
        try:
            yield
        except client().KafkaException as error:
            raise self._failure(explained(error, what, self._told)) from None
        except Transient as error:
            raise self._failure(error) from None
        except BaseException:
            self.give_up()
            raise

    def _failure(self, error: ConnectorError) -> ConnectorError:
        """Ends the session. Returns ``error``; or that the transaction expired, which the client reports as a fence."""
        seconds = time.monotonic() - self.began if self.in_transaction else 0.0
        is_fenced = self.give_up() in FENCED or isinstance(error, Fenced)
        return self._expiry(seconds) if is_fenced and seconds > self.address.timeout else error

    def _expiry(self, seconds: float) -> ConnectorError:
        """A transaction that took too long would do so again. After an outage the next one may well be in time."""
        most = transaction_maximum(dict(self.address.config))
        limit = f"at most {most / 1000:g} s, by its" if most else "no more than its"
        message = f"the transaction was open for {seconds:.0f} s; the broker ended it after {self.address.timeout:g} s"
        way_out = (
            f"raise transactionTimeout (the broker takes {limit} transaction.max.timeout.ms), or make batches smaller, "
            "such as by maxOffsetsPerTrigger of the source"
        )
        kind = Transient if any(name in _OUTAGE for name, _ in self._told) else Fatal
        return kind(f"{message} (transactionTimeout)", connector="connectors.kafka", way_out=way_out)

    def give_up(self) -> str:
        """Ends the open transaction, if it is still this session's, so that readers do not wait for it; forgets the session.

        Returns the name of the client's error if it could not.
        """
        self._forget()
        self._leave_transaction()
        refusal = ""
        try:
            self.producer.purge(in_flight=False)
            self.producer.abort_transaction(_STEP)
        except Exception as error:
            refusal = error_of(error)
        self.close()
        return refusal

    def close(self) -> None:
        """Forgets the session, in which nothing is open."""
        self._forget()
        with contextlib.suppress(Exception):
            self._consumer.close()
        for held in ("producer", "_consumer", "_ledger"):  # they call back into this session: a circle, which would live on
            self.__dict__.pop(held, None)

    def _forget(self) -> None:
        key = (os.getpid(), self.address)
        with _lock:
            if _open.get(key) is self:
                del _open[key]

    def _until(self, call: Callable[[float], Any], what: str) -> None:
        """``call`` again as long as the client says that it may go on, and our patience lasts."""
        until = time.monotonic() + self.address.patience
        while True:
            try:
                call(_STEP)
                return
            except client().KafkaException as error:
                with contextlib.suppress(client().KafkaException):  # after a fatal error it raises that one
                    self.producer.poll(0)
                refused = [name for name, _ in self._told if name in ("_AUTHENTICATION", "_SSL")]
                if error.args[0].retriable() and time.monotonic() < until and not refused:
                    continue
                self._refuse_timeout(error_of(error))
                raise self._failure(explained(error, what, self._told)) from None

    def _refuse_timeout(self, name: str) -> None:
        if name != "INVALID_TRANSACTION_TIMEOUT":
            return
        most = transaction_maximum(dict(self.address.config))
        known = (
            f"the broker's transaction.max.timeout.ms ({most} ms)"
            if most
            else "the broker's transaction.max.timeout.ms"
        )
        text = (
            f"{round(self.address.timeout * 1000)} ms is above {known}. Lower the option or raise the broker's limit."
        )
        raise Misconfigured("connectors.kafka", [Problem("transactionTimeout", text)])

    def _warn_of_time(self) -> None:
        """Called by a thread of its own while the transaction is open."""
        text = "the transaction %s is open for %g s, half of transactionTimeout (%g s), after which the broker ends it"
        _log.warning(text, self.address.transactional_id, self.address.timeout / 2, self.address.timeout)

    def _made(self, kind: str, config: Mapping[str, Any]) -> Any:
        try:
            return getattr(client(), kind)(dict(config))
        except client().KafkaException as error:
            raise explained(error, "the client refuses the options", self._told) from None

    def _producer_config(self, config: Mapping[str, str]) -> dict[str, Any]:
        mine = {
            "transactional.id": self.address.transactional_id,
            "transaction.timeout.ms": round(self.address.timeout * 1000),
            "message.timeout.ms": round(min(self.address.patience, self.address.timeout) * 1000),
        }
        return {**mine, **producer_config(config, self._smallest(), self._heard, self._heard_delivery)}

    def _made_consumer(self, more: Mapping[str, Any]) -> Any:
        mine = {"group.id": self.address.group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        connection = connection_config(dict(self.address.config))
        return self._made("Consumer", {**connection, **mine, **more, "error_cb": self._heard})

    def _smallest(self) -> int:
        return self.topics[self.address.topic].largest if self.address.topic else 1_000_000

    def _heard(self, error: Any) -> None:
        self._told = [*self._told[-20:], (error.name(), error.str())]

    def _heard_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._heard(error)

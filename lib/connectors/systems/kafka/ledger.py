"""The ledger of a Kafka sink: the last batch of each query, kept in Kafka itself.

The ledger has an entry for the sink, a note for batches without rows, and an entry for each slot. Each of them is

- a committed offset of the sink's group on the ledger topic. Its text is the offset's metadata, and its partition number
  says which entry it is: 0 the sink's, 1 the note, then those of the slots;
- a record with the same text in the ledger topic, because a broker forgets the offsets of a group after a quiet week.

The entries of the sink and of slots are written in the transaction of a batch. The note has its own transactions, with an id
that only drivers use, since the last writing task holds the sink's id. The newer of entry and note tells a query's last batch.
The batch writes of each ``txnAppId`` have their own ledger and transactional ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

from ...core.ledger import OWNER, Entry, LedgerContent, is_once, is_stream, txn_app_id
from ...ground import machine
from ...ground.errors import CommitRefused, Fatal, Transient
from ...ground.state import checked, digest, dumps, loads, versioned
from .cluster import make_ledger_topic
from .config import connection_config
from .errors import ClientReports, client, client_errors, error_name, new_client

SINK_PARTITION, NOTE_PARTITION = 0, 1
"""The partitions of the ledger topic for the offsets of the sink's entry and of the note."""
_STREAMS: Final = 16
"""The number of other streaming queries that the ledger remembers, however old they are."""
_REMEMBERED_SECONDS: Final = 7 * 86400.0
"""The ledger forgets further queries after so long. Such a query counts as new when it comes back: under
``onNewQuery=continue`` it may repeat its last batch."""
MAX_BYTES: Final = 4000
"""Brokers store 4096 bytes with a committed offset (``offset.metadata.max.bytes``)."""
_RETENTION_SECONDS: Final = 60.0
"""No broker forgets a committed offset earlier: ``offsets.retention.minutes`` is at least 1."""
_TO_END: Final = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
_CALL_SECONDS: Final = 5.0
_READ_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
"""The client waits so long, unless the requested number of messages arrives."""


@dataclass(frozen=True)
class SlotLayout:
    """How pending batches of ``query`` are written: in ``slots`` transactions, and only by tasks of ``run``.

    In a slot's own state it tells how the slot's last batch was written.
    """

    query: str
    slots: int
    run: str


@dataclass(frozen=True)
class LedgerState:
    """The last batch of each query. It is small, since it travels with each commit.

    ``version`` grows with each change. Without a ``layout`` a batch is one transaction.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    version: int = 0
    layout: SlotLayout | None = None

    def has(self, query: str, number: int) -> bool:
        """True if the batch is committed. Raises ``CommitRefused`` if a later batch is."""
        last = self.entries.get(query)
        if last is not None and last.batch > number:
            raise CommitRefused(
                f"batch {number} is older than batch {last.batch}, which is committed: another run has taken over"
            )
        return last is not None and last.batch == number

    def with_layout(self, layout: SlotLayout, claim: Entry | None = None) -> LedgerState:
        """The state after a change to ``layout`` for pending batches; the query's first batch brings its ``claim``."""
        claims = {OWNER: replace(claim, at=machine.time())} if claim else {}
        return replace(self, entries={**self.entries, **claims}, layout=layout, version=self.version + 1)

    def with_entry(self, entry: Entry, layout: SlotLayout | None = None) -> LedgerState:
        """The state after the commit of ``entry``. It drops old streams, and batch writes that nobody repeats.

        ``layout`` is for the next batch. The layout of another query stays, since its batch may be partly written.
        """
        if layout is None and self.layout is not None and self.layout.query != entry.query:
            layout = self.layout
        streams = sorted((self.entries[query] for query in self.streams() - {entry.query}), key=lambda last: last.at)
        quiet = {last.query for last in streams[:-_STREAMS] if _is_quiet(last)}
        dropped = {entry.query, *quiet}
        others = {query: last for query, last in self.entries.items() if query not in dropped and not is_once(query)}
        small = Entry(entry.query, entry.batch, entry.rows, entry.checksum, at=entry.at or machine.time())
        claims = {OWNER: replace(claim, at=small.at)} if (claim := entry.ownership()) else {}
        return replace(self, entries={**others, entry.query: small, **claims}, version=self.version + 1, layout=layout)

    def streams(self) -> frozenset[str]:
        return frozenset(query for query in self.entries if is_stream(query))

    def may_lack(self, last: Entry) -> bool:
        """True if the state may have dropped the stream of ``last``; it drops a stream only if there are many."""
        return last.query not in self.entries and len(self.streams()) > _STREAMS and _is_quiet(last)

    def text(self) -> str:
        """The state as JSON. Raises ``Fatal`` if it is too large for a broker."""
        entries = {
            q: [last.batch, last.rows, last.owner if q == OWNER else last.checksum, round(last.at, 3)]
            for q, last in self.entries.items()
        }
        layout = {"l": list(astuple(self.layout))} if self.layout else {}
        text = dumps(versioned(q=entries, n=self.version, **layout))
        if len(text.encode()) > MAX_BYTES:
            raise Fatal(
                f"{len(entries)} queries have written under one sink id, more than Kafka can remember with an offset",
                way_out="give each query a transactionalIdPrefix (or sinkId) of its own",
            )
        return text

    @classmethod
    def of(cls, text: str) -> LedgerState:
        state: dict[str, Any] = checked(loads(text, "the ledger of a Kafka sink"), "the ledger of a Kafka sink")
        entries = {
            q: Entry(q, batch, rows, at=at, **{"owner" if q == OWNER else "checksum": text})
            for q, (batch, rows, text, at) in state["q"].items()
        }
        return cls(entries, state["n"], SlotLayout(*state["l"]) if "l" in state else None)


def _is_quiet(last: Entry) -> bool:
    return is_stream(last.query) and last.at < machine.time() - _REMEMBERED_SECONDS


@dataclass(frozen=True)
class TransactionSettings:
    """The settings of a sink's transactions. ``config`` is the client's; ``timeout`` and ``patience`` are in seconds.

    ``slot`` 0 is the sink's own transactional id; each slot and the note have another. All attempts at a batch have the same
    id, so that Kafka fences older attempts.
    """

    config: tuple[tuple[str, str], ...]
    ledger_topic: str
    prefix: str
    timeout: float
    patience: float
    topic: str | None
    slot: int = 0
    is_note: bool = False

    def of_query(self, query: str) -> TransactionSettings:
        """The settings for the batches of ``query``."""
        return self if txn_app_id(query) is None else replace(self, prefix=f"{self.prefix}-{digest(query)}")

    @property
    def transactional_id(self) -> str:
        return f"{self.prefix}-note" if self.is_note else self._owner

    @property
    def _owner(self) -> str:
        """The transactional id that names the entry in the ledger topic; for the note it is the sink's."""
        return f"{self.prefix}-{self.slot}"

    @property
    def group(self) -> str:
        return f"{self.prefix}-0-ledger"

    @property
    def offset_partition(self) -> int:
        """The partition of the ledger topic for the offset of this slot's entry."""
        return NOTE_PARTITION + self.slot if self.slot or self.is_note else SINK_PARTITION

    @property
    def record_partition(self) -> int:
        """The partition of the ledger topic for this slot's records. A ledger topic has at least four partitions."""
        return zlib.crc32(self._owner.encode()) % 4

    def record_key(self, offset_partition: int | str) -> str:
        return f"{self._owner}/{offset_partition}"


class LedgerClient:
    """Reads the ledger. Errors of the client pass through."""

    def __init__(self, settings: TransactionSettings, reports: ClientReports) -> None:
        self.settings, self._reports = settings, reports
        self._connection = connection_config(dict(settings.config))
        self._consumer = self._new_consumer({})
        self._texts: Mapping[int, str] = {}
        self._texts_end = 0.0
        """The monotonic time until which ``_texts`` are valid."""

    def group(self) -> Any:
        """The metadata of the sink's group, which a transaction needs to commit its offsets."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()

    def read(self, *partitions: int) -> list[LedgerState]:
        """The entries at ``partitions``. Waits while a transaction that would change them is open.

        It reads the records of the topic only if one of ``partitions`` has no committed offset.
        """
        offsets = self._committed([client().TopicPartition(self.settings.ledger_topic, number) for number in partitions])
        recorded = self._recorded() if any(token.offset < 0 for token in offsets) else {}
        texts = [
            token.metadata if token.offset >= 0 else recorded.get(number)
            for token, number in zip(offsets, partitions, strict=True)
        ]
        return [LedgerState.of(text) if text else LedgerState() for text in texts]

    def _new_consumer(self, config: Mapping[str, Any]) -> Any:
        own = {"group.id": self.settings.group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        return new_client("Consumer", {**self._connection, **own, **config}, self._reports)

    def _committed(self, partitions: list[Any]) -> list[Any]:
        try:
            return list(self._consumer.committed(partitions, timeout=_CALL_SECONDS))
        except client().KafkaException as error:
            if error_name(error) == "_TIMED_OUT" and self._are_pending(partitions):
                raise Transient(
                    f"the ledger of {self.settings.transactional_id} waits for a transaction that has ended without a "
                    "mark in the topics: its broker died in that moment. When this lasts, every reader of them waits too",
                    way_out="find it by Kafka's own 'kafka-transactions.sh find-hanging'",
                ) from None
            raise

    def _are_pending(self, partitions: list[Any]) -> bool:
        """True if a transaction holds uncommitted offsets. It is not the session's, which has ended its own before."""
        reader = self._new_consumer({"isolation.level": "read_uncommitted"})
        try:
            reader.committed(partitions, timeout=_CALL_SECONDS)
        except client().KafkaException:
            return False
        else:
            return True
        finally:
            reader.close()

    def _recorded(self) -> Mapping[int, str]:
        """The entries from records, for offsets that were never committed or that the broker has forgotten.

        They are valid until a broker may have forgotten an offset that anybody has committed since.
        """
        begin = machine.monotonic()
        if begin >= self._texts_end:
            make_ledger_topic(dict(self.settings.config), self.settings.ledger_topic)
            self._texts = self._read_records()
            self._texts_end = begin + _RETENTION_SECONDS
        return self._texts

    def _read_records(self) -> dict[int, str]:
        """The newest text for each offset partition, from the records that the sink and the slot have in the ledger topic."""
        reader = self._new_consumer(_TO_END)
        texts: dict[int, str] = {}
        owners = {self.settings, replace(self.settings, slot=0)}
        prefixes = tuple(owner.record_key("").encode() for owner in owners)
        unread = {owner.record_partition for owner in owners}
        try:
            reader.assign([client().TopicPartition(self.settings.ledger_topic, number, 0) for number in unread])
            deadline = machine.monotonic() + self.settings.patience
            while machine.monotonic() < deadline:
                for message in reader.consume(1000, _POLL_SECONDS):
                    if message.error():
                        if message.error().name() != "_PARTITION_EOF":
                            raise client().KafkaException(message.error())
                        unread.discard(message.partition())
                    elif (key := message.key() or b"").startswith(prefixes):
                        texts[int(key.rpartition(b"/")[2])] = message.value().decode()
                if not unread:
                    return texts
            raise Transient("the ledger topic cannot be read to its end")
        finally:
            reader.close()


def contents(config: Mapping[str, str], topic: str) -> list[LedgerContent]:
    """The ledger of every sink of a cluster, from the ledger topic. Raises the library's errors."""
    texts: dict[str, dict[int, str]] = {}
    with client_errors(f"the ledger topic {topic} cannot be read"):
        for key, text in _records_of(config, topic):
            transactional_id, _, partition = key.rpartition("/")
            texts.setdefault(transactional_id, {})[int(partition)] = text
    ledgers = []
    for transactional_id, by_partition in sorted(texts.items()):
        of_sink = (by_partition[number] for number in (SINK_PARTITION, NOTE_PARTITION) if number in by_partition)
        states = [LedgerState.of(text) for text in of_sink]
        newest: dict[str, Entry] = {}
        for entry in (entry for state in states for entry in state.entries.values() if entry.query != OWNER):
            newest[entry.query] = max(entry, newest.get(entry.query, entry), key=lambda entry: entry.batch)
        entries = sorted(newest.values(), key=lambda entry: -entry.at)
        ledgers += [LedgerContent(transactional_id.removesuffix("-0"), tuple(entries))] if entries else []
    return ledgers


def _records_of(config: Mapping[str, str], topic: str) -> Iterator[tuple[str, str]]:
    """Key and text of the committed records of a topic, in the order of each partition."""
    own = {"group.id": "connectors-ledger-show", "enable.auto.commit": False, "isolation.level": "read_committed"}
    reader = new_client("Consumer", {**connection_config(config), **own, **_TO_END}, ClientReports())
    try:
        known = reader.list_topics(topic, timeout=_CALL_SECONDS).topics[topic]
        reader.assign([client().TopicPartition(topic, number, 0) for number in known.partitions])
        ended, deadline = 0, machine.monotonic() + _READ_SECONDS
        while ended < len(known.partitions):
            if machine.monotonic() > deadline:
                raise Transient("the ledger topic cannot be read to its end")
            for message in reader.consume(1000, _POLL_SECONDS):
                if message.error() is None:
                    yield (message.key() or b"/-1").decode(), (message.value() or b"").decode()
                elif message.error().name() == "_PARTITION_EOF":
                    ended += 1
                else:
                    raise client().KafkaException(message.error())
    finally:
        reader.close()

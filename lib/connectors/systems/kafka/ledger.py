"""What a sink remembers: the last batch of each query that has written through it. Small, since it travels with each commit."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

from ...core.errors import Fatal, Transient
from ...core.ledger import Entry, is_stream
from ...core.state import checked, dumps, loads, versioned
from .cluster import make_ledger
from .config import client, error_of

LARGEST: Final = 4000
"""Bytes; brokers keep 4096 with a committed offset (``offset.metadata.max.bytes``)."""


@dataclass(frozen=True)
class Layout:
    """The batches of ``query`` that are not in the book yet are written in so many ``slots``, by the tasks of ``run`` alone.

    In the book of a slot it tells how its last batch was written.
    """

    query: str
    slots: int
    run: str


@dataclass(frozen=True)
class Book:
    """The entries by query; ``version`` grows with each change. Without a ``layout`` a batch is one transaction."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    version: int = 0
    layout: Layout | None = None

    def with_layout(self, layout: Layout) -> Book:
        """The book while ``layout`` is in force."""
        return replace(self, layout=layout, version=self.version + 1)

    def with_entry(self, entry: Entry, layout: Layout | None = None) -> Book:
        """The book when ``entry`` is committed. A batch write of its own is forgotten with the next change."""
        kept = {query: one for query, one in self.entries.items() if not query.startswith("once-")}
        small = Entry(entry.query, entry.batch, entry.rows, entry.checksum, at=entry.at or time.time())
        return replace(self, entries={**kept, entry.query: small}, version=self.version + 1, layout=layout)

    def streams(self) -> frozenset[str]:
        return frozenset(query for query in self.entries if is_stream(query))

    def text(self) -> str:
        """The book as JSON. Raises ``Fatal`` when it is too large for a broker."""
        rows = {q: [one.batch, one.rows, one.checksum, round(one.at, 3)] for q, one in self.entries.items()}
        layout = {"l": list(astuple(self.layout))} if self.layout else {}
        told = dumps(versioned(q=rows, n=self.version, **layout))
        if len(told.encode()) > LARGEST:
            raise Fatal(
                f"{len(rows)} queries have written under one sink id, more than Kafka can remember with an offset",
                way_out="give each query a transactionalIdPrefix (or sinkId) of its own",
            )
        return told

    @classmethod
    def of(cls, text: str) -> Book:
        state: dict[str, Any] = checked(loads(text, "the ledger of a Kafka sink"), "the ledger of a Kafka sink")
        entries = {q: Entry(q, batch, rows, checksum, at=at) for q, (batch, rows, checksum, at) in state["q"].items()}
        return cls(entries, state["n"], Layout(*state["l"]) if "l" in state else None)


# MERGED Where a sink's ledger is in Kafka, and how it is read.
#
# An entry is a committed offset of a group that is named after the sink on a ledger topic (its text is the offset's
# metadata), and the same text is a record in that topic, in the same transaction: a broker forgets the offsets of a
# group that
# was quiet for a week, and keeps the record. A query whose batches were all empty has no transaction; its note is an
# offset and
# a record all the same.

BOOK, SEEN = 0, 1
"""Places in the ledger: the book, and the note of queries that have only seen empty batches. Then come the books of slots."""

_STEP: Final = 5.0
_GLANCE: Final = 0.05
"""Seconds; the client waits them out unless as many messages come as it was asked for."""


@dataclass(frozen=True)
class Address:
    """What a session is to. ``config`` is the client's; ``timeout`` (of transactions) and ``patience`` are in seconds.

    Transactional ids begin with ``prefix``. There is never one per attempt, or attempts could not shut each other out; there
    is one for each ``slot`` of batches that are written in several, and slot 0 is the sink's own.
    """

    config: tuple[tuple[str, str], ...]
    ledger: str
    prefix: str
    timeout: float
    patience: float
    topic: str | None
    slot: int = 0

    @property
    def transactional_id(self) -> str:
        return f"{self.prefix}-{self.slot}"

    @property
    def group(self) -> str:
        return f"{self.prefix}-0-ledger"

    @property
    def place(self) -> int:
        """Where the ledger has the book of the slot."""
        return SEEN + self.slot if self.slot else BOOK

    @property
    def partition(self) -> int:
        """Where the records of this sink are; the smallest number of partitions that a ledger topic may have bounds it."""
        return zlib.crc32(self.transactional_id.encode()) % 4

    def key(self, place: int | str) -> str:
        """The key of the record of a book."""
        return f"{self.transactional_id}/{place}"


class LedgerReader:
    """Reads what is committed, by ``consumer``; by consumers with more settings, which it has ``made``, where that is not
    enough. What the client raises passes through."""

    def __init__(self, address: Address, consumer: Any, made: Callable[[Mapping[str, Any]], Any]) -> None:
        self.address, self._consumer, self._made_consumer = address, consumer, made
        self._texts: Mapping[int, str] | None = None
        self._stale_places: set[int] = set()
        """Places with a committed offset that is newer than ``_texts``."""

    def books(self, *places: int) -> list[Book]:
        """What the ledger has at ``places``. Waits while a transaction that would change it is open.

        The records of the topic are read only where the first of ``places`` has no committed offset.
        """
        offsets = self._committed([client().TopicPartition(self.address.ledger, place) for place in places])
        self._stale_places.update(place for place, token in zip(places, offsets, strict=True) if token.offset >= 0)
        if all(token.offset >= 0 for token in offsets):
            return [Book.of(token.metadata) for token in offsets]
        recorded = self._recorded(places[0]) if offsets[0].offset < 0 else {}
        texts = [
            token.metadata if token.offset >= 0 else recorded.get(place)
            for token, place in zip(offsets, places, strict=True)
        ]
        return [Book.of(text) if text else Book() for text in texts]

    def _committed(self, partitions: list[Any]) -> list[Any]:
        try:
            return list(self._consumer.committed(partitions, timeout=_STEP))
        except client().KafkaException as error:
            if error_of(error) == "_TIMED_OUT" and self._are_pending(partitions):
                raise Transient(
                    f"the ledger of {self.address.transactional_id} waits for a transaction that has ended without a "
                    "mark in the topics: its broker died in that moment. When this lasts, every reader of them waits too",
                    way_out="find it by Kafka's own 'kafka-transactions.sh find-hanging'",
                ) from None
            raise

    def _are_pending(self, partitions: list[Any]) -> bool:
        """The ledger answers a reader who does not mind what is open. Our own transaction was ended before we ask."""
        reader = self._made_consumer({"isolation.level": "read_uncommitted"})
        try:
            reader.committed(partitions, timeout=_STEP)
        except client().KafkaException:
            return False
        else:
            return True
        finally:
            reader.close()

    def _recorded(self, place: int) -> Mapping[int, str]:
        """What the topic has: nothing was ever committed at ``place``, or the broker has forgotten it.

        The records are read once, and again where an offset was seen meanwhile.
        """
        if self._texts is None or place in self._stale_places:
            make_ledger(dict(self.address.config), self.address.ledger)
            self._texts = self._records()
            self._stale_places.clear()
        return self._texts

    def _records(self) -> dict[int, str]:
        """The newest text at each place, from the records of the ledger topic."""
        more = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
        reader = self._made_consumer(more)
        found: dict[int, str] = {}
        prefix = self.address.key("").encode()
        try:
            reader.assign([client().TopicPartition(self.address.ledger, self.address.partition, 0)])
            until = time.monotonic() + self.address.patience
            while time.monotonic() < until:
                for message in reader.consume(1000, _GLANCE):
                    if message.error():
                        if message.error().name() == "_PARTITION_EOF":
                            return found
                        raise client().KafkaException(message.error())
                    if (message.key() or b"").startswith(prefix):
                        found[int(message.key()[len(prefix) :])] = message.value().decode()
            raise Transient("the ledger topic cannot be read to its end")
        finally:
            reader.close()

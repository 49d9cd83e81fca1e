"""Models of systems, strict as the strictest of their kind, for the processes of a history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pyarrow as pa

from ...core.batch import Batch, Committable
from ...core.cursor_source import CursorSource, Discovery
from ...core.cursors import Cursor, Page
from ...core.epoch_source import EpochSource
from ...core.epochs import Messages, Receiver
from ...core.ledger import OWNER, Entry, already_committed, check_claim
from ...core.sink import GlobalCommitter, Sink, SinkWriter
from ...ground.errors import Fatal
from ..compare import key_of
from .adversary import Adversary, Move

SCHEMA: Final = pa.schema([("value", pa.int64())])


@dataclass
class _Message:
    id: str
    body: int
    published: float
    leases: dict[str, float] = field(default_factory=dict)

    def is_leased(self, now: float) -> bool:
        return any(until > now for until in self.leases.values())


class Queue:
    """A queue that leases messages. An ended lease acknowledges, releases and extends nothing, and nobody hears of it."""

    lease_seconds: float = 60.0

    def __init__(self, adversary: Adversary) -> None:
        self._adversary, self._scheduler = adversary, adversary.scheduler
        self._messages: dict[str, _Message] = {}
        self._reorders = adversary.chance() < 0.5

    def publish(self, bodies: Sequence[int]) -> None:
        for body in bodies:
            id = self._scheduler.token()
            self._messages[id] = _Message(id, body, self._scheduler.now)

    def is_empty(self) -> bool:
        return not self._messages

    def receive(self, count: int) -> list[tuple[_Message, str]]:
        return self._adversary.request("receive", lambda: self._receive(count))

    def acknowledge(self, leases: Sequence[str]) -> None:
        self._adversary.request(f"acknowledge {len(leases)}", lambda: self._acknowledge(set(leases)), repeats=True)

    def set_visible(self, leases: Sequence[str], seconds: float, what: str) -> None:
        self._adversary.request(f"{what} {len(leases)}", lambda: self._set_visible(set(leases), seconds), repeats=True)

    def _receive(self, count: int) -> list[tuple[_Message, str]]:
        now = self._scheduler.now
        leased = [message for message in self._messages.values() if message.is_leased(now)]
        again = leased[:2] if leased and self._adversary.strikes(Move.DUPLICATE, f"{[m.body for m in leased[:2]]}") else []
        visible = again + [message for message in self._messages.values() if not message.is_leased(now)]
        if self._reorders:
            visible.sort(key=lambda _: self._adversary.chance())
        received = visible[:count]
        if received:
            self._scheduler.note(f"received {[message.body for message in received]}")
        return [(message, self._lease(message)) for message in received]

    def _lease(self, message: _Message) -> str:
        lease = self._scheduler.token()
        message.leases[lease] = self._scheduler.now + self.lease_seconds
        return lease

    def _acknowledge(self, leases: Collection[str]) -> None:
        done = [message for message, _ in self._leased(leases)]
        for message in done:
            del self._messages[message.id]
        self._scheduler.note(f"acknowledged {[message.body for message in done]} by {len(leases)} leases")

    def _set_visible(self, leases: Collection[str], seconds: float) -> None:
        for message, own in self._leased(leases):
            message.leases |= dict.fromkeys(own, self._scheduler.now + seconds)

    def _leased(self, leases: Collection[str]) -> list[tuple[_Message, list[str]]]:
        """The messages that some of ``leases`` still hold, each with those."""
        now, found = self._scheduler.now, []
        for message in self._messages.values():
            if own := [lease for lease, until in message.leases.items() if lease in leases and until > now]:
                found.append((message, own))
        return found


class QueueReceiver(Receiver):
    """Receives from a :class:`Queue`."""

    lease_option = "lease"

    def __init__(self, queue: Queue, scheduler: Any) -> None:
        self._queue, self._scheduler = queue, scheduler
        self.lease_seconds = queue.lease_seconds

    def receive(self, rows: int, seconds: float) -> Messages | None:
        received = self._scheduler.poll(lambda: self._queue.receive(rows), seconds)
        if not received:
            return None
        text, number = pa.large_string(), pa.float64()
        return Messages(
            pa.RecordBatch.from_pydict({"value": [message.body for message, _ in received]}, SCHEMA),
            pa.array([lease for _, lease in received], text),
            pa.array([message.id for message, _ in received], text),
            pa.array([message.published for message, _ in received], number),
        )

    def acknowledge(self, leases: Sequence[str]) -> None:
        self._queue.acknowledge(leases)

    def release(self, leases: Sequence[str]) -> None:
        self._queue.set_visible(leases, 0.0, "release")

    def extend(self, leases: Sequence[str]) -> None:
        self._queue.set_visible(leases, self._queue.lease_seconds, "extend")

    def now(self) -> float:
        return float(self._scheduler.now)


class QueueSource(EpochSource):
    """The messages of :attr:`queue`, an attribute that a subclass sets."""

    name, schema = "queue_model", "value long"
    queue: ClassVar[Queue]

    def receiver(self, schema: pa.Schema | None) -> Receiver:
        return QueueReceiver(self.queue, self.queue._scheduler)


class Shards:
    """Shards that can be read again, until their records are trimmed; a shard can be split."""

    def __init__(self, adversary: Adversary) -> None:
        self._adversary, self._scheduler = adversary, adversary.scheduler
        self.parents: dict[str, str | None] = {"a": None, "b": None}
        self.closed: set[str] = set()
        self._records: dict[str, list[tuple[int, float]]] = {"a": [], "b": []}
        self._turn = 0

    def publish(self, bodies: Sequence[int]) -> None:
        for body in bodies:
            is_open = [name for name in self.parents if name not in self.closed]
            self._turn += 1
            self._records[is_open[self._turn % len(is_open)]].append((body, self._scheduler.now))
        if self._turn % 7 == 0 and len(self.parents) < 8:
            self.split(next(name for name in self.parents if name not in self.closed))

    def split(self, shard: str) -> None:
        self.closed.add(shard)
        for number in "12":
            self.parents[shard + number], self._records[shard + number] = shard, []
        self._scheduler.note(f"shard {shard} is split")

    def listing(self) -> dict[str, str | None]:
        return self._adversary.request("list shards", lambda: dict(self.parents))

    def read(self, shard: str, position: int, end: int | None, count: int) -> Page:
        return self._adversary.request(f"read {shard} from {position}", lambda: self._read(shard, position, end, count))

    def _read(self, shard: str, position: int, end: int | None, count: int) -> Page:
        records = self._records[shard]
        last = min(len(records), position + count, len(records) if end is None else end)
        page = records[position:last]
        is_last = last == len(records)
        return Page(
            pa.RecordBatch.from_pydict({"value": [body for body, _ in page]}, SCHEMA),
            last,
            pa.array([published for _, published in page], pa.float64()),
            is_last=is_last,
            is_finished=is_last and shard in self.closed,
            lag=0.0 if is_last else 1.0,
        )


class ShardCursor(Cursor):
    """Reads from :class:`Shards`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        return self._shards.read(partition, position, end, rows)


class ShardSource(CursorSource):
    """The records of :attr:`shards`, an attribute that a subclass sets."""

    name, schema = "shard_model", "value long"
    shards: ClassVar[Shards]

    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        listing = self.shards.listing()
        ready = [name for name, parent in listing.items() if name not in finished and (parent is None or parent in finished)]
        return Discovery({name: positions.get(name, 0) for name in ready})

    def cursor(self, schema: pa.Schema) -> Cursor:
        return ShardCursor(self.shards)

    def now(self) -> float:
        return float(self.shards._scheduler.now)


@dataclass
class Database:
    """A database whose transactions hold rows, what is staged, and a ledger."""

    adversary: Adversary
    rows: list[str] = field(default_factory=list)
    staged: dict[str, list[str]] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def commit(self, entry: Entry, committables: Sequence[Committable], sink_id: str) -> None:
        self.adversary.request(f"commit batch {entry.batch}", lambda: self._commit(entry, committables, sink_id))

    def _commit(self, entry: Entry, committables: Sequence[Committable], sink_id: str) -> None:
        check_claim(sink_id, entry, self.entries.get(OWNER))
        last = self.entries.get(entry.query)
        if last is not None and last.batch >= entry.batch:
            raise already_committed(entry)
        if lost := [staged for staged in committables if staged.data["attempt"] not in self.staged]:
            raise Fatal(f"{len(lost)} tasks have staged rows that are gone; nothing was written")
        new = [row for staged in committables for row in self.staged.pop(staged.data["attempt"])]
        self.rows += new
        self.entries[entry.query] = entry
        if (claim := entry.ownership()) is not None:
            self.entries[OWNER] = claim
        self.adversary.scheduler.note(f"committed batch {entry.batch}: {new}")


class DatabaseWriter(SinkWriter):
    """Stages the rows of a task in a :class:`Database`."""

    def __init__(self, database: Database, attempt: str) -> None:
        self._database, self._attempt, self._rows = database, attempt, list[str]()

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += map(key_of, batch.to_pylist())

    def prepare(self) -> Committable:
        staged = self._database.staged
        self._database.adversary.request("stage", lambda: staged.update({self._attempt: self._rows}), repeats=True)
        return Committable(len(self._rows), {"attempt": self._attempt})

    def abort(self) -> None:
        self._database.staged.pop(self._attempt, None)


class DatabaseCommitter(GlobalCommitter):
    """Commits in a :class:`Database`."""

    records_claims = True

    def __init__(self, database: Database, sink_id: str) -> None:
        self._database, self._sink_id = database, sink_id

    def last(self, query: str) -> Entry | None:
        return self._database.adversary.request("look at the ledger", lambda: self._database.entries.get(query))

    def queries(self) -> frozenset[str]:
        return frozenset(self._database.entries)

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        self._database.commit(entry, committables, self._sink_id)

    def discard(self, committable: Committable) -> None:
        self._database.staged.pop(committable.data["attempt"], None)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        own = f"{batch.prefix()}-{batch.run_id()}"
        for attempt in [name for name in self._database.staged if name.startswith(batch.prefix())]:
            if failed or not attempt.startswith(own):
                del self._database.staged[attempt]


class DatabaseSink(Sink):
    """The rows of :attr:`database`, an attribute that a subclass sets."""

    name = "database_model"
    database: ClassVar[Database]

    def target(self) -> str:
        return "database"

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        return DatabaseWriter(self.database, batch.attempt())

    def committer(self) -> GlobalCommitter:
        return DatabaseCommitter(self.database, self.sink_id())

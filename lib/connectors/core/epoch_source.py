"""A source over a system that cannot be read twice: the driver plans epochs, tasks receive and record them.

:mod:`connectors.core.epochs` says how the log makes that exactly-once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..storage.location import check_location, storage_of
from .epochs import ID, LEASE, EpochLog, Header, Messages, Receiver, record_content
from .errors import Misconfigured, Problem, StateError
from .leases import EpochLeases, LeaseKeeper
from .options import REQUIRED, Duration, Int, Json, Options, Size, Text, Values
from .planning import reader_share
from .source import Position, ReadLimit, Slice, Source, Split, SplitEnumerator, SplitReader, SplitT

_POLL_SECONDS: Final = 0.05
_NEIGHBOUR_SECONDS: Final = 60.0
"""How long a reader waits for the records of the readers before it, beside the time for which these may receive."""

_LATE: Final = 10_000
"""Messages that were published too late for a run: when an epoch's reader holds so many, it looks no further for others."""

_log = logging.getLogger("connectors")

EPOCH_OPTIONS: Final = Options(
    stateLocation=Text(REQUIRED, meaning="the folder of the epoch log, of this query alone; any storage"),
    storageOptions=Json({}, kind=dict, meaning="fsspec's keys for stateLocation; or objects of them by location"),
    maxRowsPerTrigger=Int(100_000, at_least=1, meaning="messages of an epoch"),
    maxBytesPerTrigger=Size(64 << 20, at_least=1, meaning="bytes of an epoch"),
    maxEpochTime=Duration(10.0, meaning="an epoch receives for so long at most; for no longer than messages are leased"),
    pollInterval=Duration(1.0, meaning="how long an epoch waits for its first message; also between empty epochs"),
    drainTimeout=Duration(
        5.0, meaning="availableNow: the query ends when nothing has come for so long; after a death, for a lease longer"
    ),
)
"""The options of every source that stands on an epoch log."""
ID_OPTIONS: Final = Options(
    deduplicationWindow=Duration(600.0, meaning="how long after its acknowledgement a message is known by its id")
)


@dataclass(frozen=True)
class EpochSplit(Split):
    """What ``reader``, one of ``readers``, receives in ``epoch`` of the log ``log``.

    Messages that were published after ``until`` (seconds since 1970) are for the next run: that of ``availableNow``. For
    ``orphans`` seconds more, dead tasks and drivers may have leases. ``is_repeated``: the task was tried before.
    """

    log: str
    epoch: int
    reader: int
    readers: int
    until: float | None = None
    orphans: float = field(default=0.0, repr=False, compare=False)
    is_repeated: bool = field(default=False, repr=False, compare=False)


class EpochLogSource(Source):
    """What sources over an epoch log have in common: options, and the log."""

    limits = ("rows", "bytes")
    bounded = False

    @classmethod
    def known_options(cls) -> Options:
        return super().known_options() | EPOCH_OPTIONS | cls.options

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_location("stateLocation", values["stateLocation"], values["storageOptions"])

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or 1)

    def begin(self) -> None:
        """A new query begins, on the driver: makes what it needs in the system, such as a consumer group. May come twice."""

    def resume(self) -> None:
        """A later run of the query begins, on the driver: makes anew what :meth:`end` has removed."""

    def end(self) -> None:
        """A run of the query ends, on the driver. Not called when the driver is killed."""

    def log(self) -> EpochLog:
        """The log in ``stateLocation``."""
        return EpochLog(storage_of(self.values["stateLocation"], self.values["storageOptions"]), self.name)


class EpochSource(EpochLogSource):
    """A source over a system that cannot be read twice. A subclass sets ``name`` and ``schema``, and makes a receiver."""

    @classmethod
    def known_options(cls) -> Options:
        return super().known_options() | ID_OPTIONS

    @abstractmethod
    def receiver(self, schema: pa.Schema | None) -> Receiver:
        """A new receiver of rows that have at least the columns of ``schema``; ``None`` on the driver."""

    def enumerator(self) -> EpochEnumerator:
        return EpochEnumerator(self)

    def reader(self, schema: pa.Schema) -> EpochReader:
        return EpochReader(self, schema)


class EpochLogEnumerator(SplitEnumerator[SplitT]):
    """The position is ``epoch``, the number of the last one, and ``log``, the id of its log."""

    def __init__(self, source: EpochLogSource) -> None:
        self.log = source.log()
        self._begin, self._resume, self._end = source.begin, source.resume, source.end
        self._has_begun = False
        self._poll_interval: float = source.values["pollInterval"]
        self._newest: int | None = None
        self._newest_at = -math.inf
        """When this run has first looked behind its newest epoch. The clocks of tasks are not compared with the driver's."""

    @abstractmethod
    def acknowledge(self, last: int) -> None:
        """Spark has committed the epochs up to ``last``. May be called again."""

    @abstractmethod
    def is_empty(self, until: float | None) -> bool | None:
        """True if there is nothing to receive; ``None`` where an epoch has to look."""

    def start(self) -> Position:
        log = self.log.begin()
        self._begin()
        self._has_begun = True
        return {"epoch": 0, "log": log}

    def head(self) -> float | None:
        return None

    def freeze(self) -> float:
        """The moment after which a message is too new for this run."""
        return time.time()

    def advance(self, at: Position, head: float | None, limit: ReadLimit) -> Position:
        self.log.check(at["log"])
        self.resume()
        self.acknowledge(at["epoch"])
        after: Position = {"epoch": at["epoch"] + 1, "log": at["log"]}
        if recorded := self.log.headers(at["epoch"] + 1):  # an older checkpoint was restored, and numPartitions may be another
            return {**after, "readers": recorded[0].readers}
        is_done = self._is_done(at, head, self.log.headers(at["epoch"]))
        return at if is_done else {**after, **({} if head is None else {"until": head})}

    def resume(self) -> None:
        """Before the first plan of a run."""
        if not self._has_begun:
            self._resume()
            self._has_begun = True

    def _is_done(self, at: Position, until: float | None, headers: Sequence[Header]) -> bool:
        """True if there is nothing to receive for now. An epoch of an earlier run, read in this one, does not say so."""
        epoch = at["epoch"]
        is_of_run = bool(headers) and until is not None and at.get("until") == until
        has_rows = any(header.rows for header in headers)
        if self._newest not in (None, epoch):
            self._newest_at = time.monotonic()
        self._newest = epoch
        if is_of_run and not has_rows and all(header.is_dry for header in headers) and any(header.late for header in headers):
            return True
        is_empty = self.is_empty(until)
        if is_empty is not None:
            return is_empty
        if is_of_run and all(header.is_complete for header in headers):
            return True
        if not headers or has_rows or any(header.finished for header in headers):  # which may have children
            return False
        if until is not None:
            return is_of_run and all(header.is_dry for header in headers)
        return time.monotonic() - self._newest_at < self._poll_interval

    def committed(self, at: Position) -> None:
        self.acknowledge(at["epoch"])

    def stop(self) -> None:
        self._end()


class EpochEnumerator(EpochLogEnumerator[EpochSplit]):
    """Plans epochs of a :class:`Receiver`, extends the leases of their messages and acknowledges them."""

    def __init__(self, source: EpochSource) -> None:
        super().__init__(source)
        self.source = source
        self._receiver: Receiver | None = None
        self._keeper: LeaseKeeper | None = None
        self._until: float | None = None
        """When the messages of this run end."""
        self._planned = self._seen = -1
        """The newest epochs that this run has planned, and has seen recorded."""
        self._orphaned_until = -math.inf
        """When the last lease has ended that a dead task or driver has left, and what comes again has come."""
        self._orphans = 0.0
        """For how long that was to last when the newest epoch was begun."""
        self._fresh = -1
        """The epoch that is received under this run, so that its leases were extended since, if the keeper was in time."""
        self._acknowledged = -1

    @property
    def receiver(self) -> Receiver:
        """The driver's receiver, opened when it is first needed."""
        if self._receiver is None:
            receiver = self.source.receiver(None)
            receiver.open()
            longest, lease = self.source.values["maxEpochTime"], receiver.lease_seconds
            if lease is not None and longest > lease:
                receiver.close()
                text = f"is {longest:g}s, but messages are leased for {lease:g}s, and come again while an epoch receives. "
                problem = Problem("maxEpochTime", text + f"Give {lease:g}s or less, or lease messages for longer.")
                raise Misconfigured(f"connectors.{self.source.name}", [problem])
            self._receiver = receiver
        return self._receiver

    def freeze(self) -> float:
        self._until = self.receiver.now()
        return self._until

    def advance(self, at: Position, head: float | None, limit: ReadLimit) -> Position:
        end = super().advance(at, head, limit)
        self._planned = end["epoch"]
        return end

    def _is_done(self, at: Position, until: float | None, headers: Sequence[Header]) -> bool:
        late = [lease for header in headers for lease in header.late]
        if late and self._keeper is not None and at.get("until") == until:
            self._keeper.hold(late)
        elif late and self.receiver.lease_seconds is not None and at["epoch"] != self._seen:  # too late for an earlier run
            with contextlib.suppress(Exception):  # the leases end by themselves, or have ended
                self.receiver.release(late)
        orphans = max((header.orphans for header in headers), default=0.0)
        if at["epoch"] != self._seen and orphans > self._orphans:
            self._await_orphans(orphans)
        self._seen = at["epoch"]
        if until is not None and time.monotonic() < self._orphaned_until:
            return False
        return super()._is_done(at, until, headers)

    def _await_orphans(self, seconds: float) -> None:
        """Lets the run go on for ``seconds`` at least, within which the system gives again what the dead have received."""
        now = time.monotonic()
        if self._until is not None and self._orphaned_until < now:
            text = "connectors.%s: a task or a driver died. What it had received comes again when its leases end: %s %g s"
            _log.warning(text, self.source.name, "the query waits up to", seconds)
        self._orphaned_until = max(self._orphaned_until, now + seconds)

    def is_empty(self, until: float | None) -> bool | None:
        pending = self.receiver.pending()
        return None if pending is None else not pending and (until is None or self._stays_empty())

    def _stays_empty(self) -> bool:
        end = time.monotonic() + self.source.values["drainTimeout"]
        while time.monotonic() < end:
            if self.receiver.pending():
                return False
            time.sleep(min(_POLL_SECONDS, max(0.0, end - time.monotonic())))
        return True

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        (self.log.check if start["epoch"] else self.log.claim)(end["log"])
        self.log.check_retained(end["epoch"])
        self.resume()
        self.acknowledge(start["epoch"])
        epoch, readers = end["epoch"], _readers(end, parallelism)
        if not self.log.readers(epoch):
            self._fresh = epoch
        lease = self.receiver.lease_seconds
        if lease is None:
            return super().slices(start, end, parallelism)
        if epoch != self._planned:  # a driver that died has planned it
            self._await_orphans(lease + self.source.values["drainTimeout"])
        if self._keeper is None:
            self._keeper = LeaseKeeper(self.source, lease)
            self._keeper.finalizer = weakref.finalize(self, self._keeper.end)  # a driver does not always close its planner
        if self._keeper.epoch is None or self._keeper.epoch.epoch != epoch:
            is_of_run = self._until is not None and end.get("until") == self._until
            self._keeper.epoch = EpochLeases(epoch, readers, holds_late=is_of_run)
        self._orphans = max(0.0, self._orphaned_until - time.monotonic())
        return [replace(part, detail=self._orphans) for part in super().slices(start, end, parallelism)]

    def splits_of(self, part: Slice) -> Iterator[EpochSplit]:
        for split in super().splits_of(part):
            yield replace(split, orphans=part.detail or 0.0, is_repeated=part.retried)

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[EpochSplit]:
        for epoch in range(start["epoch"] + 1, end["epoch"] + 1):
            for reader in range(readers := _readers(end, parallelism)):
                yield EpochSplit(end["log"], epoch, reader, readers, end.get("until"))

    def stop(self) -> None:
        self._stop_keeper()
        super().stop()

    def close(self) -> None:
        self._stop_keeper()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def acknowledge(self, last: int) -> None:
        if last <= self._acknowledged:
            return
        own = None if self._keeper is None else self._keeper.epoch
        if own is not None and own.epoch <= last:
            own.is_over = True
        for epoch in self.log.unacknowledged(last):
            leases, age = self.log.leases(epoch)
            if leases:
                self.receiver.acknowledge(leases)
            self.log.mark_acknowledged(epoch, self._window(epoch, age, own), self.receiver.settled())
        if self._keeper is not None and own is not None and own.is_over:
            self._keeper.epoch = None
        self.log.delete_old(last)
        self._acknowledged = last

    def _window(self, epoch: int, age: float, own: EpochLeases | None) -> float:
        """How long the ids of ``epoch`` are known. Its leases may have ended, so that its messages come again some time.

        The leases were ``age`` seconds old when they were recorded, and at most as old as the longest pause when they were
        extended after that.
        """
        window, lease = float(self.source.values["deduplicationWindow"]), self.receiver.lease_seconds
        if lease is None:
            return window
        if own is not None and own.epoch == epoch == self._fresh and age + own.longest_pause() <= lease:
            return window
        return max(window, self.receiver.retention_seconds)

    def _stop_keeper(self) -> None:
        """Ends the extension of leases, and gives back the messages that are too late for this run."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with contextlib.suppress(Exception):  # the leases end by themselves
                if late := keeper.stop():
                    self.receiver.release(late)


def _readers(end: Position, parallelism: int) -> int:
    """How many readers an epoch has: as many as when it was planned first, for a sink may have its rows."""
    return int(end.get("readers", parallelism))


class EpochReader(SplitReader[EpochSplit]):
    """Receives an epoch and records it; hands on what is recorded, whoever has recorded it."""

    atomic = True

    def __init__(self, source: EpochSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema
        self.log = source.log()
        self.duplicates = 0
        self._receiver: Receiver | None = None
        self._has_failed = False

    def read(self, split: EpochSplit) -> Iterator[pa.RecordBatch]:
        record = self.log.table(split.epoch, split.reader)
        if record is None:
            self.log.check(split.log)
            record = self._received(split)
        else:
            self.log.check_retained(split.epoch)  # a late attempt may have put it where the epoch was deleted
        header, table = record
        self.duplicates = header.duplicates
        yield from table.select(self.schema.names).cast(self.schema).to_batches()

    def counts(self) -> Mapping[str, int]:
        return {"duplicates": self.duplicates} if self.duplicates else {}

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _received(self, split: EpochSplit) -> tuple[Header, pa.Table]:
        """The record of ``split``, put by this reader, or by another attempt that was faster."""
        self.log.check_retained(split.epoch)
        receiver = self._opened()
        epoch = _ReceivedEpoch(self.source.values, split, receiver)
        try:
            epoch.receive(self.awake)
            epoch.leave_out_known(self.log.known_ids(split.epoch, split.log), self.log.settled())
            if (ids := self._ids_of_neighbours(split)) is None:
                epoch.release()
                return Header(0, time.time()), self.schema.empty_table()
            epoch.leave_out(ids)
            header, table = epoch.record(self.schema, is_repeated=split.is_repeated or self._has_failed)
            is_first = self.log.put(split.epoch, split.reader, record_content(table, header))
        except BaseException:
            epoch.release()
            self._has_failed = True  # an answer with messages may be lost, or the system was away
            raise
        try:
            self.log.check(split.log)
        except StateError:  # after an outage of the storage, in contrast, the record counts
            epoch.release()
            raise
        if is_first:
            if receiver.lease_seconds is None:
                epoch.release_late()
            return header, table
        epoch.release()
        record = self.log.table(split.epoch, split.reader)
        if record is None:
            raise StateError(
                f"the record of epoch {split.epoch} was deleted while it was read, in {self.log.storage.root}",
                way_out="let no other query use this stateLocation",
            )
        return record

    def _opened(self) -> Receiver:
        if self._receiver is None:
            receiver = self.source.receiver(self.schema)
            receiver.open()
            self._receiver = receiver
        return self._receiver

    def _ids_of_neighbours(self, split: EpochSplit) -> set[str] | None:
        """The ids that the readers before this one have recorded for the epoch: a message may have come to both.

        ``None`` where the epoch was planned a second time, by an older checkpoint and with another ``numPartitions``, and the
        other plan's readers have recorded it: nobody would read what this one records, or the sink has the epoch without it.
        """
        ids: set[str] = set()
        seconds = _NEIGHBOUR_SECONDS + split.orphans + self.source.values["maxEpochTime"]
        until = time.monotonic() + seconds
        for reader in range(split.reader):
            while (table := self.log.table(split.epoch, reader, (ID,))) is None:
                if self.awake.wait(_POLL_SECONDS) or time.monotonic() > until:
                    raise StateError(
                        f"reader {reader} of epoch {split.epoch} has recorded nothing for {seconds:g} s",
                        way_out="give Spark as many free slots as the source has numPartitions",
                    )
            if table[0].readers != split.readers:
                return None
            ids.update(filter(None, table[1][ID].to_pylist()))
        return ids


class _ReceivedEpoch:
    """What one reader has received of an epoch, before it is recorded."""

    def __init__(self, values: Values, split: EpochSplit, receiver: Receiver) -> None:
        self._values = values
        self._split = split
        self._receiver = receiver
        self._leases: list[pa.Array] = []
        self._parts: list[Messages] = []
        self._ids: set[str] = set()
        self._rows = self._bytes = self._duplicates = 0
        self._is_dry = False
        self._lease = receiver.lease_seconds or 0.0
        self._patience = 0.0 if split.until is None else min(split.orphans, self._lease / 2)
        """How long this reader waits for its first message. Another one may hold messages meanwhile."""
        self._began, self._received = time.monotonic(), math.inf
        """When this reader has begun, and when the call that gave it its first messages: no lease is older."""
        self._duplicate_leases: list[str] = []
        self._late_leases: list[str] = []

    def receive(self, awake: threading.Event) -> None:
        """Takes messages until a limit is reached or none comes."""
        values, split = self._values, self._split
        share = reader_share(values["maxRowsPerTrigger"], split.reader, split.readers)
        wait = values["pollInterval"] if split.until is None else values["drainTimeout"]
        end = self._began + max(self._patience, wait)
        while self._rows < share and self._bytes < values["maxBytesPerTrigger"] and not awake.is_set():
            began = time.monotonic()
            left = end - began
            messages = self._receiver.receive(share - self._rows, min(wait, left)) if left > 0 else None
            if messages is not None:
                if not self._leases:
                    self._received, end = began, began + values["maxEpochTime"]
                self._leases.append(messages.leases)
                self._add(self._on_time(messages))
            if (messages is None and (self._rows or not self._patience or left <= wait)) or len(self._late_leases) >= _LATE:
                self._is_dry = True
                return
            if self._rows or not self._patience:
                wait = _POLL_SECONDS

    def leave_out_known(self, known: pa.ChunkedArray, settled: str | None = None) -> None:
        """Drops the messages with these ids, of epochs that Spark has committed, and acknowledges them once more.

        Also those with ids up to ``settled``, whose own ids may be forgotten.
        """
        ids = [part.ids.cast(pa.large_string()) for part in self._parts if part.ids is not None]
        if not ids:
            return
        is_known = pc.is_in(pa.concat_arrays(ids), value_set=known)
        if settled is not None:
            is_known = pc.or_(is_known, pc.and_(pc.less_equal(pa.concat_arrays(ids), settled), self._are_old()))
        leases: list[str] = []
        for number, part in enumerate(self._parts):
            mask, is_known = is_known[: part.rows.num_rows], is_known[part.rows.num_rows :]
            leases += part.leases.filter(mask).to_pylist()
            self._parts[number] = part.take(pc.invert(mask))
        if leases:
            self._duplicates += len(leases)
            self._receiver.acknowledge(leases)

    def _are_old(self) -> pa.Array:
        """Which messages are so old that their ids may be forgotten: true unless their time says otherwise.

        The id of a younger message would be known if it had come before. It is new, and has a low id because a server with a
        late clock has taken over.
        """
        since = self._receiver.now() - self._values["deduplicationWindow"] / 2
        parts = [part for part in self._parts if part.ids is not None]
        times = [pa.nulls(part.rows.num_rows, pa.float64()) if part.published is None else part.published for part in parts]
        return pc.fill_null(pc.less(pa.concat_arrays(times), since), True)

    def leave_out(self, ids: set[str]) -> None:
        """Drops the messages with these ids, which other readers have recorded."""
        if ids:
            self._parts = [self._filtered(part, [name not in ids for name in _names(part)]) for part in self._parts]

    def record(self, schema: pa.Schema, *, is_repeated: bool) -> tuple[Header, pa.Table]:
        """The record of all this: the rows with ids and leases, and what it says of itself."""
        columns = pa.schema([*schema, pa.field(ID, pa.large_string()), pa.field(LEASE, pa.large_string())])
        tables = [_with_columns(part, columns) for part in self._parts if part.rows.num_rows]
        table = pa.concat_tables(tables) if tables else columns.empty_table()
        now = time.monotonic()
        orphans = max(0.0, self._split.orphans - (now - self._began))
        if is_repeated and self._lease:
            orphans = max(orphans, self._lease + self._values["drainTimeout"])
        header = Header(
            table.num_rows,
            time.time(),
            self._is_dry,
            tuple(self._late_leases),
            self._duplicates,
            tuple(self._duplicate_leases),
            readers=self._split.readers,
            age=max(0.0, now - self._received),
            orphans=orphans,
        )
        return header, table

    def release_late(self) -> None:
        """Gives back what was published too late for this run, where no lease would end by itself."""
        if self._late_leases:
            self._receiver.release(self._late_leases)

    def release(self) -> None:
        """Gives everything back to the system, as far as it can be reached."""
        with contextlib.suppress(Exception):  # the leases end by themselves
            if leases := [lease for part in self._leases for lease in part.to_pylist()]:
                self._receiver.release(leases)

    def _on_time(self, messages: Messages) -> Messages:
        """``messages`` without those that were published too late for this run."""
        if messages.published is None or self._split.until is None:
            return messages
        late = pc.fill_null(pc.greater(messages.published, self._split.until), False)
        self._late_leases += messages.leases.filter(late).to_pylist()
        return messages.take(pc.invert(late))

    def _add(self, messages: Messages) -> None:
        if messages.ids is not None:
            messages = self._filtered(messages, [self._is_new(name) for name in _names(messages)])
        if messages.rows.num_rows:
            self._parts.append(messages)
            self._rows += messages.rows.num_rows
            self._bytes += messages.rows.nbytes

    def _is_new(self, name: str | None) -> bool:
        """True for an id that this reader has not received in this epoch."""
        if name is None:
            return True
        count = len(self._ids)
        self._ids.add(name)
        return len(self._ids) > count

    def _filtered(self, messages: Messages, mask: list[bool]) -> Messages:
        """The messages where ``mask`` is true. The others are duplicates, acknowledged with the epoch."""
        if all(mask):
            return messages
        duplicates = messages.take(pc.invert(pa.array(mask)))
        self._duplicates += len(duplicates.leases)
        self._duplicate_leases += duplicates.leases.to_pylist()
        return messages.take(pa.array(mask))


def _names(messages: Messages) -> list[str | None]:
    names: list[str | None] = [None] * messages.rows.num_rows if messages.ids is None else messages.ids.to_pylist()
    return names


def _with_columns(messages: Messages, columns: pa.Schema) -> pa.Table:
    count = messages.rows.num_rows
    ids = pa.nulls(count, pa.large_string()) if messages.ids is None else messages.ids
    rows = messages.rows.select(columns.names[:-2])
    return pa.table([*rows.columns, ids, messages.leases], names=columns.names).cast(columns)

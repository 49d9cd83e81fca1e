"""The reader of a system that cannot be read twice: it receives its part of an epoch and records it."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..ground import machine
from ..ground.errors import StateError
from ..ground.options import Values
from .epochs import ID, LEASE, Header, Messages, Receiver, record_content
from .planning import reader_share
from .source import Split, SplitReader

if TYPE_CHECKING:
    from .epoch_source import EpochSource

POLL_SECONDS: Final = 0.05
_NEIGHBOUR_SECONDS: Final = 60.0
"""The seconds that a reader waits for the records of the readers before it, in addition to the time they may receive."""

_LATE: Final = 10_000
"""A reader that holds so many messages that are too late for the run looks for no more in this epoch.

With ``stopAt`` the next epoch does: the backlog may have more of them, and earlier ones that come again stand behind them.
"""


@dataclass(frozen=True)
class EpochSplit(Split):
    """The share of ``reader``, one of ``readers``, in ``epoch`` of the log ``log``: the messages that it receives.

    Under ``availableNow``, messages published after ``until`` (seconds since 1970) are for the next run. Dead tasks and
    drivers may hold leases for ``orphans`` more seconds. ``is_repeated``: Spark has tried this task before.
    """

    log: str
    epoch: int
    reader: int
    readers: int
    until: float | None = None
    orphans: float = field(default=0.0, repr=False, compare=False)
    is_repeated: bool = field(default=False, repr=False, compare=False)


class EpochReader(SplitReader[EpochSplit]):
    """Receives an epoch and records it; yields the rows of the record, whoever has put it."""

    atomic = True

    def __init__(self, source: EpochSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema
        self.log = source.log()
        self.duplicates = 0
        self._receiver: Receiver | None = None
        self._has_failed = False
        self._undecided: list[tuple[_ReceivedEpoch, Header, pa.ChunkedArray]] = []
        """Received messages whose record this reader perhaps failed to put, with the header and leases of that record."""

    def read(self, split: EpochSplit) -> Iterator[pa.RecordBatch]:
        record = self.log.recorded(split.epoch, split.reader)
        self.log.check(split.log)  # another query that began at the same moment may have put the record
        if record is None:
            record = self._received(split)
        else:
            self.log.check_retained(split.epoch)  # a late attempt may have put it where the epoch was deleted
        header, table = record
        self._release_undecided(header, table)
        self.duplicates = header.duplicates
        yield from table.select(self.schema.names).cast(self.schema).to_batches()

    def counts(self) -> Mapping[str, int]:
        return {"duplicates": self.duplicates} if self.duplicates else {}

    def close(self) -> None:
        if self._receiver is not None:
            # Nobody else releases leases without an end. If the record counts after all, the ids tell its messages.
            for epoch, _, _ in self._undecided if self._receiver.lease_seconds is None else ():
                epoch.release()
            self._receiver.close()
            self._receiver = None

    def _received(self, split: EpochSplit) -> tuple[Header, pa.Table]:
        """The record of ``split``, put by this reader or by a faster attempt."""
        self.log.check_retained(split.epoch)
        receiver = self._opened()
        epoch = _ReceivedEpoch(self.source.values, split, receiver)
        try:
            epoch.receive(self.awake)
            epoch.leave_out_known(self.log.known_ids(split.epoch, split.log), self.log.settled())
            if (ids := self._ids_of_neighbours(split)) is None:
                epoch.release()
                return Header(0, machine.time()), self.schema.empty_table()
            epoch.leave_out(ids)
            header, table = epoch.record(self.schema, is_repeated=split.is_repeated or self._has_failed)
            content = record_content(table, header)
        except BaseException:
            epoch.release()
            self._has_failed = True  # an answer with messages may be lost, or the system was away
            raise
        try:
            is_first = self.log.put(split.epoch, split.reader, content)
            self.log.check(split.log)
        except StateError:  # the record does not count
            epoch.release()
            raise
        except BaseException:  # the record may exist and count: then these leases acknowledge the epoch
            self._undecided.append((epoch, header, table[LEASE]))
            self._has_failed = True
            raise
        if is_first:
            epoch.release_late()
            return header, table
        epoch.release()
        record = self.log.table(split.epoch, split.reader)
        self.log.check_retained(split.epoch)
        if record is None:
            raise StateError(
                f"the record of epoch {split.epoch} was deleted while it was read, in {self.log.storage.root}",
                way_out="let no other query use this stateLocation",
            )
        return record

    def _release_undecided(self, header: Header, table: pa.Table) -> None:
        """Releases messages received for other attempts at the record, now that the record exists and cannot change."""
        for epoch, own, leases in self._undecided:
            if header == own and table[LEASE].equals(leases):
                epoch.release_late()
            else:
                epoch.release()
        self._undecided.clear()

    def _opened(self) -> Receiver:
        if self._receiver is None:
            receiver = self.source.receiver(self.schema)
            receiver.open()
            self._receiver = receiver
        return self._receiver

    def _ids_of_neighbours(self, split: EpochSplit) -> set[str] | None:
        """The ids that the readers before this one have recorded for the epoch: two readers may get the same message.

        ``None`` if the readers of another plan have recorded the epoch, because an older checkpoint planned it again with
        another ``numPartitions``. Nobody would read this reader's record, or the sink has the epoch without it.
        """
        ids: set[str] = set()
        values = self.source.values
        seconds = _NEIGHBOUR_SECONDS + max(split.orphans, _first_wait(values, split)) + values["maxEpochTime"]
        until = machine.monotonic() + seconds
        for reader in range(split.reader):
            while (table := self.log.table(split.epoch, reader, (ID,))) is None:
                if self.awake.wait(POLL_SECONDS) or machine.monotonic() > until:
                    raise StateError(
                        f"reader {reader} of epoch {split.epoch} has recorded nothing for {seconds:g} s",
                        way_out="give Spark as many free slots as the source has numPartitions",
                    )
            if table[0].readers != split.readers:
                return None
            ids.update(filter(None, table[1][ID].to_pylist()))
        return ids


class _ReceivedEpoch:
    """The messages that one reader has received in an epoch, before it records them."""

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
        """The seconds that this reader waits for its first message; others may hold messages while they wait for it."""
        self._began, self._first_receipt = machine.monotonic(), math.inf
        """The monotonic times of this reader's start, and of the call that gave the first messages: no lease is older."""
        self._duplicate_leases: list[str] = []
        self._late_leases: list[str] = []

    def receive(self, awake: threading.Event) -> None:
        """Takes messages until it reaches a limit or none comes."""
        values, split = self._values, self._split
        share = reader_share(values["maxRowsPerTrigger"], split.reader, split.readers)
        wait = _first_wait(values, split)
        end = self._began + max(self._patience, wait)
        wait = min(wait, self._lease / 3 or wait)  # a lease may be as old as the call that gave it
        while self._rows < share and self._bytes < values["maxBytesPerTrigger"] and not awake.is_set():
            began = machine.monotonic()
            left = end - began
            messages = self._receiver.receive(share - self._rows, min(wait, left)) if left > 0 else None
            if messages is not None:
                self._first_receipt = min(self._first_receipt, began)
                self._leases.append(messages.leases)
                self._add(self._on_time(messages))
                last = self._first_receipt + values["maxEpochTime"]
                wait, end = (POLL_SECONDS, last) if self._rows else (wait, min(end, last))
            if (messages is None and (self._rows or left <= wait)) or len(self._late_leases) >= _LATE:
                looks_on = messages is not None and bool(self._lease) and values.get("stopAt") is not None
                self._is_dry = not (self._rows or looks_on) or (messages is None and left > 0)
                return

    def leave_out_known(self, known: pa.ChunkedArray, settled: str | None = None) -> None:
        """Drops the messages with ``known`` ids, which Spark has committed in earlier epochs, and acknowledges them again.

        It does the same with old messages whose ids are not above ``settled``: their own ids may be forgotten.
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
        """A mask of the messages so old that their ids may be forgotten; true for messages without a time.

        If a younger message had come before, its id would be known. So it is new, and its id is low because a server whose
        clock is behind has taken over.
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
        """The record of these messages: its header, and the rows with ids and leases."""
        columns = pa.schema([*schema, pa.field(ID, pa.large_string()), pa.field(LEASE, pa.large_string())])
        tables = [_with_columns(part, columns) for part in self._parts if part.rows.num_rows]
        table = pa.concat_tables(tables) if tables else columns.empty_table()
        now = machine.monotonic()
        orphans = max(0.0, self._split.orphans - (now - self._began))
        if is_repeated and self._lease:
            orphans = max(orphans, self._lease + self._values["drainTimeout"])
        header = Header(
            table.num_rows,
            machine.time(),
            self._is_dry,
            tuple(self._late_leases),
            self._duplicates,
            tuple(self._duplicate_leases),
            readers=self._split.readers,
            age=max(0.0, now - self._first_receipt),
            orphans=orphans,
        )
        return header, table

    def release_late(self) -> None:
        """Releases the messages that are too late for this run if their leases would never end."""
        if self._late_leases and not self._lease:
            self._receiver.release(self._late_leases)

    def release(self) -> None:
        """Releases all messages, if the system can be reached. Does nothing after their leases: others may hold them."""
        if self._lease and machine.monotonic() - self._first_receipt >= self._lease:
            return
        with contextlib.suppress(Exception):  # the leases end by themselves
            if leases := [lease for part in self._leases for lease in part.to_pylist()]:
                self._receiver.release(leases)

    def _on_time(self, messages: Messages) -> Messages:
        """``messages`` without those that are too late for this run."""
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
        """The messages where ``mask`` is true. The others are duplicates; they are acknowledged with the epoch."""
        if all(mask):
            return messages
        duplicates = messages.take(pc.invert(pa.array(mask)))
        self._duplicates += len(duplicates.leases)
        self._duplicate_leases += duplicates.leases.to_pylist()
        return messages.take(pa.array(mask))


def _first_wait(values: Values, split: EpochSplit) -> float:
    """The seconds that a reader waits for its first message if no task or driver has died."""
    return max(POLL_SECONDS, float(values["pollInterval"] if split.until is None else values["drainTimeout"]))


def _names(messages: Messages) -> list[str | None]:
    names: list[str | None] = [None] * messages.rows.num_rows if messages.ids is None else messages.ids.to_pylist()
    return names


def _with_columns(messages: Messages, columns: pa.Schema) -> pa.Table:
    count = messages.rows.num_rows
    ids = pa.nulls(count, pa.large_string()) if messages.ids is None else messages.ids
    rows = messages.rows.select(columns.names[:-2])
    return pa.table([*rows.columns, ids, messages.leases], names=columns.names).cast(columns)

"""Exactly-once from systems that cannot tell what a range holds before it is read: queues, subscriptions, shards.

An offset is the number of an *epoch*. The tasks that read an epoch record it in the *epoch log* before Spark sees a row of it:
its rows, if the system cannot be read again, else the positions at which the epoch ends::

    <stateLocation>/log.json                          the id of the log, put by the first query that claimed the folder
    <stateLocation>/starts/<id>                       a query that began here, with offsets of log <id>; deleted by a claim
    <stateLocation>/epochs/<epoch>/<reader>.arrow     the record of one reader: rows, message ids, leases; or positions
    <stateLocation>/epochs/<epoch>/plan.json          each reader's partitions and start positions, if there are partitions
    <stateLocation>/epochs/<epoch>/<name>.rows        rows that the driver has read, if the plan names them
    <stateLocation>/ids/<epoch>-<end>.arrow           the ids of an epoch whose rows are deleted; kept until <end> at least
    <stateLocation>/floor/<epoch>                     epochs up to this one are deleted, or soon will be

* A record is put if absent. A reader that loses the put releases its messages and reads the record of the winner.
* A replay reads the log alone, or the same range of the system again.
* Neither an older checkpoint nor a late copy of a task can read or record a deleted epoch again.
* The driver acknowledges an epoch when Spark plans the next batch, since Spark has committed the epoch by then. The next start
  acknowledges the last epoch of a run. If the system redelivers a message meanwhile, its id tells, and it is left out.
* Messages that are too late for a run of ``availableNow`` stay leased until the run ends, so that the system gives each message
  once to a run. A record has those leases. It also says how long dead tasks may hold others; the run does not end before.
* If ids only grow, the mark of an acknowledgement has the id up to which every message is done (:meth:`Receiver.settled`). A
  server restored from an older copy may redeliver messages below it: they are left out even after the log has forgotten their
  ids. The log does not forget ids above it.

An author writes a :class:`Receiver` with three methods and an :class:`~connectors.core.epoch_source.EpochSource` that makes it.
For a system that can be read again it is a :class:`~connectors.core.cursors.Cursor` with one method and a ``CursorSource``.
"""

from __future__ import annotations

import contextlib
import io
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..ground import machine
from ..ground.errors import Misconfigured, Problem, StateError
from ..ground.state import dumps, loads, versioned
from ..storage.base import Storage

ID, LEASE = "_connectors_id", "_connectors_lease"
"""The columns that a record has in addition to those of the rows."""

HISTORY: Final = 10
"""The number of acknowledged epochs that keep their rows, in case an older checkpoint is restored."""

_LOG: Final = "log.json"
_STARTS: Final = "starts"
_NO_IDS: Final = pa.chunked_array([], pa.large_string())
_HEADER: Final = b"connectors"
_TUPLES: Final = ("late", "leases", "finished")
_lists = machine.PerProcess(dict[str, dict[str, pa.ChunkedArray]])
"""The lists of message ids that this process has read, by log and then by file name."""
_log = logging.getLogger("connectors")


@dataclass(frozen=True)
class Messages:
    """Messages that a receiver has taken from its system: ``rows``, and the lease of each row's message.

    Any process can acknowledge, release or extend messages by their ``leases``. ``ids`` recognize a message that the system
    delivers again; ``published`` is in seconds since 1970. Both are ``None`` if the system does not know them.
    """

    rows: pa.RecordBatch
    leases: pa.Array
    ids: pa.Array | None = None
    published: pa.Array | None = None

    def take(self, mask: pa.Array) -> Messages:
        """The messages where ``mask`` is true."""
        ids, published = (None if column is None else column.filter(mask) for column in (self.ids, self.published))
        return Messages(self.rows.filter(mask), self.leases.filter(mask), ids, published)


class Receiver(ABC):
    """Takes messages from the system, and acknowledges or releases them. Lives in a task; one more on the driver."""

    lease_seconds: float | None = None
    """The seconds that a lease lasts. ``None``: until the message is acknowledged, so leases need no :meth:`extend`.

    A message that is too late for an ``availableNow`` query is held until the query ends. With ``None`` its lease would outlive
    a dead process. The reader therefore releases it when its epoch is recorded, and it may come again in each epoch.
    """
    lease_option: ClassVar[str | None] = None
    """The source's option that sets ``lease_seconds``; errors name it."""
    retention_seconds: float = 14 * 86400.0
    """The seconds within which the system may redeliver a message if its acknowledgement came after the end of its lease."""

    def open(self) -> None:  # noqa: B027 - a hook, not a duty
        """Makes the client. Called once, before anything else; never in the process that Spark forks tasks from."""

    @abstractmethod
    def receive(self, rows: int, seconds: float) -> Messages | None:
        """Returns at most ``rows`` messages as soon as there are some; ``None`` if none came within ``seconds``."""

    @abstractmethod
    def acknowledge(self, leases: Sequence[str]) -> None:
        """Tells the system to forget these messages. May be called again for the same leases, also expired ones."""

    @abstractmethod
    def release(self, leases: Sequence[str]) -> None:
        """Gives the messages back: the system soon delivers them again."""

    def extend(self, leases: Sequence[str]) -> None:  # noqa: B027
        """Extends the leases to ``lease_seconds`` from now."""

    def pending(self) -> bool | None:
        """Whether messages wait for a receiver; ``None`` if the system does not tell, and only an epoch can find out."""
        return None

    def settled(self) -> str | None:
        """The id up to which the system has delivered every message and has every acknowledgement.

        For systems whose ids grow, also when compared as text. ``None``: an id does not tell which messages came before it.
        """
        return None

    def now(self) -> float:
        """The time by the clock of ``published``, in seconds since 1970."""
        return machine.time()

    def close(self) -> None:  # noqa: B027
        """Frees what :meth:`open` made."""


@dataclass(frozen=True)
class Header:
    """The header of a record: the number of its ``rows``, and the time (``at``, seconds since 1970) when it was put.

    ``is_dry``: the reader stopped because nothing more came for this run. ``late`` has the leases of messages published after
    the start of an ``availableNow`` query, which are released at its end. ``duplicates`` counts the messages left out;
    ``leases`` has those of duplicates within the epoch, acknowledged with it. ``positions`` says where the reader's partitions
    end in this epoch, ``finished`` which of them will never have more, and ``lags`` how many seconds they are behind.
    ``times`` has the times of their next records, or of the last ones read. ``is_complete``: at its end, after the start of an
    ``availableNow`` query, no partition of the reader had more. ``readers`` is the number of the epoch's readers, if it has
    messages. ``age`` is the seconds since the first lease began. Dead tasks and drivers may hold leases for ``orphans`` more
    seconds.
    """

    rows: int
    at: float
    is_dry: bool = False
    late: tuple[str, ...] = ()
    duplicates: int = 0
    leases: tuple[str, ...] = ()
    positions: Mapping[str, Any] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    lags: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    is_complete: bool = False
    readers: int = 0
    age: float = 0.0
    orphans: float = 0.0

    def text(self) -> bytes:
        lists: dict[str, Any] = {name: list(vars(self)[name]) for name in _TUPLES}
        lists["positions"] = dict(self.positions)
        lists |= {name: {key: round(value, 3) for key, value in vars(self)[name].items()} for name in ("lags", "times")}
        return dumps(versioned(**{**vars(self), **lists})).encode()

    @classmethod
    def of(cls, metadata: Any, name: str) -> Header:
        state = loads((metadata or {}).get(_HEADER, b""), f"the header of {name}")
        fields = {key: state[key] for key in cls.__annotations__ if key in state}
        return cls(**{**fields, **{name: tuple(fields.get(name, ())) for name in _TUPLES}})


class EpochLog:
    """The records of the epochs of one query, in a storage."""

    def __init__(self, storage: Storage, source: str) -> None:
        self.storage = storage
        self.source = source
        self._highest: dict[str, str] = {}

    def begin(self, *, of_driver: bool = False) -> str:
        """Begins the log of a new query and returns its id. The query owns the folder from its :meth:`claim` on.

        ``of_driver``: the driver records an epoch before the engine knows it, so a start that died may have left the first
        epoch. Raises :class:`Misconfigured` if the folder holds the epochs of another query.
        """
        self.storage.check()
        epochs = self.epochs()
        if self._id() or (epochs and not (of_driver and epochs == [1])) or self.storage.names("ids") or self.floor():
            text = f"holds the epoch log of another query: {self.storage.root}. Give each query and checkpoint its own."
            raise Misconfigured(f"connectors.{self.source}", [Problem("stateLocation", text)])
        log_id = machine.token()
        self.storage.put_if_absent(_start(log_id), b"")
        return log_id

    def claim(self, log_id: str) -> None:
        """As :meth:`check`, and takes the folder for the query: after its first offset is recorded, before it reads.

        If two queries or two drivers begin at the same moment, the first to claim the folder owns it.
        """
        self.check(log_id)
        self.storage.put_if_absent(_LOG, dumps(versioned(id=log_id, source=self.source)).encode())
        self.check(log_id)
        self.storage.delete_folder(_STARTS)

    def floor(self) -> int:
        """The last epoch that is deleted, or about to be; 0 if there is none."""
        return max(map(int, self.storage.names("floor")), default=0)

    def check_retained(self, epoch: int) -> None:
        """Raises :class:`StateError` if an older checkpoint or a late copy of a task asks for a deleted epoch."""
        if epoch <= self.floor():
            raise StateError(
                f"epoch {epoch} of {self.storage.root} (stateLocation) is deleted, since later ones are committed",
                way_out="start from the newest checkpoint, or give the query a new checkpoint and a stateLocation of its own",
            )

    def check(self, log_id: str) -> None:
        """Raises :class:`StateError` if the folder belongs to another query, or this query's log was deleted."""
        folder_id = self._id()
        if folder_id != log_id and (folder_id or self.storage.size(_start(log_id)) is None):
            what = "another query's epoch log" if folder_id else "no epoch log: it was deleted"
            raise StateError(
                f"{self.storage.root} (stateLocation) has {what}, so the messages that the checkpoint stands on are not known",
                way_out="restore the folder; or give the query a new checkpoint and a stateLocation of its own: a queue "
                "delivers again what was not acknowledged, any other source begins where its options say",
            )

    def epochs(self) -> list[int]:
        """The epochs that have a folder in the log, in ascending order."""
        return sorted(int(name) for name in self.storage.folders("epochs"))

    def put(self, epoch: int, reader: int, content: bytes) -> bool:
        """Puts the record of a reader; false if one exists already.

        Raises :class:`StateError` if the epoch is deleted: such a record does not count.
        """
        is_first = self.storage.put_if_absent(_record(epoch, reader), content)
        if is_first:
            self.check_retained(epoch)
        return is_first

    def table(self, epoch: int, reader: int, columns: Sequence[str] | None = None) -> tuple[Header, pa.Table] | None:
        """A record, or some of its columns; ``None`` if there is none."""
        name = _record(epoch, reader)
        try:
            return _read(self.storage, name, columns)
        except FileNotFoundError:
            return None

    def recorded(self, epoch: int, reader: int, columns: Sequence[str] | None = None) -> tuple[Header, pa.Table] | None:
        """As :meth:`table`, for a caller that hands on the rows: makes the record durable, in case its writer died first."""
        table = self.table(epoch, reader, columns)
        if table is not None:
            self.make_durable(epoch)
        return table

    def make_durable(self, epoch: int) -> None:
        """Makes the records of ``epoch`` durable, also those that other processes have put."""
        self.storage.sync(folders=[f"epochs/{epoch:020d}"])

    def plan(self, epoch: int) -> dict[str, Any] | None:
        """The plan of ``epoch`` from the first :meth:`put_plan`; ``None`` if there is none."""
        try:
            return loads(self.storage.read(_plan(epoch)), f"the plan of epoch {epoch} in {self.storage.root}")
        except FileNotFoundError:
            return None

    def put_plan(self, epoch: int, plan: Mapping[str, Any]) -> bool:
        """Records the partitions and start positions of each reader of ``epoch``; false if a plan exists already."""
        return self.storage.put_if_absent(_plan(epoch), dumps(versioned(**plan)).encode())

    def put_manifest(self, epoch: int, manifest: Mapping[str, Any]) -> bool:
        """As :meth:`put_plan`, for the rows of ``epoch`` that the driver has read. From then on the epoch exists."""
        return self.put_plan(epoch, manifest)

    def put_rows(self, epoch: int, name: str, rows: pa.Table) -> None:
        """Records rows that the driver has read, under a new name. They count when a plan names them."""
        self.storage.put_if_absent(_rows(epoch, name), record_content(rows, Header(rows.num_rows, machine.time())))

    def rows(self, epoch: int, name: str, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """The record batches ``first`` up to, not including, ``last`` of the rows from :meth:`put_rows`."""
        with self.storage.open(_rows(epoch, name)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(first, last):
                yield reader.get_batch(number)

    def readers(self, epoch: int) -> list[int]:
        """The readers that have put a record of ``epoch``."""
        names = self.storage.names(f"epochs/{epoch:020d}")
        return sorted(int(name.partition(".")[0]) for name in names if name.endswith(".arrow"))

    def headers(self, epoch: int) -> list[Header]:
        """The headers of the records of ``epoch``."""
        tables = (self.table(epoch, reader, ()) for reader in self.readers(epoch))
        return [table[0] for table in tables if table is not None]

    def leases(self, epoch: int) -> tuple[list[str], float]:
        """The leases of all messages of ``epoch``, and how many seconds old they were, at most, when they were recorded."""
        tables = [table for reader in self.readers(epoch) if (table := self.table(epoch, reader, (LEASE,))) is not None]
        own = [lease for _, columns in tables for lease in columns[LEASE].to_pylist()]
        own += [lease for header, _ in tables for lease in header.leases]
        return own, max((header.age for header, _ in tables), default=0.0)

    def is_acknowledged(self, epoch: int) -> bool:
        """True if Spark has committed ``epoch``, so that only an older checkpoint asks for it again."""
        return self.storage.size(_acknowledged(epoch)) is not None

    def known_ids(self, before: int, log_id: str) -> pa.ChunkedArray:
        """The ids of messages in epochs below ``before``. A process reads each list of the log ``log_id`` once."""
        known, lists = _lists().get(log_id, {}), dict[str, pa.ChunkedArray]()
        floor = self.floor()  # below it, a late copy of a task may have put a record, but has released its messages
        for epoch in [epoch for epoch in self.epochs() if floor < epoch < before]:
            for name in [_record(epoch, reader) for reader in self.readers(epoch)]:
                lists[name] = known[name] if name in known else self._ids(name)
        for name in [f"ids/{name}" for name in self.storage.names("ids")]:  # last: another driver may delete epochs meanwhile
            lists[name] = known[name] if name in known else self._ids(name)
        _lists()[log_id] = lists
        return pa.chunked_array([chunk for ids in lists.values() for chunk in ids.chunks], type=pa.large_string())

    def unacknowledged(self, last: int) -> list[int]:
        """The epochs up to ``last`` whose messages are not yet acknowledged."""
        floor = self.floor()
        return [epoch for epoch in self.epochs() if floor < epoch <= last and not self.is_acknowledged(epoch)]

    def mark_acknowledged(self, epoch: int, window: float = 0.0, settled: str | None = None) -> None:
        """Records that the messages of ``epoch`` are acknowledged. The log keeps their ids for ``window`` seconds from now.

        ``settled`` is the receiver's. The mark gets the highest one of all epochs, since a system restored from an older copy
        knows less.
        """
        before = self.settled()
        if settled and before and settled < before:
            text = "connectors.%s: the system knows as acknowledged what is up to %s, and the log what is up to %s: %s"
            why = "it was set back, or is back from an older copy. What comes again is left out; what it lost is not known"
            _log.warning(text, self.source, settled, before, why)
        highest = max(filter(None, (settled, before)), default=None)
        mark = versioned(end=machine.time() + window, **({} if highest is None else {"settled": highest}))
        self.storage.put_if_absent(_acknowledged(epoch), dumps(mark).encode())

    def settled(self) -> str | None:
        """The id up to which every message is acknowledged; ``None`` if ids do not tell."""
        for epoch in reversed(self.epochs()):
            with contextlib.suppress(FileNotFoundError):
                settled: str | None = self._mark(epoch).get("settled")
                return settled
        return None

    def delete_old(self, last: int) -> None:
        """Deletes acknowledged epochs up to ``last``, except the newest :data:`HISTORY`, and message ids whose time is over.

        It makes the ids and the floor durable before it deletes anything, so a death in between leaves no partial list.
        """
        old, floor = [epoch for epoch in self.epochs() if epoch <= last][:-HISTORY], self.floor()
        settled = self.settled()
        for epoch in old:
            if epoch > floor:
                self.keep_ids(epoch, settled)
        if old and old[-1] > floor:
            self.storage.put_if_absent(f"floor/{old[-1]:020d}", b"")
            if floor:
                self.storage.delete(f"floor/{floor:020d}")
        elif old:  # the process that put the floor may have died before it was durable
            self.storage.sync(folders=["floor"])
        for epoch in old:
            self.storage.delete_folder(f"epochs/{epoch:020d}")
        now = machine.time()
        for name in self.storage.names("ids"):
            is_over = float(name.removesuffix(".arrow").partition("-")[2]) < now
            if is_over and not (settled and self._highest_id(name) > settled):
                self.storage.delete(f"ids/{name}")
                self._highest.pop(name, None)

    def _ids(self, name: str) -> pa.ChunkedArray:
        """The ids in a record or a list."""
        try:
            table = _read(self.storage, name, (ID,))[1]
        except FileNotFoundError:  # deleted meanwhile
            table = pa.table({})
        except StateError as damage:
            if not name.startswith("ids/"):
                raise
            _log.warning("a message that comes again may be a second row: %s", damage)
            table = pa.table({})
        column = table[ID] if ID in table.column_names else _NO_IDS
        return column.drop_null()

    def _highest_id(self, name: str) -> str:
        """The highest id of a list. A list stays until :meth:`settled` reaches it, however long a message is held."""
        if name not in self._highest:
            self._highest[name] = pc.max(self._ids(f"ids/{name}")).as_py() or ""
        return self._highest[name]

    def keep_ids(self, epoch: int, settled: str | None) -> None:
        """Puts the ids of an acknowledged ``epoch`` into a list, which outlives its rows, as long as they must be known."""
        lists = [self._ids(_record(epoch, reader)) for reader in self.readers(epoch)]
        ids = pa.chunked_array([chunk for column in lists for chunk in column.chunks], type=pa.large_string())
        try:
            end = float(self._mark(epoch)["end"])
        except FileNotFoundError:  # another driver has deleted the epoch meanwhile, and has kept its ids
            return
        if len(ids) and (end > machine.time() or (settled and pc.max(ids).as_py() > settled)):
            content = record_content(pa.table({ID: ids}), Header(len(ids), machine.time()))
            self.storage.put_if_absent(f"ids/{epoch:020d}-{end:.0f}.arrow", content)

    def _mark(self, epoch: int) -> dict[str, Any]:
        return loads(self.storage.read(_acknowledged(epoch)), "the mark of an acknowledgement")

    def _id(self) -> str:
        """The id of the log in the folder; empty if there is none."""
        try:
            return str(loads(self.storage.read(_LOG), f"the epoch log in {self.storage.root}")["id"])
        except FileNotFoundError:
            return ""



def _start(log_id: str) -> str:
    return f"{_STARTS}/{log_id}"


def _record(epoch: int, reader: int) -> str:
    return f"epochs/{epoch:020d}/{reader:05d}.arrow"


def _plan(epoch: int) -> str:
    return f"epochs/{epoch:020d}/plan.json"


def _rows(epoch: int, name: str) -> str:
    return f"epochs/{epoch:020d}/{name}"


def _acknowledged(epoch: int) -> str:
    return f"epochs/{epoch:020d}/acknowledged.json"


def record_content(table: pa.Table, header: Header) -> bytes:
    """The bytes of a record: an Arrow file with ``header`` in its metadata."""
    return content_of(table.schema, table.to_batches(), header)


def content_of(schema: pa.Schema, batches: Sequence[pa.RecordBatch], header: Header) -> bytes:
    """As :func:`record_content`, with these record batches, also empty ones."""
    sink = io.BytesIO()
    schema = schema.with_metadata({**(schema.metadata or {}), _HEADER: header.text()})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def _read(storage: Storage, name: str, columns: Sequence[str] | None) -> tuple[Header, pa.Table]:
    with storage.open(name) as file:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid as error:
            text = f"the record {name} of an epoch, in {storage.root}, cannot be read: {error}"
            raise StateError(text, way_out="bring the file back from a copy: its messages may be acknowledged") from None
        header, schema = Header.of(reader.schema.metadata, name), reader.schema
        if columns is None:
            return header, reader.read_all()
        indices = [index for column in columns if (index := schema.get_field_index(column)) >= 0]
        if not indices:  # Arrow takes an empty list for all columns
            return header, schema.empty_table() if not columns else schema.empty_table().select([])
    with storage.open(name) as file:
        return header, pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=indices)).read_all()

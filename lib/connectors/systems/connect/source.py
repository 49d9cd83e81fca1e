"""The source of ``connectors.connect``: polls a connector in the planner process, epoch by epoch, into the epoch log."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ...connect.dead_letters import letter_fields
from ...connect.errors import RetriableException
from ...connect.host import SourceHost, TaskRecords
from ...connect.hosts import source_host
from ...connect.plugins import OwnClasses
from ...core import (
    Flag,
    Options,
    Position,
    Problem,
    ReadLimit,
    RecordEmitter,
    Slice,
    Split,
    SplitReader,
    StateError,
    Text,
)
from ...core.datasets import Dataset
from ...core.epoch_source import EpochLogEnumerator, EpochLogSource
from ...core.epochs import EpochLog
from ...core.letter_files import LetterFile
from ...core.planning import even_ranges
from ...core.progress import PartitionProgress
from ...ground import machine
from ...ground.errors import ConnectorError, Fatal, Transient
from ...ground.options import Values
from ...ground.state import digest, dumps, versioned
from ...storage.base import Storage
from ...storage.location import Location, storage_of
from .settings import CONNECT_OPTIONS, config_problems, dataset_of, letter_problems, settings_of
from .unpack import UNPACKED, UnpackEmitter, unpack_problems

_BATCH_ROWS: Final = 16_384
_SMALL_BATCH: Final = 4_096
_SHARED: Final = ("topic", "sourcePartition")
_OFFSETS_IN_POSITION: Final = 20
"""Up to so many source partitions the offset of Spark shows where each of them is; the manifest always does."""

_STARTED: Final = "started-{}.json"
"""The file of a ``stateLocation`` whose query has started its connector with a slot: what this one made is the query's own."""
_LONGEST_POLL: Final = 10.0

_log = logging.getLogger("connectors.connect")


@dataclass(frozen=True)
class RecordedSplit(Split):
    """Record batches ``first`` up to, not including, ``last`` of the file of an epoch."""

    log: str
    epoch: int
    file: str
    first: int
    last: int


class ConnectSource(EpochLogSource):
    """A source connector of Connect's model, a Python class or a Java one.

    Columns: ``topic, partition, key, value, headers, timestamp, sourcePartition, sourceOffset``; key and value are the bytes of
    the converters. Guarantee: exactly-once, for a connector whose offsets say where to go on: an epoch's records and offsets
    are recorded before Spark sees them.
    """

    name = "connect"
    schema = (
        "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>, "
        "timestamp timestamp, sourcePartition string, sourceOffset string"
    )
    options = CONNECT_OPTIONS | Options(
        {
            "deadLetterPath": Location(
                None, meaning="the folder of records that fail, Parquet; needs errors.tolerance=all"
            ),
            "value.unpack": Flag(
                False, meaning="the columns are those of the value, which a JsonConverter has written"
            ),
            "schema": Text(
                None, only_with="value.unpack", needed_by='value.unpack: the columns, such as "id long, name string"',
                meaning="these columns, as SQL text",
            ),
        }
    )
    conditions = "the connector's offsets say where to go on"
    keeps_positions = True
    extensions = OwnClasses()

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        wrong = list(config_problems(values))
        yield from wrong
        if not wrong:
            yield from source_host(settings_of(values)).validate()
        yield from letter_problems(values)
        yield from unpack_problems(values)

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        if values["value.unpack"]:
            self.schema = values["schema"]

    @classmethod
    def positions_after(cls, log: EpochLog, epoch: int) -> Mapping[str, Any]:
        offsets: Mapping[str, Any] = _manifest(log, epoch)["offsets"]
        return offsets

    def alter_offsets(self, offsets: Mapping[str, Any]) -> bool:
        """As :meth:`SourceHost.alter_offsets`."""
        with contextlib.closing(self.host()) as host:
            return host.alter_offsets(offsets)

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        return UnpackEmitter(schema, settings_of(self.values)) if self.values["value.unpack"] else None

    def letters(self) -> Storage | None:
        """The storage of dead letters; ``None`` unless the user asked for them."""
        path = self.values["deadLetterPath"]
        return storage_of(path, self.values["storageOptions"]) if path else None

    def datasets(self) -> Sequence[Dataset]:
        return [dataset_of(settings_of(self.values).properties)]

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or 2)

    def host(self) -> SourceHost:
        """A new host of the connector."""
        return source_host(settings_of(self.values))

    def enumerator(self) -> ConnectEnumerator:
        return ConnectEnumerator(self)

    def reader(self, schema: pa.Schema) -> RecordedReader:
        return RecordedReader(self.log(), UNPACKED if self.values["value.unpack"] else schema)


class ConnectEnumerator(EpochLogEnumerator[RecordedSplit]):
    """Polls the host and records epochs: first the rows, then the manifest, which is the plan of the epoch in its log.

    A manifest says which file has the rows, how many there are, the source offsets after the epoch and the generation of the
    tasks; ``groups`` is what a start needs beside the offsets. An epoch without manifest has not happened; a new start takes
    the offsets of the last manifest.
    """

    def __init__(self, source: ConnectSource) -> None:
        super().__init__(source)
        self.source = source
        self._host: SourceHost | None = None
        self._offsets: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._pending: list[TaskRecords] = []
        self._committed = -1
        self._is_caught_up = False
        self._statuses = ""

    def start(self) -> Position:
        return {"epoch": 0, "log": self.log.begin(of_driver=True)}

    def is_empty(self, until: float | None) -> bool | None:
        return None

    def acknowledge(self, last: int) -> None:
        if last <= self._committed:
            return
        if self._host is not None:
            self._host.committed(last)
        for epoch in self.log.unacknowledged(last):
            self.log.mark_acknowledged(epoch)
        self.log.delete_old(last)
        self._committed = last

    def advance(self, at: Position, head: float | None, limit: ReadLimit) -> Position:
        self.log.check(at["log"])
        self.acknowledge(at["epoch"])
        epoch = at["epoch"] + 1
        manifest = self.log.plan(epoch)
        if manifest is None:
            records = [] if self._is_caught_up else self._polled(at, epoch, limit, head)
            if not records:
                return at
            manifest = self._record(at, epoch, records)
            self._pending = []
            host = self._started(at)
            self._is_caught_up = head is not None and host.has_caught_up(self.source.values["drainTimeout"])
        else:  # another run has recorded it: what this host has polled is not what comes next
            self._end_host()
            self.log.make_durable(epoch)
        self._publish_letters(at["log"], epoch, manifest)
        self._offsets, self._groups = dict(manifest["offsets"]), dict(manifest.get("groups", {}))
        return self._position(at["log"], epoch, manifest)

    def _position(self, log: str, epoch: int, manifest: Mapping[str, Any]) -> Position:
        offsets = manifest["offsets"]
        shown = {"offsets": offsets} if len(offsets) <= _OFFSETS_IN_POSITION else {}
        return {"epoch": epoch, "log": log, **shown}

    def _polled(self, at: Position, epoch: int, limit: ReadLimit, until: float | None) -> list[TaskRecords]:
        """The records of ``epoch``; none when nothing comes for ``pollInterval``, or at the end for ``drainTimeout``."""
        if self._pending:  # they were polled, and could not be recorded
            return self._pending
        host = self._started(at)
        values = self.source.values
        limit = ReadLimit(limit.rows or values["maxRowsPerTrigger"], limit.bytes or values["maxBytesPerTrigger"])
        wait = values["pollInterval" if until is None else "drainTimeout"]
        try:
            if host.reconfiguration_requested():
                host.quiesce()
                self._pending = host.poll(epoch, limit, 0.0)
                if not self._pending:  # everything is committed: Spark asks for the next epoch only then
                    host.reconfigure(self._offsets, self._groups)
            self._pending = self._pending or host.poll(epoch, limit, wait)
            end = None if until is not None else machine.monotonic() + _LONGEST_POLL
            while not self._pending and (left := wait - host.idle_seconds()) > 0:
                if end is not None and machine.monotonic() > end:  # a task that is slow to start must not delay a stop
                    break
                self._pending = host.poll(epoch, limit, left)
        finally:
            self._show(host)
        if not self._pending and until is not None:
            self._refuse_failed(host)
        return self._pending

    def _refuse_failed(self, host: SourceHost) -> None:
        """A run that ends with a failed task has not read everything: it must not look as if it had."""
        failed = next((status for status in host.statuses() if status.state == "FAILED"), None)
        if failed is not None:
            raise Fatal(
                f"task {failed.task} has failed, and the others have nothing more:\n{failed.trace}",
                connector=f"connectors.{self.source.name}",
                way_out="mend the cause and start the query again: it goes on from the recorded offsets",
            )

    def _started(self, at: Position) -> SourceHost:
        """The host, started from the offsets of the position ``at``."""
        if self._host is None:
            self._offsets, self._groups = self._state_at(at)
            host = self.source.host()
            try:
                slot = host.slot()
                started = _STARTED.format(digest(slot))
                if self.log.storage.size(started) is None:
                    host.check_first_start()
                    self.log.storage.put_if_absent(started, dumps(versioned(slot=slot, at=machine.time())).encode())
                host.start(self._offsets, self._groups)
            except ConnectorError:
                host.close()
                raise
            except RetriableException as outage:
                host.close()
                raise Transient(f"the connector could not start: {outage}") from outage
            except Exception as error:
                host.close()
                raise Fatal(
                    f"the connector could not start: {type(error).__name__}: {error}",
                    connector=f"connectors.{self.source.name}",
                ) from error
            self._host = host
            weakref.finalize(self, host.close)  # a planner that ends does not always close what it has
        return self._host

    def _state_at(self, at: Position) -> tuple[dict[str, Any], dict[str, Any]]:
        """The offsets after an epoch and their groups, with the positions to which ``connectors offsets`` has moved."""
        positions = at.get("positions", {})
        if not at["epoch"] or positions is None:
            return {}, {}
        manifest = _manifest(self.log, at["epoch"])
        offsets = {key: offset for key, offset in {**manifest["offsets"], **positions}.items() if offset is not None}
        groups = {key: group for key, group in manifest.get("groups", {}).items() if key in offsets}
        return offsets, {key: {"moved": True} if key in positions else group for key, group in groups.items()}

    def _record(self, at: Position, epoch: int, records: Sequence[TaskRecords]) -> dict[str, Any]:
        """Records an epoch: its rows, then its manifest."""
        rows = _compact(pa.concat_tables([part.rows for part in records]))
        batches = rows.to_batches(max_chunksize=_BATCH_ROWS)
        name = f"{machine.token()}.rows" if batches else ""
        if batches:
            self.log.put_rows(epoch, name, pa.Table.from_batches(batches))
        letters = self._stage_letters(epoch, records)
        offsets, groups = dict(self._offsets), dict(self._groups)
        counts: dict[str, int] = {}
        for part in records:
            offsets.update(part.offsets)
            groups.update(part.groups)
            counts.update({count: counts.get(count, 0) + number for count, number in part.counts.items()})
        manifest = {
            "file": name,
            "batches": len(batches),
            "rows": rows.num_rows,
            "offsets": {key: offset for key, offset in offsets.items() if offset is not None},
            "groups": {
                key: group for key, group in groups.items() if group is not None and offsets.get(key) is not None
            },
            "counts": counts,
            "letters": letters,
            "generation": self._started(at).generation(),
            "at": machine.time(),
        }
        if not self.log.put_manifest(epoch, manifest):
            raise StateError(
                f"another run of this query has recorded epoch {epoch} in {self.log.storage.root} meanwhile",
                connector=f"connectors.{self.source.name}",
                way_out="let one run of the query be active, and no other query use this stateLocation",
            )
        recorded = self.log.plan(epoch)
        assert recorded is not None
        return recorded

    def _stage_letters(self, epoch: int, records: Sequence[TaskRecords]) -> str:
        """Puts the dead letters of an epoch beside its rows and names them; empty where nobody wants them."""
        letters = [letter for part in records for letter in part.letters]
        if not letters or not self.source.values["deadLetterPath"]:
            return ""
        file, name = LetterFile(), f"{machine.token()}.letters"
        connector = self.source.values["config"].get("name", "")
        for number, letter in enumerate(letters):
            place = {
                "topic": letter.topic,
                "partition": letter.partition,
                "task": letter.task,
                "epoch": epoch,
                "n": number,
            }
            file.add(letter_fields(letter, connector, place))
        self.log.storage.put_if_absent(f"epochs/{epoch:020d}/{name}", file.content())
        return name

    def _publish_letters(self, log: str, epoch: int, manifest: Mapping[str, Any]) -> None:
        """Copies the dead letters of a recorded epoch to where people look for them, once."""
        storage = self.source.letters()
        if storage is not None and manifest.get("letters"):
            with self.log.storage.open(f"epochs/{epoch:020d}/{manifest['letters']}") as file:
                storage.put_if_absent(f"connect-{digest(manifest['letters'], epoch, length=24)}.parquet", file.read())

    def _show(self, host: SourceHost) -> None:
        """Leaves the states of the tasks beside the log, when they have changed."""
        state = versioned(generation=host.generation(), tasks=[vars(status) for status in host.statuses()])
        if (text := dumps(state)) != self._statuses:
            self._statuses = text
            self.log.storage.replace("status.json", text.encode())

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        (self.log.check if start["epoch"] else self.log.claim)(end["log"])
        self.log.check_retained(end["epoch"])
        manifest = self.log.plan(end["epoch"])
        if manifest is None:
            raise StateError(
                f"epoch {end['epoch']} of {self.log.storage.root} (stateLocation) is gone",
                way_out="restore the folder, or give the query a new checkpoint and a stateLocation of its own",
            )
        ranges = list(even_ranges(0, manifest["batches"] - 1, parallelism))
        details = [
            {
                "file": manifest["file"],
                "first": first,
                "last": last + 1,
                "counts": manifest["counts"] if not first else {},
            }
            for first, last in ranges
        ] or [{"file": "", "first": 0, "last": 0, "counts": manifest["counts"]}]
        return [Slice(start, end, index, len(details), parallelism, detail) for index, detail in enumerate(details)]

    def splits_of(self, part: Slice) -> Iterator[RecordedSplit]:
        detail = part.detail
        yield RecordedSplit(part.end["log"], part.end["epoch"], detail["file"], detail["first"], detail["last"])

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[RecordedSplit]:
        for part in self.slices(start, end, parallelism):
            yield from self.splits_of(part)

    def progress(self, at: Position, head: Any) -> Sequence[PartitionProgress]:
        """Each source partition with its offset; how much more there is, no connector tells."""
        facts = self._host.facts() if self._host is not None else {}
        parts = [PartitionProgress(partition, dumps(offset)) for partition, offset in sorted(self._offsets.items())]
        return [replace(parts[0], facts=facts), *parts[1:]] if parts else []

    def close(self) -> None:
        super().close()
        self._end_host()

    def _end_host(self) -> None:
        self._pending = []
        if self._host is not None:
            self._host.close()
            self._host = None


def _manifest(log: EpochLog, epoch: int) -> Mapping[str, Any]:
    """The manifest of ``epoch``. Raises :class:`StateError` if there is none."""
    manifest = log.plan(epoch)
    if manifest is None:
        raise StateError(
            f"{log.storage.root} (stateLocation) has no manifest of epoch {epoch}, so the next one has no start",
            way_out="restore the folder, or give the query a new checkpoint and a stateLocation of its own",
        )
    return manifest


def _compact(rows: pa.Table) -> pa.Table:
    """``rows`` as they are recorded: few record batches, and texts that many rows share once."""
    if rows.num_rows < _SMALL_BATCH * rows["topic"].num_chunks:
        rows = rows.combine_chunks()
    for name in _SHARED:
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].dictionary_encode())
    return rows


class RecordedReader(SplitReader[RecordedSplit]):
    """Hands on recorded rows; contacts nothing."""

    def __init__(self, log: EpochLog, schema: pa.Schema) -> None:
        super().__init__()
        self._log = log
        self._schema = schema

    def read(self, split: RecordedSplit) -> Iterator[pa.RecordBatch]:
        if not split.file:
            return
        for batch in self._log.rows(split.epoch, split.file, split.first, split.last):
            yield pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema).to_batches()[0]

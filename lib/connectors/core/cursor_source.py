"""A source over partitions that can be read again and whose end only reading finds: shards, feeds, paged APIs.

The driver plans an epoch: which partitions exist, the position of each, and which task reads it. Tasks read until they reach
a limit or nothing more comes. They record the positions where they stopped in the epoch log (:mod:`connectors.core.epochs`)
before Spark sees a row. A replay reads the same ranges again, as long as the system retains them. If the system may give
other records for the same range, the log holds the records too, and a replay reads them there.

An author writes a :class:`Cursor` with one method, and a :class:`CursorSource` that makes it and lists the partitions::

    class Feed(CursorSource):
        name, schema = "feed", "id long, text string"

        def partitions(self, positions, finished): return Discovery({"feed": positions.get("feed", 0)})
        def cursor(self, schema): return FeedCursor(self.values["url"])
"""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from ..ground import machine
from ..ground.errors import DataLoss, Misconfigured, Problem, StateError
from ..ground.options import Duration, Flag, Options, Values
from ..ground.state import dumps
from ..storage.location import Location
from .cursors import POLL_SECONDS, SOME_LAG, Cursor, CursorEpoch, CursorSplit, late_count
from .epoch_source import EpochLogEnumerator, EpochLogSource
from .epochs import EpochLog, Header, record_content
from .progress import PartitionProgress
from .source import Position, ReadLimit, Slice, SplitEnumerator, SplitReader

_PAGE_ROWS: Final = 10_000

CURSOR_OPTIONS: Final = Options(
    stateLocation=Location(None, meaning="the folder of the epoch log, of this query alone; any storage; needed by a stream"),
    failOnDataLoss=Flag(True, meaning="records that expired before they were read are an error; false goes on without them"),
    maxDrift=Duration(
        None, meaning="no partition is read further past the slowest one, by the times of records; default: off"
    ),
    idleTimeout=Duration(120.0, meaning="a partition without records for so long does not hold back the others"),
)
_log = logging.getLogger("connectors")


@dataclass(frozen=True)
class Discovery:
    """The partitions of an epoch, each with the position to read from.

    A partition that is not listed keeps its position for a later epoch. ``gone`` names partitions to forget, ``finished``
    further ones that have nothing to read.
    """

    partitions: Mapping[str, Any]
    gone: Collection[str] = ()
    finished: Collection[str] = ()


class CursorSource(EpochLogSource):
    """A source that reads each partition from a position on. A subclass sets ``name`` and ``schema``."""

    bounded = True
    keeps_positions = True
    repeatable: ClassVar[bool] = True
    """False if the system may later give other records for the same range; the epoch log then holds the records."""

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        if streaming and values["stateLocation"] is None:
            text = "missing; a stream needs the folder of its epoch log, which is of this query alone."
            raise Misconfigured(f"connectors.{self.name}", [Problem("stateLocation", text)])

    @classmethod
    def known_options(cls) -> Options:
        return super().known_options() | CURSOR_OPTIONS

    @classmethod
    def positions_after(cls, log: EpochLog, epoch: int) -> Mapping[str, Any]:
        positions, finished, _ = state_after(log, epoch)
        return {**dict.fromkeys(finished), **positions}

    def start_positions(self) -> Mapping[str, Any]:
        """The positions where a new query begins, if they change with time, as that of the newest record. Runs on the driver.

        The first offset stores them, and the first :meth:`partitions` gets them as ``positions``.
        """
        return {}

    @abstractmethod
    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        """The partitions of the next epoch. Runs on the driver, once per epoch.

        ``positions`` holds, after the last epoch, every partition that the query has ever read and that is not ``finished``.
        """

    @abstractmethod
    def cursor(self, schema: pa.Schema) -> Cursor:
        """A new cursor whose rows have ``schema``."""

    def driver_cursor(self) -> Cursor:
        """A cursor with which the driver looks at a partition's next record."""
        return self.cursor(pa.schema([]))

    def now(self) -> float:
        """The system's own time, in seconds since 1970: later records are too new for a run. Runs on the driver."""
        return machine.time()

    def position_text(self, position: Any) -> int | str | None:
        """A position as the query's table shows it."""
        return position if isinstance(position, (int, str)) else dumps(position)

    def enumerator(self) -> SplitEnumerator[CursorSplit]:
        return CursorEnumerator(self) if self.streaming else WholeEnumerator(self)

    def reader(self, schema: pa.Schema) -> SplitReader[CursorSplit]:
        return CursorReader(self, schema) if self.streaming else WholeReader(self.cursor(schema))


class CursorEnumerator(EpochLogEnumerator[CursorSplit]):
    """Plans epochs. It records a plan before the tasks start, so that a replay uses the same plan."""

    def __init__(self, source: CursorSource) -> None:
        super().__init__(source)
        self.source = source
        self._committed = -1

    def start(self) -> Position:
        return {**super().start(), **_start_of(self.source)}

    def freeze(self) -> float:
        return self.source.end_of_run(self.source.now())

    def is_empty(self, until: float | None) -> bool | None:
        return None

    def acknowledge(self, last: int) -> None:
        if last > self._committed:
            for epoch in self.log.unacknowledged(last):
                self.log.mark_acknowledged(epoch)
            self.log.delete_old(last)
            self._committed = last

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        (self.log.check if start["epoch"] else self.log.claim)(end["log"])
        self.resume()
        plan = self._plan(start, end, parallelism)
        details = [{"positions": share, "cap": plan.get("cap")} for share in plan["shares"]]
        return [Slice(start, end, index, len(details), parallelism, detail) for index, detail in enumerate(details)]

    def splits_of(self, part: Slice) -> Iterator[CursorSplit]:
        at, detail = part.end, part.detail
        yield CursorSplit(at["log"], at["epoch"], part.index, part.of, detail["positions"], at.get("until"), detail["cap"])

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[CursorSplit]:
        for part in self.slices(start, end, parallelism):
            yield from self.splits_of(part)

    def progress(self, at: Position, head: Any) -> Sequence[PartitionProgress]:
        """The position of each unfinished partition after the epoch before ``at``; tasks have not read ``at`` itself yet."""
        return [
            PartitionProgress(name, self.source.position_text(position), lag_seconds=header.lags.get(name))
            for header in self.log.headers(at["epoch"] - 1)
            for name, position in header.positions.items()
            if name not in header.finished
        ]

    def _plan(self, start: Position, end: Position, readers: int) -> dict[str, Any]:
        epoch, until = end["epoch"], end.get("until")
        plan = self.log.plan(epoch)
        if plan is not None:
            return plan
        self.log.check_retained(epoch)
        positions, finished, times = self._state_at(start)
        discovery = self.source.partitions(positions, frozenset(finished))
        shares = _shares(discovery.partitions, readers)
        state = {name: position for name, position in positions.items() if name not in discovery.gone}
        plan = {"shares": shares, "positions": state | dict(discovery.partitions)}
        if self.source.values["maxDrift"] is not None:
            plan |= {"cap": self._cap(epoch, discovery.partitions, times, until), "times": times}
        self.log.put_plan(epoch, {**plan, "finished": sorted((finished | set(discovery.finished)) - set(discovery.gone))})
        recorded = self.log.plan(epoch)
        assert recorded is not None
        return recorded

    def _cap(
        self, epoch: int, partitions: Mapping[str, Any], times: dict[str, list[float]], until: float | None
    ) -> float | None:
        """The time (seconds since 1970) up to which an epoch may read: ``maxDrift`` past the slowest active partition.

        A partition at its end is active until it has not grown for ``idleTimeout``; in a query that ends it never is. Nor is a
        partition that never had a record. ``times`` has, by partition, the time of its next or last record, and when that was
        seen; this method looks up and adds missing times.
        """
        lags = {name: lag for header in self.log.headers(epoch - 1) for name, lag in header.lags.items()}
        unknown, now = [name for name in partitions if name not in times], machine.time()
        if unknown:
            with contextlib.closing(self.source.driver_cursor()) as cursor:
                cursor.open()
                for name in unknown:
                    page = cursor.read(name, partitions[name], None, 1)
                    if page.published is not None and len(page.published):
                        times[name] = [page.published[0].as_py(), now]
                        lags[name] = SOME_LAG
        idle = 0.0 if until is not None else float(self.source.values["idleTimeout"])
        active = [name for name in partitions if name in times and (lags.get(name, 0.0) > 0 or now - times[name][1] < idle)]
        slowest = min((times[name][0] for name in active), default=None)
        return None if slowest is None else slowest + float(self.source.values["maxDrift"])

    def _state_at(self, start: Position) -> tuple[dict[str, Any], set[str], dict[str, list[float]]]:
        """The state from which the epoch after ``start`` is planned: the log's state, overlaid with the positions of ``start``.

        ``start`` has positions in the first epoch, or after ``connectors offsets``, where ``None`` means to begin anew.
        """
        if start["epoch"] and start.get("positions", {}) is None:
            return dict(_start_of(self.source).get("positions", {})), set(), {}
        positions, finished, times = state_after(self.log, start["epoch"]) if start["epoch"] else ({}, set(), {})
        moved = start.get("positions", {})
        return positions | moved, finished - moved.keys(), {name: seen for name, seen in times.items() if name not in moved}


def state_after(log: EpochLog, epoch: int) -> tuple[dict[str, Any], set[str], dict[str, list[float]]]:
    """The positions of unfinished partitions after ``epoch``, the partitions that are finished, and their times."""
    plan, headers = log.plan(epoch), log.headers(epoch)
    if plan is None or len(headers) < len(plan["shares"]):
        raise StateError(
            f"{log.storage.root} (stateLocation) does not say where epoch {epoch} ended, so the next one has no start",
            way_out="restore the folder, or give the query a new checkpoint and a stateLocation of its own",
        )
    positions, finished, times = dict(plan["positions"]), set(plan["finished"]), dict(plan.get("times", {}))
    for header in headers:
        positions.update(header.positions)
        finished.update(header.finished)
        times.update({name: [seen, header.at] for name, seen in header.times.items()})
    unfinished = {name: position for name, position in positions.items() if name not in finished}
    return unfinished, finished, {name: seen for name, seen in times.items() if name in unfinished}


def _start_of(source: CursorSource) -> dict[str, Any]:
    """The start in a query's first position: ``positions``, or nothing if the source gives none."""
    positions = source.start_positions()
    return {"positions": dict(positions)} if positions else {}


def _shares(partitions: Mapping[str, Any], readers: int) -> list[dict[str, Any]]:
    """The partitions of each reader; there is at least one reader."""
    shares: list[dict[str, Any]] = [{} for _ in range(max(1, min(readers, len(partitions))))]
    for number, (partition, position) in enumerate(sorted(partitions.items())):
        shares[number % len(shares)][partition] = position
    return shares


class WholeEnumerator(SplitEnumerator[CursorSplit]):
    """Plans a batch read: all partitions, from their start to now. It has no epoch log; a failed task reads again."""

    def __init__(self, source: CursorSource) -> None:
        self.source = source

    def start(self) -> Position:
        self.source.begin()
        return {"epoch": 0, **_start_of(self.source)}

    def head(self) -> float:
        return self.source.end_of_run(self.source.now())

    def advance(self, at: Position, head: float, limit: ReadLimit) -> Position:
        return {"epoch": 1, "until": head}

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        partitions: dict[str, Any] = {}
        first_positions = start.get("positions", {})
        while more := {
            name: position
            for name, position in self.source.partitions(first_positions, frozenset(partitions)).partitions.items()
            if name not in partitions
        }:
            partitions |= more
        shares = _shares(partitions, parallelism)
        return [Slice(start, end, index, len(shares), parallelism, share) for index, share in enumerate(shares)]

    def splits_of(self, part: Slice) -> Iterator[CursorSplit]:
        yield CursorSplit("", 0, part.index, part.of, part.detail, part.end["until"])

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[CursorSplit]:
        for part in self.slices(start, end, parallelism):
            yield from self.splits_of(part)

    def stop(self) -> None:
        self.source.end()


class WholeReader(SplitReader[CursorSplit]):
    """Reads partitions up to the moment of the plan."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__()
        self._cursor = cursor

    def open(self) -> None:
        self._cursor.open()

    def close(self) -> None:
        self._cursor.close()

    def read(self, split: CursorSplit) -> Iterator[pa.RecordBatch]:
        for partition, position in sorted(split.positions.items()):
            while not self.awake.is_set():
                page = self._cursor.read(partition, position, None, _PAGE_ROWS)
                late = late_count(page.published, split.until) if page.published is not None and split.until is not None else 0
                yield page.rows.slice(0, page.rows.num_rows - late)
                position = page.position
                if late or page.is_last or page.is_finished:
                    break
                if not page.rows.num_rows:
                    self.awake.wait(POLL_SECONDS)


class CursorReader(SplitReader[CursorSplit]):
    """Reads an epoch and records its end positions, or all of its rows. If a record exists, whoever put it, reads that."""

    atomic = True

    def __init__(self, source: CursorSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema
        self.log: EpochLog = source.log()
        self._cursor = source.cursor(schema)

    def open(self) -> None:
        self._cursor.open()

    def close(self) -> None:
        self._cursor.close()

    def read(self, split: CursorSplit) -> Iterator[pa.RecordBatch]:
        record = self._record(split)
        self.log.check(split.log)  # another query on this folder may have put the record
        if record is None:
            epoch = CursorEpoch(self.source.values, split, self._cursor)
            epoch.read(self.awake)
            table = pa.table({}) if self.source.repeatable else pa.Table.from_batches(epoch.rows(), self.schema)
            if self.log.put(split.epoch, split.reader, record_content(table, epoch.header())):
                return epoch.rows()
            record = self._record(split)
            if record is None:
                raise StateError(
                    f"the record of epoch {split.epoch} was deleted while it was read, in {self.log.storage.root}",
                    way_out="let no other query use this stateLocation",
                )
        header, table = record
        if self.source.repeatable:
            return self._rows_of(split, header)
        return iter(table.select(self.schema.names).cast(self.schema).to_batches())

    def _record(self, split: CursorSplit) -> tuple[Header, pa.Table] | None:
        """The record of ``split``, without its rows where the source is repeatable; ``None`` if there is none."""
        return self.log.recorded(split.epoch, split.reader, () if self.source.repeatable else None)

    def _rows_of(self, split: CursorSplit, header: Header) -> Iterator[pa.RecordBatch]:
        """Reads the rows of a recorded epoch again."""
        rows = 0
        for partition, start in sorted(split.positions.items()):
            position, end = start, header.positions.get(partition, start)
            while position != end:
                page = self._cursor.read(partition, position, end, _PAGE_ROWS)
                if page.position == position and not page.rows.num_rows:
                    break
                position = page.position
                rows += page.rows.num_rows
                yield page.rows
        if rows != header.rows:
            loss = DataLoss(
                f"epoch {split.epoch} cannot be read again from {', '.join(sorted(split.positions))}: it has {rows} rows now, "
                f"and had {header.rows}. The system retains records for too short a time",
                connector=f"connectors.{self.source.name}",
                way_out="set failOnDataLoss=false to go on without what is lost",
            )
            loss.report(_log, fails=self.source.values["failOnDataLoss"])

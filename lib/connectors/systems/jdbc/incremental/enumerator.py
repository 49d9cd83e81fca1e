"""The driver's side of the streaming source: the tables, the end of each batch, and changes of tables."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ....core import (
    ConnectorError,
    Fatal,
    Misconfigured,
    PartitionProgress,
    Position,
    Problem,
    ReadLimit,
    SplitEnumerator,
    StateError,
    Transient,
)
from ....core.planning import fair_shares
from ....ground import machine
from ....ground.options import Values
from ..connection import Connection
from ..dialects import Dialect
from ..selection import NAME
from .keys import PLAIN, has_other_offset, like, limit, moment_of, tick_like
from .options import is_stream_of_tables, mode_wanted, zone_of
from .positions import BOTH, BULK, INCREMENTING, TIMESTAMP, TableSplit, changed, table_splits, tables
from .probe import LateTransactions, Newest, Probe
from .steps import Step, step_by_id, step_by_time, step_of_bulk
from .tables import StreamTable, stream_tables
from .writers import Holes, refuse_replica

_log = logging.getLogger("connectors.jdbc")
_NULL_COUNT_PAUSE: Final = 100
"""The pause until rows without a key are counted again, as a multiple of the time that the count took."""


@dataclass(frozen=True)
class StreamHead:
    """The tables to read, their largest keys, and the number of rows of each that have no key."""

    tables: Mapping[str, StreamTable]
    newest: Mapping[str, Newest]
    without_key: Mapping[str, int]
    frozen: bool = False


class StreamEnumerator(SplitEnumerator[TableSplit]):
    """Plans batches; :mod:`.positions` describes its positions. Its own state only saves queries, or may be lost."""

    def __init__(self, values: Values, dialect: Dialect) -> None:
        self.values = values
        self.dialect = dialect
        self.zone = zone_of(values)
        self._connection: Connection | None = None
        self._tables: dict[str, StreamTable] | None = None
        self._unreadable: Mapping[str, Sequence[Problem]] = {}
        self._catalog: Collection[str] = ()
        self._discovered_at = 0.0
        self._nulls: dict[str, tuple[int, float]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._polled = False
        self._holes = Holes(values["singleWriter"])
        self._late = LateTransactions(dialect, self.zone, values["timestampDelay"])

    def start(self) -> Position:
        """The beginning of everything. Raises now if something cannot be read at all."""
        with self._session() as probe:
            self._discover(probe, strict=True)
            if any(table.keys.mode == INCREMENTING for table in (self._tables or {}).values()):
                self._holes.writers(probe.connection, None)  # the user may lack the privilege
        return {"tables": {}}

    def head(self) -> StreamHead:
        with self._session() as probe:
            return self._look(probe)

    def freeze(self) -> StreamHead:
        self._polled = False
        with self._session() as probe:
            self._tables = None
            return replace(self._look(probe), frozen=True)

    def advance(self, at: Position, head: StreamHead, limit: ReadLimit) -> Position:
        with self._session() as probe:
            try:
                end = self._advance(probe, at, head, limit)
            except ConnectorError:
                self._discover(probe)
                if not (gone := set(head.tables) - set(self._tables or ())):
                    raise
                present = {name: table for name, table in head.tables.items() if name not in gone}
                end = self._advance(probe, at, replace(head, tables=present), limit)
        self._polled = True
        return end

    def _advance(self, probe: Probe, at: Position, head: StreamHead, limit: ReadLimit) -> Position:
        before = tables(at)
        self._check_name(before, head)
        self._check_readable(before)
        after = self._remembered(before, head)
        steps = dict(self._steps(probe, before, head))
        shares = fair_shares(limit.rows, {name: step.backlog(limit.rows) for name, step in steps.items()})
        moved = False
        for name, step in steps.items():
            state = step.state(shares[name] if limit.rows is not None else None)
            if state is not None:
                after[name], moved = self._with_identity(head.tables[name], state), True
        return {"tables": after} if moved or set(before) != set(after) else at

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[TableSplit]:
        return table_splits(start, end, parallelism)

    def progress(self, at: Position, head: StreamHead) -> Sequence[PartitionProgress]:
        """Each table with its key, and the number of rows without a key, which are left out. Abandoned ids count as rows."""
        progress = []
        for name, state in tables(at).items():
            newest = head.newest.get(name)
            if "polls" in state:
                progress.append(PartitionProgress(name, state["polls"], state["polls"], 0))
            elif "at" in state:
                latest = _printable(newest.at if newest else state["at"])
                progress.append(PartitionProgress(name, _printable(state["at"]), latest))
            elif "id" in state:
                latest = max(state["id"], (newest.id if newest else None) or state["id"])
                progress.append(PartitionProgress(name, state["id"], latest))
        for name, number in head.without_key.items():
            if number:
                progress.append(PartitionProgress(f"{name}, rows without a key", 0, number, number))
        return progress

    def partition_of(self, split: TableSplit) -> str:
        return split.table

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- what there is

    @contextlib.contextmanager
    def _session(self) -> Iterator[Probe]:
        """A connection that stays open, unless others could not write meanwhile."""
        is_new, self._connection = self._connection is None, self._connection or self.dialect.connect_to_read()
        try:
            if is_new:
                for setting in self.dialect.planning_settings():
                    self._connection.execute(setting)
                self._refuse_replica(self._connection)
            yield Probe(self._connection)
        except BaseException:
            self.close()
            raise
        if self.dialect.one_writer:
            self.close()

    def _refuse_replica(self, connection: Connection) -> None:
        """Raises :class:`Misconfigured` if rows that commit late would be missed, because a replica does not show them."""
        mode = mode_wanted(self.values)
        oids = [table.relation for table in (self._tables or {}).values() if table.relation is not None]
        if mode == INCREMENTING and not self.values["singleWriter"]:
            refuse_replica(connection, oids, "set singleWriter=true if one connection at a time writes there")
        elif mode in (TIMESTAMP, BOTH) and self.dialect.shows_writers and not self.values["timestampDelay"]:
            refuse_replica(connection, oids, "set a timestampDelay that is longer than any transaction and the replica's delay")

    @contextlib.contextmanager
    def _time_boxed(self, connection: Connection) -> Iterator[None]:
        """Limits the time of a discovery; one that takes too long is an outage and retried."""
        limit = self.dialect.statement_timeout(self.values["request.timeout"])
        if not limit:
            yield
            return
        connection.execute(limit)
        try:
            yield
        except Fatal as error:
            if "statement timeout" in error.message:
                raise Transient(f"the tables could not be listed in time: {error.message}") from None
            raise
        connection.execute(self.dialect.statement_timeout(None))

    def _look(self, probe: Probe) -> StreamHead:
        if self._tables is None or machine.monotonic() - self._discovered_at >= self.values["discoveryInterval"]:
            self._discover(probe)
        known = self._tables or {}
        try:
            return StreamHead(known, self._newest(probe, known), {name: number for name, (number, _) in self._nulls.items()})
        except ConnectorError:
            self._tables = None  # a table may be gone: look again before its key is queried
            self._discover(probe)
            known = self._tables or {}
            return StreamHead(known, self._newest(probe, known), {name: number for name, (number, _) in self._nulls.items()})

    def _discover(self, probe: Probe, *, strict: bool = False) -> None:
        with self._time_boxed(probe.connection):
            discovery = stream_tables(self.values, probe.connection)
        current = dict(discovery.tables)
        if problems := discovery.problems():
            wrong = Misconfigured(NAME, problems)
            if strict:
                raise wrong
            self._report("", f"some tables are not read: {wrong}")
        for name in discovery.absent:
            self._report(name, "the option tables gives this name, and the default schema has no such table yet")
        for name in sorted(set(self._tables or ()) - set(current)):
            self._report(name, "the table is gone", at=str(self._discovered_at))
        for name in sorted(set(current) - set(self._tables if self._tables is not None else current)):
            self._report(name, "a new table, which is read from its beginning", at=str(self._discovered_at))
        self._tables, self._discovered_at = current, machine.monotonic()
        self._unreadable, self._catalog = discovery.unreadable, discovery.catalog
        self._refuse_replica(probe.connection)
        for table in current.values():
            self._count_nulls(probe, table)

    def _count_nulls(self, probe: Probe, table: StreamTable) -> None:
        if not table.nulls or self._nulls.get(table.name, (0, 0.0))[1] > machine.monotonic():
            return
        began = machine.monotonic()
        number, seconds = probe.rows_without_key(table), machine.monotonic() - began
        self._nulls[table.name] = (number, machine.monotonic() + _NULL_COUNT_PAUSE * seconds)
        if number:
            self._report(table.name, f"{number} rows have no key ({', '.join(table.keys.columns())} is null) and are not read")

    def _newest(self, probe: Probe, known: Mapping[str, StreamTable]) -> dict[str, Newest]:
        timed = [table for table in known.values() if table.keys.timestamps]
        now = probe.now() if timed else None
        limits = {table.name: self._limit(now, table) for table in timed if table.time_kind != PLAIN and now}
        newest = probe.newest(list(known.values()), limits)
        for table in timed:
            if now is not None and table.time_kind == PLAIN and table.name in newest:
                newest.update(self._plain_newest(probe, table, newest[table.name], now))
        return newest

    def _limit(self, now: datetime.datetime, table: StreamTable) -> str:
        return limit(now, self.values["timestampDelay"] + table.tick, table.time_kind, self.zone)

    def _plain_newest(self, probe: Probe, table: StreamTable, newest: Newest, now: datetime.datetime) -> dict[str, Newest]:
        """The largest key that is not past the clock, for a database that has no type for times."""
        moment = moment_of(newest.at, self.zone)
        until = now - datetime.timedelta(seconds=self.values["timestampDelay"] + tick_like(newest.at))
        where = f"{newest.at!r} in {', '.join(table.keys.timestamps)} of {table.name}"
        if moment is None:
            raise Fatal(f"{where} is no time: neither ISO 8601 nor a number.", connector="connectors.jdbc")
        if has_other_offset(newest.at, moment, self.zone):
            raise Fatal(
                f"{where} is no time of the zone {self.zone}, so it does not compare with the clock there",
                connector="connectors.jdbc",
                way_out="set timeZone to the zone in which the times are written, such as Europe/Berlin",
            )
        last = like(newest.at, until, self.zone)
        if newest.at <= last:
            return {table.name: newest}
        return {table.name: probe.newest([table], {table.name: last}).get(table.name, Newest())}

    # ---- how far it may go

    def _steps(self, probe: Probe, before: Mapping[str, Any], head: StreamHead) -> Iterator[tuple[str, Step]]:
        self._late.look(probe, head.tables.values())
        for name, table in head.tables.items():
            state = self._known_state(before.get(name, {}), table)
            if table.keys.mode == BULK:
                if not (head.frozen and self._polled):
                    yield name, step_of_bulk(state)
                continue
            newest = head.newest.get(name)
            if newest is None or (newest.at is None and newest.id is None):
                continue
            if table.keys.mode == INCREMENTING:
                step = step_by_id(probe, table, state, newest, self._holes)
            else:
                step = step_by_time(probe, table, state, newest, self._late)
            if step is not None:
                yield name, step

    def _known_state(self, state: Mapping[str, Any], table: StreamTable) -> Mapping[str, Any]:
        """The state of a table; empty if the name now belongs to another table. Raises if the options have changed."""
        if not state or state.get("oid") != table.oid:
            if state:
                text = "the table was dropped and made anew; it is read from its beginning"
                self._report(table.name, text, at=str(table.oid))
            return {}
        if state.get("by") != list(table.keys.columns()):
            before, now = ", ".join(state.get("by", [])) or BULK, ", ".join(table.keys.columns()) or BULK
            raise StateError(
                f"the checkpoint has read {table.name} by {before}, and now it is to be by {now}",
                way_out="give the options of before, or the query a checkpointLocation of its own",
            )
        self._check_columns(state, table)
        return state

    def _check_columns(self, state: Mapping[str, Any], table: StreamTable) -> None:
        if state.get("columns", table.schema) == table.schema:
            return
        change = changed(state["columns"], table.plain_columns)
        if not change:
            return
        if change.retyped and self.values["onTypeChange"] == "fail":
            raise Fatal(
                f"columns of {table.name} have another type now: {', '.join(change.retyped)}",
                connector="connectors.jdbc",
                way_out="set onTypeChange=cast to read them as the stream's own columns are, or, with tables, as they are now",
            )
        self._report(table.name, f"its columns have changed ({change})", at=table.schema)

    def _check_name(self, before: Mapping[str, Any], head: StreamHead) -> None:
        """Raises if a stream of one table gets another name, by which it would read the table from its beginning."""
        if before and not is_stream_of_tables(self.values) and not set(before) >= set(head.tables):
            known, name = ", ".join(before), ", ".join(head.tables)
            option = "query" if self.values["query"] is not None else "dbtable"
            raise StateError(
                f"the checkpoint has read {known}, and by {option} the stream is to read {name}",
                way_out=f"write the name as before ({known}), or give the query a checkpointLocation of its own",
            )

    def _check_readable(self, before: Mapping[str, Any]) -> None:
        """Raises if the only table, or one that was read before, cannot be read: its rows would be missed without an error."""
        names = before if is_stream_of_tables(self.values) else self._unreadable
        if problems := [problem for name in names for problem in self._unreadable.get(name, ())]:
            raise Misconfigured(NAME, problems)

    def _remembered(self, before: Mapping[str, Any], head: StreamHead) -> dict[str, Any]:
        """The states of existing tables, also of those that the options leave out now, and of others with an ``oid``.

        The ``oid`` would identify a table again.
        """
        present = {*self._catalog, *head.tables}
        return {name: state for name, state in before.items() if name in present or "oid" in state}

    def _with_identity(self, table: StreamTable, state: Mapping[str, Any]) -> dict[str, Any]:
        about: dict[str, Any] = {"by": list(table.keys.columns()), "columns": table.schema}
        return {**state, **about, **({"oid": table.oid} if table.oid is not None else {})}

    def _report(self, name: str, text: str, at: str = "") -> None:
        """Logs a text once."""
        if (name, text + at) not in self._reported:
            self._reported.add((name, text + at))
            _log.warning("%s%s", f"{name}: " if name else "", text)


def _printable(value: Any) -> int | str | None:
    return value if value is None or isinstance(value, (int, str)) else str(value)

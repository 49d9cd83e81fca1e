"""The driver's side of the streaming source: which tables there are, how far a batch goes, what changed."""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ....core import (
    ConnectorError,
    Fatal,
    PartitionProgress,
    Position,
    ReadLimit,
    SplitEnumerator,
    StateError,
    Transient,
)
from ....core.options import Values
from ....core.planning import fair_shares
from ..connection import Connection
from ..dialects import Dialect
from .keys import PLAIN, like, limit, moment_of
from .options import zone_of
from .positions import BULK, INCREMENTING, Part, changed, parts, tables
from .probe import Late, Newest, Probe
from .steps import Step, step_by_id, step_by_time, step_of_bulk
from .tables import Watched, watched
from .writers import Holes

_log = logging.getLogger("connectors.jdbc")
_NULLS_SHARE: Final = 100
"""Rows without a key are counted again when so many times as long as it took has passed."""


@dataclass(frozen=True)
class Head:
    """What there is to read: the tables, their largest keys, and how many rows of each have no key."""

    tables: Mapping[str, Watched]
    newest: Mapping[str, Newest]
    without_key: Mapping[str, int]
    frozen: bool = False


class StreamEnumerator(SplitEnumerator[Part]):
    """Positions are in :mod:`.positions`; what is kept here saves questions, or may be forgotten without harm."""

    def __init__(self, values: Values, dialect: Dialect) -> None:
        self.values = values
        self.dialect = dialect
        self.zone = zone_of(values)
        self._connection: Connection | None = None
        self._tables: dict[str, Watched] | None = None
        self._listed = 0.0
        self._nulls: dict[str, tuple[int, float]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._polled = False
        self._holes = Holes(values["singleWriter"])
        self._late = Late(dialect, self.zone, values["timestampDelay"])

    def start(self) -> Position:
        """Everything is read from its beginning. What cannot be read at all is told now."""
        with self._session() as probe:
            self._list(probe, strict=True)
            if any(table.keys.mode == INCREMENTING for table in (self._tables or {}).values()):
                self._holes.writers(probe.connection, None)  # the user may lack the privilege
        return {"tables": {}}

    def head(self) -> Head:
        with self._session() as probe:
            return self._look(probe)

    def freeze(self) -> Head:
        self._polled = False
        with self._session() as probe:
            self._tables = None
            return replace(self._look(probe), frozen=True)

    def advance(self, at: Position, head: Head, limit: ReadLimit) -> Position:
        before = tables(at)
        with self._session() as probe:
            after = self._kept(before, head)
            steps = dict(self._steps(probe, before, head))
            shares = fair_shares(limit.rows, {name: step.backlog(limit.rows) for name, step in steps.items()})
            moved = False
            for name, step in steps.items():
                state = step.state(shares[name] if limit.rows is not None else None)
                if state is not None:
                    after[name], moved = self._described(head.tables[name], state), True
        self._polled = True
        return {"tables": after} if moved or set(before) != set(after) else at

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Part]:
        return parts(start, end, parallelism)

    def progress(self, at: Position, head: Head) -> Sequence[PartitionProgress]:
        """Each table with its key, and how many rows without a key are left out. Ids that were given up count as rows."""
        told = []
        for name, state in tables(at).items():
            newest = head.newest.get(name)
            if "polls" in state:
                told.append(PartitionProgress(name, state["polls"], state["polls"], 0))
            elif "at" in state:
                told.append(PartitionProgress(name, _shown(state["at"]), _shown(newest.at if newest else state["at"])))
            elif "id" in state:
                latest = max(state["id"], (newest.id if newest else None) or state["id"])
                told.append(PartitionProgress(name, state["id"], latest))
        for name, number in head.without_key.items():
            if number:
                told.append(PartitionProgress(f"{name}, rows without a key", 0, number, number))
        return told

    def partition_of(self, split: Part) -> str:
        return split.table

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ---- what there is

    @contextlib.contextmanager
    def _session(self) -> Iterator[Probe]:
        """A connection that stays open, unless others could not write meanwhile."""
        if self._connection is None:
            self._connection = self.dialect.connect_to_read()
        try:
            yield Probe(self._connection)
        except BaseException:
            self.close()
            raise
        if self.dialect.one_writer:
            self.close()

    @contextlib.contextmanager
    def _time_boxed(self, connection: Connection) -> Iterator[None]:
        """A discovery that takes too long is an outage: it is tried again."""
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

    def _look(self, probe: Probe) -> Head:
        if self._tables is None or time.monotonic() - self._listed >= self.values["discoveryInterval"]:
            self._list(probe)
        known = self._tables or {}
        try:
            return Head(known, self._newest(probe, known), {name: number for name, (number, _) in self._nulls.items()})
        except ConnectorError:
            self._tables = None  # a table may be gone: look again before it is asked for its key
            self._list(probe)
            known = self._tables or {}
            return Head(known, self._newest(probe, known), {name: number for name, (number, _) in self._nulls.items()})

    def _list(self, probe: Probe, *, strict: bool = False) -> None:
        with self._time_boxed(probe.connection):
            found, wrong = watched(self.values, probe.connection)
        if wrong and strict:
            raise wrong
        if wrong:
            self._report("", f"some tables are not read: {wrong}")
        for name in sorted(set(self._tables or ()) - set(found)):
            self._report(name, "the table is gone", at=str(self._listed))
        for name in sorted(set(found) - set(self._tables if self._tables is not None else found)):
            self._report(name, "a new table, which is read from its beginning", at=str(self._listed))
        self._tables, self._listed = found, time.monotonic()
        for one in found.values():
            self._count_nulls(probe, one)

    def _count_nulls(self, probe: Probe, one: Watched) -> None:
        if not one.nulls or self._nulls.get(one.name, (0, 0.0))[1] > time.monotonic():
            return
        began = time.monotonic()
        number, seconds = probe.left_out(one), time.monotonic() - began
        self._nulls[one.name] = (number, time.monotonic() + _NULLS_SHARE * seconds)
        if number:
            self._report(one.name, f"{number} rows have no key ({', '.join(one.keys.columns())} is null) and are not read")

    def _newest(self, probe: Probe, known: Mapping[str, Watched]) -> dict[str, Newest]:
        timed = [one for one in known.values() if one.keys.timestamps]
        now = probe.now() if timed else None
        limits = {one.name: self._limit(now, one) for one in timed if one.time_kind != PLAIN and now}
        newest = probe.newest(list(known.values()), limits)
        for one in timed:
            if now is not None and one.time_kind == PLAIN and one.name in newest:
                newest.update(self._plain_newest(probe, one, newest[one.name], now))
        return newest

    def _limit(self, now: datetime.datetime, one: Watched) -> str:
        return limit(now, self.values["timestampDelay"], one.time_kind, self.zone)

    def _plain_newest(self, probe: Probe, one: Watched, found: Newest, now: datetime.datetime) -> dict[str, Newest]:
        """What is not past the clock, where a database has no times to compare with."""
        moment = moment_of(found.at, self.zone)
        until = now - datetime.timedelta(seconds=self.values["timestampDelay"])
        if moment is None:
            text = f'{found.at!r} in {", ".join(one.keys.timestamps)} of {one.name} is no time: neither ISO 8601 nor a number.'
            raise Fatal(text, connector="connectors.jdbc")
        last = like(found.at, until, self.zone)
        if found.at <= last:
            return {one.name: found}
        return {one.name: probe.newest([one], {one.name: last}).get(one.name, Newest())}

    # ---- how far it may go

    def _steps(self, probe: Probe, before: Mapping[str, Any], head: Head) -> Iterator[tuple[str, Step]]:
        self._late.look(probe, head.tables.values())
        for name, one in head.tables.items():
            state = self._known(before.get(name, {}), one)
            if one.keys.mode == BULK:
                if not (head.frozen and self._polled):
                    yield name, step_of_bulk(state)
                continue
            newest = head.newest.get(name)
            if newest is None or (newest.at is None and newest.id is None):
                continue
            if one.keys.mode == INCREMENTING:
                step = step_by_id(probe, one, state, newest, self._holes)
            else:
                step = step_by_time(probe, one, state, newest, self._late)
            if step is not None:
                yield name, step

    def _known(self, state: Mapping[str, Any], one: Watched) -> Mapping[str, Any]:
        """The state that a table has; nothing where the name is another table's now. Raises for other options."""
        if not state or state.get("oid") != one.oid:
            if state:
                self._report(one.name, "the table was dropped and made anew; it is read from its beginning", at=str(one.oid))
            return {}
        if state.get("by") != list(one.keys.columns()):
            now = ", ".join(one.keys.columns()) or BULK
            raise StateError(
                f"the checkpoint has read {one.name} by {', '.join(state.get('by', [])) or BULK}, and now it is to be by {now}",
                way_out="give the options of before, or the query a checkpointLocation of its own",
            )
        self._compare(state, one)
        return state

    def _compare(self, state: Mapping[str, Any], one: Watched) -> None:
        if state.get("columns", one.schema) == one.schema:
            return
        change = changed(state["columns"], one.plain_columns)
        if not change:
            return
        if change.retyped and self.values["onTypeChange"] == "fail":
            raise Fatal(
                f"columns of {one.name} have another type now: {', '.join(change.retyped)}",
                connector="connectors.jdbc",
                way_out="set onTypeChange=cast to read them as the stream's own columns are, or, with tables, as they are now",
            )
        self._report(one.name, f"its columns have changed ({change})", at=one.schema)

    def _kept(self, before: Mapping[str, Any], head: Head) -> dict[str, Any]:
        """The states of tables that are there; also of others that would be known again by their ``oid``."""
        return {name: state for name, state in before.items() if name in head.tables or "oid" in state}

    def _described(self, one: Watched, state: Mapping[str, Any]) -> dict[str, Any]:
        about: dict[str, Any] = {"by": list(one.keys.columns()), "columns": one.schema}
        return {**state, **about, **({"oid": one.oid} if one.oid is not None else {})}

    def _report(self, name: str, text: str, at: str = "") -> None:
        """Says it once."""
        if (name, text + at) not in self._reported:
            self._reported.add((name, text + at))
            _log.warning("%s%s", f"{name}: " if name else "", text)


def _shown(value: Any) -> int | str | None:
    return value if value is None or isinstance(value, (int, str)) else str(value)

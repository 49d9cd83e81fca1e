"""Reads tables of a database anew, by ranges of their keys, into the Delta tables that a merge keeps equal to them.

The merge of the change log may go on beside. What is newer, the row of the database or that of the table, is decided so:

* Before the first range is read, the *place* of the snapshot is taken: it stands behind all changes that the table has by then.
  Then the reading waits until the database shows every transaction of that time, so that each row of a range is at least as
  new as these changes.
* A row of a range takes the place of one from before the snapshot's place. A row that the merge has written since stays: the
  log tells all that has happened since, so what the range has of it has come, or will come. A key that the merge has deleted
  since does not come back.
* At the end, rows from before the snapshot's place that no range has are deleted: the database does not have them any more.

No lock, no signal table and no watermark in the log is needed. The plan is a property of the table, and each transaction names
the ranges that it has written, so an interrupted snapshot goes on behind them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...core import Batch, Fatal, Misconfigured, Problem
from ...formats.base import quoted
from ...ground import machine
from ...ground.options import Duration, Size
from ...ground.state import digest
from ..jdbc.connection import Connection
from ..jdbc.incremental.tables import catalog_table
from ..jdbc.ranges import KeyRange, plan_ranges
from ..jdbc.selection import Selection, read_selection, render_clause
from ..jdbc.source import JdbcSource
from .change_target import PENDING, ChangeTarget
from .column_types import fitted
from .database_table import DatabaseTable, is_postgresql, reader_options
from .evolution import catalog_of
from .log_state import LogState, source_name
from .merge import ChangeTable
from .merge_all import MergedTable, committer_of, tables_of
from .positions import FROM_SNAPSHOT, ORDINAL_LENGTH, PLACE_LENGTH, place_in
from .sink import known_columns, log_at, same_key
from .transaction import Merges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "connect.snapshot"
RESULT: Final = "table string, source string, ranges int, removed bigint"
_PLAN: Final = "connectors.snapshot"
"""The property of a table of which a snapshot is read."""
_QUERY: Final = "snapshot"
_FOLLOWED: Final = """
SELECT EXISTS (
        SELECT FROM pg_replication_slots WHERE slot_name = %s AND database = current_database() AND wal_status <> 'lost'
    ), EXISTS (SELECT FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s)
"""
_FIRST: Final = "-" * PLACE_LENGTH
"""The place in front of all others."""
_LAST_ORDINAL: Final = "9" * ORDINAL_LENGTH
_ALTERING: Final = ("transforms", "column.mask.", "column.truncate.")
"""What the names of properties begin with that let the log have other values than the database."""
_FILTERS: Final = ("column.exclude.list", "column.include.list")
"""The properties that keep columns out of the log."""
_FORMS: Final = {
    "binary.handling.mode": ("binary", {"bytes"}),
    "decimal.handling.mode": ("decimal", {"precise"}),
    "time.precision.mode": (
        "timestamp|date", {"adaptive", "adaptive_time_microseconds", "connect", "microseconds", "nanoseconds"},
    ),
}  # fmt: skip
"""The properties that choose the form of values in the log: a pattern of types, and with what these are as they are read."""
_IN_LOG: Final = "Change a row, so that the log makes the table."
_WAY_OUT: Final = "Ask Debezium for an incremental snapshot instead."
_log = logging.getLogger(f"connectors.{NAME}")


def snapshot(
    database: Mapping[str, Any],
    target: str,
    *,
    tables: Sequence[str] = (),
    new: Mapping[str, str] | None = None,
    range_size: str = "64MB",
    parallel: int = 4,
    wait: str = "10 minutes",
    position_column: str = "_position",
) -> DataFrame:
    """Reads tables of the database anew into those that :func:`~connectors.connect.merge` or ``merge_all`` keeps of them.

    ``database`` are the options of ``connectors.jdbc`` that reach it, or the properties of the connector; ``target`` is what
    the merge was given, and ``tables`` names some of a schema's. The query of the merge may run meanwhile or not; it must go on
    with its checkpoint. A table is read in ranges of the first column of its key, each of about ``range_size`` in the database;
    ``parallel`` of them are read side by side, and are one transaction. A call that was interrupted goes on where it was.

    ``new`` are tables of ``merge_all`` that no change has made yet, by the names of their sources: ``{"orders":
    "public.orders"}``. They are for PostgreSQL, and ``database`` has the properties of the connector. Its query has begun, with
    ``snapshot.mode=no_data``: from then on its replication slot has all changes.

    Afterwards the table has the rows of the database, as of the call or later. Returns a row for each table: its ``source``,
    the number of ``ranges``, and how many rows were ``removed`` that the database does not have. Raises
    :class:`~connectors.ground.errors.Misconfigured` for tables that cannot be read so, and
    :class:`~connectors.ground.errors.Fatal` if a transaction of the database stays open for longer than ``wait``.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    names = [name for name in database if name.startswith(_ALTERING) and database[name]]
    if names:
        raise _wrong("database", f"has {names[0]}, so the log has other values than the tables. {_WAY_OUT}")
    if not isinstance(parallel, int) or parallel < 1:
        raise _wrong("parallel", f"must be a whole number of at least 1; got {parallel}.")
    settings = _Settings(
        _parsed("range_size", range_size, Size(None)), parallel, _parsed("wait", wait, Duration(None)), position_column
    )
    known = tables_of(spark, target, tables, NAME) if tables or not new else []
    known += [_new_table(spark, database, target, name, source) for name, source in (new or {}).items()]
    snapshots = [_TableSnapshot(spark, database, table, settings) for table in known]
    return spark.createDataFrame([table.run() for table in snapshots], RESULT)


def _new_table(spark: SparkSession, database: Mapping[str, Any], target: str, name: str, source: str) -> MergedTable:
    """Makes the table ``name``, whose changes the log has by now, with the columns of ``source``, unless it is there."""
    prefix, place = database.get("topic.prefix"), committer_of(target).place(name)
    if not prefix or not is_postgresql(reader_options(database)) or not re.fullmatch(r"[\w-]+\.[\w-]+", source):
        text = "names tables of PostgreSQL as schema.table, and database has the properties of the connector that follows them."
        raise _wrong("new", text)
    table, topic, origin = MergedTable(name, place, 0), f"{prefix}.{source}", DatabaseTable(spark, database, source)
    is_there = known_columns(spark, place) is not None
    state = table.state(spark) if is_there else None
    if state is not None and state.topic == topic:
        return table
    if filters := [option for option in _FILTERS if database.get(option)]:
        text = f"has {filters[0]}, and only the log knows which columns {source} has there. {_IN_LOG}"
        raise _wrong("database", text)
    if is_there and (state is not None or not table.rows(spark).isEmpty()):
        raise _wrong("new", f"has {name}, and {place.location} is another table; give it another name.")
    jdbc: Any = JdbcSource.of(origin.options)
    slot, publication = database.get("slot.name", "debezium"), database.get("publication.name", "dbz_publication")
    with contextlib.closing(jdbc.dialect().connect_to_read()) as connection:
        ((is_followed, is_published),) = connection.rows(_FOLLOWED, [slot, publication, *source.split(".")])
        if not is_followed:
            raise _wrong("new", f"has {name}, and there is no slot {slot} with its changes from now on. Start the query first.")
        if not is_published:
            raise _wrong("new", f"has {name}, and the publication {publication} does not have {source}, so no log tells of it.")
        keys = _primary_key(connection, read_selection(jdbc.values, connection))
    if not keys:
        raise _wrong("new", f"has {name}, and {source} has no primary key. {_WAY_OUT}")
    fields = [field for field in origin.rows().schema if not origin.is_generated(field.name)]
    types = {field.name: origin.type_in_log(field.name, field.dataType) for field in fields}
    for option, (pattern, forms) in _FORMS.items():
        form = str(database.get(option, "")).lower()
        others = [column for column, kind in types.items() if kind and re.search(pattern, kind.simpleString())]
        if others and form not in {"", *forms}:
            text = f"has {option}={form}, and only the log knows which values {others[0]} of {source} has by that. {_IN_LOG}"
            raise _wrong("database", text)
    if unknown := [column for column, kind in types.items() if kind is None]:
        text = f"has {name} with the column {unknown[0]}, and only the log knows the form of its values"
        raise _wrong("new", f"{text} ({origin.kind(unknown[0])}). {_IN_LOG}")
    sink: Any = ChangeTable.of({"path" if place.is_path else "table": place.location})
    change_target = ChangeTarget(sink.values)
    if not is_there:
        change_target.create(spark, types)
    if (state := table.state(spark)) is None:  # a first change may have come meanwhile, and the merge knows more of the log
        change_target.note(spark, LogState(topic, keys=keys))
    elif state.topic != topic:
        raise _wrong("new", f"has {name}, and {place.location} is another table; give it another name.")
    return table


def _primary_key(connection: Connection, selection: Selection) -> tuple[str, ...]:
    table = selection.table and catalog_table(connection, selection.table)
    return table.primary if table else ()


def _parsed(option: str, text: str, kind: Any) -> int:
    try:
        return int(kind.parse(text))
    except ValueError as wrong:
        raise _wrong(option, f'must be {wrong}; got "{text}".') from None


def _wrong(option: str, text: str) -> Misconfigured:
    return Misconfigured(NAME, [Problem(option, text)])


@dataclass(frozen=True)
class _Settings:
    """The arguments of :func:`snapshot`: ``range_size`` in bytes, ``wait`` in seconds."""

    range_size: int
    parallel: int
    wait: int
    position_column: str


@dataclass(frozen=True)
class _Step:
    """Ranges that are written together: their ``conditions`` in the database, and the ends of all if they are whole numbers."""

    conditions: Sequence[str]
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class _Plan:
    """A snapshot of a table: its name, its ``place`` in the stream, the last truncation before it, and its steps.

    ``life`` counts the queries of the merge, and ``deleted`` is the place of the last deletion before the snapshot: it may be
    behind all rows, and its batch may be under way.
    """

    name: str
    life: int
    place: str
    deleted: str
    truncated: str | None
    steps: Sequence[_Step]

    def text(self) -> str:
        return json.dumps(asdict(self)).encode().hex()

    @classmethod
    def of(cls, text: str) -> _Plan:
        plan = json.loads(bytes.fromhex(text))
        return cls(**{**plan, "steps": [_Step(**step) for step in plan["steps"]]})


class _TableSnapshot:
    """The snapshot of one table."""

    def __init__(self, spark: SparkSession, database: Mapping[str, Any], table: MergedTable, settings: _Settings) -> None:
        state = table.state(spark)
        if state is None:
            raise _wrong("target", f"has {table.name}, which no merge has written.")
        self.spark, self.database, self.table, self.settings, self.state = spark, database, table, settings, state
        self.source = DatabaseTable(spark, database, source_name(state.topic))
        if is_postgresql(self.source.options):  # else rows that a policy hides would count as gone
            statement = self.source.options.get("sessionInitStatement", "")
            self.source.options["sessionInitStatement"] = f"SET row_security = off; {statement}"
        own = "path" if table.place.is_path else "table"
        values: dict[str, Any] = {own: table.place.location, "positionColumn": settings.position_column}
        if state.deleted:
            values |= {"deletes": "soft", "deletedColumn": state.deleted}
        sink: Any = ChangeTable.of(values)
        self.target = ChangeTarget(sink.values)
        self._merges = Merges()
        self._check(table.rows(spark).columns)

    def _check(self, columns: Sequence[str]) -> None:
        """Raises :class:`Misconfigured` for a table that cannot be read."""
        name = self.table.name
        if self.settings.position_column not in columns:
            text = f"must name the column of positions of {name}, as the merge has it; it has {', '.join(columns)}."
            raise _wrong("position_column", text)
        if self.settings.position_column.lower() in map(str.lower, self.state.columns):
            text = f"must name the column of positions of {name}, as the merge has it; this is a column of its source."
            raise _wrong("position_column", text)
        self._check_history(self.state)
        if self.state.snapshot is not None:
            raise _wrong("target", f"has {name}, whose initial snapshot is not over. Let the query go on until it is.")
        self._columns()

    def _check_history(self, state: LogState) -> None:
        if state.history:
            raise _wrong("target", f"has {self.table.name}, whose history would lack the snapshot. {_WAY_OUT}")

    def run(self) -> tuple[Any, ...]:
        """Reads the table. Returns the row of the answer."""
        plan = self._plan() or self._begin()
        ledger = log_at(self.table.place, plan.name, self.spark)
        last = ledger.last(_QUERY)
        begin = 0 if last is None else last.batch + 1
        for number in range(begin, len(plan.steps)):
            batch = Batch(plan.name, _QUERY, number)
            if not self._write(plan, plan.steps[number], ledger.transaction(batch)):
                ledger.commit_frame(self.spark.sql(f"SELECT * FROM {self.target.sql} LIMIT 0"), batch)
            _log.info("%s: %d of %d steps", self.table.name, number + 1, len(plan.steps))
        removed = self._end(plan)
        return (self.table.name, self.source.name, sum(len(step.conditions) for step in plan.steps), removed)

    def _properties(self) -> dict[str, str]:
        properties = self.spark.sql(f"SHOW TBLPROPERTIES {self.target.sql}").collect()
        return {row["key"]: row["value"] for row in properties}

    def _plan(self) -> _Plan | None:
        """The plan of a snapshot that was interrupted."""
        text = self._properties().get(_PLAN)
        plan = _Plan.of(text) if text else None
        # a new query may begin behind a gap in the log, of which rows that have come since the plan know nothing
        return plan if plan is not None and plan.life == self._known_state().life else None

    def _check_beside(self, plan: _Plan, columns: Sequence[str] | None = None) -> None:
        """Raises an error if another writer was faster, so that what is to be done is wrong for the table as it is now."""
        if self._properties().get(_PLAN) != plan.text():
            text = f"another call reads {self.table.name} anew, or has ended this snapshot"
            raise Fatal(text, connector=NAME, way_out="call again when it has ended")
        self._check_history(self._known_state())
        if columns is not None and self.table.rows(self.spark).columns != columns:
            text = f"the columns of {self.table.name} have been altered while its rows were read"
            raise Fatal(text, connector=NAME, way_out="call again, and it goes on")

    def _begin(self) -> _Plan:
        """Plans the snapshot. The order counts: what the table has by now, the database must show to each range."""
        place, deleted = self._newest(self.table.rows(self.spark)), self._newest(self._deletions())
        state = self._known_state()
        plan = _Plan(machine.token(), state.life, place, deleted, state.truncated, self._steps())
        self.spark.sql(f"ALTER TABLE {self.target.sql} SET TBLPROPERTIES ('{_PLAN}' = '{plan.text()}')")
        return plan

    def _newest(self, rows: DataFrame | None) -> str:
        """The place of the end of the newest batch that ``rows`` are of."""
        position = f"max({place_in(quoted(self.settings.position_column))})"
        place = rows.selectExpr(position).collect()[0][0] if rows is not None else None
        return place[:-ORDINAL_LENGTH] + _LAST_ORDINAL if place and place != _FIRST else _FIRST

    def _steps(self) -> list[_Step]:
        """Waits until the database shows what it has committed; then the ranges of the table."""
        options: dict[str, Any] = {**self.source.options, "maxSplitMemorySize": str(self.settings.range_size)}
        options["partitionColumn"] = self.state.keys[0]
        source: Any = JdbcSource.of(options)
        with contextlib.closing(source.dialect().connect_to_read()) as connection:
            dialect, selection = connection.dialect, read_selection(source.values, connection)
            primary = _primary_key(connection, selection)
            if not primary or not {*primary} <= {*self.state.keys}:
                text = f"has {self.table.name}, whose key is ({', '.join(self.state.keys)}), and the primary key of"
                raise _wrong("target", f"{text} {self.source.name} is ({', '.join(primary)}). {_WAY_OUT}")
            dialect.settle(connection, self.settings.wait)
            column = selection.require_column("partitionColumn", self.state.keys[0])
            has_order = column.kind is None or not pa.types.is_binary(column.kind)
            ranges = plan_ranges(connection, source.values, selection) if has_order else [KeyRange()]

            def condition(key_range: KeyRange) -> str:
                where = key_range.where(dialect.quote(key_range.column))
                return render_clause(where, lambda _, value: dialect.bound(dialect.literal(value.value), value.sql))[0]

            parts = [ranges[at : at + self.settings.parallel] for at in range(0, len(ranges), self.settings.parallel)]
            return [
                _Step([condition(part) or "1 = 1" for part in step], _whole(step[0].low), _whole(step[-1].high))
                for step in parts
            ]

    def _columns(self) -> dict[str, Any]:
        """The columns of the database's rows that the table has, as they are there. Raises :class:`Misconfigured`."""
        state, properties = self._known_state(), self._properties()  # before the columns, which the merge may alter
        source = self.source.rows()
        kinds = {field.name.lower(): field for field in source.schema}
        if lost := [name for name in (*state.keys, *state.columns) if name.lower() not in kinds]:
            text = f"has no column {lost[0]} in {self.source.name} any more, and the log still has. Let the query go on until"
            raise _wrong("database", f"{text} it has followed, and call again.")
        self._check_names(state)
        if any(name in properties for name in PENDING):
            text = f"has {self.table.name}, whose columns are being altered. Let the query go on, and call again."
            raise _wrong("target", text)
        columns: dict[str, Any] = {}
        for field in self.table.rows(self.spark).schema:
            if field.name in (self.settings.position_column, self.state.deleted) or field.name.lower() not in kinds:
                continue
            own = kinds[field.name.lower()]
            value = self.source.value(own.name, own.dataType, field.dataType)
            if value is None:
                text = f"has {self.table.name} with the column {field.name}, and only the log knows the form of its values"
                raise _wrong("target", f"{text} ({self.source.kind(own.name) or 'text'}). {_WAY_OUT}")
            columns[field.name] = fitted(value[0], value[1], field.dataType, field.name).alias(field.name)
        return columns

    def _check_names(self, state: LogState) -> None:
        """Raises :class:`Misconfigured` while a column has a new name in the database that a table which evolves does not know.

        Another column may have its former name there.
        """
        if not state.identities:
            return
        names = {identity: name for name, identity in catalog_of(self.spark, self.database, state.topic).items()}
        own = {*map(str.lower, self.table.rows(self.spark).columns)}
        for column, identity in state.identities.items():
            if (name := names.get(identity, column)).lower() not in {column, *own}:
                text = f"has the column {column} under the name {name} in {self.source.name}, and the log does not tell it yet."
                raise _wrong("database", f"{text} Let the query go on until it has followed, and call again.")

    def _known_state(self) -> LogState:
        """The state of the table now: the merge may alter it."""
        state = self.table.state(self.spark)
        assert state is not None
        return state

    def _write(self, plan: _Plan, step: _Step, mark: Any) -> bool:
        """Writes a step's rows. True if ``mark`` is in its transaction."""
        present = self.table.rows(self.spark).columns
        columns, keys, position = self._columns(), self.state.keys, quoted(self.settings.position_column)
        rows = self.source.rows(predicates=json.dumps(step.conditions)).select(*columns.values())
        if (deleted := self._deleted_since(plan)) is not None:
            is_same = reduce(and_, (rows[quoted(key)].eqNullSafe(deleted[quoted(key)]) for key in keys))
            rows = rows.join(deleted, is_same, "left_anti")
        value = f"'{self.state.generation:03d}{plan.place}{FROM_SNAPSHOT}{plan.name}'"
        sets = [f"{quoted(name)} = new.{quoted(name)}" for name in columns if name not in keys] + [f"{position} = {value}"]
        if self.state.deleted:
            sets.append(f"{quoted(self.state.deleted)} = NULL")
        names, cells = (", ".join(f"{side}{quoted(name)}" for name in columns) for side in ("", "new."))
        ends = [(">=", step.low), ("<", step.high)]  # so that Delta reads the files of these keys alone
        bounds = "".join(f" AND old.{quoted(keys[0])} {sign} {end}" for sign, end in ends if end is not None)

        def statement(target: str, view: str) -> str:
            self._check_beside(plan, present)
            return (
                f"MERGE INTO {target} AS old USING {view} AS new ON {same_key(keys)}{bounds} "
                f"WHEN MATCHED AND {self._is_older(plan)} THEN UPDATE SET {', '.join(sets)} "
                f"WHEN NOT MATCHED THEN INSERT ({names}, {position}) VALUES ({cells}, {value})"
            )

        view = f"connectors_{digest(plan.name, self.table.place.location)}"
        return self._merges.merge(rows, view, self.table.place, mark, statement)

    def _end(self, plan: _Plan) -> int:
        """Removes what the snapshot does not confirm, and what was deleted while its rows were on their way."""
        own = f"endswith(old.{quoted(self.settings.position_column)}, '{FROM_SNAPSHOT}{plan.name}')"
        check = partial(self._check_beside, plan)
        if (deleted := self._deleted_since(plan)) is not None:
            action = "DELETE"
            if self.state.deleted:
                action = f"UPDATE SET {quoted(self.state.deleted)} = current_timestamp()"

            def statement(target: str, view: str) -> str:
                check()
                condition = f"ON {same_key(self.state.keys)} WHEN MATCHED AND {own}"
                return f"MERGE INTO {target} AS old USING {view} AS new {condition} THEN {action}"

            view = f"connectors_{digest(plan.name, 'deleted')}"
            self._merges.merge(deleted, view, self.table.place, None, statement)
        # a truncation has removed what was there before it, and the log tells what came behind it
        condition = self._is_older(plan) if self._known_state().truncated == plan.truncated else own
        removed = self.target.delete(self.spark, condition, check)
        self.spark.sql(f"ALTER TABLE {self.target.sql} UNSET TBLPROPERTIES IF EXISTS ('{_PLAN}')")
        return removed

    def _deleted_since(self, plan: _Plan) -> DataFrame | None:
        """The keys that the merge has deleted since the snapshot's place was taken."""
        if (deletions := self._deletions()) is None:
            return None
        is_later = f"{place_in(quoted(self.settings.position_column))} > '{plan.deleted}'"
        return deletions.where(is_later).select(*map(quoted, self.state.keys)).distinct()

    def _deletions(self) -> DataFrame | None:
        self.target.read_columns(self.spark)  # the merge may have deleted its first key
        return self.target.deletions(self.spark)

    def _place(self) -> str:
        """SQL: the place of the row ``old``; a row that somebody has written by hand has none, and is before all others."""
        return place_in(f"coalesce(old.{quoted(self.settings.position_column)}, '')")

    def _is_older(self, plan: _Plan) -> str:
        """SQL: the row ``old`` was there before the snapshot; one of an earlier snapshot may have the same place."""
        position = f"old.{quoted(self.settings.position_column)}"
        is_other = f"contains({position}, '{FROM_SNAPSHOT}') AND NOT endswith({position}, '{FROM_SNAPSHOT}{plan.name}')"
        return f"({self._place()} < '{plan.place}' OR ({self._place()} = '{plan.place}' AND {is_other}))"


def _whole(end: Any) -> int | None:
    return end if isinstance(end, int) else None

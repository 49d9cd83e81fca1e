"""A change log becomes the table that it tells of: ``writeStream.foreachBatch(connectors.connect.merge(path))``.

The last change of each key in a batch is merged into a Delta table, with the ledger entry in the same transaction. A change
applies only if it is newer than the row, so repeats and older changes do no harm:

* two changes of the log are compared by their positions in the database's log (``positions.py``), and else by arrival;
* a row of a snapshot takes the place of what arrived before it, and a change of the log takes the place of a row of a snapshot:
  each was read from the database after all that the stream had told by then;
* a deleted key is remembered in a table beside (``<table>_deleted``), so that an older change does not bring it back;
* an initial snapshot that the table began with and that was interrupted starts again, and no log tells what was deleted
  between the two: when the new one has ended, rows that only the first one had are gone. No other snapshot deletes.

What the merge must remember of the log is in a property of the table (``log_state.py``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...core import Batch, Choice, Duration, Fatal, Flag, Json, Misconfigured, Names, Options, Problem, Text
from ...core.ledger import Entry
from ...ground.options import Values
from ...ground.state import digest
from .change_batch import (
    is_behind,
    last_position,
    newest_changes,
    origins_of,
    passing_alterations,
    placed_changes,
    remade_columns,
    snapshot_rows,
    truncation_in,
    with_columns,
    with_defaults,
)
from .change_log import (
    ANY,
    DELETED,
    LOG,
    NAME,
    TRUNCATES,
    Changes,
    Summary,
    changes_of,
    columns_of_rows,
    records_of,
    summaries_of,
)
from .change_target import ChangeTarget
from .column_types import widen
from .evolution import POLICY, Evolution, SchemaPolicy, catalog_of, evolution_of, evolution_problems
from .history import ChangeHistory
from .holes import hole_conditions
from .log_state import Alteration, LogState
from .merge_statement import MergeStatement, is_ghost
from .positions import ARRIVAL, place_text
from .sink import TABLE, RecordingCommitter, TableSink, log_at
from .transaction import Merges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def merge(path: str | None = None, **options: Any) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that keeps a Delta table equal to the table of a change log.

    The stream is ``connectors.connect`` with a connector such as Debezium's, or the topic that one has written; its values are
    Debezium's envelope or the unwrapped form, as JSON. Those with schemas tell the types; those without need ``schema``.
    ``path`` is the folder of the table, or ``table`` its name; ``keyColumns`` identify a row, by default the fields of the
    records' keys.

    Exactly-once. New columns are added, and filled with the default that the database has for them. A column becomes wider
    where one type holds all its values; a value that would be altered stops the query. PostgreSQL's ``infinity`` is the last
    microsecond of the year 9999, ``-infinity`` the first of the year 1. ``_position`` is where a row's last change stands.
    What the log does not tell with certainty stops the query, with a sentence that says what is missing.
    """
    from ... import foreach_batch

    return foreach_batch(ChangeTable, {**({"path": path} if path is not None else {}), **options})


MERGE: Final = Options(
    truncate=Choice("refuse", among=("refuse", "delete"), meaning="what a TRUNCATE in the database does"),
    order=Choice(None, among=("log", ARRIVAL), meaning="arrival: changes count as they come, whatever their positions"),
    positionColumn=Text("_position", meaning="the column that says where a row's last change stands in the log"),
    deletedRetention=Duration(7 * 86400.0, meaning="deleted keys are remembered for so long"),
    deletes=Choice("hard", among=("hard", "soft"), meaning="soft: rows stay; deletedColumn says when they were deleted"),
    deletedColumn=Text("deleted_at", meaning="deletes=soft: the column with the time of the deletion; null for other rows"),
    history=Flag(
        False, excludes="truncate=delete: a truncation does not name the rows that it ends",
        meaning="keep all versions of the rows in a table beside (<table>_history), with valid_from, valid_to and is_current",
    ),
    onSchemaChange=POLICY,
    database=Json(
        {}, kind=dict,
        meaning="onSchemaChange=evolve: the database, as options of connectors.jdbc, or as properties of the connector",
    ),
)  # fmt: skip
"""The options of each table that changes are merged into."""


class ChangeTable(TableSink):
    """The sink behind :func:`merge`."""

    name = "connect.merge"
    options = TABLE | MERGE | Options(
        keyColumns=Names((), meaning="the columns that identify a row; default: the fields of the records' keys"),
        topic=Text(None, meaning="the topic that feeds the table; needed when the stream has several"),
        schema=Text(None, meaning="the columns of a row, for values without schemas: id INT, name STRING"),
        fill=Json({}, kind=dict, meaning='values for rows that are older than a column, where the log tells none; "*" for all'),
    )  # fmt: skip
    conditions = "foreach_batch only; the changes come in the order of the log, and the whole log comes"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        if (value := values["fill"].get(ANY)) is not None:
            yield Problem("fill", f'"{ANY}" stands for columns of any type, so it must be null; got {json.dumps(value)}.')
        yield from evolution_problems(values)

    def committer(self) -> ChangeTableCommitter:
        return ChangeTableCommitter(self)


class ChangeTableCommitter(RecordingCommitter):
    """Merges a batch and records it, in one transaction of the table."""

    def __init__(self, sink: ChangeTable, spark: SparkSession | None = None, merges: Merges | None = None) -> None:
        """``spark`` is for threads of the library's own, which share ``merges``."""
        self.sink, self.values = sink, sink.values
        self.target = ChangeTarget(sink.values)
        self.ledger = log_at(self.target.place, sink.sink_id(), spark)
        self._merges = merges or Merges()
        self.history = ChangeHistory(self.target, self._merges) if sink.values["history"] else None
        self._is_known = False

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Merges the changes that ``frame`` holds, and records the batch."""
        records = records_of(frame).persist()
        try:
            summaries, empty = summaries_of(records)
            with self._attempt():
                self._read_table(records.sparkSession, batch)
                topic = self._topic(sorted(summaries))
                summary = empty if topic is None else summaries.get(topic, empty)
                if summary.schemas and topic is not None:
                    self._merge_topic(records, topic, summary, batch)
                    return
                if self.target.types is None:
                    self._create(records.sparkSession, {}, batch)  # so that the batch is recorded
                self._end_snapshot(records.sparkSession, summary, batch)
                self.ledger.commit(Entry(batch.query, batch.number), ())
        finally:
            records.unpersist()

    def commit_topic(self, records: DataFrame, topic: str, summary: Summary, batch: Batch) -> None:
        """Merges what ``records`` (of ``records_of``) have of ``topic``. Records the batch if it alters the table."""
        spark = records.sparkSession
        with self._attempt():
            self._read_table(spark, batch)
            if summary.schemas:
                self._merge_topic(records, topic, summary, batch)
            elif self._end_snapshot(spark, summary, batch):
                self.ledger.commit(Entry(batch.query, batch.number), ())

    @property
    def awaits_end(self) -> bool:
        """True while the table needs to see each batch: its initial snapshot goes on, or that is not known yet."""
        return not self._is_known or (self.target.state is not None and self.target.state.snapshot is not None)

    def check_state(self, state: LogState) -> None:
        """Is called with the state of the table, once a run, before the run alters anything."""

    def on_alterations(self, spark: SparkSession, alterations: Sequence[Alteration], batch: Batch) -> None:
        """Is called before the table follows ``alterations`` of its source. A batch that is done again calls it again."""

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        """Behind a failure, what was done before it is seen anew."""
        try:
            yield
        except BaseException:
            self._is_known = False
            raise

    def _merge_topic(self, records: DataFrame, topic: str, summary: Summary, batch: Batch) -> None:
        own = records.where(records["topic"] == topic)
        fills = self.values["fill"]
        if self._policy().of("add.column") == "ignore":  # no value is needed for a column that does not come
            fills = {ANY: None, **fills}
        evolution = self._evolution(records.sparkSession, topic, summary)
        types = evolution.types(self.target.types or {})
        changes = changes_of(own, summary.schemas, self._schema(), types, fills, evolution.names)
        if ARRIVAL in (self.values["order"], self.target.state and self.target.state.order):
            changes = replace(changes, order=ARRIVAL)
        changes = replace(changes, declared=evolution.declared(changes, self.target.state))
        changes = with_defaults(changes, types, self.target.state and evolution.state(self.target.state))
        self._apply(changes, evolution, topic, summary, batch, records.sparkSession)

    def _evolution(self, spark: SparkSession, topic: str, summary: Summary) -> Evolution:
        """What becomes of the table's columns; nothing, unless the table is to evolve and its values tell their columns."""
        state, policy = self.target.state or LogState(topic), self.values["onSchemaChange"]
        if not policy.evolves or not (schemas := columns_of_rows(summary.schemas)):
            return Evolution(state.aliases, state.identities)
        catalog = partial(catalog_of, spark, self.values["database"], topic)
        return evolution_of(state, schemas, catalog, is_strict=policy.default == "evolve")

    def _end_snapshot(self, spark: SparkSession, summary: Summary, batch: Batch) -> bool:
        """If the initial snapshot ends with a batch without changes of the table, removes rows that it has not confirmed."""
        ends = self._snapshot_ends(spark, None, summary, batch)
        if ends:
            if self.history is not None:
                state = self.history.begin(spark, self.target.known_state)
                self.history.end(spark, is_ghost(self.target), state, batch)
            self.target.delete(spark, is_ghost(self.target))
        return ends

    def _key_columns(self, summary: Summary) -> tuple[str, ...]:
        """The columns that identify a row."""
        if self.values["keyColumns"]:
            return tuple(self.values["keyColumns"])
        if len(summary.keys) == 1:
            return summary.keys[0]
        if not summary.keys and self.target.state is not None and self.target.state.keys:
            return self.target.state.keys
        if summary.keys:
            lists = " and ".join(f"({', '.join(names)})" for names in summary.keys)
            text = f"missing; the records have keys of {lists}: changes of the one do not name rows of the other."
        else:
            text = "missing; the records have no key with fields, so name the columns that identify a row."
        raise Misconfigured(NAME, [Problem("keyColumns", text)])

    def _topic(self, topics: Sequence[str]) -> str | None:
        """The topic of the table, of ``topics`` that have changes. Raises :class:`Misconfigured` where it is not certain."""
        topic = self.values["topic"] or (self.target.state.topic if self.target.state else None)
        if self.values["topic"] or not topics:
            return topic
        if len(topics) > 1:
            text = f"missing; the stream has {len(topics)} topics ({', '.join(topics[:3])}, …), and a table is fed from one."
            raise Misconfigured(NAME, [Problem("topic", text)])
        if topic is not None and topics != [topic]:
            text = f"missing; the table is fed from {topic}, and the stream has {topics[0]} as well."
            raise Misconfigured(NAME, [Problem("topic", text)])
        return topics[0]

    def _schema(self) -> StructType | None:
        from pyspark.sql.types import StructType

        return StructType.fromDDL(self.values["schema"]) if self.values["schema"] else None  # type: ignore[return-value]

    def _apply(
        self, changes: Changes, evolution: Evolution, topic: str, summary: Summary, batch: Batch, spark: SparkSession
    ) -> None:
        if summary.may_truncate and self.values["truncate"] == "refuse" and changes.frame.where(TRUNCATES).limit(1).collect():
            raise Fatal(
                f"the table behind {topic} was truncated",
                connector=NAME,
                way_out="give truncate=delete, so that its rows are deleted here as well",
            )
        keys = self._key_columns(summary)
        if missing := [key for key in keys if key not in changes.declared]:
            text = f"{', '.join(missing)} is no column of the changes, which have {', '.join(changes.declared)}."
            raise Misconfigured(NAME, [Problem("keyColumns", text)])
        if self.target.state is not None:
            self.target.state.with_keys(keys)  # before the table follows
        own = {"positionColumn": self.target.position, "deletedColumn": self.target.deleted}
        for option, column in own.items():
            if column is not None and column.lower() in map(str.lower, changes.columns):
                way_out = "Name it otherwise there or by a transform; a new table takes another name for this option, too."
                raise Misconfigured(NAME, [Problem(option, f"names a column that {topic} has itself: {column}. {way_out}")])
        if self.history is not None:
            self.history.check([*changes.columns, *(self.target.types or ())], topic)
        changes = self._prepare(spark, changes, evolution, topic, summary, batch)
        state = self._ordered(spark, changes, keys, batch)
        placed = placed_changes(changes, state, batch, keys)
        values = {name: kind for name, kind in placed.columns.items() if name not in keys}
        holes = hole_conditions(values, placed.gaps, has_placeholders=summary.has_holes)
        cut = truncation_in(placed) if summary.may_truncate else None
        if cut is not None:
            placed = replace(placed, frame=placed.frame.where(is_behind(*cut)))
            if state.repeats_truncation(cut[0]):
                cut = None
            else:
                state = self.target.note(spark, replace(state, truncated=cut[0]))
        has_ghosts = self._snapshot_ends(spark, changes, summary, batch)
        if self.history is not None:
            state = self.history.begin(spark, self.target.known_state)
            self.history.add(placed, keys, state, batch, is_ghost(self.target) if has_ghosts else "", holes)
        known = {name.lower() for name in placed.columns}
        orphans = [name for name in state.orphans if name.lower() in {*(self.target.types or ())} - known]
        statement = MergeStatement(self.target, keys, list(placed.columns), holes, orphans, cut and cut[0], has_ghosts)
        newest = newest_changes(placed, keys, holes, summary.may_be_snapshot, bool(orphans)).persist()
        try:
            if summary.may_delete:
                self.target.remember(spark, newest.where(DELETED), keys, batch.number)  # before the rows go
            self._merge(self.target.without_late(spark, newest, keys, state), statement, replace(batch, claim=None))
        finally:
            newest.unpersist()

    def _merge(self, rows: DataFrame, statement: MergeStatement, batch: Batch) -> None:
        place = self.target.place
        view = f"connectors_{digest(batch.prefix(), place.location)}"
        if self._merges.merge(rows, view, place, self.ledger.transaction(batch), statement.text):
            self.ledger.note(batch)
        else:
            self.ledger.commit(Entry(batch.query, batch.number), ())

    def _read_table(self, spark: SparkSession, batch: Batch) -> None:
        """Looks, once a run, at what the table has and remembers; finishes what an earlier batch has begun."""
        target = self.target
        if not self._is_known:
            target.read_columns(spark)
        if target.types is not None:
            self._claim(batch)
        if not self._is_known:
            if target.types is not None:
                properties = target.properties(spark)
                if target.state is not None:
                    self.check_state(target.state)
                target.complete(spark, properties)
            self._is_known = True
        if (state := target.state) is not None:
            if state.ends is not None and (last := self.ledger.last(state.query)) is not None:
                state = state.behind(last.batch)
            target.note(spark, state.of_query(batch.query))

    def _prepare(
        self, spark: SparkSession, changes: Changes, evolution: Evolution, topic: str, summary: Summary, batch: Batch
    ) -> Changes:
        """Makes the table, or lets it follow its source, as onSchemaChange says. The changes then have columns of the table."""
        target = self.target
        if target.types is None:
            self._create(spark, changes.columns, batch)
        assert target.types is not None
        if target.state is None:
            target.forget_deletions(spark)
            begin = place_text(0, batch.number, 0) if summary.may_be_initial and not target.has_rows(spark) else None
            target.note(spark, LogState(topic, query=batch.query, snapshot=begin, deleted=target.deleted))
        state, types = evolution.state(target.known_state), evolution.types(target.types)
        remade = remade_columns(changes, state)
        position = last_position(changes) if remade or changes.declared != state.columns else ""
        if "" < position <= state.schema_position:  # records from before the last alteration, which come again
            changes = replace(changes, declared={**state.columns})
        alterations = evolution.alterations(target.known_state) + state.alterations(changes.declared)
        for name in remade:
            kind = state.columns[name]
            alterations += [Alteration("drop.column", name, kind), Alteration("add.column", name, None, kind)]
        policy = self._policy()
        passing = passing_alterations(changes, types, {alteration.column for alteration in alterations})
        alterations += [alteration for alteration in passing if policy.of(alteration.kind) != "ignore"]
        if stops := [alteration for alteration in alterations if policy.of(alteration.kind) == "exception"]:
            raise Fatal(
                f"the table behind {topic} has changed: {'; '.join(map(str, stops))}",
                connector=NAME,
                way_out="give onSchemaChange=lenient, so that the table follows, or ignore, so that it stays as it is",
            )
        if alterations:
            self.on_alterations(spark, alterations, batch)
        if steps := evolution.steps(target.types):
            target.evolve(spark, state, steps)
        types = target.types
        stay = {kind for kind in ("add.column", "alter.column.type") if policy.of(kind) == "ignore"}
        if stay:
            changes = with_columns(changes, types, adds="add.column" not in stay, widens="alter.column.type" not in stay)
        state = replace(state, origins=origins_of(changes, state.origins, types))
        for name, kind in changes.columns.items():
            if name.lower() not in types:
                target.add_column(spark, name, replace(target.known_state, origins=state.origins), changes)
                types[name.lower()] = kind
        widen(spark, target.sql, types, changes.columns)
        types.update({name.lower(): kind for name, kind in changes.columns.items()})
        target.note(spark, state.declaring(changes.declared, changes.columns, position))
        return changes

    def _policy(self) -> SchemaPolicy:
        """What onSchemaChange says; the first schema of a table makes it."""
        is_first = self.target.state is None or not self.target.state.columns
        return SchemaPolicy() if is_first else self.values["onSchemaChange"]

    def _claim(self, batch: Batch) -> None:
        """Makes the claim of a query's first batch, as of the batch before it: what follows alters the table and its notes."""
        if batch.claim is not None:
            self.ledger.commit(Entry(batch.query, batch.number - 1, claim=batch.claim), ())

    def _create(self, spark: SparkSession, types: Mapping[str, Any], batch: Batch) -> None:
        self.target.create(spark, types)
        self._claim(batch)

    def _ordered(self, spark: SparkSession, changes: Changes, keys: tuple[str, ...], batch: Batch) -> LogState:
        """The state, with the keys and the order of the batch."""
        from pyspark.sql import functions as F

        state = self.target.known_state
        logs = []
        if changes.order != ARRIVAL and changes.names_log:
            logs = changes.frame.agg(F.sort_array(F.collect_set(LOG)).alias("logs")).collect()[0]["logs"]
        return self.target.note(spark, state.with_keys(keys).ordered(changes.order, list(logs)))

    def _snapshot_ends(self, spark: SparkSession, changes: Changes | None, summary: Summary, batch: Batch) -> bool:
        """Notes what the batch has of the initial snapshot. True if the last row of the table is in it, or the log follows."""
        state = self.target.state
        if state is None or state.snapshot is None:
            return False
        rows = snapshot_rows(changes, state, batch) if changes is not None and summary.may_be_initial else None
        again = None if summary.again is None else place_text(state.life, batch.number, summary.again)
        state = state.with_snapshot(again, rows)
        ends = summary.streams or (rows is not None and rows.is_complete)
        self.target.note(spark, replace(state, ends=batch.number, streams=summary.streams) if ends else state)
        return ends

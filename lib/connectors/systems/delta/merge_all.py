"""The change log of a whole database becomes its tables: ``writeStream.foreachBatch(connectors.connect.merge_all(schema))``.

Each table is merged as :mod:`.merge` does, with ledger entries in its own transactions; the ledger of the batch follows when
all of its tables have it. So a batch that was interrupted is finished, and tables that had it already skip it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...core import Batch, Fatal, Int, Json, Misconfigured, Names, Options, Problem
from ...ground.options import Values
from .change_log import Summary, records_of, summaries_of
from .change_target import deletions_of, history_of
from .evolution import evolution_problems
from .log_state import STATE_PROPERTY, Alteration, LogState, source_name
from .merge import MERGE, ChangeTable, ChangeTableCommitter
from .sink import DeltaCommitter, TablePlace, known_columns, log_at
from .tables import CHANGES, LEDGER, TABLES, TablesCommitter, TablesSink, place_of
from .transaction import Merges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "connect.merge_all"
_ALTERATIONS: Final = (
    "at timestamp, batch bigint, table string, kind string, column string, before string, after string, policy string"
)
_log = logging.getLogger(f"connectors.{NAME}")


def merge_all(
    schema: str,
    *,
    routes: Mapping[str, str] | None = None,
    on_schema_change: str | Mapping[str, str] = "lenient",
    deletes: str = "hard",
    optimize_every: int = 0,
    **options: Any,
) -> Callable[[DataFrame, int], None]:
    r"""A function for ``writeStream.foreachBatch`` that keeps Delta tables equal to the tables of a change log.

    The stream is ``connectors.connect`` with a connector such as Debezium's, over any number of tables; its values carry their
    schemas. ``schema`` is where the tables are: a folder, if it has a slash, or a schema such as ``main.shop``. A table that is
    new in the stream appears there; the page ``cdc.md`` says when the stream of PostgreSQL has it with all of its rows.

    ``routes`` names tables by the pattern that their ``schema.table`` matches, with groups: ``{"shop\.(.*)": "shop_\1"}``;
    the first pattern counts, and others keep their names. ``on_schema_change`` is ``lenient`` (new columns and wider types
    come, and a column that was dropped stays), ``evolve`` (columns are also renamed and dropped; ``database`` has the options
    of ``connectors.jdbc``, or the properties of the connector, that reach it), ``try_evolve`` (so, where the database tells
    which column is which), ``ignore`` (the tables stay as they are) or ``exception`` (the query stops); or one of these words
    for each kind: ``{"*": "lenient", "drop.column": "exception"}``. The table ``_changes`` tells what came. With
    ``deletes="soft"`` rows stay, and ``deleted_at`` says when they were deleted. ``history=True`` keeps all versions of the
    rows in tables beside (``<table>_history``), and when each of them held. Tables are compacted every ``optimize_every``
    batches; by default not at all.

    Exactly-once for each table, as :func:`~connectors.connect.merge`, whose other options hold here for all tables;
    ``keyColumns`` and ``fill`` are given by table.
    """
    from ... import foreach_batch

    own = {
        **place_of(schema),
        "routes": dict(routes or {}),
        "onSchemaChange": on_schema_change if isinstance(on_schema_change, str) else dict(on_schema_change),
        "deletes": deletes,
        "optimizeEvery": optimize_every,
    }
    return foreach_batch(ChangeTables, {**own, **options})


class ChangeTables(TablesSink):
    """The sink behind :func:`merge_all`."""

    name = NAME
    options = TABLES | MERGE | Options(
        routes=Json({}, dict, meaning='names of tables by a pattern of "schema.table": {"shop\\\\.(.*)": "shop_\\\\1"}'),
        include=Names((), meaning="patterns of the tables that are merged; default: all"),
        exclude=Names((), meaning="patterns of tables that are left out"),
        keyColumns=Json({}, dict, meaning='columns that identify a row, by table: {"orders": ["id"], "*": ["uuid"]}'),
        fill=Json({}, dict, meaning='values for rows that are older than a column, by table: {"orders": {"note": null}}'),
        optimizeEvery=Int(0, at_least=0, meaning="the tables are compacted every so many batches; 0: never"),
    )  # fmt: skip
    conditions = "foreach_batch only; the changes come in the order of the log, and the whole log comes"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        for option in ("routes", "include", "exclude"):
            for pattern in values[option]:
                try:
                    re.compile(pattern)
                except re.error as error:
                    yield Problem(option, f'has the pattern "{pattern}", which is not one: {error}.')
        if not all(isinstance(name, str) and name for name in values["routes"].values()):
            yield Problem("routes", 'must name a table for each pattern: {"shop\\\\.(.*)": "shop_\\\\1"}.')
        for option, kind, example in (("keyColumns", list, '{"orders": ["id"]}'), ("fill", dict, '{"orders": {"note": null}}')):
            if not all(isinstance(value, kind) for value in values[option].values()):
                yield Problem(option, f"must be given by table: {example}.")
        yield from evolution_problems(values)

    def committer(self) -> ChangeTablesCommitter:
        return ChangeTablesCommitter(self)

    def table_of(self, topic: str) -> str | None:
        """The name of the table that ``topic`` feeds; ``None`` if it is left out."""
        values, name = self.values, source_name(topic)
        if values["include"] and not any(re.fullmatch(pattern, name) for pattern in values["include"]):
            return None
        if any(re.fullmatch(pattern, name) for pattern in values["exclude"]):
            return None
        for pattern, table in values["routes"].items():
            if match := re.fullmatch(pattern, name):
                return match.expand(table)
        return name.rpartition(".")[2]


class ChangeTablesCommitter(TablesCommitter):
    """Merges a batch into its tables, side by side, and records it."""

    columns = "table string, topic string, changes bigint, batch bigint, sink string"

    def __init__(self, sink: ChangeTables) -> None:
        super().__init__(sink)
        self.table_of = sink.table_of
        self.tables: dict[str, _Table] = {}
        """The tables that have been seen, by topic."""
        self._merges = Merges()
        self._is_known = False
        self._besides = {"deleted": "deleted keys", **({"history": "history"} if sink.values["history"] else {})}
        """What stands beside each table, by the end of its name."""
        self._others = set[str]()
        """The tables of other queries in the same place."""
        self._candidates = set[str]()
        """The topics of tables that may be compacted: they have got rows since the last time."""

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Merges the changes that ``frame`` holds, and records the batch."""
        records = records_of(frame).persist()
        try:
            spark = records.sparkSession
            summaries, empty = summaries_of(records)
            self._add_tables(spark, summaries.keys())
            own = {topic: table for topic, table in self.tables.items() if topic in summaries or table.awaits_end}
            writes = {
                table.name: partial(table.commit_topic, records, topic, summaries.get(topic, empty))
                for topic, table in own.items()
            }
            sink_id = self.sink.sink_id()
            changes = {topic: summary.changes for topic, summary in summaries.items() if topic in own}
            record = [(own[topic].name, topic, number, batch.number, sink_id) for topic, number in changes.items()]
            self.write_tables(spark, batch, writes, record)
            self._candidates |= changes.keys()
            every = self.sink.values["optimizeEvery"]
            if every and (batch.number + 1) % every == 0:
                self._compact(spark)
        finally:
            records.unpersist()

    def logs_of(self, spark: SparkSession, table: str) -> Sequence[DeltaCommitter]:
        return [known.ledger for known in self.tables.values() if known.name == table]

    def _add_tables(self, spark: SparkSession, topics: Set[str]) -> None:
        """Adds the tables of ``topics``, and once a run those of earlier batches, whose initial snapshots may go on."""
        history = {} if self._is_known else self._known_tables(spark)
        for topic in sorted({*topics, *history} - self.tables.keys(), key=lambda topic: (topic not in history, topic)):
            table = self.table_of(topic)
            if table != history.get(topic, table):
                text = f"{source_name(topic)} has been merged into {history[topic]}, and is now {table or 'left out'}"
                way_out = "leave routes, include and exclude as they were, or begin in another place with a new snapshot"
                raise Fatal(text, connector=f"connectors.{NAME}", way_out=way_out)
            if table is not None:
                self._check_name(table, topic)
                self.tables[topic] = _Table(self, table, topic, spark)
        self._is_known = True

    def _known_tables(self, spark: SparkSession) -> dict[str, str]:
        """The tables of earlier runs, by topic. Makes the table of alterations, as two threads cannot do so at once."""
        place = self.in_target(CHANGES)
        if known_columns(spark, place) is None:
            writer = spark.createDataFrame([], _ALTERATIONS).write.format("delta").mode("ignore")
            writer.save(place.location) if place.is_path else writer.saveAsTable(place.location)
        entries, own = self.entries(spark, "table", "topic", "sink"), self.sink.sink_id()
        self._others = {table for table, _, sink in entries if sink != own}
        return {topic: table for table, topic, sink in entries if sink == own}

    def _check_name(self, table: str, topic: str) -> None:
        for other, known in self.tables.items():
            if known.name.lower() == table.lower():
                pattern, name = re.escape(source_name(topic)), source_name(topic).replace(".", "_")
                text = f"makes one table {table} of {source_name(other)} and {source_name(topic)}; name one of them otherwise"
                text = f"{text}: {json.dumps({pattern: name})}."
                if source_name(other) == source_name(topic):
                    text = f"makes one table {table} of the topics {other} and {topic}, and no route tells them apart."
                    text = f"{text} Write one of them by a query of its own, to another place."
                raise Misconfigured(NAME, [Problem("routes", text)])
        for other_name in sorted(self._others.union(known.name for known in self.tables.values())):
            for one, beside in ((other_name, table), (table, other_name)):
                for word, what in self._besides.items():
                    if f"{one}_{word}".lower() == beside.lower():
                        text = f"keeps the {what} of {one} in {beside}, which is a table of its own; name {table} otherwise."
                        raise Misconfigured(NAME, [Problem("routes", text)])

    def _compact(self, spark: SparkSession) -> None:
        """Compacts what has got rows. A failure, such as another writer at the same time, costs no row."""
        for topic in sorted(self._candidates):
            table = self.tables[topic]
            for place in (table.target.place, *([table.history.place] if table.history else [])):
                try:
                    spark.sql(f"OPTIMIZE {place.sql}").collect()
                except Exception as error:
                    _log.warning("%s was not compacted: %s", place.sql, next(iter(str(error).splitlines()), error))
        self._candidates.clear()


class _Table(ChangeTableCommitter):
    """One table of a database."""

    def __init__(self, database: ChangeTablesCommitter, name: str, topic: str, spark: SparkSession) -> None:
        values, place = database.sink.values, database.place(name)
        self.name = name
        own: dict[str, Any] = {option: values[option] for option in MERGE.declared if values[option] is not None}
        for option in ("keyColumns", "fill"):
            if value := values[option].get(name, values[option].get("*")):
                own[option] = value
        own["path" if place.is_path else "table"] = place.location
        sink: Any = ChangeTable.of({**own, "topic": topic, "sinkId": database.sink.sink_id()})
        super().__init__(sink, spark, database._merges)
        self._changes = log_at(database.in_target(CHANGES), f"{sink.sink_id()}:{topic}", spark)

    def commit_topic(self, records: DataFrame, topic: str, summary: Summary, batch: Batch) -> None:
        """Merges what ``records`` have of ``topic``. Raises :class:`Misconfigured` for values that do not carry a schema."""
        if None in summary.schemas:
            text = f"of {topic} carry no schema: set value.converter.schemas.enable=true of the connector."
            raise Misconfigured(NAME, [Problem("values", text)])
        try:
            super().commit_topic(records, topic, summary, batch)
        except Misconfigured as error:
            problems = [replace(problem, text=f"{problem.text} {self._hint(problem.option)}") for problem in error.problems]
            raise Misconfigured(NAME, problems) from error

    def _hint(self, option: str) -> str:
        by_table = f', and {option} is given by table: {{"{self.name}": …}}' if option in ("keyColumns", "fill") else ""
        return f"The table is {self.name}{by_table}."

    def check_state(self, state: LogState) -> None:
        """Raises :class:`Misconfigured` for a table that another query, or an earlier one, feeds from another topic."""
        if state.topic != self.values["topic"]:
            text = f"makes {self.name} of {self.values['topic']}, and it is a table of {state.topic}; give it another name."
            raise Misconfigured(NAME, [Problem("routes", text)])

    def on_alterations(self, spark: SparkSession, alterations: Sequence[Alteration], batch: Batch) -> None:
        """Tells them in the table ``_changes``, once."""
        from pyspark.sql import functions as F

        policy = self.values["onSchemaChange"]
        rows = [(None, batch.number, self.name, *alteration, policy.of(alteration.kind)) for alteration in alterations]
        record = spark.createDataFrame(rows, _ALTERATIONS).withColumn("at", F.current_timestamp())
        self._changes.commit_frame(record, replace(batch, sink_id=self._changes.sink.sink_id()))


class MergedTable(NamedTuple):
    """A table of the target, by its name in the database.

    ``changes`` counts those that it has got, or the rows; ``key`` are the columns that identify a row where no log tells them.
    """

    name: str
    place: TablePlace
    changes: int
    key: Sequence[str] = ()

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the table."""
        return spark.table(self.place.sql)

    def state(self, spark: SparkSession) -> LogState | None:
        """The state of the log that feeds the table; ``None`` before the first change, and where no log does."""
        properties = spark.sql(f"SHOW TBLPROPERTIES {self.place.sql}").where(f"key = '{STATE_PROPERTY}'").collect()
        return LogState.of(properties[0]["value"], self.place.location) if properties else None

    def keys(self, spark: SparkSession) -> Sequence[str]:
        """The columns that identify a row; none where each version is a row."""
        state = self.state(spark)
        return state.keys if state else self.key


def merged_tables(spark: SparkSession, schema: str) -> list[MergedTable]:
    """The tables that ``merge_all(schema)``, or ``fan_out(schema)``, has written, by name; none before the first batch."""
    committer = committer_of(schema)
    ledger = committer.in_target(LEDGER)
    if (columns := known_columns(spark, ledger)) is None:
        return []
    newest = "struct(_metadata.file_modification_time, batch)"  # another query may count its batches from 0
    sums = "sum(changes), array()" if "changes" in columns.names else f"sum(rows), max_by(key, {newest})"
    tables = spark.sql(f"SELECT `table`, {sums} FROM {ledger.sql} GROUP BY `table` ORDER BY `table`").collect()
    return [MergedTable(name, committer.place(name), changes, key) for name, changes, key in tables]


def tables_of(spark: SparkSession, target: str, names: Sequence[str], connector: str) -> list[MergedTable]:
    """The table that a merge has written to ``target``, or all tables there, or those of ``names``.

    Raises :class:`Misconfigured` for a target or a table that no merge has written.
    """
    place = TablePlace(target.rstrip("/"), is_path="/" in target)
    if known_columns(spark, place) is not None:
        merged = [MergedTable(place.location.rpartition("/" if place.is_path else ".")[2], place, 0)]
    elif not (merged := merged_tables(spark, target)):
        text = f"must be a table or a schema that a merge has written; {target} is none."
        raise Misconfigured(connector, [Problem("target", text)])
    known = [table.name for table in merged]
    if unknown := sorted({*names} - {*known}):
        text = f"has {unknown[0]}, which is not in {target}; it has {', '.join(known)}."
        raise Misconfigured(connector, [Problem("tables", text)])
    return [table for table in merged if not names or table.name in names]


def locations(spark: SparkSession, schema: str) -> list[str]:
    """The places of all that ``merge_all(schema)`` may have made: the tables, what is kept beside them, and its own tables."""
    committer, tables = committer_of(schema), [table.place for table in merged_tables(spark, schema)]
    own = [committer.in_target(name) for name in (LEDGER, CHANGES)]
    return [place.location for place in (*tables, *map(deletions_of, tables), *map(history_of, tables), *own)]


def alterations(spark: SparkSession, schema: str) -> DataFrame:
    """The table ``_changes`` of the target, the newest first: the tables that came, and how their columns have changed."""
    return spark.table(committer_of(schema).in_target(CHANGES).sql).orderBy("at", "table", ascending=[False, True])


def committer_of(schema: str) -> ChangeTablesCommitter:
    """The committer of ``merge_all(schema)``."""
    sink: Any = ChangeTables.of(place_of(schema))
    return ChangeTablesCommitter(sink)

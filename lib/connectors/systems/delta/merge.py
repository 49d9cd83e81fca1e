"""A change log becomes the table that it tells of: ``writeStream.foreachBatch(connectors.connect.merge(path))``.

The last change of each key in a batch is merged into a Delta table, with the ledger entry in the same transaction. A change
applies only if it is newer than the row, by its position in the database's log, so repeats and older changes do no harm:

* two changes of the log, or two rows of snapshots, are compared by position;
* a change of the log always follows the row of a snapshot that it comes behind: a transaction that was open during the snapshot
  has a lower position than the snapshot;
* a snapshot that has ended holds every row there was: rows that are older than it, and not in it, are gone. An interrupted one
  starts again, and the log has no word of what was deleted between the two;
* a deleted key is remembered in a table beside (``<table>_deleted``), so that an older row does not bring it back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...core import (
    Batch,
    Duration,
    Misconfigured,
    Names,
    Options,
    Problem,
    Text,
)
from ...core.ledger import Entry
from ...core.state import digest
from ...formats.base import quoted
from . import TABLE, DeltaCommitter, DeltaSink, RecordingCommitter, TableSink, known_columns, mark_of, same_key
from .change_log import (
    DELETED,
    ENDS,
    NAME,
    ORDINAL,
    POSITION,
    SNAPSHOT,
    Changes,
    Summary,
    changes_of,
    key_columns,
    records_of,
    summary_of,
)
from .holes import hole_conditions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FROM_SNAPSHOT: Final = "r"
"""Ends the position of a row that comes from a snapshot."""
_AT: Final = "_deleted_at"
_FILL: Final = "connectors.fill"
"""The property of a table whose new column waits for its default."""
_TRANSACTION: Final = "spark.databricks.delta.write"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


def merge(path: str | None = None, **options: Any) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that keeps a Delta table equal to the table of a change log.

    The stream is ``connectors.connect`` with a connector such as Debezium's, its values Debezium's envelope or the unwrapped
    form, as JSON with or without schemas; without, types are guessed from the JSON unless ``schema`` is given. ``path`` is the
    folder of the table, or ``table`` its name; ``keyColumns`` identify a row, by default the fields of the records' keys.

    Exactly-once. New columns are added, and filled with the default that the database has for them; a column keeps the type
    that it has, unless a wider one holds all its values. ``_position`` is where the row's last change stands in the log.
    """
    from ... import foreach_batch

    return foreach_batch(ChangeTable, {**({"path": path} if path is not None else {}), **options})


class ChangeTable(TableSink):
    """The sink behind :func:`merge`."""

    name = "connect.merge"
    options = TABLE | Options(
        keyColumns=Names((), meaning="the columns that identify a row; default: the fields of the records' keys"),
        topic=Text(None, meaning="the topic that feeds the table; needed when the stream has several"),
        schema=Text(None, meaning="the columns of a row, for values without schemas: id INT, name STRING"),
        positionColumn=Text("_position", meaning="the column that says where a row's last change stands in the log"),
        deletedRetention=Duration(7 * 86400.0, meaning="deleted keys are remembered for so long"),
    )
    conditions = "foreach_batch only; changes with positions in the database's log"

    def committer(self) -> ChangeTableCommitter:
        return ChangeTableCommitter(self)


class ChangeTableCommitter(RecordingCommitter):
    """Merges a batch and records it, in one transaction of the table."""

    def __init__(self, sink: ChangeTable) -> None:
        self.sink, self.values = sink, sink.values
        place = {name: self.values[name] for name in ("path", "table") if self.values[name]}
        self.ledger = DeltaCommitter(DeltaSink.of({**place, "sinkId": sink.sink_id()}))  # type: ignore[arg-type]
        self.position = str(self.values["positionColumn"])
        self._types: dict[str, Any] | None = None
        self._remembers: bool | None = None

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Merges the changes that ``frame`` holds, and records the batch."""
        records = records_of(frame, self.values["topic"]).persist()
        try:
            summary = summary_of(records)
            if summary.schemas:
                keys = list(self.values["keyColumns"]) or key_columns(summary.key)
                changes = changes_of(records, summary.schemas, self._schema())
                self._apply(changes, keys, summary, batch, records.sparkSession)
            else:
                self.ledger.commit(Entry(batch.query, batch.number), ())
        finally:
            records.unpersist()

    def _schema(self) -> StructType | None:
        from pyspark.sql.types import StructType

        return StructType.fromDDL(self.values["schema"]) if self.values["schema"] else None  # type: ignore[return-value]

    def _apply(
        self, changes: Changes, keys: Sequence[str], summary: Summary, batch: Batch, spark: SparkSession
    ) -> None:
        if missing := [key for key in keys if key not in changes.columns]:
            text = f"{', '.join(missing)} is no column of the changes, which have {', '.join(changes.columns)}."
            raise Misconfigured(NAME, [Problem("keyColumns", text)])
        newest = newest_changes(changes, keys, summary.has_holes).persist()
        try:
            self._prepare(spark, changes)
            if summary.may_delete:
                self._remember(spark, newest.where(DELETED), keys, batch)
            whole = snapshot_end(changes) if summary.may_end_snapshot else None
            self._merge(spark, self._alive(spark, newest, keys), changes, keys, batch, summary.has_holes, whole)
        finally:
            newest.unpersist()

    def _prepare(self, spark: SparkSession, changes: Changes) -> None:
        """Makes the table, or gives it the columns that are new."""
        from pyspark.sql import functions as F

        if self._types is None:
            known = self._known_columns(spark, self._location())
            self._types = None if known is None else {field.name: field.dataType for field in known}
            if known is not None:
                self._finish_filling(spark)
        if self._types is None:
            columns = [F.lit(None).cast(kind).alias(name) for name, kind in changes.columns.items()]
            empty = spark.range(0).select(*columns, F.lit("").alias(self.position))
            writer = empty.write.format("delta").mode("append").option("delta.enableTypeWidening", "true")
            writer.save(self.values["path"]) if self.values["path"] else writer.saveAsTable(self.values["table"])
            self._types = dict(changes.columns)
            return
        types = self._types
        for name, kind in changes.columns.items():
            if name not in types:
                self._add_column(spark, name, kind.simpleString(), changes.defaults.get(name))
                types[name] = kind
            elif is_wider(kind, types[name]):
                spark.sql(f"ALTER TABLE {self._name()} ALTER COLUMN {quoted(name)} TYPE {kind.simpleString()}")
                types[name] = kind

    def _add_column(self, spark: SparkSession, name: str, kind: str, default: Any) -> None:
        """Adds a column, and fills in its default. The table remembers what is to be filled, until that is done."""
        if default is not None:
            fill = f"{quoted(name)} = CAST({_literal(default)} AS {kind})"
            spark.sql(f"ALTER TABLE {self._name()} SET TBLPROPERTIES ('{_FILL}' = {_literal(fill)})")
        spark.sql(f"ALTER TABLE {self._name()} ADD COLUMNS ({quoted(name)} {kind})")
        if default is not None:
            self._finish_filling(spark)

    def _finish_filling(self, spark: SparkSession) -> None:
        """Does what an earlier run, or this one, has begun. No change of the log has come behind it."""
        properties = spark.sql(f"SHOW TBLPROPERTIES {self._name()}").where(f"key = '{_FILL}'").collect()
        for row in properties:
            column = str(row["value"]).split(" = ")[0].strip("`")
            if column in spark.sql(f"SELECT * FROM {self._name()} LIMIT 0").columns:
                spark.sql(f"UPDATE {self._name()} SET {row['value']}")
            spark.sql(f"ALTER TABLE {self._name()} UNSET TBLPROPERTIES IF EXISTS ('{_FILL}')")

    def _merge(
        self,
        spark: SparkSession,
        rows: DataFrame,
        changes: Changes,
        keys: Sequence[str],
        batch: Batch,
        has_holes: bool,
        whole: str | None,
    ) -> None:
        """``whole`` is the position of a snapshot that ends in this batch: what it has not read any more is gone."""
        old_position = f"rtrim('{_FROM_SNAPSHOT}', old.{quoted(self.position)})"
        gone = f" WHEN NOT MATCHED BY SOURCE AND {old_position} < '{whole}' THEN DELETE" if whole else ""
        view = f"connectors_{digest(batch.prefix(), self._location())}"
        rows.createOrReplaceTempView(view)
        columns, holes = list(changes.columns), hole_conditions(changes.columns) if has_holes else {}
        sets = [f"{quoted(name)} = {_new_value(name, holes, f'old.{quoted(name)}')}" for name in columns if name not in keys]
        sets.append(f"{quoted(self.position)} = {_stored_position('new')}")
        names = ", ".join(quoted(name) for name in (*columns, self.position))
        values = ", ".join((*(_new_value(name, holes, "NULL") for name in columns), _stored_position("new")))
        try:
            with _Transaction(spark, batch) as is_recorded:
                spark.sql(
                    f"MERGE INTO {self._name()} AS old USING {view} AS new ON {same_key(keys)} "
                    f"WHEN MATCHED AND {self._is_newer()} AND new.{DELETED} THEN DELETE "
                    f"WHEN MATCHED AND {self._is_newer()} THEN UPDATE SET {', '.join(sets)} "
                    f"WHEN NOT MATCHED AND NOT new.{DELETED} THEN INSERT ({names}) VALUES ({values}){gone}"
                )
        finally:
            spark.catalog.dropTempView(view)
        if is_recorded:
            self.ledger.note(batch)
        else:
            self.ledger.commit(Entry(batch.query, batch.number), ())

    def _is_newer(self) -> str:
        old = f"old.{quoted(self.position)}"
        return (
            f"((NOT new.{SNAPSHOT} AND endswith({old}, '{_FROM_SNAPSHOT}')) "
            f"OR new.{POSITION} > rtrim('{_FROM_SNAPSHOT}', {old}))"
        )

    def _remember(self, spark: SparkSession, deletes: DataFrame, keys: Sequence[str], batch: Batch) -> None:
        """Appends the deleted keys before the rows go. A key may be there several times: its last position counts."""
        from pyspark.sql import functions as F

        rows = deletes.select(*map(quoted, keys), F.col(POSITION).alias(self.position), F.current_timestamp().alias(_AT))
        place, evolution = self._deleted_location(), {"mergeSchema": "true", "delta.enableTypeWidening": "true"}
        writer = rows.write.format("delta").mode("append").options(**evolution)  # a key may have become wider
        writer.save(place) if self.values["path"] else writer.saveAsTable(place)
        self._remembers = True
        if batch.number % 100 == 99:
            old = f"{_AT} < current_timestamp() - INTERVAL {self._retention()} SECONDS"
            spark.sql(f"DELETE FROM {self._deleted_name()} WHERE {old}")

    def _alive(self, spark: SparkSession, newest: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Without rows that are older than the deletion of their key."""
        from pyspark.sql import functions as F

        if not self._has_deleted(spark):
            return newest
        place = self._deleted_location()
        reader = spark.read.format("delta")
        deleted = reader.load(place) if self.values["path"] else spark.table(place)
        gone = deleted.select(*map(quoted, keys), F.col(quoted(self.position)).alias("gone"))
        condition: Any = F.lit(True)
        for key in keys:
            condition = condition & newest[quoted(key)].eqNullSafe(gone[quoted(key)])
        older = condition & ~newest[DELETED] & (newest[POSITION] <= gone["gone"])
        return newest.join(gone, older, "left_anti")

    def _has_deleted(self, spark: SparkSession) -> bool:
        """True if there is a table of deleted keys."""
        if self._remembers is None:
            self._remembers = self._known_columns(spark, self._deleted_location()) is not None
        return self._remembers

    def _retention(self) -> int:
        return int(self.values["deletedRetention"])

    def _location(self) -> str:
        return str(self.values["path"] or self.values["table"])

    def _deleted_location(self) -> str:
        return f"{self._location().rstrip('/')}_deleted"

    def _name(self) -> str:
        return f"delta.{quoted(self._location())}" if self.values["path"] else self._location()

    def _deleted_name(self) -> str:
        return f"delta.{quoted(self._deleted_location())}" if self.values["path"] else self._deleted_location()

    def _known_columns(self, spark: SparkSession, location: str) -> StructType | None:
        return known_columns(spark, location, is_path=bool(self.values["path"]))


def snapshot_end(changes: Changes) -> str | None:
    """The position of the last snapshot whose last row is among ``changes``."""
    from pyspark.sql import functions as F

    row = changes.frame.where(ENDS).agg(F.max(POSITION).alias("position")).head()
    return str(row["position"]) if row is not None and row["position"] is not None else None


def newest_changes(changes: Changes, keys: Sequence[str], has_holes: bool) -> DataFrame:
    """One change for each key: the one that holds after all of the batch.

    With ``has_holes``, a value that an update has not touched is that of the change before it, if the batch has that.
    """
    from pyspark.sql import functions as F

    whole = F.struct(*(F.col(quoted(name)) for name in changes.frame.columns))
    order = F.struct(POSITION, ORDINAL)

    def last(condition: Column) -> Column:
        return F.max_by(whole, F.when(condition, order))

    values = {name: kind for name, kind in changes.columns.items() if name not in keys}
    holes = hole_conditions(values) if has_holes else {}
    touched = [_last_touched(name, hole, order).alias(f"touched_{n}") for n, (name, hole) in enumerate(holes.items())]
    grouped = changes.frame.alias("new").groupBy(*map(quoted, keys)).agg(
        last(~F.col(SNAPSHOT)).alias("change"), last(F.col(SNAPSHOT)).alias("row"), *touched
    )
    change, row = F.col("change"), F.col("row")
    is_snapshot = (row[POSITION] > change[POSITION]) & (row[ORDINAL] > change[ORDINAL])
    newest = grouped.withColumn("new", F.when(change.isNull() | (row.isNotNull() & is_snapshot), row).otherwise(change))
    cells = []
    for name in changes.frame.columns:
        cell = F.col("new")[name]
        if name in holes:
            number = list(holes).index(name)
            cell = F.when(F.expr(holes[name]), F.coalesce(F.col(f"touched_{number}")[name], cell)).otherwise(cell)
        cells.append(cell.alias(name))
    return newest.select(*cells)


def _last_touched(name: str, hole: str, order: Column) -> Column:
    from pyspark.sql import functions as F

    is_value = ~F.coalesce(F.expr(hole), F.lit(False)) & ~F.col(DELETED)
    return F.max_by(F.struct(F.col(quoted(name)).alias(name)), F.when(is_value, order))


class _Transaction:
    """Sets what Delta writes into the transaction of a MERGE: the application's version, and the ledger entry.

    False where Spark takes no such settings (serverless compute): the entry then follows the merge, which does no harm when it
    is done again.
    """

    def __init__(self, spark: SparkSession, batch: Batch) -> None:
        self._conf = spark.conf
        self._settings = {
            f"{_TRANSACTION}.txnAppId": f"{batch.sink_id}:{batch.query}",
            f"{_TRANSACTION}.txnVersion": str(batch.number),
            _METADATA: mark_of(batch),
        }

    def __enter__(self) -> bool:
        try:
            for key, value in self._settings.items():
                self._conf.set(key, value)
        except Exception:  # the class of the refusal is the platform's own
            self.__exit__()
            return False
        return True

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):
            for key in self._settings:
                self._conf.unset(key)


def is_wider(kind: Any, than: Any) -> bool:
    """True if ``kind`` holds every value of ``than``, and Delta can widen the column."""
    from pyspark.sql.types import ByteType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType

    if isinstance(kind, DecimalType) and isinstance(than, DecimalType):
        grows = kind.scale >= than.scale and kind.precision - kind.scale >= than.precision - than.scale
        return grows and kind != than
    order = [ByteType, ShortType, IntegerType, LongType]
    if type(kind) in order and type(than) in order:
        return order.index(type(kind)) > order.index(type(than))
    return isinstance(kind, DoubleType) and isinstance(than, FloatType)


def _new_value(name: str, holes: Mapping[str, str], untouched: str) -> str:
    """The value of a column after a change, as SQL; ``untouched`` is the one where the condition of ``holes`` is true."""
    column = f"new.{quoted(name)}"
    return f"CASE WHEN {holes[name]} THEN {untouched} ELSE {column} END" if name in holes else column


def _stored_position(side: str) -> str:
    return f"concat({side}.{POSITION}, if({side}.{SNAPSHOT}, '{_FROM_SNAPSHOT}', ''))"


def _literal(value: Any) -> str:
    """A default as SQL."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

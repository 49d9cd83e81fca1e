"""The versions of the rows of a table that changes are merged into, and when each of them held.

The table ``<table>_history`` has the columns of the table, and

===============  ==================================================================================================
``valid_from``   the time of the change in the database, and never before that of the version in front of it
``valid_to``     the same of the version behind it; null for the newest one
``is_current``   true for the newest version of a row that is not deleted: these are the rows of the table
``is_deleted``   true for the end of a row, which has its key alone and holds for no time
``_position``    the place of the version among those of its row, as text
===============  ==================================================================================================

So the table as it was at a time ``t`` is ``valid_from <= t AND (valid_to > t OR valid_to IS NULL)``.

A batch puts its changes between the versions that are there: a repeated change is one of them, and a late one goes where it
belongs. A row of a snapshot is a version only where it differs from the one before it, and not if the log tells of the same
time itself. What a table had when its history began are versions that begin then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from ...core import Batch, Misconfigured, Problem, StateError
from ...formats.base import quoted
from ...ground.state import digest
from .change_log import AT, DELETED, NAME, ORDINAL, POSITION, SNAPSHOT, Changes
from .change_target import COMPLETE, DELETION_TIME, END, ChangeTarget, history_of
from .column_types import widen
from .holes import ABSENT, is_absent
from .log_state import LogState
from .positions import ARRIVAL, FROM_SNAPSHOT, ORDINAL_LENGTH, PLACE_LENGTH, place_text
from .sink import admit_columns, known_columns, properties_of, same_key
from .transaction import Merges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FROM, TO, CURRENT, _, _PLACE = OWN = "valid_from", "valid_to", "is_current", END, "_position"
"""The columns beside those of the table."""
_STORED, _BEFORE, _EPOCH, _LIFE, _CONTENT, _SAME, _GONE = (
    f"__connectors_{name}" for name in ("stored", "before", "epoch", "life", "content", "same", "gone")
)
"""Columns beside those of a version: is it stored, and with which times; the last snapshot of its row; how often the row was
deleted before; its values as one text; does it repeat another one; is it no version any more."""
_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Times in a text have all of their digits."""


class ChangeHistory:
    """The history of ``target``. To add changes again alters nothing."""

    def __init__(self, target: ChangeTarget, merges: Merges) -> None:
        self.target = target
        self.place = history_of(target.place)
        self._merges = merges
        self._types: dict[str, Any] | None = None
        """The columns of the table that the history has, once that was looked at."""

    def check(self, columns: Sequence[str], topic: str) -> None:
        """Raises :class:`Misconfigured` for a table that has a column of the history's own."""
        if name := next((name for name in columns if name.lower() in OWN), ""):
            text = f"needs a column {name}, and {topic} has one. Name it otherwise there or by a transform."
            raise Misconfigured(NAME, [Problem("history", text)])

    def begin(self, spark: SparkSession, state: LogState) -> LogState:
        """Makes the history of a table that has none, with the rows that are there. Returns the state of the table."""
        if state.history == COMPLETE:
            return state
        known = known_columns(spark, self.place)
        if known is not None and not state.history:
            text = f"would be in {self.place.location}, where there is a table. Remove or rename it, or give history=false."
            raise Misconfigured(NAME, [Problem("history", text)])
        state = self.target.note(spark, replace(state, history="incomplete"))
        self._create(spark)
        return self.target.note(spark, replace(state, history=COMPLETE))

    def add(
        self, changes: Changes, keys: Sequence[str], state: LogState, batch: Batch, ghosts: str, holes: Mapping[str, str]
    ) -> None:
        """Adds ``changes`` with positions as versions, and ends the rows ``old`` of the table for which ``ghosts`` is true.

        ``holes`` are conditions of values that a change does not tell, as SQL.
        """
        from pyspark.sql import functions as F

        spark = changes.frame.sparkSession
        self._follow(spark)
        rows = self._of_changes(changes, keys)
        if ghosts:
            ends = self._of_ghosts(changes.frame.agg(F.max(AT).alias(AT)), keys, ghosts, state, batch)
            rows = rows.unionByName(_rows_of(ends, rows, keys, "left_anti"), allowMissingColumns=True)
        self._merge(rows, changes, keys, state, batch, holes)

    def end(self, spark: SparkSession, ghosts: str, state: LogState, batch: Batch) -> None:
        """Ends the rows of the table for which ``ghosts`` is true."""
        from pyspark.sql import functions as F

        self._follow(spark)
        now = spark.range(1).select(F.current_timestamp().alias(AT))
        rows = self._of_ghosts(now, state.keys, ghosts, state, batch)
        self._merge(rows, None, state.keys, state, batch, {})

    def _follow(self, spark: SparkSession) -> None:
        """Gives the history the columns that the table has got."""
        types = dict(self.target.types or {})
        if types == self._types:
            return
        known = known_columns(spark, self.place)
        if known is None:
            text, way_out = f"the history {self.place.location} is gone", "restore it, or start a new table with a new snapshot"
            raise StateError(text, connector=NAME, way_out=way_out)
        have = {field.name.lower(): field.dataType for field in known}
        names = self._names(spark)
        admit_columns(spark, self.place.sql, [name for name in names if name.lower() not in have])
        for name in names:
            if name.lower() not in have:
                spark.sql(f"ALTER TABLE {self.place.sql} ADD COLUMNS ({quoted(name)} {types[name.lower()].simpleString()})")
        widen(spark, self.place.sql, have, types)
        self._types = types

    def _names(self, spark: SparkSession) -> list[str]:
        """The columns of the table."""
        own = (self.target.position, self.target.deleted)
        return [name for name in spark.sql(f"SELECT * FROM {self.target.sql} LIMIT 0").columns if name not in own]

    def _create(self, spark: SparkSession) -> None:
        from pyspark.sql import functions as F

        position = F.col(quoted(self.target.position))
        table = spark.sql(f"SELECT * FROM {self.target.sql}")
        if self.target.deleted is not None:
            table = table.where(F.col(quoted(self.target.deleted)).isNull())
        keys = [quoted(key) for key in self.target.known_state.keys]
        place = F.concat(F.split_part(position, F.lit(FROM_SNAPSHOT), F.lit(1)), F.lit(" "))
        rows = table.select(
            *map(quoted, self._names(spark)),
            F.current_timestamp().alias(FROM), F.lit(None).cast("timestamp").alias(TO),
            F.lit(True).alias(CURRENT), F.lit(False).alias(END),
            F.when(position.contains(FROM_SNAPSHOT), place).otherwise(F.concat(F.lit(" "), position)).alias(_PLACE),
        )  # fmt: skip
        if (deletions := self.target.deletions(spark)) is not None:  # what comes late is older than they are
            by_place = deletions.groupBy(*keys, F.concat(F.lit(" "), position).alias(_PLACE))
            ends = by_place.agg(F.min(DELETION_TIME).alias(FROM), F.min(DELETION_TIME).alias(TO))
            ends = ends.withColumn(CURRENT, F.lit(False)).withColumn(END, F.lit(True))
            rows = rows.unionByName(ends, allowMissingColumns=True)
        writer = rows.write.format("delta").mode("ignore").options(**properties_of(rows.columns))  # another driver may be first
        writer.save(self.place.location) if self.place.is_path else writer.saveAsTable(self.place.location)

    def _of_changes(self, changes: Changes, keys: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as F

        text = "history needs the time of each change: give the transform add.fields the field source.ts_ms, or history=false"
        at = F.coalesce(F.col(AT), F.raise_error(F.lit(text)).cast("timestamp"))
        cells = [
            (F.col(quoted(name)) if name in keys else F.when(~F.col(DELETED), F.col(quoted(name)))).alias(name)
            for name in changes.columns
        ]
        return changes.frame.select(*cells, DELETED, SNAPSHOT, POSITION, ORDINAL, ABSENT, at.alias(AT))

    def _of_ghosts(self, at: DataFrame, keys: Sequence[str], ghosts: str, state: LogState, batch: Batch) -> DataFrame:
        """The ends of the rows ``old`` of the table for which ``ghosts`` is true, which a snapshot has seen ``at`` a time."""
        from pyspark.sql import functions as F

        position = f"{state.generation:03d}{place_text(state.life, batch.number, 0)}"
        sql = f"SELECT {', '.join(map(quoted, keys))} FROM {self.target.sql} AS old WHERE {ghosts}"
        return at.sparkSession.sql(sql).crossJoin(at).select(
            *map(quoted, keys),
            F.lit(True).alias(DELETED), F.lit(True).alias(SNAPSHOT),
            F.lit(position).alias(POSITION), F.lit(0).cast("bigint").alias(ORDINAL), AT,
            F.array().cast("array<string>").alias(ABSENT),
        )  # fmt: skip

    def _merge(
        self,
        rows: DataFrame,
        changes: Changes | None,
        keys: Sequence[str],
        state: LogState,
        batch: Batch,
        holes: Mapping[str, str],
    ) -> None:
        from pyspark.sql import functions as F

        names = [name for name in self._stored(rows.sparkSession).columns if name not in OWN]
        present = {name.lower() for name in changes.columns} if changes is not None else set()
        # a change leaves a column as it is that its source has no more, as in the table
        holes = {**holes} | {name: "true" for name in names if name.lower() not in {*present, *map(str.lower, keys)}}
        versions = _with_times(self._versions(rows, names, keys, state, holes), keys)
        is_new = ~F.col(_STORED) & ~F.col(_GONE)
        is_other = F.col(_STORED) & (F.col(_GONE) | ~F.struct(FROM, TO, CURRENT).eqNullSafe(F.col(_BEFORE)))
        versions = versions.where(is_new | is_other).persist()
        columns = [*names, *OWN]
        listing, values = (", ".join(f"{side}{quoted(name)}" for name in columns) for side in ("", "new."))
        sets = ", ".join(f"{name} = new.{name}" for name in (FROM, TO, CURRENT))
        # another driver may have gone on since the versions were read
        is_as_read = f"struct(old.{FROM}, old.{TO}, old.{CURRENT}) <=> new.{_BEFORE}"

        def statement(target: str, source: str) -> str:
            return (
                f"MERGE INTO {target} AS old USING {source} AS new ON {same_key(keys)} AND old.{_PLACE} = new.{_PLACE} "
                f"WHEN MATCHED AND new.{_GONE} THEN DELETE WHEN MATCHED AND {is_as_read} THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND NOT new.{_STORED} THEN INSERT ({listing}) VALUES ({values})"
            )

        view = f"connectors_{digest(batch.prefix(), self.place.location)}"
        try:
            self._merges.merge(versions, view, self.place, None, statement)
        finally:
            versions.unpersist()

    def _stored(self, spark: SparkSession) -> DataFrame:
        place = self.place
        return spark.read.format("delta").load(place.location) if place.is_path else spark.table(place.location)

    def _versions(
        self, rows: DataFrame, names: Sequence[str], keys: Sequence[str], state: LogState, holes: Mapping[str, str]
    ) -> DataFrame:
        """The versions of all rows that ``rows`` change, also those that are stored, each once and with all of its values."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        spark = rows.sparkSession
        epoch, position = (F.split_part(F.col(_PLACE), F.lit(" "), F.lit(part)) for part in (1, 2))
        stored = _rows_of(self._stored(spark), rows, keys).select(
            *map(quoted, names),
            F.col(END).alias(DELETED), (position == "").alias(SNAPSHOT), position.alias(POSITION),
            F.lit(-1).cast("bigint").alias(ORDINAL), F.col(FROM).alias(AT), F.lit(True).alias(_STORED), epoch.alias(_EPOCH),
            F.struct(FROM, TO, CURRENT).alias(_BEFORE),
        )  # fmt: skip
        # a snapshot that has read a row as it was is no version of it, but the table knows of it
        position = F.col(quoted(self.target.position))
        read = _rows_of(spark.sql(f"SELECT * FROM {self.target.sql}").where(position.contains(FROM_SNAPSHOT)), rows, keys)
        epoch = F.split_part(position, F.lit(FROM_SNAPSHOT), F.lit(1))
        snapshots = read.select(*map(quoted, keys), F.lit(True).alias(_STORED), epoch.alias(_EPOCH))
        whole = rows.withColumn(_STORED, F.lit(False)).unionByName(stored, allowMissingColumns=True)
        whole = whole.unionByName(snapshots, allowMissingColumns=True)
        position = F.col(POSITION)
        # a batch that is done again may have its records in another order
        place_length = ORDINAL_LENGTH if state.order == ARRIVAL else PLACE_LENGTH
        log_part = position.substr(F.lit(1), F.length(position) - place_length)
        by_key = Window.partitionBy(*map(quoted, keys))
        log = Window.partitionBy(*map(quoted, keys), SNAPSHOT)
        newest = F.max(F.when(F.col(SNAPSHOT) & ~F.col(_STORED), position)).over(by_key.orderBy(ORDINAL))
        newest = F.greatest(newest, F.max(_EPOCH).over(by_key), F.lit(""))
        is_repeat = F.max(_STORED).over(Window.partitionBy(*map(quoted, keys), SNAPSHOT, log_part))
        # as in the table, a change is behind the snapshot, unless it is older than a deletion or comes again
        deleted = F.max(F.when(F.col(_STORED) & F.col(DELETED), F.col(_EPOCH))).over(log.orderBy(log_part.desc()))
        epoch = F.when(F.col(_STORED), F.col(_EPOCH)).when(F.col(SNAPSHOT), newest)
        whole = whole.withColumn(_EPOCH, epoch.otherwise(F.coalesce(deleted, F.when(~is_repeat, newest))))
        whole = whole.withColumn(_EPOCH, F.coalesce(_EPOCH, F.max(_EPOCH).over(log.orderBy(log_part))))
        whole = whole.where(position.isNotNull())
        place = F.concat(F.col(_EPOCH), F.lit(" "), F.when(F.col(SNAPSHOT), "").otherwise(F.col(POSITION)))
        whole = _whole(whole.withColumn(_PLACE, place), keys, holes)
        content = F.when(F.col(DELETED), "").otherwise(F.to_json(F.struct(*map(quoted, names)), _JSON))
        whole = whole.withColumn(_CONTENT, content)
        equal = Window.partitionBy(*map(quoted, keys), SNAPSHOT, _EPOCH, log_part)
        before = F.lag(_CONTENT).over(equal.orderBy(_PLACE))
        is_stored = F.max(_STORED).over(Window.partitionBy(*map(quoted, keys), SNAPSHOT, DELETED, _EPOCH, log_part, _CONTENT))
        whole = whole.withColumn(_SAME, is_stored | F.coalesce(before == F.col(_CONTENT), F.lit(False)))
        return whole.where(F.col(_STORED) | F.col(SNAPSHOT) | ~F.col(_SAME)).drop(_SAME, ORDINAL, ABSENT)


def _rows_of(frame: DataFrame, others: DataFrame, keys: Sequence[str], how: str = "left_semi") -> DataFrame:
    """The rows of ``frame`` whose keys ``others`` have, or have not."""
    from pyspark.sql import functions as F

    touched = others.select(*map(quoted, keys)).distinct().alias("new")
    condition = reduce(and_, (F.col(f"old.{quoted(key)}").eqNullSafe(F.col(f"new.{quoted(key)}")) for key in keys))
    return frame.alias("old").join(touched, condition, how)


def _order(keys: Sequence[str], *more: str) -> Any:
    """The versions of a row in their order; of one place, the stored one is first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    return Window.partitionBy(*map(quoted, keys), *more).orderBy(_PLACE, F.col(_STORED).desc())


def _whole(versions: DataFrame, keys: Sequence[str], holes: Mapping[str, str]) -> DataFrame:
    """``versions`` with values that a change has not touched from the version before it, but not from before the row began.

    ``holes`` are conditions of such values, as SQL.
    """
    from pyspark.sql import functions as F

    if not holes:
        return versions
    order = _order(keys)
    versions = versions.withColumn(_LIFE, F.coalesce(F.lag(DELETED).over(order), F.lit(False)).cast("int"))
    versions = versions.withColumn(_LIFE, F.sum(_LIFE).over(order)).alias("new")
    cells: list[Column] = []
    for name in versions.columns:
        cell = F.col(quoted(name))
        if name in holes:
            is_hole = ~F.col(_STORED) & ~F.col(DELETED) & F.coalesce(F.expr(holes[name]), F.lit(False))
            conditions = ~is_hole & ~F.col(DELETED), is_hole & F.expr(is_absent(name))
            values = (F.when(condition, F.struct(cell.alias("value"))) for condition in conditions)
            last = (F.last(value, ignorenulls=True).over(_order(keys, _LIFE)) for value in values)
            cell = F.when(is_hole, F.coalesce(*last)["value"]).otherwise(cell)
        cells.append(cell.alias(name))
    return versions.select(*cells).drop(_LIFE)


def _with_times(versions: DataFrame, keys: Sequence[str]) -> DataFrame:
    """``versions`` with the columns of the history; ``_GONE`` are rows of snapshots that tell nothing new."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = _order(keys)
    change = F.when(~F.col(SNAPSHOT), F.col(AT))
    back = Window.partitionBy(*map(quoted, keys)).orderBy(F.col(_PLACE).desc(), F.col(_STORED))  # forward is quadratic in Spark
    change = F.last(change, ignorenulls=True).over(back.rowsBetween(Window.unboundedPreceding, -1))
    is_same = (F.lag(_CONTENT).over(order) == F.col(_CONTENT)) & (F.lag(DELETED).over(order) == F.col(DELETED))
    is_gone = F.col(SNAPSHOT) & (F.coalesce(is_same, F.lit(False)) | F.coalesce(change <= F.col(AT), F.lit(False)))
    order = _order(keys, _GONE)
    versions = versions.withColumn(_GONE, is_gone)
    versions = versions.withColumn(FROM, F.max(AT).over(order)).withColumn(TO, F.lead(FROM).over(order))
    others = [quoted(name) for name in versions.columns if name not in (AT, TO, _CONTENT, _EPOCH, POSITION, SNAPSHOT, DELETED)]
    return versions.select(
        *others,
        F.when(F.col(DELETED), F.col(FROM)).otherwise(F.col(TO)).alias(TO),
        (F.col(TO).isNull() & ~F.col(DELETED)).alias(CURRENT),
        F.col(DELETED).alias(END),
    )

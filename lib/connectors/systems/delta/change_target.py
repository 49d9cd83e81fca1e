"""The Delta table that changes are merged into: its columns, what it remembers of its log, and its deleted keys beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...core import Misconfigured, Problem
from ...formats.base import quoted
from ...ground.options import Values
from .change_log import DELETED, NAME, POSITION, SNAPSHOT, Changes, unknown_value
from .log_state import STATE_PROPERTY, LogState
from .sink import MAPPING, TablePlace, admit_columns, known_columns, properties_of
from .transaction import beside_others

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETION_TIME: Final = "_deleted_at"
"""The column of the deleted keys that has the time at which a key was remembered."""
_POSITION: Final = "__connectors_deletion"
_FILL: Final = "connectors.fill"
"""The property of a table whose new column waits for its default."""
_EVOLUTION: Final = "connectors.evolution"
"""The property of a table some of whose columns wait for their new names, or for their end."""
PENDING: Final = (_FILL, _EVOLUTION)
"""The properties of a table whose columns are not yet those of its state."""
COMPLETE: Final = "complete"
"""The state of a history that has all rows of the table."""
END: Final = "is_deleted"
"""The column of the history that tells the ends of rows."""


class ChangeTarget:
    """A table, by the options of its sink. ``types`` are its columns, by their names in lower case; ``None`` for no table."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.place = TablePlace(str(values["path"] or values["table"]), is_path=bool(values["path"]))
        self.position = str(values["positionColumn"])
        self.deleted = str(values["deletedColumn"]) if values["deletes"] == "soft" else None
        """The column that says when a row was deleted, where rows stay."""
        self.types: dict[str, Any] | None = None
        self.state: LogState | None = None
        self._deletions = deletions_of(self.place)
        self._has_deletions: bool | None = None

    @property
    def sql(self) -> str:
        """The table, as SQL names it."""
        return self.place.sql

    @property
    def known_state(self) -> LogState:
        """The state, which there is once a change has come."""
        assert self.state is not None
        return self.state

    def read_columns(self, spark: SparkSession) -> None:
        """Looks at the table anew."""
        self.state = self._has_deletions = None
        self._read_types(spark)

    def _read_types(self, spark: SparkSession) -> None:
        self.types = None
        if (known := known_columns(spark, self.place)) is not None:
            own = (self.position, self.deleted)
            self.types = {column.name.lower(): column.dataType for column in known if column.name not in own}

    def properties(self, spark: SparkSession) -> dict[str, str]:
        """The properties of the table. Its state is known then, too."""
        properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {self.sql}").collect()}
        if STATE_PROPERTY in properties:
            self.state = LogState.of(properties[STATE_PROPERTY], self.place.location)
        return properties

    def complete(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        """Adds the column of deletions if it is not there, and finishes what an earlier run has begun."""
        self._add_deleted_column(spark)
        if self.state is not None and self.state.history and not self.values["history"]:
            text = f"must be true: else {history_of(self.place).location} would lack what comes now."
            raise Misconfigured(NAME, [Problem("history", text)])
        if _FILL in properties:
            self.fill(spark, json.loads(bytes.fromhex(properties[_FILL])))
        if _EVOLUTION in properties:
            steps = json.loads(bytes.fromhex(properties[_EVOLUTION]))
            # a column that Delta does not drop, such as one that partitions the table, stays without evolve
            self._alter(spark, [step for step in steps if len(step) > 1 or self.values["onSchemaChange"].evolves])

    def create(self, spark: SparkSession, types: Mapping[str, Any]) -> None:
        """Makes the table."""
        from pyspark.sql import functions as F

        columns = [F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
        columns.append(F.lit("").alias(self.position))
        if self.deleted is not None:
            columns.append(F.lit(None).cast("timestamp").alias(self.deleted))
        writer = spark.range(0).select(*columns).write.format("delta").mode("append").options(**properties_of(types))
        writer.save(self.place.location) if self.place.is_path else writer.saveAsTable(self.place.location)
        self.types = {name.lower(): kind for name, kind in types.items()}

    def note(self, spark: SparkSession, state: LogState) -> LogState:
        """Remembers ``state``."""
        if state != self.state:
            self._set_properties(spark, {STATE_PROPERTY: state.text()})
            self.state = state
        return state

    def has_rows(self, spark: SparkSession) -> bool:
        return bool(spark.sql(f"SELECT 1 FROM {self.sql} LIMIT 1").collect())

    def add_column(self, spark: SparkSession, name: str, state: LogState, changes: Changes) -> None:
        """Adds a column of ``state``, and fills in its default. The table remembers what is to be filled, until it is."""
        origin = state.origins[name.lower()]
        is_left_out = self.state is not None and name in self.state.columns and name not in self.values["fill"]
        if (is_left_out or name in changes.required) and self.has_rows(spark):
            raise _left_out(name) if is_left_out else unknown_value(name)
        fill = {} if origin.default is None else {_FILL: _hexadecimal(name)}
        self._set_properties(spark, {STATE_PROPERTY: state.text(), **fill})
        self.state = state
        beside_others(lambda: admit_columns(spark, self.sql, [name]))
        self._alter_table(spark, f"ADD COLUMNS ({quoted(name)} {origin.kind})")
        if fill:
            self.fill(spark, name)

    def fill(self, spark: SparkSession, name: str) -> None:
        """Does what an earlier run, or this one, has begun. No change of the log has come behind it."""
        if name in spark.sql(f"SELECT * FROM {self.sql} LIMIT 0").columns:
            origin = self.known_state.origins[name.lower()]
            value = origin.sql()
            beside_others(lambda: spark.sql(f"UPDATE {self.sql} SET {quoted(name)} = {value}"))
            history = history_of(self.place)
            if self.state is not None and self.state.history and (known := known_columns(spark, history)) is not None:
                if name.lower() not in map(str.lower, known.names):
                    admit_columns(spark, history.sql, [name])
                    spark.sql(f"ALTER TABLE {history.sql} ADD COLUMNS ({quoted(name)} {origin.kind})")
                spark.sql(f"UPDATE {history.sql} SET {quoted(name)} = {value} WHERE NOT {END}")
        self._alter_table(spark, f"UNSET TBLPROPERTIES IF EXISTS ('{_FILL}')")

    def evolve(self, spark: SparkSession, state: LogState, steps: Sequence[Sequence[str]]) -> None:
        """Drops and renames columns. The table remembers ``state`` and the ``steps`` that are left, until all are done."""
        self._set_properties(spark, {STATE_PROPERTY: state.text(), _EVOLUTION: _hexadecimal(steps)})
        self.state = state
        self._alter(spark, steps)

    def _alter(self, spark: SparkSession, steps: Sequence[Sequence[str]]) -> None:
        """Does what an earlier run, or this one, has begun. Delta writes no file anew: its columns get names of their own."""
        self._set_properties(spark, MAPPING)
        for number, (name, *new) in enumerate(steps, 1):
            if name.lower() in map(str.lower, spark.table(self.sql).columns):
                action = f"RENAME COLUMN {quoted(name)} TO {quoted(new[0])}" if new else f"DROP COLUMN {quoted(name)}"
                self._alter_table(spark, action)
            if left := steps[number:]:  # another column may have the name by then
                self._set_properties(spark, {_EVOLUTION: _hexadecimal(left)})
        self._alter_table(spark, f"UNSET TBLPROPERTIES IF EXISTS ('{_EVOLUTION}')")
        self._read_types(spark)

    def delete(self, spark: SparkSession, condition: str, check: Callable[[], None] | None = None) -> int:
        """Deletes the rows ``old`` for which ``condition`` is true, or says of them that they are deleted, where rows stay.

        ``check`` is called before each try. Returns their number.
        """
        statement = f"DELETE FROM {self.sql} AS old WHERE {condition}"
        if self.deleted is not None:
            column = quoted(self.deleted)
            statement = f"UPDATE {self.sql} AS old SET {column} = current_timestamp() WHERE {column} IS NULL AND ({condition})"

        def work() -> int:
            if check is not None:
                check()
            return int(spark.sql(statement).collect()[0][0])

        return beside_others(work)

    def remember(self, spark: SparkSession, deletes: DataFrame, keys: Sequence[str], number: int) -> None:
        """Appends the deleted keys of a batch. A key may be there several times: its last position counts."""
        from pyspark.sql import functions as F

        position, time = F.col(POSITION).alias(self.position), F.current_timestamp().alias(DELETION_TIME)
        rows = deletes.select(*map(quoted, keys), position, time)
        place, evolution = self._deletions, {"mergeSchema": "true", **properties_of(keys)}  # a key may have become wider
        writer = rows.write.format("delta").mode("append").options(**evolution)
        writer.save(place.location) if place.is_path else writer.saveAsTable(place.location)
        self._has_deletions = True
        if number % 100 == 99:
            retention = int(self.values["deletedRetention"])
            spark.sql(f"DELETE FROM {place.sql} WHERE {DELETION_TIME} < current_timestamp() - INTERVAL {retention} SECONDS")

    def forget_deletions(self, spark: SparkSession) -> None:
        """Removes the deleted keys of a table that was here before."""
        if self._remembers_deletions(spark):
            spark.sql(f"DELETE FROM {self._deletions.sql}")

    def deletions(self, spark: SparkSession) -> DataFrame | None:
        """The deleted keys, the positions of their deletions, and ``DELETION_TIME``; ``None`` for a table without any."""
        if not self._remembers_deletions(spark):
            return None
        place = self._deletions
        return spark.read.format("delta").load(place.location) if place.is_path else spark.table(place.location)

    def without_late(self, spark: SparkSession, changes: DataFrame, keys: Sequence[str], state: LogState) -> DataFrame:
        """``changes`` without those that are older than a truncation, or than the deletion of their key."""
        from pyspark.sql import functions as F

        if state.truncated is not None:
            truncated = state.log_part(state.truncated)
            changes = changes.where(F.col(SNAPSHOT) | (F.col(POSITION).substr(1, len(truncated)) > truncated))
        if (table := self.deletions(spark)) is None:
            return changes
        deletions = table.select(*map(quoted, keys), F.col(quoted(self.position)).alias(_POSITION))
        condition: Any = F.lit(True)
        for key in keys:
            condition = condition & changes[quoted(key)].eqNullSafe(deletions[quoted(key)])
        is_older = condition & ~changes[DELETED] & ~changes[SNAPSHOT] & (changes[POSITION] <= deletions[_POSITION])
        return changes.join(deletions, is_older, "left_anti")

    def _add_deleted_column(self, spark: SparkSession) -> None:
        """Adds the column that tells which rows are deleted. The state has its name first: no column of the source is it."""
        columns = [name.lower() for name in spark.table(self.sql).columns]
        if (state := self.state) is not None:
            if state.deleted not in (None, self.deleted):
                text = f"must be soft, with deletedColumn={state.deleted}, which tells the deleted rows of the table."
                raise Misconfigured(NAME, [Problem("deletes", text)])
            own = {*columns, *map(str.lower, state.columns)}
            if self.deleted is not None and state.deleted is None and self.deleted.lower() in own:
                text = f"names a column that {state.topic} has, or has had: {self.deleted}. Give it another name."
                raise Misconfigured(NAME, [Problem("deletedColumn", text)])
            self.note(spark, replace(state, deleted=self.deleted))
        if self.deleted is not None and self.deleted.lower() not in columns:
            self._alter_table(spark, f"ADD COLUMNS ({quoted(self.deleted)} TIMESTAMP)")

    def _remembers_deletions(self, spark: SparkSession) -> bool:
        if self._has_deletions is None:
            self._has_deletions = known_columns(spark, self._deletions) is not None
        return self._has_deletions

    def _set_properties(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        texts = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._alter_table(spark, f"SET TBLPROPERTIES ({texts})")

    def _alter_table(self, spark: SparkSession, action: str) -> None:
        beside_others(lambda: spark.sql(f"ALTER TABLE {self.sql} {action}"))


def _hexadecimal(work: Any) -> str:
    return json.dumps(work).encode().hex()


def deletions_of(table: TablePlace) -> TablePlace:
    """The place where the deleted keys of ``table`` are remembered."""
    return table_beside(table, "deleted")


def history_of(table: TablePlace) -> TablePlace:
    """The place of the history of ``table``."""
    return table_beside(table, "history")


def table_beside(table: TablePlace, word: str) -> TablePlace:
    """The place of the table whose name is that of ``table`` and ``word``."""
    location = table.location.rstrip("/")
    is_quoted = not table.is_path and location.endswith("`")
    return table._replace(location=f"{location[:-1]}_{word}`" if is_quoted else f"{location}_{word}")


def _left_out(name: str) -> Misconfigured:
    text = (
        f"the table has been without the column {name}, which the rows had in the log: their values are not known. Give "
        f'fill={{"{name}": null}}, which leaves them empty until the rows change, or come by a new snapshot.'
    )
    return Misconfigured(NAME, [Problem("fill", text)])

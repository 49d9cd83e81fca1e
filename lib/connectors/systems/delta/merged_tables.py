"""What ``connect.merge_all`` has written: its tables, for those who judge or show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .change_target import deletions_of
from .log_state import STATE_PROPERTY, LogState
from .merge_all import CHANGES, ChangeTables, ChangeTablesCommitter
from .sink import TablePlace, known_columns
from .tables import LEDGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class MergedTable(NamedTuple):
    """A table of the target, by its name in the database; ``changes`` counts those that it has got."""

    name: str
    place: TablePlace
    changes: int

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the table."""
        return spark.table(self.place.sql)

    def keys(self, spark: SparkSession) -> Sequence[str]:
        """The columns that identify a row; none before the first change."""
        properties = spark.sql(f"SHOW TBLPROPERTIES {self.place.sql}").where(f"key = '{STATE_PROPERTY}'").collect()
        return LogState.of(properties[0]["value"], self.place.location).keys if properties else ()


def merged_tables(spark: SparkSession, schema: str) -> list[MergedTable]:
    """The tables that ``merge_all(schema)`` has written, by name; none before the first batch."""
    committer = _committer(schema)
    ledger = committer.in_target(LEDGER)
    if known_columns(spark, ledger) is None:
        return []
    sums = spark.sql(f"SELECT `table`, sum(changes) FROM {ledger.sql} GROUP BY `table` ORDER BY `table`").collect()
    return [MergedTable(name, committer.place(name), changes) for name, changes in sums]


def locations(spark: SparkSession, schema: str) -> list[str]:
    """The places of all that ``merge_all(schema)`` may have made: the tables, their deleted keys, and its own tables."""
    committer, tables = _committer(schema), [table.place for table in merged_tables(spark, schema)]
    own = [committer.in_target(name) for name in (LEDGER, CHANGES)]
    return [place.location for place in (*tables, *map(deletions_of, tables), *own)]


def alterations(spark: SparkSession, schema: str) -> DataFrame:
    """The table ``_changes`` of the target, the newest first: the tables that came, and how their columns have changed."""
    return spark.table(_committer(schema).in_target(CHANGES).sql).orderBy("at", "table", ascending=[False, True])


def _committer(schema: str) -> ChangeTablesCommitter:
    sink: Any = ChangeTables.of({"path" if "/" in schema else "schema": schema})
    return ChangeTablesCommitter(sink)

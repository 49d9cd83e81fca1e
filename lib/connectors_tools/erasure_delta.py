"""How a person's rows are erased from a Delta table.

A Delta table keeps what was deleted in files of earlier versions, until VACUUM removes them. VACUUM of everything at once
would also take files from under a writer that has not committed them, and from under readers of an earlier version. So it
runs with the table's own retention, and with a shorter one only over files that the log has (``LITE``): no writer needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from connectors.formats.base import quoted
from connectors.ground.errors import StateError
from connectors.metrics.words import count
from connectors.spark.session import as_active

from .erasure import Erasure, Report, count_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from connectors.systems.delta.sink import TablePlace

_MARK: Final = "connectors erase"
"""The metadata of the versions of a table that this has made."""
_TRIES: Final = 10
"""So often a deletion is tried: outside of Databricks, Delta refuses it if another writer has appended rows meanwhile."""
_VIEW: Final = "connectors_erase"


def delta(erasure: Erasure, location: str) -> Iterator[Report]:
    """A table, and what ``connect.merge`` keeps beside it: deleted keys, and the versions of its rows."""
    from connectors import workbench
    from connectors.systems.delta.change_target import deletions_of, history_of
    from connectors.systems.delta.history import OWN
    from connectors.systems.delta.sink import TablePlace, known_columns
    from connectors.systems.delta.transaction import own_session

    spark, table = own_session(workbench.session()), TablePlace(location, is_path="/" in location)
    schema = known_columns(spark, table)
    if schema is None:
        raise StateError(f"there is no Delta table {location}", way_out="give a path with a slash, or the name of a table")
    yield _DeltaTable(erasure, spark, table, schema).erase()
    for beside, own in ((deletions_of(table), ("_deleted_at",)), (history_of(table), OWN)):
        columns = known_columns(spark, beside)
        if columns is not None and {*own} <= {*columns.names}:
            yield _DeltaTable(erasure, spark, beside, columns).erase()


class _DeltaTable:
    def __init__(self, erasure: Erasure, spark: SparkSession, table: TablePlace, schema: StructType) -> None:
        self.erasure, self.spark, self.schema = erasure, spark, schema
        self.name = table.sql
        self.report = Report(f"delta:{table.location}")
        columns = {name.lower(): name for name in schema.names}
        self.columns = [columns.get(name.lower(), "") for name in erasure.key]

    def erase(self) -> Report:
        report, names = self.report, ", ".join(self.schema.names)
        if "" in self.columns:
            report.found = None
            report.left.append(f"nobody can tell its rows by {', '.join(self.erasure.key)}: it has the columns {names}")
            return report
        keys = self._keys()
        if None in tuple(keys.collect()[0]):
            raise StateError("a value is not of the type of its column", way_out=f"it has {self.schema.simpleString()}")
        keys.createOrReplaceTempView(_VIEW)
        report.found = count_same(self.erasure, self._select(self._condition()))
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        details = self.spark.sql(f"DESCRIBE DETAIL {self.name}").collect()[0].asDict(recursive=True)
        if not self.erasure.dry_run:
            self._delete(details)
            self._vacuum()
        self._look_for_files(keys, details)
        self._look_for_statistics(details["properties"])
        return report

    def _keys(self) -> DataFrame:
        """One row with the values of the key: no statement, and so no version of the table, has them."""
        from pyspark.sql import functions as F

        texts = ", ".join(f"k{number} string" for number in range(len(self.columns)))
        with as_active(self.spark):  # Spark makes a session that creates a frame the active one for good
            row = self.spark.createDataFrame([tuple(self.erasure.key.values())], texts)
        kinds = [self.schema[name].dataType for name in self.columns]
        return row.select(*(F.col(f"k{number}").try_cast(kind).alias(f"k{number}") for number, kind in enumerate(kinds)))

    def _condition(self) -> str:
        return " AND ".join(f"old.{quoted(name)} = new.k{number}" for number, name in enumerate(self.columns))

    def _same_bytes(self) -> str:
        """The condition that no collation of a text takes another one for equal."""
        names = [(f"old.{quoted(name)}", f"new.k{n}") for n, name in enumerate(self.columns) if self._is_text(name)]
        return "".join(f" AND CAST({old} AS BINARY) = CAST({new} AS BINARY)" for old, new in names)

    def _is_text(self, name: str) -> bool:
        return self.schema[name].dataType.typeName() == "string"

    def _select(self, condition: str) -> list[tuple[Any, ...]]:
        names = [f"old.{quoted(name)}" for name in self.columns]
        # A collation that takes Anna for anna has one group for both, unless their bytes are in it.
        texts = [f"CAST({name} AS BINARY)" for name, old in zip(names, self.columns, strict=True) if self._is_text(old)]
        columns = ", ".join([*names, *texts])
        sql = f"SELECT {columns}, count(*) FROM {self.name} AS old JOIN {_VIEW} AS new ON {condition} GROUP BY ALL"
        return [tuple(row) for row in self.spark.sql(sql).collect()]

    def _delete(self, details: Mapping[str, Any]) -> None:
        """Two versions: without the rows, and without files that have them still, in which a vector marks them as deleted."""
        self.spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", _MARK)
        try:
            if self.report.found:
                condition = f"{self._condition()}{self._same_bytes()}"  # also of rows that have come since they were compared
                sql = f"MERGE INTO {self.name} AS old USING {_VIEW} AS new ON {condition} WHEN MATCHED THEN DELETE"
                self.report.erased = int(self._commit(sql)[0]["num_deleted_rows"])
            if "deletionVectors" in (details["tableFeatures"] or ()):
                self._commit(f"REORG TABLE {self.name} APPLY (PURGE)")
        finally:
            self.spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")

    def _commit(self, sql: str) -> list[Any]:
        from pyspark.errors import PySparkException

        for number in range(_TRIES):
            try:
                return self.spark.sql(sql).collect()
            except PySparkException as error:
                if number == _TRIES - 1 or "CONCURRENT" not in (error.getCondition() or str(error)):
                    raise
        return []

    def _vacuum(self) -> None:
        self.spark.sql(f"VACUUM {self.name}").collect()
        if self.erasure.retention is not None:
            self.spark.sql(f"VACUUM {self.name} LITE RETAIN {self.erasure.retention / 3600:.6f} HOURS").collect()

    def _look_for_files(self, keys: DataFrame, details: Mapping[str, Any]) -> None:
        """Counts the files that are not of the newest version and have the rows."""
        from pyspark.sql import functions as F

        listing = self.spark.sql(f"VACUUM {self.name} RETAIN 0 HOURS DRY RUN").collect()
        paths = [row["path"] for row in listing if row["path"].endswith(".parquet")]
        mapped = details["properties"].get("delta.columnMapping.mode", "none") != "none"
        inside = [name for name in self.columns if name not in details["partitionColumns"] and not mapped]
        number = len(paths)  # a file does not tell the columns that are in its path, or have other names in it
        if paths and inside:
            known: Any = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true", "recursiveFileLookup": "true"}
            reader = self.spark.read.schema(type(self.schema)([self.schema[name] for name in inside])).options(**known)
            files = reader.parquet(*paths).withColumn("_file", F.input_file_name())
            condition: Any = F.lit(True)
            for name in inside:
                condition = condition & (files[quoted(name)] == keys[f"k{self.columns.index(name)}"])
            number = files.join(keys, condition).select("_file").distinct().count()
        if number:
            self.report.left.append(
                f"{count(number, 'file')} with the rows, of earlier versions or of writers that have not committed. Call this "
                "again when delta.deletedFileRetentionDuration (7 days) is over, or with a shorter --retention, which fails "
                "those who read earlier versions then"
            )

    def _look_for_statistics(self, properties: Mapping[str, str]) -> None:
        """The log has the lowest and highest values of a file also after its removal, until Delta cleans it."""
        history = self.spark.sql(f"DESCRIBE HISTORY {self.name}").where(f"userMetadata = '{_MARK}'")
        last = history.selectExpr("max(timestamp)").collect()[0][0]
        if last is not None and properties.get("delta.dataSkippingNumIndexedCols") != "0":
            retention = properties.get("delta.logRetentionDuration", "interval 30 days").removeprefix("interval ")
            self.report.left.append(
                "the table's log may have lowest and highest values of files that had the rows. Delta cleans it with the first "
                f"checkpoint that is {retention} younger than {last:%Y-%m-%d} (delta.logRetentionDuration)"
            )

"""The versions of a Delta table: which batch wrote each, and the table's rows in one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_RECENT: Final = 100
"""The number of versions to look at first: a fast pipeline has millions."""


def loaded(reader: DataStreamReader | DataFrameReader, table: Mapping[str, str]) -> DataFrame:
    """The rows of a table named by ``table`` or ``path``."""
    return reader.table(table["table"]) if "table" in table else reader.load(table["path"])


def history(spark: SparkSession, table: Mapping[str, str], limit: int | None = None) -> DataFrame:
    """The commits of a table as Delta describes them: all, or the newest ``limit``."""
    from ..quality.check import quoted

    name = table["table"] if "table" in table else f"delta.{quoted(table['path'])}"
    return spark.sql(f"DESCRIBE HISTORY {name}{f' LIMIT {limit}' if limit else ''}")


def newest_versions(spark: SparkSession, table: Mapping[str, str]) -> tuple[Row, Row | None]:
    """The newest version of a table, and the newest that a batch of a sink wrote; ``None`` if there is no such version.

    A version has its number ``version``, its time ``at`` (microseconds since 1970), the ``rows`` that it brought, and the
    ``query`` and ``batch`` that wrote it.
    """
    versions = _versions(spark, table, _RECENT)
    marked = _marked(versions) or _marked(_versions(spark, table))
    return versions[0], next(iter(marked), None)


def rows_at(spark: SparkSession, table: Mapping[str, str], version: Row) -> DataFrame:
    """The rows that a table has in a ``version``."""
    return loaded(spark.read.format("delta").option("versionAsOf", version.version), table)


def count_until(
    spark: SparkSession, table: Mapping[str, str], last: Mapping[str, int], pending: Collection[str] = ()
) -> int:
    """The number of rows that a table has now, without those of batches after the ``last`` one of each query.

    The queries that are ``pending`` may have written such a batch long ago, before many versions of others.
    """
    versions = _versions(spark, table, _RECENT)
    rows = rows_at(spark, table, versions[0]).count()
    if not last:
        return rows
    later, met = _later(_marked(versions), last)
    if not met or not met.issuperset(pending):  # a slow caller beside a fast pipeline, or a query that was killed
        older = [version for version in _marked(_versions(spark, table)) if version.version <= versions[0].version]
        later, _ = _later(older, last)
    return rows - sum(int(version.rows or 0) for version in later)


def _later(versions: Sequence[Row], last: Mapping[str, int]) -> tuple[list[Row], set[str]]:
    """Those of ``versions``, the newest first, that are of later batches than the ``last``, and the queries of others.

    A version of another query is of a later one if it is newer than all others.
    """
    later: list[Row] = []
    met: set[str] = set()
    for version in versions:
        if int(version.batch) <= last.get(version.query, -1):
            met.add(version.query)
        elif version.query in last or not met:
            later.append(version)
        if met == last.keys():
            break
    return later, met


def until(column: str, newest: Row | None) -> str:
    """The condition that the time in ``column`` is not after the version ``newest``; always true without one."""
    return "true" if newest is None else f"unix_micros({column}) <= {newest.at}"


def _marked(versions: list[Row]) -> list[Row]:
    return [version for version in versions if version.batch]


def _versions(spark: SparkSession, table: Mapping[str, str], limit: int | None = None) -> list[Row]:
    marks = (f"get_json_object(userMetadata, '$.connectors.{part}') AS {part}" for part in ("query", "batch"))
    columns = "version", "unix_micros(timestamp) AS at", "operationMetrics.numOutputRows AS rows", *marks
    return history(spark, table, limit).selectExpr(*columns).orderBy("version", ascending=False).collect()

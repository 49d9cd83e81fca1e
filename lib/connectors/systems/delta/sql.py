"""What the SQL of Delta's sinks shares: the condition that two rows have one key, the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...formats.base import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

MISSING: Final = (
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_TABLE_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
)
"""The conditions of Spark's errors that say: there is no such table."""


def same_key(keys: Sequence[str]) -> str:
    """The condition of a MERGE that the rows ``old`` and ``new`` have one key."""
    return " AND ".join(f"old.{quoted(key)} <=> new.{quoted(key)}" for key in keys)


def known_columns(spark: SparkSession, location: str, *, is_path: bool) -> StructType | None:
    """The columns of the table at ``location``, a folder or a name; ``None`` if there is no table yet."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.format("delta").load(location).schema if is_path else spark.table(location).schema
    except AnalysisException as error:
        if error.getCondition() in (*MISSING, "PATH_NOT_FOUND"):
            return None
        raise

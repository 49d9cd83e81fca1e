"""The one place that reaches through a DataFrame to the session behind it, classic or Connect.

What differs between the two is asked here and nowhere else: which query and batch is running, and how Spark's columns
look in Arrow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..core.errors import Misconfigured, Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
MINIMUM = (4, 2)


def require_spark() -> None:
    """Raises one clear error where PySpark is older than the library needs."""
    import pyspark

    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if found < MINIMUM:
        raise ImportError(
            f"connectors needs PySpark {MINIMUM[0]}.{MINIMUM[1]} or later (admission control of Python sources); "
            f"this is PySpark {pyspark.__version__}. Use a runtime with Spark {MINIMUM[0]}.{MINIMUM[1]}, or "
            f"'pip install pyspark=={MINIMUM[0]}.{MINIMUM[1]}.0'."
        )


def is_connect(spark: SparkSession) -> bool:
    """True for a Spark Connect session, which has no JVM on this side."""
    return ".connect." in type(spark).__module__


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of ``schema`` as Arrow has them on both sides of Spark's Python workers."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def running_query(frame: DataFrame, query_name: str | None) -> str:
    """The id of the streaming query whose ``foreachBatch`` is being called with ``frame``.

    ``query_name`` chooses among several where the session cannot tell (Spark Connect).
    """
    spark = frame.sparkSession
    if not is_connect(spark):
        found = spark.sparkContext.getLocalProperty(QUERY_ID)
        if found:
            return str(found)
    active = [query for query in spark.streams.active if query_name in (None, query.name)]
    if len(active) == 1:
        return str(active[0].id)
    raise Misconfigured(
        "connectors.foreach_batch",
        [Problem("queryName", f"{len(active)} queries could be the one that runs; give this one's .queryName(…) here too.")],
    )


def task_ids() -> tuple[str | None, int, int]:
    """In a task: the streaming query's id (``None`` in a batch write), the batch number, and the task's index."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID)
    return query, int(context.getLocalProperty(BATCH_ID) or 0), context.partitionId()

"""Delta tables in tests: the settings that a session needs for them, and reading them without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.ground.errors import MissingFeature
from connectors.workbench.jars import delta_jars


def settings() -> dict[str, str]:
    """What a session of the test kit needs to write Delta tables; empty with a Spark that Delta has no jars for."""
    try:
        jars = delta_jars({})
    except MissingFeature:
        return {}
    return {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def delta(table: Path) -> pa.Table:
    """The rows of a Delta table, if it exists: the files that its log adds, without those that it removes again."""
    added: list[Path] = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        removed = {table / unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        added = [file for file in added if file not in removed]
        added += [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
    return pa.concat_tables([pa.table({}), *(pq.ParquetFile(file).read() for file in added)], promote_options="default")

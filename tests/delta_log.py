"""Reading a Delta table without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


def delta(table: Path) -> pa.Table:
    """The rows of a Delta table: the files that its log adds, without those that it removes again."""
    added: list[Path] = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        removed = {table / unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        added = [file for file in added if file not in removed]
        added += [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
    return pa.concat_tables([pq.ParquetFile(file).read() for file in added], promote_options="default")

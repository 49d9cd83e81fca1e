"""Delta tables in tests: the settings that a session needs for them, and reading them without Spark."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.ground.errors import MissingFeature
from connectors.workbench.jars import delta_jars

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_Z85: Final = f"0123456789{_LETTERS}{_LETTERS.upper()}.-:+=^!/*?&<>()[]{{}}@%$#"
_B85: Final = f"0123456789{_LETTERS.upper()}{_LETTERS}!#$%&()*+-;<=>?@^_`{{|}}~"


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
    """The rows of a Delta table, if it exists: of the files that its log adds, without those that it removes again, and
    without the rows that deletion vectors mark. A column has its widest type."""
    added: dict[Path, dict[str, Any] | None] = {}
    schema = '{"fields": []}'
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in (action["remove"] for action in actions if "remove" in action):
            added.pop(table / unquote(action["path"]), None)
        for action in (action["add"] for action in actions if "add" in action):
            added[table / unquote(action["path"])] = action.get("deletionVector")
        schema = next((action["metaData"]["schemaString"] for action in actions if "metaData" in action), schema)
    files = [_rows(table, file, vector) for file, vector in added.items()]
    rows = pa.concat_tables([pa.table({}), *files], promote_options="permissive")
    fields = json.loads(schema)["fields"]
    names = {field["metadata"].get("delta.columnMapping.physicalName"): field["name"] for field in fields}
    if None in names:
        return rows
    own = [name for name in names if name in rows.column_names]
    return rows.select(own).rename_columns([names[name] for name in own])


def _rows(table: Path, file: Path, vector: dict[str, Any] | None) -> pa.Table:
    rows = pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read()
    if vector is None:
        return rows
    deleted = _positions(table, vector)
    assert len(deleted) == vector["cardinality"], vector
    return rows.take(np.setdiff1d(np.arange(rows.num_rows), deleted))


def _positions(table: Path, vector: dict[str, Any]) -> list[int]:
    """The rows of a deletion vector: Delta's protocol has it as bitmaps of Roaring's portable format."""
    text, size = vector["pathOrInlineDv"], vector["sizeInBytes"]
    if vector["storageType"] == "i":
        data = _z85(text)[:size]
    else:
        file = table / text[:-20] / f"deletion_vector_{UUID(bytes=_z85(text[-20:]))}.bin"
        data = file.read_bytes()[vector["offset"] + 4 :][:size]
    magic, bitmaps = struct.unpack_from("<iq", data)
    assert magic == 1681511377
    positions, place = list[int](), 12
    for _ in range(bitmaps):
        (high, cookie), place = struct.unpack_from("<II", data, place), place + 8
        has_runs = cookie & 0xFFFF == 12347
        count = (cookie >> 16) + 1 if has_runs else struct.unpack_from("<I", data, place)[0]
        flags = int.from_bytes(data[place : place + (count + 7) // 8], "little") if has_runs else 0
        place += (count + 7) // 8 if has_runs else 4
        heads, place = np.frombuffer(data, "<u2", 2 * count, place).reshape(count, 2), place + 4 * count
        place += 0 if has_runs and count < 4 else 4 * count  # the places of the containers
        for number, (key, last) in enumerate(heads.tolist()):
            base = (high << 32) + (key << 16)
            if flags >> number & 1:
                (runs,) = struct.unpack_from("<H", data, place)
                pairs, place = np.frombuffer(data, "<u2", 2 * runs, place + 2).reshape(runs, 2).tolist(), place + 2 + 4 * runs
                low = [value for start, more in pairs for value in range(start, start + more + 1)]
            elif last < 4096:
                low, place = np.frombuffer(data, "<u2", last + 1, place).tolist(), place + 2 * (last + 1)
            else:
                bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, place), bitorder="little")
                low, place = np.flatnonzero(bits).tolist(), place + 8192
            positions += [base + value for value in low]
    return positions


def _z85(text: str) -> bytes:
    return base64.b85decode(text.translate(str.maketrans(_Z85, _B85)))

"""Types of Spark's columns in databases, and back, by way of Arrow.

=====================  ==================  ===============  ================  ===============
Spark (Arrow)          postgresql          sqlite           duckdb            mysql, mariadb
=====================  ==================  ===============  ================  ===============
boolean                boolean             BOOLEAN (0, 1)   BOOLEAN           BOOL
byte, short            smallint            SMALLINT         SMALLINT          SMALLINT
integer, long          integer, bigint     INTEGER, BIGINT  INTEGER, BIGINT   INTEGER, BIGINT
float, double          real, double        FLOAT, DOUBLE    FLOAT, DOUBLE     FLOAT, DOUBLE
decimal(p, s)          numeric(p, s)       TEXT             DECIMAL(p, s)     DECIMAL(p, s)
string                 text                TEXT             VARCHAR           LONGTEXT
binary                 bytea               BLOB             BLOB              LONGBLOB
date                   date                DATE (ISO text)  DATE              DATE
timestamp              timestamptz         DATETIME, UTC    TIMESTAMPTZ       DATETIME(6), UTC
timestamp_ntz          timestamp           DATETIME         TIMESTAMP         DATETIME(6)
array of plain values  array               TEXT (JSON)      JSON              LONGTEXT (JSON)
array, struct, map     jsonb               TEXT (JSON)      JSON              LONGTEXT (JSON)
=====================  ==================  ===============  ================  ===============
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...formats.text import json_text


def is_json(kind: pa.DataType) -> bool:
    """True for types that are stored as JSON: arrays, structs and maps."""
    return bool(pa.types.is_nested(kind))


def family(kind: pa.DataType) -> str:
    """``kind`` as one word, or ``""`` for types that none of these databases has (intervals, void)."""
    tests = (
        ("bool", pa.types.is_boolean), ("int8", pa.types.is_int8), ("int16", pa.types.is_int16), ("int32", pa.types.is_int32),
        ("int64", pa.types.is_int64), ("float32", pa.types.is_float32), ("float64", pa.types.is_float64),
        ("decimal", pa.types.is_decimal), ("string", pa.types.is_string), ("string", pa.types.is_large_string),
        ("binary", pa.types.is_binary), ("binary", pa.types.is_large_binary), ("date", pa.types.is_date32), ("json", is_json),
    )  # fmt: skip
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return next((name for name, test in tests if test(kind)), "")


def staged_schema(schema: pa.Schema) -> pa.Schema:
    """``schema`` for staging, with text for arrays, structs and maps."""
    types = [pa.string() if is_json(field.type) else field.type for field in schema]
    return pa.schema([pa.field(field.name, kind, field.nullable) for field, kind in zip(schema, types, strict=True)])


def with_json_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with arrays, structs and maps as JSON text."""
    if not any(is_json(field.type) for field in batch.schema):
        return batch
    columns = [json_text(column) if is_json(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=staged_schema(batch.schema))


def unix_scale(number: float) -> int:
    """Units per second: numbers are seconds, milliseconds or microseconds since 1970, whichever gives a plausible year."""
    return next((scale for scale in (1, 1000, 1_000_000) if abs(number) < 1e11 * scale), 1_000_000_000)


def as_python(batch: pa.RecordBatch, *, plain: bool) -> list[tuple[Any, ...]]:
    """The rows of a flat batch for a driver's ``executemany``.

    With ``plain``, times and decimals become text, for a database without types for them. Times with a zone become UTC.
    """
    columns = [_cells(column, plain) for column in batch.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows


def _cells(column: pa.Array, plain: bool) -> Sequence[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us"))  # UTC, without a zone
    cells: list[Any] = column.to_pylist()
    if not plain:
        return cells
    if pa.types.is_timestamp(kind):
        return [None if cell is None else _timestamp_text(cell) for cell in cells]
    if pa.types.is_date32(kind) or pa.types.is_decimal(kind):
        return [None if cell is None else _text(cell) for cell in cells]
    return cells


def _timestamp_text(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f") if moment.year >= 1000 else moment.isoformat(" ", "microseconds")


def _text(cell: datetime.date | Decimal) -> str:
    return format(cell, "f") if isinstance(cell, Decimal) else cell.isoformat()


def cast_exactly(batch: pa.RecordBatch, kinds: Sequence[pa.DataType]) -> pa.RecordBatch:
    """``batch`` with its columns cast to ``kinds``, each value unchanged. Raises ``pa.ArrowInvalid`` if one does not fit."""
    columns = [
        column if column.type == kind else pc.cast(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

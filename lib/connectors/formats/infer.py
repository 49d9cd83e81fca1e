"""The columns of JSON and CSV, found in a sample of records."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ..ground.errors import Misconfigured, Problem
from .base import fields_of, quoted, sql_type

_LEAVES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), type(None): pa.null()}


def inferred(name: str, sample: pa.Array) -> str:
    """The columns, as ``schema`` has them, of a ``sample`` of records in the format ``name`` (json or csv).

    Whole numbers are bigint, others double; dates and times stay text in JSON, as in Spark. What is null all over is
    text. Records that are not of the format are passed over. Raises :class:`Misconfigured` when nothing is left, or when a
    field has values of types that do not go together.
    """
    records = [record for record in sample.to_pylist() if record]
    kind = _json(records) if name == "json" else _csv(records)
    if kind is None or not kind.num_fields:
        text = f"true, but none of {len(records)} records can be read as {name}; give the schema."
        raise Misconfigured("connectors", [Problem("inferSchema", text)])
    return ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in fields_of(_known(kind)))


def _json(records: Iterable[bytes]) -> pa.DataType | None:
    kind = pa.null()
    for record in records:
        try:
            value = json.loads(record)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            kind = _both(kind, _type(value, ""), "")
    return kind if pa.types.is_struct(kind) else None


def _type(value: Any, path: str) -> pa.DataType:
    if isinstance(value, dict):
        return pa.struct([(key, _type(inner, _at(path, key))) for key, inner in value.items()])
    if isinstance(value, list):
        item = pa.null()
        for element in value:
            item = _both(item, _type(element, path), path)
        return pa.list_(item)
    return _LEAVES[type(value)]


def _both(first: pa.DataType, second: pa.DataType, path: str) -> pa.DataType:
    """The type that holds values of both."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(_both(first.value_type, second.value_type, path))
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        types = {field.name: field.type for field in fields_of(first)}
        for field in fields_of(second):
            types[field.name] = _both(types.get(field.name, pa.null()), field.type, _at(path, field.name))
        return pa.struct(list(types.items()))
    kinds = f"{_sql_text(first)} in one record and {_sql_text(second)} in another"
    text = f'true, but the field "{path}" is {kinds}; give the schema.'
    raise Misconfigured("connectors", [Problem("inferSchema", text)])


def _sql_text(kind: pa.DataType) -> str:
    return sql_type(_known(kind))


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _known(kind: pa.DataType) -> pa.DataType:
    """``kind`` with text for what was null all over."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _known(field.type)) for field in fields_of(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_known(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind


def _csv(records: list[bytes]) -> pa.DataType | None:
    """Columns ``_c0``, ``_c1`` … as in Spark, as many as most records have."""
    import csv

    import pyarrow.csv as arrow_csv

    rows = [next(csv.reader([record.decode(errors="replace")]), []) for record in records]
    widths = [len(row) for row in rows if row]
    if not widths:
        return None
    width = max(set(widths), key=widths.count)
    text = b"\n".join(record for record, row in zip(records, rows, strict=True) if len(row) == width)
    names = [f"_c{number}" for number in range(width)]
    options = arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1024)
    table = arrow_csv.read_csv(
        io.BytesIO(text),
        read_options=options,
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
    )
    return pa.struct([(name, _as_spark(kind)) for name, kind in zip(names, table.schema.types, strict=True)])


def _as_spark(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    return kind if kind in (pa.bool_(), pa.int64(), pa.float64(), pa.date32(), pa.null()) else pa.string()

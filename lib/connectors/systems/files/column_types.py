"""The columns that a file format can hold, and changes of types and values inside nested columns.

Every carrier writes a column in the same way, or refuses it. Arrow's own casts refuse a null with fields that are not null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from ...core import Misconfigured, Problem
from ...formats.avro import derived
from ...formats.text import valid_text

_SWITCH: Final = -141_427  # 1582-10-15, the first day of the Gregorian calendar
_YEAR_0: Final = -719_470  # March 1 of the year 0 by the Julian calendar, from which a leap day ends its year
_Days = npt.NDArray[np.int64]


def parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """``kind`` and the types within it."""
    yield kind
    for number in range(kind.num_fields if types.is_nested(kind) else 0):
        yield from parts(kind.field(number).type)


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """``schema`` with times of the day in microseconds, as in Spark, and with nullable fields of structs.

    Arrow does not write a null struct that has a non-nullable field.
    """
    return pa.schema([field.with_type(_parquet_type(field.type)) for field in schema])


def _parquet_type(kind: pa.DataType) -> pa.DataType:
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_map(kind):
        return pa.map_(_parquet_field(kind.key_field), _parquet_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_parquet_field(field).with_nullable(True) for field in kind])
    return pa.list_(_parquet_field(kind.value_field)) if types.is_list(kind) else kind


def _parquet_field(field: pa.Field) -> pa.Field:
    return field.with_type(_parquet_type(field.type))


def as_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``rows`` with the types of ``schema``, which differ in zones or units of time."""
    columns = [
        column if column.type == field.type else rebuilt(column, field.type, pa.Array.cast)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rebuilt(column: pa.Array, kind: pa.DataType, leaf: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """``column`` as the nested type ``kind``; ``leaf`` converts each column within it that is not nested."""
    mask = column.is_null() if column.null_count else None
    if types.is_struct(kind):
        children = [rebuilt(column.field(number), field.type, leaf) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask) if children else column
    if types.is_map(kind):
        keys, items = rebuilt(column.keys, kind.key_type, leaf), rebuilt(column.items, kind.item_type, leaf)
        return pa.MapArray.from_arrays(_places(column), keys, items, type=kind, mask=mask)
    if types.is_list(kind):
        return pa.ListArray.from_arrays(_places(column), rebuilt(column.values, kind.value_type, leaf), type=kind, mask=mask)
    return leaf(column, kind)


def _places(column: pa.Array) -> pa.Array:
    return pa.array(column.offsets.to_numpy(), pa.int32())


def valid_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """``rows`` with U+FFFD in strings instead of bytes that are no UTF-8."""
    try:
        rows.validate(full=True)
        return rows
    except pa.ArrowInvalid:
        columns = [rebuilt(column, column.type, _valid_leaf) for column in rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _valid_leaf(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return valid_text(column) if types.is_string(kind) else column


def hybrid_days(column: pa.Array) -> pa.Array:
    """``column`` with dates as in Spark's ORC files: before 1582-10-15 by the Julian calendar."""
    return _with_early_days(column, _julian)


def proleptic_days(column: pa.Array) -> pa.Array:
    """``column`` of an ORC file with dates as Spark reads them: the inverse of :func:`hybrid_days`."""
    return _with_early_days(column, _gregorian)


def _with_early_days(column: pa.Array, calendar: Callable[[_Days], _Days]) -> pa.Array:
    """``column`` with the dates before 1582-10-15 as ``calendar`` has them, in days since 1970."""

    def dates(leaf: pa.Array, kind: pa.DataType) -> pa.Array:
        if not types.is_date32(kind):
            return leaf
        days = leaf.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        early = days < _SWITCH
        if not early.any():
            return leaf
        days[early] = calendar(days[early])
        return pa.array(days.astype(np.int32), mask=leaf.is_null().to_numpy(zero_copy_only=False)).cast(pa.date32())

    return rebuilt(column, column.type, dates) if any(map(types.is_date32, parts(column.type))) else column


def _julian(days: _Days) -> _Days:
    dates = days.astype("datetime64[D]")
    month = dates.astype("datetime64[M]").astype(np.int64) % 12
    year = dates.astype("datetime64[Y]").astype(np.int64) + 1970 - (month < 2)
    shifted: _Days = np.minimum(days + year // 100 - year // 400 - 2, _SWITCH)
    return shifted


def _gregorian(days: _Days) -> _Days:
    year = (4 * (days - _YEAR_0) + 3) // 1461
    return days - (year // 100 - year // 400 - 2)


_Test = Callable[[pa.DataType], bool]
_WAY_OUT: Final = (
    "cast it, such as to a string, take another fileFormat, or write by foreach_batch on a classic session, to s3:// with the "
    "jar hadoop-aws"
)


def check_types(connector: str, kind: str, schema: pa.Schema) -> None:
    """Raises :class:`Misconfigured` with each column that Python cannot write in the format ``kind`` as Spark does."""
    problems = list(_problems(kind, schema))
    if problems:
        raise Misconfigured(connector, problems)


def _problems(kind: str, schema: pa.Schema) -> Iterator[Problem]:
    if kind == "text" and not (len(schema) == 1 and types.is_string(schema.field(0).type)):
        shown = ", ".join(f"{field.name} {field.type}" for field in schema)
        yield Problem("fileFormat", f"text takes one column of strings; got {shown}.")
        return
    for field in schema:
        if kind == "csv" and types.is_nested(field.type):
            text = f'csv has no nested columns; got "{field.name}" of type {field.type}. Take json or parquet.'
            yield Problem("fileFormat", text)
        elif not _holds(kind, field.type):
            way_out = "cast it, such as to a string, or take another fileFormat" if kind == "avro" else _WAY_OUT
            yield Problem("fileFormat", f'{kind} cannot hold "{field.name}" of type {field.type} as Spark has it; {way_out}.')


def _holds(kind: str, column: pa.DataType) -> bool:
    if any(refused(part) for part in parts(column) for refused in _REFUSED[kind]):
        return False
    try:
        return kind != "avro" or bool(derived(column, null_first=False))
    except ValueError:
        return False


def _is_struct_in_arrow_only(kind: pa.DataType) -> bool:
    """True for a variant or a geometry."""
    return bool(types.is_struct(kind)) and any({b"variant", b"geometry"} & set(field.metadata or {}) for field in kind)


def _has_key_without_text(kind: pa.DataType) -> bool:
    """True for a map for whose keys Spark writes the address of a Java object, or its internal number of a time."""
    tests = (types.is_nested, types.is_binary, types.is_temporal)
    return bool(types.is_map(kind)) and any(test(kind.key_type) for test in tests)


def _has_key_of_another_type(kind: pa.DataType) -> bool:
    return bool(types.is_map(kind)) and not types.is_string(kind.key_type)


_ALWAYS: Final[tuple[_Test, ...]] = (types.is_duration, types.is_interval, _is_struct_in_arrow_only)
_REFUSED: Final[dict[str, tuple[_Test, ...]]] = {
    "json": (*_ALWAYS, _has_key_without_text),
    "csv": (*_ALWAYS, types.is_null),
    "text": (),
    "parquet": (*_ALWAYS, types.is_null),
    # Spark's ORC files have timestamps in the zone of the JVM, which only the JVM knows; the others are annotated numbers.
    "orc": (*_ALWAYS, types.is_null, types.is_timestamp, types.is_time),
    "avro": (*_ALWAYS, _has_key_of_another_type),
}

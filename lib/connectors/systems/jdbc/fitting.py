"""What is selected for the columns that a reader wants, and how the database's values become theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import Misconfigured, Poison, Problem
from ...core.formats.json_values import parsed, reader
from ...core.formats.sql import quoted, sql_type
from .column_types import is_json
from .dialects import Column, Dialect
from .selecting import NAME, Selected

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, TypeError)
_UTC = pa.timestamp("us", "UTC")
_LAST, _FIRST = 253402300799999999, -62135596800000000
"""The last and the first moment that Spark has, in microseconds: PostgreSQL's infinities, which Spark's own reader shows so."""
_INFINITE = {-9222425352054775809: _LAST, -9222425352054775808: _FIRST}
_INFINITE_DAYS = {-2147472692: 2932896, -2147472691: -719162}


def columns_text(selected: Selected, *, ntz: bool) -> str:
    """The columns of ``selected`` as Spark's SQL. Times without a zone are ``timestamp_ntz`` with ``ntz``."""
    return ", ".join(f"{quoted(one.name)} {sql_type(one.type)}" for one in columns_schema(selected, ntz=ntz))


def columns_schema(selected: Selected, *, ntz: bool) -> pa.Schema:
    """The same as a schema of Arrow."""
    return pa.schema([(one.name, _default(one, ntz)) for one in selected.columns])


def _default(column: Column, ntz: bool) -> pa.DataType:
    kind = column.kind if column.kind is not None else pa.string()
    return _with_zone(kind) if not ntz else kind


def _with_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_with_zone(kind.value_type))
    return _UTC if pa.types.is_timestamp(kind) else kind


class Fitting:
    """How the columns of ``selected`` become rows of ``schema``, which may leave some out.

    ``expressions`` are what to select, ``kinds`` what the database gives for them. ``zone`` is that of times without one.
    """

    def __init__(self, dialect: Dialect, selected: Selected, schema: pa.Schema, zone: str = "UTC") -> None:
        found = [(field, selected.column(field.name)) for field in schema]
        if missing := [field.name for field, column in found if column is None]:
            there = ", ".join(column.name for column in selected.columns)
            problems = [Problem("schema", f'has "{name}", but the columns are {there}.') for name in missing]
            raise Misconfigured(NAME, problems)
        columns: Sequence[Column] = [column for _, column in found if column is not None]
        self.schema = schema
        self.zone = zone
        self.expressions = [dialect.readable(column, field.type) for column, field in zip(columns, schema, strict=True)]
        self.kinds = [_selected_kind(column, field.type) for column, field in zip(columns, schema, strict=True)]

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``batch``, as the database gave it, in the schema. Raises :class:`Poison`, naming the column."""
        columns = [self._fitted(column, field) for column, field in zip(batch.columns, self.schema, strict=True)]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _fitted(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return fitted(column, field.type, self.zone)
        except _REFUSED as wrong:
            text = f'the column "{field.name}" is read as {field.type}, and a value of it is none: {wrong}'
            raise Poison(text, way_out="give the column another type, such as string, by .schema(…)") from None


def _selected_kind(column: Column, wanted: pa.DataType) -> pa.DataType:
    """What comes of :meth:`Dialect.readable`: text where text is wanted, else what the column is read as."""
    return pa.string() if column.kind is None or pa.types.is_string(wanted) else column.kind


def fitted(column: pa.Array, wanted: pa.DataType, zone: str = "UTC") -> pa.Array:
    """``column`` as ``wanted``, each value unchanged. Raises what Arrow raises for one that does not fit."""
    column = _finite(_stored(column))
    kind = column.type
    if kind == wanted:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(wanted):
        return _zoned(column, wanted, zone)
    if is_json(wanted) and not is_json(kind):
        return _parsed(column, wanted)
    if pa.types.is_boolean(wanted) and pa.types.is_integer(kind):
        return pc.cast(column, pa.int64()).cast(wanted)
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        values = fitted(column.flatten(), wanted.value_type, zone)
        offsets = _offsets(column)
        return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=column.is_null() if column.null_count else None)
    if pa.types.is_string(kind) and pa.types.is_timestamp(wanted):
        return _zoned(column.cast(pa.timestamp("us")), wanted, zone) if wanted.tz else column.cast(wanted)
    return pc.cast(column, wanted)


def _offsets(column: pa.Array) -> pa.Array:
    """Offsets into :meth:`flatten`'s values, which leave out what lies behind nulls and before a slice."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def _stored(column: pa.Array) -> pa.Array:
    """ADBC marks types of the database's own (numeric, uuid) around plain ones."""
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if pa.types.is_list(column.type) and isinstance(column.type.value_type, pa.BaseExtensionType):
        return column.cast(pa.list_(column.type.value_type.storage_type))
    return column


def _finite(column: pa.Array) -> pa.Array:
    """PostgreSQL's infinite times, which overflow in Arrow, as the last and the first that Spark has."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _replaced(column, pa.int64(), _INFINITE, _FIRST)
    return _replaced(column, pa.int32(), _INFINITE_DAYS, -719162) if pa.types.is_date32(kind) else column


def _replaced(column: pa.Array, plain: pa.DataType, known: dict[int, int], least: int) -> pa.Array:
    numbers = column.view(plain)
    if (pc.min(numbers).as_py() or 0) >= least:
        return column
    for there, instead in known.items():
        numbers = pc.if_else(pc.equal(numbers, pa.scalar(there, plain)), pa.scalar(instead, plain), numbers)
    return numbers.view(column.type)


def _zoned(column: pa.Array, wanted: pa.DataType, zone: str) -> pa.Array:
    """A time that comes twice at the end of summer time is the earlier one; one that is skipped is the next there is."""
    if column.type.tz and not wanted.tz:
        return pc.local_timestamp(column.cast(pa.timestamp("us", zone))).cast(wanted)
    if wanted.tz and not column.type.tz:
        column = pc.assume_timezone(column.cast(pa.timestamp("us")), zone, ambiguous="earliest", nonexistent="latest")
    return column.cast(wanted)


def _parsed(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    read: Any = reader(wanted, "value")
    texts = column.cast(pa.string()).to_pylist()
    return pa.array([None if text is None else read(parsed(text)) for text in texts], wanted)

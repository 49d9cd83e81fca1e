"""Values of Connect's data model as Arrow arrays, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .data import ARROW_TYPES, DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, Struct, Type, plain
from .errors import DataException


def to_arrow(values: Iterable[Any], schema: Schema) -> pa.Array:
    """Values of ``schema`` as an Arrow array. Raises :class:`DataException` for one that the schema does not have."""
    if schema.type is Type.STRUCT:
        rows = list(values)
        for row in rows:
            if row is not None:
                if not isinstance(row, Struct) or row.schema != schema:
                    schema.validate(row)
                row.validate()
            elif not schema.optional and not schema.has_default:
                schema.validate(None)
        present = [row for row in rows if row is not None]
        columns = [to_arrow([row.get(target.name) for row in present], target.schema) for target in schema.fields]
        mask = pa.array([row is None for row in rows], pa.bool_())
        if len(present) < len(rows):
            numbers = iter(range(len(present)))
            places = pa.array([None if row is None else next(numbers) for row in rows], pa.int64())
            columns = [column.take(places) for column in columns]
        if not columns:
            return pa.array([None if row is None else {} for row in rows], pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=list(schema.arrow()), mask=mask)
    rows = list(values)
    if schema.has_default:
        rows = [schema.default if row is None else row for row in rows]
    try:
        for row in rows if _needs_check(schema, rows) else ():
            schema.validate(row)
        if schema.type in (Type.ARRAY, Type.MAP):
            rows = [_items(row) for row in rows]
        return pa.array(rows, schema.arrow())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
        for row in rows:
            schema.validate(row)
        raise DataException(f"{schema.title()}: {wrong}") from None


def cast_to(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """``array`` as ``kind``, the Arrow type of a schema. Times lose what is finer than Connect's milliseconds."""
    if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(kind):
        moments = array.cast(pa.timestamp(array.type.unit, tz="UTC"))
        return pc.floor_temporal(moments, unit="millisecond").cast(kind)
    if pa.types.is_time64(array.type) and pa.types.is_time32(kind):
        return pc.floor_temporal(array, unit="millisecond").cast(kind)
    if pa.types.is_struct(array.type) and array.type.num_fields:
        columns = [cast_to(column, field.type) for column, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(array.type):
        entry = pa.struct([array.type.key_field, array.type.item_field])
        lists = array.cast(pa.list_(entry))
        keys, items = lists.flatten().flatten()
        offsets = _list_offsets(lists)
        return pa.MapArray.from_arrays(offsets, cast_to(keys, kind.key_type), cast_to(items, kind.item_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return pa.ListArray.from_arrays(_list_offsets(array), cast_to(array.flatten(), kind.value_type))
    return array.cast(kind)


def _list_offsets(lists: pa.Array) -> pa.Array:
    """The offset at which each list begins in its flattened values, null for a null list, and the end of the last one."""
    ends = pc.cumulative_sum(pc.list_value_length(lists).cast(pa.int32()).fill_null(0))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    valid = pa.concat_arrays([lists.is_valid(), pa.array([True])])
    return pc.if_else(valid, starts, pa.scalar(None, pa.int32()))


def _needs_check(schema: Schema, rows: Sequence[Any]) -> bool:
    """False where Arrow itself refuses every wrong value of the type."""
    return not (schema.type in (Type.STRING, Type.INT64) and schema.optional and not schema.logical)


def _items(row: Any) -> Any:
    if isinstance(row, dict):
        return [(key, plain(item)) for key, item in row.items()]
    return None if row is None else [plain(item) for item in row]


def from_arrow(array: pa.Array, schema: Schema) -> list[Any]:
    """The values of an Arrow array as Connect has them: structs, numbers, text …"""
    if schema.type is Type.STRUCT:
        columns = [
            from_arrow(column, target.schema) for column, target in zip(array.flatten(), schema.fields, strict=True)
        ]
        valid = array.is_valid().to_pylist()
        rows = zip(valid, _rows(columns, len(array)), strict=True)
        return [_struct(schema, cells) if is_valid else None for is_valid, cells in rows]
    values: list[Any] = array.to_pylist()
    if schema.type is Type.MAP:
        inner = schema.value_schema
        assert inner is not None
        return [None if row is None else {key: _typed(item, inner) for key, item in row} for row in values]
    if schema.type is Type.ARRAY and schema.value_schema:
        element = schema.value_schema
        return [None if row is None else [_typed(item, element) for item in row] for row in values]
    return values


def _rows(columns: Sequence[Sequence[Any]], count: int) -> Iterable[Sequence[Any]]:
    return zip(*columns, strict=True) if columns else [()] * count


def _struct(schema: Schema, cells: Sequence[Any]) -> Struct:
    struct = Struct(schema)
    struct._values = list(cells)
    return struct


def _typed(value: Any, schema: Schema) -> Any:
    if value is None or schema.type not in (Type.STRUCT, Type.ARRAY, Type.MAP):
        return value
    if schema.type is Type.STRUCT:
        return _struct(schema, [_typed(value.get(target.name), target.schema) for target in schema.fields])
    if schema.type is Type.ARRAY and schema.value_schema:
        return [_typed(item, schema.value_schema) for item in value]
    assert schema.value_schema is not None
    return {
        key: _typed(item, schema.value_schema) for key, item in (value.items() if isinstance(value, dict) else value)
    }


def schema_of(kind: pa.DataType, *, optional: bool = True) -> Schema:
    """The schema of an Arrow type. Raises :class:`DataException` for a type that Connect lacks."""
    if pa.types.is_struct(kind):
        children = [kind.field(index) for index in range(kind.num_fields)]
        fields = tuple(
            Field(child.name, index, schema_of(child.type, optional=child.nullable))
            for index, child in enumerate(children)
        )
        return Schema(Type.STRUCT, optional, fields=fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Schema(Type.ARRAY, optional, value_schema=schema_of(kind.value_type))
    if pa.types.is_map(kind):
        key = schema_of(kind.key_type, optional=False)
        return Schema(Type.MAP, optional, key_schema=key, value_schema=schema_of(kind.item_type))
    if pa.types.is_decimal(kind):
        return Schema(Type.BYTES, optional, name=DECIMAL, version=1, parameters=(("scale", str(kind.scale)),))
    if pa.types.is_date(kind):
        return Schema(Type.INT32, optional, name=DATE, version=1)
    if pa.types.is_timestamp(kind):
        return Schema(Type.INT64, optional, name=TIMESTAMP, version=1)
    if pa.types.is_time(kind):
        return Schema(Type.INT32, optional, name=TIME, version=1)
    for type, arrow in {**ARROW_TYPES, Type.STRING: pa.large_string(), Type.BYTES: pa.large_binary()}.items():
        if kind == arrow:
            return Schema(type, optional)
    for type, arrow in ARROW_TYPES.items():
        if kind == arrow:
            return Schema(type, optional)
    raise DataException(f"Connect has no type for {kind}")

"""The columns of a file as those of the query: found by their names, and of its types where no value changes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core import Fatal
from ...ground.columns import is_binary, is_text


def name_in(names: Sequence[str], name: str) -> str | None:
    """The one of ``names`` that ``name`` means: the same, or as in Spark one of another case. ``None`` if there is none."""
    same = [other for other in names if other == name]
    alike = same or [other for other in names if other.lower() == name.lower()]
    if len(alike) > 1:
        way_out = "write the file with one of these columns, or move it away"
        raise Fatal(f'the column "{name}" is there more than once: {", ".join(alike)}', way_out=way_out)
    return alike[0] if alike else None


def names_in(names: Sequence[str], schema: pa.Schema) -> list[str]:
    """Those of ``names`` that the columns of ``schema`` mean."""
    return [column for name in schema.names if (column := name_in(names, name)) is not None]


def conformed(rows: pa.RecordBatch, schema: pa.Schema, path: str, partition: dict[str, str | None]) -> pa.RecordBatch:
    """``rows`` with the columns of ``schema``; missing columns have the value of the ``partition``, else null.

    Raises :class:`Fatal`, which names a column that does not fit.
    """
    columns = []
    for field in schema:
        folder = name_in([*partition], field.name)
        if (name := name_in(rows.schema.names, field.name)) is not None:
            column = rows.column(rows.schema.names.index(name))
        elif folder is not None and partition[folder] is not None:
            column = pa.array([partition[folder]] * rows.num_rows, pa.string())
        else:
            column = pa.nulls(rows.num_rows, field.type)
        columns.append(_cast(column, field, path))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    try:
        return _fitted(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Fatal(
            f'the column "{field.name}" is {column.type} in {path} and {field.type} in the query: {error}',
            way_out=f"read it as {column.type} by .schema(…), or move the file away",
        ) from None


def _fitted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    mask = column.is_null() if column.null_count else None
    if types.is_struct(kind) and types.is_struct(column.type) and len(kind):
        children = [_child(column, field) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if types.is_map(kind) and types.is_map(column.type):
        keys, items = _fitted(column.keys, kind.key_type), _fitted(column.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(column), keys, items, type=kind, mask=mask)
    if types.is_list(kind) and _is_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
        return pa.ListArray.from_arrays(_offsets(column), _fitted(column.values, kind.value_type), type=kind, mask=mask)
    return _leaf(column, kind)


def _child(column: pa.Array, field: pa.Field) -> pa.Array:
    names = [child.name for child in column.type]
    name = name_in(names, field.name)
    return pa.nulls(len(column), field.type) if name is None else _fitted(column.field(names.index(name)), field.type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _offsets(column: pa.Array) -> pa.Array:
    return pa.array(column.offsets.to_numpy(), pa.int32())


def _leaf(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """``column`` as ``kind``. Raises ``ArrowInvalid`` if a value would change, of which Arrow's own cast notices a part."""
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_float16(column.type):
        column = column.cast(pa.float32())  # Arrow compares no halves
    source = column.type
    if types.is_timestamp(source) and types.is_timestamp(kind):
        return column.cast(kind, safe=False)  # units finer than Spark's are cut off, as in Spark
    if types.is_null(source) or any(is_text(each) or is_binary(each) for each in (source, kind)):
        return column.cast(kind)
    if types.is_temporal(source) != types.is_temporal(kind):
        raise pa.ArrowInvalid("a number is no time")
    cast = column.cast(kind)
    if not _is_same(column, cast.cast(source)):
        raise pa.ArrowInvalid("values would change")
    return cast


def _is_same(column: pa.Array, other: pa.Array) -> bool:
    equal = pc.equal(column, other)
    if types.is_floating(column.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(column), pc.is_nan(other)))
    return pc.all(equal).as_py() is not False

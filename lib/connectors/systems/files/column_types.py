"""Which columns a file format can hold, so that every carrier writes them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.types as types

from ...core import Misconfigured, Problem
from ...core.formats.avro_schema import derived
from .nested import parts

_Test = Callable[[pa.DataType], bool]
_WAY_OUT: Final = "cast it, such as to a string, take another fileFormat, or write by foreach_batch on a classic session"


def check_types(connector: str, kind: str, schema: pa.Schema) -> None:
    """Raises :class:`Misconfigured` with each column that Python cannot write to files of the format ``kind`` as Spark does."""
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
    """True for a map of whose keys Spark writes the address of a Java object."""
    return bool(types.is_map(kind) and (types.is_nested(kind.key_type) or types.is_binary(kind.key_type)))


def _has_key_of_another_type(kind: pa.DataType) -> bool:
    return bool(types.is_map(kind)) and not types.is_string(kind.key_type)


_ALWAYS: Final[tuple[_Test, ...]] = (types.is_duration, types.is_interval, _is_struct_in_arrow_only)
_REFUSED: Final[dict[str, tuple[_Test, ...]]] = {
    "json": (*_ALWAYS, _has_key_without_text),
    "csv": (*_ALWAYS, types.is_null),
    "text": (),
    "parquet": (*_ALWAYS, types.is_null),
    # Spark's ORC files have timestamps in the zone of the JVM, which only the JVM knows; the others are numbers with a note.
    "orc": (*_ALWAYS, types.is_null, types.is_timestamp, types.is_time),
    "avro": (*_ALWAYS, _has_key_of_another_type),
}

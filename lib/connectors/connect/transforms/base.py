"""What transforms stand on: a transform takes records in columns; those of keys and values work on Arrow, or on maps.

A record with a schema has its fields as Arrow columns, so a whole batch is changed at once; a new schema is computed once per
batch. A record without schema is a Python map, changed one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..columns import Column, Records
from ..config import ConfigDef
from ..data import Field, Schema, Type
from ..errors import DataException


class Transform(ABC):
    """Changes records. Without state that a restart would miss."""

    def __init__(self, side: str = "") -> None:
        self.side = side
        """``Key`` or ``Value``, for a transform that comes for both."""

    def config(self) -> ConfigDef:
        """The settings of the transform."""
        return ConfigDef()

    def configure(self, values: Mapping[str, Any]) -> None:  # noqa: B027 - a hook, not a duty
        """Takes the settings, parsed by :meth:`config`. Raises ``ConfigException`` for what only several together show."""

    @abstractmethod
    def apply(self, records: Records) -> Records:
        """The records as they are afterwards; it may leave some out. Raises :class:`DataException`."""


class RecordTransform(ABC):
    """A transform of one's own, one record at a time, named by its dotted name in ``transforms.<alias>.type``."""

    def config(self) -> ConfigDef:
        return ConfigDef()

    def configure(self, configs: Mapping[str, Any]) -> None:  # noqa: B027
        """Takes its settings: parsed where :meth:`config` declares them, else as text."""

    @abstractmethod
    def apply(self, record: Any) -> Any:
        """The record afterwards (``record.replaced(value=…)``); ``None`` drops it."""

    def close(self) -> None:  # noqa: B027
        """The task ends."""


class SideTransform(Transform):
    """A transform of keys or of values. A subclass says what becomes of a struct and of a map; null stays null."""

    needs = "field manipulation"

    def apply(self, records: Records) -> Records:
        column = self.column(records, records.key if self.side == "Key" else records.value)
        return replace(records, key=column) if self.side == "Key" else replace(records, value=column)

    def column(self, records: Records, column: Column) -> Column:
        """The keys, or values, of ``records`` afterwards."""
        if column.schema is None:
            return Column(
                None,
                [
                    None if value is None else self.map(records, place, as_map(value, self.needs))
                    for place, value in enumerate(column.data)
                ],
            )
        if column.schema.type is not Type.STRUCT:
            raise DataException(f"Only Struct objects supported for [{self.needs}], found: {column.schema.type.name}")
        return self.struct(records, column.schema, column.data)

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        """A map without schema, of the record at ``place``. It may be changed in place only after a copy."""
        raise NotImplementedError

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        """A column of structs."""
        raise NotImplementedError


def as_map(value: Any, needs: str) -> dict[str, Any]:
    """``value`` as a map. Raises :class:`DataException` for anything else."""
    if not isinstance(value, dict):
        raise DataException(
            f"Only Map objects supported in absence of schema for [{needs}], found: {type(value).__name__}"
        )
    return value


def children(schema: Schema, data: pa.Array) -> list[tuple[Field, pa.Array]]:
    """The fields of a column of structs, each with its values; null where the struct is null."""
    return list(zip(schema.fields, data.flatten(), strict=True))


def struct_column(schema: Schema, fields: Sequence[tuple[str, Schema, pa.Array]], data: pa.Array) -> Column:
    """A column of structs with these fields, with the name and the nulls of the one before."""
    inner = tuple(Field(name, index, field_schema) for index, (name, field_schema, _) in enumerate(fields))
    after = replace(schema, fields=inner)
    if not fields:
        return Column(
            after, pa.array([{} if is_valid else None for is_valid in data.is_valid().to_pylist()], pa.struct([]))
        )
    arrays = [array.cast(field_schema.arrow()) for _, field_schema, array in fields]
    mask = data.is_null() if data.null_count else None
    return Column(after, pa.StructArray.from_arrays(arrays, fields=list(after.arrow()), mask=mask))


def with_default(field: Field, array: pa.Array, replaces: bool) -> pa.Array:
    """The values of a field, with its default in the place of null if the transform ``replaces`` it."""
    if replaces and field.schema.has_default and field.schema.default is not None and array.null_count:
        import pyarrow.compute as pc

        return pc.fill_null(array, pa.scalar(field.schema.default, array.type))
    return array


REPLACE_NULL = "replace.null.with.default"


def replaces_null(definition: ConfigDef) -> ConfigDef:
    """``definition`` with Connect's setting for null in fields that have a default."""
    return definition.define(REPLACE_NULL, "BOOLEAN", True, "MEDIUM", "null in a field with a default is the default")

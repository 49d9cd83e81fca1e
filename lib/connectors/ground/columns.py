"""Options that name columns of the rows that a sink writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from .errors import Problem
from .options import Names, Option


class ColumnType:
    """Types that a column may have: ``words`` for them, behind "must be", and the tests of which one holds."""

    def __init__(self, words: str, *tests: Callable[[pa.DataType], bool]) -> None:
        self.words = words
        self._tests = tests

    def __contains__(self, kind: pa.DataType) -> bool:
        return any(test(kind) for test in self._tests)


def is_text(kind: pa.DataType) -> bool:
    """True for strings, large ones too."""
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """True for bytes of any length, large ones too."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def in_numbers(kind: pa.DataType) -> pa.DataType:
    """``kind`` with times and dates as numbers: Python's own end with the year 9999."""
    if types.is_struct(kind):
        return pa.struct([(field.name, in_numbers(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(in_numbers(kind.value_type))
    if types.is_map(kind):
        return pa.map_(kind.key_type, in_numbers(kind.item_type))
    if types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if types.is_date32(kind) else kind


PLAIN_TYPES: Final = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "date")
"""Spark's types of values that can be part of a name: no setting of the session alters their texts."""
BOOLEAN: Final = ColumnType("a boolean column", types.is_boolean)
TEXT: Final = ColumnType("a column of text", is_text)
TEXT_OR_BINARY: Final = ColumnType("a column of text or binary", is_text, is_binary)


@dataclass(frozen=True)
class Column(Option):
    """The name of a column, which is of one ``kind``; by default of any."""

    kind: ColumnType | None = None

    def columns(self, value: Any) -> Sequence[str]:
        return [value]

    def accepts(self) -> str:
        return "column"


class Columns(Names):
    """Names of columns, as :class:`~connectors.ground.options.Names` reads them."""

    def columns(self, value: Any) -> Sequence[str]:
        return tuple(value)

    def accepts(self) -> str:
        return "columns"


@dataclass(frozen=True)
class Template(Option):
    """A text with columns in braces, such as ``example``."""

    example: str = "events:{id}"

    def parse(self, text: str) -> str:
        try:
            if all(name != "" and not spec and not conversion for _, name, spec, conversion in Formatter().parse(text)):
                return text
        except ValueError:
            pass
        raise ValueError(f"text with columns in braces, such as {self.example}")

    def columns(self, value: Any) -> Sequence[str]:
        return template_columns(value)

    def accepts(self) -> str:
        return "text with {columns}"


def template_columns(template: str) -> list[str]:
    """The columns that a template names."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def missing_columns(option: str, named: Sequence[str], columns: Sequence[str]) -> Iterator[Problem]:
    """Those of the names that ``option`` gives which are not among the ``columns`` of the rows, or not once."""
    for name in dict.fromkeys(named):
        if (count := columns.count(name)) != 1:
            why = "have more than once" if count else "do not have"
            yield Problem(option, f'names the column "{name}", which the rows {why}: {", ".join(columns)}.')


def column_problems(declared: Mapping[str, Option], values: Mapping[str, Any], schema: pa.Schema) -> Iterator[Problem]:
    """Each option that names a column which rows of ``schema`` do not have once, or have with another type."""
    for name, option in declared.items():
        named = option.columns(values[name]) if values[name] else ()
        yield from missing_columns(name, named, schema.names)
        kind = option.kind if isinstance(option, Column) else None
        for column in named:
            if kind and schema.names.count(column) == 1 and (type_ := schema.field(column).type) not in kind:
                yield Problem(name, f'must be {kind.words}; "{column}" is {type_}.')

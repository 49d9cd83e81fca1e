"""Tables and columns as a database's catalog tells them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_TEXT_BYTES = 20
"""Spark's own estimate for a text (``StringType.defaultSize``)."""


@dataclass(frozen=True)
class Table:
    """A table's name; ``schema`` is ``""`` for the default one."""

    name: str
    schema: str = ""

    def beside(self, name: str) -> Table:
        """Another table in the same schema."""
        return Table(name, self.schema)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class Column:
    """A column of a table: ``sql`` is its type in the database, ``kind`` that type in Arrow (``None``: no equal).

    ``collation`` names the rules for comparing its text, if a statement must name them. ``base`` is the type of a domain's
    values, without its length, or of values that are read as text.
    """

    name: str
    sql: str
    kind: pa.DataType | None
    nullable: bool = True
    default: bool = False
    collation: str = ""
    base: str = ""


def ascii_lower(name: str) -> str:
    """``name`` with its ASCII letters in lower case: databases leave all others as they are."""
    return name.encode().lower().decode()


def row_bytes(columns: Sequence[Column]) -> int:
    """An estimate of a row's bytes from the types of its columns, with Spark's estimate for a text."""
    return sum(_bytes(column.kind) for column in columns) or 1


def _bytes(kind: pa.DataType | None) -> int:
    return max(1, kind.bit_width // 8) if kind is not None and pa.types.is_primitive(kind) else _TEXT_BYTES


def grouped_keys(rows: Iterable[tuple[Any, ...]]) -> list[frozenset[str]]:
    """The columns of unique indexes, from rows of an index and a column each; leaves out indexes over expressions."""
    keys: dict[str, list[Any]] = {}
    for index, column in rows:
        keys.setdefault(index, []).append(column)
    return [frozenset(columns) for columns in keys.values() if None not in columns]

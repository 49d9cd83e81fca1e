"""Tables of a workload as it knows them, and random rows for them. The database alone knows what they hold."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.systems.cdc import values as v
from tests.systems.cdc.values import Kind

_NULLS = 0.12
_RARE = 0.05


@dataclass(frozen=True)
class Column:
    """A column beside the key. ``is_base``: it is never dropped. ``large`` is the share of large values among its values."""

    name: str
    kind: Kind
    nullable: bool = True
    has_default: bool = False
    is_base: bool = False
    large: float = 0.05

    @property
    def is_needed(self) -> bool:
        """True if an INSERT must name it."""
        return not self.nullable and not self.has_default

    def without_large_values(self) -> Column:
        return replace(self, large=0.0)


@dataclass
class Table:
    """A table, its columns beside the key, and the keys that a workload chooses from.

    Keys below ``hot`` are drawn again and again; ``blocks`` are runs of keys (the first, how many) that came at once.
    """

    name: str
    keys: tuple[str, ...]
    columns: list[Column]
    hot: int = 300
    logs_whole_rows: bool = False
    blocks: list[tuple[int, int]] = field(default_factory=list)
    next_key: int = 100_000
    next_column: int = 0
    has_wide_key: bool = False
    dropped: list[str] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    """The columns that were there at the last quiet point."""
    fills: dict[str, Any] = field(default_factory=dict)
    """By added column, what rows have that are older, where the log does not tell it."""

    def new_keys(self, count: int) -> int:
        """The first of ``count`` keys that nobody has used."""
        first, self.next_key = self.next_key, self.next_key + count
        return first

    def new_block(self, count: int) -> int:
        """As :meth:`new_keys`, for rows that are drawn again later."""
        first = self.new_keys(count)
        self.blocks.append((first, count))
        return first

    def key(self, chance: random.Random) -> tuple[str, ...]:
        """A key that there may be."""
        number = chance.randrange(1, self.hot)
        if self.blocks and chance.random() < 0.4:
            first, count = chance.choice(self.blocks)
            number = first + chance.randrange(count)
        return self.key_of(number, chance)

    def key_of(self, number: int, chance: random.Random) -> tuple[str, ...]:
        """A key that begins with ``number``; a second part is one of few letters."""
        return (str(number), *(chance.choice("abc") for _ in self.keys[1:]))

    def row(
        self, chance: random.Random, switches: Collection[str], columns: Sequence[Column] | None = None
    ) -> dict[str, str | None]:
        """Values of ``columns``, by default of a random choice that leaves out what has a default or may be null."""
        chosen = self.insertable(chance) if columns is None else columns
        return {column.name: _value(column, chance, switches) for column in chosen}

    def insertable(self, chance: random.Random, share: float = 0.8) -> list[Column]:
        """Columns that an INSERT names: all that need a value, and of the others a ``share``."""
        return [column for column in self.columns if column.is_needed or chance.random() < share]

    def updatable(self, chance: random.Random) -> list[Column]:
        """One to four columns, so that most updates leave large values alone."""
        return chance.sample(self.columns, min(len(self.columns), chance.randrange(1, 5)))

    def replace(self, column: Column, by: Column) -> None:
        """``by`` takes the place of ``column``."""
        self.columns[self.columns.index(column)] = by


def _value(column: Column, chance: random.Random, switches: Collection[str]) -> str | None:
    is_null = chance.random() < _NULLS and ("null_defaults" in switches or not column.has_default)
    if column.nullable and (is_null or (column.kind.switch and column.kind.switch not in switches)):
        return None
    if column.kind.rare and chance.random() < _RARE:
        rare = [value for switch, values in column.kind.rare.items() if switch in switches for value in values]
        if rare:
            return chance.choice(rare)
    if column.kind.large is not None and chance.random() < column.large:
        return column.kind.large(chance)
    return column.kind.draw(chance)


def orders() -> Table:
    """Every type; a second unique index on ``slot``, which is no column that is drawn like others."""
    kinds = {
        "name": v.TEXT, "body": v.TEXT, "amount": v.BIGINT, "price": v.PRICE, "ratio": v.NUMERIC, "weight": v.DOUBLE,
        "paid": v.BOOLEAN, "day": v.DATE, "at": v.TIMESTAMP, "moment": v.ZONED, "tags": v.ARRAY, "doc": v.JSONB,
        "ref": v.UUID, "data": v.BYTES, "n": v.INT,
    }  # fmt: skip
    without_default = ("body", "ratio", "ref", "data")
    large = {"name": 0.0, "body": 0.4}
    columns = [
        Column(name, kind, True, name not in without_default, True, large.get(name, 0.05)) for name, kind in kinds.items()
    ]
    return Table("orders", ("id",), columns)


def items() -> Table:
    """A key of two columns, narrow rows, and whole rows in the log (REPLICA IDENTITY FULL)."""
    kinds = {"note": v.TEXT, "body": v.TEXT, "n": v.INT, "price": v.PRICE, "moment": v.ZONED, "tags": v.ARRAY}
    large = {"note": 0.0, "body": 0.3}
    columns = [Column(name, kind, True, name == "note", True, large.get(name, 0.02)) for name, kind in kinds.items()]
    return Table("items", ("order_id", "line"), columns, hot=150, logs_whole_rows=True)


POSTGRES = (
    """
    CREATE TABLE orders (
        id int NOT NULL,
        slot bigint CONSTRAINT orders_slot UNIQUE,
        name text DEFAULT 'none of ''them''', body text, amount bigint DEFAULT -8000000000, price numeric(10,2) DEFAULT 9.50,
        ratio numeric, weight float8 DEFAULT 0.1, paid boolean DEFAULT true, day date DEFAULT '2020-02-29',
        at timestamp DEFAULT '2021-03-04 05:06:07.123456', moment timestamptz DEFAULT '2021-03-04 05:06:07.123456+02',
        tags text[] DEFAULT '{a,NULL,"b c"}', doc jsonb DEFAULT '{"a": [1, null]}', ref uuid, data bytea, n int DEFAULT 7)
    """,
    "ALTER TABLE orders ADD PRIMARY KEY (id)",  # so the other unique index is older, and is looked at first
    """
    CREATE TABLE items (
        order_id int, line text, note text DEFAULT 'none of ''them''', body text, n int, price numeric(10,2),
        moment timestamptz, tags text[], PRIMARY KEY (order_id, line))
    """,
    "ALTER TABLE items REPLICA IDENTITY FULL",
    *(f"ALTER TABLE orders ALTER {column} SET STORAGE EXTERNAL" for column in ("body", "doc", "tags", "data")),
    *(f"ALTER TABLE items ALTER {column} SET STORAGE EXTERNAL" for column in ("body", "tags")),
)
"""The statements that make both tables; EXTERNAL values are not compressed, so that large ones stand out of line."""

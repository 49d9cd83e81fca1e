"""The tables that a stream reads: which there are, and by what columns each tells what is new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ....core import Misconfigured, Problem
from ....core.options import Values
from ..connection import Connection
from ..dialects import Dialect
from ..dialects.postgresql import PostgreSql
from ..selecting import NAME, selected, source_of
from .catalog import Listed, listed, looked_up
from .clocks import PLAIN, kind_of
from .keys import Keys
from .options import is_stream_of_tables, mode_wanted
from .positions import BOTH, BULK, INCREMENTING, fingerprint

_WHOLE: Final = re.compile(
    r"u?(tiny|small|medium|big|huge)?int(eger)?([248]|\(\d+\))?( unsigned)?|oid|(numeric|decimal)\b.*", re.I
)
_TEXT: Final = re.compile(r"(char|text|varchar|character varying|varbinary|bit|nvarchar|bpchar)\b[^(]*\(.*\)", re.I)
QUERY: Final = "query"
"""What a query is called in positions, where a table has its name."""


@dataclass(frozen=True)
class Watched:
    """One table, or a query. ``source`` is what stands after FROM, ``time_kind`` says what its times are (:mod:`.clocks`)."""

    name: str
    source: str
    keys: Keys
    columns: tuple[tuple[str, str], ...]
    oid: int | None = None
    time_kind: str = ""
    nulls: bool = True

    @property
    def schema(self) -> str:
        """The fingerprint of the columns. That a text may be longer is no change of its type."""
        return fingerprint(self.plain_columns)

    @property
    def plain_columns(self) -> list[tuple[str, str]]:
        return [(name, _TEXT.sub(lambda found: found[1], kind)) for name, kind in self.columns]


def watched(values: Values, connection: Connection) -> tuple[dict[str, Watched], Misconfigured | None]:
    """Everything that is there to read, by name, and what is wrong with the tables that cannot be read."""
    if is_stream_of_tables(values):
        found = [one for name, one in listed(connection).items() if name in values["tables"]]
    else:
        found = [_single(values, connection)]
    made: dict[str, Watched] = {}
    problems: list[Problem] = []
    for one in found:
        try:
            table = _watched(values, one, connection.dialect)
            made[table.name] = table
        except Misconfigured as wrong:
            problems += wrong.problems
    return made, Misconfigured(NAME, problems) if problems else None


def _single(values: Values, connection: Connection) -> Listed:
    table, _ = source_of(values, connection.dialect)
    told = selected(values, connection)
    columns = tuple((one.name, one.sql) for one in told.columns)
    found = looked_up(connection, table) if table else None
    if found is None:
        return Listed(table, columns, source=told.source, stored=False)
    return Listed(table, found.columns, found.primary, found.not_null, found.oid, found.stored, told.source)


def _watched(values: Values, one: Listed, dialect: Dialect) -> Watched:
    keys = keys_of(values, one, dialect)
    oid = one.oid if isinstance(dialect, PostgreSql) and one.stored else None  # elsewhere a number may be another's next
    plain = PLAIN if dialect.plain_values else ""
    kind = plain or kind_of(keys.time_type)
    name = str(one.table) if one.table else QUERY
    nulls = not set(keys.columns()[-1:] if keys.mode == INCREMENTING else keys.columns()) <= one.not_null
    source = one.source or (dialect.table(one.table) if one.table else "")
    return Watched(name, source, keys, one.columns, oid, kind, nulls)


def keys_of(values: Values, one: Listed, dialect: Dialect) -> Keys:
    """The keys of a table. Raises :class:`Misconfigured`, naming table and option."""
    problems = list(_problems(values, one, dialect))
    if problems:
        raise Misconfigured(NAME, problems)
    mode = mode_wanted(values)
    times = tuple(_name(one, name) or "" for name in values["timestampColumns"])
    number = (_number(values, one) or "") if mode in (INCREMENTING, BOTH) else ""
    time_type = one.type_of(times[0]) or "" if times else ""
    by_transaction = bool(times) and isinstance(dialect, PostgreSql) and one.stored
    return Keys(mode, number, times, time_type, (one.type_of(number) or "") if number else "", by_transaction)


def _problems(values: Values, one: Listed, dialect: Dialect) -> Iterator[Problem]:
    mode, where = mode_wanted(values), str(one.table) if one.table else "the query"
    there = ", ".join(name for name, _ in one.columns)
    for name in values["timestampColumns"]:
        found = _name(one, name)
        kind = one.type_of(found) if found else None
        if found is None:
            yield Problem("timestampColumns", f'names "{name}", but the columns of {where} are {there}.')
        elif not dialect.plain_values and not kind_of(kind or ""):
            yield Problem("timestampColumns", f'names "{name}" of {where}, which is no time but {kind}.')
    if mode not in (INCREMENTING, BOTH):
        return
    number = _number(values, one)
    if number is None and values["incrementingColumn"]:
        yield Problem("incrementingColumn", f'names "{values["incrementingColumn"]}", but the columns of {where} are {there}.')
    elif number is None:
        text = f"missing; {where} has no primary key of one column with whole numbers. Give the column, or incremental={BULK}."
        yield Problem("incrementingColumn", text)
    elif not _is_whole(one.type_of(number) or "", dialect):
        text = f'names "{number}" of {where}, whose type is {one.type_of(number)}, no whole number.'
        yield Problem("incrementingColumn", text)


def _number(values: Values, one: Listed) -> str | None:
    """The column of ids: the one that was named, else a primary key of whole numbers."""
    if values["incrementingColumn"]:
        return _name(one, values["incrementingColumn"])
    primary: Sequence[str] = one.primary
    return primary[0] if len(primary) == 1 and _WHOLE.fullmatch(one.type_of(primary[0]) or "") else None


def _is_whole(kind: str, dialect: Dialect) -> bool:
    return dialect.plain_values or _WHOLE.fullmatch(kind) is not None


def _name(one: Listed, name: str) -> str | None:
    """A column's own name for ``name``, which may differ in case where only one does."""
    exact = [column for column, _ in one.columns if column == name]
    close = exact or [column for column, _ in one.columns if column.lower() == name.lower()]
    return close[0] if len(close) == 1 else None

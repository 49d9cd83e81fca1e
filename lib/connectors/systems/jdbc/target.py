"""The target table: its name, which column of the rows goes where, and making or widening it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...core.errors import ConnectorError, Misconfigured, Problem
from ...core.options import Values
from .column_types import family
from .connection import Connection
from .dialects import Column, Dialect, Table

_PART = r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^\s".`()]+'
_NAME = re.compile(rf"\s*(?:(?P<schema>{_PART})\s*\.\s*)?(?P<name>{_PART})\s*")


def table_of(text: str, dialect: Dialect | None = None) -> Table:
    """The table that ``name``, ``schema.name`` or quoted names mean. Raises ``ValueError`` for anything else."""
    match = _NAME.fullmatch(text)
    if not match:
        raise ValueError("a table: name or schema.name, each of them quoted where it has other characters than letters")

    def part(given: str | None) -> str:
        if not given:
            return ""
        if given[0] in "\"`":
            return given[1:-1].replace(given[0] * 2, given[0])
        return dialect.folded(given) if dialect else given

    return Table(part(match["name"]), part(match["schema"]))


@dataclass(frozen=True)
class Written:
    """A column of the rows, at ``index``, that is written into ``target``."""

    index: int
    kind: pa.DataType
    target: Column


@dataclass(frozen=True)
class Plan:
    """How rows go into ``table``: ``order`` and ``delete`` are the indexes of columns that steer."""

    table: Table
    operation: str
    schema: pa.Schema
    columns: tuple[Written, ...]
    keys: tuple[str, ...]
    key_indexes: tuple[int, ...]
    updated: tuple[str, ...]
    order: int | None
    delete: int | None

    @property
    def names(self) -> list[str]:
        """The target's columns that are written."""
        return [one.target.name for one in self.columns]

    @property
    def order_name(self) -> str:
        """The target's column that orders rows with one key; ``""`` if it has none, or if that is a key itself."""
        names = [column.target.name for column in self.columns if column.index == self.order]
        return names[0] if names and names[0] not in self.keys else ""


class Target:
    """The table that a sink writes to, seen through one connection."""

    def __init__(self, values: Values, dialect: Dialect) -> None:
        self.values = values
        self.dialect = dialect
        self.table = table_of(values["dbtable"], dialect)

    def plan(self, connection: Connection, schema: pa.Schema) -> Plan:
        """How rows of ``schema`` are written; makes or widens the table if the options say so.

        Raises :class:`Misconfigured` with everything that does not fit. Not to be called inside a transaction.
        """
        columns = self.dialect.columns(connection, self.table)
        if not columns:
            columns = self._made(connection, schema)
        elif added := self._added(columns, schema):
            self._widen(connection, added)
            columns = self.dialect.columns(connection, self.table)
        self._stop(self._problems(connection, columns, schema))
        return self._plan(columns, schema)

    def check(self, connection: Connection) -> None:
        """Stops at the start of a run if there is no table, and none is to be made."""
        if not self.values["createTable"] and not self.dialect.columns(connection, self.table):
            self._stop([self._missing()])

    def _missing(self) -> Problem:
        where = f"no table {self.table} in {self.dialect.address}"
        return Problem("dbtable", f"names {where}; make it, or set createTable=true.")

    def _made(self, connection: Connection, schema: pa.Schema) -> list[Column]:
        if not self.values["createTable"]:
            self._stop([self._missing()])
        keys = list(self.values["keyColumns"])
        written = [field for field in schema if field.name not in self._left_out() or field.name in keys]
        self._stop(self._untyped(written))
        body = [f"{self.dialect.quote(one.name)} {self._type(one, one.name in keys)}" for one in written]
        if keys:
            body.append(f"PRIMARY KEY ({self.dialect.names(keys)})")
        self._ddl(connection, f"CREATE TABLE IF NOT EXISTS {self.dialect.table(self.table)} ({', '.join(body)})")
        return self.dialect.columns(connection, self.table)

    def _left_out(self) -> set[str | None]:
        """Columns that steer, and that a table does not get; a direct write compares rows with the order in the table."""
        is_direct = self.values["guarantee"] in ("idempotent", "at-least-once")
        return {self.values["deleteColumn"], None if is_direct else self.values["orderColumn"]}

    def _type(self, field: pa.Field, key: bool) -> str:
        return f"{self.dialect.sql_type(field.type, key=key)}{' NOT NULL' if key else ''}"

    def _added(self, columns: Sequence[Column], schema: pa.Schema) -> list[pa.Field]:
        left_out = self._left_out()
        new = [field for field in schema if field.name not in left_out and _match(field.name, columns) is None]
        if not new or not self.values["evolveSchema"]:
            return []
        required = [
            Problem(field.name, f"is new and required, but rows that are in {self.table} have no value for it; make it "
                    "nullable in the query, or add it to the table with a default.")
            for field in new if not field.nullable
        ]  # fmt: skip
        self._stop([*required, *self._untyped(new)])
        return new

    def _widen(self, connection: Connection, added: Sequence[pa.Field]) -> None:
        for field in added:
            sql = self.dialect.add_column(self.table, field.name, str(self.dialect.sql_type(field.type)))
            try:
                self._ddl(connection, sql)
            except ConnectorError:
                there = _match(field.name, self.dialect.columns(connection, self.table))
                if there is None:  # else another writer was faster
                    raise

    def _ddl(self, connection: Connection, sql: str) -> None:
        try:
            connection.execute(sql)
        except ConnectorError:
            if not sql.startswith("CREATE") or not self.dialect.columns(connection, self.table):
                raise

    def _untyped(self, fields: Sequence[pa.Field]) -> list[Problem]:
        return [
            Problem(field.name, f"has the type {field.type}, which {self.dialect.name} cannot hold; cast it in the query.")
            for field in fields
            if not family(field.type) or self.dialect.sql_type(field.type) is None
        ]

    def _problems(self, connection: Connection, columns: Sequence[Column], schema: pa.Schema) -> Iterator[Problem]:
        steering = {self.values["orderColumn"], self.values["deleteColumn"]}
        shown = ", ".join(column.name for column in columns)
        yield from self._untyped(list(schema))
        for option in ("keyColumns", "updateColumns", "orderColumn", "deleteColumn"):
            given = self.values[option] or ()
            for name in [given] if isinstance(given, str) else given:
                if name not in schema.names:
                    yield Problem(option, f'names "{name}", but the columns are {", ".join(schema.names)}.')
        for name in schema.names:
            if name not in steering and _match(name, columns) is None:
                yield Problem(name, f"is no column of {self.table} ({shown}); leave it out, or set evolveSchema=true.")
        if self.values["operation"] != "update":
            given = {found.name for name in schema.names if (found := _match(name, columns))}
            for column in columns:
                if column.name not in given and not column.nullable and not column.default:
                    yield Problem(column.name, f"is required by {self.table} and not in the rows.")
        delete = self.values["deleteColumn"]
        if delete in schema.names and not pa.types.is_boolean(schema.field(delete).type):
            yield Problem("deleteColumn", f'must be a column of booleans; "{delete}" is {schema.field(delete).type}.')
        if self.values["operation"] == "upsert":
            yield from self._not_unique(connection, columns)

    def _not_unique(self, connection: Connection, columns: Sequence[Column]) -> Iterator[Problem]:
        keys = frozenset(found.name for key in self.values["keyColumns"] if (found := _match(key, columns)))
        if len(keys) == len(self.values["keyColumns"]) and keys not in self.dialect.unique_keys(connection, self.table):
            named = ", ".join(sorted(keys))
            yield Problem("keyColumns", f"must be a primary key or unique in {self.table}; ({named}) is not. Add a constraint.")

    def _plan(self, columns: Sequence[Column], schema: pa.Schema) -> Plan:
        values = self.values
        written = tuple(
            Written(index, field.type, found)
            for index, field in enumerate(schema)
            if (found := _match(field.name, columns)) is not None
        )
        by_name = {schema.field(one.index).name: one.target.name for one in written}
        keys = tuple(by_name[key] for key in values["keyColumns"])
        updated = [by_name[name] for name in values["updateColumns"]] or [
            one.target.name for one in written if one.target.name not in keys
        ]
        index = {name: number for number, name in enumerate(schema.names)}
        return Plan(
            self.table, values["operation"], schema, written, keys, tuple(index[key] for key in values["keyColumns"]),
            tuple(updated), index.get(values["orderColumn"]), index.get(values["deleteColumn"]),
        )  # fmt: skip

    def _stop(self, problems: Iterator[Problem] | Sequence[Problem]) -> None:
        if found := list(problems):
            raise Misconfigured("connectors.jdbc", found)


def _match(name: str, columns: Sequence[Column]) -> Column | None:
    """The column called ``name``; in another case only if there is one such."""
    exact = [column for column in columns if column.name == name]
    close = exact or [column for column in columns if column.name.lower() == name.lower()]
    return close[0] if len(close) == 1 else None

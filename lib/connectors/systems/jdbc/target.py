"""The target table of a sink: the mapping of columns, and how the sink creates or widens the table."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from ...core.datasets import Dataset, of_server
from ...ground.columns import template_columns
from ...ground.errors import ConnectorError, Misconfigured, Problem
from ...ground.options import Values
from .column_types import staged_schema
from .connection import Connection
from .dialects import DIALECTS, Column, DatabaseAddress, Dialect, Table
from .statement import OPTION, BoundStatement, bound_statement

_NAME_PART = r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^\s".`()]+'
_NAME = re.compile(rf"\s*(?:(?P<schema>{_NAME_PART})\s*\.\s*)?(?P<name>{_NAME_PART})\s*")

_EXACT_DIGITS: Final = 15
"""The decimal digits that a floating point number of 64 bits always keeps."""


def table_of(text: str, dialect: Dialect | None = None) -> Table:
    """The table in the text ``name``, ``schema.name``, or quoted names. Raises ``ValueError`` for anything else."""
    match = _NAME.fullmatch(text)
    if not match:
        raise ValueError("a table: name or schema.name, each of them quoted where it has other characters than letters")

    def unquoted(part: str | None) -> str:
        if not part:
            return ""
        if part[0] in "\"`":
            return part[1:-1].replace(part[0] * 2, part[0])
        return dialect.folded(part) if dialect else part

    return Table(unquoted(match["name"]), unquoted(match["schema"]))


@dataclass(frozen=True)
class ColumnMapping:
    """Maps the rows' column at ``index``, of the type ``kind``, to the column ``target`` of the table."""

    index: int
    kind: pa.DataType
    target: Column


@dataclass(frozen=True)
class WritePlan:
    """How rows of ``schema`` go into ``table``.

    ``keys`` and ``updated`` are columns of the table; ``key_indexes``, ``order`` and ``delete`` are indexes of columns of the
    rows. With ``via_stage``, rows cannot be loaded into the table directly: a statement moves them there from a stage.
    ``statement`` is the user's own, in place of all these.
    """

    table: Table
    operation: str
    schema: pa.Schema
    columns: tuple[ColumnMapping, ...]
    keys: tuple[str, ...]
    key_indexes: tuple[int, ...]
    updated: tuple[str, ...]
    order: int | None
    delete: int | None
    via_stage: bool
    statement: BoundStatement | None = None

    @property
    def names(self) -> list[str]:
        """The table's columns to write."""
        return [column.target.name for column in self.columns]

    @property
    def order_name(self) -> str:
        """The table's column that orders rows with the same key; ``""`` if it has none, or if that is itself a key."""
        names = [column.target.name for column in self.columns if column.index == self.order]
        return names[0] if names and names[0] not in self.keys else ""


class Target:
    """The table that a sink writes to."""

    def __init__(self, values: Values, dialect: Dialect, table: Table) -> None:
        self.values = values
        self.dialect = dialect
        self.table = table

    def plan(self, connection: Connection, schema: pa.Schema) -> WritePlan:
        """Plans how to write rows of ``schema``; creates or widens the table if the options say so.

        Raises :class:`Misconfigured` with everything that does not fit. Do not call it inside a transaction.
        """
        columns = self.dialect.columns(connection, self.table)
        if not columns:
            columns = self._create(connection, schema)
        elif new := self._new_fields(columns, schema):
            columns = self._widen(connection, new)
        refuse(self._problems(connection, columns, schema))
        if self.values["statement"]:
            return WritePlan(
                self.table, "insert", schema, (), (), (), (), None, None, via_stage=True,
                statement=self._statement(connection, schema),
            )  # fmt: skip
        return self._plan(connection, columns, schema)

    def check(self, connection: Connection) -> None:
        """Raises :class:`Misconfigured` if there is no table and the options do not create it."""
        if not self.values["createTable"] and not self.dialect.columns(connection, self.table):
            refuse([self._no_table()])

    def check_columns(self, connection: Connection, schema: pa.Schema) -> None:
        """Raises what :meth:`plan` would raise for rows of ``schema``, and changes nothing."""
        if columns := self.dialect.columns(connection, self.table):
            new = [Column(field.name, "", None) for field in self._new_fields(columns, schema)]
            refuse(self._problems(connection, [*columns, *new], schema))
            if self.values["statement"]:
                self._statement(connection, schema)
        elif not self.values["createTable"]:
            refuse([self._no_table()])

    def _no_table(self) -> Problem:
        where = f"no table {self.table} in {self.dialect.address}"
        way_out = "make it" if self.values["statement"] else "make it, or set createTable=true"
        return Problem("dbtable", f"names {where}; {way_out}.")

    def _statement(self, connection: Connection, schema: pa.Schema) -> BoundStatement:
        """The user's own statement. Raises :class:`Misconfigured` if the database refuses it."""
        try:
            return bound_statement(connection, self.values["statement"], schema)
        except ValueError as wrong:
            raise Misconfigured("connectors.jdbc", [Problem(OPTION, str(wrong))]) from None

    def _create(self, connection: Connection, schema: pa.Schema) -> list[Column]:
        if not self.values["createTable"]:
            refuse([self._no_table()])
        keys = list(self.values["keyColumns"])
        fields = [field for field in schema if field.name not in self._steering_only() or field.name in keys]
        refuse(self._types_not_supported(fields))
        body = [f"{self.dialect.quote(field.name)} {self._sql_type(field, field.name in keys)}" for field in fields]
        if keys:
            body.append(f"PRIMARY KEY ({self.dialect.names(keys)})")
        try:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.dialect.table(self.table)} ({', '.join(body)})")
        except ConnectorError:
            if not self.dialect.columns(connection, self.table):  # else another writer was faster
                raise
        return self.dialect.columns(connection, self.table)

    def _steering_only(self) -> set[str | None]:
        """Columns that a new table does not get. Direct writes need the order column in the table for comparison."""
        return {self.values["deleteColumn"], None if self._is_direct else self.values["orderColumn"]}

    @property
    def _is_direct(self) -> bool:
        return self.values["guarantee"] in ("idempotent", "at-least-once")

    def _sql_type(self, field: pa.Field, is_key: bool) -> str:
        return f"{self.dialect.sql_type(field.type, key=is_key)}{' NOT NULL' if is_key else ''}"

    def _new_fields(self, columns: Sequence[Column], schema: pa.Schema) -> list[pa.Field]:
        """The fields for which the table gets new columns, with ``evolveSchema``."""
        steering = self._steering_only()
        new = [field for field in schema if field.name not in steering and column_called(field.name, columns) is None]
        if not new or not self.values["evolveSchema"]:
            return []
        required = [
            Problem(field.name, f"is new and required, but rows that are in {self.table} have no value for it; make it "
                    "nullable in the query, or add it to the table with a default.")
            for field in new if not field.nullable
        ]  # fmt: skip
        refuse([*required, *self._types_not_supported(new)])
        return new

    def _widen(self, connection: Connection, new: Sequence[pa.Field]) -> list[Column]:
        for field in new:
            try:
                connection.execute(self.dialect.add_column(self.table, field.name, str(self.dialect.sql_type(field.type))))
            except ConnectorError:
                columns = self.dialect.columns(connection, self.table)
                if column_called(field.name, columns) is None:  # else another writer was faster
                    raise
        return self.dialect.columns(connection, self.table)

    def _types_not_supported(self, fields: Iterable[pa.Field]) -> list[Problem]:
        return [_unsupported(field, self.dialect) for field in fields if self.dialect.sql_type(field.type) is None]

    def _problems(self, connection: Connection, columns: Sequence[Column], schema: pa.Schema) -> Iterator[Problem]:
        yield from self._types_not_supported(schema)
        if not self.values["statement"]:
            yield from self._unmatched_columns(columns, schema)
        yield from self._unordered(columns, schema)
        if self.values["operation"] == "upsert":
            yield from self._not_unique(connection, columns)
        if not self._is_direct and (reason := self.dialect.commit_gap(connection, self.table)):
            text = f"names {self.table}, which {reason}: its rows would not be there exactly if the ledger says so."
            yield Problem("dbtable", f"{text} Take another table, or guarantee=idempotent or at-least-once.")

    def _unordered(self, columns: Sequence[Column], schema: pa.Schema) -> Iterator[Problem]:
        """The problem of decimals as order: SQLite stores them as text, and compares them as floating point numbers."""
        order = self.values["orderColumn"]
        if not self.dialect.plain_values or order not in schema.names or not pa.types.is_decimal(schema.field(order).type):
            return
        kind, column = schema.field(order).type, column_called(order, columns)
        if kind.precision > _EXACT_DIGITS:
            text = f'names "{order}", a {kind}; {self.dialect.name} compares up to {_EXACT_DIGITS} digits of a decimal exactly.'
            yield Problem("orderColumn", f"{text} Cast it to decimal({_EXACT_DIGITS}, …), or to a whole number of small units.")
        elif self._is_direct and column is not None and not _is_number(column.kind):
            text = f'names "{order}", a decimal, which {self.table} has as text ({column.sql}), in the order of letters.'
            yield Problem("orderColumn", f"{text} Make the table with a column of the type NUMERIC, or take another guarantee.")

    def _unmatched_columns(self, columns: Sequence[Column], schema: pa.Schema) -> Iterator[Problem]:
        steering = {self.values["orderColumn"], self.values["deleteColumn"], *template_columns(self.values["dbtable"])}
        names = ", ".join(column.name for column in columns)
        matches = {name: column_called(name, columns) for name in schema.names}
        for name, column in matches.items():
            if column is None and name not in steering:
                yield Problem(name, f"is no column of {self.table} ({names}); leave it out, or set evolveSchema=true.")
        if self.values["operation"] != "update":
            for column in columns:
                if column not in matches.values() and not column.nullable and not column.default:
                    yield Problem(column.name, f"is required by {self.table} and not in the rows.")

    def _not_unique(self, connection: Connection, columns: Sequence[Column]) -> Iterator[Problem]:
        keys = frozenset(column.name for key in self.values["keyColumns"] if (column := column_called(key, columns)))
        if len(keys) == len(self.values["keyColumns"]) and keys not in self.dialect.unique_keys(connection, self.table):
            named = ", ".join(sorted(keys))
            yield Problem("keyColumns", f"must be a primary key or unique in {self.table}; ({named}) is not. Add a constraint.")

    def _plan(self, connection: Connection, columns: Sequence[Column], schema: pa.Schema) -> WritePlan:
        values, operation = self.values, self.values["operation"]
        mappings = tuple(
            ColumnMapping(index, field.type, column)
            for index, field in enumerate(schema)
            if (column := column_called(field.name, columns)) is not None
        )
        target_names = {schema.field(mapping.index).name: mapping.target.name for mapping in mappings}
        keys = tuple(target_names[key] for key in values["keyColumns"])
        updated = [target_names[name] for name in values["updateColumns"]] or [
            name for name in target_names.values() if name not in keys
        ]
        index = {name: number for number, name in enumerate(schema.names)}
        via_stage = operation != "insert" or bool(keys) or self._is_view(connection)
        return WritePlan(
            self.table, operation, schema, mappings, keys, tuple(index[key] for key in values["keyColumns"]), tuple(updated),
            index.get(values["orderColumn"]), index.get(values["deleteColumn"]),
            via_stage or any(unloadable_columns(self.dialect, mappings)),
        )  # fmt: skip

    def _is_view(self, connection: Connection) -> bool:
        """True for a view in a database that loads rows by COPY, which takes only tables."""
        schema, name = self.table.schema, self.table.name
        return self.dialect.loads_exactly and name not in self.dialect.tables(connection, schema, name)


def unloadable_columns(dialect: Dialect, columns: Iterable[ColumnMapping]) -> Iterator[Problem]:
    """The problems of columns whose values cannot be loaded unchanged."""
    for column in columns if dialect.loads_exactly else ():
        [loaded] = staged_schema(pa.schema([pa.field("c", column.kind)])).types
        if not _fits(loaded, column.target.kind):
            text = f"is {column.kind} and goes into {column.target.sql}, which cannot be loaded directly"
            yield Problem(column.target.name, f"{text}; take commit=batch, or cast it.")


def _fits(kind: pa.DataType, target: pa.DataType | None) -> bool:
    """True if each value of ``kind`` is a value of ``target`` or is refused, so that none is changed."""
    if target is None:
        return False
    if pa.types.is_integer(kind) and pa.types.is_integer(target):
        return True
    floats = pa.types.is_floating(kind) and pa.types.is_floating(target)
    return bool(kind == target or (floats and kind.bit_width <= target.bit_width))


def staged_columns(dialect: Dialect, schema: pa.Schema) -> list[tuple[str, str]]:
    """Names and types of a staging table for rows of ``schema``: ``c0``, ``c1``, …, so that no user's name can conflict.

    Raises :class:`Misconfigured` for types that the database does not have.
    """
    types = [(field, dialect.sql_type(field.type)) for field in staged_schema(schema)]
    refuse([_unsupported(field, dialect) for field, sql in types if sql is None])
    return [(f"c{number}", str(sql)) for number, (_, sql) in enumerate(types)]


def refuse(problems: Iterable[Problem]) -> None:
    """Raises :class:`Misconfigured` if there are any ``problems``."""
    if listed := list(problems):
        raise Misconfigured("connectors.jdbc", listed)


def _is_number(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_decimal(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _unsupported(field: pa.Field, dialect: Dialect) -> Problem:
    return Problem(field.name, f"has the type {field.type}, which {dialect.name} cannot hold; cast it in the query.")


def column_called(name: str, columns: Sequence[Column]) -> Column | None:
    """The column called ``name``; in another case only if there is one such."""
    own = own_name(name, [column.name for column in columns])
    return next((column for column in columns if column.name == own), None)


def own_name(name: str, names: Sequence[str]) -> str | None:
    """The member of ``names`` that is ``name``; in another case only if there is one such."""
    exact = [own for own in names if own == name]
    close = exact or [own for own in names if own.lower() == name.lower()]
    return close[0] if len(close) == 1 else None


def datasets_of(address: DatabaseAddress, *tables: str) -> list[Dataset]:
    """The datasets of tables by their names; a statement in place of a name has none."""
    named = []
    for text in tables:
        with contextlib.suppress(ValueError):
            named.append(_dataset(address, table_of(text, DIALECTS[address.dialect](address, 0.0))))
    return named


def _dataset(address: DatabaseAddress, table: Table) -> Dataset:
    if not address.host:
        return Dataset("file", f"{Path(address.database).absolute()}/{table}")
    server = f"{address.host}:{address.port}"
    if address.dialect in ("mariadb", "mysql"):
        return of_server("mysql", server, f"{table.schema or address.database}.{table.name}")
    scheme = "postgres" if address.dialect == "postgresql" else address.dialect
    return of_server(scheme, server, f"{address.database}.{table.schema or 'public'}.{table.name}")

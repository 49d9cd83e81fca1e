"""Dialects whose catalog is read by SQLAlchemy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ..connection import Connection
from .base import Column, Dialect, Table


@lru_cache(maxsize=16)
def _engine(url: Any, process: int) -> Any:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    return create_engine(url, poolclass=NullPool)


class SqlAlchemyDialect(Dialect):
    """A dialect whose catalog is read by SQLAlchemy; its connections are SQLAlchemy's, unpooled, so that forks are safe."""

    def engine(self) -> Any:
        sqlalchemy = self.module("sqlalchemy")
        for name in self.packages:
            self.module(name)
        where = self.address
        url = sqlalchemy.URL.create(
            self.driver, where.user, where.password, where.host or None, where.port or None, where.database, self.parameters()
        )
        return _engine(url, os.getpid())

    def parameters(self) -> dict[str, str]:
        """Parameters of the SQLAlchemy URL."""
        return dict(self.address.more)

    @contextlib.contextmanager
    def inspected(self) -> Iterator[Any]:
        """What SQLAlchemy knows of the database, over one connection."""
        from sqlalchemy import exc, inspect

        try:
            made = self.engine().connect()
        except exc.DBAPIError as error:
            raise self.refused(error.orig) from None  # type: ignore[arg-type]
        with made:
            try:
                yield inspect(made)
            except exc.DBAPIError as error:
                raise self.judge(error.orig) from None  # type: ignore[arg-type]

    def columns(self, connection: Connection, table: Table) -> list[Column]:
        from sqlalchemy import exc

        try:
            with self.inspected() as known:
                found = known.get_columns(table.name, table.schema or None)
        except exc.NoSuchTableError:
            return []
        return [self._column(one) for one in found if not one.get("computed")]

    def _column(self, told: Any) -> Column:
        identity = told.get("identity") or told.get("autoincrement") is True
        sql = str(told["type"].compile(self.engine().dialect))
        return Column(told["name"], sql, self.arrow_type(told["type"]), told["nullable"], bool(told["default"] or identity))

    def arrow_type(self, told: Any) -> pa.DataType | None:
        """The Arrow type whose values a column of SQLAlchemy's type ``told`` takes as they are."""
        return arrow_type(told)

    def unique_keys(self, connection: Connection, table: Table) -> list[frozenset[str]]:
        where = table.name, table.schema or None
        with self.inspected() as known:
            primary = [known.get_pk_constraint(*where)["constrained_columns"]]
            unique = [one["column_names"] for one in known.get_unique_constraints(*where)]
            indexed = [one["column_names"] for one in known.get_indexes(*where) if one["unique"]]
        return [frozenset(columns) for columns in (*primary, *unique, *indexed) if columns and None not in columns]

    def tables(self, connection: Connection, schema: str, prefix: str) -> list[str]:
        with self.inspected() as known:
            return [name for name in known.get_table_names(schema or None) if name.startswith(prefix)]


def arrow_type(told: Any) -> pa.DataType | None:
    """The Arrow type of a column of SQLAlchemy's type ``told``; ``None`` where they have no equal."""
    import sqlalchemy.types as sql

    if isinstance(told, sql.Numeric) and not isinstance(told, sql.Float):
        fits = told.precision is not None and told.precision <= 38
        return pa.decimal128(told.precision, told.scale or 0) if fits else None
    if isinstance(told, sql.DateTime):
        return pa.timestamp("us", "UTC") if told.timezone else pa.timestamp("us")
    simple = (
        (sql.Boolean, pa.bool_()), (sql.SmallInteger, pa.int16()), (sql.BigInteger, pa.int64()), (sql.Integer, pa.int32()),
        (sql.REAL, pa.float32()), (sql.Float, pa.float64()), (sql.Date, pa.date32()), (sql.JSON, None), (sql.Enum, None),
        (sql.LargeBinary, pa.binary()), (sql.String, pa.string()),
    )  # fmt: skip
    return next((kind for declared, kind in simple if isinstance(told, declared)), None)

"""Databases, and the log of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...systems import source_class
from .base import Order, Scratch, table_rows, wait_until


class Jdbc(Scratch):
    """Tables with the key ``id``."""

    def url(self) -> str:
        return self.address

    def login(self) -> Mapping[str, str]:
        """The options of the connector that reach the database."""
        return self.options

    @contextlib.contextmanager
    def connected(self) -> Iterator[tuple[Any, Any]]:
        """A connection and its dialect."""
        from ...systems.jdbc.connection import pooled_connection

        known = {name: value for name, value in self.login().items() if name in ("user", "password") or "." in name}
        source: Any = source_class("jdbc").of({"url": self.url(), "dbtable": "orders", **known})
        dialect = source.dialect()
        with pooled_connection(dialect) as connection:
            yield connection, dialect

    def exists(self, name: str) -> bool:
        from ...systems.jdbc.target import table_of

        with self.connected() as (connection, dialect):
            return bool(dialect.columns(connection, table_of(name, dialect)))

    def create(self, name: str) -> None:
        import pyarrow as pa

        from ...systems.jdbc.target import table_of

        kinds = {"city": pa.string(), "cents": pa.int64(), "at": pa.timestamp("us", "UTC")}
        with self.connected() as (connection, dialect):
            columns = [f"{dialect.quote('id')} {dialect.sql_type(pa.int64(), key=True)} PRIMARY KEY"]
            columns += [f"{dialect.quote(column)} {dialect.sql_type(kind)}" for column, kind in kinds.items()]
            table = dialect.table(table_of(name, dialect))
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        import pyarrow as pa

        from ...systems.jdbc.column_types import as_python
        from ...systems.jdbc.target import table_of

        with self.connected() as (connection, dialect), connection.transaction():
            sql = dialect.insert_values(table_of(name, dialect), ["id", "city", "cents", "at"])
            connection.many(sql, as_python(pa.RecordBatch.from_pylist(table_rows(orders)), plain=dialect.plain_values))

    def drop(self, name: str) -> None:
        from ...systems.jdbc.target import table_of

        with self.connected() as (connection, dialect):
            connection.execute(f"DROP TABLE IF EXISTS {dialect.table(table_of(name, dialect))}")


class Changes(Jdbc):
    """Tables of a PostgreSQL whose log is followed; ``options`` are the pipeline's parameters for database, user and password.

    Each :meth:`put` also updates some orders and deletes some.
    """

    def url(self) -> str:
        host, _, port = self.address.partition(":")
        return f"jdbc:postgresql://{host}:{port or 5432}/{self.options.get('database_dbname', 'postgres')}"

    def login(self) -> Mapping[str, str]:
        names = {"user": "database_user", "password": "database_password"}
        return {name: self.options[widget] for name, widget in names.items() if self.options.get(widget)}

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from ...systems.jdbc.target import table_of

        with self.connected() as (connection, dialect):
            table = dialect.table(table_of(name, dialect))
            connection.execute(f"UPDATE {table} SET cents = cents + 1 WHERE id % 10 = 3")
            connection.execute(f"DELETE FROM {table} WHERE id % 10 = 4")
        super().put(name, [{**order, "cents": abs(order["cents"])} for order in orders])

    def place(self, name: str) -> str:
        return f"public.{name}"


class Slots(Changes):
    """The slots of pipelines, and the publications of the same names. A slot that nobody reads fills the database's disk."""

    def exists(self, name: str) -> bool:
        slot, publication = self._rows("SELECT 1", name), f"SELECT 1 FROM pg_publication WHERE pubname = '{_slot(name)}'"
        with self.connected() as (connection, _):
            return bool(slot or connection.rows(publication))

    def create(self, name: str) -> None:
        """The pipeline makes it."""

    def drop(self, name: str) -> None:
        with self.connected() as (connection, dialect):
            connection.execute(f"DROP PUBLICATION IF EXISTS {dialect.quote(_slot(name))}")
        self._rows("SELECT pg_terminate_backend(active_pid)", name, "AND active")
        wait_until(lambda: self._is_gone(name), f"the end of the slot {_slot(name)}")

    def _is_gone(self, name: str) -> bool:
        self._rows("SELECT pg_drop_replication_slot(slot_name)", name, "AND NOT active")
        return not self._rows("SELECT 1", name)

    def _rows(self, select: str, name: str, where: str = "") -> Sequence[Any]:
        with self.connected() as (connection, _):
            text = f"{select} FROM pg_replication_slots WHERE slot_name = '{_slot(name)}' {where}"
            return connection.rows(text)  # type: ignore[no-any-return]


def _slot(pipeline: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in pipeline.lower())

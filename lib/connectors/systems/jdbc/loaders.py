"""How Arrow gets into a table: COPY where the database has it, else many rows in a statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from .adbc import AdbcConnection
from .column_types import as_python
from .connection import Connection
from .dialects import Dialect, Table
from .dialects.postgresql import PostgreSql

LOADED_AT_ONCE = 16 << 20
"""Bytes of rows that a writer collects before it loads them."""
_ROWS = 10_000


class Chunks:
    """Collects record batches until they are worth a load."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Keeps ``batch``; true if it is time to load."""
        self.batches.append(batch)
        self.bytes += batch.nbytes
        return self.bytes >= LOADED_AT_ONCE

    def take(self, names: Sequence[str]) -> pa.Table:
        table = pa.Table.from_batches(self.batches).rename_columns(list(names))
        self.batches, self.bytes = [], 0
        return table


class Loader(ABC):
    """Loads in one transaction, which is also that of what is done through ``connection``."""

    connection: Connection

    @abstractmethod
    def begin(self, statement: str = "") -> None:
        """Begins the transaction, unless it has begun; with ``statement`` where it is not an ordinary one."""

    @abstractmethod
    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        """Adds ``rows`` to ``table``, a ``temporary`` one of this connection's or one that all see."""

    def commit(self) -> None:
        self.connection.commit()

    def close(self) -> None:
        """What was not committed is given up."""
        self.connection.close()


class CopyLoader(Loader):
    """PostgreSQL's binary COPY."""

    def __init__(self, dialect: PostgreSql) -> None:
        self.connection: AdbcConnection = AdbcConnection(dialect, dialect.settings(), autocommit=False)

    def begin(self, statement: str = "") -> None:
        """One is always open."""

    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        more = {"db_schema_name": table.schema} if table.schema else {}
        connection = self.connection
        connection.spoilt = True
        with connection.judged(), connection.raw.cursor() as cursor:
            cursor.adbc_ingest(table.name, rows, mode="append", temporary=temporary, **more)


class RowLoader(Loader):
    """``INSERT`` of many rows."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.connection = dialect.connect()
        self._begun = False

    def begin(self, statement: str = "") -> None:
        if not self._begun:
            self.connection.execute(statement or self.dialect.begin)
            self._begun = True

    def load(self, table: Table, rows: pa.Table, *, temporary: bool = False) -> None:
        self.begin()
        sql = f"INSERT INTO {self.dialect.table(table)} ({self.dialect.names(rows.column_names)}) VALUES "
        sql += f"({self.dialect.slots(rows.num_columns)})"
        for batch in rows.to_batches(max_chunksize=_ROWS):
            self.connection.many(sql, as_python(batch, plain=self.dialect.plain_values))

    def commit(self) -> None:
        if self._begun:
            super().commit()
            self._begun = False


def loader_for(dialect: Dialect) -> Loader:
    return CopyLoader(dialect) if isinstance(dialect, PostgreSql) else RowLoader(dialect)

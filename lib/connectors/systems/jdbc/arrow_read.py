"""One SELECT as Arrow record batches, by the fastest way that a database has.

==========  ==================================================  ==========================
postgresql  ADBC: binary COPY, decoded in C                     blocks of 4 MB or fetchsize
duckdb      its own Arrow                                       blocks of fetchsize rows
sqlite      ``sqlite3``, column by column                       the same
mariadb     PyMySQL with a cursor on the server's side, alike   the same
==========  ==================================================  ==========================

ADBC's driver for SQLite is not used: it takes the types from the first rows, so that a column that begins with nulls fails.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from .adbc import AdbcConnection
from .connection import Connection
from .dialects import Dialect
from .dialects.duckdb import DuckDb
from .dialects.mariadb import MariaDb
from .dialects.postgresql import PostgreSql
from .python_values import as_arrow
from .selecting import Clause, Value, rendered

BLOCK_ROWS = 10_000
"""Rows that are handed on at a time where ``fetchsize`` is not given."""
_BLOCK_BYTES = 4 << 20


class Rows(ABC):
    """A connection that reads. ``fetchsize`` is the most rows of a record batch; 0 leaves it to the database's way."""

    def __init__(self, dialect: Dialect, fetchsize: int = 0) -> None:
        self.dialect = dialect
        self.fetchsize = fetchsize
        self.spoilt = False
        """True while the connection must not be used again by another reader."""

    @abstractmethod
    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        """The rows of a SELECT, with columns in its order; memory is bounded by a few blocks.

        ``kinds`` are the types that the database's columns are read as. Databases with types of their own give those,
        which :class:`~connectors.systems.jdbc.fitting.Fitting` makes into what is wanted. One statement at a time.
        """

    @abstractmethod
    def control(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection for small questions, while nothing else is read."""

    @abstractmethod
    def execute(self, sql: str) -> None:
        """Runs a statement that gives no rows."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends a statement that is running, which then raises. Comes from another thread."""

    @abstractmethod
    def close(self) -> None: ...


def rows_for(dialect: Dialect, fetchsize: int = 0) -> Rows:
    """A new connection that reads from ``dialect``'s database."""
    if isinstance(dialect, PostgreSql):
        return AdbcRows(dialect, fetchsize)
    return DuckDbRows(dialect, fetchsize) if isinstance(dialect, DuckDb) else PythonRows(dialect, fetchsize)


class AdbcRows(Rows):
    """PostgreSQL through ADBC."""

    dialect: PostgreSql

    def __init__(self, dialect: PostgreSql, fetchsize: int = 0) -> None:
        super().__init__(dialect, fetchsize)
        self._cursor: Any = None
        settings = (*dialect.settings(), *dialect.reading_settings())
        self.connection = AdbcConnection(dialect, settings, autocommit=True)

    def control(self) -> contextlib.AbstractContextManager[Connection]:
        return contextlib.closing(self.dialect.connect_to_read())

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        quoted = self._quoted([part.value for part in statement if isinstance(part, Value)])
        text, _ = rendered(statement, lambda number, value: self.dialect.bound(quoted[number], value.sql))
        spoilt, self.spoilt = self.spoilt, True
        try:
            with self.connection.judged(), self.connection.raw.cursor() as self._cursor:
                self._cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BLOCK_BYTES)})
                self._cursor.execute(text)
                for batch in self._cursor.fetch_record_batch():
                    yield from blocks(batch, self.fetchsize)
            self.spoilt = spoilt
        except (OSError, pa.ArrowException) as error:  # what goes wrong while rows come
            raise self.dialect.judge_text(error) from None
        finally:
            self._cursor = None

    def _quoted(self, values: Sequence[Any]) -> list[str]:
        """The values as literals, quoted by the server itself, to which they are bound.

        Bound to the statement, they would make ADBC hold all its rows in memory, and hide from the planner how many there are.
        """
        if not values:
            return []
        calls = ", ".join(["quote_literal(%s::text)"] * len(values))
        return list(self.connection.rows(f"SELECT {calls}", [str(value) for value in values])[0])

    def cancel(self) -> None:
        cursor = self._cursor
        if cursor is not None:
            with contextlib.suppress(Exception):
                cursor.adbc_cancel()

    def close(self) -> None:
        self.connection.spoilt = self.connection.spoilt or self.spoilt
        self.connection.close()


class DuckDbRows(Rows):
    """DuckDB's own Arrow."""

    def __init__(self, dialect: Dialect, fetchsize: int = 0) -> None:
        super().__init__(dialect, fetchsize or BLOCK_ROWS)
        self.connection = dialect.connect_to_read()

    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        text, values = rendered(statement, lambda _, value: self.dialect.bound("?", value.sql))
        with self.connection.judged():
            found = self.connection.raw.sql(text, params=values)
            to_reader = getattr(found, "to_arrow_reader", None) or found.fetch_record_batch  # the older name
            for batch in to_reader(self.fetchsize):
                yield from blocks(batch, self.fetchsize)

    def control(self) -> contextlib.AbstractContextManager[Connection]:
        return contextlib.nullcontext(self.connection)

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def cancel(self) -> None:
        self.connection.raw.interrupt()

    def close(self) -> None:
        self.connection.close()


class PythonRows(Rows):
    """Rows as Python has them, a block at a time, from a cursor that does not hold the whole result."""

    def __init__(self, dialect: Dialect, fetchsize: int = 0) -> None:
        super().__init__(dialect, fetchsize or BLOCK_ROWS)
        self.connection = dialect.connect_to_read()

    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        names = [str(number) for number in range(len(kinds))]
        cursor = self._cursor()
        try:
            with self.connection.judged():
                self._run(cursor, statement)
                told = [one[0] for one in cursor.description]
                while rows := cursor.fetchmany(self.fetchsize):
                    columns = enumerate(zip(zip(*rows, strict=True), kinds, strict=True))
                    arrays = [as_arrow(cells, kind, told[number]) for number, (cells, kind) in columns]
                    yield pa.RecordBatch.from_arrays(arrays, names=names)
        finally:
            with contextlib.suppress(Exception):  # the connection may be closed by then
                cursor.close()

    def _cursor(self) -> Any:
        raw = self.connection.raw
        if isinstance(self.dialect, MariaDb):
            return raw.cursor(self.dialect.module("pymysql").cursors.SSCursor)
        return raw.cursor()

    def _run(self, cursor: Any, statement: Clause) -> None:
        if "%" in self.dialect.placeholder:  # a % in a name or a query is doubled, as PyMySQL will format the text
            statement = tuple(part.replace("%", "%%") if isinstance(part, str) else part for part in statement)
        mark: Callable[[int, Value], str] = lambda _, value: self.dialect.bound(self.dialect.placeholder, value.sql)  # noqa: E731
        text, values = rendered(statement, mark)
        cursor.execute(text, tuple(values))

    def control(self) -> contextlib.AbstractContextManager[Connection]:
        return contextlib.nullcontext(self.connection)

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def cancel(self) -> None:
        with contextlib.suppress(Exception):
            interrupt = getattr(self.connection.raw, "interrupt", None)
            interrupt() if interrupt else self.connection.raw._force_close()

    def close(self) -> None:
        self.connection.close()


def blocks(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of at most ``most`` rows (0: as it is)."""
    step = most or max(1, batch.num_rows)
    for number in range(math.ceil(batch.num_rows / step)):
        yield batch.slice(number * step, step)

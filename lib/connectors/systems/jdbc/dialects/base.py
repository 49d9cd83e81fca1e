"""The parts of a dialect: names, types, the statements that move staged rows, and the meaning of errors."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from ....ground.clients import client_library
from ....ground.errors import ConnectorError, Fatal, Misconfigured, Poison, Problem, Transient
from ....ground.options import redacted
from ..column_types import as_python, family
from ..connection import Connection, LockTimeout, ServerSession
from ..statement import BoundStatement, Statement, escaped
from .tables import Column, Table

if TYPE_CHECKING:
    from . import DatabaseAddress


_MIN_IDLE_SECONDS: Final = 10.0
"""The least seconds before an idle session ends, even with a shorter ``request.timeout``."""


class Dialect(ABC):
    """One kind of database, at one ``address``."""

    name: ClassVar[str]
    """The first part of its URLs."""
    system: ClassVar[str] = ""
    """The database whose catalog and functions it has: postgresql, mariadb, mysql, sqlite or duckdb. A stream needs one."""
    port: ClassVar[int] = 0
    """The default port; 0 for a database in a file."""
    url_parameters: ClassVar[Mapping[str, str]] = {}
    """The parameters that its URLs may have, in lower case, and the driver's names for them."""
    ssl_modes: ClassVar[tuple[str, ...]] = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
    """The values of ``sslmode``, if that is one of the parameters."""
    packages: ClassVar[dict[str, str]] = {}
    """The modules of its drivers, and what to install for each."""
    begin: ClassVar[str] = "BEGIN"
    placeholder: ClassVar[str] = "%s"
    at_begin: ClassVar[tuple[str, ...]] = ()
    """Statements that follow the first one of a batch's transaction."""
    before_small: ClassVar[tuple[str, ...]] = ()
    """Statements before a small transaction, which runs beside those of other tasks."""
    one_writer: ClassVar[bool] = False
    """True if only one connection may write at a time. Tasks then stage rows in files, which Spark's driver loads."""
    keeps_order: ClassVar[bool] = True
    """True if the positions of rows in a stage are in the order in which a task has loaded them."""
    rows_at_once: ClassVar[int] = 10_000
    """The most rows of :meth:`run_for_rows`; 0 if the database itself reads them, so that there may be any number."""
    quoted: ClassVar[str] = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
    """The strings, quoted names and comments of SQL, as a regular expression."""
    savepoints: ClassVar[bool] = True
    prepares: ClassVar[bool] = False
    """True if one connection can prepare a transaction, and another one commit it."""
    prepared_needs: ClassVar[str] = ""
    """The requirement that the server fails to meet if :meth:`most_prepared` is 0."""
    loads_exactly: ClassVar[bool] = False
    """True if a load takes only the target's own types. A column of another type goes through a stage."""
    tells_repeated_keys: ClassVar[bool] = False
    """True if the database itself refuses an upsert with a repeated key."""
    plain_values: ClassVar[bool] = False
    """True if the database has no types for times and decimals, which are text then."""
    arrow_driver: ClassVar[str] = ""
    """The driver that takes and returns Arrow: ``adbc`` or ``duckdb``; ``""`` for a driver with Python values."""
    refuses_zero_bytes: ClassVar[bool] = False
    """True if no text may hold a zero byte."""
    refuses_infinity: ClassVar[bool] = False
    """True if no number may be infinite or NaN."""
    refuses_nan: ClassVar[bool] = False
    """True if no number may be NaN."""
    shares_snapshots: ClassVar[bool] = False
    """True if one session can export its snapshot to others."""
    samples_pages: ClassVar[bool] = False
    """True if the database can compute a column's quantiles from a sample of the table's pages."""
    keeps_table_ids: ClassVar[bool] = False
    """True if a later table never gets the number of an earlier one."""
    shows_writers: ClassVar[bool] = False
    """True if a row tells which transaction wrote it."""
    clock: ClassVar[str] = ""
    """A SELECT of the server's time; ``""`` for a database with the clock of this machine."""
    text_type: ClassVar[str] = "VARCHAR"
    """The type to cast values to for their text; ``""`` if values have types and columns have none."""
    types: ClassVar[dict[str, str]]
    row_id: ClassVar[str] = "rowid"
    identifier: ClassVar[str] = "VARCHAR(200)"
    """The type of a column for names, which compares them character by character."""

    def __init__(self, address: DatabaseAddress, timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self.session_statement = ""
        """The first statement of each reading session, from ``sessionInitStatement``; ``""`` for none."""

    @property
    def idle_seconds(self) -> float:
        """The seconds after which the server ends a session that holds locks and whose client is silent, perhaps cut off."""
        return max(self.timeout, _MIN_IDLE_SECONDS)

    # connections

    @property
    def pool_key(self) -> str:
        """The key of a connection in the pool; connections with the same key are interchangeable."""
        where = self.address
        return repr((where, where.user, where.password, sorted(where.more.items()), self.timeout))

    def connect(self) -> Connection:
        """A new connection in autocommit mode."""
        try:
            return Connection(self, self.open())
        except self.errors() as error:
            raise self.refused(error) from None

    @abstractmethod
    def open(self) -> Any:
        """A new connection of the database's driver, in autocommit mode."""

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of the database's driver."""

    @abstractmethod
    def judge(self, error: Exception) -> ConnectorError:
        """The connector's error for an ``error`` of a statement."""

    def refused(self, error: Exception) -> ConnectorError:
        """The connector's error for an ``error`` while connecting."""
        return self.unreachable(error)

    def limit_transaction(self) -> tuple[str, ...]:
        """Statements that make the server end the session if the transaction is idle for :attr:`idle_seconds`."""
        return ()

    def cursor(self, raw: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.closing(raw.cursor())

    def count(self, connection: Connection, sql: str, values: Sequence[Any]) -> int:
        """Runs a statement that changes rows, and returns their number."""
        return connection.execute(sql, values)

    def run(self, cursor: Any, sql: str, values: Sequence[Any]) -> None:
        cursor.execute(sql, tuple(values)) if values else cursor.execute(sql)

    def error_text(self, error: Exception) -> str:
        """The text of ``error`` in one line, without the password."""
        return " ".join(self.address.without_password(str(error)).split())

    def transient(self, error: Exception) -> Transient:
        return Transient(f"{self.address}: {self.error_text(error)}", connector="connectors.jdbc")

    def unreachable(self, error: Exception) -> Transient:
        outage = self.transient(error)
        outage.way_out = "see that url is right, and that the database runs there and can be reached from here"
        return outage

    def lock_timeout(self, error: Exception) -> LockTimeout:
        return LockTimeout(f"{self.address}: {self.error_text(error)}", connector="connectors.jdbc")

    def poison(self, error: Exception) -> Poison:
        return Poison(self.error_text(error))

    def fatal(self, error: Exception) -> Fatal:
        return Fatal(f"{self.address} refuses a statement: {self.error_text(error)}")

    def module(self, name: str) -> Any:
        """A driver's module. Raises :class:`Misconfigured`, which says what to install."""
        package = name.partition(".")[0]
        return client_library(name, f"'{self.packages.get(package, package)}'", connector="connectors.jdbc", option="url")

    # names and types

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def table(self, table: Table) -> str:
        return ".".join(self.quote(part) for part in (table.schema, table.name) if part)

    def folded(self, name: str) -> str:
        """``name`` as the database stores it without quotes."""
        return name

    def table_key(self, name: str) -> str:
        """The same text for all names of one table, also in quotes."""
        return name

    def takes_name(self, name: str) -> bool:
        """False for a name that no table may have."""
        return True

    def names(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self.quote, columns))

    def slots(self, count: int) -> str:
        return ", ".join([self.placeholder] * count)

    def sql_type(self, kind: pa.DataType, *, key: bool = False) -> str | None:
        """The type of a new column for ``kind``; ``None`` if the database has none."""
        name = self.types.get(family(kind))
        return name.format(kind=kind) if name else None

    # the catalog

    @abstractmethod
    def columns(self, connection: Connection, table: Table) -> list[Column]:
        """The columns that can be written; empty if the table does not exist."""

    @abstractmethod
    def unique_keys(self, connection: Connection, table: Table) -> list[frozenset[str]]:
        """The columns of each primary key and unique constraint."""

    def commit_gap(self, connection: Connection, table: Table) -> str:
        """The reason why rows of the table are not committed or kept together with a ledger; empty if there is none."""
        return ""

    @abstractmethod
    def tables(self, connection: Connection, schema: str, prefix: str) -> list[str]:
        """The names in ``schema`` that begin with ``prefix``."""

    # reading

    def planning_settings(self) -> tuple[str, ...]:
        """The settings of the driver's session that plans batches: its queries are short, and many are of the catalog."""
        return ()

    def connect_to_read(self) -> Connection:
        """A new connection that only reads, in autocommit mode."""
        try:
            connection = Connection(self, self.open_to_read())
        except self.errors() as error:
            raise self.refused(error) from None
        try:
            if self.session_statement:
                connection.execute(self.session_statement)
        except (Fatal, Poison) as refused:
            connection.close()
            statement = redacted("sessionInitStatement", self.session_statement)
            problem = Problem("sessionInitStatement", f"is {statement}, and {refused.message}; correct it.")
            raise Misconfigured("connectors.jdbc", [problem]) from None
        return connection

    def open_to_read(self) -> Any:
        return self.open()

    def reading_cursor(self, raw: Any) -> Any:
        """A cursor that does not hold the whole result in memory."""
        return raw.cursor()

    def statement_timeout(self, seconds: float | None) -> str:
        """A statement that limits the time of later statements (``None``: the default); ``""`` if the server has none."""
        return ""

    def pages(self, connection: Connection, table: Table) -> int:
        """The number of pages of a table with its partitions; 0 if it has none, such as a view."""
        return 0

    def text_of(self, expression: str) -> str:
        """``expression`` as text that can become the same value again; unchanged if columns have no types."""
        return f"CAST({expression} AS {self.text_type})" if self.text_type else expression

    def check_file(self) -> None:
        """Raises :class:`Misconfigured` if the file does not exist."""
        if not os.path.isfile(self.address.database):
            raise Misconfigured("connectors.jdbc", [Problem("url", f"names no file: {self.address} is not there.")])

    @abstractmethod
    def described(self, connection: Connection, source: str) -> list[Column]:
        """The columns of ``SELECT * FROM source``, each with the ``kind`` to read it as, ``None`` for text."""

    def size(self, connection: Connection, table: Table | None, source: str, columns: Sequence[Column]) -> int | None:
        """An estimate of the bytes of ``SELECT * FROM source``, without reading; ``None`` if the database has none.

        ``source`` is ``table``, or a query or view whose rows the database estimates.
        """
        return None

    def readable(self, column: Column, as_kind: pa.DataType) -> str:
        """The expression that reads ``column`` as ``as_kind``."""
        return self.quote(column.name)

    def bound(self, placeholder: str, sql: str) -> str:
        """A placeholder for a value to compare with columns of the type ``sql``."""
        return f"CAST({placeholder} AS {sql})" if sql else placeholder

    def has_order(self, column: Column) -> bool:
        """False for a column whose values a condition does not compare as the database sorts them."""
        return True

    def literal(self, value: str | int | float) -> str:
        """A value in the text of a statement, for conditions that no parameter can be given to."""
        return str(value) if isinstance(value, int) else "'{}'".format(str(value).replace("'", "''"))

    def settle(self, connection: Connection, seconds: float) -> None:
        """Returns when each later read shows all that was in the database's log before the call.

        A transaction may be in the log before others see it. Raises :class:`Fatal` if one takes longer than ``seconds``.
        """
        text = f"reaches {self.name}, whose log and reads cannot be brought together here; give a PostgreSQL or MariaDB."
        raise Misconfigured("connectors.jdbc", [Problem("url", text)])

    # statements

    def add_column(self, table: Table, column: str, sql: str) -> str:
        return f"ALTER TABLE {self.table(table)} ADD COLUMN {self.quote(column)} {sql}"

    def create_stage(self, table: Table, columns: Sequence[tuple[str, str]], *, temporary: bool = False) -> tuple[str, ...]:
        """Statements that create a table for staged rows, unless it exists; only this connection sees a ``temporary`` one."""
        body = ", ".join(f"{self.quote(name)} {sql}" for name, sql in columns)
        return (f"CREATE {'TEMPORARY TABLE' if temporary else 'TABLE IF NOT EXISTS'} {self.table(table)} ({body})",)

    def drop_stage(self, table: Table) -> str:
        """Drops a staging table if it exists, without a long wait for a session that uses it."""
        return f"DROP TABLE IF EXISTS {self.table(table)}"

    def cast(self, expression: str, staged: pa.DataType, target: Column) -> str:
        """``expression``, a staged value of the type ``staged``, as a value for ``target``; nested values are JSON text."""
        return expression

    def key(self, expression: str, staged: pa.DataType, target: Column) -> str:
        """``expression``, staged as the type ``staged``, in a form that compares by the rules of ``target``."""
        return expression

    def ordered(self, expression: str, staged: pa.DataType) -> str:
        """``expression``, staged as the type ``staged``, in a form that sorts in the order of its values."""
        return expression

    def insert(self, target: Table, columns: Sequence[str], select: str) -> str:
        return f"INSERT INTO {self.table(target)} ({self.names(columns)}) {select}"

    def upsert(
        self, target: Table, columns: Sequence[str], keys: Sequence[str], updated: Sequence[str], select: str, order: str = ""
    ) -> tuple[str, ...]:
        """Statements that update existing rows and insert the others.

        With ``order``, a column of the target, a row with a larger value there stays unchanged.
        """
        # without the WHERE, SQLite would take the following ON for that of a join
        source = f"SELECT * FROM ({select}) AS connectors_new WHERE true"
        changes = ", ".join(f"{self.quote(name)} = EXCLUDED.{self.quote(name)}" for name in updated)
        change = f"UPDATE SET {changes}{self._if_newer('WHERE', 'EXCLUDED', order)}" if changes else "NOTHING"
        into = f"INSERT INTO {self.table(target)} AS connectors_old ({self.names(columns)})"
        return (f"{into} {source} ON CONFLICT ({self.names(keys)}) DO {change}",)

    def update(self, target: Table, keys: Sequence[str], updated: Sequence[str], select: str, order: str = "") -> str:
        """A statement that updates existing rows; ``order`` as in :meth:`upsert`."""
        changes = ", ".join(f"{self.quote(name)} = connectors_new.{self.quote(name)}" for name in updated)
        newer = self._if_newer("AND", "connectors_new", order)
        source = f"FROM ({select}) AS connectors_new WHERE {self._same(keys)}{newer}"
        return f"UPDATE {self.table(target)} AS connectors_old SET {changes} {source}"

    def _same(self, keys: Sequence[str]) -> str:
        return " AND ".join(f"connectors_old.{self.quote(name)} = connectors_new.{self.quote(name)}" for name in keys)

    def _if_newer(self, word: str, new: str, order: str) -> str:
        """``word`` and the condition that the target's row is no newer than the row in ``new``."""
        column = self.quote(order)
        return f" {word} (connectors_old.{column} IS NULL OR {new}.{column} >= connectors_old.{column})" if order else ""

    def delete(self, target: Table, keys: Sequence[str], select: str) -> str:
        return f"DELETE FROM {self.table(target)} WHERE ({self.names(keys)}) IN ({select})"

    def insert_values(self, table: Table, columns: Sequence[str]) -> str:
        """An INSERT of one row with a placeholder for each of ``columns``."""
        return f"INSERT INTO {self.table(table)} ({self.names(columns)}) VALUES ({self.slots(len(columns))})"

    def load(self, connection: Connection, table: Table, names: Sequence[str], rows: pa.RecordBatchFileReader) -> None:
        """Loads the rows of a staged file."""
        sql = self.insert_values(table, names)
        for number in range(rows.num_record_batches):
            connection.many(sql, as_python(rows.get_batch(number), plain=self.plain_values))

    # statements of the user's own

    def bind(
        self, connection: Connection, statement: Statement, values: Sequence[tuple[str, pa.DataType]]
    ) -> BoundStatement:
        """``statement`` for :meth:`run_for_rows`; ``values`` are staged columns and their types, one for each placeholder.

        Raises :class:`Fatal` if the database refuses it, as far as it can tell without rows.
        """
        if "%" in self.placeholder:
            statement = Statement(escaped(statement.pieces), statement.columns)
        text = statement.rendered(lambda number: self.parameter(values[number][1]))
        if self.one_writer:
            connection.rows(f"EXPLAIN {text}", [None] * len(values))
        return BoundStatement(text, tuple(value for value, _ in values))

    def parameter(self, kind: pa.DataType) -> str:
        """The placeholder for a staged value of ``kind``."""
        return self.placeholder

    def run_for_rows(self, connection: Connection, text: str, select: str, count: int) -> None:
        """Runs the ``text`` of a :class:`BoundStatement` with the first ``count`` values of each row of ``select``, in order.

        Raises :class:`Poison`, which does not name the row, if the database refuses one.
        """
        if rows := connection.rows(select):
            connection.many(text, [row[:count] for row in rows])

    # single rows of a stage

    def positions(self, connection: Connection, stage: Table) -> tuple[int, int]:
        """The first and last position of rows in a stage; not every position has a row."""
        ((first, last),) = connection.rows(f"SELECT min({self.row_id}), max({self.row_id}) FROM {self.table(stage)}")
        return (first, last) if first is not None else (0, -1)

    def position(self) -> str:
        """The position of a row, as SQL."""
        return self.row_id

    def between(self, first: int, last: int) -> str:
        """A condition for the rows at the positions ``first`` to ``last``."""
        return f"{self.row_id} BETWEEN {first} AND {last}"

    # prepared transactions

    def most_prepared(self, connection: Connection) -> int:
        """The limit of prepared transactions; 0 if none can be prepared."""
        return 0

    def prepared(self, connection: Connection, prefix: str) -> dict[str, float]:
        """The prepared transactions whose names begin with ``prefix``, and their ages in seconds."""
        return {}

    def begin_prepared(self, name: str) -> str:
        """The statement that begins a transaction to be prepared."""
        return self.begin

    def prepare(self, name: str) -> tuple[str, ...]:
        """The statements that prepare the transaction of the connection."""
        return (f"PREPARE TRANSACTION '{name}'",)

    def commit_prepared(self, connection: Connection, name: str) -> None:
        connection.execute(f"COMMIT PREPARED '{name}'")

    def rollback_prepared(self, connection: Connection, name: str) -> None:
        connection.execute(f"ROLLBACK PREPARED '{name}'")

    # locks

    def lock(self, connection: Connection, name: str) -> None:
        """Takes the lock ``name`` for the session; only in dialects with :attr:`prepares`.

        From then on the server ends the session if it is idle for :attr:`idle_seconds`.
        Raises :class:`LockTimeout` if another session has the lock for longer than ``timeout``.
        """
        raise NotImplementedError(f"{self.name} prepares no transactions")

    def unlock(self, connection: Connection, name: str) -> None:  # noqa: B027
        """Releases the lock ``name``."""

    def lock_holders(self, connection: Connection, tables: Sequence[Table], lock: str) -> list[ServerSession]:
        """A few sessions that hold locks in ``tables``, or the ``lock`` of :meth:`lock`; oldest first."""
        return []

    def end_session(self, number: int) -> str:
        """The statement with which a person can end a session."""
        return ""

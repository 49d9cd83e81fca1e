"""MariaDB, by PyMySQL."""

from __future__ import annotations

import contextlib
import math
import re
import ssl
import string
import sys
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from ....ground import machine
from ....ground.errors import ConnectorError, Fatal, Misconfigured, Problem
from ..column_types import family
from ..connection import Connection, ServerSession
from ..statement import BoundStatement, Statement
from .base import Dialect
from .tables import Column, Table, grouped_keys, row_bytes

_OUTAGES = {
    1040, 1053, 1158, 1159, 1160, 1161, 1203, 1213, 1290, 1402, 1613, 1614, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3101,
    4031,
}  # fmt: skip
_LOCK_TIMEOUT = 1205
_TOO_LARGE = 1153
_BINARY_COLLATION = "utf8mb4_nopad_bin"
_TEXT = "LONGTEXT CHARACTER SET utf8mb4"
_UNKNOWN = "XAER_NOTA"
_ATTACHED_SECONDS = 1.0
"""The seconds that a session may outlive its client's close."""
_SETTLE_SECONDS = 0.1
_CONFIGURATION = {1044, 1045, 1049, 1698, 2026}
_BAD_ROWS = {1048, 1062, 1136, 1264, 1265, 1292, 1364, 1366, 1406, 1451, 1452, 1644, 3140, 3819, 4025}


_OF_MYSQL = {"DISABLED": "disable", "REQUIRED": "trust", "VERIFY_CA": "verify-ca", "VERIFY_IDENTITY": "verify-full"}
"""The words of MySQL's JDBC driver for ``sslMode``."""
_PREPARE = "PREPARE connectors_statement FROM %s"
_HOLDERS = (
    "SELECT id, user, host, IF(command = 'Sleep', 'idle', lower(command)), CAST(now() - INTERVAL time SECOND AS CHAR) "
    "FROM information_schema.processlist WHERE id <> connection_id() AND {} ORDER BY time DESC LIMIT 3"
)


class MariaDb(Dialect):
    """MariaDB 10.6 and later; a server of MySQL is refused.

    It prepares transactions by XA, and the server lists them for all databases together. Small transactions are READ
    COMMITTED, which a server with ``binlog_format=STATEMENT`` refuses. A setting of the whole server decides when it notices
    the loss of a client's machine (``tcp_keepalive_time``).
    """

    name = system = "mariadb"
    port = 3306
    url_parameters = {  # noqa: RUF012
        "sslmode": "sslmode", "serversslcert": "ssl_ca", "ssl_ca": "ssl_ca", "charset": "charset",
    }  # fmt: skip
    ssl_modes: ClassVar[tuple[str, ...]] = ("disable", "trust", "verify-ca", "verify-full")
    packages = {"pymysql": "pymysql>=1.2"}  # noqa: RUF012
    types = {  # noqa: RUF012
        "bool": "BOOL", "int8": "SMALLINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "float32": "FLOAT",
        "float64": "DOUBLE", "decimal": "DECIMAL({kind.precision}, {kind.scale})", "string": _TEXT, "binary": "LONGBLOB",
        "date": "DATE", "timestamp": "DATETIME(6)", "timestamp_ntz": "DATETIME(6)", "json": _TEXT,
    }  # fmt: skip
    row_id = "`connectors_row`"
    identifier = f"VARCHAR(200) CHARACTER SET utf8mb4 COLLATE {_BINARY_COLLATION}"
    is_mysql = False
    sql_mode = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
    """Makes the server refuse values that do not fit."""
    session_settings: tuple[str, ...] = ()
    """More settings of each session."""
    plan_rows = 8
    """The column of EXPLAIN that has the number of rows."""
    # else a new key locks its gap, and two tasks with new keys in one gap deadlock
    before_small = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",)
    prepares = refuses_infinity = True
    rows_at_once = 0
    quoted = (
        r"""'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*"|`(?:[^`]|``)*`|--(?=\s)[^\n]*|--$|\#[^\n]*|/\*(?!M?!).*?\*/"""
    )  # the server runs /*! … */ and /*M! … */
    clock = "SELECT UTC_TIMESTAMP(6)"
    text_type = "CHAR"
    prepared_needs = "a server that is no node of a Galera cluster, where XA is not to be had"

    def open(self) -> Any:
        where, pymysql, tls = self.address, self.module("pymysql"), self._tls()
        raw = pymysql.connect(
            host=where.host, port=where.port, user=where.user, password=where.password or "", database=where.database,
            autocommit=True, connect_timeout=max(1, round(self.timeout)), charset=where.more.get("charset", "utf8mb4"),
            ssl=tls, ssl_disabled=where.more.get("sslmode") in ("disable", "DISABLED"),
        )  # fmt: skip
        if tls is not None:
            self._refuse_clear_text(raw)
        self._check_server(raw)
        with raw.cursor() as cursor:
            wait = max(1, round(self.timeout))
            locks = f"innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}"
            settings = (f"sql_mode = '{self.sql_mode}'", "default_storage_engine = 'InnoDB'", locks, *self.session_settings)
            cursor.execute(f"SET time_zone = '+00:00', {', '.join(settings)}")
            cursor.execute("SELECT @@max_allowed_packet")
            self._limit_statements(raw, *cursor.fetchone())
        return raw

    def _limit_statements(self, raw: Any, most: int) -> None:
        """Refuses larger statements, for which the server would end the session as in an outage."""
        run = raw.query

        def query(sql: str | bytes, **more: Any) -> Any:
            text = sql.encode(raw.encoding) if isinstance(sql, str) else sql
            if len(text) >= most:
                reason = f"a row makes a statement of {len(text)} bytes; max_allowed_packet of the server is {most}"
                raise self.module("pymysql").err.OperationalError(_TOO_LARGE, reason)
            return run(text, **more)

        raw.query = query

    def _tls(self) -> ssl.SSLContext | None:
        """The TLS that a session must use, from ``sslMode`` and ``serverSslCert``; ``None``: client and server decide."""
        ca = self.address.more.get("ssl_ca")
        mode = self._ssl_mode(ca)
        if mode in ("disable", "PREFERRED"):
            return None
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:  # SSLError is one
            text = f"has the file {ca} for the server's certificate, which cannot be read: {error}"
            raise Misconfigured("connectors.jdbc", [Problem("url", text)]) from None
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # a server's self-made certificates do not pass it
        context.check_hostname = mode == "verify-full"
        context.verify_mode = ssl.CERT_NONE if mode == "trust" else ssl.CERT_REQUIRED
        return context

    def _ssl_mode(self, ca: str | None) -> str:
        """The option ``sslMode`` in the words of MariaDB's driver."""
        mode = self.address.more.get("sslmode", "verify-ca" if ca else "disable")
        return _OF_MYSQL.get(mode, mode)

    def _refuse_clear_text(self, raw: Any) -> None:
        """Refuses an unencrypted connection: PyMySQL before 1.2 accepts one if the server has no encryption."""
        with raw.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            [(_, cipher)] = cursor.fetchall()
        if not cipher:
            raw.close()
            text = f"{self.address} does not encrypt, as sslMode asks for. Set up TLS there."
            raise Misconfigured("connectors.jdbc", [Problem("url", text)])

    def _check_server(self, raw: Any) -> None:
        """Refuses a server of the other kind, which understands other statements, and a MySQL that is too old."""
        version = raw.get_server_info()
        if "mariadb" not in version.lower():  # a proxy may hide the name
            with raw.cursor() as cursor:
                cursor.execute("SELECT version()")
                [version] = cursor.fetchone()
        is_mariadb = "mariadb" in version.lower()
        way_out = ""
        if is_mariadb == self.is_mysql:
            way_out = f"Begin the URL with jdbc:{'mariadb' if is_mariadb else 'mysql'}://"
        elif self.is_mysql and version.startswith("5."):
            way_out = "MySQL must be 8.0 or later."
        if way_out:
            raw.close()
            text = f"names {self.address}, a server of version {version}. {way_out}"
            raise Misconfigured("connectors.jdbc", [Problem("url", text)])

    def reading_cursor(self, raw: Any) -> Any:
        return raw.cursor(self.module("pymysql").cursors.SSCursor)

    def limit_transaction(self) -> tuple[str, ...]:
        """As in the base class. A prepared transaction also counts as idle; only after its session ends can it be committed."""
        return (f"SET idle_transaction_timeout = {round(self.idle_seconds)}",)

    def errors(self) -> tuple[type[Exception], ...]:
        return (self.module("pymysql").err.Error,)

    def judge(self, error: Exception) -> ConnectorError:
        code = error.args[0] if error.args else 0
        if code in _BAD_ROWS:
            return self.poison(error)
        if code == _LOCK_TIMEOUT:
            return self.lock_timeout(error)
        if code in _OUTAGES or code in (0, ""):
            return self.transient(error)
        return self.fatal(error)

    def refused(self, error: Exception) -> ConnectorError:
        if error.args and (error.args[0] in _CONFIGURATION or "CERTIFICATE_VERIFY_FAILED" in str(error)):
            text = f"{self.address} cannot be used: {self.error_text(error)}"
            return Misconfigured("connectors.jdbc", [Problem("url", text)])
        return self.unreachable(error)

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def run(self, cursor: Any, sql: str, values: Sequence[Any]) -> None:
        cursor.execute(sql, tuple(values) if values else None)  # None: a % in a name is no placeholder

    def sql_type(self, kind: pa.DataType, *, key: bool = False) -> str | None:
        if key and family(kind) == "string":
            return "VARCHAR(255) CHARACTER SET utf8mb4"  # an index needs a length
        return super().sql_type(kind, key=key)

    def create_stage(self, table: Table, columns: Sequence[tuple[str, str]], *, temporary: bool = False) -> tuple[str, ...]:
        """As in the base class; a temporary one survives the end of a transaction, so that there may be one."""
        numbered = (*columns, ("connectors_row", "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"))
        drop = (f"DROP TEMPORARY TABLE IF EXISTS {self.table(table)}",) if temporary else ()
        return *drop, *super().create_stage(table, numbered, temporary=temporary)

    def drop_stage(self, table: Table) -> str:
        return f"{super().drop_stage(table)} WAIT 1"

    def key(self, expression: str, staged: pa.DataType, target: Column) -> str:
        is_text = family(staged) in ("string", "json") and target.collation
        return f"{expression} COLLATE {target.collation}" if is_text else expression

    def insert_values(self, table: Table, columns: Sequence[str]) -> str:
        """As in the base class; PyMySQL formats the statement, so a % in a name is doubled."""
        into = f"INSERT INTO {self.table(table)} ({self.names(columns)})".replace("%", "%%")
        return f"{into} VALUES ({self.slots(len(columns))})"

    def cast(self, expression: str, staged: pa.DataType, target: Column) -> str:
        return self.key(expression, staged, target)

    def upsert(
        self, target: Table, columns: Sequence[str], keys: Sequence[str], updated: Sequence[str], select: str, order: str = ""
    ) -> tuple[str, ...]:
        """As in the base class. ON DUPLICATE KEY would change another row with the same value in any unique column."""
        new = ", ".join(f"connectors_new.{self.quote(name)}" for name in columns)
        old = f"LEFT JOIN {self.table(target)} AS connectors_old ON {self._same(keys)}"
        missing = f"SELECT {new} FROM ({select}) AS connectors_new {old} WHERE connectors_old.{self.quote(keys[0])} IS NULL"
        change = (self.update(target, keys, updated, select, order),) if updated else ()
        return (*change, self.insert(target, columns, missing))

    def update(self, target: Table, keys: Sequence[str], updated: Sequence[str], select: str, order: str = "") -> str:
        changes = ", ".join(f"connectors_old.{self.quote(name)} = connectors_new.{self.quote(name)}" for name in updated)
        source = f"JOIN ({select}) AS connectors_new ON {self._same(keys)}"
        newer = self._if_newer("WHERE", "connectors_new", order)
        return f"UPDATE {self.table(target)} AS connectors_old {source} SET {changes}{newer}"

    def bind(
        self, connection: Connection, statement: Statement, values: Sequence[tuple[str, pa.DataType]]
    ) -> BoundStatement:
        text = statement.rendered(lambda _: "?")
        connection.execute(_PREPARE, [text])
        return BoundStatement(text, tuple(value for value, _ in values))

    def run_for_rows(self, connection: Connection, text: str, select: str, count: int) -> None:
        """As in the base class, in a loop of the server: PyMySQL would ask once for each row."""
        connection.execute(_PREPARE, [text])
        values = ", ".join(f"connectors_values.v{number}" for number in range(count))
        run = f"EXECUTE connectors_statement{f' USING {values}' if count else ''}"
        connection.execute(f"BEGIN NOT ATOMIC FOR connectors_values IN ({select}) DO {run}; END FOR; END")

    def takes_name(self, name: str) -> bool:
        """As in the base class: no zero byte, no letter of 4 bytes, and no white space at the end."""
        return "\0" not in name and max(name) <= "\uffff" and name[-1] not in string.whitespace

    def columns(self, connection: Connection, table: Table) -> list[Column]:
        rows = self._catalog_rows(
            connection, table,
            "SELECT column_name, column_type, is_nullable = 'YES', "
            "column_default IS NOT NULL OR extra LIKE '%%auto_increment%%', coalesce(collation_name, '') "
            "FROM information_schema.columns WHERE {} AND coalesce(generation_expression, '') = '' "
            "ORDER BY ordinal_position",
        )  # fmt: skip
        return [
            Column(name, kind, _arrow(kind), bool(nullable), bool(default), _collation(collation))
            for name, kind, nullable, default, collation in rows
        ]

    def unique_keys(self, connection: Connection, table: Table) -> list[frozenset[str]]:
        rows = self._catalog_rows(
            connection, table,
            "SELECT index_name, column_name FROM information_schema.statistics WHERE non_unique = 0 AND {} "
            "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
        )  # fmt: skip
        return grouped_keys(rows)

    def commit_gap(self, connection: Connection, table: Table) -> str:
        with_transactions = "SELECT engine FROM information_schema.engines WHERE transactions = 'YES'"
        query = f"SELECT engine FROM information_schema.tables WHERE {{}} AND engine NOT IN ({with_transactions})"
        rows = self._catalog_rows(connection, table, query)
        return f"has the engine {rows[0][0]}, without transactions" if rows else ""

    def tables(self, connection: Connection, schema: str, prefix: str) -> list[str]:
        """As in the base class. LIKE keeps the server from opening all tables of the schema; its ``_`` matches any letter."""
        where = "table_name LIKE %s AND table_schema = " + ("%s" if schema else "database()")
        sql = f"SELECT table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND {where}"
        values = [prefix.replace("_", "\\_") + "%", *([schema] if schema else [])]
        return [name for (name,) in connection.rows(sql, values) if name.startswith(prefix)]

    def _catalog_rows(self, connection: Connection, table: Table, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query of ``information_schema`` about one table, whose name replaces ``{}``."""
        where = "table_name = %s AND table_schema = " + ("%s" if table.schema else "database()")
        return connection.rows(sql.format(where), [table.name, *([table.schema] if table.schema else [])])

    def bound(self, placeholder: str, sql: str) -> str:
        """Casts only decimals, which MariaDB would compare with text as floating point numbers."""
        kind = re.match(r"decimal\(.*?\)", sql)  # CAST knows no unsigned decimals
        return f"CAST({placeholder} AS {kind[0]})" if kind else placeholder

    def has_order(self, column: Column) -> bool:
        """As in the base class: the words of an enum are sorted by their numbers, and bits are no text."""
        return column.base not in _UNORDERED

    def literal(self, value: str | int | float) -> str:
        return str(value) if isinstance(value, int) else f"_utf8mb4 X'{str(value).encode().hex()}'"  # whatever sql_mode says

    def settle(self, connection: Connection, seconds: float) -> None:
        """As in the base class: a snapshot of the server is not behind its binary log as that is now."""
        until, status = machine.monotonic() + seconds, connection.rows("SHOW MASTER STATUS")
        if not status:
            problem = Problem("url", "reaches a server without a binary log; give its primary's.")
            raise Misconfigured("connectors.jdbc", [problem])
        while self._snapshot_end(connection) < _log_place(*status[0][:2]):
            if machine.monotonic() > until:
                text = f"transactions are in the binary log for more than {seconds:g} seconds, and are not to be seen"
                raise Fatal(text, way_out="call again when they have ended, or wait for longer")
            machine.sleep(_SETTLE_SECONDS)

    def _snapshot_end(self, connection: Connection) -> tuple[int, int]:
        connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            rows = connection.rows("SHOW STATUS LIKE 'binlog_snapshot_%'")
        finally:
            connection.rollback()
        found = {name.lower(): value for name, value in rows}
        return _log_place(found["binlog_snapshot_file"], found["binlog_snapshot_position"])

    def described(self, connection: Connection, source: str) -> list[Column]:
        with connection.judged(), self.cursor(connection.raw) as cursor:
            cursor.execute(f"SELECT * FROM {source} LIMIT 0")
            fields = list(cursor._result.fields)  # more than DB-API has: lengths, and whether bytes are text
        return [Column(field.name, *_field_type(field), base=_base(field)) for field in fields]

    def size(self, connection: Connection, table: Table | None, source: str, columns: Sequence[Column]) -> int | None:
        """As in the base class; for a query the estimated rows of its outermost join, times their estimated length."""
        sql = "SELECT data_length FROM information_schema.tables WHERE {}"
        lengths = self._catalog_rows(connection, table, sql) if table else []
        if lengths and lengths[0][0] is not None:
            return int(lengths[0][0])
        plan = connection.rows(f"EXPLAIN SELECT * FROM {source}")
        return math.prod(int(row[self.plan_rows] or 1) for row in plan if row[0] == plan[0][0]) * row_bytes(columns)

    def readable(self, column: Column, as_kind: pa.DataType) -> str:
        name = self.quote(column.name)
        if column.sql.startswith("bit("):
            name = f"CAST({name} AS UNSIGNED)"  # as text it would lose the bytes that are no letters
        if pa.types.is_string(as_kind) and not pa.types.is_string(column.kind or pa.string()):
            return f"CAST({name} AS CHAR)"
        if column.sql == "float":
            return f"{name} * 1e0"  # the server writes six digits of a FLOAT
        return f"CAST({name} AS CHAR)" if column.kind is None else name

    def most_prepared(self, connection: Connection) -> int:
        galera = connection.rows("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")
        return 0 if galera and galera[0][1] == "ON" else sys.maxsize

    def prepared(self, connection: Connection, prefix: str) -> dict[str, float]:
        """As in the base class; ages come from the time in the names, since the server has none."""
        found = [data for form, _, _, data in connection.rows("XA RECOVER") if form == self._form()]
        names = [data if isinstance(data, str) else data.decode() for data in found]
        return {name: machine.time() - int(name[-32:-24], 16) for name in names if name.startswith(prefix)}

    def begin_prepared(self, name: str) -> str:
        return f"XA START {self._xid(name)}"

    def prepare(self, name: str) -> tuple[str, ...]:
        return (f"XA END {self._xid(name)}", f"XA PREPARE {self._xid(name)}")

    def commit_prepared(self, connection: Connection, name: str) -> None:
        if not self._ended(connection, "COMMIT", name):
            raise self.transient(RuntimeError(f"the session that has prepared {name} is still there"))

    def rollback_prepared(self, connection: Connection, name: str) -> None:
        """Rolls back, unless the session still exists, as after the loss of its machine; then a later run does it."""
        self._ended(connection, "ROLLBACK", name)

    def _ended(self, connection: Connection, action: str, name: str) -> bool:
        """Commits or rolls back ``name``; false if its session still exists, since that must end first."""
        until = machine.monotonic() + _ATTACHED_SECONDS
        while True:
            try:
                connection.execute(f"XA {action} {self._xid(name)}")
            except Fatal as error:
                if _UNKNOWN not in str(error):
                    raise
                if name not in self.prepared(connection, name):
                    return True  # another session was faster
            else:
                return True
            if machine.monotonic() > until:
                return False
            machine.sleep(0.02)

    def lock(self, connection: Connection, name: str) -> None:
        connection.execute(f"SET wait_timeout = {round(self.idle_seconds)}")
        ((locked,),) = connection.rows("SELECT GET_LOCK(%s, %s)", [self._lock(name), max(1, round(self.timeout))])
        if locked != 1:
            raise self.lock_timeout(RuntimeError("another session has the lock of the sink"))

    def unlock(self, connection: Connection, name: str) -> None:
        connection.rows("SELECT RELEASE_LOCK(%s)", [self._lock(name)])

    def lock_holders(self, connection: Connection, tables: Sequence[Table], lock: str) -> list[ServerSession]:
        """As in the base class; the server tells who holds row locks, but not in which table."""
        rows = connection.rows(_HOLDERS.format("id = IS_USED_LOCK(%s)"), [self._lock(lock)])
        with contextlib.suppress(ConnectorError):  # without the privilege PROCESS
            in_transaction = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_rows_locked > 0"
            rows += connection.rows(_HOLDERS.format(f"id IN ({in_transaction})"))
        return [ServerSession(*row) for row in dict.fromkeys(rows)][:3]

    def end_session(self, number: int) -> str:
        return f"KILL {number}"

    def _lock(self, name: str) -> str:
        """The lock's name on the server, which has one list of locks for all databases."""
        return f"{name}-{self._form()}"

    def _xid(self, name: str) -> str:
        """``name`` as the two parts of an XA id, each at most 64 bytes long, and the number of the database."""
        return f"'{name[:-32]}', '{name[-32:]}', {self._form()}"

    def _form(self) -> int:
        return zlib.crc32(self.address.database.encode()) >> 1


_UNORDERED = ("enum", "set", "bit")
_BINARY = 63
"""The character set of bytes that are no text."""
_TYPES = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 7: "timestamp", 8: "bigint", 9: "mediumint", 10: "date",
    12: "datetime", 13: "year",
}  # fmt: skip
_READ = {
    "tinyint": pa.int16(), "smallint": pa.int16(), "mediumint": pa.int32(), "int": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"), "year": pa.int16(), "char": pa.string(), "blob": pa.binary(),
}  # fmt: skip
_UNSIGNED = {
    "tinyint": pa.int16(), "smallint": pa.int32(), "mediumint": pa.int32(), "int": pa.int64(), "bigint": pa.decimal128(20, 0),
}  # fmt: skip


def _field_type(field: Any) -> tuple[str, pa.DataType | None]:
    """The type of a column of a result, and the type to read it as."""
    code, unsigned = field.type_code, bool(field.flags & 32)
    if code in (0, 246):  # the length counts a sign, and a point where there is a scale
        precision = field.length - (not unsigned) - (field.scale > 0)
        return f"decimal({precision},{field.scale})", pa.decimal128(precision, field.scale) if precision <= 38 else None
    if code == 16:
        kind = pa.bool_() if field.length == 1 else pa.int64() if field.length < 64 else _UNSIGNED["bigint"]
        return f"bit({field.length})", kind
    if code == 1 and field.length == 1:
        return "tinyint(1)", pa.bool_()
    if code in (249, 250, 251, 252, 253, 254):
        name = "blob" if field.charsetnr == _BINARY else "char"
        return name, _READ[name]
    name = _TYPES.get(code, "char")
    return name, _UNSIGNED[name] if unsigned and name in _UNSIGNED else (_READ[name] if code in _TYPES else None)


def _base(field: Any) -> str:
    """The type of values that are read as text, where that is of interest."""
    return "enum" if field.flags & 256 else "set" if field.flags & 2048 else "bit" if field.type_code == 16 else ""


def _collation(name: str) -> str:
    """A column's collation for the character set of a stage, utf8mb4; ``""`` if it has no equal there."""
    if name.endswith("_bin") and not name.startswith("utf8mb4_"):
        return _BINARY_COLLATION if name.endswith("_nopad_bin") else "utf8mb4_bin"
    name = "utf8mb4_swedish_ci" if name == "latin1_swedish_ci" else name  # almost: to that of a stage ä would be a
    return re.sub(r"^utf8(mb3)?_", "utf8mb4_", name) if name.startswith("utf8") else ""


def _arrow(sql: str) -> pa.DataType | None:
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", sql):
        return pa.decimal128(int(match[1]), int(match[2])) if int(match[1]) <= 38 else None
    simple = (
        ("tinyint(1)", pa.bool_()), ("smallint", pa.int16()), ("int", pa.int32()), ("bigint", pa.int64()),
        ("float", pa.float32()), ("double", pa.float64()), ("longtext", pa.string()), ("longblob", pa.binary()),
        ("date", pa.date32()), ("datetime(6)", pa.timestamp("us")),
    )  # fmt: skip
    base = re.sub(r"\(\d+\)$", "", sql) if "int(" in sql and sql != "tinyint(1)" else sql
    return dict(simple).get(base)


def _log_place(file: str, position: str | int) -> tuple[int, int]:
    """The place of a position in the binary log, of which the number of the file comes first."""
    return int(file.rpartition(".")[2] or 0), int(position)

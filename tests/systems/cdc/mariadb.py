"""The workload on MariaDB and MySQL: their types, their SQL, and Debezium's connector for each."""

from __future__ import annotations

import datetime
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from tests.connect.java_sources import DEBEZIUM_MARIADB, DEBEZIUM_MYSQL, mariadb_properties, mysql_properties
from tests.systems.cdc import values as v
from tests.systems.cdc.alterations import Alterations
from tests.systems.cdc.compare import Copy
from tests.systems.cdc.sessions import Plan, Session, Statement
from tests.systems.cdc.statements import Statements
from tests.systems.cdc.switches import DEFAULT
from tests.systems.cdc.tables import Column, Table
from tests.systems.cdc.values import Kind
from tests.systems.cdc.workload import SIGNALS, Workload, small_batches

_EXPECTED: Final = (
    ER.DUP_ENTRY,
    ER.LOCK_DEADLOCK,
    ER.LOCK_WAIT_TIMEOUT,
    ER.BAD_FIELD_ERROR,
    ER.NO_DEFAULT_FOR_FIELD,
    ER.BAD_NULL_ERROR,
    ER.TABLE_DEF_CHANGED,
    ER.WRONG_VALUE_COUNT_ON_ROW,
    ER.BLOB_CANT_HAVE_DEFAULT,
)
_WAITS: Final = """
SELECT (SELECT count(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = %s AND trx_state = 'LOCK WAIT')
     + (SELECT count(*) FROM information_schema.processlist WHERE id = %s AND state LIKE 'Waiting for%%lock')
"""
_SERVER_IDS = iter(range(5_700, 6_700))


class ExpectedError(Exception):
    """An error that the workload brings about: a key that is taken, a column that is gone."""


class Deadlock(ExpectedError):
    """The whole transaction is rolled back."""


def _bit(chance: random.Random) -> bytes:
    return chance.choice((b"\0", b"\1"))


def _octets(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 7, 40)))


def _zoned(chance: random.Random) -> str:
    """What a TIMESTAMP takes: 1970 to 2038."""
    moment = datetime.datetime(1980, 1, 1) + datetime.timedelta(microseconds=chance.randrange(50 * 365 * 86_400 * 1_000_000))
    return moment.isoformat(" ", "microseconds")


INT: Final = Kind("int", "int", v.integer(32), "7")
BIGINT: Final = Kind("bigint", "bigint", v.integer(64), "-8000000000")
TEXT: Final = Kind("text", "text", v.text, "'none of them'", v.large_text)
PRICE: Final = Kind("decimal(10,2)", "decimal(10,2)", v.decimal(10, 2), "9.50")
WIDE_PRICE: Final = Kind("decimal(14,4)", "decimal(14,4)", v.decimal(14, 4), "9.5001")
EXACT: Final = Kind("decimal(38,18)", "decimal(38,18)", v.free_decimal, "1.250", switch="free_numeric")
DOUBLE: Final = Kind("double", "double", lambda chance: str(chance.choice((0.1, -1e300, 1e16, chance.uniform(-1, 1)))), "0.1")
BOOLEAN: Final = Kind("tinyint", "tinyint(1)", lambda chance: chance.choice((0, 1)), "1")
BIT: Final = Kind("bit", "bit(1)", _bit, "b'1'")
DATE: Final = Kind("date", "date", v.day, "'2020-02-29'")
DATETIME: Final = Kind("datetime", "datetime(6)", v.timestamp, "'2021-03-04 05:06:07.123456'")
TIMESTAMP: Final = Kind("timestamp", "timestamp(6)", _zoned, "'2021-03-04 05:06:07.123456'")
JSON: Final = Kind("json", "json", v.document, '\'{"a": [1, null]}\'', v.large_document)
BLOB: Final = Kind("blob", "blob", _octets, "'\\0\\Z10'", lambda chance: chance.randbytes(3_000))

_ORDERS: Final = {
    "name": TEXT, "body": TEXT, "amount": BIGINT, "price": PRICE, "ratio": EXACT, "weight": DOUBLE, "paid": BOOLEAN,
    "flag": BIT, "day": DATE, "at": DATETIME, "moment": TIMESTAMP, "doc": JSON, "data": BLOB, "n": INT,
}  # fmt: skip
_WITHOUT_DEFAULT: Final = ("body", "ratio", "data")
_ITEMS: Final = {"note": TEXT, "body": TEXT, "n": INT, "price": PRICE, "moment": TIMESTAMP}


def _tables(untold: Collection[Kind] = ()) -> dict[str, Table]:
    """The tables; columns of the kinds ``untold`` have no default."""
    large = {"name": 0.0, "note": 0.0, "body": 0.3}
    orders, items = (
        [
            Column(name, kind, True, name not in without and kind not in untold, True, large.get(name, 0.05))
            for name, kind in kinds.items()
        ]
        for kinds, without in ((_ORDERS, _WITHOUT_DEFAULT), (_ITEMS, ("body", "n", "price", "moment")))
    )
    return {
        "orders": Table("orders", ("id",), orders, logs_whole_rows=True),
        "items": Table("items", ("order_id", "line"), items, hot=150, logs_whole_rows=True),
    }


def definition(column: Column) -> str:
    """A column as CREATE TABLE and ALTER TABLE define it."""
    default = f" DEFAULT {column.kind.default}" if column.has_default else ""
    return f"{column.name} {column.kind.sql} {'NULL' if column.nullable else 'NOT NULL'}{default}"


class MariaDbStatements(Statements):
    """Statements as MariaDB has them. LOAD DATA is a multi-row INSERT: to the binary log both are the same."""

    ending_errors = (Deadlock,)

    def upsert(self, table: Table) -> Statement:
        insert = self.insert(table)
        if self.chance.random() < 0.25:
            return Statement(insert.sql.replace("INSERT", "REPLACE", 1), insert.parameters, sort="replace")
        conflict = self.on_conflict(table, table.updatable(self.chance))
        return Statement(f"{insert.sql} {conflict}", insert.parameters, sort="upsert")

    def on_conflict(self, table: Table, columns: Sequence[Column]) -> str:
        update = ", ".join(f"{column.name} = VALUES({column.name})" for column in columns)
        return f"ON DUPLICATE KEY UPDATE {update}"

    def bulk_load(self, table: Table) -> Statement:
        """Many rows that share an event of the binary log, which tells them apart by their number in it."""
        count = min(self.most_rows, self.chance.choice((20, 150, 400, 800, self.chance.randrange(400, 2000))))
        columns = table.insertable(self.chance, self.chance.choice((0.15, 0.5, 0.9)))
        rows = self.new_rows(table, columns, count, is_small=self.chance.random() < 0.7)
        names = ", ".join((*table.keys, *(column.name for column in columns)))
        places = ", ".join("%s" for _ in rows[0])
        return Statement(f"INSERT INTO {table.name} ({names}) VALUES ({places})", rows=rows, sort="copy")


class MariaDbAlterations(Alterations):
    """ALTER TABLE as MariaDB has it: each commits by itself."""

    added_kinds = (INT, PRICE, EXACT, DATE, DATETIME, TEXT, BOOLEAN, BIT, DOUBLE, JSON, BLOB)
    plain_kinds = (INT, TEXT, BOOLEAN, DOUBLE)
    untold_kinds = frozenset({BLOB})
    wider = {INT: BIGINT, PRICE: WIDE_PRICE}  # noqa: RUF012

    def alteration(self, table: Table, *actions: str) -> Plan:
        if self.chance.random() < 0.5:
            yield self.statements.update(table)
        for action in actions:
            if (yield Statement(f"ALTER TABLE {table.name} {action}", sort="alter", is_ddl=True)) is not None:
                return False
        return True

    def new_type(self, column: Column) -> str:
        return f"MODIFY COLUMN {definition(column)}"

    def literal(self, kind: Kind) -> str:
        return kind.default


class MariaDbWorkload(Workload):
    """A workload on MariaDB. The history of its tables' definitions lies beside the statements."""

    package = DEBEZIUM_MARIADB
    properties = staticmethod(mariadb_properties)
    topic_prefix = "maria"
    expected = (ExpectedError,)
    alterations_of: type[MariaDbAlterations] = MariaDbAlterations
    without_default: Collection[Kind] = ()

    def __init__(self, server: Any, folder: Path, seed: int, switches: Collection[str] = DEFAULT) -> None:
        self.server, self.server_id = server, next(_SERVER_IDS)
        tables = _tables(self.without_default)
        statements = MariaDbStatements(tables, random.Random(f"workload {seed}"), frozenset(switches))
        super().__init__(folder, seed, switches, statements, self.alterations_of(statements))

    def connect(self, database: str | None = None) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="app",
            password="app",
            database=database or self.name,
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', "
            "innodb_lock_wait_timeout = 1, lock_wait_timeout = 2",
        )

    def execute(self, connection: Any, statement: Statement) -> int:
        with connection.cursor() as cursor:
            try:
                if statement.rows is None:
                    return int(cursor.execute(statement.sql, statement.parameters))
                return int(cursor.executemany(statement.sql, statement.rows))
            except pymysql.MySQLError as error:
                code = error.args[0] if error.args else None
                if code in (ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT):
                    raise Deadlock(str(error)) from error
                if code in _EXPECTED:
                    raise ExpectedError(str(error)) from error
                raise

    def config(self, chance: random.Random, **more: str) -> dict[str, str]:
        return {
            **self.properties(self.server.port, self.name, self.server_id, self.folder / "history.dat"),
            "name": self.name,
            "topic.prefix": self.topic_prefix,
            "table.include.list": ",".join(self._full_name(name) for name in (*self.tables, SIGNALS)),
            "signal.data.collection": f"{self.name}.{SIGNALS}",
            "tombstones.on.delete": chance.choice(("false", "true")),
            "skipped.operations": "none" if "truncate" in self.switches else "t",
            **small_batches(chance),
            **more,
        }

    def _create(self) -> None:
        admin = self.connect("test")
        admin.cursor().execute(f"CREATE DATABASE {self.name} CHARACTER SET utf8mb4")
        admin.close()
        connection = self.connect()
        for statement in self._definitions():
            connection.cursor().execute(statement)
        self._fill(connection)
        connection.close()

    def _definitions(self) -> Sequence[str]:
        orders, items = (", ".join(map(definition, table.columns)) for table in self.tables.values())
        return (
            f"CREATE TABLE orders (id int NOT NULL PRIMARY KEY, slot bigint NULL UNIQUE, {orders})",
            f"CREATE TABLE items (order_id int NOT NULL, line varchar(8) NOT NULL, {items}, PRIMARY KEY (order_id, line))",
            f"CREATE TABLE {SIGNALS} (id varchar(64) NOT NULL PRIMARY KEY, type varchar(32), data text)",
        )

    def _is_waiting(self, session: Session) -> bool:
        with self._monitor.cursor() as cursor:
            cursor.execute(_WAITS, (session.connection.thread_id(),) * 2)
            return bool(cursor.fetchone()[0])

    def _copy(self, connection: Any, table: Table) -> Copy:
        columns = dict.fromkeys(table.keys, "key")
        columns |= {"slot": "bigint"} if table.name == "orders" else {}
        columns |= {column.name: column.kind.name for column in table.columns}
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table.name}")
            return Copy(table.name, columns, table.keys, list(cursor.fetchall()))

    def _full_name(self, table: str) -> str:
        return f"{self.name}.{table}"


class MySqlAlterations(MariaDbAlterations):
    """ALTER TABLE as MySQL has it: texts, documents and bytes have no literal default, and none is not NULL."""

    added_kinds = (INT, PRICE, EXACT, DATE, DATETIME, BOOLEAN, BIT, DOUBLE)
    plain_kinds = (INT, BOOLEAN, DOUBLE)

    def alteration(self, table: Table, *actions: str) -> Plan:
        return super().alteration(table, *(action.replace("DROP DEFAULT", "SET DEFAULT NULL") for action in actions))


class MySqlWorkload(MariaDbWorkload):
    """The workload on MySQL."""

    package = DEBEZIUM_MYSQL
    properties = staticmethod(mysql_properties)
    topic_prefix = "mysql"
    alterations_of = MySqlAlterations
    without_default = (TEXT, JSON, BLOB)

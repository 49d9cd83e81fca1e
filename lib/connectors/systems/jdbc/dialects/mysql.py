"""MySQL, by PyMySQL: as MariaDB, without what only MariaDB has."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ....ground.errors import Fatal
from ....ground.state import digest
from ..connection import Connection
from ..statement import BoundStatement, Statement
from .base import Dialect
from .mariadb import MariaDb

_LONGEST_LOCK = 64


class MySql(MariaDb):
    """MySQL 8.0 and later; a server of MariaDB is refused.

    It prepares transactions by XA, and the server lists them for all databases together, to a user with the privilege
    XA_RECOVER_ADMIN. A session that writes ends when it is idle for too long.
    """

    name = system = "mysql"
    packages = {"pymysql": "pymysql[rsa]>=1.2"}  # noqa: RUF012 - rsa for its usual logins without TLS
    is_mysql = True
    ssl_modes = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY", *MariaDb.ssl_modes)
    identifier = "VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs"  # to the others a blank at the end is nothing
    sql_mode = f"{MariaDb.sql_mode},TIME_TRUNCATE_FRACTIONAL"  # else a stored time may be later than that of the next row
    session_settings = ("information_schema_stats_expiry = 0",)  # else what it tells of a table may be a day old
    plan_rows = 9
    rows_at_once = Dialect.rows_at_once
    quoted = MariaDb.quoted.replace("(?!M?!)", "(?!!)")
    prepared_needs = "the privilege XA_RECOVER_ADMIN: GRANT XA_RECOVER_ADMIN ON *.* TO that user"
    settle = Dialect.settle
    drop_stage = Dialect.drop_stage

    def limit_transaction(self) -> tuple[str, ...]:
        return (f"SET wait_timeout = {round(self.idle_seconds)}",)

    def bind(
        self, connection: Connection, statement: Statement, values: Sequence[tuple[str, pa.DataType]]
    ) -> BoundStatement:
        super().bind(connection, statement, values)  # the server says what is wrong with it
        exact = [(f"{value} * 1e0" if pa.types.is_float32(kind) else value, kind) for value, kind in values]  # not six digits
        return Dialect.bind(self, connection, statement, exact)

    def run_for_rows(self, connection: Connection, text: str, select: str, count: int) -> None:
        """As in the base class, one by one: of several PyMySQL makes one INSERT."""
        text = text if count else text % ()  # which PyMySQL does only with values
        for row in connection.rows(select):
            connection.execute(text, row[:count])

    def most_prepared(self, connection: Connection) -> int:
        try:
            connection.rows("XA RECOVER")
        except Fatal:  # whose words name no privilege
            return 0
        return super().most_prepared(connection)

    def _lock(self, name: str) -> str:
        """As in the base class; the server refuses a longer one."""
        lock = super()._lock(name)
        return lock if len(lock) <= _LONGEST_LOCK else digest(lock, length=_LONGEST_LOCK)

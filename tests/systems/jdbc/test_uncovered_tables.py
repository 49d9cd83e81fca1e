"""Tables that a commit of the database does not cover: their rows would come and go without the ledger."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.core import ConnectorError, Misconfigured
from connectors.systems.jdbc import JdbcSink

from .contexts import MariaDbContext, PostgresContext

ROWS = pa.schema([("id", pa.int64())])
TABLES = {
    "a table": ("is unlogged", ["CREATE UNLOGGED TABLE {} (id bigint)"]),
    "a partition": (
        "is unlogged",
        ["CREATE TABLE {} (id bigint) PARTITION BY HASH (id)",
         "CREATE UNLOGGED TABLE {}_0 PARTITION OF {} FOR VALUES WITH (MODULUS 1, REMAINDER 0)"],
    ),
    "a foreign table": (
        "is a foreign table",
        ["CREATE EXTENSION IF NOT EXISTS file_fdw", "CREATE SERVER IF NOT EXISTS files FOREIGN DATA WRAPPER file_fdw",
         "CREATE FOREIGN TABLE {} (id bigint) SERVER files OPTIONS (filename '/dev/null')"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_a_table_of_postgresql_that_a_commit_does_not_cover_is_refused(tmp_path: Path, case: str) -> None:
    reason, statements = TABLES[case]
    with contextlib.closing(PostgresContext(tmp_path / "target")) as database:
        own = database.table
        for statement in (f"ALTER TABLE {own} RENAME TO another", *statements):
            try:
                database.run(statement.replace("{}", own))
            except ConnectorError as missing:
                pytest.skip(str(missing))
        try:
            with pytest.raises(Misconfigured, match=f"dbtable +names .*{reason}"):
                JdbcSink.of(database.options()).check_target(ROWS)
            direct = {name: value for name, value in database.options().items() if name != "commit"}
            JdbcSink.of({**direct, "guarantee": "at-least-once"}).check_target(ROWS)
        finally:
            database.run(f"DROP {'FOREIGN ' if 'foreign' in case else ''}TABLE {own}")
            database.run(f"ALTER TABLE {own.split('.')[0]}.another RENAME TO {own.split('.')[1]}")


@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
def test_a_table_of_mariadb_without_transactions_is_refused(tmp_path: Path, engine: str) -> None:
    with contextlib.closing(MariaDbContext(tmp_path / "target")) as database:
        JdbcSink.of(database.options()).check_target(ROWS)
        database.run(f"ALTER TABLE {database.table} ENGINE = {engine}")
        with pytest.raises(Misconfigured, match=f"dbtable +names .*has the engine {engine}"):
            JdbcSink.of(database.options()).check_target(ROWS)


def test_the_tables_that_are_made_in_mariadb_have_transactions_whatever_its_default_is(tmp_path: Path) -> None:
    with contextlib.closing(MariaDbContext(tmp_path / "target")) as database:
        ((default,),) = database.query("SELECT @@global.default_storage_engine")
        database.run("SET GLOBAL default_storage_engine = 'MyISAM'")
        try:
            database.run(f"CREATE TABLE {database.table}_made (id BIGINT)")
        finally:
            database.run(f"SET GLOBAL default_storage_engine = '{default}'")
        named = f"table_schema = '{database.table.split('.')[0]}' AND table_name LIKE '%\\_made'"
        assert database.query(f"SELECT engine FROM information_schema.tables WHERE {named}") == [("InnoDB",)]

"""URLs and options: what is accepted, what is refused by name, and that passwords are never shown."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pyarrow as pa
import pytest

import connectors
from connectors.core import Batch, Guarantee, Misconfigured
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, once_query
from connectors.core.writing import stage
from connectors.ground.options import Options
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.dialects import DatabaseAddress, Table, parse
from connectors.systems.jdbc.dialects.postgresql import PostgreSql
from connectors.systems.jdbc.target import table_of
from connectors.testing.servers import PostgresServer

BASE = {"url": "jdbc:postgresql://db:5433/shop", "dbtable": "orders"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "jdbc:postgresql://db:5433/shop?user=u&password=p%40ss",
            DatabaseAddress("postgresql", "shop", "db", 5433, "u", "p@ss"),
        ),
        ("jdbc:postgresql://db/shop?reWriteBatchedInserts=true&ssl=true", DatabaseAddress("postgresql", "shop", "db", 5432)),
        ("jdbc:postgresql:shop", DatabaseAddress("postgresql", "shop", "localhost", 5432)),
        (
            "postgresql+psycopg://u:p%40ss@db/shop?sslmode=require",
            DatabaseAddress("postgresql", "shop", "db", 5432, "u", "p@ss"),
        ),
        ("postgres://u@[::1]:1/shop", DatabaseAddress("postgresql", "shop", "::1", 1, "u")),
        ("jdbc:mariadb://db/shop?useSsl=false", DatabaseAddress("mariadb", "shop", "db", 3306)),
        ("jdbc:mariadb://db/shop", DatabaseAddress("mariadb", "shop", "db", 3306)),
        ("sqlite:///relative.db", DatabaseAddress("sqlite", "relative.db")),
        ("sqlite:////absolute.db", DatabaseAddress("sqlite", "/absolute.db")),
        ("jdbc:sqlite:/absolute.db", DatabaseAddress("sqlite", "/absolute.db")),
        ("jdbc:sqlite:file:/absolute.db", DatabaseAddress("sqlite", "/absolute.db")),
        ("jdbc:sqlite:./relative.db", DatabaseAddress("sqlite", "./relative.db")),
        ("duckdb:///my%20file.duckdb", DatabaseAddress("duckdb", "my file.duckdb")),
        ("jdbc:duckdb:/absolute.duckdb", DatabaseAddress("duckdb", "/absolute.duckdb")),
    ],
)
def test_urls_of_both_kinds(url: str, expected: DatabaseAddress) -> None:
    address = parse(url)
    assert (address.dialect, address.database, address.host, address.port, address.user, address.password) == (
        expected.dialect, expected.database, expected.host, expected.port, expected.user, expected.password,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("jdbc:oracle:thin:@db", 'is for "oracle", and there is no dialect of that name; .* To add one'),
        ("shop", "must be a JDBC or SQLAlchemy URL"),
        ("postgresql://db", "names no database"),
        ("jdbc:postgresql://a,b/shop", "several hosts"),
        ("jdbc:postgresql://db/shop?targetServerType=primary", "targetservertype, which is not supported"),
        ("jdbc:postgresql://db/shop?ssl=maybe", "ssl=maybe, which must be true or false"),
        ("jdbc:postgresql://db/shop?sslmode=trust", "sslmode=trust, which must be one of disable, allow, prefer, require, ver"),
        ("jdbc:mariadb://db/shop?sslMode=prefer", "sslmode=prefer, which must be one of disable, trust, verify-ca, verify"),
        ("jdbc:mariadb://db/shop?trustServerCertificate=true", "trustservercertificate, which is not supported; there are"),
        ("sqlite://", "must name a file"),
        ("jdbc:sqlite::memory:", "must name a file"),
        ("jdbc:sqlite:s3://bucket/x.db", "must name a local or mounted file"),
        ("duckdb:///s3://bucket/x.duckdb", "must name a local or mounted file"),
    ],
)
def test_urls_that_are_refused_say_why(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse(url)


@pytest.mark.parametrize("parameters", ["ssl=true", "ssl", "useSsl=true", "sslmode=verify-full"])
@pytest.mark.parametrize("system", ["postgresql", "mariadb"])
def test_ssl_is_what_it_is_to_the_drivers_of_jdbc(system: str, parameters: str) -> None:
    assert parse(f"jdbc:{system}://db/shop?{parameters}").more == {"sslmode": "verify-full"}
    assert parse(f"jdbc:{system}://db/shop?ssl=true&sslmode=verify-ca").more == {"sslmode": "verify-ca"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("orders", "")),
        ("Shop.Orders", ("orders", "shop")),
        ('"Shop"."My ""Orders"""', ('My "Orders"', "Shop")),
        ("`a.b`", ("a.b", "")),
    ],
)
def test_names_of_tables(text: str, parts: tuple[str, str]) -> None:
    dialect = JdbcSink.of(BASE).dialect()
    assert (table_of(text, dialect).name, table_of(text, dialect).schema) == parts


@pytest.mark.parametrize("text", ["(select 1) t", "a.b.c", "a b", "", "a;drop"])
def test_what_is_no_table_is_refused(text: str) -> None:
    if text == "a;drop":
        assert JdbcSink.of({**BASE, "dbtable": text}).dialect().table(table_of(text)) == '"a;drop"'
        return
    with pytest.raises(Misconfigured, match="dbtable"):
        JdbcSink.of({**BASE, "dbtable": text})


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("fetchsize", "10", "is an option of the source"),
        ("numPartitions", "4", "repartition"),
        ("isolationLevel", "NONE", "is not needed"),
        ("createTableOptions", "x", "make the table yourself"),
        ("keytab", "x", "give user and password"),
        ("batchsise", "10", r'did you mean "batch\.maxRecords"'),
        ("operation", "merge", "one of insert, upsert, update"),
        ("operation", "upsert", "keyColumns +missing"),
        ("deleteColumn", "d", "keyColumns +missing"),
        ("orderColumn", "d", "has no use without keyColumns"),
        ("guarantee", "idempotent", "needs operation=upsert"),
        ("commit", "task", "one of auto, batch, prepared; got"),
        ("sinkId", "x" * 191, "sinkId +has 191 letters; the ledger has room for 190"),
        ("txnAppId", "x" * 191, "txnAppId +has 191 letters"),
    ],
)
def test_options_that_cannot_work_are_told(option: str, value: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        JdbcSink.of({**BASE, option: value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "sqlite:////x.db"}, "one writer at a time"),
        ({"url": "duckdb:////x.duckdb"}, "one writer at a time"),
        ({"guarantee": "at-least-once"}, "has no use with guarantee"),
    ],
)
def test_tasks_that_cannot_prepare_are_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        JdbcSink.of({**BASE, "commit": "prepared", **options})


def test_options_of_sparks_own_writer_are_taken() -> None:
    sink = JdbcSink.of({**BASE, "driver": "org.postgresql.Driver", "batchsize": "50", "truncate": "true", "queryTimeout": "9"})
    assert (sink.values["batch.maxRecords"], sink.values["request.timeout"]) == (50, 9.0)


def test_the_guarantee_follows_from_the_options() -> None:
    upsert = {"operation": "upsert", "keyColumns": "id"}
    assert JdbcSink.of(BASE).guarantee() is Guarantee.EXACTLY_ONCE
    assert JdbcSink.of({**BASE, **upsert, "guarantee": "idempotent"}).guarantee() is Guarantee.IDEMPOTENT
    table = connectors.guarantees().set_index("system")
    assert table.loc["jdbc", "sink"] == "exactly-once"


def test_two_tables_have_two_sink_ids_and_users_make_no_difference() -> None:
    sink_id = JdbcSink.of({**BASE, "user": "a"}).sink_id()
    assert sink_id == JdbcSink.of({**BASE, "user": "b", "password": "c"}).sink_id()
    assert sink_id != JdbcSink.of({**BASE, "dbtable": "other"}).sink_id()


def test_a_batch_write_that_must_be_exactly_once_needs_a_transaction_name(tmp_path: Path) -> None:
    sink = JdbcSink.of({"url": f"sqlite:///{tmp_path}/x.db", "dbtable": "t", "guarantee": "exactly-once"})
    with pytest.raises(Misconfigured, match="txnAppId and txnVersion"):
        sink.committer().commit(Entry(once_query(), 0), [])  # type: ignore[union-attr]


def test_a_wrong_password_is_told_without_the_password() -> None:
    with PostgresServer(password="correct horse") as server:
        for login in ({"password": "battery staple"}, {"url": server.url.replace("//", "//postgres:battery staple@")}):
            sink = JdbcSink.of({"url": server.url, "user": server.user, "dbtable": "t", **login})
            shown = [repr(sink), repr(sink.address()), str(sink.address()), sink.target(), sink.sink_id(), repr(sink.dialect())]
            with pytest.raises(Misconfigured, match="password authentication failed") as wrong:
                Commit(sink).begin(Batch(sink.sink_id(), "q", 0))
            given_rows = pa.record_batch({"a": [1]})
            with pytest.raises(Exception, match="password authentication failed") as loading:
                stage(sink, Batch(sink.sink_id(), "q", 0), given_rows.schema, 0, iter([given_rows]))
            shown += [str(wrong.value), repr(wrong.value), str(loading.value), repr(loading.value)]
            assert not [text for text in shown if "staple" in text]
        good: Any = JdbcSink.of({"url": server.url, "user": server.user, "password": server.password, "dbtable": "t"})
        with pytest.raises(Misconfigured, match="createTable=true"):
            Commit(good).begin(Batch(good.sink_id(), "q", 0))


def test_a_password_is_not_told_in_any_form_that_a_driver_may_quote() -> None:
    password = 'p@ss  "w/ö+1'
    dialect = PostgreSql(parse("jdbc:postgresql://db/shop", "me", password), 1.0)
    forms = [password, quote(password), quote(password, safe=""), quote_plus(password), json.dumps(password), repr(password)]
    for form in (*forms, dialect.load_url()):
        told = str(dialect.transient(RuntimeError(f'failed for "{form}" at batch 1')))
        assert "*****" in told
        assert ("ss" in told, "w/" in told, "+1" in told, "at batch 1" in told) == (False, False, False, True), told


def test_an_option_error_does_not_show_the_password() -> None:
    with pytest.raises(Misconfigured) as wrong:
        JdbcSink.of({"url": "oracle://u:hunter2@db/x", "dbtable": "t", "passwort": "hunter2", "password": "hunter2"})
    assert "hunter2" not in str(wrong.value)
    assert isinstance(JdbcSink.options, Options)


def test_the_sink_travels_to_the_tasks() -> None:
    sink = pickle.loads(pickle.dumps(JdbcSink.of({**BASE, "password": "p"})))
    assert sink.address().password == "p"


def test_an_ipv6_address_keeps_its_brackets_where_rows_are_loaded() -> None:
    dialect: Any = JdbcSink.of({"url": "jdbc:postgresql://[::1]:5433/db", "user": "u", "dbtable": "t"}).dialect()
    assert dialect.load_url().startswith("postgresql://u@[::1]:5433/db?")


def test_a_percent_sign_in_a_name_is_no_placeholder_of_mariadb() -> None:
    sql = JdbcSink.of({"url": "jdbc:mariadb://db/shop", "dbtable": "t"}).dialect().insert_values(Table("50%"), ["id", "share%"])
    assert sql % (1, 2) == "INSERT INTO `50%` (`id`, `share%`) VALUES (1, 2)"


@pytest.mark.parametrize("guarantee", ["at-least-once", "idempotent"])
def test_a_database_without_savepoints_finds_no_bad_rows_in_small_transactions(guarantee: str) -> None:
    duckdb = {"url": "duckdb:///x.duckdb", "dbtable": "t", "operation": "upsert", "keyColumns": "id", "errors": "skip"}
    with pytest.raises(Misconfigured, match=r"errors +cannot be skip with guarantee"):
        JdbcSink.of({**duckdb, "guarantee": guarantee})
    JdbcSink.of({**duckdb, "guarantee": "exactly-once"})
    JdbcSink.of({**duckdb, "guarantee": guarantee, "url": "sqlite:///x.db"})

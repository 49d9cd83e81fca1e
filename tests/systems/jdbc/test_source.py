"""The batch read on each database: everything once, whatever is read, however it is cut, and through outages."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Misconfigured, Transient
from connectors.ground.errors import ConnectorError, Fatal
from connectors.systems.jdbc import JdbcSource
from connectors.testing import FailureInjector, same_records
from connectors.testing.faults import Action, Injected, Point, faulty_source
from connectors.testing.servers import PostgresServer
from tests.servers import required

from .batch_reading import DATABASES, NAMES, BatchRead, fill, numbers, read, source_options, table_of
from .contexts import DatabaseContext, DuckDbContext, PostgresContext, SqliteContext

__all__ = ["numbers"]

FIFTY = [{"id": number, "name": f"row {number}"} for number in range(1, 51)]
BASE = {"url": "jdbc:postgresql://db:5433/shop", "dbtable": "orders"}


@pytest.mark.parametrize("partitions", [1, 4])
def test_everything_is_read_once(numbers: DatabaseContext, partitions: int) -> None:
    scan = read(numbers, numPartitions=partitions)
    same_records(FIFTY, scan.rows())
    assert len(scan.parts()) == partitions


def test_a_table_may_be_empty_and_rows_may_come_outside_of_what_was_there(numbers: DatabaseContext) -> None:
    scan = read(numbers, numPartitions=4)
    parts = scan.parts()
    numbers.run(f"DELETE FROM {numbers.table}")
    assert read(numbers, numPartitions=4).rows() == []
    fill(numbers, [(-5, "'first'"), (3, "'third'"), (1000, "'last'")])
    ids = [row["id"] for part in parts for batch in scan.batches(part) for row in batch.to_pylist()]
    assert sorted(ids) == [-5, 3, 1000]


def test_a_query_is_read_as_a_table_with_its_comments_and_percents(numbers: DatabaseContext) -> None:
    query = f"SELECT id, name AS \"n%s:x\" FROM {numbers.table} WHERE name LIKE 'row 4%' -- the 40s;\n;"
    query = query.replace('"', "`") if numbers.connect().dialect.name == "mariadb" else query
    for more in ({"query": query}, {"dbtable": f"({query.rstrip(';').rstrip()}) AS t"}):
        rows = read(numbers, partitionColumn="ID", numPartitions=3, **more).rows()
        assert sorted(row["id"] for row in rows) == [4, *range(40, 50)]
        assert {row["n%s:x"] for row in rows} == {f"row {number}" for number in [4, *range(40, 50)]}


def test_a_schema_of_the_user_chooses_columns_and_types(numbers: DatabaseContext) -> None:
    schema = pa.schema([("NAME", pa.string()), ("id", pa.string())])
    rows = read(numbers, schema, numPartitions=2).rows()
    same_records([{"NAME": row["name"], "id": str(row["id"])} for row in FIFTY], rows)
    wrong = read(numbers, pa.schema([("name", pa.int32()), ("colour", pa.string())]))
    with pytest.raises(Misconfigured, match='has "colour", but the columns are id, name'):
        wrong.rows()
    with pytest.raises(ConnectorError, match=r'"name" is read as int32.*\n.*Way out: .*schema'):
        read(numbers, pa.schema([("name", pa.int32())])).rows()


def test_fetchsize_is_the_size_of_a_block(numbers: DatabaseContext) -> None:
    scan = read(numbers, fetchsize=7)
    (part,) = scan.parts()
    assert [batch.num_rows for batch in scan.batches(part)] == [7, 7, 7, 7, 7, 7, 7, 1]


def test_a_reader_that_is_left_lets_go_of_the_table(numbers: DatabaseContext) -> None:
    scan = read(numbers, fetchsize=1)
    (part,) = scan.parts()
    batches = scan.batches(part)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    numbers.run(f"DELETE FROM {numbers.table}")
    assert scan.rows() == []


def test_readers_of_different_partitions_do_not_disturb_each_other(numbers: DatabaseContext) -> None:
    scan = read(numbers, numPartitions=4, fetchsize=3)
    running = [scan.batches(part) for part in scan.parts()]
    rows: list[Any] = []
    while running:
        for batches in list(running):
            batch = next(batches, None)
            if batch is None:
                running.remove(batches)
            else:
                rows += batch.to_pylist()
    same_records(FIFTY, rows)


def test_names_that_look_like_sql_are_names(tmp_path: Path) -> None:
    for kind in (PostgresContext, SqliteContext, DuckDbContext):
        context = table_of(kind, "id INT", tmp_path / kind.__name__)
        evil, column = "a\"b; DROP TABLE x; --'%s", 'c"1; --%s $1 :x'
        quoted, name = ('"' + identifier.replace('"', '""') + '"' for identifier in (evil, column))
        context.run(f"CREATE TABLE {quoted} ({name} VARCHAR(50), other INT)")
        fill(context, [("'x''; --'", 1), ("'y'", 2), ("NULL", 3)], quoted)
        scan = read(context, dbtable=quoted, partitionColumn=column, numPartitions=3)
        assert sorted(row["other"] for row in scan.rows()) == [1, 2, 3], kind
        context.run(f"DROP TABLE {quoted}")
        context.close()


@pytest.mark.parametrize("kind", DATABASES, ids=NAMES)
def test_what_is_not_there_is_told_at_load(kind: type[DatabaseContext], tmp_path: Path) -> None:
    with contextlib.closing(table_of(kind, "id INT", tmp_path)) as context:
        with pytest.raises(Misconfigured, match=r"(?s)dbtable.*nowhere"):
            BatchRead(source_options(context, dbtable="nowhere"))
        with pytest.raises(Misconfigured, match=r"(?s)query "):
            read(context, query="SELECT FROM WHERE")
        with pytest.raises(Misconfigured, match=r'partitionColumn +names "nothing", but the columns are id'):
            read(context, partitionColumn="nothing", numPartitions=2).parts()


def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    with (
        contextlib.closing(table_of(PostgresContext, "id INT", tmp_path)) as context,
        pytest.raises(Misconfigured, match=r"query +gives several columns the same name \(id\); name each by AS"),
    ):
        read(context, query=f"SELECT a.id, b.id FROM {context.table} a, {context.table} b")


def test_no_password_is_in_any_text(tmp_path: Path) -> None:
    server, secret = required(PostgresServer), "correct horse"
    with PostgresServer(password=secret) as locked:
        tries = [
            {"url": locked.jdbc, "user": locked.user, "password": "wrong horse"},
            {
                "url": f"jdbc:postgresql://127.0.0.1:{server.port}/nowhere",
                "user": server.user,
                "password": "wrong horse",
            },
            {"url": "jdbc:postgresql://127.0.0.1:1/d?connect_timeout=1", "user": "u", "password": "wrong horse"},
        ]
        for address in tries:
            source = JdbcSource.of({**address, "dbtable": "t"})
            with pytest.raises((Misconfigured, Transient)) as error:
                _ = source.schema
            text = str(error.value) + repr(error.value) + str(pickle.dumps(error.value)) + repr(source.address())
            assert "wrong horse" not in text
        source = JdbcSource.of({"url": locked.jdbc, "user": locked.user, "password": secret, "query": "SELECT 1 AS a"})
        assert source.schema == "`a` int"


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for scheme in ("sqlite", "duckdb"):
        with pytest.raises(Misconfigured, match="names no file"):
            _ = JdbcSource.of({"url": f"jdbc:{scheme}:{tmp_path}/none.db", "dbtable": "t"}).schema
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dbtable": None}, r"dbtable +missing"),
        ({"query": "SELECT 1"}, r"query +is given beside dbtable"),
        ({"dbtable": "a b c"}, r"dbtable +must be a table.*or a query in parentheses"),
        ({"lowerBound": "1"}, r"(?s)partitionColumn +missing; lowerBound.*upperBound +missing; lowerBound needs it"),
        ({"fetchsize": "-1"}, "0 or more"),
        ({"timeZone": "Mars"}, "must be a region"),
        ({"customSchema": "id INT"}, r"give \.schema"),
        ({"prepareQuery": "WITH x"}, "write WITH"),
        ({"batchsize": "10"}, "is an option of the sink"),
        ({"createTable": "true"}, "is an option of the sink"),
        ({"keytab": "x"}, "give user and password"),
        ({"partitionColum": "x"}, r'did you mean "partitionColumn"'),
        ({"maxSplitMemorySize": "1MB"}, "10485760 bytes or more"),
        ({"url": "jdbc:oracle:thin:@db"}, "no dialect of that name"),
    ],
)
def test_options_that_cannot_work_are_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        JdbcSource.of({**BASE, **options})


def test_options_of_sparks_own_reader_are_taken() -> None:
    taken = {
        "driver": "org.postgresql.Driver", "partitionColumn": "id", "lowerBound": "1", "upperBound": "9", "numPartitions": "2",
        "queryTimeout": "9", "fetchsize": "50", "pushDownPredicate": "false", "pushDownLimit": "true",
        "sessionInitStatement": "SET search_path = x", "preferTimestampNTZ": "true",
    }  # fmt: skip
    source = JdbcSource.of({**BASE, **taken})
    assert (source.values["fetchsize"], source.values["request.timeout"]) == (50, 9.0)


def test_a_stream_needs_to_know_what_is_new() -> None:
    with pytest.raises(Misconfigured, match=r"incremental \(incrementing, timestamp.*or tables"):
        JdbcSource.of(BASE, streaming=True)


def test_a_session_begins_with_the_users_statement(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "id INT", tmp_path)) as context:
        scan = read(
            context, query="SELECT current_setting('work_mem') AS v", sessionInitStatement="SET work_mem = '77kB'"
        )
        assert scan.rows() == [{"v": "77kB"}]
        assert read(context, query="SELECT current_setting('work_mem') AS v").rows() != [{"v": "77kB"}]


def _broken(context: DatabaseContext, injector: FailureInjector, **more: Any) -> BatchRead:
    scan = read(context, **more)
    scan.source = faulty_source(JdbcSource, injector).of(source_options(context, **more))
    return scan


def test_an_outage_is_bridged_where_the_same_rows_can_be_read_again(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "id BIGINT PRIMARY KEY, name VARCHAR(100)", tmp_path)) as context:
        fill(context, [(number, f"'row {number}'") for number in range(1, 51)])
        injector = FailureInjector(tmp_path / "faults")
        injector.arm(Point.READ_ROW, Action.OUTAGE, times=2, row=2)
        same_records(FIFTY, _broken(context, injector, numPartitions=2, fetchsize=5).rows())
        assert injector.struck() == 2


def test_after_an_outage_a_read_of_its_own_moment_does_not_go_on(numbers: DatabaseContext, tmp_path: Path) -> None:
    injector = FailureInjector(tmp_path / "faults")
    injector.arm(Point.READ_ROW, Action.OUTAGE, row=2)
    with pytest.raises(Fatal, match="the table may have changed since"):
        _broken(numbers, injector, fetchsize=5).rows()


def test_an_error_while_reading_surfaces(numbers: DatabaseContext, tmp_path: Path) -> None:
    injector = FailureInjector(tmp_path / "faults")
    injector.arm(Point.READ_ROW)
    with pytest.raises(Injected):
        _broken(numbers, injector).rows()


def test_a_statement_that_runs_is_ended_by_waking_up_the_reader(tmp_path: Path) -> None:
    import threading

    with contextlib.closing(table_of(PostgresContext, "id INT", tmp_path)) as context:
        scan = read(context, query="SELECT pg_sleep(60)::text AS v")
        reader = scan.source.reader(scan.schema)
        reader.open()
        (part,) = scan.parts()
        (split,) = scan.source.enumerator().splits_of(part)
        caught: list[BaseException] = []

        def work() -> None:
            try:
                list(reader.read(split))
            except ConnectorError as ended:
                caught.append(ended)

        thread = threading.Thread(target=work)
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active'"
        while context.query(waiting) == [(1,)]:  # the one that asks; two when the reader's has begun
            pass
        while thread.is_alive():
            reader.wake_up()
            thread.join(0.05)
        reader.close()
        assert caught

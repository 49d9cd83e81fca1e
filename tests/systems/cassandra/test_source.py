"""What the source of Cassandra reads: ranges of the ring by the size of a table, queries, filters, pages after outages."""

from __future__ import annotations

import logging
import tracemalloc
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal, Misconfigured, Predicate, Transient
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.systems.cassandra import CassandraSource, measured_splits, ring, source
from connectors.systems.cassandra.connection import CassandraClient
from connectors.systems.cassandra.ring import RINGS, Estimate, Ring, TokenRange, cut, estimate
from connectors.systems.cassandra.tables import Column, QueryParser, Table
from connectors.testing.servers import CassandraServer
from tests.servers import required

from .contexts import KEYSPACE, Tables
from .reading import query_of, read, source_of, splits

LONGS = pa.schema([("k", pa.int32()), ("c", pa.int32())])
ID = "6a2f41a3-c54c-fce8-32d2-0324e1c32e22"
MURMUR = RINGS["Murmur3Partitioner"]


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables()


@pytest.fixture(scope="module")
def filled(tables: Tables) -> str:
    """A table of 30 partitions of 20 rows each."""
    table = tables.make("k int, c int, s text, primary key (k, c)")
    insert = tables.server.client.prepare(f"insert into {KEYSPACE}.{table} (k, c, s) values (?, ?, ?)")
    for k in range(30):
        for c in range(20):
            tables.server.client.execute(insert, (k, c, "even" if c % 2 == 0 else "odd"))
    return table


# ---- the ring


@pytest.mark.parametrize("of", RINGS.values())
@pytest.mark.parametrize("count", [1, 2, 3, 7, 160])
def test_ranges_follow_each_other_over_the_whole_ring_and_are_alike(of: Ring, count: int) -> None:
    ranges = list(cut(of, count))
    assert len(ranges) == count
    assert (ranges[0].start, ranges[-1].end) == (of.least, of.most)
    assert all(first.end == second.start for first, second in pairwise(ranges))
    widths = [part.end - part.start for part in ranges]
    assert max(widths) - min(widths) <= 1


def test_a_range_may_go_over_the_end_of_the_ring() -> None:
    assert MURMUR.width(MURMUR.most - 10, MURMUR.least + 5) == 15
    assert MURMUR.width(MURMUR.least, MURMUR.least) == MURMUR.tokens, "a node with one token has all of the ring"


class Cluster:
    """A client that knows nothing but sizes of ranges."""

    def __init__(self, *rows: tuple[int, int, int, int]) -> None:
        names = ("range_start", "range_end", "mean_partition_size", "partitions_count")
        self._rows = [dict(zip(names, (str(first), str(last), *rest), strict=True)) for first, last, *rest in rows]

    def hosts(self) -> list[str]:
        return ["a", "b"]

    def rows(self, statement: str, *parameters: Any, host: str) -> list[dict[str, Any]]:
        if host == "b":
            raise Transient("down")
        return self._rows


def test_the_size_of_a_table_is_that_of_its_ranges_over_the_ring_also_where_nodes_are_down() -> None:
    half = (0, MURMUR.most, 100, 1000)
    around = (MURMUR.most, 0, 300, 1000)  # over the end of the ring
    assert estimate(Cluster(half, around), MURMUR, "k", "t").bytes == 400_000  # type: ignore[arg-type]
    known = estimate(Cluster(half), MURMUR, "k", "t").bytes  # type: ignore[arg-type]
    assert known is not None
    assert abs(known - 200_000) <= 1, "the other half is taken to be as full"
    assert estimate(Cluster(), MURMUR, "k", "t").bytes is None  # type: ignore[arg-type]
    assert estimate(Cluster((0, 5, 0, 0)), MURMUR, "k", "t").bytes is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "largest", "count"),
    [(10 << 30, 64 << 20, 160), (1 << 40, 64 << 20, 16_384), (1, 64 << 20, 1), (100 << 20, 10 << 20, 10), (None, 64 << 20, 5)],
)
def test_a_split_has_about_as_many_bytes_as_the_user_says(size: int | None, largest: int, count: int) -> None:
    assert Estimate(size).splits(largest, 5) == count


@pytest.fixture
def huge(monkeypatch: pytest.MonkeyPatch, tables: Tables, filled: str) -> CassandraSource:
    """A source over a table that is said to have a terabyte."""
    monkeypatch.setattr(source, "estimate", lambda *_: Estimate(1 << 40))
    return source_of(tables, filled)


@pytest.mark.server
def test_the_splits_of_a_terabyte_take_no_more_memory_than_those_of_a_small_table(huge: CassandraSource) -> None:
    planner = Planner(huge)
    parts = planner.whole()
    assert len(parts) == ring.MOST_TASKS
    tracemalloc.start()
    try:
        splits = sum(1 for part in parts for _ in planner.enumerator.splits_of(part))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert splits == 16_384
    assert peak < 1_500_000  # held together they take 2.8 MB; threads of the client add some hundred kB of their own


@pytest.mark.server
def test_never_more_than_sixteen_splits_are_held(huge: CassandraSource, monkeypatch: pytest.MonkeyPatch) -> None:
    living = most = 0

    class Counted(TokenRange):
        def __post_init__(self) -> None:
            nonlocal living, most
            living += 1
            most = max(most, living)

        def __del__(self) -> None:
            nonlocal living
            living -= 1

    monkeypatch.setattr(ring, "TokenRange", Counted)
    planner = Planner(huge)
    tasks = [planner.enumerator.splits_of(part) for part in planner.whole()]
    for _ in range(50):
        for task in tasks:
            next(task)
    assert most <= 16


# ---- the size as the server knows it


@pytest.mark.server
def test_the_splits_of_a_table_are_measured_one_by_one(tables: Tables, filled: str) -> None:
    frame = measured_splits({**tables.options(filled), "numPartitions": "4"})
    assert frame["rows"].sum() == 600
    assert (frame["start"].iloc[0], frame["end"].iloc[-1]) == (0, 1)
    assert list(frame["start"][1:]) == list(frame["end"][:-1])
    assert (frame[["bytes", "seconds"]] > 0).all(axis=None)


@pytest.mark.server
def test_a_table_is_cut_by_the_size_that_the_node_knows(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    table = tables.make("k int primary key, v blob")
    insert = tables.server.client.prepare(f"insert into {KEYSPACE}.{table} (k, v) values (?, ?)")
    for k in range(300):
        tables.server.client.execute(insert, (k, b"x" * 100_000))
    new = source_of(tables, table, numPartitions="3")
    with caplog.at_level(logging.WARNING, "connectors"):
        assert len(splits(new)) == 3
    assert f"do not know the size of {KEYSPACE}.{table} yet" in caplog.text
    assert "numPartitions = 3" in caplog.text
    tables.server.estimate(KEYSPACE)
    caplog.clear()
    known = source_of(tables, table, maxSplitMemorySize="10MB")
    assert len(splits(known)) in (3, 4)
    assert not caplog.text
    assert len(splits(source_of(tables, table, maxSplitMemorySize="10MB", numPartitions="9"))) == 9
    schema = pa.schema([("k", pa.int32())])
    assert sorted(row["k"] for row in read(known, schema)) == list(range(300))


def test_a_split_below_ten_megabytes_is_refused() -> None:
    with pytest.raises(Misconfigured, match="maxSplitMemorySize   must be 10485760 bytes or more"):
        CassandraSource.of({"contactPoints": "h", "keyspace": "k", "table": "t", "maxSplitMemorySize": "9MB"})


@pytest.mark.server
@pytest.mark.soak  # a node of its own
def test_a_ring_of_the_random_partitioner_is_read_whole() -> None:
    with CassandraServer(partitioner="RandomPartitioner") as server:
        server.keyspace("k")
        server.client.execute("create table k.t (k int primary key)")
        insert = server.client.prepare("insert into k.t (k) values (?)")
        for k in range(500):
            server.client.execute(insert, (k,))
        options = {**server.options, "keyspace": "k", "table": "t"}
        for parts in ("1", "7"):
            read_back = read(CassandraSource.of({**options, "numPartitions": parts}), pa.schema([("k", pa.int32())]))  # type: ignore[arg-type]
            assert sorted(row["k"] for row in read_back) == list(range(500))


def test_a_ring_whose_tokens_are_no_numbers_is_refused() -> None:
    with pytest.raises(Fatal, match="orders its partitions by ByteOrderedPartitioner"):
        ring.ring_of("ByteOrderedPartitioner")


# ---- columns


@pytest.mark.server
def test_names_keep_their_case_and_what_is_missing_is_named(tables: Tables) -> None:
    table = tables.make('"Id" int primary key, "a ""b""" text')
    tables.execute(f'insert into {KEYSPACE}.{table} ("Id", "a ""b""") values (1, \'x\')')
    taken = tables.make('"Id" int primary key, "Id_ttl" int')
    own = source_of(tables, table)
    assert own.schema == '`Id` int, `a "b"` string'
    assert read(own, pa.schema([('a "b"', pa.string()), ("Id", pa.int32())])) == [{'a "b"': "x", "Id": 1}]
    for options, text in (
        ({"columns": "id"}, 'columns   names the column "id", which .* has not: Id, a "b"'),
        ({"ttlOf": "x"}, 'ttlOf   names the column "x"'),
        ({"ttlOf": "Id", "table": taken}, "ttlOf   makes a column Id_ttl, and .* has one"),
        ({"table": "nowhere"}, f'table   there is no table "nowhere" in the keyspace "{KEYSPACE}", which has'),
        ({"keyspace": "nowhere"}, 'table   the keyspace "nowhere" is not there'),
    ):
        with pytest.raises(Misconfigured, match=text):
            print(source_of(tables, **{"table": table, **options}).schema)
    with pytest.raises(Misconfigured, match='schema   names the column "id"'):
        read(own, pa.schema([("id", pa.int32())]))


# ---- queries


@pytest.mark.server
@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("SELECT k, c FROM {table}", 600),
        ("select c, K from {table} ; ", 600),
        ("SELECT k, c /* WHERE */ FROM {table} -- a comment\n", 600),
        ("SELECT k, c FROM {table} WHERE c >= 18 ALLOW FILTERING", 60),
        ("SELECT k, c FROM {table} WHERE s = 'odd' AND c < 4 ALLOW FILTERING", 60),
        ("SELECT k, c FROM {table} PER PARTITION LIMIT 2", 60),
        ("SELECT k, c FROM {table} WHERE s = 'a'';where order by' ALLOW FILTERING", 0),
        ("SELECT DISTINCT k, 1 AS c FROM {table}", None),
    ],
)
def test_a_query_is_read_over_the_ring(tables: Tables, filled: str, query: str, count: int | None) -> None:
    own = query_of(tables, query.format(table=f"{KEYSPACE}.{filled}"), numPartitions="3", fetchSize="7")
    if count is None:
        with pytest.raises(Fatal, match="Cassandra refuses the statement"):
            read(own, LONGS)
        return
    assert len(splits(own)) == 3
    rows = [(row["k"], row["c"]) for row in read(own, LONGS)]
    assert len(rows) == len(set(rows)) == count


@pytest.mark.server
def test_a_query_gives_its_columns_by_the_names_that_it_gives_them(tables: Tables, filled: str) -> None:
    own = query_of(tables, f"SELECT k AS key, cast(c AS text) AS place, writetime(s) AS at FROM {filled}")
    assert own.schema == "`key` int, `place` string, `at` bigint"
    rows = read(own, pa.schema([("place", pa.string()), ("key", pa.int32())]))
    assert len(rows) == 600
    assert {row["place"] for row in rows} == {str(c) for c in range(20)}
    with pytest.raises(Misconfigured, match='names the column "k", which the query does not give: key, place, at'):
        read(own, LONGS)


def test_the_lineage_of_a_query_names_its_table() -> None:
    for query in ("SELECT k FROM shop.orders", 'SELECT k FROM "orders" WHERE v = 1'):
        (dataset,) = CassandraSource.of({"contactPoints": "h", "keyspace": "shop", "query": query}).datasets()
        assert dataset.name == "shop.orders"


KEYS = [Column(name, "partition_key", "int") for name in ("k", "K2")]
TABLE = Table("ks", "t", (*KEYS, Column("v", "regular", "int")))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("UPDATE t SET a = 1", "must be a SELECT"),
        ("", "must be a SELECT"),
        ("SELECT k", "must be a SELECT … FROM a table"),
        ("SELECT k FROM t; SELECT 1", "must be one statement"),
        ("SELECT k FROM t WHERE v = ?", "must have values in place of"),
        ("SELECT count(*) FROM t", r"has the aggregate count\(\)"),
        ("SELECT k, MAX(v) FROM t", r"has the aggregate max\(\)"),
        ("SELECT mean(v) FROM t", r"has the aggregate mean\(\)"),
        ("SELECT k FROM t GROUP BY k", "groups rows"),
        ("SELECT k FROM t WHERE v = 1 ORDER BY v DESC", "orders rows"),
        ("SELECT k FROM t LIMIT 10", "has a LIMIT"),
        ("SELECT k FROM t PER PARTITION LIMIT 1 LIMIT 10", "has a LIMIT"),
        ("SELECT k FROM t WHERE k = 1", r"restricts the partition key \(k\)"),
        ('SELECT k FROM t WHERE "K2" IN (1, 2)', r"restricts the partition key \(K2\)"),
        ("SELECT k FROM t WHERE token(k, k2) > 5", r"restricts token\(\)"),
        ("SELECT k FROM 't'", "must name a table after FROM"),
    ],
)
def test_a_query_that_token_ranges_cannot_be_added_to_is_refused_with_the_reason(query: str, text: str) -> None:
    def parse() -> None:
        parser = QueryParser(query, "ks")
        parser.name()
        parser.selection(TABLE, ["mean"])

    with pytest.raises(Misconfigured, match=text):
        parse()


@pytest.mark.parametrize(
    ("query", "statement"),
    [
        ("SELECT a FROM t", 'SELECT a FROM t WHERE {token}'),
        ("SELECT a FROM t WHERE v=1 allow filtering;", "SELECT a FROM t WHERE {token} AND v=1 allow filtering"),
        ("SELECT a FROM t PER PARTITION LIMIT 2", "SELECT a FROM t WHERE {token} PER PARTITION LIMIT 2"),
        ("SELECT \"where\", ttl(v) FROM t where v = 'ORDER BY'",
         "SELECT \"where\", ttl(v) FROM t WHERE {token} AND v = 'ORDER BY'"),
        ("SELECT a FROM t WHERE v = $$it's; fine$$ ALLOW FILTERING",
         "SELECT a FROM t WHERE {token} AND v = $$it's; fine$$ ALLOW FILTERING"),
    ],
)  # fmt: skip
def test_the_restriction_goes_to_its_place(query: str, statement: str) -> None:
    token = 'token("k", "K2") > ? AND token("k", "K2") <= ?'
    assert QueryParser(query, "ks").selection(TABLE, []).statement() == statement.format(token=token)


@pytest.mark.server
def test_a_query_with_an_aggregate_of_the_users_own_is_refused(tables: Tables, filled: str) -> None:
    class Described(CassandraClient):
        def __init__(self, client: CassandraClient) -> None:
            self.__dict__.update(client.__dict__)

        def rows(self, statement: str, *parameters: Any, **more: Any) -> list[dict[str, Any]]:
            if "system_schema.aggregates" in statement:
                return [{"aggregate_name": "average"}]
            return super().rows(statement, *parameters, **more)

    own = query_of(tables, f"SELECT average(c) FROM {filled}")
    with own.client() as client, pytest.raises(Misconfigured, match=r"has the aggregate average\(\)"):
        own.selection(Described(client))


# ---- filters


def predicate(column: str, operator: str, *values: Any) -> Predicate:
    return Predicate(column, operator, values)


@pytest.mark.server
@pytest.mark.parametrize(
    ("predicates", "taken", "expected"),
    [
        ([predicate("k", "=", 3)], 1, {(3, c) for c in range(20)}),
        ([predicate("k", "in", 3, 4, 3, 99)], 1, {(k, c) for k in (3, 4) for c in range(20)}),
        ([predicate("k", "=", 3), predicate("c", ">=", 18)], 2, {(3, 18), (3, 19)}),
        ([predicate("c", ">", 17), predicate("c", "<", 19)], 2, {(k, 18) for k in range(30)}),
        ([predicate("c", "=", 5), predicate("c", "<", 9), predicate("s", "=", "odd")], 1, {(k, 5) for k in range(30)}),
        ([predicate("k", ">", 28), predicate("c", "in", 1, 2)], 0, {(k, c) for k in range(30) for c in range(20)}),
        ([predicate("k", "=", 2**40)], 0, {(k, c) for k in range(30) for c in range(20)}),
    ],
)
def test_filters_on_keys_are_cassandras(
    tables: Tables, filled: str, predicates: list[Predicate], taken: int, expected: set[tuple[int, int]]
) -> None:
    own = source_of(tables, filled, numPartitions="3")
    assert len(own.push_filters(predicates)) == taken
    assert sorted((row["k"], row["c"]) for row in read(own, LONGS)) == sorted(expected)


@pytest.mark.server
@pytest.mark.parametrize(
    ("column", "value"),
    [("k", ""), ("k", "x" * 70_000), ("a", "ä"), ("a", "x" * 70_000), ("id", "x"), ("id", 5), ("at", ID)],
)
def test_a_filter_by_a_value_that_no_key_has_is_no_error(tables: Tables, column: str, value: Any) -> None:
    table = tables.make("k text, a ascii, id uuid, at timeuuid, primary key (k, a, id, at)")
    own = source_of(tables, table)
    filters = [predicate(column, operator, value) for operator in ("=", "in")]
    assert list(own.push_filters(filters)) == []
    assert read(own, pa.schema([("k", pa.string()), ("a", pa.string())])) == []


@pytest.mark.server
def test_a_part_of_a_partition_key_is_no_filter_of_cassandra_and_one_of_an_id_is_looked_at_again(tables: Tables) -> None:
    table = tables.make("a int, b int, id uuid, v int, primary key ((a, b), id)")
    tables.execute(f"insert into {KEYSPACE}.{table} (a, b, id) values (1, 2, 6a2f41a3-c54c-fce8-32d2-0324e1c32e22)")
    own = source_of(tables, table)
    assert list(own.push_filters([predicate("a", "=", 1)])) == []
    assert len(splits(own)) == 2
    filters = [predicate("a", "=", 1), predicate("b", "in", 2, 3), predicate("id", "=", "6A2F41A3-C54C-FCE8-32D2-0324E1C32E22")]
    assert list(own.push_filters(filters)) == filters[:2]
    assert len(splits(own)) == 2, "one for each partition that is named"
    assert [row["b"] for row in read(own, pa.schema([("b", pa.int32())]))] == [2]


@pytest.mark.spark
@pytest.mark.server
def test_spark_reads_a_table_with_and_without_filters(tables: Tables, filled: str, spark: Any) -> None:
    conf = "spark.sql.python.filterPushdown.enabled"
    reader = spark.read.format("connectors.cassandra").options(**tables.options(filled))
    assert dict(reader.load().dtypes) == {"k": "int", "c": "int", "s": "string"}
    before = spark.conf.get(conf)
    try:
        for session, option in (("false", "true"), ("true", "true")):
            spark.conf.set(conf, session)
            frame = reader.option("pushFilters", option).load()
            chosen = frame.where("k IN (1, 2) AND c >= 5 AND s = 'odd'")
            assert {(row.k, row.c) for row in chosen.collect()} == {(k, c) for k in (1, 2) for c in range(5, 20, 2)}
            is_pushed = (session, option) == ("true", "true")
            plan = chosen._jdf.queryExecution().executedPlan().toString()
            assert ("IN (1,2)" in plan) is not is_pushed, plan
            if not is_pushed:
                assert frame.count() == 600
    finally:
        spark.conf.set(conf, before)


# ---- pages


@pytest.mark.server
def test_a_range_goes_on_after_its_last_page_also_where_rows_were_added_and_removed_before_it(tables: Tables) -> None:
    table = tables.make("k int, c int, primary key (k, c)")
    for c in range(100, 200):
        tables.execute(f"insert into {KEYSPACE}.{table} (k, c) values (1, {c})")
    own = source_of(tables, table, numPartitions="1", fetchSize="10")
    (split,) = splits(own)
    reader = own.reader(LONGS)
    reader.open()
    read_rows = []
    batches = reader.read(split)
    for _ in range(3):
        read_rows += next(batches).to_pylist()
    batches.close()  # type: ignore[attr-defined]
    tables.execute(f"insert into {KEYSPACE}.{table} (k, c) values (1, 5)")
    tables.execute(f"delete from {KEYSPACE}.{table} where k = 1 and c < 110 and c > 99")
    read_rows += [row for batch in reader.resume(split, len(read_rows)) for row in batch.to_pylist()]
    reader.close()
    assert [row["c"] for row in read_rows] == list(range(100, 200)), "none is lost, none comes twice"


@pytest.mark.server
def test_a_table_that_was_made_anew_is_read_by_the_types_that_it_has_now(tables: Tables) -> None:
    for kind, value in (("int", 7), ("float", 7.5)):
        tables.execute(f"drop table if exists {KEYSPACE}.anew")
        tables.execute(f"create table {KEYSPACE}.anew (id int primary key, v {kind})")
        tables.execute(f"insert into {KEYSPACE}.anew (id, v) values (1, {value})")
        source = source_of(tables, "anew")
        assert source.schema == f"`id` int, `v` {kind}"
        assert read(source, pa.schema([("v", {"int": pa.int32(), "float": pa.float32()}[kind])])) == [{"v": value}]


@pytest.mark.server
def test_the_next_page_is_under_way_while_one_is_read(tables: Tables, filled: str) -> None:
    own = source_of(tables, filled, numPartitions="1", fetchSize="100")
    (part,) = Planner(own).whole()
    batches = read_slice(own, part, LONGS)
    assert next(batches).num_rows == 100
    assert sum(batch.num_rows for batch in batches) == 500


@pytest.mark.server
@pytest.mark.soak  # a node of its own, which is killed
def test_a_read_goes_on_after_the_node_was_killed_and_started_again() -> None:
    with CassandraServer() as server:
        server.keyspace("k")
        server.client.execute("create table k.t (k int, c int, s text, primary key (k, c))")
        insert = server.client.prepare("insert into k.t (k, c, s) values (?, ?, 'x')")
        for k in range(50):
            for c in range(100):
                server.client.execute(insert, (k, c))
        options = {**server.options, "keyspace": "k", "table": "t", "fetchSize": "100", "request.timeout": "5s"}
        own = CassandraSource.of({**options, "numPartitions": "2", "retry.initialBackoff": "500ms"})
        rows = []
        for part in Planner(own).whole():
            for number, batch in enumerate(read_slice(own, part, LONGS)):
                rows += [(row["k"], row["c"]) for row in batch.to_pylist()]
                if number == 5:
                    server.kill()
                    server.relaunch()
        assert sorted(rows) == [(k, c) for k in range(50) for c in range(100)]


@pytest.mark.server
@pytest.mark.soak  # a node of its own, which is killed
def test_a_client_whose_node_was_away_is_not_taken_again() -> None:
    with CassandraServer() as server:
        server.keyspace("k")
        server.client.execute("create table k.t (k int primary key)")
        options = {**server.options, "keyspace": "k", "table": "t"}
        assert CassandraSource.of(options).schema == "`k` int"
        server.kill()
        server.relaunch()
        assert CassandraSource.of(options).schema == "`k` int"


def test_the_server_is_one_that_every_machine_has() -> None:
    assert required(CassandraServer).required

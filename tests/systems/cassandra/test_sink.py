"""What the sink of Cassandra writes: late rows, deletions, expiry, static columns, counters, lightweight transactions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Poison, Transient
from connectors.core.writing import stage
from connectors.systems.cassandra import CassandraSink
from connectors.systems.cassandra import sink as sink_module
from connectors.systems.cassandra.connection import shared_client, take_client
from connectors.systems.cassandra.writing import Statements
from connectors.testing.servers import CassandraServer

from .contexts import KEYSPACE, Tables

ADDRESS = {"contactPoints": "h", "keyspace": "k", "table": "t"}


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables()


def write(
    tables: Tables, table: str, rows: pa.Table, batch: Batch | None = None, subtask: int = 0, **options: str
) -> Any:
    """What a task that writes rows says."""
    sink = CassandraSink.of({**tables.options(table), **options})
    return stage(sink, batch or Batch("s", "q", 0), rows.schema, subtask, iter(rows.to_batches()))


def stored(tables: Tables, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in tables.execute(f"select {columns} from {KEYSPACE}.{table}")), key=str)


@pytest.mark.server
@pytest.mark.parametrize("records", ["1", "3", "100"])
def test_the_last_row_of_a_key_wins_whatever_goes_together(tables: Tables, records: str) -> None:
    table = tables.make("k int, c int, v int, primary key (k, c)")
    numbers = list(range(300))
    columns = {"k": [number % 3 for number in numbers], "c": [number % 7 for number in numbers], "v": [-n for n in numbers]}
    write(tables, table, pa.table(columns, pa.schema(dict.fromkeys("kcv", pa.int32()))), **{"batch.maxRecords": records})
    expected = {(n % 3, n % 7): -n for n in numbers}  # a smaller value is the later one
    assert stored(tables, table) == sorted(((k, c, v) for (k, c), v in expected.items()), key=str)


@pytest.mark.server
@pytest.mark.parametrize("records", ["1", "100"])
def test_a_late_older_row_never_wins(tables: Tables, records: str) -> None:
    table = tables.make("id int primary key, v text")
    schema = pa.schema([("id", pa.int32()), ("v", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    times = [number * 37 % 100 for number in range(100)]
    rows = pa.table({"id": [1] * 100, "v": [f"{at:03}" for at in times], "at": times}, schema)
    write(tables, table, rows, orderColumn="at", **{"batch.maxRecords": records})
    late = pa.table({"id": [1, 2], "v": ["late", "new"], "at": [50, 50]}, schema)
    write(tables, table, late, orderColumn="at")
    assert stored(tables, table, "id, v, writetime(v)") == [(1, "099", 99), (2, "new", 50)]


@pytest.mark.server
def test_a_time_is_a_column_too_where_the_table_has_it_and_may_not_be_null(tables: Tables) -> None:
    table = tables.make("id int primary key, at bigint")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "at": pa.array([7, None, -(2**63)], pa.int64())})
    for bad, text in ((rows, "null"), (rows.slice(2), "the least long")):
        with pytest.raises(Poison, match=f'the column "at" is {text}, and the time of writing'):
            write(tables, table, bad, orderColumn="at")
    write(tables, table, rows, orderColumn="at", errors="skip")
    assert stored(tables, table, "id, at, writetime(at)") == [(1, 7, 7)]


@pytest.mark.server
@pytest.mark.parametrize("records", ["1", "100"])
@pytest.mark.parametrize("ignore", ["true", "false"])
def test_of_rows_of_one_key_and_one_time_the_last_one_is_written(tables: Tables, records: str, ignore: str) -> None:
    table = tables.make("k int, c int, v int, w int, s int static, primary key (k, c)")
    schema = pa.schema({**dict.fromkeys("kcvws", pa.int32()), "gone": pa.bool_(), "at": pa.int64()})

    def change(*rows: tuple[int | None, ...]) -> None:
        changes = [dict(zip(schema.names, (*row[:5], row[5:] == (1,), 7), strict=True)) for row in rows]
        frame = pa.Table.from_pylist(changes, schema)
        options = {"orderColumn": "at", "deleteColumn": "gone", "ignoreNulls": ignore, "batch.maxRecords": records}
        write(tables, table, frame, **options)

    change((1, 1, 1, 9, 1), (1, 1, 2, 3, 0))  # v or w alone would be the larger one
    change((2, 1, 1, None, 5), (2, 1, None, 2, None))
    change((3, 1, 9, 9, 9), (3, 2, 1, 1, 2), (3, 3, 1, 1, 1))
    change((4, 1, 9, 9, 9), (4, 1, 9, 9, 9, 1), (4, 1, 1, None, 1))
    change((5, 1, 9, 9, 9), (5, 1, 9, 9, 9, 1))
    v, w, s = (1, 2, 5) if ignore == "true" else (None, 2, None)
    assert stored(tables, table, "k, c, v, w, s") == [
        (1, 1, 2, 3, 0), (2, 1, v, w, s), (3, 1, 9, 9, 1), (3, 2, 1, 1, 1), (3, 3, 1, 1, 1), (4, 1, 1, None, 1),
        (5, None, None, None, 9),
    ]  # fmt: skip


@pytest.mark.server
def test_a_late_copy_of_a_task_of_an_older_batch_never_wins(tables: Tables) -> None:
    table = tables.make("id int primary key, v text, w text")
    older, newer = Batch("s", "q", 0), Batch("s", "q", 1)
    schema = pa.schema([("id", pa.int32()), ("v", pa.string()), ("w", pa.string()), ("gone", pa.bool_())])
    rows = pa.Table.from_pylist([{"id": id, "v": "old", "w": "old", "gone": False} for id in range(5)], schema)
    write(tables, table, rows, older, deleteColumn="gone")
    changes = [{"id": id, "v": "new", "w": None, "gone": id == 4} for id in range(5)]
    write(tables, table, pa.Table.from_pylist(changes, schema), newer, deleteColumn="gone")
    write(tables, table, rows, older, deleteColumn="gone")
    assert stored(tables, table) == [(id, "new", None) for id in range(4)]


@pytest.mark.server
def test_a_late_copy_of_a_deletion_leaves_newer_rows(tables: Tables) -> None:
    table = tables.make("id int primary key, v text")
    older, newer = Batch("s", "q", 0), Batch("s", "q", 1)
    deletion = pa.table({"id": pa.array([1], pa.int32()), "v": ["old"], "gone": [True]})
    row = pa.table({"id": pa.array([1], pa.int32()), "v": ["new"], "gone": [False]})
    write(tables, table, row, newer, deleteColumn="gone")
    write(tables, table, deletion, older, deleteColumn="gone")
    assert stored(tables, table) == [(1, "new")]


@pytest.mark.server
def test_rows_of_one_key_in_two_tasks_of_a_batch_are_not_mixed(tables: Tables) -> None:
    table = tables.make("id int primary key, v int, w int")
    schema = pa.schema(dict.fromkeys(("id", "v", "w"), pa.int32()))
    batch, times = Batch("s", "q", 0), []
    for subtask, (v, w) in enumerate([(1, 9), (9, 1)]):
        write(tables, table, pa.table({"id": [1], "v": [v], "w": [w]}, schema), batch, subtask)
        times += tables.execute(f"select writetime(v) as time from {KEYSPACE}.{table}")
    assert stored(tables, table) == [(1, 9, 1)]
    assert [row.time - batch.time for row in times] == [0, 100], "the time is the driver's"


@pytest.mark.server
@pytest.mark.parametrize("records", ["1", "100"])
@pytest.mark.parametrize("ignore", ["true", "false"])
def test_rows_and_deletions_of_a_key_come_in_their_order(tables: Tables, records: str, ignore: str) -> None:
    table = tables.make("id int primary key, v text, w text")
    for id in range(1, 6):
        tables.execute(f"insert into {KEYSPACE}.{table} (id, v, w) values ({id}, 'old', 'old')")
    changes = [(1, "a", True), (1, "b", False), (2, "c", False), (2, "d", True), (3, "e", True), (3, "f", False),
               (3, "g", True), (3, "h", False), (4, None, None), (5, "i", False), (5, None, False)]  # fmt: skip
    schema = pa.schema([("id", pa.int32()), ("v", pa.string()), ("gone", pa.bool_())])
    rows = pa.Table.from_pylist([dict(zip(schema.names, change, strict=True)) for change in changes], schema)
    write(tables, table, rows, deleteColumn="gone", ignoreNulls=ignore, **{"batch.maxRecords": records})
    value, null = ("old", "i") if ignore == "true" else (None, None)
    assert stored(tables, table, "id, v, w") == [(1, "b", None), (3, "h", None), (4, value, "old"), (5, null, "old")]


@pytest.mark.server
def test_a_deletion_has_a_time_too(tables: Tables) -> None:
    table = tables.make("id int primary key, v text")
    schema = pa.schema([("id", pa.int32()), ("v", pa.string()), ("gone", pa.bool_()), ("at", pa.int64())])

    def change(*rows: tuple[Any, ...]) -> None:
        frame = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        write(tables, table, frame, deleteColumn="gone", orderColumn="at")

    change((1, "a", False, 5), (1, "b", True, 9), (1, "c", False, 7), (2, "d", True, 3), (2, "e", False, 4))
    assert stored(tables, table) == [(2, "e")]
    change((1, "late", False, 8))
    assert stored(tables, table) == [(2, "e")], "a row that is older than the deletion stays away"


@pytest.mark.server
def test_rows_expire(tables: Tables) -> None:
    table = tables.make("id int primary key, v text")
    write(tables, table, pa.table({"id": pa.array([1], pa.int32()), "v": ["x"]}), ttl="1 hour")
    ((_, left),) = stored(tables, table, "id, ttl(v)")
    assert 3500 < left <= 3600


@pytest.mark.server
@pytest.mark.parametrize("records", ["1", "100"])
def test_static_columns_are_those_of_the_last_row_of_a_partition(tables: Tables, records: str) -> None:
    table = tables.make("k int, c int, s text static, v int, primary key (k, c)")
    schema = pa.schema([("k", pa.int32()), ("c", pa.int32()), ("s", pa.string()), ("v", pa.int32())])
    rows = [(1, 1, "z", 1), (1, 2, "a", 2), (2, 1, "y", 3), (2, None, "b", None), (3, None, "c", None), (1, 1, "b", 4)]
    frame = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    write(tables, table, frame, **{"batch.maxRecords": records})
    assert stored(tables, table, "k, c, s, v") == [(1, 1, "b", 4), (1, 2, "b", 2), (2, 1, "b", 3), (3, None, "c", None)]
    of_partitions = pa.table({"k": pa.array([1, 4], pa.int32()), "s": ["x", "d"]})
    write(tables, table, of_partitions)
    assert {(row[0], row[1]) for row in stored(tables, table, "k, s")} == {(1, "x"), (2, "b"), (3, "c"), (4, "d")}
    with pytest.raises(Poison, match='the column "c" is null, and a part of the primary key'):
        write(tables, table, pa.Table.from_pylist([{"k": 1, "c": None, "s": "s", "v": 5}], schema))


@pytest.mark.server
def test_the_rows_of_a_partition_go_together(tables: Tables) -> None:
    table = tables.make("k int, c int, s text static, v int, primary key (k, c)")
    schema = pa.schema([("k", pa.int32()), ("c", pa.int32()), ("s", pa.string()), ("v", pa.int32())])
    sink = CassandraSink.of(tables.options(table))
    with shared_client(sink.values, knows_replicas=True) as client:
        statements = Statements.of(client, sink.values, schema)
        rows = [{"k": number % 2, "c": number, "s": "s", "v": 0} for number in range(10)]
        writes: list[Any] = statements.writes(pa.RecordBatch.from_pylist(rows, schema), 0)
        groups = statements.groups(writes)
        assert [group.done() for group in groups] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
        assert [type(statements.statement(group)).__name__ for group in groups] == ["BatchStatement"] * 2


@pytest.mark.server
def test_counters_are_added_to_where_a_replay_may_count_twice(tables: Tables) -> None:
    table = tables.make("k int, c int, n counter, m counter, primary key (k, c)")
    rows = pa.table({"k": pa.array([1, 1, 1], pa.int32()), "c": pa.array([1, 1, 2], pa.int32()), "n": [5, 6, 7]})
    with pytest.raises(Misconfigured, match=r"guarantee   must be at-least-once; .* would be added twice"):
        write(tables, table, rows)
    for _ in range(2):
        write(tables, table, rows, guarantee="at-least-once")
    assert stored(tables, table, "k, c, n") == [(1, 1, 22), (1, 2, 14)]
    with pytest.raises(Misconfigured, match=r"ttl   has no use with .*counters"):
        write(tables, table, rows, guarantee="at-least-once", ttl="5s")


@pytest.mark.server
def test_a_null_leaves_a_counter_as_it_is(tables: Tables) -> None:
    table = tables.make("k int primary key, n counter, m counter")
    schema = pa.schema([("k", pa.int32()), ("n", pa.int64()), ("m", pa.int64())])
    for n, m in ((5, 1), (None, 2), (None, None)):
        write(tables, table, pa.table({"k": [1], "n": [n], "m": [m]}, schema), guarantee="at-least-once")
    assert stored(tables, table, "k, n, m") == [(1, 5, 3)]


@pytest.mark.server
def test_a_row_of_a_partition_alone_adds_to_no_counter(tables: Tables) -> None:
    table = tables.make("k int, c int, total counter static, n counter, primary key (k, c)")
    schema = pa.schema([("k", pa.int32()), ("c", pa.int32()), ("total", pa.int64()), ("n", pa.int64())])
    rows = pa.table({"k": [1, 1], "c": [1, None], "total": [5, 6], "n": [7, None]}, schema)
    with pytest.raises(Poison, match='the column "c" is null, and a part of the primary key'):
        write(tables, table, rows, guarantee="at-least-once")
    assert write(tables, table, rows.slice(0, 1), guarantee="at-least-once").rows == 1
    with pytest.raises(Misconfigured, match='has the key k, c, and the rows have no column "c"'):
        write(tables, table, rows.select(["k", "total"]), guarantee="at-least-once")


@pytest.mark.server
def test_a_list_whose_elements_a_second_write_would_double_is_refused(tables: Tables) -> None:
    table = tables.make("id int primary key, tags list<text>, frozen_tags frozen<list<text>>, more set<text>")
    column = pa.array([["a", "b"]], pa.list_(pa.string()))
    columns = {"id": pa.array([1], pa.int32()), "frozen_tags": column, "more": column, "at": pa.array([5], pa.int64())}
    batch = Batch("s", "q", 0)
    for _ in range(2):
        write(tables, table, pa.table(columns), orderColumn="at")
        write(tables, table, pa.table(columns).drop_columns("at"), batch)
    assert stored(tables, table, "frozen_tags, more, tags") == [(["a", "b"], {"a", "b"}, None)]
    rows = pa.table({**columns, "tags": column})
    text = r'the list "tags", which is not frozen: .*; make the column a frozen list or a set, or leave the option away'
    with pytest.raises(Misconfigured, match=rf"orderColumn   cannot be: .*{text}"):
        write(tables, table, rows, orderColumn="at", guarantee="at-least-once")
    rows = rows.drop_columns("at")
    with pytest.raises(Misconfigured, match=r'guarantee   must be at-least-once; .*"tags".* Give it if that may be, or make'):
        write(tables, table, rows, batch)
    for _ in range(2):
        write(tables, table, rows, batch, guarantee="at-least-once")
    assert stored(tables, table, "tags") == [(["a", "b", "a", "b"],)], "this is why"


@pytest.mark.server
def test_rows_whose_key_is_there_stay_with_if_not_exists(tables: Tables) -> None:
    table = tables.make("id int primary key, v text")
    rows = pa.table({"id": pa.array([1, 2, 1], pa.int32()), "v": ["a", "b", "c"]})
    assert write(tables, table, rows, ifNotExists="true").data["existing"] == 1
    staged = write(tables, table, pa.table({"id": pa.array([2, 3], pa.int32()), "v": ["x", "y"]}), ifNotExists="true")
    assert staged.data["existing"] == 1
    assert stored(tables, table) == [(1, "a"), (2, "b"), (3, "y")]


@pytest.mark.server
def test_static_columns_that_are_there_stay_with_if_not_exists(tables: Tables) -> None:
    table = tables.make("k int, c int, s text static, v int, primary key (k, c)")
    tables.execute(f"insert into {KEYSPACE}.{table} (k, s) values (1, 'old')")
    of_partitions = pa.table({"k": pa.array([1, 2, 2], pa.int32()), "s": ["new", "first", "second"]})
    assert write(tables, table, of_partitions, ifNotExists="true").data["existing"] == 2
    schema = pa.schema([("k", pa.int32()), ("c", pa.int32()), ("s", pa.string()), ("v", pa.int32())])
    rows = [{"k": 1, "c": None, "s": "newer", "v": None}, {"k": 3, "c": 1, "s": "third", "v": 1}]
    assert write(tables, table, pa.Table.from_pylist(rows, schema), ifNotExists="true").data["existing"] == 1
    assert stored(tables, table, "k, c, s") == [(1, None, "old"), (2, None, "first"), (3, 1, "third")]


@pytest.mark.server
@pytest.mark.parametrize("consistency", ["ANY", "ONE", "TWO"])
def test_the_tables_of_the_system_are_asked_at_one_node(tables: Tables, consistency: str) -> None:
    """They have no replicas, so that Cassandra refuses to read them with ANY, TWO and THREE."""
    table = tables.make("id int primary key, v text")
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]})
    sink = CassandraSink.of({**tables.options(table), "consistency": consistency})
    sink.check_target(rows.schema)
    if consistency != "TWO":  # which needs a second node for the rows themselves
        write(tables, table, rows, consistency=consistency)
        assert stored(tables, table) == [(1, "a")]


@pytest.mark.server
def test_what_the_server_refuses_is_a_bad_row_also_among_others_of_its_partition(tables: Tables) -> None:
    table = tables.make("k text, c int, v text, primary key (k, c)")
    schema = pa.schema([("k", pa.string()), ("c", pa.int32()), ("v", pa.string())])
    rows = [{"k": key, "c": c, "v": "v"} for key in ("a", "") for c in range(3)]
    staged = write(tables, table, pa.Table.from_pylist(rows, schema), errors="skip")
    assert staged.rejected == 3
    assert len(stored(tables, table)) == 3
    with pytest.raises(Poison, match=r"Cassandra refuses the row.*Key may not be empty"):
        write(tables, table, pa.Table.from_pylist(rows, schema))
    large = [{"k": "b", "c": c, "v": "v" * (4 << 20 if c == 1 else 10)} for c in range(3)]
    options = {"errors": "skip", "batch.maxBytes": "10MB"}
    assert write(tables, table, pa.Table.from_pylist(large, schema), **options).rejected == 1
    assert len(stored(tables, table)) == 5


@pytest.mark.server
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"k": pa.int32()}, 'has the key k, c, and the rows have no column "c"'),
        ({"k": pa.int32(), "c": pa.int32(), "x": pa.int32()}, 'has no column "x", which the rows have: k, c, v'),
        ({"K": pa.int32(), "c": pa.int32()}, 'has no column "K"'),
    ],
)
def test_columns_that_do_not_fit_the_table_are_named(tables: Tables, columns: dict[str, pa.DataType], text: str) -> None:
    table = tables.make("k int, c int, v int, primary key (k, c)")
    with pytest.raises(Misconfigured, match=text):
        CassandraSink.of(tables.options(table)).check_target(pa.schema(columns))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "table   +missing"),
        ({**ADDRESS, "guarantee": "exactly-once"}, r'"exactly-once" is not possible, only "idempotent": .* It is enough'),
        ({**ADDRESS, "ifNotExists": "true", "orderColumn": "at"}, "orderColumn +has no use with ifNotExists"),
        ({**ADDRESS, "ttl": "21 years"}, "ttl +must be a duration"),
        ({**ADDRESS, "ttl": "9999 days"}, "ttl +must be 1s to 7300 days"),
        ({"table": "t", "keyspace": "k"}, "contactPoints +missing"),
        ({**ADDRESS, "contactPoints": "h:x"}, 'contactPoints +must be hosts, or host:port; got "h:x"'),
        ({**ADDRESS, "user": "u"}, "password +missing; user needs it"),
        ({**ADDRESS, "caCert": "/nowhere/ca.pem"}, 'caCert +names the file "/nowhere/ca.pem", which is not here'),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        CassandraSink.of(options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"orderColumn": "at"}, 'orderColumn +names the column "at"'),
        ({"orderColumn": "v"}, 'orderColumn +must be a timestamp, or microseconds as a long; "v" is string'),
        ({"deleteColumn": "v"}, 'deleteColumn +must be a boolean column; "v" is string'),
    ],
)
def test_wrong_columns_are_named(options: dict[str, str], text: str) -> None:
    sink = CassandraSink.of({**ADDRESS, **options})
    with pytest.raises(Misconfigured, match=text):
        sink.refuse_frame(pa.schema([("id", pa.int32()), ("v", pa.string())]), placed=False)


@pytest.mark.server
@pytest.mark.soak  # a node of its own, which is killed
def test_a_write_goes_on_after_the_node_was_killed_and_started_again() -> None:
    with CassandraServer() as server:
        server.keyspace("k")
        server.client.execute("create table k.t (id int primary key, v text)")
        options = {**server.options, "keyspace": "k", "table": "t", "batch.maxRecords": "50", "retry.initialBackoff": "200ms"}
        schema = pa.schema([("id", pa.int32()), ("v", pa.string())])

        def batches() -> Any:
            for number in range(20):
                ids = list(range(number * 100, number * 100 + 100))
                yield pa.RecordBatch.from_pydict({"id": ids, "v": ["x"] * 100}, schema)
                if number == 9:
                    server.kill()
                    server.relaunch()

        sink = CassandraSink.of({**options, "request.timeout": "5s"})
        assert stage(sink, Batch("s", "q", 1), schema, 0, batches()).rows == 2000
        assert server.client.execute("select count(*) from k.t").one()[0] == 2000


@pytest.mark.server
def test_a_task_that_begins_while_the_node_is_away_waits_for_it(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.make("id int primary key")
    rows = pa.table({"id": pa.array([1], pa.int32())})
    tries = []

    def away(*arguments: Any, **settings: Any) -> Any:
        tries.append(1)
        if len(tries) < 4:
            raise Transient("down")
        return take_client(*arguments, **settings)

    monkeypatch.setattr(sink_module, "take_client", away)
    sink = CassandraSink.of({**tables.options(table), "retry.maxRetries": "1"})
    with pytest.raises(Transient, match="down"):
        stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    tries.clear()
    assert stage(sink, Batch("s", "q", 1), rows.schema, 0, iter(rows.to_batches())).rows == 1


@pytest.mark.server
def test_a_table_that_was_made_anew_is_written_by_the_types_that_it_has_now(tables: Tables) -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([7], pa.int32())})
    for kind in ("int", "float"):
        tables.execute(f"drop table if exists {KEYSPACE}.written_anew")
        tables.execute(f"create table {KEYSPACE}.written_anew (id int primary key, v {kind})")
        write(tables, "written_anew", rows)
        assert stored(tables, "written_anew") == [(1, 7)]


@pytest.mark.server
def test_a_field_that_a_type_did_not_have_before_is_written(tables: Tables) -> None:
    name = tables.make("id int primary key")  # a new name
    tables.execute(f"create type {KEYSPACE}.u{name} (a int)")
    table = tables.make(f"id int primary key, v frozen<u{name}>")
    schema = pa.schema([("id", pa.int32()), ("v", pa.struct([("a", pa.int32())]))])
    write(tables, table, pa.Table.from_pylist([{"id": 1, "v": {"a": 1}}], schema))
    tables.execute(f"alter type {KEYSPACE}.u{name} add b text")
    schema = schema.set(1, pa.field("v", pa.struct([("a", pa.int32()), ("b", pa.string())])))
    write(tables, table, pa.Table.from_pylist([{"id": 2, "v": {"a": 1, "b": "x"}}], schema))
    assert stored(tables, table, "id, v.b") == [(1, None), (2, "x")]


@pytest.mark.soak
@pytest.mark.server
def test_a_table_that_was_dropped_ends_the_write(tables: Tables) -> None:
    table = tables.make("id int primary key")
    rows = pa.table({"id": pa.array([1], pa.int32())})
    sink = CassandraSink.of({**tables.options(table), "request.timeout": "5s"})

    def batches() -> Any:
        yield rows.to_batches()[0]
        tables.execute(f"drop table {KEYSPACE}.{table}")
        yield rows.to_batches()[0]

    with pytest.raises(Fatal, match="Cassandra refuses a row"):
        stage(sink, Batch("s", "q", 0), rows.schema, 0, batches())

"""Each type of CQL, from Cassandra to Spark's types and back."""

from __future__ import annotations

import contextlib
import datetime
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Poison
from connectors.core.writing import stage
from connectors.systems.cassandra import CassandraSink
from connectors.systems.cassandra.pages import Page, cut_in_python

from .contexts import KEYSPACE, Tables
from .reading import read, source_of

pytestmark = pytest.mark.server
UTC = datetime.timezone.utc
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
ID = "6a2f41a3-c54c-fce8-32d2-0324e1c32e22"
TIME_ID = "50554d6e-29bb-11e5-b345-feff819cdc9f"
DURATION = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])

TYPES: dict[str, tuple[str, str, Any, str, pa.DataType]] = {
    # name: CQL type, literal, value, SQL type, Arrow type
    "ascii": ("ascii", "'a'", "a", "string", pa.string()),
    "text": ("text", "'ä'", "ä", "string", pa.string()),
    "empty": ("text", "''", "", "string", pa.string()),
    "varchar": ("varchar", "'b'", "b", "string", pa.string()),
    "tinyint": ("tinyint", "-128", -128, "tinyint", pa.int8()),
    "smallint": ("smallint", "-32768", -32768, "smallint", pa.int16()),
    "int": ("int", "-2147483648", -(2**31), "int", pa.int32()),
    "bigint": ("bigint", "9223372036854775807", 2**63 - 1, "bigint", pa.int64()),
    "varint": ("varint", str(-(10**37)), Decimal(-(10**37)), "decimal(38,0)", pa.decimal128(38, 0)),
    "decimal": ("decimal", "-12345678901234567890.123456789", Decimal("-12345678901234567890.123456789"), "decimal(38,18)",
                pa.decimal128(38, 18)),
    "float": ("float", "1.5", 1.5, "float", pa.float32()),
    "double": ("double", "0.1", 0.1, "double", pa.float64()),
    "boolean": ("boolean", "true", True, "boolean", pa.bool_()),
    "no": ("boolean", "false", False, "boolean", pa.bool_()),
    "blob": ("blob", "0x00ff", b"\x00\xff", "binary", pa.binary()),
    "timestamp": ("timestamp", "'2026-01-02T03:04:05.678Z'", MOMENT, "timestamp", pa.timestamp("us", "UTC")),
    "before": ("timestamp", "-1", datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), "timestamp",
               pa.timestamp("us", "UTC")),
    "date": ("date", "'1582-10-15'", datetime.date(1582, 10, 15), "date", pa.date32()),
    "time": ("time", "'03:04:05.678901234'", 11_045_678_901_234, "bigint", pa.int64()),
    "uuid": ("uuid", ID, ID, "string", pa.string()),
    "timeuuid": ("timeuuid", TIME_ID, TIME_ID, "string", pa.string()),
    "inet": ("inet", "'10.1.2.3'", "10.1.2.3", "string", pa.string()),
    "inet6": ("inet", "'2001:db8::1'", "2001:db8::1", "string", pa.string()),
    "duration": ("duration", "1y2mo3d4h", {"months": 14, "days": 3, "nanoseconds": 14_400_000_000_000},
                 "struct<`months`: int, `days`: int, `nanoseconds`: bigint>", DURATION),
    "list": ("list<int>", "[3, 1, 3]", [3, 1, 3], "array<int>", pa.list_(pa.int32())),
    "set": ("set<text>", "{'b', 'a'}", ["a", "b"], "array<string>", pa.list_(pa.string())),
    "map": ("map<text, timestamp>", "{'a': '2026-01-02T03:04:05.678Z'}", [("a", MOMENT)], "map<string, timestamp>",
            pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
    "frozen": ("frozen<list<frozen<set<date>>>>", "[{'2026-01-02'}]", [[datetime.date(2026, 1, 2)]], "array<array<date>>",
               pa.list_(pa.list_(pa.date32()))),
    "tuple": ("tuple<int, text, uuid>", f"(1, 'x', {ID})", {"_1": 1, "_2": "x", "_3": ID},
              "struct<`_1`: int, `_2`: string, `_3`: string>",
              pa.struct([("_1", pa.int32()), ("_2", pa.string()), ("_3", pa.string())])),
    "place": ("frozen<place>", "{city: 'Bern', at: (46.9, 7.4), tags: {'a'}}",
              {"city": "Bern", "at": {"_1": 46.9, "_2": 7.4}, "tags": ["a"], "height": None},
              "struct<`city`: string, `at`: struct<`_1`: double, `_2`: double>, `tags`: array<string>, "
              "`height`: decimal(38,18)>",
              pa.struct([("city", pa.string()), ("at", pa.struct([("_1", pa.float64()), ("_2", pa.float64())])),
                         ("tags", pa.list_(pa.string())), ("height", pa.decimal128(38, 18))])),
    "places": ("map<int, frozen<place>>", "{1: {city: 'Bern'}}",
               [(1, {"city": "Bern", "at": None, "tags": None, "height": None})], "", None),
    "vector": ("vector<float, 3>", "[1.5, -2, 0]", [1.5, -2.0, 0.0], "array<float>", pa.list_(pa.float32())),
}  # fmt: skip
TYPES["places"] = (*TYPES["places"][:3], f"map<int, {TYPES['place'][3]}>", pa.map_(pa.int32(), TYPES["place"][4]))


@pytest.fixture(scope="module")
def tables() -> Tables:
    tables = Tables()
    tables.execute(f"create type if not exists {tables.keyspace}.place (city text, at frozen<tuple<double, double>>, "
                   "tags frozen<set<text>>, height decimal)")
    return tables


@pytest.fixture(scope="module")
def typed(tables: Tables) -> str:
    """A table with a column of each type: a row of values, and one of nulls."""
    table = tables.make("id int primary key, " + ", ".join(f'"{name}" {cql}' for name, (cql, *_) in TYPES.items()))
    names, literals = ", ".join(f'"{name}"' for name in TYPES), ", ".join(literal for _, literal, *_ in TYPES.values())
    tables.execute(f"insert into {KEYSPACE}.{table} (id, {names}) values (1, {literals})")
    tables.execute(f"insert into {KEYSPACE}.{table} (id) values (2)")
    return table


SCHEMA = pa.schema([("id", pa.int32()), *((name, kind) for name, (*_, kind) in TYPES.items())])


def test_each_type_of_cql_has_its_type_in_spark(tables: Tables, typed: str) -> None:
    types = {"id": "int", **{name: sql for name, (_, _, _, sql, _) in TYPES.items()}}
    columns = source_of(tables, typed).schema
    assert sorted(columns.split(", `")) == sorted(", ".join(f"`{name}` {sql}" for name, sql in types.items()).split(", `"))


def test_each_value_is_read_as_it_is_and_a_null_is_one(tables: Tables, typed: str) -> None:
    rows = {row.pop("id"): row for row in read(source_of(tables, typed), SCHEMA)}
    assert rows[1] == {name: value for name, (_, _, value, *_) in TYPES.items()}
    assert rows[2] == dict.fromkeys(TYPES)


def test_each_type_is_written_as_it_was_read(tables: Tables, typed: str) -> None:
    rows = read(source_of(tables, typed), SCHEMA)
    copy = tables.make("id int primary key, " + ", ".join(f'"{name}" {cql}' for name, (cql, *_) in TYPES.items()))
    sink = CassandraSink.of({**tables.options(copy), "guarantee": "at-least-once"})  # for the list
    stage(sink, Batch("s", "q", 0), SCHEMA, 0, iter([pa.RecordBatch.from_pylist(rows, SCHEMA)]))
    assert sorted(read(source_of(tables, copy), SCHEMA), key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
    columns = ", ".join(f'"{name}"' for name in TYPES)
    (before, after) = (
        tables.execute(f"select {columns} from {KEYSPACE}.{name} where id = 1") for name in (typed, copy)
    )
    assert before == after, "the driver reads the same of both"


def test_the_driver_without_compiled_code_reads_the_same_cells() -> None:
    def cell(value: bytes | None) -> bytes:
        return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value

    rows: list[list[bytes | None]] = [[b"a", None, b""], [b"", b"bc" * 1000, None]]
    content = struct.pack(">i", 2) + b"".join(cell(value) for row in rows for value in row)
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert cut_in_python(content, 3) == columns
    assert Page(content, [("a", None), ("b", None), ("c", None)], 4).cells() == columns


def test_columns_of_a_schema_may_ask_for_other_types(tables: Tables, typed: str) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()), ("varint", pa.string()), ("decimal", pa.decimal128(30, 9)), ("int", pa.string()),
            ("timestamp", pa.string()), ("date", pa.string()), ("float", pa.float64()), ("list", pa.list_(pa.int64())),
        ]
    )  # fmt: skip
    row = next(row for row in read(source_of(tables, typed), schema) if row["id"] == 1)
    assert row["varint"] == str(-(10**37))
    assert row["decimal"] == Decimal("-12345678901234567890.123456789")
    assert (row["int"], row["date"], row["float"], row["list"]) == ("-2147483648", "1582-10-15", 1.5, [3, 1, 3])


def test_a_value_that_the_asked_type_has_not_is_named(tables: Tables, typed: str) -> None:
    with pytest.raises(Fatal, match=r'a value of the column "bigint" \(bigint\) is no int8'):
        read(source_of(tables, typed), pa.schema([("bigint", pa.int8())]))
    table = tables.make("id int primary key, price decimal")
    tables.execute(f"insert into {KEYSPACE}.{table} (id, price) values (1, 1e-30)")
    with pytest.raises(Fatal, match=r'a value of the column "price" \(decimal\) is no decimal128\(38, 18\)'):
        read(source_of(tables, table), pa.schema([("price", pa.decimal128(38, 18))]))
    assert read(source_of(tables, table), pa.schema([("price", pa.string())])) == [{"price": f"0.{'0' * 29}1"}]


@pytest.mark.parametrize(
    ("cql", "literal", "kind", "value"),
    [
        ("list<double>", "[1.5]", pa.list_(pa.int32()), None),
        ("map<text, double>", "{'a': 1.5}", pa.map_(pa.string(), pa.int64()), None),
        ("list<date>", "['2026-01-02']", pa.list_(pa.timestamp("us", "UTC")), [datetime.datetime(2026, 1, 2, tzinfo=UTC)]),
        ("list<timestamp>", "['2026-01-02T03:04:05.678Z']", pa.list_(pa.date32()), [datetime.date(2026, 1, 2)]),
        ("map<text, decimal>", "{'a': 1.5}", pa.map_(pa.string(), pa.decimal128(38, 30)), [("a", Decimal("1.5"))]),
        ("tuple<int, text>", "(1, 'a')", pa.struct([("_2", pa.string()), ("_1", pa.int64())]), {"_2": "a", "_1": 1}),
        ("double", "1e300", pa.float32(), None),
        ("double", "-infinity", pa.float32(), float("-inf")),
        ("map<text, frozen<tuple<int, double>>>", "{'a': (1, 1e300)}",
         pa.map_(pa.string(), pa.struct([("_1", pa.int32()), ("_2", pa.float32())])), None),
        ("list<double>", "[1e300]", pa.list_(pa.float32()), None),
        ("blob", "0x6162", pa.string(), "ab"),
        ("blob", "0xff", pa.string(), None),
        ("timestamp", str(2**63 - 1), pa.int64(), 2**63 - 1),
        ("timestamp", "-1", pa.int64(), -1),
    ],
)
def test_a_type_that_is_asked_for_has_the_same_value_or_an_error(
    tables: Tables, cql: str, literal: str, kind: pa.DataType, value: Any
) -> None:
    table = tables.make(f"id int primary key, v {cql}")
    tables.execute(f"insert into {KEYSPACE}.{table} (id, v) values (1, {literal})")
    with pytest.raises(Fatal, match=r'a value of the column "v" .* is no') if value is None else contextlib.nullcontext():
        assert read(source_of(tables, table), pa.schema([("v", kind)])) == [{"v": value}]


def test_a_number_that_spark_cannot_hold_is_an_error_and_not_another_number(tables: Tables) -> None:
    table = tables.make("id int primary key, n varint, at timestamp")
    tables.execute(f"insert into {KEYSPACE}.{table} (id, n, at) values (1, {10**40}, {2**62})")
    for column, kind in (("n", pa.decimal128(38, 0)), ("at", pa.timestamp("us", "UTC"))):
        with pytest.raises(Fatal, match=f'a value of the column "{column}"'):
            read(source_of(tables, table), pa.schema([(column, kind)]))


def test_what_a_column_was_before_a_field_was_added_to_its_type_is_read_with_null(tables: Tables) -> None:
    name = tables.make("id int primary key")  # a new name
    tables.execute(f"create type {KEYSPACE}.u{name} (a int)")
    table = tables.make(f"id int primary key, v frozen<u{name}>")
    tables.execute(f"insert into {KEYSPACE}.{table} (id, v) values (1, {{a: 7}})")
    tables.execute(f"alter type {KEYSPACE}.u{name} add b text")
    source = source_of(tables, table)
    assert source.schema.endswith("`v` struct<`a`: int, `b`: string>")
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    assert read(source, pa.schema([("v", kind)])) == [{"v": {"a": 7, "b": None}}]


def test_static_columns_alone_come_once_for_each_partition(tables: Tables) -> None:
    table = tables.make("k int, c int, s text static, v int, primary key (k, c)")
    for k, c in ((1, 1), (1, 2), (1, 3), (2, 1)):
        tables.execute(f"insert into {KEYSPACE}.{table} (k, c, s, v) values ({k}, {c}, 's{k}', {c})")
    tables.execute(f"insert into {KEYSPACE}.{table} (k, s) values (3, 's3')")
    statics = pa.schema([("k", pa.int32()), ("s", pa.string())])
    assert sorted(row["k"] for row in read(source_of(tables, table), statics)) == [1, 2, 3]
    assert source_of(tables, table, columns="k,s").schema == "`k` int, `s` string"
    everything = pa.schema([("k", pa.int32()), ("c", pa.int32()), ("s", pa.string()), ("v", pa.int32())])
    rows = sorted(tuple(row.values()) for row in read(source_of(tables, table), everything) if row["k"] < 3)
    assert rows == [(1, 1, "s1", 1), (1, 2, "s1", 2), (1, 3, "s1", 3), (2, 1, "s2", 1)]
    assert {"k": 3, "c": None, "s": "s3", "v": None} in read(source_of(tables, table), everything)


def test_the_time_to_live_and_of_writing_are_columns_on_request(tables: Tables) -> None:
    table = tables.make("k int primary key, v text")
    tables.execute(f"insert into {KEYSPACE}.{table} (k, v) values (1, 'x') using ttl 1000 and timestamp 1767323045678901")
    tables.execute(f"insert into {KEYSPACE}.{table} (k, v) values (2, 'y')")
    source = source_of(tables, table, ttlOf="v", writetimeOf="v")
    assert source.schema == "`k` int, `v` string, `v_ttl` int, `v_writetime` timestamp"
    schema = pa.schema([("k", pa.int32()), ("v_ttl", pa.int32()), ("v_writetime", pa.timestamp("us", "UTC"))])
    rows = {row["k"]: row for row in read(source, schema)}
    assert 900 < rows[1]["v_ttl"] <= 1000
    assert rows[1]["v_writetime"] == datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert rows[2]["v_ttl"] is None


def test_each_element_of_a_set_has_a_time_of_writing(tables: Tables) -> None:
    table = tables.make("id int primary key, v set<int>")
    tables.execute(f"insert into {KEYSPACE}.{table} (id, v) values (1, {{7, 8}}) using timestamp 5000000")
    source = source_of(tables, table, columns="id", writetimeOf="v")
    assert source.schema == "`id` int, `v_writetime` array<timestamp>"
    schema = pa.schema([("v_writetime", pa.list_(pa.timestamp("us", "UTC")))])
    assert read(source, schema) == [{"v_writetime": [datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)] * 2}]


def test_counters_are_read(tables: Tables) -> None:
    table = tables.make("k int primary key, n counter")
    tables.execute(f"update {KEYSPACE}.{table} set n = n + 7 where k = 1")
    source = source_of(tables, table)
    assert source.schema == "`k` int, `n` bigint"
    assert read(source, pa.schema([("k", pa.int32()), ("n", pa.int64())])) == [{"k": 1, "n": 7}]


@pytest.mark.parametrize(
    ("cql", "kind", "value", "text"),
    [
        ("tinyint", pa.int64(), 200, "has a value that is no tinyint"),
        ("ascii", pa.string(), "ä", "has a value that is no ascii"),
        ("uuid", pa.string(), "x", "has a value that is no uuid"),
        ("inet", pa.string(), "1.2.3", "has a value that is no inet"),
        ("varint", pa.string(), "1.5", "has a value that is no varint"),
        ("list<int>", pa.list_(pa.int64()), [2**40], "has a value that is no list<int>"),
        ("set<text>", pa.list_(pa.string()), ["a", None], "has no nulls in it"),
        ("duration", DURATION, {"months": 1, "days": -1, "nanoseconds": 0}, "have one sign"),
        ("vector<float, 2>", pa.list_(pa.float64()), [1.0], "it has 1 elements, and the vector 2"),
        ("timeuuid", pa.string(), ID, "is of version 15, and a timeuuid of version 1"),
        ("set<timeuuid>", pa.list_(pa.string()), [ID], "and a timeuuid of version 1"),
        ("time", pa.int64(), 86_400 * 10**9, "is no number of nanoseconds of a day"),
        ("frozen<list<time>>", pa.list_(pa.int64()), [-1], "is no number of nanoseconds of a day"),
        ("float", pa.float64(), 1e300, "1e[+]?300 would be inf"),
        ("float", pa.int64(), 2**24 + 1, "16777217 would be 16777216"),
        ("double", pa.int64(), 2**53 + 1, "9007199254740993 would be 9007199254740992"),
        ("set<double>", pa.list_(pa.int64()), [2**53 + 1], "9007199254740993 would be 9007199254740992"),
        ("decimal", pa.string(), "1e-3000000000", "has a value that is no decimal"),
        ("inet", pa.string(), "fe80::1%eth0", "has a zone, which Cassandra does not keep"),
    ],
)
def test_a_value_that_the_table_cannot_have_is_a_bad_row_and_the_others_are_written(
    tables: Tables, cql: str, kind: pa.DataType, value: Any, text: str
) -> None:
    table = tables.make(f"id int primary key, v {cql}")
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "v": pa.array([None, value], kind)})

    def write(**options: str) -> Any:
        sink = CassandraSink.of({**tables.options(table), "guarantee": "at-least-once", **options})
        return stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))

    with pytest.raises(Poison, match=text):
        write()
    assert write(errors="skip").rows == 1
    assert [row.id for row in tables.execute(f"select id from {KEYSPACE}.{table}")] == [1]


@pytest.mark.parametrize(
    ("cql", "kind", "text"),
    [
        ("int", pa.string(), r'has the column "v" of int, and that of the rows is string, no int'),
        ("text", pa.int64(), "is int64, no text"),
        ("set<int>", pa.int64(), "is int64, no array"),
        ("map<int, int>", pa.map_(pa.int32(), pa.string()), "is string, no int"),
        ("tuple<int, int>", pa.struct([("a", pa.int32())]), "has 1 fields, and the tuple 2"),
        ("frozen<place>", pa.struct([("town", pa.string())]), "has the field town, and the type only city, at, tags, height"),
        ("timestamp", pa.string(), "is string, no timestamp"),
    ],
)
def test_a_column_of_another_type_is_refused_before_the_first_row(
    tables: Tables, cql: str, kind: pa.DataType, text: str
) -> None:
    table = tables.make(f"id int primary key, v {cql}")
    sink = CassandraSink.of(tables.options(table))
    with pytest.raises(Misconfigured, match=text):
        sink.check_target(pa.schema([("id", pa.int32()), ("v", kind)]))


def test_other_types_of_spark_are_written_where_they_fit(tables: Tables) -> None:
    table = tables.make(
        "id int primary key, big varint, price decimal, exact decimal, at timestamp, clock time, wait duration, raw blob"
    )
    rows = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "big": pa.array([2**62], pa.int64()),
            "price": pa.array([0.1], pa.float64()),
            "exact": pa.array(["12345678901234567890123456789012345678901234567890.5"]),
            "at": pa.array([datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us")),
            "clock": pa.array([datetime.time(1, 2, 3, 4)], pa.time64("us")),
            "wait": pa.array([datetime.timedelta(days=2, seconds=3)], pa.duration("us")),
            "raw": pa.array(["text"]),
        }
    )
    stage(CassandraSink.of(tables.options(table)), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    (row,) = tables.execute(f"select * from {KEYSPACE}.{table}")
    assert (row.big, row.price, row.raw) == (2**62, Decimal("0.1"), b"text")
    assert str(row.exact) == "12345678901234567890123456789012345678901234567890.5"
    assert row.at == datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000), "a part of a millisecond is cut off, not rounded up"
    assert row.clock.nanosecond_time == (3723 * 1_000_000 + 4) * 1000
    assert (row.wait.days, row.wait.nanoseconds) == (2, 3_000_000_000)


@pytest.mark.parametrize(
    ("cql", "kind", "values"),
    [
        ("uuid", pa.string(), [ID, TIME_ID]),
        ("date", pa.date32(), [datetime.date(1582, 10, 15), datetime.date(2026, 1, 2)]),
        ("text", pa.string(), ["", "ä" * 200]),
        ("smallint", pa.int16(), [-1, 7]),
        ("decimal", pa.decimal128(38, 18), [Decimal("1.5"), Decimal(-7)]),
    ],
)
def test_vectors_of_any_type_are_read_and_written(tables: Tables, cql: str, kind: pa.DataType, values: list[Any]) -> None:
    table = tables.make(f"id int primary key, v vector<{cql}, 2>")
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([values], pa.list_(kind))})
    stage(CassandraSink.of(tables.options(table)), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    assert read(source_of(tables, table), rows.schema) == rows.to_pylist()
    assert len(tables.execute(f"select v from {KEYSPACE}.{table}")[0].v) == 2, "the driver reads it too"


def test_intervals_before_zero_are_written(tables: Tables) -> None:
    table = tables.make("id int primary key, v duration")
    waits = [datetime.timedelta(seconds=-1), datetime.timedelta(days=-2, microseconds=-3), datetime.timedelta(days=1)]
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "v": pa.array(waits, pa.duration("us"))})
    stage(CassandraSink.of(tables.options(table)), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    stored = {row.id: (row.v.days, row.v.nanoseconds) for row in tables.execute(f"select * from {KEYSPACE}.{table}")}
    assert stored == {1: (0, -1_000_000_000), 2: (-2, -3000), 3: (1, 0)}


def test_whole_numbers_that_a_double_has_are_written(tables: Tables) -> None:
    table = tables.make("id int primary key, v double")
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "v": pa.array([2**60, None], pa.int64())})
    stage(CassandraSink.of(tables.options(table)), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    assert sorted(map(tuple, tables.execute(f"select * from {KEYSPACE}.{table}"))) == [(1, 2.0**60), (2, None)]


def test_numbers_that_are_none_are_kept(tables: Tables) -> None:
    table = tables.make("id int primary key, v double, w float")
    values = [math.nan, math.inf, -math.inf]
    rows = pa.table({"id": pa.array([0, 1, 2], pa.int32()), "v": values, "w": pa.array(values, pa.float32())})
    stage(CassandraSink.of(tables.options(table)), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    read_back = sorted(read(source_of(tables, table), rows.schema), key=lambda row: row["id"])
    assert str(read_back) == str(rows.to_pylist())

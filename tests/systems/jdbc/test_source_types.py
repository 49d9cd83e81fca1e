"""Types: what our sink writes comes back as it was, what databases have beside it has a meaning, and times keep theirs."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import zoneinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal
from connectors.core.commit import Commit
from connectors.core.ledger import once_query
from connectors.core.writing import stage
from connectors.ground.errors import ConnectorError, Poison
from connectors.ground.time_zones import region_problem
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.rows import as_arrow, cast_values, rows_for
from connectors.testing import same_records

from .batch_reading import DATABASES, NAMES, fill, read, table_of
from .contexts import DatabaseContext, DuckDbContext, MariaDbContext, PostgresContext, SqliteContext

UTC = datetime.timezone.utc
TIME = pa.timestamp("us", "UTC")
NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()), ("tiny", pa.int16()), ("small", pa.int16()), ("whole", pa.int32()), ("large", pa.int64()),
        ("single", pa.float32()), ("real", pa.float64()), ("exact", pa.decimal128(38, 10)), ("name", pa.string()),
        ("bytes", pa.binary()), ("day", pa.date32()), ("moment", TIME), ("wall", pa.timestamp("us")),
        ("list", pa.list_(pa.int64())), ("nested", NESTED), ("map", pa.map_(pa.string(), pa.float64())),
    ]
)  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {
        "flag": True, "tiny": -128, "small": 32767, "whole": -(1 << 31), "large": (1 << 63) - 1, "single": 0.1, "real": 1e-300,
        "exact": Decimal("-1234567890123456789012345678.0123456789"), "name": "ä 'quoted' \\ %s \u2028 😀",
        "bytes": b"\x00\xff",
        "day": datetime.date(1582, 10, 4), "moment": datetime.datetime(2024, 3, 31, 1, 30, 0, 123456, UTC),
        "wall": datetime.datetime(2024, 3, 31, 2, 30, 0, 1), "list": [1, None, -(1 << 63)],
        "nested": {"a": 1, "b": ["x", None]}, "map": [("k", 1.5), ("l", None)],
    },
    {
        "flag": False, "tiny": 0, "small": -1, "whole": 0, "large": 0, "single": -0.5, "real": 1.7e308, "exact": Decimal(0),
        "name": "", "bytes": b"", "day": datetime.date(9999, 12, 31), "moment": datetime.datetime(1, 1, 1, tzinfo=UTC),
        "wall": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), "list": [], "nested": {"a": None, "b": []}, "map": [],
    },
    dict.fromkeys(SCHEMA.names),
]  # fmt: skip


def write(context: DatabaseContext, table: pa.Table) -> None:
    sink = JdbcSink.of({**context.address(), "dbtable": context.table + "_copy", "createTable": "true"})
    batch = Batch(sink.sink_id(), once_query(), 0)
    Commit(sink).finish(batch, [stage(sink, batch, table.schema, 0, iter(table.to_batches()))])


def as_text(value: Any) -> str:
    is_map = isinstance(value, list) and value and type(value[0]) is tuple
    return repr(dict(value)) if is_map else repr(value)


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Maps as Python's; what a suite compares must have an order."""
    return [{name: as_text(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("kind", DATABASES, ids=NAMES)
def test_what_the_sink_writes_comes_back_as_it_was(kind: type[DatabaseContext], tmp_path: Path) -> None:
    with contextlib.closing(table_of(kind, "id INT", tmp_path)) as context:
        written = pa.Table.from_pylist(ROWS if kind is not MariaDbContext else _as_mariadb_can(ROWS), SCHEMA)
        write(context, written)
        scan = read(context, SCHEMA, dbtable=f"{context.table}_copy")
        same_records(plain(written.to_pylist()), plain(scan.rows()))
        context.run(f"DROP TABLE {context.table}_copy")


def _as_mariadb_can(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its times begin in the year 1000."""
    return [
        {**row, "moment": row["moment"] and max(row["moment"], datetime.datetime(1000, 1, 1, tzinfo=UTC))}
        for row in rows
    ]


COLUMN_TYPES = {
    PostgresContext: {
        "tiny": "smallint", "list": "array<bigint>", "nested": "string", "map": "string", "exact": "decimal(38,10)",
    },
    SqliteContext: {
        "whole": "bigint", "single": "double", "exact": "string", "list": "string", "nested": "string", "map": "string",
    },
    DuckDbContext: {"list": "string", "nested": "string", "map": "string"},
    MariaDbContext: {"list": "string", "nested": "string", "map": "string"},
}  # fmt: skip


@pytest.mark.parametrize("kind", DATABASES, ids=NAMES)
def test_the_columns_without_a_schema_of_the_user(kind: type[DatabaseContext], tmp_path: Path) -> None:
    own = {
        "flag": "boolean", "tiny": "smallint", "small": "smallint", "whole": "int", "large": "bigint", "single": "float",
        "real": "double", "exact": "decimal(38,10)", "name": "string", "bytes": "binary", "day": "date", "moment": "timestamp",
        "wall": "timestamp", **COLUMN_TYPES[kind],
    }  # fmt: skip
    with contextlib.closing(table_of(kind, "id INT", tmp_path)) as context:
        write(context, pa.Table.from_pylist(ROWS[-1:], SCHEMA))
        scan = read(context, dbtable=f"{context.table}_copy")
        assert scan.source.schema == ", ".join(f"`{name}` {own[name]}" for name in SCHEMA.names)
        naive = read(context, dbtable=f"{context.table}_copy", preferTimestampNTZ="true").source.schema
        assert "`wall` timestamp_ntz" in naive
        context.run(f"DROP TABLE {context.table}_copy")


def test_types_that_only_postgresql_has(tmp_path: Path) -> None:
    values = {
        "UUID": ("'00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
        "JSONB": ("""'{"a": [1, 2]}'""", '{"a": [1, 2]}'),
        "INTERVAL": ("'1 day 02:00'", "1 day 02:00:00"),
        "TIME": ("'10:30'", "10:30:00"),
        "INET": ("'10.0.0.1'", "10.0.0.1/32"),
        "MONEY": ("'1.5'", "$1.50"),
        "XML": ("'<a/>'", "<a/>"),
        "BIT(3)": ("B'101'", "101"),
        "CHAR(3)": ("'a'", "a  "),
        "NUMERIC": ("1.5", Decimal("1.500000000000000000")),
        "INT[]": ("'{1,NULL,2}'", [1, None, 2]),
        "NUMERIC(10, 2)[]": ("'{1.5,NULL}'", [Decimal("1.50"), None]),
        "TEXT[]": ("""'{"a,b",c}'""", ["a,b", "c"]),
        "OID": ("4294967295", 4294967295),
        "INT4RANGE": ("'[1,3)'", "[1,3)"),
    }
    body = ", ".join(f"c{n} {sql}" for n, sql in enumerate(values))
    with contextlib.closing(table_of(PostgresContext, body, tmp_path)) as context:
        context.run(f"CREATE TYPE {context.table}_mood AS ENUM ('calm', 'wild')")
        context.run(f"ALTER TABLE {context.table} ADD COLUMN mood {context.table}_mood")
        fill(context, [(*(literal for literal, _ in values.values()), "'wild'")])
        context.run(f"INSERT INTO {context.table} (mood) VALUES (NULL)")
        row, empty = read(context).rows()
        assert row == {**{f"c{n}": value for n, (_, value) in enumerate(values.values())}, "mood": "wild"}
        assert set(empty.values()) == {None}
        texts = read(context, pa.schema([("c9", pa.string()), ("c10", pa.string())])).rows()[0]
        assert texts == {"c9": "1.5", "c10": "{1,NULL,2}"}
        parsed = read(context, pa.schema([("c1", pa.struct([("a", pa.list_(pa.int64()))]))])).rows()[0]
        assert parsed == {"c1": {"a": [1, 2]}}


def test_infinite_times_are_the_first_and_the_last(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "a TIMESTAMP, b TIMESTAMPTZ, c DATE", tmp_path)) as context:
        fill(context, [("'infinity'",) * 3, ("'-infinity'",) * 3, ("'2024-01-01'",) * 3, ("NULL",) * 3])
        last, first, usual, none = read(context, preferTimestampNTZ="true").rows()
        assert last["a"] == datetime.datetime(9999, 12, 31, 23, 59, 59, 999999) == last["b"].replace(tzinfo=None)
        assert first["a"] == datetime.datetime(1, 1, 1) == first["b"].replace(tzinfo=None)
        assert (last["c"], first["c"]) == (datetime.date(9999, 12, 31), datetime.date(1, 1, 1))
        assert usual["c"] == datetime.date(2024, 1, 1)
        assert set(none.values()) == {None}


def test_infinite_times_in_arrays_are_the_first_and_the_last(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "a TIMESTAMP[], b TIMESTAMPTZ[], c DATE[]", tmp_path)) as context:
        fill(context, [("'{infinity,NULL,-infinity}'",) * 3])
        (row,) = read(context, preferTimestampNTZ="true").rows()
        last, first = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), datetime.datetime(1, 1, 1)
        assert row["a"] == [last, None, first]
        assert row["b"] == [last.replace(tzinfo=UTC), None, first.replace(tzinfo=UTC)]
        assert row["c"] == [last.date(), None, first.date()]


def test_types_that_only_duckdb_has(tmp_path: Path) -> None:
    body = (
        "h HUGEINT, u UBIGINT, i INTEGER[], s STRUCT(a INTEGER, b VARCHAR), e ENUM('x', 'y'), n TIMESTAMP_NS, g UUID, "
    )
    body += "v INTERVAL"
    with contextlib.closing(table_of(DuckDbContext, body, tmp_path)) as context:
        literal = "1234567890123456789012345678901234567, 18446744073709551615, [1, NULL], {'a': 1, 'b': 'x'}, 'y', "
        literal += "'2024-01-01 00:00:00.000001', '00000000-0000-0000-0000-000000000001', INTERVAL 2 DAY"
        context.run(f"INSERT INTO {context.table} VALUES ({literal})")
        (row,) = read(context).rows()
        assert row == {
            "h": Decimal("1234567890123456789012345678901234567"), "u": Decimal("18446744073709551615"), "i": [1, None],
            "s": '{"a":1,"b":"x"}', "e": "y", "n": datetime.datetime(2024, 1, 1, microsecond=1, tzinfo=UTC),
            "g": "00000000-0000-0000-0000-000000000001", "v": "2 days",
        }  # fmt: skip
        struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
        assert read(context, pa.schema([("s", struct)])).rows() == [{"s": {"a": 1, "b": "x"}}]


def test_bits_of_mariadb_are_numbers_with_all_their_bits(tmp_path: Path) -> None:
    with contextlib.closing(table_of(MariaDbContext, "one BIT(1), some BIT(12), most BIT(64)", tmp_path)) as context:
        fill(context, [("b'1'", "b'101010101010'", "~0"), ("NULL", "NULL", "NULL")])
        scan = read(context)
        assert scan.source.schema == "`one` boolean, `some` bigint, `most` decimal(20,0)"
        row, empty = scan.rows()
        assert row == {"one": True, "some": 0b101010101010, "most": Decimal(2**64 - 1)}
        assert set(empty.values()) == {None}


def test_a_float_of_mariadb_has_all_its_digits(tmp_path: Path) -> None:
    """The server writes six of them."""
    with contextlib.closing(table_of(MariaDbContext, "id INT, single FLOAT", tmp_path)) as context:
        fill(context, [(1, 1234567.75), (2, 16777215), (3, "0.1"), (4, "NULL")])
        scan = read(context)
        assert scan.source.schema == "`id` int, `single` float"
        singles = {row["id"]: row["single"] for row in scan.rows()}
        assert singles == {1: 1234567.75, 2: 16777215.0, 3: pytest.approx(0.1), 4: None}


def test_columns_of_sqlite_are_read_as_they_were_declared_or_as_what_they_hold(tmp_path: Path) -> None:
    body = "i INTEGER, d DECIMAL(10, 2), b BOOLEAN, t DATETIME, x"
    with contextlib.closing(table_of(SqliteContext, body, tmp_path)) as context:
        fill(context, [(1, "'1.5'", 1, "'2024-01-01T10:00:00'", "1.5"), (2, 2, 0, "1704103200", 2), ("NULL",) * 5])
        query = f"SELECT *, i * 2 AS twice, 'a' || i AS name FROM {context.table}"
        scan = read(context, query=query)
        assert scan.source.schema == (
            "`i` bigint, `d` decimal(10,2), `b` boolean, `t` timestamp, `x` double, `twice` bigint, `name` string"
        )
        noon = datetime.datetime(2024, 1, 1, 10, tzinfo=UTC)
        assert scan.rows()[:2] == [
            {"i": 1, "d": Decimal("1.50"), "b": True, "t": noon, "x": 1.5, "twice": 2, "name": "a1"},
            {"i": 2, "d": Decimal("2.00"), "b": False, "t": noon, "x": 2.0, "twice": 4, "name": "a2"},
        ]
        context.run(f"INSERT INTO {context.table} VALUES ('none', 1, 7, 'yesterday', NULL)")
        for name in ("i", "b", "t"):
            with pytest.raises(ConnectorError, match=rf'the column "{name}" is read as .*\n.*string, by \.schema'):
                read(context, query=f"SELECT {name} FROM {context.table}").rows()
        texts = read(context, pa.schema([("i", pa.string()), ("t", pa.string())])).rows()
        assert texts[-1] == {"i": "none", "t": "yesterday"}


@pytest.mark.parametrize("kind", DATABASES, ids=NAMES)
def test_times_without_a_zone_are_of_the_given_one_also_when_the_clock_changes(
    kind: type[DatabaseContext], tmp_path: Path
) -> None:
    sql = "DATETIME(6)" if kind is MariaDbContext else "DATETIME" if kind is SqliteContext else "TIMESTAMP"
    with contextlib.closing(table_of(kind, f"t {sql}", tmp_path)) as context:
        fill(context, [("'2024-01-01 12:00:00'",), ("'2024-03-31 02:30:00'",), ("'2024-10-27 02:30:00'",)])
        rows = [row["t"] for row in read(context, timeZone="Europe/Berlin").rows()]
        assert rows == [
            datetime.datetime(2024, 1, 1, 11, tzinfo=UTC),
            datetime.datetime(2024, 3, 31, 1, tzinfo=UTC),  # is skipped: the next there is
            datetime.datetime(2024, 10, 27, 0, 30, tzinfo=UTC),  # comes twice: the earlier one
        ]


def test_numbers_that_do_not_fit_are_told_with_their_column(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "n NUMERIC, m INT", tmp_path)) as context:
        fill(context, [("1e30", 70000)])
        with pytest.raises(ConnectorError, match='"m" is read as int16'):
            read(context, pa.schema([("m", pa.int16())])).rows()
        for value in ("1e30", "12345678901234567890123.5", "1e256", "1e-30", "'NaN'"):
            context.run(f"UPDATE {context.table} SET n = {value}")
            with pytest.raises(ConnectorError, match=r'(?s)"n" is read as decimal128\(38, 18\).*string, by \.schema'):
                read(context).rows()
        context.run(f"UPDATE {context.table} SET n = 1e30")
        assert read(context, pa.schema([("n", pa.string())])).rows() == [{"n": "1" + "0" * 30}]


@pytest.mark.parametrize("value", [10.75, Decimal("10.75")])
def test_a_fraction_in_a_column_of_whole_numbers_is_told_with_the_column(value: Any) -> None:
    assert as_arrow([10.0, None, 11], pa.int64()).to_pylist() == [10, None, 11]
    with pytest.raises(Poison, match=r'"cents" is read as int64.*10\.75.* is no whole number'):
        as_arrow([11, value], pa.int64(), "cents")


def test_a_numeric_without_a_precision_is_rounded_as_spark_does_and_exact_in_a_type_of_the_user(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "n NUMERIC", tmp_path)) as context:
        fill(context, [("1.0 / 3",), (f"0.{'0' * 40}",), ("2e18",), ("NULL",)])
        third = Decimal("0.33333333333333333333")
        assert [row["n"] for row in read(context).rows()] == [round(third, 18), Decimal(0), Decimal(2 * 10**18), None]
        exact = pa.schema([("n", pa.decimal128(38, 20))])
        assert read(context, exact, query=f"SELECT n FROM {context.table} WHERE n < 1").rows()[0] == {"n": third}
        with pytest.raises(ConnectorError, match='"n" is read as'):
            read(context, exact).rows()


def test_arrays_of_postgresql_have_their_elements_whatever_their_index_and_those_of_several_dimensions_are_told(
    tmp_path: Path,
) -> None:
    with contextlib.closing(table_of(PostgresContext, 'a INT[], "b\'s" TEXT[], c NUMERIC[]', tmp_path)) as context:
        fill(context, [("'[0:2]={1,2,3}'", "'[-5:-4]={x,NULL}'", "'[7:7]={1.5}'"), ("'{}'", "'{}'", "'{}'"), ("NULL",) * 3])
        expected = [([1, 2, 3], ["x", None], [Decimal("1.5")]), ([], [], []), (None, None, None)]
        assert [tuple(row.values()) for row in read(context).rows()] == expected
        context.run(f"INSERT INTO {context.table} VALUES ('{{{{1,2}},{{3,4}}}}', '[0:0][0:0]={{{{y}}}}', '{{{{1}}}}')")
        for name, kind in (("a", pa.int32()), ("b's", pa.string()), ("c", pa.decimal128(38, 18))):
            with pytest.raises(Fatal, match=rf"(?s)the column {name} has an array of several dimensions; by \.schema.*{{{{"):
                read(context, pa.schema([(name, pa.list_(kind))])).rows()
        both = pa.schema([("a", pa.list_(pa.list_(pa.int32()))), ("b's", pa.string())])
        last = f"SELECT * FROM {context.table} WHERE array_ndims(a) = 2"
        assert read(context, both, query=last).rows() == [{"a": [[1, 2], [3, 4]], "b's": "[0:0][0:0]={{y}}"}]


def test_numbers_in_arrays_that_do_not_fit_are_told(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "n NUMERIC[]", tmp_path)) as context:
        fill(context, [("'{1,12345678901234567890123.5}'",)])
        with pytest.raises(ConnectorError, match='"n" is read as'):
            read(context).rows()


def test_a_value_that_the_driver_cannot_decode_is_no_outage(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "a INT[]", tmp_path)) as context:
        dialect: Any = read(context).source.dialect()
        with (
            contextlib.closing(rows_for(dialect)) as reading,
            pytest.raises(Fatal, match=r"(?s)cannot decode a value of .* by \.schema"),
        ):
            list(reading.batches(("SELECT '[2:3]={1,2}'::int[]",), []))


def test_arrays_go_into_arrays_of_postgresql(tmp_path: Path) -> None:
    kinds = {"t": pa.string(), "d": pa.decimal128(30, 20), "m": TIME, "f": pa.float64(), "b": pa.bool_(), "x": pa.binary()}
    row: dict[str, Any] = {
        "t": ["a", 'x "y", {z}', "", None, "NULL"], "d": [Decimal("1234567890.12345678901234567890")],
        "m": [datetime.datetime(2024, 3, 31, 1, 30, 0, 123456, UTC), None], "f": [0.1, float("inf"), 1e-300],
        "b": [True, False], "x": [b"\0\xff"],
    }  # fmt: skip
    schema = pa.schema([(name, pa.list_(kind)) for name, kind in kinds.items()])
    with contextlib.closing(table_of(PostgresContext, "id INT", tmp_path)) as context:
        write(context, pa.Table.from_pylist([row, dict.fromkeys(row), {name: [] for name in row}], schema))
        scan = read(context, dbtable=f"{context.table}_copy")
        assert "`d` array<decimal(30,20)>, `m` array<timestamp>, `f` array<double>, `b` array<boolean>, `x` string" in (
            scan.source.schema
        )
        written = [{**row, "x": '["AP8="]'}, dict.fromkeys(row), {**{name: [] for name in row}, "x": "[]"}]
        assert scan.rows() == written
        context.run(f"DROP TABLE {context.table}_copy")


def test_lists_keep_their_borders_in_slices_and_behind_nulls() -> None:
    column = pa.array([["0"], None, ["1", None], [], ["2"]], pa.list_(pa.string()))
    kind = pa.list_(pa.decimal128(5, 1))
    for sliced in (column, column.slice(1), column.slice(2, 2), column.slice(0, 0)):
        texts = sliced.to_pylist()
        expected = [items and [None if value is None else Decimal(f"{value}.0") for value in items] for items in texts]
        assert cast_values(sliced, kind).to_pylist() == expected


WITHOUT_ZONES = """
import datetime
import pyarrow as pa
from connectors.core import Misconfigured
from connectors.systems.jdbc import JdbcSource
from connectors.systems.jdbc.rows import cast_values

JdbcSource.of({"url": "sqlite:///x.db", "dbtable": "t"})
noon, utc = pa.array([datetime.datetime(2024, 1, 1, 12)]), pa.timestamp("us", "UTC")
print(cast_values(noon, utc)[0], cast_values(noon.cast(utc), pa.timestamp("us"))[0])
try:
    JdbcSource.of({"url": "sqlite:///x.db", "dbtable": "t", "timeZone": "Europe/Berlin"})
except Misconfigured as wrong:
    print(wrong)
"""


def test_a_machine_without_data_of_time_zones_reads_times_of_utc_and_refuses_others() -> None:
    mount = "mount -t tmpfs none /usr/share/zoneinfo"
    alone = ["unshare", *(["--map-root-user"] if os.getuid() else []), "--mount", "sh", "-c"]
    if not Path("/usr/share/zoneinfo").is_dir() or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody take its zones away")
    command = [*alone, f'{mount} && exec "$0" -c "$1"', sys.executable, WITHOUT_ZONES]
    shown = subprocess.run(command, env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True).stdout
    assert shown.startswith("2024-01-01 12:00:00+00:00 2024-01-01 12:00:00\n")
    assert "timeZone" in shown
    assert "got 'Europe/Berlin'. If it is one, install the time-zone data" in shown


def test_a_region_of_which_python_and_arrow_have_different_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert region_problem("Asia/Tokyo") == ""
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    monkeypatch.setattr(zoneinfo, "ZoneInfo", lambda region: zone)
    assert "got 'Asia/Tokyo'" in region_problem.__wrapped__("Asia/Tokyo")


@pytest.mark.parametrize("number", [1700000000, 1700000000.0, 1700000000_000, 1700000000_000_000])
@pytest.mark.parametrize("beside", [[], [None, "2023-11-14 22:13:20.5"]])
def test_a_number_in_a_column_of_times_is_a_unix_time_whatever_stands_beside_it(number: float, beside: list[Any]) -> None:
    times = as_arrow([number, *beside], pa.timestamp("us")).to_pylist()
    assert times[0] == datetime.datetime(2023, 11, 14, 22, 13, 20)
    assert times[1:] == [None, datetime.datetime(2023, 11, 14, 22, 13, 20, 500_000)][: len(beside)]

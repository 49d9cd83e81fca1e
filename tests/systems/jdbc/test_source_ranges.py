"""How a column is cut: each value in exactly one range whatever the cuts are, and no range large under skew."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core import Misconfigured
from connectors.systems.jdbc.ranges import KeyRange, cut_rows, distinct, even_cuts, number_of, ranges
from connectors.systems.jdbc.selection import Clause, render_clause, rows_of
from connectors.systems.jdbc.source import RangeSplit
from connectors.testing import wait_until

from .batch_reading import DATABASES, NAMES, BatchRead, fill, read, table_of
from .contexts import DatabaseContext, DuckDbContext, MariaDbContext, MySqlContext, PostgresContext, SqliteContext

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=5)
VALUES = st.one_of(st.lists(st.none() | LONGS, max_size=30), st.lists(st.none() | TEXTS, max_size=30))


def counted(values: list[Any], key_ranges: list[KeyRange]) -> list[int]:
    """How many ranges each value is in, as a database sees it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE t (n, v)")
        database.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(values)))
        hits = [0] * len(values)
        for key_range in key_ranges:
            where, bound = render_clause(key_range.where('"v"'), lambda *_: "?")
            for (number,) in database.execute(f"SELECT n FROM t WHERE {where or 'true'}", bound):
                hits[number] += 1
        return hits


@given(VALUES, st.data())
@settings(deadline=None)
def test_each_value_is_in_exactly_one_range_whatever_the_cuts(values: list[Any], data: Any) -> None:
    known = sorted({value for value in values if value is not None})
    cuts = sorted(data.draw(st.sets(st.sampled_from(known)))) if known else []
    assert counted(values, ranges("v", "", cuts)) == [1] * len(values)


@given(st.lists(LONGS, max_size=50), st.integers(1, 80))
@settings(deadline=None)
def test_ranges_between_quantiles_have_a_value_each_and_are_even(values: list[int], parts: int) -> None:
    ordered = sorted(values)
    cuts = distinct(ordered[number - 1] for number in cut_rows(len(ordered), parts))
    key_ranges = ranges("v", "", cuts)
    sizes = [
        sum((key_range.low is None or key_range.low <= v) and (key_range.high is None or v < key_range.high) for v in values)
        for key_range in key_ranges
    ]
    assert sum(sizes) == len(values)
    assert len(key_ranges) <= max(1, min(parts, len(set(values))))
    if values:
        assert min(sizes) >= 1
    if len(set(values)) == len(values):
        assert max(sizes) - min(sizes) <= 1


@given(LONGS, LONGS, st.integers(1, 100), LONGS)
def test_bounds_cut_evenly_without_overflow(bound: int, other: int, parts: int, value: int) -> None:
    low, high = min(bound, other), max(bound, other) + 1
    cuts: Any = even_cuts(str(low), str(high), parts, "number")
    assert cuts == sorted(set(cuts))
    assert all(low < cut < high for cut in cuts)
    assert len(cuts) == min(parts, high - low) - 1
    steps = [after - before for before, after in zip([low, *cuts], [*cuts, high], strict=True)]
    assert max(steps) - min(steps) <= 1
    key_ranges = ranges("v", "", cuts)
    assert (
        sum((part.low is None or part.low <= value) and (part.high is None or value < part.high) for part in key_ranges) == 1
    )


def test_bounds_of_other_kinds() -> None:
    assert even_cuts("2024-01-01", "2024-01-05", 2, "date") == ["2024-01-03"]
    assert even_cuts("2024-01-01 00:00:00", "2024-01-01T01:00:00+00:00", 2, "time") == ["2024-01-01 00:30:00.000000"]
    assert even_cuts("0.5", "1", 2, "number") == ["0.75"]
    assert number_of("1e3", "number") == Decimal(1000)
    for lower, upper, family, text in (
        ("2", "1", "number", "below upperBound"),
        ("x", "1", "number", "a number"),
        ("NaN", "1", "number", "a finite number"),
        ("2024", "2025", "date", "a date such as"),
        ("monday", "x", "time", "a time such as"),
    ):
        with pytest.raises(ValueError, match=text):
            even_cuts(lower, upper, 2, family)


KEYS: dict[str, tuple[str, list[str]]] = {
    "long": ("BIGINT", ["-9223372036854775808", "-1", "0", "1", "9223372036854775806", "9223372036854775807"]),
    "double": ("DOUBLE PRECISION", ["-1.7e308", "-0.1", "0.1", "0.30000000000000004", "1e-300", "1.7e308"]),
    "decimal": (
        "DECIMAL(30, 10)",
        ["-12345678901234567890.0123456789", "0.0000000001", "0.0000000002", "1.5", "2.5", "3"],
    ),
    "text": ("VARCHAR(20)", ["'a'", "'B'", "'ä'", "'%s'", "'it''s'", "''"]),
    "date": ("DATE", ["'0001-01-01'", "'1970-01-01'", "'2024-02-29'", "'2024-03-01'", "'2024-12-31'", "'9999-12-31'"]),
    "timestamp": ("TIMESTAMP", [f"'2024-03-31 02:30:00.00000{n}'" for n in range(6)]),
}


@pytest.mark.parametrize("kind", DATABASES, ids=NAMES)
def test_keys_of_all_types_and_nulls_come_once(kind: type[DatabaseContext], tmp_path: Path) -> None:
    body = ", ".join(f"{name}_key {sql if sql != 'TIMESTAMP' or 'Maria' not in kind.__name__ else 'DATETIME(6)'} NULL"
                     for name, (sql, _) in KEYS.items())  # fmt: skip
    with contextlib.closing(table_of(kind, f"n INT, {body}", tmp_path)) as context:
        rows = [(n, *(values[n] for _, values in KEYS.values())) for n in range(6)]
        nulls = [(n, *["NULL"] * len(KEYS)) for n in (6, 7)]
        fill(context, [*rows, *nulls])
        for number, name in enumerate(KEYS):
            for partitions in [3, 20][number % 2 :: 2] if kind is not SqliteContext else [3, 20]:
                scan = read(context, partitionColumn=f"{name}_key", numPartitions=partitions)
                parts = [[row["n"] for batch in scan.batches(part) for row in batch.to_pylist()] for part in scan.parts()]
                assert sorted(n for part in parts for n in part) == list(range(8)), (name, parts)
                assert {6, 7} <= set(parts[0]), "nulls belong to the first partition"
                assert len(parts) == min(partitions, 6), (name, parts)


def test_keys_that_only_postgresql_has(tmp_path: Path) -> None:
    body = "n INT, u UUID, b BYTEA, i INET, t TIMESTAMPTZ, m NUMERIC, f REAL"
    with contextlib.closing(table_of(PostgresContext, body, tmp_path)) as context:
        sql = "SELECT n, md5(n::text)::uuid, decode(md5(n::text), 'hex'), '10.0.0.0'::inet + n, now() + n * '1 day'::interval, "
        sql += "n / 7.0, CASE n WHEN 1 THEN 'NaN'::real ELSE n END FROM generate_series(1, 60) n"
        context.run(f"INSERT INTO {context.table} {sql}")
        for column in "ubitmf":
            sizes = read(context, partitionColumn=column, numPartitions=6).sizes()
            assert sizes == [10] * 6, (column, sizes)


SKEWED = "CASE WHEN n <= {nine} THEN n % {tenth} ELSE {tenth} + n * 7 END"
"""Nine rows of ten have a key in the first tenth of the range, several rows to each."""


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(PostgresContext, 1_200_000), (SqliteContext, 120_000), (DuckDbContext, 1_200_000)],
    ids=NAMES[:3],
)
def test_no_partition_is_large_under_skew(kind: type[DatabaseContext], rows: int, tmp_path: Path) -> None:
    series = "generate_series(1, {0}) AS s(n)"
    if kind is SqliteContext:
        series = "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {0}) SELECT n FROM s)"
    with contextlib.closing(table_of(kind, "k BIGINT", tmp_path)) as context:
        key = SKEWED.format(nine=rows * 9 // 10, tenth=rows * 7 // 10)
        context.run(f"INSERT INTO {context.table} SELECT {key} FROM {series.format(rows)}")
        scan = read(context, partitionColumn="k", numPartitions=50)
        with contextlib.closing(scan.source.dialect().connect_to_read()) as connection:
            sizes = _counts(connection, context.table, scan)
        assert sum(sizes) == rows
        assert len(sizes) == 50
        assert max(sizes) <= 2 * rows / 50
        even = read(context, partitionColumn="k", numPartitions=50, lowerBound=0, upperBound=rows * 7)
        with contextlib.closing(even.source.dialect().connect_to_read()) as connection:
            steps = _counts(connection, context.table, even)
        assert sum(steps) == rows
        assert max(steps) > 3 * rows / 50, "equal steps are what skew makes uneven"


def _counts(connection: Any, table: str, scan: BatchRead) -> list[int]:
    """The sizes of the partitions, by their own conditions but in one pass."""
    cases: Clause = ()
    parts = [RangeSplit(**part.detail) for part in scan.parts()]
    for number, part in enumerate(parts):
        cases += (" WHEN ", *part.where("k"), f" THEN {number}")
    ranged: Clause = ("SELECT CASE", *cases, f" END AS p FROM {table}")
    counts = dict(rows_of(connection, ("SELECT p, count(*) FROM (", *ranged, ") x GROUP BY p")))
    assert None not in counts
    return [counts.get(number, 0) for number in range(len(parts))]


def test_a_key_with_many_equal_values_is_not_cut_within(tmp_path: Path) -> None:
    with contextlib.closing(table_of(SqliteContext, "k INT, n INT", tmp_path)) as context:
        fill(context, [(1 if n < 90 else n, n) for n in range(100)])
        sizes = read(context, partitionColumn="k", numPartitions=10).sizes()
        assert sum(sizes) == 100
        assert sizes[0] == 90


def test_a_large_table_is_sampled_and_a_small_share_of_it_is_read(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "k BIGINT, pad TEXT", tmp_path)) as context:
        context.run(f"INSERT INTO {context.table} SELECT n, repeat('x', 700) FROM generate_series(1, 100000) n")
        scan = read(context, partitionColumn="k", numPartitions=4)
        sizes = scan.sizes()
        assert sum(sizes) == 100_000
        assert max(sizes) <= 3 * 25_000
        assert any(abs(size - 25_000) > 10 for size in sizes), "a sample does not hit the quantiles exactly"


def test_the_number_of_partitions_follows_from_the_size_of_the_table(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "k BIGINT, pad TEXT", tmp_path)) as context:
        assert len(read(context, partitionColumn="k").parts()) == 1
        context.run(f"INSERT INTO {context.table} SELECT n, repeat('x', 700) FROM generate_series(1, 50000) n")
        assert len(read(context, partitionColumn="k", maxSplitMemorySize="10MB").parts()) == 4
        assert len(read(context, partitionColumn="k", maxSplitMemorySize="64MB").parts()) == 1


LARGE = {
    PostgresContext: "SELECT n, repeat('x', 700) FROM generate_series(1, 50000) n",
    SqliteContext: "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 50000) "
    "SELECT n, replace(hex(zeroblob(350)), '0', 'x') FROM s",
    DuckDbContext: "SELECT n, 'x' FROM range(1200000) r(n)",
    MariaDbContext: "SELECT seq, repeat('x', 700) FROM seq_1_to_50000",
    MySqlContext: "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 50000) "
    "SELECT /*+ SET_VAR(cte_max_recursion_depth = 50000) */ n, repeat('x', 700) FROM s",
}
"""Some 35 MB in a table: really, or as DuckDB guesses by the types."""
QUERIES = dict.fromkeys(
    (MariaDbContext, MySqlContext), "SELECT a.k, b.pad FROM {0} a, {0} b WHERE a.k <= 1000 AND b.k <= 1000"
)
"""Elsewhere the query is the table, whose rows these take for short; how many a join has, they know roughly."""


@pytest.mark.parametrize("kind", LARGE, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def test_the_number_of_partitions_follows_from_the_estimate_of_the_database(
    tmp_path: Path, kind: type[DatabaseContext]
) -> None:
    options = {"partitionColumn": "k", "maxSplitMemorySize": "10MB"}
    with contextlib.closing(table_of(kind, "k BIGINT PRIMARY KEY, pad VARCHAR(1000)", tmp_path)) as context:
        whole = f"SELECT k, pad FROM {context.table}"
        fill(context, [(-1, "'a'"), (-2, "'b'")])
        assert len(read(context, **options).parts()) == 1
        assert len(read(context, query=whole, **options).parts()) == 1
        context.run(f"INSERT INTO {context.table} {LARGE[kind]}")
        if kind in (PostgresContext, MariaDbContext):  # else in a while, by themselves
            context.run(f"ANALYZE {'TABLE ' if kind is MariaDbContext else ''}{context.table}")
        wait_until(lambda: len(read(context, **options).parts()) > 1, 60.0)
        assert len(read(context, **options).parts()) in (4, 5)
        assert len(read(context, query=QUERIES.get(kind, whole).format(context.table), **options).parts()) in range(3, 16)
        assert len(read(context, query=whole, partitionColumn="k", maxSplitMemorySize="64MB").parts()) == 1


def test_columns_that_have_no_order_or_no_steps_are_told(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "j JSON, t TEXT", tmp_path)) as context:
        fill(context, [("'{}'", "'a'"), ("'{}'", "'b'")])
        with pytest.raises(Misconfigured, match=r"partitionColumn +cannot be put in order"):
            read(context, partitionColumn="j", numPartitions=2).parts()
        with pytest.raises(Misconfigured, match=r'"t" is text\. Leave them out'):
            read(context, partitionColumn="t", numPartitions=2, lowerBound="a", upperBound="z").parts()
    with contextlib.closing(table_of(SqliteContext, "b BLOB", tmp_path / "sqlite")) as context:
        fill(context, [("x'00'",), ("x'01'",)])
        with pytest.raises(Misconfigured, match='"b", which holds bytes'):
            read(context, partitionColumn="b", numPartitions=2).parts()


def test_bounds_of_times_are_utc(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "t TIMESTAMPTZ", tmp_path)) as context:
        fill(context, [(f"'2024-01-01 {hour:02}:00:00+00'",) for hour in range(24)])
        bounds = {"lowerBound": "2024-01-01 00:00:00", "upperBound": "2024-01-02 00:00:00"}
        scan = read(context, partitionColumn="t", numPartitions=2, **bounds)
        assert scan.sizes() == [12, 12]
        assert scan.rows()[0]["t"] == datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)

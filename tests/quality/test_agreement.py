"""One meaning of a check, three judges of it: plain Python here, the Spark predicate, and Great Expectations."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from connectors import quality

SCHEMA = "n bigint, f double, d decimal(12,3), s string, day date, ts timestamp, wall timestamp_ntz, b boolean"
NUMBERS = st.sampled_from([-1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]) | st.integers(-5, 5)
FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, 1e300]) | st.floats(-5, 5)
DECIMALS = st.decimals(-5, 5, places=3) | st.just(Decimal("123456789.001"))
TEXTS = st.sampled_from(
    ["", " ", "AA", "aa", "AAx", "ß", "Ärger", "日本", "\U0001f600", "it's", "a\\b", "a\nb", "A\n", '"', "null"]
)
TEXTS |= st.text(st.characters(codec="utf-8"), max_size=3)
DAYS = st.dates(datetime.date(2013, 3, 8), datetime.date(2013, 3, 13))
# The clock change of New York (10 March 2013) is inside: walls that do not exist, days of 23 hours.
WALLS = st.datetimes(datetime.datetime(2013, 3, 9), datetime.datetime(2013, 3, 11))
INSTANTS = st.datetimes(
    datetime.datetime(2013, 3, 9), datetime.datetime(2013, 3, 11), timezones=st.sampled_from([datetime.timezone.utc])
)
COLUMNS = {"n": NUMBERS, "f": FLOATS, "d": DECIMALS, "s": TEXTS, "day": DAYS, "ts": INSTANTS, "wall": WALLS}
COLUMNS["b"] = st.booleans()
PATTERNS = [
    "[A-Z]{2}",
    "a|A",
    r"\w*",
    "[^A]*",
    r"(?s).*\n.*",
    r"AA$",
    "it's",
    r"a\\b",
    "(?i)aa",
    "日本|\U0001f600",
    r"\{?|\"",
    " ",
]


@dataclass
class Case:
    """A check, and what Python says of it: the numbers of the failing rows."""

    check: quality.Check
    passes: Callable[[list[dict[str, Any]], ZoneInfo], list[bool]]


def instant(value: Any, zone: ZoneInfo) -> datetime.datetime:
    """Where a time or date lies on the time line; without zone it is in the session's, as in Spark."""
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    return value if value.tzinfo else value.replace(tzinfo=zone).astimezone(datetime.timezone.utc)


def comparable(value: Any, zone: ZoneInfo) -> Any:
    return instant(value, zone) if isinstance(value, datetime.datetime) else value


def each(column: str, good: Callable[[Any, ZoneInfo], bool]) -> Callable[..., list[bool]]:
    return lambda rows, zone: [row[column] is None or good(row[column], zone) for row in rows]


def same(left: Any, right: Any) -> bool:
    return left == right or (left != left and right != right)


@st.composite
def betweens(draw: st.DrawFn) -> Case:
    column = draw(st.sampled_from([name for name in COLUMNS if name != "b"]))
    values = COLUMNS[column].filter(lambda value: value == value)
    if column in ("ts", "wall"):
        values = draw(st.sampled_from([INSTANTS, WALLS]))
    low, high = sorted([draw(values), draw(values)])
    low, high = draw(st.sampled_from([(low, high), (low, None), (None, high)]))

    def good(value: Any, zone: ZoneInfo) -> bool:
        value, least, most = (None if x is None else comparable(x, zone) for x in (value, low, high))
        return value == value and (least is None or least <= value) and (most is None or value <= most)

    return Case(quality.between(column, low, high), each(column, good))


@st.composite
def in_sets(draw: st.DrawFn) -> Case:
    column = draw(st.sampled_from(sorted(COLUMNS)))
    values = draw(st.lists(COLUMNS[column], min_size=1, max_size=4))

    def good(value: Any, zone: ZoneInfo) -> bool:
        return any(same(comparable(value, zone), comparable(other, zone)) for other in values)

    return Case(quality.in_set(column, values), each(column, good))


@st.composite
def patterns(draw: st.DrawFn) -> Case:
    pattern = draw(st.sampled_from(PATTERNS))
    regex = re.compile(pattern, re.ASCII)
    return Case(quality.matches("s", pattern), each("s", lambda value, _: bool(regex.fullmatch(value))))


@st.composite
def expressions(draw: st.DrawFn) -> Case:
    limit = draw(st.integers(0, 3))
    sql = f"length(s) < {limit} OR b"

    def passes(rows: list[dict[str, Any]], _: ZoneInfo) -> list[bool]:
        return [row["b"] is True or row["s"] is None or len(row["s"]) < limit or row["b"] is None for row in rows]

    return Case(quality.expression(sql), passes)


@st.composite
def not_nulls(draw: st.DrawFn) -> Case:
    column = draw(st.sampled_from(sorted(COLUMNS)))
    return Case(quality.not_null(column), lambda rows, _: [row[column] is not None for row in rows])


@st.composite
def uniques(draw: st.DrawFn) -> Case:
    columns = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=2, unique=True))

    def passes(rows: list[dict[str, Any]], zone: ZoneInfo) -> list[bool]:
        keys = [tuple("NaN" if row[c] != row[c] else row[c] for c in columns) for row in rows]
        times = Counter(keys)
        return [None in key or times[key] == 1 for key in keys]

    return Case(quality.unique(*columns), passes)


@st.composite
def ages(draw: st.DrawFn) -> Case:
    column, as_of, hours = draw(st.sampled_from(["day", "ts", "wall"])), draw(INSTANTS), draw(st.integers(0, 48))

    def passes(rows: list[dict[str, Any]], zone: ZoneInfo) -> list[bool]:
        times = [instant(row[column], zone) for row in rows if row[column] is not None]
        stale = bool(times) and max(times) < as_of - datetime.timedelta(hours=hours)
        return [row[column] is None or not stale for row in rows]

    return Case(quality.fresh(column, f"{hours} hours", as_of=as_of), passes)


ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in COLUMNS.items()}), max_size=12)
CASES = st.tuples(
    betweens(), betweens(), betweens(), in_sets(), in_sets(), patterns(), expressions(), not_nulls(), uniques(), ages()
)


@pytest.fixture(params=["UTC", pytest.param("America/New_York", marks=pytest.mark.soak)])
def zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[ZoneInfo]:
    # Every example has plans of its own, over a few rows: compiling them would be most of the time.
    conf = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    conf["spark.sql.session.timeZone"] = request.param
    before = {key: spark.conf.get(key) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    yield ZoneInfo(request.param)
    for key, value in before.items():
        spark.conf.set(key, str(value))


# Shrinking would take minutes: an example is a dozen Spark jobs.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@pytest.mark.soak
@settings(max_examples=4, deadline=None, database=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(rows=ROWS, cases=CASES)
def test_predicate_expectation_and_python_agree(
    spark: SparkSession, zone: ZoneInfo, rows: list[dict[str, Any]], cases: tuple[Case, ...]
) -> None:
    df = spark.createDataFrame(
        [(i, *(row[name] for name in COLUMNS)) for i, row in enumerate(rows)], f"i int, {SCHEMA}"
    )
    named = [replaced(case.check, f"check {number}") for number, case in enumerate(cases)]
    checks = quality.Checks([*named, quality.row_count(min=0)])
    expected = {
        check.name: [i for i, passed in enumerate(case.passes(rows, zone)) if not passed]
        for check, case in zip(named, cases, strict=True)
    }
    by_python = {name: len(failing) for name, failing in expected.items()}
    table = checks.validate(df).table().set_index("check").drop("row_count(min=0)")
    assert dict(table.failing) == by_python, named
    assert dict(table.ok) == {name: not failing for name, failing in by_python.items()}
    good, quarantined = checks.split(df)
    by_rule = [(name, row.i) for row in quarantined.collect() for name in row.failed_checks]
    assert sorted(by_rule) == sorted((name, i) for name in checks.row_checks for i in expected[name])
    assert sorted(row.i for row in good.collect()) == sorted({*range(len(rows))} - {i for _, i in by_rule})


def replaced(check: quality.Check, name: str) -> quality.Check:
    import dataclasses

    return dataclasses.replace(check, name=name)

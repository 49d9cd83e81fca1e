"""Wrong checks: one error that lists everything, as early as it can be known."""

from __future__ import annotations

import datetime
import decimal
import math
import pickle

import pytest
from pyspark.sql import SparkSession

from connectors import quality
from connectors.ground.errors import Misconfigured


def problems_of(error: pytest.ExceptionInfo[Misconfigured]) -> dict[str, str]:
    return {problem.option: problem.text for problem in error.value.problems}


def test_all_wrong_arguments_are_in_one_error() -> None:
    with pytest.raises(Misconfigured) as error:
        quality.Checks(
            [
                quality.between("a", 3, 1),
                quality.between("b"),
                quality.in_set("c", []),
                quality.row_count(5, 2),
                quality.fresh("ts", "soon"),
                quality.matches("d", ""),
                quality.expression(" ", name="blank"),
                quality.unique(),
                quality.not_null(""),
            ]
        )
    assert len(error.value.problems) == 9
    assert "9 problems" in str(error.value)
    assert "low above high: 3 > 1" in str(error.value)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (quality.between("a", math.nan, 1.0), "NaN"),
        (quality.between("a", 1, "x"), "mixes number with text"),
        (quality.between("a", datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)), "cannot compare"),
        (quality.in_set("a", [1, None]), "not_null"),
        (quality.not_null("a`b"), "rename"),
        (quality.in_set("a", "abc"), "list"),
        (quality.in_set("a", [b"x"]), "bytes"),
        (quality.in_set("a", [decimal.Decimal("NaN")]), "not finite"),
        (quality.row_count(-1), "got -1"),
        (quality.row_count(None, 0), "has min above max: 1 > 0"),
        (quality.row_count(True), "got True"),
        (quality.fresh("a", "1 day", as_of=datetime.datetime(2020, 1, 1)), "time zone"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(check: quality.Check, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        quality.Checks([check])


def test_a_check_given_twice_is_refused_and_a_name_tells_them_apart() -> None:
    with pytest.raises(Misconfigured, match="given 2 times"):
        quality.Checks([quality.not_null("a"), quality.not_null("a")])
    assert quality.Checks([quality.not_null("a"), quality.not_null("a", name="again")]).row_checks[1] == "again"


def test_no_checks_at_all_is_an_error() -> None:
    with pytest.raises(Misconfigured, match="at least one"):
        quality.Checks([])


def test_something_that_is_no_check_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"quality\.not_null"):
        quality.Checks(["id is not null"])  # type: ignore[list-item]


def test_what_only_the_columns_show_is_one_error_at_first_use(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, "AA")], "flight bigint, carrier string")
    checks = quality.Checks(
        [
            quality.not_null("carier"),
            quality.unique("Flight"),
            quality.matches("carrier", "(a"),
            quality.matches("carrier", "a)|(b"),
            quality.matches("flight", "x"),
            quality.between("carrier", 1, 2),
            quality.in_set("flight", ["1"]),
            quality.fresh("carrier", "1 day"),
            quality.expression("flight >", name="half"),
            quality.expression("nope > 1", name="unknown"),
            quality.expression("sum(flight) > 1", name="aggregate"),
            quality.expression("flight", name="no boolean"),
        ]
    )
    with pytest.raises(Misconfigured) as error:
        checks.split(df)
    problems = problems_of(error)
    assert len(problems) == len(checks.checks)
    assert 'did you mean "carrier"?' in problems["not_null(carier)"]
    assert 'did you mean "flight"?' in problems["unique(Flight)"]
    assert "carrier" in problems["between(carrier, 1, 2)"]


def test_a_wrong_expression_is_reported_without_a_page_of_java(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Misconfigured):
        quality.Checks([quality.expression("nope > 1")]).split(spark.range(1))
    assert "org.apache.spark" not in "".join(capfd.readouterr())


def test_a_name_that_is_like_no_other_gets_the_list_of_columns(spark: SparkSession) -> None:
    with pytest.raises(Misconfigured, match=r'"zebra" is no column; there are id'):
        quality.Checks([quality.not_null("zebra")]).split(spark.range(1))


def test_checks_tell_which_of_them_are_no_row_predicates() -> None:
    checks = quality.Checks(
        [quality.not_null("a"), quality.unique("a"), quality.row_count(), quality.fresh("t", "1 day")]
    )
    assert checks.row_checks == ("not_null(a)",)
    assert checks.set_checks == ("unique(a)", "row_count(min=1)", "fresh(t, 1 day)")
    assert "validate() only" in repr(checks)


def test_a_set_of_values_gives_the_same_name_in_every_run() -> None:
    assert quality.in_set("c", {"b", "a", "c"}).name == "in_set(c, a, b, c)"


def test_checks_survive_pickling_as_a_stream_on_spark_connect_needs_it() -> None:
    checks = quality.Checks([quality.between("n", 0, 10)])
    assert pickle.loads(pickle.dumps(checks)).row_checks == checks.row_checks


def test_the_public_names_are_sorted_and_exist() -> None:
    assert list(quality.__all__) == sorted(
        quality.__all__, key=lambda name: (name.lower() == name, not name.isupper(), name)
    )
    assert all(hasattr(quality, name) for name in quality.__all__)

"""The verdict on a written output, and how it is told."""

from __future__ import annotations

import datetime
import pickle
import re
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors import quality
from connectors.ground.errors import ConnectorError, Misconfigured

CHECKS = quality.Checks([quality.not_null("id"), quality.unique("id"), quality.between("n", 0, 10)])


@pytest.fixture
def bad(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, 5), (1, 99), (None, 3)], "id int, n int")


def verdict(checks: list[quality.Check], df: DataFrame) -> dict[str, tuple[bool, int]]:
    table = quality.Checks(checks).validate(df).table()
    return {row.check: (row.ok, row.failing) for row in table.itertuples()}


def test_great_expectations_is_loaded_by_the_first_verdict_and_not_before() -> None:
    """It takes seconds, which the commands and the notebooks without a verdict do not pay."""
    code = "import sys, connectors.quality, connectors_tools.bundle; sys.exit('great_expectations' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_verdict_without_great_expectations_says_what_to_install(
    bad: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    with pytest.raises(Misconfigured, match=r"pip install 'great-expectations>=1.5'"):
        CHECKS.validate(bad)


def test_the_table_has_a_row_per_check_in_their_order(bad: DataFrame) -> None:
    table = CHECKS.validate(bad, name="orders").table()
    assert list(table.columns) == ["check", "ok", "failing", "sample"]
    assert list(table.check) == ["row_count(min=1)", "not_null(id)", "unique(id)", "between(n, 0, 10)"]
    assert list(table.ok) == [True, False, False, False]
    assert list(table.failing) == [0, 1, 2, 1]
    assert list(table["sample"]) == [
        [],
        [{"id": None, "n": 3}],
        [{"id": 1, "occurrences": 2}],
        [{"n": 99, "id": 1}],
    ]


def test_a_good_output_passes_in_silence(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    report = CHECKS.validate(spark.createDataFrame([(1, 5)], "id int, n int"))
    report.enforce()
    assert report.ok
    assert capfd.readouterr() == ("", "")


def test_enforce_names_output_checks_and_sample_rows(bad: DataFrame) -> None:
    with pytest.raises(quality.QualityFailed) as error:
        CHECKS.validate(bad, name="orders").enforce()
    assert isinstance(error.value, ConnectorError)
    text = str(error.value)
    assert text.startswith("orders: 3 of 4 checks failed")
    assert "not_null(id): 1 of 3 rows\n      id=null, n=3" in text
    assert error.value.failing["between(n, 0, 10)"] == [{"n": 99, "id": 1}]
    assert "row_count" not in text


def test_the_error_survives_pickling(bad: DataFrame) -> None:
    with pytest.raises(quality.QualityFailed) as error:
        CHECKS.validate(bad, name="orders").enforce()
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.output, copy.failing) == (str(error.value), "orders", error.value.failing)


def test_an_empty_output_fails_unless_no_rows_are_allowed(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], "id int, ts timestamp")
    others = [quality.not_null("id"), quality.unique("id"), quality.fresh("ts", "1 day"), quality.between("id", 1)]
    assert not quality.Checks(others).validate(empty).ok
    assert not quality.Checks([*others, quality.row_count(max=9)]).validate(empty).ok
    assert not quality.Checks([quality.row_count(None, 9)]).validate(empty).ok
    assert quality.Checks([*others, quality.row_count(min=0)]).validate(empty).ok
    with pytest.raises(quality.QualityFailed, match=r"row_count\(min=1\): 0 rows"):
        quality.Checks(others).validate(empty).enforce()


def test_the_number_of_rows_has_two_limits(spark: SparkSession) -> None:
    df = spark.range(10)
    assert verdict([quality.row_count(10, 10)], df) == {"row_count(min=10, max=10)": (True, 0)}
    assert verdict([quality.row_count(12)], df) == {"row_count(min=12)": (False, 2)}
    assert verdict([quality.row_count(0, 7)], df) == {"row_count(min=0, max=7)": (False, 3)}


def test_a_combination_of_columns_can_be_unique(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, 1), (1, 2), (1, 2), (None, 2), (None, 2)], "a int, b int")
    report = quality.Checks([quality.unique("a", "b")]).validate(df)
    assert report.table().iloc[1].tolist() == ["unique(a, b)", False, 2, [{"a": 1, "b": 2, "occurrences": 2}]]


def test_age_is_measured_from_now(spark: SparkSession) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    rows = [(now - datetime.timedelta(hours=age),) for age in (2, 90)]
    df = spark.createDataFrame(rows, "ts timestamp")
    assert verdict([quality.fresh("ts", "3 hours")], df)["fresh(ts, 3 hours)"] == (True, 0)
    assert verdict([quality.fresh("ts", "1 hour")], df)["fresh(ts, 1 hour)"] == (False, 2)


def test_large_numbers_exact_decimals_and_instants_are_judged_without_rounding(spark: SparkSession) -> None:
    """Where Great Expectations' own expectation rounds bounds to a float or to a day."""
    at = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone.utc)
    df = spark.createDataFrame([(2**53 + 1, at)], "n long, ts timestamp")
    low = at + datetime.timedelta(seconds=1)
    failing = verdict([quality.between("n", None, 2**53, name="n"), quality.between("ts", low, name="ts")], df)
    assert failing["n"] == failing["ts"] == (False, 1)


def test_a_check_that_cannot_be_computed_is_an_error_and_no_verdict(spark: SparkSession) -> None:
    df = spark.createDataFrame([("x",)], "s string")
    with pytest.raises(ConnectorError, match=r"orders.*cast could not be judged") as error:
        quality.Checks([quality.expression("cast(s AS int) > 1", name="cast")]).validate(df, name="orders")
    assert not isinstance(error.value, quality.QualityFailed)


def test_a_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Misconfigured, match=r"spark\.read"):
        quality.Checks([quality.not_null("value")]).validate(spark.readStream.format("rate").load())


def test_nothing_is_left_behind(
    bad: DataFrame, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    views = [table.name for table in spark.catalog.listTables()]
    cached = set(spark.sparkContext._jsc.getPersistentRDDs())
    CHECKS.validate(bad)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cwd", "tmp"]
    assert [table.name for table in spark.catalog.listTables()] == views
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= cached


def test_what_the_user_cached_stays_cached(bad: DataFrame) -> None:
    bad.persist()
    try:
        CHECKS.validate(bad)
        assert bad.storageLevel.useMemory
    finally:
        bad.unpersist()


def test_the_network_is_not_used(bad: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, reached = socket.socket.connect, []

    def watched(self: socket.socket, address: Any) -> None:
        reached.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    CHECKS.validate(bad)
    outside = [to for to in reached if isinstance(to, tuple) and to[0] not in ("127.0.0.1", "localhost", "::1")]
    assert outside == []


def test_threads_judge_at_the_same_time(bad: DataFrame) -> None:
    checks = quality.Checks([quality.not_null("id")])
    with ThreadPoolExecutor(4) as threads:
        verdicts = [threads.submit(checks.validate, bad, name=f"part {n}") for n in range(8)]
    assert {tuple(verdict.result().table().failing) for verdict in verdicts} == {(0, 1)}


def test_the_users_own_great_expectations_context_is_put_back(bad: DataFrame) -> None:
    import great_expectations
    from great_expectations.data_context.data_context.context_factory import project_manager

    context = great_expectations.get_context(mode="ephemeral")
    CHECKS.validate(bad)
    assert project_manager.get_current_project() is context


def test_the_page_stands_alone_and_shows_every_check(bad: DataFrame, tmp_path: Path) -> None:
    page = CHECKS.validate(bad, name="orders <b>").html(tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|<link|src=|url\(|@import", page)
    assert "orders &lt;b&gt;" in page
    assert page.count('class="pill') == 1 + 4
    assert "expect_column_values_to_not_be_null" in page
    assert "<td>99</td>" in page


def test_what_rows_contain_cannot_break_the_page(spark: SparkSession) -> None:
    df = spark.createDataFrame([("<script>alert(1)</script>",)], "s string")
    html = quality.Checks([quality.in_set("s", ["a"])]).validate(df)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_notebook_shows_the_report_and_a_terminal_its_lines(bad: DataFrame) -> None:
    report = CHECKS.validate(bad, name="orders")
    assert '<section class="quality">' in report._repr_html_()
    assert "FAILED between(n, 0, 10)" in repr(report)


def test_the_result_of_great_expectations_is_there_to_keep(bad: DataFrame) -> None:
    result = CHECKS.validate(bad, name="orders").result
    assert result.suite_name == "orders"
    assert result.statistics["unsuccessful_expectations"] == 3
    assert isinstance(result.to_json_dict(), dict)
    assert isinstance(pd.DataFrame(result.results), pd.DataFrame)


def test_several_verdicts_are_one_table_or_one_error(spark: SparkSession, bad: DataFrame) -> None:
    true = quality.claims(spark, {"two is two": 2 == 2, "there are rows": bad.count() > 0})
    good = CHECKS.validate(bad.where("n < 4 AND id IS NOT NULL OR n = 5"), name="orders")
    table = quality.enforce(good, true)
    assert list(table.columns) == ["output", "check", "ok", "failing"]
    assert list(table.output) == ["orders"] * 4 + ["claims"] * 3
    assert list(table.check)[-2:] == ["two is two", "there are rows"]
    assert table.ok.all()
    wrong = quality.claims(spark, {"two is three": False, "two is two": True}, name="sums")
    with pytest.raises(quality.QualityFailed, match=r"^sums: 1 of 3 checks failed\n  two is three: 1 of 2 rows\n.*holds=False"):
        quality.enforce(good, wrong)
    with pytest.raises(Misconfigured, match=r"reports +missing; give what validate has returned"):
        quality.enforce()
    with pytest.raises(quality.QualityFailed) as failure:
        quality.enforce(CHECKS.validate(bad, name="orders"), true, wrong)
    assert failure.value.output == "orders, sums"
    assert failure.value.failing["sums: two is three"] == [{"claim": "two is three", "holds": False}]
    assert "orders: 3 of 4 checks failed" in str(failure.value)


def test_the_name_of_the_count_that_every_verdict_has_belongs_to_no_other_check(bad: DataFrame) -> None:
    checks = quality.Checks([quality.expression("n > 1000", name="row_count(min=1)")])
    with pytest.raises(Misconfigured, match=r"row_count\(min=1\) +is given 2 times"):
        checks.validate(bad)

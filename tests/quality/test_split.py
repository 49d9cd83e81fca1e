"""Rows are parted by the predicates: in a batch, in a stream, each batch computed once."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors import quality
from connectors.ground.errors import Misconfigured

CHECKS = quality.Checks([quality.not_null("id"), quality.between("n", 0, 10), quality.unique("id")])
ROWS = [(1, 5), (None, 5), (3, 11), (None, -1), (5, None)]


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "id int, n int")


def test_every_row_is_in_exactly_one_part(df: DataFrame) -> None:
    good, quarantined = CHECKS.split(df)
    assert [tuple(row) for row in good.collect()] == [(1, 5), (5, None)]
    assert good.columns == df.columns
    assert {(row.id, row.n): row.failed_checks for row in quarantined.collect()} == {
        (None, 5): ["not_null(id)"],
        (3, 11): ["between(n, 0, 10)"],
        (None, -1): ["not_null(id)", "between(n, 0, 10)"],
    }


def test_what_was_delivered_is_told_by_keys_and_counts_after_the_rows(spark: SparkSession) -> None:
    calls: list[tuple[str, list[dict[str, Any]]]] = []

    def sink(name: str) -> Any:
        return lambda frame, batch: calls.append((f"{name} {batch}", [row.asDict() for row in frame.collect()]))

    frame = spark.createDataFrame([(1, 1, 5), (1, 1, 6), (2, None, 5), (3, 1, 11)], "id int, `a.b` int, n int")
    checks = quality.Checks([quality.between("n", 0, 10), quality.unique("id", "a.b")])
    checks.foreach_batch(**{name: sink(name) for name in ("good", "quarantined", "keys", "counts")})(frame, 7)
    (_, keys), (_, counts) = calls[2:]
    assert [name for name, _ in calls] == ["quarantined 7", "good 7", "keys 7", "counts 7"]
    assert counts == [{"batch_id": 7, "rows": 4, "good": 3, "quarantined": 1}]
    assert sorted((row["id"], row["a.b"]) for row in keys) == [(1, 1), (2, None)]
    assert all(isinstance(row["delivered_at"], datetime.datetime) for row in keys)
    with pytest.raises(Misconfigured, match=r"keys +needs a check unique"):
        quality.Checks([quality.not_null("id")]).foreach_batch(good=print, quarantined=print, keys=print)
    with pytest.raises(Misconfigured, match=r"counts +must be a function"):
        checks.foreach_batch(good=print, quarantined=print, counts=3)  # type: ignore[arg-type]


def test_null_passes_every_check_but_not_null(spark: SparkSession) -> None:
    df = spark.createDataFrame([(None, None)], "s string, n int")
    checks = quality.Checks(
        [quality.between("n", 1), quality.in_set("s", ["a"]), quality.matches("s", "a"), quality.expression("n > 1")]
    )
    assert checks.split(df).quarantined.isEmpty()
    assert not quality.Checks([quality.not_null("s")]).split(df).quarantined.isEmpty()


def test_a_part_of_the_text_is_no_match(spark: SparkSession) -> None:
    df = spark.createDataFrame([("AA",), ("AAx",), ("xAA",), ("AA\n",), ("b",)], "s string")
    good = quality.Checks([quality.matches("s", "AA|b")]).split(df).good
    assert [row.s for row in good.collect()] == ["AA", "b"]


def test_nan_lies_between_no_bounds(spark: SparkSession) -> None:
    df = spark.createDataFrame([(float("nan"),)], "f double")
    for check in (quality.between("f", 0), quality.between("f", None, 9), quality.between("f", 0, float("inf"))):
        assert quality.Checks([check]).split(df).good.isEmpty()


def test_names_with_dots_and_blanks_are_columns_too(spark: SparkSession) -> None:
    df = spark.createDataFrame([(None, 1), (1, None)], "`a.b c` int, `größe $` int")
    checks = quality.Checks(
        [
            quality.not_null("a.b c"),
            quality.between("größe $", 5),
            quality.in_set("a.b c", [2]),
            quality.unique("a.b c"),
        ]
    )
    assert checks.split(df).quarantined.count() == 2
    table = checks.validate(df).table().set_index("check")
    assert list(table.failing[list(checks.row_checks)]) == [1, 1, 1]


def test_a_column_of_that_name_is_never_overwritten(df: DataFrame) -> None:
    with pytest.raises(Misconfigured, match="drop it"):
        CHECKS.split(df.withColumn("failed_checks", sf.lit("mine")))


def test_the_checks_that_were_not_applied_are_in_the_log(df: DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "connectors.quality"):
        CHECKS.split(df)
    assert "unique(id)" in caplog.text


def test_only_functions_can_take_the_parts() -> None:
    with pytest.raises(Misconfigured) as error:
        CHECKS.foreach_batch(good="table", quarantined=None)  # type: ignore[arg-type]
    assert len(error.value.problems) == 2


def test_a_batch_is_computed_once_however_often_its_parts_are_read(spark: SparkSession) -> None:
    computed = spark.sparkContext.accumulator(0)

    def identity(value: int) -> int:
        computed.add(1)
        return value

    df = spark.range(100).withColumn("n", sf.udf(identity, "long")("id"))
    read_twice = lambda part, _: (part.count(), part.collect())  # noqa: E731
    quality.Checks([quality.between("n", 0, 49)]).foreach_batch(good=read_twice, quarantined=read_twice)(df, 0)
    assert computed.value == 100


def test_the_counts_of_a_batch_reconcile(df: DataFrame) -> None:
    parts: dict[str, int] = {}
    split = CHECKS.foreach_batch(
        good=lambda part, _: parts.update(good=part.count()),
        quarantined=lambda part, _: parts.update(quarantined=part.count()),
    )
    split(df, 7)
    assert split.last == (7, 5, 2, 3)
    assert parts == {"good": 2, "quarantined": 3}


def test_nothing_stays_cached_when_a_sink_fails(spark: SparkSession, df: DataFrame) -> None:
    marked: list[DataFrame] = []
    cached = set(spark.sparkContext._jsc.getPersistentRDDs())

    def fail(part: DataFrame, _: int) -> None:
        marked.append(part)
        raise OSError("disk full")

    split = CHECKS.foreach_batch(good=fail, quarantined=lambda *_: None)
    with pytest.raises(OSError, match="disk full"):
        split(df, 0)
    assert split.last is None
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= cached


def test_compute_without_a_cache_still_parts_the_rows(df: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:  # What serverless compute answers; it is not to be had in a test.
        raise AnalysisException("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported on serverless compute.")

    monkeypatch.setattr(type(df), "persist", refused)
    split = CHECKS.foreach_batch(good=lambda *_: None, quarantined=lambda *_: None)
    split(df, 0)
    assert split.last == (0, 5, 2, 3)
    assert not CHECKS.validate(df).ok


def test_a_stream_writes_each_row_once_to_one_of_two_sinks(spark: SparkSession, tmp_path: Path) -> None:
    for start in (0, 50):
        spark.range(start, start + 50).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

    def into(folder: str) -> quality.Sink:
        return lambda part, batch: part.write.mode("overwrite").parquet(str(tmp_path / folder / f"batch={batch}"))

    split = quality.Checks([quality.expression("id % 10 <> 0", name="no tens")]).foreach_batch(
        good=into("good"), quarantined=into("bad")
    )
    query = stream.writeStream.foreachBatch(split).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    good, bad = (spark.read.parquet(str(tmp_path / folder)) for folder in ("good", "bad"))
    assert sorted(row.id for row in bad.collect()) == list(range(0, 100, 10))
    assert good.count() == 90
    assert good.select("batch").distinct().count() == 2
    assert {tuple(row.failed_checks) for row in bad.collect()} == {("no tens",)}


def test_a_stream_can_be_split_too(spark: SparkSession) -> None:
    good, quarantined = quality.Checks([quality.not_null("value")]).split(spark.readStream.format("rate").load())
    assert good.isStreaming
    assert quarantined.columns[-1] == quality.FAILED_CHECKS

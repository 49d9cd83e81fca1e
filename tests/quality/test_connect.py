"""The same checks on Spark Connect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors import quality
from connectors.ground.errors import Misconfigured
from connectors.testing.environments import Environment

pytestmark = [pytest.mark.essential, pytest.mark.environments("connect")]


@pytest.fixture
def rows(environment: Environment) -> Any:
    values = [(1, "AA", 1.5), (2, "AAx", float("nan")), (2, None, None)]
    rows = environment.spark.createDataFrame(values, "id int, s string, f double")
    assert type(rows).__module__ == "pyspark.sql.connect.dataframe"
    return rows.selectExpr("*", "current_timestamp() AS ts")


CHECKS = quality.Checks(
    [
        quality.not_null("s"),
        quality.unique("id"),
        quality.between("f", 0),
        quality.in_set("s", ["AA"]),
        quality.matches("s", "AA"),
        quality.fresh("ts", "1 day"),
        quality.expression("id < 2"),
        quality.row_count(3, 3),
    ]
)


def test_validate_counts_failing_rows(rows: Any) -> None:
    assert CHECKS.validate(rows).table().failing.tolist() == [1, 2, 1, 1, 1, 0, 2, 0]


def test_split_gives_good_and_bad_rows(rows: Any) -> None:
    assert [part.count() for part in CHECKS.split(rows)] == [1, 2]


def test_each_wrong_check_is_named(rows: Any) -> None:
    wrong = [quality.expression("nope > 1"), quality.expression("id", name="id"), quality.matches("s", "(")]
    with pytest.raises(Misconfigured) as error:
        quality.Checks(wrong).split(rows)
    assert len(error.value.problems) == 3


def test_a_stream_is_split(rows: Any, environment: Environment, tmp_path: Path) -> None:
    def into(part: str) -> Callable[[Any, int], None]:
        folder = str(tmp_path / part)
        return lambda batch, _: batch.write.mode("append").parquet(folder)

    rows.write.parquet(str(tmp_path / "in"))
    stream = environment.spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in")).writeStream
    stream = stream.foreachBatch(CHECKS.foreach_batch(good=into("good"), quarantined=into("bad")))
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert [environment.spark.read.parquet(str(tmp_path / part)).count() for part in ("good", "bad")] == [1, 2]

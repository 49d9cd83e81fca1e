"""The gate of a pipeline counts the batches that are recorded, of its slices too."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import connectors
from connectors.core.letter_files import DEAD_LETTERS
from connectors.ground.errors import Misconfigured
from connectors.workbench.batch_record import letter_count

from .helpers import pipeline_in


@pytest.mark.soak
@pytest.mark.spark
def test_rows_that_a_batch_is_having_refused_are_not_yet_counted(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.workbench.versions._RECENT", 1)
    state = pipeline_in(tmp_path, "delta to kafka")
    refused, mark = tmp_path / "p" / "refused", json.dumps({"connectors": {"sink": "s", "query": "q", "batch": 0}})
    refused.mkdir(parents=True)
    keys = spark.range(10).selectExpr("id", "current_timestamp() delivered_at")
    keys.write.format("delta").save(state.path("keys"))
    counts = spark.createDataFrame([(10, 10)], "rows long, good long").write.format("delta")
    counts.option("userMetadata", mark).save(state.path("counts"))
    spark.range(0).write.format("delta").save(state.path("quarantine"))
    spark.sql(f"ALTER TABLE delta.`{state.path('counts')}` SET TBLPROPERTIES ('a' = 'b')")

    def delivered(rows: Any) -> int:
        row = state.reconciliation(spark, rows).collect()[0]
        assert (row.read, row.dead_letters) == (10, 0)
        return int(row.delivered)

    letters = pa.Table.from_pylist([{"at": datetime.datetime.now(datetime.timezone.utc)}] * 5, DEAD_LETTERS)
    pq.write_table(letters, refused / "kafka-1.parquet")
    assert delivered(spark.range(10)) == 10
    assert delivered(spark.range(5, 10)) == 5, "the letters of another batch hide none that is lost"
    keys.selectExpr("id + 10 AS id", "delivered_at").write.format("delta").mode("append").save(state.path("keys"))
    assert delivered(spark.range(15)) == 10
    assert delivered(spark.range(5, 15)) == 5


@pytest.mark.soak
@pytest.mark.spark
def test_a_batch_that_is_being_written_is_not_yet_counted(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = pipeline_in(tmp_path, checks='[{"expression": "id % 4 > 0"}]')

    def run(first: int, good: int, *, is_whole: bool = True) -> None:
        sinks = state.checks.foreach_batch(
            good=connectors.foreach_batch("delta", path=state.table["path"]),
            quarantined=connectors.foreach_batch("delta", path=state.path("quarantine")),
            counts=connectors.foreach_batch("delta", path=state.path("counts")) if is_whole else None,
        )
        spark.range(first, first + 8).write.format("delta").mode("append").save(f"{tmp_path}/source")
        writer = spark.readStream.format("delta").load(f"{tmp_path}/source").writeStream.foreachBatch(sinks)
        writer.option("checkpointLocation", state.path("checkpoint")).trigger(availableNow=True).start().awaitTermination()
        assert state.reconciliation(spark).collect() == [(good // 3 * 4, good, 0, good // 3)]

    run(0, 6)
    run(8, 12)
    run(16, 12, is_whole=False)
    monkeypatch.setattr("connectors.workbench.versions._RECENT", 1)  # as a gate that takes long meets it
    for table in (state.table["path"], state.path("quarantine")):
        spark.sql(f"OPTIMIZE delta.`{table}`")
    run(24, 12, is_whole=False)
    spark.sql(f"DELETE FROM delta.`{state.table['path']}` WHERE id < 2")  # behind a batch that is not whole
    assert state.reconciliation(spark).collect() == [(16, 11, 0, 4)]


@pytest.mark.soak
@pytest.mark.spark
def test_slices_are_judged_with_their_pipeline_also_while_one_is_being_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, first: int, *, is_whole: bool = True) -> None:
        state = pipeline_in(tmp_path, name=name, checks='[{"expression": "id % 4 > 0"}]')
        sinks = state.checks.foreach_batch(
            good=connectors.foreach_batch("delta", state.table),
            quarantined=connectors.foreach_batch("delta", path=state.path("quarantine")),
            counts=connectors.foreach_batch("delta", path=state.path("counts")) if is_whole else None,
        )
        source = f"{tmp_path}/source_{name}"
        spark.range(first, first + 8).write.format("delta").mode("append").save(source)
        writer = spark.readStream.format("delta").load(source).writeStream.foreachBatch(sinks)
        writer.option("checkpointLocation", state.path("checkpoint")).trigger(availableNow=True).start().awaitTermination()

    run("p@2026-03-01", 0)
    run("p@2026-03-02", 8, is_whole=False)
    run("p", 16)
    run("p@2026-03-01", 24, is_whole=False)
    for name in ("p", "p@2026-03-01"):
        assert pipeline_in(tmp_path, name=name).reconciliation(spark).collect() == [(16, 12, 0, 4)]
    monkeypatch.setattr("connectors.workbench.versions._RECENT", 1)  # since the kill, others have written many versions
    run("p@2026-03-03", 40)
    assert pipeline_in(tmp_path).reconciliation(spark).collect() == [(24, 18, 0, 6)]


@pytest.mark.spark
def test_a_gate_before_the_first_batch_says_so(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"name +is p, which has recorded no batch in .*/p/counts. Run it first"):
        pipeline_in(tmp_path).reconciliation(spark)


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_letters_are_counted_wherever_the_folder_of_pipelines_is(spark: Any, tmp_path: Path, scheme: str) -> None:
    state = pipeline_in(f"{scheme}{tmp_path}")
    assert letter_count(spark, state.path("letters")) == 0
    (tmp_path / "p" / "letters").mkdir(parents=True)
    assert letter_count(spark, state.path("letters")) == 0
    pq.write_table(pa.Table.from_pylist([{"source": "s"}] * 3, DEAD_LETTERS), tmp_path / "p" / "letters" / "s-1.parquet")
    assert letter_count(spark, state.path("letters")) == 3

"""``connectors erase`` in Delta tables: which bytes it leaves there, and who goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.systems.delta.history import OWN
from connectors_tools.erasure import Erasure
from connectors_tools.erasure_places import place_of
from tests.delta_log import delta

from .test_erase import MARKER, counts, erase, files_with

KEPT = {"delta.dataSkippingNumIndexedCols": "0", "delta.enableChangeDataFeed": "true"}


@pytest.fixture
def plain_files(spark: Any) -> Iterator[Any]:
    """A session whose files have the bytes of their values."""
    conf = {
        "spark.sql.parquet.compression.codec": "none",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    yield spark
    for name in conf:
        spark.conf.unset(name)


def make_table(spark: Any, path: Path, vectors: bool = True, **properties: str) -> None:
    """Rows of three persons, in two files."""
    texts = {**KEPT, "delta.enableDeletionVectors": str(vectors).lower(), **properties}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in texts.items())
    spark.sql(f"CREATE TABLE delta.`{path}` (id bigint, user string) USING delta TBLPROPERTIES ({listed})")
    for start in (0, 10):
        rows = [(start + n, user) for n, user in enumerate(["Anna", MARKER, "Bo"])]
        spark.createDataFrame(rows, "id bigint, user string").coalesce(1).write.format("delta").mode("append").save(
            str(path)
        )


def users(spark: Any, path: Path) -> list[str]:
    return sorted(row.user for row in spark.read.format("delta").load(str(path)).collect())


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("vectors", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_no_file_of_a_delta_table_has_the_bytes_whatever_dies_on_the_way(
    plain_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    """The command dies before each statement that changes the table in turn, and the next call goes on."""
    make_table(plain_files, tmp_path, vectors)
    assert len(files_with(tmp_path)) == 2
    sql = type(plain_files).sql
    for statement in ("MERGE", "REORG", "VACUUM", "LITE") if vectors else ():

        def dying(spark: Any, text: str, *more: Any, statement: str = statement, **named: Any) -> Any:
            if statement in text:
                raise KeyboardInterrupt
            return sql(spark, text, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr(type(plain_files), "sql", dying)
            with pytest.raises(KeyboardInterrupt):
                list(place_of(f"delta:{tmp_path}")(Erasure({"user": MARKER}, 0.0)))
    if not vectors:
        (report,) = erase(f"delta:{tmp_path}", code=1)
        assert (report["found"], report["erased"]) == (2, 2)
        assert len(report["left"]) == 1
        assert "files with the rows, of earlier versions" in report["left"][0]
    assert files_with(tmp_path)
    assert users(plain_files, tmp_path) == ["Anna", "Anna", "Bo", "Bo"]
    assert counts(erase(f"delta:{tmp_path}", more=("--yes", "--retention", "0s"))) == [(0, 0)]
    assert files_with(tmp_path) == []
    assert files_with(tmp_path, "Anna")
    assert users(plain_files, tmp_path) == ["Anna", "Anna", "Bo", "Bo"]
    # Writers look for formats in the active session alone: it is still this one.
    plain_files.range(1).write.format("connectors.print").mode("append").save()


@pytest.mark.soak
@pytest.mark.spark
def test_the_statistics_in_the_log_of_a_table_are_left_and_named(plain_files: Any, tmp_path: Path) -> None:
    make_table(plain_files, tmp_path, **{"delta.dataSkippingNumIndexedCols": "32"})
    (report,) = erase(f"delta:{tmp_path}", code=1, more=("--yes", "--retention", "0s"))
    assert {Path(file).parent.name for file in files_with(tmp_path)} == {"_delta_log"}
    assert "lowest and highest values" in report["left"][0]


@pytest.mark.soak
@pytest.mark.spark
def test_files_of_a_writer_that_has_not_committed_stay_and_are_named(plain_files: Any, tmp_path: Path) -> None:
    make_table(plain_files, tmp_path / "table")
    rows = plain_files.createDataFrame([(100, MARKER), (101, "Cy")], "id bigint, user string")
    rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "under_way"))
    (own,) = (tmp_path / "under_way").glob("part-*.parquet")
    target = tmp_path / "table" / own.name
    own.rename(target)
    (report,) = erase(f"delta:{tmp_path}/table", code=1, more=("--yes", "--retention", "0s"))
    assert "1 file with the rows, of earlier versions or of writers" in report["left"][0]
    assert files_with(tmp_path / "table") == [target.name]


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize(("beside", "own"), [("deleted", ["_deleted_at"]), ("history", OWN)])
def test_what_a_merge_keeps_beside_a_table_goes_too(
    plain_files: Any, tmp_path: Path, beside: str, own: Sequence[str]
) -> None:
    make_table(plain_files, tmp_path / "t")
    path, columns = tmp_path / f"t_{beside}", ", ".join(f"current_timestamp() AS {name}" for name in own)
    plain_files.sql(
        f"CREATE TABLE delta.`{path}` USING delta TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0') "
        f"AS SELECT '{MARKER}' AS user, {columns}"
    )
    reports = erase(f"delta:{tmp_path}/t", more=("--yes", "--retention", "0s"))
    assert counts(reports) == [(2, 2), (1, 1)]
    assert files_with(tmp_path) == []
    other = erase(f"delta:{tmp_path}/t", key="id=0", code=1, more=("--yes", "--retention", "0s"))
    assert counts(other) == [(1, 1), (None, 0)]
    assert "nobody can tell its rows by id" in other[1]["left"][0]


@pytest.mark.spark
def test_a_value_of_another_type_is_no_silent_miss(plain_files: Any, tmp_path: Path) -> None:
    make_table(plain_files, tmp_path / "t")
    for key, text in (("id=0.6", "not of the type"), ("id=x", "not of the type"), ("nobody=1", "nobody can tell")):
        (report,) = erase(f"delta:{tmp_path}/t", key=key, code=1)
        assert report["found"] is None
        assert text in report["left"][0]
    (report,) = erase(f"delta:{tmp_path}/none", code=1)
    assert "there is no Delta table" in report["left"][0]
    assert len(users(plain_files, tmp_path / "t")) == 6


@pytest.mark.soak
@pytest.mark.spark
def test_a_query_goes_on_that_appends_to_the_table_meanwhile(plain_files: Any, tmp_path: Path) -> None:
    make_table(plain_files, tmp_path / "t", **{"delta.enableChangeDataFeed": "false"})
    reader = plain_files.readStream.format("connectors.sequence").options(end=20, maxRowsPerTrigger=5).load()
    rows = reader.selectExpr("value + 1000 AS id", f"if(value % 5 = 0, '{MARKER}', 'Di') AS user")
    writer = rows.writeStream.foreachBatch(connectors.foreach_batch("delta", path=f"{tmp_path}/t"))
    query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(processingTime="12 seconds").start()
    erased, batches = 0, [-1]
    while batches[-1] < 3:
        assert query.isActive
        (report,) = place_of(f"delta:{tmp_path}/t")(Erasure({"user": MARKER}, 0.0))
        erased += report.erased
        batches.append(query.lastProgress["batchId"] if query.lastProgress else -1)
    query.stop()
    assert query.exception() is None
    assert len(set(batches)) > 2  # it wrote between and while rows were erased
    (last,) = erase(f"delta:{tmp_path}/t", more=("--yes", "--retention", "0s"))
    assert erased + last["erased"] == 2 + 20 // 5
    ids = [row["id"] for row in delta(tmp_path / "t").to_pylist() if row["id"] >= 1000]
    assert sorted(ids) == [1000 + number for number in range(1, 21) if number % 5]
    assert files_with(tmp_path / "t") == []


@pytest.mark.soak
@pytest.mark.spark
def test_a_collation_makes_no_person_of_two(spark: Any, tmp_path: Path) -> None:
    """Databricks has collations in Delta tables; elsewhere Delta has them without its check."""
    spark.conf.set("spark.databricks.delta.schema.typeCheck.enabled", "false")
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` (id int, user string COLLATE UTF8_LCASE) USING delta")
    spark.sql(f"INSERT INTO delta.`{tmp_path}` VALUES (1, 'anna'), (2, 'Anna'), (3, 'Bo')")
    (report,) = erase(f"delta:{tmp_path}", key="user=anna", code=1)
    assert "takes other values of user for equal too" in report["left"][0]
    assert users(spark, tmp_path) == ["Anna", "Bo", "anna"]
    spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id = 2")
    assert counts(erase(f"delta:{tmp_path}", key="user=anna", code=1)) == [(1, 1)]
    assert users(spark, tmp_path) == ["Bo"]

"""A batch that is committed comes again with other rows: what ``foreach_batch`` sees of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import connectors
from connectors.core import Batch, CommitRefused, Fatal


@pytest.mark.parametrize("system", ["buffered", "files"])
def test_another_number_of_rows_is_refused(spark: Any, tmp_path: Path, system: str) -> None:
    sink: Any = connectors.foreach_batch(system, {"path": str(tmp_path / "out")})
    sink.write(spark.range(3), Batch("sink", "query", 0))
    sink.write(spark.range(3), Batch("sink", "query", 0))
    with pytest.raises(CommitRefused, match="is committed with 3 rows, its replay has 2"):
        sink.write(spark.range(2), Batch("sink", "query", 0))


def test_other_rows_are_refused_where_a_checksum_is_kept(spark: Any, tmp_path: Path) -> None:
    sink: Any = connectors.foreach_batch("buffered", {"path": str(tmp_path / "out")})
    sink.write(spark.range(3), Batch("sink", "query", 0))
    with pytest.raises(CommitRefused, match="the same number of rows with other contents"):
        sink.write(spark.range(3, 6), Batch("sink", "query", 0))


@pytest.mark.parametrize(("system", "measure"), [("buffered", "measured"), ("files", "counted")])
def test_a_batch_that_spark_has_counted_as_empty_and_its_tasks_have_not_is_an_error(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, measure: str
) -> None:
    sink: Any = connectors.foreach_batch(system, {"path": str(tmp_path / "out")})
    nothing = SimpleNamespace(rows=0, checksum=None)
    monkeypatch.setattr(f"connectors.spark.foreach_batch.{measure}", lambda frame: (frame, nothing))
    with pytest.raises(Fatal, match="the tasks of batch 0 of query query have staged 3 rows, and Spark has counted none"):
        sink.write(spark.range(3), Batch("sink", "query", 0))
    monkeypatch.undo()
    sink.write(spark.range(3), Batch("sink", "query", 0))
    assert len([file for file in (tmp_path / "out").rglob("part-*") if ".connectors" not in file.parts]) > 0


OTHER_ROWS = {
    "rows that are twice the same": ("VALUES (1), (1) AS t(a)", "VALUES (2), (2) AS t(a)"),
    "a null in another column": ("VALUES (1, null) AS t(a, b)", "VALUES (null, 1) AS t(a, b)"),
    "a null inside an array": ("VALUES (array(null, 1)) AS t(a)", "VALUES (array(1, null)) AS t(a)"),
    "a null inside a struct": (
        "VALUES (named_struct('x', 1, 'y', null)) AS t(a)",
        "VALUES (named_struct('x', null, 'y', 1)) AS t(a)",
    ),
}


@pytest.mark.parametrize("case", OTHER_ROWS)
def test_rows_that_differ_only_in_nulls_or_repetitions_are_refused(spark: Any, tmp_path: Path, case: str) -> None:
    first, second = (spark.sql(f"SELECT * FROM {values}") for values in OTHER_ROWS[case])
    sink: Any = connectors.foreach_batch("buffered", {"path": str(tmp_path / "out")})
    sink.write(first, Batch("sink", "query", 0))
    sink.write(first, Batch("sink", "query", 0))
    with pytest.raises(CommitRefused, match="the same number of rows with other contents"):
        sink.write(second, Batch("sink", "query", 0))

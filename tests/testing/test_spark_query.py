"""The streaming query of the suites on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing import same_records
from connectors.testing.spark_suites import spark_query
from tests.systems.reference_contexts import BufferedContext


def test_a_query_killed_while_it_wrote_its_first_offset_begins_again(spark: Any, tmp_path: Path) -> None:
    target = BufferedContext(tmp_path / "system")
    query = spark_query(target, tmp_path, "foreach_batch", rows=10)
    half = Path(query.checkpoint, "offsets", ".0.5e5b3fa2-8a4e-4f2b-9f0a-0c8c2f3f6f11.tmp")
    half.parent.mkdir(parents=True)
    half.touch()
    query.run(spark)
    same_records([target.row(number) for number in range(1, 11)], target.rows())


def test_a_folder_of_offsets_that_holds_some_stays_as_it_is(spark: Any, tmp_path: Path) -> None:
    query = spark_query(BufferedContext(tmp_path / "system"), tmp_path, "foreach_batch", rows=10)
    query.run(spark)
    before = sorted(Path(query.checkpoint, "offsets").iterdir())
    query.source_options["end"] = "20"
    query.run(spark)
    assert set(before) <= set(Path(query.checkpoint, "offsets").iterdir())


def test_without_that_spark_refuses(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = spark_query(BufferedContext(tmp_path / "system"), tmp_path, "foreach_batch", rows=10)
    monkeypatch.setattr(query, "_remove_half_an_offset", lambda: None)
    Path(query.checkpoint, "offsets").mkdir(parents=True)
    Path(query.checkpoint, "offsets", ".0.tmp").touch()
    with pytest.raises(Exception, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        query.run(spark)

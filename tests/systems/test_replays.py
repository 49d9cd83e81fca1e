"""A batch that is committed comes again with other rows: what ``foreach_batch`` sees of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.core import Batch, CommitRefused


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

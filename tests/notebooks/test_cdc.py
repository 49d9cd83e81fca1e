"""A Delta table that follows PostgreSQL, by the notebook ``cdc``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_both_tables_are_equal_after_a_killed_connector_and_a_crashed_database(spark: Any, tmp_path: Path) -> None:
    execution = Execution("cdc", spark, tmp_path, {"orders": "200"})
    assert execution.exit().startswith(f"{execution.exit().split()[0]} orders equal in PostgreSQL and Delta")
    assert execution.pictures() == 1

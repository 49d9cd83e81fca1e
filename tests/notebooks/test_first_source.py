"""Sources that are functions, and rows that a killed driver has copied once, by the notebook ``first_source``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core.simple import DECLARED

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.fixture
def own_sources() -> Iterator[None]:
    """What the notebook declares is forgotten after the test."""
    before = dict(DECLARED)
    yield
    DECLARED.clear()
    DECLARED.update(before)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.usefixtures("foreign_files", "own_sources")
def test_a_killed_driver_doubles_rows_that_are_appended_and_none_that_are_buffered(spark: Any, tmp_path: Path) -> None:
    execution = Execution("first_source", spark, tmp_path, {"rows": "600"})
    assert execution.exit().startswith("600 rows once; appending doubled ")
    assert execution.pictures() == 1

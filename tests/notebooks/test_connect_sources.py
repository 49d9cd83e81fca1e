"""An API by one connector while its stations come and go, by the notebook ``connect_sources``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.usefixtures("foreign_files")
def test_every_station_is_copied_once_and_tasks_are_dealt_out_anew(spark: Any, tmp_path: Path) -> None:
    execution = Execution("connect_sources", spark, tmp_path, {"tick": "0.1"})
    assert execution.exit() == "5 stations, each reading once; dealt out 3 times"
    assert execution.pictures() == 1

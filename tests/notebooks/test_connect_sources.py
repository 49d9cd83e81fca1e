"""Connectors of Connect's model that a notebook defines: ``connect_sources`` and ``connect_sink``."""

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


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
def test_payments_of_a_replayed_batch_are_added_once(spark: Any, tmp_path: Path) -> None:
    execution = Execution("connect_sink", spark, tmp_path, {"payments": "600"})
    assert execution.exit() == "600 cents paid once; without offsets 200 twice"
    assert execution.pictures() == 1

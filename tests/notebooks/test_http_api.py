"""Orders of a REST API into Delta, by the notebook ``http_api``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import ApiService
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.soak  # its parts have tests of their own
@pytest.mark.usefixtures("foreign_files")
def test_each_state_of_an_order_is_read_once(spark: Any, tmp_path: Path) -> None:
    required(ApiService).forget()
    execution = Execution("http_api", spark, tmp_path, {"orders": "400"})
    assert execution.exit() == "460 states of 400 orders, each once; the loop lost 4 and doubled 100"
    assert execution.pictures() == 1

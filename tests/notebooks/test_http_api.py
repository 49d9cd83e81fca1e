"""Orders of a REST API into Delta, and calls that come once, by the notebook ``http_api``."""

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
def test_each_state_of_an_order_is_read_once_and_each_call_comes_once(spark: Any, tmp_path: Path) -> None:
    required(ApiService).forget()
    execution = Execution("http_api", spark, tmp_path, {"orders": "400"})
    assert execution.exit() == "415 states of 405 orders once; the loop lost 3 and doubled 100; 11 calls once, 22 without keys"
    assert execution.pictures() == 1

"""The newest state of each device in DynamoDB, by the notebook ``dynamodb``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import MotoServer
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.soak  # its parts have tests of their own
@pytest.mark.usefixtures("foreign_files")
def test_each_device_has_its_newest_reading_and_other_tables_stay(spark: Any, tmp_path: Path) -> None:
    client = required(MotoServer).client("dynamodb")
    before = client.list_tables()["TableNames"]
    execution = Execution("dynamodb", spark, tmp_path, {"readings": "2000"})
    assert execution.exit().startswith("200 devices as they were measured last; a loop left ")
    assert execution.pictures() == 1
    assert client.list_tables()["TableNames"] == before

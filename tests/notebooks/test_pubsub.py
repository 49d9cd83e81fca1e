"""A subscription into Delta and warnings to a topic, by the notebook ``pubsub``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import PubSubServer
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.soak  # its consumer is slow on purpose
@pytest.mark.server
@pytest.mark.usefixtures("foreign_files")
def test_each_measurement_is_read_once(spark: Any, tmp_path: Path) -> None:
    endpoint = required(PubSubServer).endpoint
    execution = Execution("pubsub", spark, tmp_path, {"endpoint": endpoint, "messages": "1200"})
    assert execution.exit().startswith("1,200 measurements once; ")
    assert execution.pictures() == 1

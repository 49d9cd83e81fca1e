"""The job that writes and reads an event hub, with a broker on this machine in its place."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import KafkaServer
from tests.servers import required

from .quickstart import run
from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_an_event_that_is_too_large_is_a_dead_letter_and_the_others_are_read(spark: Any, tmp_path: Path) -> None:
    required(KafkaServer)
    execution = Execution("event_hubs", spark, tmp_path, {"events": "600", "event_hub": f"readings-{uuid.uuid4().hex[:8]}"})
    assert execution.exit() == "600 = 599 read + 1 too large"
    assert execution.pictures() == 1


@pytest.mark.soak
def test_every_event_is_read_or_was_too_large(tmp_path: Path) -> None:
    code, output = run("event_hubs", {"workdir": str(tmp_path)})
    assert code == 0, output
    assert "5,000 = 4,995 read + 5 too large" in output

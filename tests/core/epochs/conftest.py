"""The queue of the tests of epochs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.contexts import open_context
from tests.systems.reference_contexts import QueueContext


@pytest.fixture
def system(tmp_path: Path) -> Iterator[QueueContext]:
    with open_context(QueueContext, tmp_path / "system") as context:
        yield context
        for planner in context.planners:
            planner.close()

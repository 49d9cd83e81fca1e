"""A topic to write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from .sink_target import Target


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)

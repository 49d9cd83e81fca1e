"""A system of parts, described one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.contexts import open_context

from .contexts import Parts


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    with open_context(Parts, tmp_path / "system") as system:
        yield system
        for planner in system.planners:
            planner.close()

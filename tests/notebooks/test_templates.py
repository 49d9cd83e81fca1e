"""The templates, run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from .quickstart import run


@pytest.mark.soak
def test_the_templates_run_as_they_are(tmp_path: Path) -> None:
    code, output = run("templates", {"workdir": str(tmp_path)})
    assert code == 0, output
    assert "1,000 rows = 990 delivered + 10 quarantined" in output

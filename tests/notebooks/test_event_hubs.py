"""The job that writes and reads an event hub, with a broker on this machine in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from .quickstart import run


@pytest.mark.soak
def test_every_event_is_read_or_was_too_large(tmp_path: Path) -> None:
    code, output = run("event_hubs", {"workdir": str(tmp_path)})
    assert code == 0, output
    assert "5,000 = 4,999 read + 1 too large" in output

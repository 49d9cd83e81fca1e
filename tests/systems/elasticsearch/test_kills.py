"""Drivers that write documents with ids are killed; then the index is compared, document by document."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.testing import SinkContext
from connectors.testing.kills import Kills

from .contexts import IndexContext, UpsertContext


def targets(folder: Path) -> dict[str, tuple[SinkContext, str]]:
    made: dict[str, tuple[SinkContext, str]] = {}
    for name, kind, carrier in (("index", IndexContext, "format"), ("upsert", UpsertContext, "foreach_batch")):
        (folder / name).mkdir(parents=True)
        made[name] = (kind(folder / name), carrier)
    return made


@pytest.mark.soak
def test_many_killed_drivers_lose_and_double_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = min(100, int(os.environ.get("KILLS", "100")))
    kills = Kills(tmp_path, targets(tmp_path / "targets"), seed=int(os.environ.get("SEED", "1")))
    kills.run(count)
    killed = sum("killed" in round_ for round_ in kills.told)
    with capsys.disabled():
        print(f"\n{killed} of {count} drivers killed, 2 indices, {40 * count} documents each: none lost, none doubled")

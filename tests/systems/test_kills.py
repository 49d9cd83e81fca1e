"""Drivers that write to all reference sinks at once are killed; then every row is compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.testing import SinkContext
from connectors.testing.kills import Kills

from .reference_contexts import BufferedContext, FilesContext, LinesContext

TARGETS = (
    (BufferedContext, "foreach_batch"),
    (BufferedContext, "format"),
    (FilesContext, "foreach_batch"),
    (LinesContext, "format"),
)


def reference_targets(folder: Path) -> dict[str, tuple[SinkContext, str]]:
    targets: dict[str, tuple[SinkContext, str]] = {}
    for kind, carrier in TARGETS:
        name = f"{kind.sink.name}_{carrier}"
        (folder / name).mkdir(parents=True)
        targets[name] = (kind(folder / name), carrier)
    return targets


def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    kills = Kills(tmp_path, reference_targets(tmp_path / "targets"), seed=3)
    kills.run(3)
    assert any("killed" in round_ for round_ in kills.told), kills.told


@pytest.mark.soak
def test_many_killed_drivers_lose_and_double_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = int(os.environ.get("KILLS", "200"))
    kills = Kills(tmp_path, reference_targets(tmp_path / "targets"), seed=int(os.environ.get("SEED", "1")))
    kills.run(count)
    killed = sum("killed" in round_ for round_ in kills.told)
    with capsys.disabled():
        print(f"\n{killed} of {count} drivers killed, {len(TARGETS)} targets, {40 * count} rows each: none lost, none doubled")

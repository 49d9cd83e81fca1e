"""Drivers that use several systems at once are killed; then every row is compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .pipelines import SOME, SYSTEMS, killed


@pytest.mark.long
def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    with killed(SOME, tmp_path, seed=3) as kills:
        kills.run(2)
    assert any("killed" in line for line in kills.report), kills.report


@pytest.mark.soak
@pytest.mark.parametrize("system", SYSTEMS)
def test_many_killed_drivers_lose_and_double_nothing(
    tmp_path: Path, system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = int(os.environ.get("KILLS", "200"))
    count = wanted if system == "reference" else min(100, wanted)
    with killed(SYSTEMS[system], tmp_path, int(os.environ.get("SEED", "1"))) as kills:
        kills.run(count)
    died = sum("killed" in line for line in kills.report)
    with capsys.disabled():
        print("\n", *(line for line in kills.report if "of itself" in line), sep="\n")
        print(f"{system}: {died} of {count} drivers killed, {len(kills.targets)} queries each, nothing lost, nothing doubled")

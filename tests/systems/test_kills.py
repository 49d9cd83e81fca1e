"""Drivers that use several systems at once are killed; then every row is compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.core.epoch_source import EpochLogSource
from connectors.testing.environments import ENVIRONMENTS

from .pipelines import QUEUES, REFERENCE, killed, kills_of_systems

PIPELINES = {"reference": REFERENCE, "queues": QUEUES, **{name: kills.PIPELINES for name, kills in kills_of_systems().items()}}
QUICK = {name: kills.PIPELINES[name] for kills in kills_of_systems().values() for name in kills.QUICK}


@pytest.mark.long
def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    with killed(QUICK, tmp_path, seed=3) as kills:
        kills.run(2)
    assert any("killed" in line for line in kills.report), kills.report


@pytest.mark.soak
@pytest.mark.parametrize("system", PIPELINES)
def test_many_killed_drivers_lose_and_double_nothing(
    tmp_path: Path, system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    count = int(os.environ.get("KILLS", "200"))
    has_epochs = all(issubclass(source.source, EpochLogSource) for *_, source in PIPELINES[system].values() if source)
    if system != "reference" and not has_epochs:
        count = min(100, count)
    with killed(PIPELINES[system], tmp_path, int(os.environ.get("SEED", "1"))) as kills:
        if has_epochs:
            kills.environments = getattr(kills_of_systems().get(system), "ENVIRONMENTS", ENVIRONMENTS)
        kills.run(count)
    died = sum("killed" in line for line in kills.report)
    with capsys.disabled():
        print("\n", *(line for line in kills.report if "of itself" in line), sep="\n")
        print(f"{system}: {died} of {count} drivers killed, {len(kills.targets)} queries each, nothing lost, nothing doubled")

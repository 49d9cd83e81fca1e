"""Drivers that use several systems at once are killed; then every row is compared."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from connectors.core.epoch_source import EpochLogSource
from connectors.testing.environments import ENVIRONMENTS
from connectors.testing.kills import OUTCOMES

from .pipelines import REFERENCE, killed, kills_of_systems, queues

PIPELINES = {"reference": REFERENCE, "queues": queues()}
for system, kills in kills_of_systems().items():
    others = {name: pipeline for name, pipeline in kills.PIPELINES.items() if pipeline not in PIPELINES["queues"].values()}
    if others:
        PIPELINES[system] = others
QUICK = {name: kills.PIPELINES[name] for kills in kills_of_systems().values() for name in kills.QUICK}


@pytest.mark.long
def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    with killed(QUICK, tmp_path, seed=3) as kills:
        kills.run(1)
    assert any("driver killed" in line for line in kills.report), kills.report


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
            kills.environments = ENVIRONMENTS
        kills.run(count)
    outcomes = Counter(outcome for line in kills.report for outcome in OUTCOMES if outcome in line)
    with capsys.disabled():
        print("\n", *(line for line in kills.report if "of itself" in line), sep="\n")
        print(f"{system}: {count} rounds of {len(kills.targets)} queries each, nothing lost, nothing doubled: {dict(outcomes)}")

"""Drivers that use several systems at once are killed; then every row is compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.testing.environments import CLUSTER, CONNECT, LOCAL

from ..evidence import DRIVERS, evidence
from .pipelines import groups, killed, kills_of_systems

GROUPS = groups()
TURNS = (LOCAL, LOCAL, LOCAL, CLUSTER, LOCAL, LOCAL, LOCAL, CONNECT)
ELSEWHERE = ("streams", "requests")
"""The groups that are killed on a cluster and on a server of Spark Connect, too."""
COUNT = int(os.environ.get("KILLS", "80"))
QUICK = {name: kills.PIPELINES[name] for kills in kills_of_systems().values() for name in kills.QUICK}


@pytest.mark.long
def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    with killed(QUICK, tmp_path, seed=3) as kills:
        kills.run(1)
    assert any("driver killed" in line for line in kills.report), kills.report


def evidence_of(group: str) -> list[tuple[str, str, int]]:
    ends = [end for query in GROUPS[group].values() for end in (query.sink, query.source) if end is not None]
    return evidence(ends, DRIVERS, COUNT)


@pytest.mark.soak
@pytest.mark.evidence(of=evidence_of)
@pytest.mark.parametrize("group", GROUPS)
def test_many_killed_drivers_lose_and_double_nothing(
    tmp_path: Path, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipelines = GROUPS[group]
    with killed(pipelines, tmp_path, int(os.environ.get("SEED", "1"))) as kills:
        if group in ELSEWHERE:
            kills.environments = TURNS
        with capsys.disabled():
            for start in range(0, COUNT, 20):
                kills.run(min(20, COUNT - start))
                print(f"\n{group}: {len(pipelines)} queries: nothing lost, nothing doubled: {dict(kills.outcomes)}")

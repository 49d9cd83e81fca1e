"""The main job: what it delivers, what a second run adds, and what kills of it leave."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .quickstart import DAMAGE, data, results, run_job

pytestmark = pytest.mark.long

ROWS = 20_000


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("undisturbed")
    code, output = run_job(workdir, ROWS)
    assert code == 0, output
    return workdir


def test_every_line_is_in_exactly_one_place(undisturbed: Path) -> None:
    found = results(data(undisturbed, ROWS))
    assert len(found["dead_letters"]) == DAMAGE
    assert len(found["flights"]) + len(found["quarantine"]) + DAMAGE == ROWS
    assert sum(row["flights_sum"] for row in found["delays"]) == len(found["flights"])
    assert sum(row[1] for row in found["totals"]) == len(found["flights"])
    assert len({row["id"] for row in found["flights"]}) == len(found["flights"])


def test_the_run_leaves_reports_and_pictures(undisturbed: Path) -> None:
    reports = {file.name for file in (data(undisturbed, ROWS) / "reports").iterdir()}
    assert {"flights.html", "daily_delays.html", "reconciliation.html"} <= reports
    assert {"delay_by_hour_and_carrier.png", "delay_by_day.png", "micro_batches.png"} <= reports


def test_a_second_run_adds_nothing(undisturbed: Path) -> None:
    before = results(data(undisturbed, ROWS))
    code, output = run_job(undisturbed, ROWS)
    assert code == 0, output
    assert [line.split()[0] for line in output.splitlines() if line.endswith("nothing new")] == ["prepare", "ingest", "deliver"]
    assert results(data(undisturbed, ROWS)) == before


def test_a_killed_run_is_finished_by_the_next_ones(undisturbed: Path, tmp_path: Path) -> None:
    root = data(tmp_path, ROWS)
    moments = ("flights/_delta_log/*2.json", "daily_delays/.connectors/*/stage/*/*")
    _kill_at(moments, tmp_path, root, ROWS, random.Random(7))
    assert_same(results(data(undisturbed, ROWS)), results(root))


@pytest.mark.soak
def test_all_flights_survive_many_kills(tmp_path: Path) -> None:
    workdir = tmp_path / "undisturbed"
    code, output = run_job(workdir, 0)
    assert code == 0, output
    chance = random.Random(int(os.environ.get("SEED", "1")))
    moments = (
        "checkpoints/ingest/offsets/1",
        "flights/_delta_log/*3.json",
        "quarantine/_delta_log/*7.json",
        "flights/_delta_log/*11.json",
        "checkpoints/deliver/offsets/0",
        "daily_delays/.connectors/*/stage/*/*",
        "daily_delays/.connectors/*/ledger/*/*.json",
        "checkpoints/totals/offsets/0",
    )
    _kill_at(moments, tmp_path / "killed", data(tmp_path / "killed", 0), 0, chance)
    assert_same(results(data(workdir, 0)), results(data(tmp_path / "killed", 0)))


def _kill_at(moments: tuple[str, ...], workdir: Path, root: Path, rows: int, chance: random.Random) -> None:
    """Kills a run at each of ``moments``: soon after a file appears under ``root``. The last run is left alone."""
    for moment in moments:
        code, output = run_job(workdir, rows, _appears(root, moment, chance))
        assert code == -9, f"not killed at {moment}:\n{output}"
    code, output = run_job(workdir, rows)
    assert code == 0, output


def _appears(root: Path, pattern: str, chance: random.Random) -> Callable[[], bool]:
    before = set(root.glob(pattern))
    waits = [chance.randrange(20)]  # looks that pass between the file and the kill

    def new() -> bool:
        if set(root.glob(pattern)) - before:
            waits[0] -= 1
        return waits[0] < 0

    return new


def assert_same(expected: dict[str, list[Any]], found: dict[str, list[Any]]) -> None:
    for name, rows in expected.items():
        assert len(found[name]) == len(rows), f"{name}: {len(found[name])} rows instead of {len(rows)}"
        wrong = [(row, other) for row, other in zip(rows, found[name], strict=True) if row != other]
        assert not wrong, f"{name}: {len(wrong)} rows differ, for example {wrong[0]}"

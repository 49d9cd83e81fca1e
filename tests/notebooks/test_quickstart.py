"""The main job: killed it delivers what its input says, all of it once; and a second run adds nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors_tools.bundle.execution import CellFailure

from .quickstart import DAMAGE, data, results, run_job
from .quickstart_expected import expected
from .test_files_databases_search import Execution

pytestmark = pytest.mark.long

ROWS = 12_000
OUTPUT = "output.txt"
"""What the run after the kill has printed."""
FOREIGN = ("notes.txt", "arrivals/EWR.jsonl", f"rows_{ROWS}_damage_{DAMAGE}/notes.txt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that was killed while it delivered, and then left alone."""
    workdir = tmp_path_factory.mktemp("quickstart")
    for name in FOREIGN:
        (workdir / name).parent.mkdir(exist_ok=True)
        (workdir / name).write_text(name)
    output = _kill_at(("daily_delays/.connectors/*/stage/*/*",), workdir, ROWS, random.Random(7))
    (workdir / OUTPUT).write_text(output)
    return workdir


@pytest.mark.soak
def test_a_killed_job_delivers_everything_once(finished: Path) -> None:
    root = data(finished, ROWS)
    assert len(results(root)["dead_letters"]) == DAMAGE
    assert_same_as_the_input(root, ROWS)


def test_a_run_after_a_kill_does_again_only_what_was_not_done(finished: Path) -> None:
    assert _without_news((finished / OUTPUT).read_text()) == ["prepare", "ingest"]


def test_the_run_leaves_reports_and_pictures(finished: Path) -> None:
    reports = {file.name for file in (data(finished, ROWS) / "reports").iterdir()}
    assert {"flights.html", "daily_delays.html", "reconciliation.html"} <= reports
    assert {"delay_by_hour_and_carrier.png", "delay_by_day.png", "micro_batches.png"} <= reports


def test_files_of_somebody_else_stay(finished: Path) -> None:
    assert [(finished / name).read_text() for name in FOREIGN] == list(FOREIGN)


def test_the_first_notebook_shows_rows_that_a_replay_doubles_and_rows_that_it_does_not(finished: Path) -> None:
    proof = data(finished, ROWS) / "proof"
    doubled, once = (_rows_of_files(proof / name) for name in ("append", "files"))
    assert once == ROWS < doubled


@pytest.mark.spark
def test_lines_of_somebody_else_in_a_file_of_arrivals_stay(spark: Any, tmp_path: Path) -> None:
    arrivals = tmp_path / "workdir" / f"rows_100_damage_{DAMAGE}" / "arrivals" / "EWR.jsonl"
    arrivals.parent.mkdir(parents=True)
    arrivals.write_text("42\n")
    (tmp_path / "quickstart").mkdir()
    failure = Execution("quickstart/prepare", spark, tmp_path, {"rows": "100", "damage": str(DAMAGE)}).result
    assert isinstance(failure, CellFailure)
    assert "holds other lines; it is left as it is" in str(failure.error)
    assert arrivals.read_text() == "42\n"


@pytest.mark.soak
def test_a_second_run_adds_nothing(finished: Path) -> None:
    code, output = run_job(finished, ROWS)
    assert code == 0, output
    assert _without_news(output) == ["prepare", "ingest", "deliver"]
    assert_same_as_the_input(data(finished, ROWS), ROWS)


@pytest.mark.soak
def test_all_flights_survive_many_kills(tmp_path: Path) -> None:
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
    _kill_at(moments, tmp_path, 0, chance)
    assert_same_as_the_input(data(tmp_path, 0), 336_776)


def _without_news(output: str) -> list[str]:
    """The tasks that had nothing new to do."""
    return [line.split()[0] for line in output.splitlines() if line.endswith("nothing new")]


def _rows_of_files(folder: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("part-*.parquet"))


def _kill_at(moments: tuple[str, ...], workdir: Path, rows: int, chance: random.Random) -> str:
    """Kills a run at each of ``moments``: soon after a file appears in its data.

    The last run is left alone; its output is returned.
    """
    for moment in moments:
        code, output = run_job(workdir, rows, _appears(data(workdir, rows), moment, chance))
        assert code == -9, f"not killed at {moment}:\n{output}"
    code, output = run_job(workdir, rows)
    assert code == 0, output
    return output


def _appears(root: Path, pattern: str, chance: random.Random) -> Callable[[], bool]:
    before = set(root.glob(pattern))
    waits = [chance.randrange(20)]  # looks that pass between the file and the kill

    def new() -> bool:
        if set(root.glob(pattern)) - before:
            waits[0] -= 1
        return waits[0] < 0

    return new


def assert_same_as_the_input(root: Path, lines: int) -> None:
    actual, reference = results(root), expected(root / "arrivals")
    assert sum(len(reference[name]) for name in ("flights", "quarantine", "dead_letters")) == lines
    for name, rows in reference.items():
        assert len(actual[name]) == len(rows), f"{name}: {len(actual[name])} rows instead of {len(rows)}"
        wrong = [(row, other) for row, other in zip(rows, actual[name], strict=True) if row != other]
        assert not wrong, f"{name}: {len(wrong)} rows differ, for example {wrong[0]}"

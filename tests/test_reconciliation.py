"""Bad records of six kinds, an outage and kills in one run: every line of the input is in exactly one place, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors.testing import FailureInjector
from connectors.testing.faults import Action, Point

from .pipeline import kind_of, line

ROOT = Path(__file__).parents[1]
KILLS = (Point.TASK_STAGED, Point.COMMIT_AFTER)
LONG = (Point.TASK_ROW, Point.TASK_STAGED, Point.COMMIT_BEFORE, Point.RECORDED, Point.PUBLISHED, Point.COMMIT_AFTER) * 5


def run(folder: Path, rows: int) -> tuple[int, str]:
    paths = os.pathsep.join([str(ROOT / "lib"), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "-m", "tests.pipeline", str(folder), str(rows)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return result.returncode, result.stdout[-4000:]


def letters(folder: Path) -> Iterator[dict[str, Any]]:
    for file in folder.glob("*.parquet"):
        yield from pq.ParquetFile(file).read().to_pylist()


def lines(folder: Path) -> list[str]:
    return [text for file in folder.glob("part-*") for text in file.read_text().splitlines()]


def places(root: Path) -> dict[str, list[str]]:
    """What is in each place, as text that says which line it was."""
    return {
        "good": lines(root / "good"),
        "quarantined": [str(json.loads(text)["id"]) for text in lines(root / "quarantined")],
        "refused": [json.loads(row["record"])["value"] for row in letters(root / "refused")],
        "bad": [row["record"].decode(errors="replace") for row in letters(root / "unreadable")],
    }


def expected(rows: int) -> dict[str, list[str]]:
    lines_of: dict[str, list[str]] = {"good": [], "quarantined": [], "refused": [], "bad": []}
    for number in range(1, rows + 1):
        kind = kind_of(number)
        if kind == "bad":
            lines_of[kind].append(line(number).decode(errors="replace"))
        elif kind == "quarantined":
            lines_of[kind].append(str(-number))
        else:
            lines_of[kind].append(f"{number} {json.loads(line(number))['name']}")
    return lines_of


def interrupted(folder: Path, rows: int, kills: tuple[Point, ...]) -> None:
    """Kills a run at each of these points, with an outage in between; the last run is left alone."""
    injector = FailureInjector(folder / "faults")
    for number, point in enumerate(kills):
        injector.arm(point, Action.KILL)
        injector.arm(Point.RECORDED if number % 2 else Point.TASK_ROW, Action.OUTAGE, times=2)
        code, output = run(folder, rows)
        assert code == -9, output
        injector.disarm()
    code, output = run(folder, rows)
    assert code == 0, output


def assert_reconciled(folder: Path, rows: int) -> None:
    actual, due = places(folder), expected(rows)
    table = {place: len(texts) for place, texts in actual.items()}
    assert sum(table.values()) == rows, table
    for place, texts in due.items():
        assert Counter(actual[place]) == Counter(texts), place


@pytest.mark.spark
@pytest.mark.soak
def test_good_and_dead_and_quarantined_are_the_input(tmp_path: Path) -> None:
    interrupted(tmp_path, 6000, KILLS)
    assert_reconciled(tmp_path, 6000)


@pytest.mark.soak
def test_good_and_dead_and_quarantined_are_the_input_after_many_kills(tmp_path: Path) -> None:
    interrupted(tmp_path, 30_000, LONG)
    assert_reconciled(tmp_path, 30_000)

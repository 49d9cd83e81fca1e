"""Read limits and shares of tasks: fair, and nothing stands still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.core.planning import INITIAL
from connectors.ground.state import dumps
from connectors.systems.file_stream import source

from .following import Query, append


def test_the_limit_is_shared_fairly(query: Any, tmp_path: Path) -> None:
    for name in "abc":
        append(tmp_path / f"{name}.log", "12345678\n" * 100)
    append(tmp_path / "small.log", "1\n")
    reading = query(maxBytesPerTrigger="272").reading()
    rows = reading.next([]) or []
    count = {name: sum(Path(row["filename"]).name == f"{name}.log" for row in rows) for name in ("a", "b", "c", "small")}
    assert count == {"a": 10, "b": 10, "c": 10, "small": 1}


def test_a_line_larger_than_the_limit_moves_on(query: Any, tmp_path: Path) -> None:
    append(tmp_path / "a.log", "x" * 100 + "\nshort\n")
    following = query(maxBytesPerTrigger="10")
    assert [len(row["value"]) for row in following.reading().next(following.log) or []] == [100]
    assert following.rest() == ["short"]


def test_a_limit_below_the_number_of_files_moves_on(query: Any, tmp_path: Path) -> None:
    for number in range(10):
        append(tmp_path / f"{number}.log", "line\n")
    following = query(maxBytesPerTrigger="3")
    assert len(following.reading().next(following.log) or []) == 3
    assert len(following.rest()) == 7


def test_the_offset_of_a_hundred_files_stays_small(query: Any, tmp_path: Path) -> None:
    for number in range(100):
        append(tmp_path / f"{number}.log", "line\n" * 1000)
    following = query()
    assert len(following.rest()) == 100_000
    longest = len(str(tmp_path / "99.log"))
    assert len(dumps(following.log[-1])) < 100 * (longest + 120)


def test_tasks_get_even_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SMALLEST_SPLIT", 64)
    for number, count in enumerate((1000, 100, 333)):
        append(tmp_path / f"{number}.log", "line\n" * count)
    reading = Query(tmp_path, path=str(tmp_path / "*.log"), numPartitions="4").reading()
    end = reading.planner.latest(INITIAL)
    counts = [len(reading.rows(part)) for part in reading.planner.slices(INITIAL, end)]
    assert sum(counts) == 1433
    assert max(counts) < 2 * min(counts)

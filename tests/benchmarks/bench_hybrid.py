"""What a hybrid source costs beside its parts read alone, as ratios taken in one run: python tests/benchmarks/bench_hybrid.py

Files of 5 M rows, then others of 1 M rows that come within the overlap. Goals: at most 1.1 times as long as the parts alone;
with an overlap, whose keys are noted and looked for, at most 4 s a million rows in it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import figure

from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems import add_system
from connectors.systems.files.source import FilesSource
from connectors.systems.hybrid import HybridSource

ROUNDS, FILE, HISTORY, LIVE = 5, 500_000, 10, 2
SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("cents", pa.float64())])


class DatedFiles(FilesSource):
    """Files that may follow a time: all of them do."""

    name = "dated_files"

    @classmethod
    def start_options(cls, time: int | None) -> dict[str, str]:
        return {}


def main() -> None:
    add_system(DatedFiles)
    folder = Path(tempfile.mkdtemp())
    write(folder / "history", 0, HISTORY)
    write(folder / "live", HISTORY - 1, LIVE)
    parts = [{"format": "dated_files", "name": name, "options": {"path": str(folder / name)}} for name in ("history", "live")]
    plain, overlapping, alone = [], [], []
    for number in range(ROUNDS + 1):
        alone.append(sum(timed(FilesSource.of({"path": str(folder / name)}, streaming=True)) for name in ("history", "live")))
        plain.append(timed(hybrid(parts)))
        state = {"stateLocation": str(folder / f"state{number}")}
        overlap = {"startFrom": f"ts - {FILE * 2} seconds", "deduplicateBy": "id", **state}
        overlapping.append(timed(hybrid(parts, **overlap), HISTORY * FILE + (LIVE - 1) * FILE))
    shutil.rmtree(folder)
    figure("hybrid source of two folders → Arrow", "s", plain[1:], "its parts alone", alone[1:], least=0.91)
    rows = (2 * FILE + FILE) / 1e6
    more = [(ours - theirs) / rows for ours, theirs in zip(overlapping[1:], plain[1:], strict=True)]
    figure("hybrid source: time for a million rows in an overlap", "s", more, most=4)


def hybrid(parts: list[dict[str, Any]], **options: str) -> Any:
    return HybridSource.of({"sources": json.dumps(parts), **options}, streaming=True)


def write(folder: Path, first: int, count: int) -> None:
    folder.mkdir()
    for file in range(first, first + count):
        ids = np.arange(file * FILE, (file + 1) * FILE)
        columns = [pa.array(ids), pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")), pa.array(np.sqrt(ids))]
        pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"{file:03}.parquet")


def timed(source: Any, expected: int | None = None) -> float:
    """The seconds that it takes to read everything."""
    begin, planner, at, count = time.perf_counter(), Planner(source), INITIAL, 0
    while (end := planner.latest(at)) != at:
        count += sum(rows.num_rows for part in planner.slices(at, end) for rows in read_slice(source, part, SCHEMA))
        at = end
    planner.close()
    assert expected in (None, count), count
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

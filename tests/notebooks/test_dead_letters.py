"""The job of dead letters, also killed in the middle of mending: mended records arrive once, the others stay."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.delta_log import delta

from .quickstart import run

ROWS = 3000


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_what_can_be_mended_is_delivered_once_and_the_rest_stays_dead(tmp_path: Path, killed: bool) -> None:
    parameters = {"workdir": str(tmp_path), "rows": str(ROWS)}
    root = tmp_path / f"rows_{ROWS}"
    if killed:
        mended_lines_are_staged = (root / "arrivals").glob
        code, output = run("dead_letters", parameters, lambda: any(mended_lines_are_staged(".connectors/*/ledger/*/*.json")))
        assert code == -9, output
    code, output = run("dead_letters", parameters)
    assert code == 0, output

    damaged = list(range(100, ROWS + 1, 100))
    hopeless = [number for number in damaged if number // 100 % 6 in (3, 5)]
    assert sorted(delta(root / "orders")["id"].to_pylist()) == [n for n in range(1, ROWS + 1) if n not in hopeless]
    letters = pa.concat_tables(pq.ParquetFile(file).read() for file in (root / "dead_letters").glob("*.parquet"))
    first = [json.loads(row["position"]) for row in letters.to_pylist()]
    assert len({(where["filename"], where["position"]) for where in first}) == len(first) == len(damaged)

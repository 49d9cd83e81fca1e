"""Running a job as a user does, in a process of its own, and reading what it wrote without Spark."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.delta_log import delta

REPOSITORY = Path(__file__).parents[2]
DAMAGE = 40


def run_job(workdir: Path, rows: int, kill_when: Callable[[], bool] | None = None) -> tuple[int, str]:
    """Runs the quickstart; see :func:`run`."""
    parameters = {"workdir": str(workdir), "rows": str(rows), "damage": str(DAMAGE), "batch": "1500kB"}
    return run("quickstart", parameters, kill_when)


def run(name: str, parameters: Mapping[str, str], kill_when: Callable[[], bool] | None = None) -> tuple[int, str]:
    """Runs a job and returns its exit code and output; killed, with its JVM, as soon as ``kill_when()`` is true."""
    arguments = [part for key, value in parameters.items() for part in ("--param", f"{key}={value}")]
    job = subprocess.Popen(
        [sys.executable, "-m", "connectors", "run", name, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "lib")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while kill_when is not None and job.poll() is None:
        if kill_when():
            os.killpg(job.pid, signal.SIGKILL)
            break
        time.sleep(0.01)
    output, _ = job.communicate(timeout=600)
    return job.returncode, output


def data(workdir: Path, rows: int) -> Path:
    """Where a run with these parameters keeps its data."""
    return workdir / f"rows_{rows or 'all'}_damage_{DAMAGE}"


def results(root: Path) -> dict[str, list[Any]]:
    """All rows of all outputs, in an order that does not depend on the run, without paths and times of the run."""
    finished = (file for file in (root / "daily_delays").rglob("part-*.parquet") if ".connectors" not in file.parts)
    delays = pa.concat_tables(pq.ParquetFile(file).read() for file in finished)
    per_day = delays.group_by(["date", "origin", "carrier"]).aggregate(
        [("flights", "sum"), ("departed", "sum"), ("delay_minutes", "sum"), ("longest_delay", "max")]
    )
    letters = pa.concat_tables(pq.ParquetFile(file).read() for file in (root / "dead_letters").glob("*.parquet"))
    return {
        "flights": _rows(delta(root / "flights"), "id"),
        "quarantine": _rows(delta(root / "quarantine"), "id"),
        "delays": per_day.sort_by([("date", "ascending"), ("origin", "ascending"), ("carrier", "ascending")]).to_pylist(),
        "dead_letters": sorted(letters["record"].to_pylist()),
        "totals": _totals(root / "delivered.db"),
    }


def _totals(database: Path) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        columns = "carrier, flights, departed, delay_minutes, last_seen, airline"
        return connection.execute(f"SELECT {columns} FROM airline_totals ORDER BY carrier").fetchall()


def _rows(table: pa.Table, key: str) -> list[Any]:
    return table.drop_columns(["filename"]).take(pc.sort_indices(table, [(key, "ascending")])).to_pylist()

"""Slices of a pipeline on its own data: killed, called again, judged together, and then the live part."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.delta_log import delta
from tests.notebooks.pipeline_jobs import ROOT, Job, order_texts, price

pytestmark = [pytest.mark.soak, pytest.mark.spark]
DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")
OPTIONS = '{"maxBytesPerTrigger": "400"}'


def write(folder: Path, numbers: range) -> None:
    folder.mkdir(parents=True)
    (folder / "orders.log").write_text("".join(f"{text}\n" for text in order_texts(numbers)))


def test_slices_that_are_killed_and_called_again_have_each_row_once_and_the_live_part_follows(tmp_path: Path) -> None:
    for number, day in enumerate(DAYS):
        write(tmp_path / "in" / day, range(1 + 30 * number, 31 + 30 * number))
    job = Job("lines_to_delta", tmp_path, source=f"{tmp_path}/live/*.log", options=OPTIONS)
    parameters = {**job.parameters, "source": f"{tmp_path}/in/{{slice}}/*.log"}
    given = [part for name, text in parameters.items() for part in ("--param", f"{name}={text}")]
    span = ("--from", DAYS[0], "--to", "2026-03-04", "--parallel", "2", "--runs", str(tmp_path / "runs"))
    command = [sys.executable, "-m", "connectors", "backfill", job.name, *span, *given]
    state = tmp_path / "state" / job.name
    first = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    until = time.monotonic() + 300
    while not list(state.glob("slices/*/checkpoint/commits/1")):
        assert first.poll() is None, "the slices are done before the kill"
        assert time.monotonic() < until
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    for again in (False, True):
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ended.stdout.count("done before") == (3 if again else 0), ended.stdout
    write(tmp_path / "live", range(91, 121))
    is_good, output = job.run()
    assert is_good, output
    whole = [n for n in range(1, 121) if n % 10]
    folders = [state, *(state / "slices" / day for day in DAYS)]
    assert sorted(delta(job.target)["id"].to_pylist()) == [n for n in whole if price(n) > 0]
    quarantined = [n for folder in folders for n in delta(folder / "quarantine")["id"].to_pylist()]
    assert sorted(quarantined) == [n for n in whole if price(n) < 0]
    assert sum(pq.read_table(file).num_rows for folder in folders for file in folder.glob("letters/*.parquet")) == 12

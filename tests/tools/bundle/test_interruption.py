"""Ctrl-C, as a person gives it: a signal to the running command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Workbench

PYTHON = ["from pathlib import Path; Path('../begun').touch(); import time; time.sleep(300)"]
CLEAN_UP_FAILS = [PYTHON[0].replace("time.sleep(300)", "\ntry:\n    time.sleep(300)\nfinally:\n    1 / 0")]
SPARK = [
    "from pyspark.sql.functions import udf\nimport os\nbegun = os.path.abspath('../begun')",
    "@udf('long')\ndef slow(n):\n    import pathlib, time\n    pathlib.Path(begun).touch()\n    time.sleep(300)\n    return n",
    "spark.range(1).select(slow('id')).collect()",
]


def wait_for(path: Path, running: subprocess.Popen[str], seconds: float = 200) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def _can_be_interrupted() -> None:
    """A shell that has started the tests in the background lets them, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(CLEAN_UP_FAILS, id="python whose clean-up fails"),
        pytest.param(SPARK, id="spark", marks=[pytest.mark.spark, pytest.mark.soak]),
    ],
)
def test_ctrl_c_ends_a_run_at_once_and_says_what_was_canceled(bench: Workbench, cells: list[str]) -> None:
    bench.job("job", bench.task("a", *cells), bench.task("b", "1", after="a"))
    command = [sys.executable, "-m", "connectors", "run", "job"]
    running = subprocess.Popen(
        command, cwd=bench.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_can_be_interrupted
    )
    wait_for(bench.root / "begun", running)
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=60)
    outcomes = [line.split()[:2] for line in out.splitlines() if line.endswith(" s")]
    assert [outcome for outcome in outcomes if outcome[1].isupper()] == [
        ["a", "CANCELED"], ["b", "CANCELED"], ["job", "CANCELED"],
    ]  # fmt: skip
    assert running.returncode == 130
    times = [float(line.split()[2]) for line in out.splitlines() if line.endswith(" s") and "CANCELED" in line]
    assert times[0] > 0 == times[1]
    assert out.splitlines()[-2].endswith("index.html: 1 executed notebook"), "the page tells more"
    assert "Traceback" not in errors

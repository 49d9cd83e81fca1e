"""Work that is done when a process ends as Spark ends its Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.ground import process_end

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from connectors.ground import process_end

log = Path(sys.argv[1])

def fail():
    raise OSError("the server is away")

def note():
    with log.open("a") as file:
        file.write("closed ")

process_end._SECONDS = 0.5
for work in (fail, note, note) if sys.argv[2] != "hangs" else (lambda: time.sleep(60), note):
    process_end.call_at_end(work)
if os.fork() == 0:
    os._exit(0)  # a child of the process has nothing to close
os.wait()
if sys.argv[2].endswith("alone"):
    threading.stack_size(1 << 46)  # more than there is: no thread starts any more
print("ready", flush=True)
for number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)  # as Spark's worker does before each task
for _ in range(600 if sys.argv[2].startswith("waits") else 0):
    time.sleep(0.1)  # a signal that comes just before a sleep does not shorten it
os._exit(7)
"""


FORKING = """
import os, signal
from connectors.ground import process_end

process_end.call_at_end(lambda: None)
if os.fork() == 0:
    print(*(signal.getsignal(number).name for number in (signal.SIGHUP, signal.SIGTERM)), signal.signal.__module__, flush=True)
    signal.signal = another = lambda *_: None
    if os.fork() == 0:
        print(signal.signal is another)
    else:
        os.wait()
else:
    os.wait()
    print(*(signal.getsignal(number).__name__ for number in (signal.SIGHUP, signal.SIGTERM)))
"""


BUSY = """
import sqlite3
from connectors.ground.clients import ClientPool

pool = ClientPool(lambda client: print("closed", flush=True), 45.0)
pool.give_back("one", "client")
pool.take("another")
print("ready", flush=True)
endless = "with recursive n(x) as (select 1 union all select x from n) select sum(x) from n"
sqlite3.connect(":memory:").execute(endless).fetchall()
"""


@pytest.fixture(autouse=True)
def without_nohup() -> Iterator[None]:
    """The processes of these tests begin as a shell's do, also where this one was told to ignore a hang-up."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_a_process_that_is_in_a_call_of_a_library(number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(process_end.__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", BUSY], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)  # the call has begun
        process.send_signal(number)
        assert process.wait(30) == -number
    finally:
        process.kill()
        process.communicate()


def test_a_forked_process_ends_at_a_signal_at_once() -> None:
    """A pool of processes ends so: Python may never notice the signal in one that begins to wait for a lock."""
    environment = {**os.environ, "PYTHONPATH": str(Path(process_end.__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", FORKING], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["SIG_DFL SIG_DFL signal", "True", "_end_by_signal _end_by_signal"]


@pytest.mark.parametrize(
    ("how", "number", "code", "closed"),
    [
        ("ends", None, 7, "closed "),
        ("hangs", None, 7, ""),
        ("ends alone", None, 7, ""),
        ("waits alone", signal.SIGTERM, -signal.SIGTERM, ""),
        ("waits", signal.SIGHUP, -signal.SIGHUP, "closed "),
        ("waits", signal.SIGTERM, -signal.SIGTERM, "closed "),
        ("waits", signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_work_is_done_once_at_the_end_of_a_process_that_is_not_killed(
    tmp_path: Path, how: str, number: int | None, code: int, closed: str
) -> None:
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(Path(process_end.__file__).parents[2])}
    command = [sys.executable, "-c", PROGRAM, str(log), how]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    if number is not None:
        process.send_signal(number)
    assert process.wait(20) == code
    assert time.monotonic() - began < 15
    process.stdout.close()
    assert (log.read_text() if log.exists() else "") == closed

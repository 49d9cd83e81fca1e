"""How a context lives in a history: its clock, its requests, its errors, and what is left behind."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import connectors
from connectors.core import Batch, GlobalCommitter, Messages, Receiver, SinkWriter
from connectors.core.ledger import Entry
from connectors.ground import machine
from connectors.testing.forgetful_disk import ForgetfulDisk
from connectors.testing.queue_double import QueueDouble
from connectors.testing.simulation.adversary import Move
from connectors.testing.simulation.disk import SimulatedDisk
from connectors.testing.simulation.history import check, run
from connectors.testing.simulation.scheduler import Scheduler
from connectors.testing.simulation.worlds import command_of, name_of, world_of
from tests.queue_source import DoubleReceiver, QueueDoubleSource
from tests.systems.reference_contexts import QueueContext

from .. import broken, toys


def now() -> float:
    """The time of the world, whatever the clock of a process says."""
    time: float = machine.here.now  # type: ignore[attr-defined]
    return time


class TimedReceiver(DoubleReceiver):
    """Sees that the system's clock is set whenever it is asked."""

    def acknowledge(self, leases: Sequence[str]) -> None:
        assert now() - TimedContext.times[-1] < 0.001
        super().acknowledge(leases)

    def extend(self, leases: Sequence[str]) -> None:
        assert now() - TimedContext.times[-1] < 0.001
        super().extend(leases)

    def receive(self, rows: int, seconds: float) -> Messages | None:
        assert now() - TimedContext.times[-1] < 0.001
        return super().receive(rows, seconds)


class TimedContext(QueueContext):
    times: ClassVar[list[float]] = []

    class source(QueueDoubleSource):  # noqa: N801
        def receiver(self, schema: pa.Schema | None) -> Receiver:
            return TimedReceiver(QueueDouble(Path(self.values["path"]), self.values["lease"]))

    def set_time(self, now: float) -> None:
        self.times.append(now)

    def write(self, count: int) -> list[dict[str, Any]]:
        assert now() == self.times[-1]
        return super().write(count)


def test_the_clock_of_a_system_is_set_before_it_is_asked_for_anything() -> None:
    check(TimedContext, range(1, 4))
    assert len(set(TimedContext.times)) > 10


def test_a_queue_whose_messages_have_no_ids_may_deliver_twice() -> None:
    class Nameless(DoubleReceiver):
        def receive(self, rows: int, seconds: float) -> Messages | None:
            messages = super().receive(rows, seconds)
            return messages and dataclasses.replace(messages, ids=None)

    class NamelessContext(QueueContext):
        class source(QueueDoubleSource):  # noqa: N801
            def receiver(self, schema: pa.Schema | None) -> Receiver:
                return Nameless(QueueDouble(Path(self.values["path"]), self.values["lease"]))

    check(NamelessContext, range(1, 7))


class PooledWriter(toys.SqliteWriter):
    """Writes in a thread of a pool of its own."""

    def write(self, batch: pa.RecordBatch) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._write, batch).result()

    def _write(self, batch: pa.RecordBatch) -> None:
        machine.time()
        machine.sleep(60.0)
        super().write(batch)


class PooledContext(toys.SqliteContext):
    class sink(toys.SqliteSink):  # noqa: N801
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            place = f"{batch.prefix()}/{subtask}/"
            self.forget(place)
            return PooledWriter(self.target(), place + batch.attempt())


class StaticClient:
    @staticmethod
    def execute(database: Any, text: str, values: Any) -> None:
        database.execute(text, values)


class StaticCommitter(toys.SqliteCommitter):
    def record(self, database: Any, entry: Entry) -> None:
        values = (self.sink_id, entry.query, entry.batch, entry.rows)
        StaticClient().execute(database, "INSERT INTO ledger VALUES (?, ?, ?, ?)", values)


class StaticContext(toys.SqliteContext):
    requests = ((StaticClient, "execute"),)

    class sink(toys.SqliteSink):  # noqa: N801
        def committer(self) -> GlobalCommitter:
            return StaticCommitter(self.target(), self.sink_id())


class PreparingContext(toys.SqliteContext):
    """The driver asks for the state of the target before it starts the tasks, which rely on it: by one carrier only."""

    carriers = ("foreach_batch",)

    class sink(toys.SqliteSink):  # noqa: N801
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            assert Path(self.target()).with_suffix(".swept").exists()
            return super().writer(batch, schema, subtask)

        def committer(self) -> GlobalCommitter:
            return PreparingCommitter(self.target(), self.sink_id())


class PreparingCommitter(toys.SqliteCommitter):
    def sweep(self, live: frozenset[str]) -> None:
        Path(self.path).with_suffix(".swept").touch()


@pytest.mark.parametrize("context", [PooledContext, StaticContext, PreparingContext])
def test_a_connector_that_is_right_is_not_accused_for_how_it_is_built(context: Any) -> None:
    check(context, [1, 2])


def test_a_lock_that_stops_a_history_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, own = threading.Lock(), machine.here

    class LockingWriter(toys.SqliteWriter):
        def write(self, batch: pa.RecordBatch) -> None:
            with lock:
                super().write(batch)

    class LockingContext(toys.SqliteContext):
        requests = ((toys.SqliteWriter, "write"),)

        class sink(toys.SqliteSink):  # noqa: N801
            def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
                return LockingWriter(self.target(), f"{batch.prefix()}/{subtask}/{batch.attempt()}")

    monkeypatch.setattr("connectors.testing.simulation.scheduler._STANDSTILL_SECONDS", 1.0)
    monkeypatch.setattr("connectors.testing.simulation.scheduler._END_SECONDS", 0.1)
    with pytest.raises(AssertionError, match=r"the context fails, .* stands still, at .* in write: if that is a lock"):
        check(LockingContext, [1])
    assert machine.here is own
    lock.release()  # so that its threads end


def test_a_server_of_a_context_starts_in_the_thread_of_whoever_runs_the_history() -> None:
    threads = []

    class Serving(toys.SqliteContext):
        def options(self) -> dict[str, str]:
            threads.append(threading.current_thread())
            return super().options()

    run(Serving, 1)
    assert threads[0] is threading.main_thread()


@pytest.mark.parametrize("method", ["write", "rows"])
def test_an_error_of_a_context_accuses_no_connector(method: str) -> None:
    calls = []

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2 or method == "rows":  # the second time it is the producer of the history who writes
            raise OSError("the test's own client has failed")
        return toys.LogContext.write(*arguments)

    kind = toys.LogContext if method == "write" else toys.SqliteContext
    context = type("Failing", (kind,), {method: fail})
    with pytest.raises(AssertionError, match=r"the context fails, in the history of .*Failing.*own client has failed"):
        check(context, [1, 2, 3])


class Outer:
    class Broken(broken.CommitsTwiceOnReplay):
        pass


ROOT = Path(__file__).parents[3]
MODULE = "from tests.testing import broken\nclass Broken(broken.CommitsTwiceOnReplay): ...\n"


@pytest.mark.parametrize("module", ["", "orders.py", "orders/__init__.py"])
def test_the_command_repeats_the_history(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = Outer.Broken
    if module:
        file = tmp_path / "my project" / module
        file.parent.mkdir(parents=True)
        file.write_text(f"import sys\nsys.path.append({str(ROOT)!r})\n{MODULE}")
        monkeypatch.syspath_prepend(tmp_path / "my project")
        monkeypatch.delitem(sys.modules, "orders", raising=False)
        kind = import_module("orders").Broken
    assert world_of(name_of(kind)) is kind
    command = command_of(kind, 1).replace(" python ", f" {sys.executable} ")
    assert str(Path(connectors.__file__).parents[1]) in command, "the library may be on the path of this process alone"
    environment = {**os.environ, "PYTHONPATH": ""}
    repeated = subprocess.run(command, shell=True, capture_output=True, text=True, cwd="/", env=environment)
    assert (repeated.returncode, "Broken, seed 1: missing: " in repeated.stdout) == (1, True), repeated.stderr


def test_the_command_of_a_class_inside_of_a_function_is_a_call() -> None:
    class Local(broken.CommitsTwiceOnReplay):
        pass

    assert command_of(Local, 7).endswith("Local, 7)")


def test_the_collector_of_garbage_is_as_it_was() -> None:
    gc.disable()
    try:
        run("queue-database", 1)
        assert not gc.isenabled()
    finally:
        gc.enable()
    run("queue-database", 1)
    assert gc.isenabled()


def test_nothing_goes_on_behind_an_interruption() -> None:
    scheduler, steps = Scheduler(1), []

    def work() -> None:
        scheduler.spawn("driver", lambda: scheduler.sleep(1e6))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while True:
            scheduler.sleep(1.0)
            time.sleep(0.001)
            steps.append(scheduler.now)

    with scheduler.installed(), pytest.raises(KeyboardInterrupt):
        scheduler.run(work)
    count = len(steps)
    time.sleep(0.05)
    assert (len(steps), scheduler.threads) == (count, [])


@pytest.mark.parametrize("seed", [40, 91])
def test_no_process_lives_through_a_power_failure(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails between two runs: by a task whose driver is dead, and by whoever looks at the checkpoint."""
    light, quiet = SimulatedDisk.light, []

    def observed(disk: SimulatedDisk) -> None:
        quiet.append(disk._adversary.scheduler.is_quiet())
        light(disk)

    monkeypatch.setattr(SimulatedDisk, "light", observed)
    assert not run("queue-files", seed, moves=(Move.POWER, Move.SECOND_DRIVER, Move.PAUSE)).fault
    assert quiet
    assert all(quiet)


def test_a_file_that_its_writer_has_opened_itself_is_remembered_by_the_disk(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    disk = ForgetfulDisk(tmp_path / "folder", tmp_path / "journal")
    disk.start()
    (tmp_path / "folder" / "staged").write_bytes(b"rows")
    disk.rename(tmp_path / "folder" / "staged", tmp_path / "folder" / "published")
    disk.sync(tmp_path / "folder" / "published")
    disk.sync(tmp_path / "folder")
    disk.fail(random.Random(1))
    assert (tmp_path / "folder" / "published").read_bytes() == b"rows"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense", "1"], 'must be queue-database, queue-files, .*, or a context as module:Class; got "nonsense"'),
        (["no.module:Context", "1"], "No module named 'no'; a context is found from PYTHONPATH"),
        (["queue-files", "first"], "argument SEED: invalid int value: 'first'"),
        ([], "the following arguments are required: WORLD, SEED"),
    ],
)
def test_a_history_that_is_called_wrongly_is_told_how(arguments: list[str], text: str) -> None:
    line = [sys.executable, "-m", "connectors.testing.simulation", *arguments]
    call = subprocess.run(line, capture_output=True, text=True)
    assert call.returncode == 2
    assert re.search(text, call.stderr)

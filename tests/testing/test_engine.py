"""The engine keeps Spark's contract: offsets before, marks after, retries, aborts, and replays of the same batch."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Committable, SinkWriter
from connectors.core.planning import INITIAL
from connectors.testing import Action, Checkpoint, Engine, FailureInjector, Injected, Point, in_a_child, same_records

from .toys import LinesCommitter, LinesSink, LinesWriter, LogContext

LINE = pa.schema([("line", pa.string())])


class Watched(LinesSink):
    """A correct sink that writes down what the engine asks of it."""

    calls: list[tuple[Any, ...]]
    fails: list[Exception]

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.calls, self.fails = [], []

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        self.calls.append(("task", batch.number, subtask))
        if self.fails:
            raise self.fails.pop(0)
        return LinesWriter(self.folder(), batch.attempt())

    def committer(self) -> LinesCommitter:
        calls = self.calls

        class Committer(LinesCommitter):
            def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
                calls.append(("publish", batch.number, [committable.rows for committable in committables]))
                super().publish(batch, committables)

            def discard(self, committable: Committable) -> None:
                calls.append(("discard", committable.rows))
                super().discard(committable)

        return Committer(self.folder())


class Run:
    """A log of ``count`` lines, and engines that write it."""

    def __init__(self, folder: Path, count: int = 12) -> None:
        self.system = LogContext(folder / "system")
        self.system.folder.mkdir()
        self.written = self.system.write(count)
        self.folder = folder
        self.injector = FailureInjector(folder / "faults")
        self.sink: Watched

    def engine(self, carrier: str = "foreach_batch", tasks: int | None = None, **options: str) -> Engine:
        source = self.system.source.of({**self.system.options(), "maxRowsPerTrigger": "5", **options}, streaming=True)
        sink = Watched.of({"path": str(self.folder / "target")})
        assert isinstance(sink, Watched)
        self.sink = sink
        return Engine(
            self.folder / "checkpoint", source, sink, LINE, carrier=carrier, injector=self.injector, tasks=tasks
        )

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / "checkpoint")

    def calls(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [call for call in self.sink.calls if call[0] in kinds]

    def rows(self) -> list[dict[str, Any]]:
        files = (self.folder / "target").glob("*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture(params=["foreach_batch", "format"])
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_runs_batch_by_batch_until_everything_is_there(run: Run, carrier: str) -> None:
    assert run.engine(carrier).run() == 3
    assert [(number, sum(rows)) for _, number, rows in run.calls("publish")] == [(0, 5), (1, 5), (2, 2)]
    same_records(run.written, run.rows())
    assert run.engine(carrier).run() == 0


def test_it_runs_as_many_batches_as_it_is_told(run: Run) -> None:
    assert run.engine().run(batches=1) == 1
    assert len(run.rows()) == 5


def test_what_comes_while_it_runs_is_left_for_the_next_run(run: Run) -> None:
    engine = run.engine()
    run.injector.arm(Point.BATCH_DONE)
    with pytest.raises(Injected):
        engine.run()
    run.system.write(100)
    before = len(run.rows())
    frozen = run.engine()
    convert = frozen.convert

    def growing(batch: pa.RecordBatch) -> pa.RecordBatch:
        run.system.write(1)
        return convert(batch)

    frozen.convert = growing
    frozen.run()
    assert before == 5
    assert len(run.rows()) == 112


def test_the_end_of_a_batch_is_written_before_it_runs_and_a_mark_after_it(run: Run, carrier: str) -> None:
    run.injector.arm(Point.BATCH_DONE)
    with pytest.raises(Injected):
        run.engine(carrier).run()
    assert (run.checkpoint.planned(), run.checkpoint.done()) == (0, -1)
    run.engine(carrier).run(batches=1)
    assert (run.checkpoint.planned(), run.checkpoint.done()) == (0, 0)


def test_a_restart_replays_the_batch_that_was_planned(run: Run, carrier: str) -> None:
    run.sink = run.engine(carrier).sink  # type: ignore[assignment]
    engine = run.engine(carrier)
    run.sink.fails = [ValueError("no")] * 4
    with pytest.raises(ValueError, match="no"):
        engine.run()
    run.engine(carrier, maxRowsPerTrigger="100").run(batches=1)
    assert len(run.rows()) == 5, "the end that was planned counts, not today's limit"
    run.engine(carrier).run()
    same_records(run.written, run.rows())


def test_a_query_keeps_its_id(run: Run) -> None:
    query = run.checkpoint.query
    run.engine().run()
    assert run.checkpoint.query == query


def test_the_mark_of_the_newest_batch_can_be_forgotten(run: Run, carrier: str) -> None:
    run.engine(carrier).run()
    run.checkpoint.forget_commit()
    assert run.checkpoint.done() == 1
    assert run.engine(carrier).run() == 1
    assert run.calls("publish") == []
    assert (run.calls("task") == []) is (carrier == "foreach_batch")
    same_records(run.written, run.rows())


@pytest.mark.parametrize("failures", [1, 3])
def test_a_task_is_tried_four_times(run: Run, failures: int) -> None:
    engine = run.engine(numPartitions="1")
    run.sink.fails = [ValueError("no")] * failures
    engine.run(batches=1)
    assert run.calls("task") == [("task", 0, 0)] * (failures + 1)


def test_a_task_that_fails_four_times_ends_the_run(run: Run) -> None:
    engine = run.engine(numPartitions="1")
    run.sink.fails = [ValueError("no")] * 4
    with pytest.raises(ValueError, match="no"):
        engine.run()
    assert run.calls("task") == [("task", 0, 0)] * 4
    assert run.calls("publish") == []


def test_an_abort_is_handed_what_other_tasks_had_staged(run: Run) -> None:
    engine = run.engine(numPartitions="2")
    engine.attempts = 1
    writer = run.sink.writer
    run.sink.writer = lambda batch, schema, subtask: writer(batch, schema, subtask) if subtask == 0 else 1 / 0  # type: ignore[method-assign, return-value, assignment]
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert run.calls("discard") == [("discard", 2)]


def test_a_commit_that_raises_is_followed_by_an_abort(run: Run, carrier: str) -> None:
    engine = run.engine(carrier)
    ledger = run.sink.ledger

    class Broken(type(ledger())):  # type: ignore[misc]
        def record(self, entry: Any) -> bool:
            raise Injected("no")

    run.sink.ledger = lambda: Broken(ledger().storage)  # type: ignore[method-assign]
    with pytest.raises(Injected):
        engine.run()
    assert sorted(run.calls("discard")) == [("discard", 2), ("discard", 3)]


@pytest.mark.parametrize("tasks", [1, 2, 5, 7])
def test_rows_are_dealt_out_to_as_many_tasks_as_wanted(run: Run, carrier: str, tasks: int) -> None:
    run.engine(carrier, tasks=tasks, numPartitions="3").run()
    first = run.calls("publish")[0]
    assert len(first[2]) == tasks
    assert max(first[2]) - min(first[2]) <= 1
    same_records(run.written, run.rows())


def test_a_killed_run_leaves_its_checkpoint_to_the_next(run: Run, carrier: str) -> None:
    run.injector.arm(Point.BATCH_DONE, Action.KILL)
    assert in_a_child(run.engine(carrier).run) == -9
    assert (run.checkpoint.planned(), run.checkpoint.done()) == (0, -1)
    run.engine(carrier).run()
    same_records(run.written, run.rows())


def test_an_empty_checkpoint_begins_at_the_beginning(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.planned(), checkpoint.done(), checkpoint.end(-1)) == (-1, -1, INITIAL)
    assert Checkpoint(tmp_path).query == checkpoint.query


def test_batches_are_counted_as_numbers(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    for batch in range(12):
        checkpoint.plan(batch, {"v": 1, "at": {}})
        checkpoint.finish(batch)
    assert (checkpoint.planned(), checkpoint.done()) == (11, 11)


def test_a_child_does_not_collect_what_its_parent_left(tmp_path: Path) -> None:
    class Left:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    gc.collect()
    gc.disable()
    try:
        Left()
        assert in_a_child(gc.collect) == 0
    finally:
        gc.enable()
    assert list(tmp_path.iterdir()) == []
    gc.collect()
    assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]


def test_a_forked_process_that_hangs_is_ended_and_fails_its_test() -> None:
    with pytest.raises(TimeoutError, match=r"did not end within 0.2 s"):
        in_a_child(lambda: time.sleep(60), seconds=0.2)


def test_a_process_that_is_forked_while_a_thread_resolves_a_name_resolves_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client does that has lost its broker: the C library's lock stays held in the forked process."""

    def resolve() -> None:
        socket.getaddrinfo("127.0.0.1", 0, flags=socket.AI_ADDRCONFIG)

    def reconnect() -> None:
        while not done.is_set():
            resolve()

    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(few, 2048), most))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]  # as a long run of tests has open

    monkeypatch.setattr("connectors.testing.engine._FORK_SECONDS", 0.5)
    monkeypatch.setattr("connectors.testing.engine._FORKS", 40)
    done = threading.Event()
    thread = threading.Thread(target=reconnect)
    thread.start()
    try:
        for _ in range(8):
            assert in_a_child(resolve, seconds=20.0) == 0
    finally:
        done.set()
        thread.join()
        for file in files:
            os.close(file)


def test_a_process_is_forked_beside_a_watchdog_and_shows_its_stack_when_it_hangs(capfd: pytest.CaptureFixture[str]) -> None:
    def sleep() -> None:
        time.sleep(60)

    faulthandler.dump_traceback_later(300, file=2)
    try:
        assert in_a_child(lambda: None, seconds=20.0) == 0
        with pytest.raises(TimeoutError):
            in_a_child(sleep, seconds=0.5)
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert " in sleep" in capfd.readouterr().err

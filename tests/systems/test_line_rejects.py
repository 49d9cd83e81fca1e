"""Bad rows of a sink: refused, skipped or set aside with the batch's commit, once, whatever happens in between."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import connectors
from connectors.core import Batch, Misconfigured, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.file_stream import FileStreamSink
from connectors.systems.sequence import SequenceSource
from connectors.testing import FailureInjector, same_records
from connectors.testing.engine import Checkpoint, Engine, in_a_child
from connectors.testing.faults import Injected, Point, faulty_sink
from connectors.testing.forgetful_disk import ForgetfulDisk

NUMBERS = pa.schema([("value", pa.int64())])
LINES = pa.schema([("value", pa.string())])
ROWS = 40


def is_bad(number: int) -> bool:
    return number % 7 == 0


def text(number: int) -> str:
    return f"line\n{number}" if is_bad(number) else f"line {number}"


class Run:
    """A query whose every seventh row is bad."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out, self.letters = folder / "out", folder / "letters"
        self.injector = FailureInjector(folder / "faults")

    def engine(self, carrier: str = "foreach_batch", tasks: int = 2, **options: str) -> Engine:
        source = {"end": str(ROWS), "numPartitions": str(tasks), "maxRowsPerTrigger": "10"}
        typed = {"path": str(self.out), "errors": "deadLetter", "deadLetterPath": str(self.letters), **options}
        if typed["errors"] != "deadLetter":
            del typed["deadLetterPath"]
        return Engine(
            self.folder / "checkpoint",
            SequenceSource.of(source, streaming=True),
            faulty_sink(FileStreamSink, self.injector).of(typed),
            NUMBERS,
            lambda rows: pa.RecordBatch.from_pydict({"value": [text(n) for n in rows.column(0).to_pylist()]}, LINES),
            carrier,
            injector=self.injector,
            tasks=tasks,
        )

    def lines(self) -> list[str]:
        return sorted(line for file in self.out.glob("part-*") for line in file.read_text().splitlines())

    def dead(self) -> list[dict[str, Any]]:
        return [row for file in self.letters.glob("*.parquet") for row in pq.read_table(file).to_pylist()]

    def reconcile(self) -> None:
        assert self.lines() == sorted(text(n) for n in range(1, ROWS + 1) if not is_bad(n))
        bad = [{"value": json.loads(row["record"])["value"]} for row in self.dead()]
        same_records([{"value": text(n)} for n in range(1, ROWS + 1) if is_bad(n)], bad)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "run").mkdir()
    return Run(tmp_path / "run")


@pytest.mark.parametrize("carrier", ["foreach_batch", "format"])
def test_bad_rows_become_dead_letters_of_their_batch(run: Run, carrier: str) -> None:
    run.engine(carrier).run()
    run.reconcile()
    row = min(run.dead(), key=lambda row: row["position"])
    query = Checkpoint(run.folder / "checkpoint").query
    assert json.loads(row["position"]) == {"query": query, "batch": 0, "n": 0}
    assert row["source"].startswith("file_stream-")
    assert "line end" in row["error"]


def test_bad_rows_fail_the_batch_unless_told_otherwise(run: Run) -> None:
    with pytest.raises(Poison, match=r"a row cannot be written(.|\n)*line end(.|\n)*errors=deadLetter"):
        run.engine(errors="fail").run()
    assert run.lines() == []


def test_bad_rows_are_skipped_when_the_user_says_so(run: Run) -> None:
    run.engine(errors="skip").run()
    assert len(run.lines()) == sum(not is_bad(n) for n in range(1, ROWS + 1))
    assert run.dead() == []


def test_dead_letters_need_a_folder() -> None:
    with pytest.raises(Misconfigured, match=r"deadLetterPath\s+missing"):
        FileStreamSink.of({"path": "/nowhere", "errors": "deadLetter"})


def test_a_sink_without_bad_rows_has_no_such_option() -> None:
    with pytest.raises(Misconfigured, match="errors"):
        connectors.foreach_batch("buffered", path="/nowhere", errors="skip")


def test_dead_letters_do_not_appear_before_the_commit(run: Run) -> None:
    run.injector.arm(Point.COMMIT_BEFORE)
    with pytest.raises(Injected):
        run.engine().run()
    assert run.dead() == []
    run.engine().run()
    run.reconcile()


def test_dead_letters_of_a_decided_batch_appear_with_the_next_run(run: Run) -> None:
    run.injector.arm(Point.COMMIT_AFTER)
    with pytest.raises(Injected):
        run.engine().run()
    assert run.dead() == []
    run.engine().run()
    run.reconcile()


def test_a_replayed_batch_adds_no_dead_letters(run: Run) -> None:
    run.engine("format").run()
    Checkpoint(run.folder / "checkpoint").forget_commit()
    assert run.engine("format").run() == 1
    run.reconcile()
    left = [file for file in (run.letters / ".connectors").rglob("*") if file.is_file()]
    assert left == []


@pytest.mark.parametrize("seed", range(20))
def test_killed_runs_lose_and_double_no_dead_letter(run: Run, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        run.injector.arm_one_of(chance.randrange(1 << 30), list(Point), rows=2)
        engine = run.engine(chance.choice(("foreach_batch", "format")), tasks=chance.randint(1, 4))
        assert in_a_child(engine.run) in (0, -9)
    run.injector.disarm()
    run.engine().run()
    run.reconcile()


@pytest.mark.parametrize("seed", range(12))
def test_a_power_failure_loses_and_doubles_no_dead_letter(run: Run, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(3):
        disk = ForgetfulDisk(run.folder, tmp_path / f"disk {number}", chance.randrange(250))
        disk.start()
        engine = run.engine(chance.choice(("foreach_batch", "format")), tasks=chance.randint(1, 3))
        assert in_a_child(partial(disk.run, engine.run)) in (0, -9)
        disk.fail(chance)
    run.engine().run()
    run.reconcile()


def test_letters_of_a_batch_that_was_not_committed_are_made_again(run: Run, tmp_path: Path) -> None:
    sink = FileStreamSink.of({"path": str(run.out), "errors": "deadLetter", "deadLetterPath": str(run.letters)})
    batch = Batch(sink.sink_id(), "q", 0)
    rows = pa.RecordBatch.from_pydict({"value": ["a\nb"]})
    first = stage(sink, batch, rows.schema, 0, iter([rows]))
    commit = Commit(sink)
    commit._decide_letters(batch, [first])  # the driver dies here
    other = pa.RecordBatch.from_pydict({"value": ["c\nd", "fine"]})
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter([other]))])
    assert [json.loads(row["record"]) for row in run.dead()] == [{"value": "c\nd"}]


@pytest.mark.spark
class TestOnSpark:
    def test_sparks_own_writer_refuses_a_value_of_two_lines(self, spark: Any, run: Run) -> None:
        frame = spark.createDataFrame([("a",), ("b\nc",)], "value string")
        with pytest.raises(Poison, match=r"a row cannot be written(.|\n)*b\\nc"):
            connectors.foreach_batch("file_stream", path=str(run.out)).write(frame, Batch("s", "q", 0))  # type: ignore[attr-defined]
        assert run.lines() == []

    def test_bad_rows_are_set_aside_in_tasks(self, spark: Any, run: Run) -> None:
        frame = spark.createDataFrame([("a",), ("b\nc",), ("d",), (None,)], "value string").repartition(3)
        options = {"path": str(run.out), "errors": "deadLetter", "deadLetterPath": str(run.letters)}
        connectors.foreach_batch("file_stream", options).write(frame, Batch("s", "q", 0))  # type: ignore[attr-defined]
        assert run.lines() == ["", "a", "d"]
        assert [json.loads(row["record"]) for row in run.dead()] == [{"value": "b\nc"}]

"""The engine with threads: a made-up target passes the suites; rows, errors and the end of a task go where they belong."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from connectors.batching import BatchingWriter, Failure, Throttled
from connectors.batching.pieces import Piece
from connectors.core import Batch, Fatal, Guarantee, Misconfigured, Poison, Transient
from connectors.core.writing import stage
from connectors.ground.retry import RetryObserver, observed_retries
from connectors.testing import SinkContext, SinkSuite

from .targets import ShelfSink

NUMBERS = pa.schema([("id", pa.int64())])
QUICK = {"retry.initialBackoff": "1ms", "retry.maxBackoff": "5ms"}


class ShelfContext(SinkContext):
    sink = ShelfSink
    guarantee = Guarantee.IDEMPOTENT
    append = "false"

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder / "shelf"), "append": self.append}

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_bytes()) for file in (self.folder / "shelf").glob("*") if file.name[0] != "."]


class AppendContext(ShelfContext):
    guarantee = Guarantee.AT_LEAST_ONCE
    append = "true"


class TestPut(SinkSuite):
    context = ShelfContext


class TestAppend(SinkSuite):
    context = AppendContext


class Writer(BatchingWriter):
    """Sends numbers; a test says what becomes of a request."""

    def __init__(self, answer: Any, **options: str) -> None:
        sink = ShelfSink.of({"path": "/nowhere", **QUICK, **options})
        super().__init__(sink, Batch("shelf", "q", 0))
        self.answer, self.sent, self.closed = answer, [], False

    def entries(self, rows: pa.RecordBatch) -> list[Any]:
        return rows.column(0).to_pylist()

    def sizes(self, entries: list[int]) -> list[int]:
        return [1] * len(entries)

    def send(self, entries: list[int]) -> Iterable[Failure]:
        self.sent.append(entries)
        return self.answer(entries) or ()

    def put(self, *numbers: int) -> None:
        self.write(pa.RecordBatch.from_pydict({"id": list(numbers)}, NUMBERS))


def closing(writer: Writer) -> Writer:
    writer.abort()
    writer.close()
    return writer


def test_every_option_that_cannot_work_is_told() -> None:
    wrong = {"batch.maxRecords": "10", "batch.maxBuffered": "10", "batch.maxBytes": "1KB", "batch.maxRecordBytes": "2KB"}
    with pytest.raises(Misconfigured) as error:
        ShelfSink.of({"path": "x", **wrong})
    assert [problem.option for problem in error.value.problems] == ["batch.maxRecordBytes", "batch.maxBuffered"]
    with pytest.raises(Misconfigured, match=r"request\.timeout +must be 1ms or longer; got '0s'"):
        ShelfSink.of({"path": "x", "request.timeout": "0s"})
    with pytest.raises(Misconfigured, match=r'guarantee\s+"exactly-once" is not possible'):
        ShelfSink.of({"path": "x", "guarantee": "exactly-once"})


def test_nothing_is_left_at_the_end_of_a_task() -> None:
    writer = Writer(lambda entries: None)
    writer.put(*range(100))
    assert writer.prepare().rows == 100
    assert sorted(number for entries in writer.sent for number in entries) == list(range(100))
    closing(writer)


def test_a_batch_that_is_not_full_goes_when_its_time_is_over_though_no_more_rows_come() -> None:
    sent = threading.Event()
    writer = Writer(lambda entries: sent.set(), **{"batch.maxTime": "10ms"})
    writer.put(1)
    assert sent.wait(10)
    closing(writer)


def test_a_writer_waits_while_too_much_is_under_way_and_goes_on_when_there_is_room() -> None:
    go = threading.Event()
    writer = Writer(lambda entries: go.wait(10) and None, **{"batch.maxRecords": "2", "batch.maxBuffered": "4"})
    put = threading.Thread(target=writer.put, args=range(1000))
    put.start()
    put.join(0.2)
    assert put.is_alive()
    assert writer._sending.flow.counts.taken <= 4 + 2 * 50
    go.set()
    put.join(10)
    assert writer.prepare().rows == 1000
    closing(writer)


def test_a_fatal_error_surfaces_at_the_next_write_and_nothing_more_is_sent() -> None:
    full = threading.Event()

    def answer(entries: list[int]) -> None:
        full.wait(10)
        raise Fatal("no rights")

    writer = Writer(answer, **{"batch.maxInFlight": "1"})
    threading.Timer(0.2, full.set).start()  # by then the buffer is full, and the writer waits
    with pytest.raises(Fatal, match="no rights"):
        writer.put(*range(10_000))
    with pytest.raises(Fatal, match="no rights"):
        writer.put(1)
    with pytest.raises(Fatal, match="no rights"):
        writer.prepare()
    closing(writer)
    assert len(writer.sent) == 1


def test_a_bug_in_send_is_not_lost() -> None:
    writer = Writer(lambda entries: 1 / 0)
    writer.put(1)
    with pytest.raises(ZeroDivisionError):
        writer.prepare()
    closing(writer)


def test_a_bad_row_fails_the_task_and_is_named() -> None:
    writer = Writer(lambda entries: [(place, Poison("too odd")) for place, n in enumerate(entries) if n == 3])
    writer.put(1, 2, 3, 4)
    with pytest.raises(Poison, match=r'too odd; it is \{"id": 3\}'):
        writer.prepare()
    closing(writer)


def test_bad_rows_are_counted_and_the_rest_is_written() -> None:
    writer = Writer(lambda entries: [(place, Poison("odd")) for place, n in enumerate(entries) if n % 2], errors="skip")
    writer.put(*range(20))
    assert writer.prepare().rows == 10
    assert writer.rejects is not None
    assert writer.rejects.count == 10
    closing(writer)


def test_rows_without_an_entry_and_rows_too_large_are_bad_and_all_others_are_written(tmp_path: Path) -> None:
    sink = ShelfSink.of({"path": str(tmp_path / "s"), "errors": "skip", "batch.maxBytes": "100", "batch.maxRecordBytes": "50"})
    rows = [{"id": n if n % 3 else None, "text": "x" * (200 if n == 5 else 1)} for n in range(1, 10)]
    staged = stage(sink, Batch("s", "q", 0), NUMBERS, 0, iter([pa.RecordBatch.from_pylist(rows)]))
    assert (staged.rows, staged.rejected) == (5, 4)
    assert sorted(file.name for file in (tmp_path / "s").iterdir()) == ["1", "2", "4", "7", "8"]


class Tries(RetryObserver):
    count = 0

    def retried(self) -> None:
        self.count += 1


def test_retries_are_counted_where_metrics_look_for_them() -> None:
    first, observer = threading.Event(), Tries()

    def answer(entries: list[int]) -> list[Failure]:
        failing = not first.is_set()
        first.set()
        return [(0, Throttled("slower"))] if failing else []

    writer = Writer(answer)
    with observed_retries(observer):
        writer.put(1, 2)
        writer.prepare()
    assert observer.count == 1
    closing(writer)


def test_a_request_that_hangs_is_given_up_and_sent_again() -> None:
    hangs, release = threading.Event(), threading.Event()

    def answer(entries: list[int]) -> None:
        if not hangs.is_set():
            hangs.set()
            release.wait(10)

    writer = Writer(answer, **{"request.timeout": "50ms"})
    writer.put(1)
    assert writer.prepare().rows == 1
    assert writer.sent == [[1], [1]]
    release.set()
    closing(writer)


@pytest.mark.parametrize("pause", [0.0, 1e-5, 5e-5, 2e-4])
def test_the_end_of_a_very_short_pause_is_not_missed(pause: float) -> None:
    requests = iter(range(10_000))

    def answer(entries: list[int]) -> list[Failure]:
        return [(0, Throttled("slower", retry_after=pause))] if next(requests) % 2 else []

    patient = {"retry.maxRetries": "1000", "circuitBreaker.failures": "1000"}
    writer = Writer(answer, **{"batch.maxRecords": "1", "batch.maxBuffered": "2", **patient})
    writing = threading.Thread(target=lambda: (writer.put(*range(300)), writer.prepare()), daemon=True)
    writing.start()
    writing.join(20)
    assert not writing.is_alive()
    assert writer._sending.flow.counts.acknowledged == 300
    closing(writer)


def test_an_outage_that_stays_fails_the_task_as_one() -> None:
    def answer(entries: list[int]) -> None:
        raise Transient("away")

    writer = Writer(answer, **{"retry.maxRetries": "2"})
    writer.put(1)
    with pytest.raises(Transient, match="refused 3 times; the last answer: away"):
        writer.prepare()
    assert len(writer.sent) == 3
    closing(writer)


def test_closing_waits_for_requests_that_are_under_way() -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    def answer(entries: list[int]) -> None:
        started.set()
        go.wait(10)
        ended.set()

    writer = Writer(answer)
    writer.put(*range(7))
    assert started.wait(10)
    threading.Timer(0.05, go.set).start()
    closing(writer)
    assert ended.is_set()


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    writer = Writer(lambda entries: None)
    writer.put(*range(500))
    writer.prepare()
    writer.close()
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(10)
    assert not any(thread.is_alive() for thread in new)


def test_the_client_of_a_writer_is_closed_after_the_last_request_that_is_under_way() -> None:
    closed = threading.Event()
    answered = threading.Event()

    def answer(entries: list[int]) -> None:
        answered.wait(0.2)
        assert not closed.is_set()
        answered.set()

    writer = Writer(answer, **{"batch.maxRecords": "1"})
    writer.client = SimpleNamespace(close=closed.set)
    writer.put(1)
    writer.close()
    assert answered.is_set()
    assert closed.is_set()


def raising(error: BaseException) -> Any:
    def method(*arguments: Any) -> Any:
        raise error

    return method


def fails_for_good(writer: Writer, error: type[Exception]) -> None:
    """The error comes from the first call that can tell it, and from every later one."""
    with contextlib.suppress(error):
        writer.put(*range(20))
    for _ in range(3):
        with pytest.raises(error):
            writer.prepare()
    closing(writer)


def refuse_one(entries: list[int]) -> list[Failure]:
    return [(1, Poison("odd"))] if entries[0] == 0 else []


def test_bad_rows_that_could_not_be_set_aside_are_never_committed() -> None:
    fails_for_good(Writer(refuse_one), Poison)
    writer = Writer(refuse_one, errors="skip")
    full = iter([OSError("no space")])
    writer._sending._set_aside = lambda row, error: raising(next(full))()
    fails_for_good(writer, OSError)


def test_entries_whose_answer_cannot_be_handled_are_never_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Piece, "row", raising(OverflowError("no such row")))
    fails_for_good(Writer(refuse_one, errors="skip"), OverflowError)


@pytest.mark.parametrize("failure", [(7, Poison("odd")), (-1, Poison("odd")), (1, None)])
def test_a_failure_of_no_entry_or_without_an_error_is_no_success(failure: Any) -> None:
    fails_for_good(Writer(lambda entries: [failure]), ValueError)


def test_rows_that_did_not_become_entries_are_never_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(lambda entries: [])
    with monkeypatch.context() as patch:
        patch.setattr(writer, "sizes", raising(OSError("a bug")))
        with pytest.raises(OSError, match="a bug"):
            writer.put(1)
    fails_for_good(writer, OSError)


def test_a_task_without_threads_fails_and_does_not_hang() -> None:
    writer = Writer(lambda entries: [], **{"batch.maxTime": "20ms", "request.timeout": "1s"})
    writer._sending._threads.submit = raising(RuntimeError("can't start new thread"))  # type: ignore[method-assign]
    writer.put(1)
    threading.Event().wait(0.1)  # the thread that keeps the time is the first to send
    writing = threading.Thread(target=fails_for_good, args=(writer, RuntimeError), daemon=True)
    writing.start()
    writing.join(20)
    assert not writing.is_alive()


def test_a_bad_row_with_a_time_that_python_lacks_is_a_bad_row() -> None:
    writer = Writer(lambda entries: [(1, Poison("odd"))], errors="skip")
    far = pa.array([2**60, 2**60], pa.timestamp("us"))
    writer.write(pa.RecordBatch.from_arrays([pa.array([1, 2]), far], ["id", "at"]))
    assert writer.prepare().rows == 1
    assert writer.rejects is not None
    assert writer.rejects.count == 1
    closing(writer)

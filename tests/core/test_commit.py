"""Stage, decide, publish; and carry through what an earlier run decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.core import Batch, CommitRefused, Committable, Committer, Fatal, Options, Sink, SinkWriter, Transient
from connectors.core.batch import DriverClock
from connectors.core.commit import Commit
from connectors.core.ledger import HISTORY, OWNER, Entry, FileLedger, Verdict, once_query
from connectors.core.sink import FrameCommitter
from connectors.core.writing import stage
from connectors.storage.base import Content
from connectors.storage.local import LocalStorage


class Crash(Exception):
    pass


class Recorder(Committer):
    """Writes down what it is asked to do; fails when told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.fails = False

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        self.calls.append(("replace" if batch.replace else "publish", batch.number))
        if self.fails:
            raise Crash

    def discard(self, committable: Committable) -> None:
        self.calls.append(("discard", committable.data["name"]))

    def sweep(self, live: frozenset[str]) -> None:
        self.calls.append(("sweep", len(live)))


class Toy(Sink):
    name, options = "toy", Options()
    root: Path
    recorder: Recorder

    def target(self) -> str:
        return "nowhere"

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        raise NotImplementedError

    def ledger(self) -> FileLedger:
        return FileLedger(LocalStorage(self.root))

    def committer(self) -> Recorder:
        return self.recorder


@pytest.fixture
def sink(tmp_path: Path) -> Toy:
    toy = Toy.of({})
    assert isinstance(toy, Toy)
    toy.root, toy.recorder = tmp_path, Recorder()
    return toy


class Claims(FrameCommitter):
    """Notes the claims of what it is to write; ``known`` are the batches that are there."""

    def __init__(self) -> None:
        self.known = {"old": Entry("old", 6), OWNER: Entry(OWNER, 0, owner="old")}
        self.claims: dict[str, int | None] = {}
        self.replacements: list[str] = []

    def last(self, query: str) -> Entry | None:
        return self.known.get(query)

    def queries(self) -> frozenset[str]:
        raise AssertionError("the sink has an owner")

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        raise AssertionError("nothing is staged")

    def commit_frame(self, frame: object, batch: Batch) -> None:
        self.claims[batch.query] = batch.claim
        self.replacements += [batch.query] if batch.replace else []

    def discard(self, committable: Committable) -> None:
        raise AssertionError("nothing is staged")


def test_two_queries_that_share_a_function_for_foreach_batch_make_claims_of_their_own(sink: Toy) -> None:
    shared = Toy.of({"onNewQuery": "continue"})
    vars(shared).update(root=sink.root, recorder=sink.recorder)
    commit = Commit(shared)
    commit.committer = committer = Claims()
    batches = [batch(7, "old"), batch(0, "new")]
    assert [commit.begin(one) for one in batches] == [Verdict.WRITE] * 2  # at the same time
    for one in batches:
        commit.commit_frame(object(), one)
    assert committer.claims == {"old": None, "new": 1}


@pytest.mark.parametrize(
    ("number", "known"), [(0, {OWNER: Entry(OWNER, 0, owner="q")}), (7, {})], ids=["claimed before", "lost ledger"]
)
def test_a_query_makes_one_claim_and_none_where_its_ledger_is_lost(sink: Toy, number: int, known: dict[str, Entry]) -> None:
    class Unclaimed(Claims):
        def queries(self) -> frozenset[str]:
            return frozenset()

    restored = Toy.of({"onLostLedger": "notWritten"})
    vars(restored).update(root=sink.root, recorder=sink.recorder)
    commit = Commit(restored)
    commit.committer = committer = Unclaimed()
    committer.known = known
    assert commit.begin(batch(number)) is Verdict.WRITE
    commit.commit_frame(object(), batch(number))
    assert committer.claims == {"q": None}


@pytest.mark.parametrize("owner", [{}, {OWNER: Entry(OWNER, 4)}], ids=["no claim", "a claim without a name"])
def test_a_sink_without_a_named_owner_belongs_to_the_queries_of_its_batches(sink: Toy, owner: dict[str, Entry]) -> None:
    class Nameless(Claims):
        def queries(self) -> frozenset[str]:
            return frozenset(self.known)

    commit = Commit(sink)
    commit.committer = committer = Nameless()
    committer.known = {"old": Entry("old", 6), **owner}
    with pytest.raises(CommitRefused, match="belongs to query old;"):
        commit.begin(batch(0, "new"))


def batch(number: int, query: str = "q") -> Batch:
    return Batch("toy", query, number)


def staged(name: str, rows: int = 5) -> list[Committable]:
    return [Committable(rows, {"name": name})]


def work(sink: Toy) -> list[tuple[str, object]]:
    """What the committer did since the last look, without sweeping."""
    calls, sink.recorder.calls = [call for call in sink.recorder.calls if call[0] != "sweep"], []
    return calls


def test_a_batch_is_recorded_and_then_published(sink: Toy) -> None:
    Commit(sink).finish(batch(0), staged("a"))
    assert work(sink) == [("publish", 0)]
    last = sink.ledger().last("q")
    assert last is not None
    assert (last.batch, last.rows) == (0, 5)
    assert [Committable(**committable) for committable in last.committables] == staged("a")
    assert sink.ledger().unpublished() == []


def test_what_was_recorded_is_published_by_the_next_run_before_anything_else(sink: Toy) -> None:
    sink.recorder.fails = True
    with pytest.raises(Crash):
        Commit(sink).finish(batch(0), staged("a"))
    sink.recorder.fails = False
    work(sink)
    assert Commit(sink).begin(batch(0)) is Verdict.SKIP
    assert work(sink) == [("publish", 0)]
    assert sink.ledger().unpublished() == []


def test_a_publication_that_fails_again_stays_to_be_done(sink: Toy) -> None:
    sink.recorder.fails = True
    for _ in range(3):
        with pytest.raises(Crash):
            Commit(sink).finish(batch(0), staged("a"))
    assert [entry.batch for entry in sink.ledger().unpublished()] == [0]


def test_a_publication_that_failed_is_made_good_by_a_replay_in_the_same_run(sink: Toy) -> None:
    commit = Commit(sink)
    batch = Batch("s", "q", 0)
    sink.recorder.fails = True
    with pytest.raises(Crash):
        commit.finish(batch, [Committable(1, {"name": "a"})])
    sink.recorder.fails = False
    sink.recorder.calls.clear()
    assert commit.begin(batch) is Verdict.SKIP
    assert ("publish", 0) in sink.recorder.calls
    assert sink.ledger().unpublished() == []


def test_recovery_and_sweeping_come_once_in_a_run_and_spare_the_live_batch(sink: Toy) -> None:
    commit = Commit(sink)
    for number in range(3):
        commit.begin(batch(number))
        commit.finish(batch(number), staged("a"))
    assert [call for call in sink.recorder.calls if call[0] == "sweep"] == [("sweep", 1)]


def test_a_run_of_months_sweeps_again_and_again(sink: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, now = Commit(sink), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for number, minutes in enumerate((0, 30, 59, 61, 90, 122)):
        now[0] = minutes * 60.0
        commit.begin(batch(number, "q"))
        commit.finish(batch(number, "q"), [Committable(1, {"name": str(number)})])
    assert [call for call in sink.recorder.calls if call[0] == "sweep"] == [("sweep", 1)] * 3


def test_a_replay_is_compared_and_its_stage_removed(sink: Toy) -> None:
    Commit(sink).finish(batch(0), staged("a"))
    work(sink)
    Commit(sink).finish(batch(0), staged("b"))
    assert work(sink) == [("discard", "b")]
    with pytest.raises(CommitRefused, match="5 rows, its replay has 6 rows"):
        Commit(sink).finish(batch(0), staged("c", rows=6))


def test_a_replay_with_another_checksum_is_refused(sink: Toy) -> None:
    Commit(sink).finish(batch(0), staged("a"), checksum="x")
    with pytest.raises(CommitRefused, match="other contents"):
        Commit(sink).finish(batch(0), staged("b"), checksum="y")


def test_a_replay_that_was_split_by_other_rules_is_refused_unless_the_user_says_so(sink: Toy) -> None:
    Commit(sink).finish(replace(batch(0), recipe="a"), staged("kept"), 5)
    with pytest.raises(CommitRefused, match=r"(?s)batch 0 is written again, and was split by other rules.*=skip: rows of it"):
        Commit(sink).finish(replace(batch(0), recipe="b"), staged("replay"), 5)
    for same in ("a", ""):  # a function of the user's own names none
        Commit(sink).finish(replace(batch(0), recipe=same), staged("replay"), 5)
    policy = Toy.of({"onReplayMismatch": "skip"})
    assert isinstance(policy, Toy)
    policy.root, policy.recorder = sink.root, sink.recorder
    Commit(policy).finish(replace(batch(0), recipe="b"), staged("replay"), 4)
    assert "recipe" not in Entry("q", 0).state()


def test_the_loser_of_a_race_gives_way(sink: Toy) -> None:
    slow = Commit(sink)
    assert slow.begin(batch(0)) is Verdict.WRITE

    class Faster(FileLedger):
        def record(self, entry: Entry) -> bool:
            if entry.query != OWNER:
                Commit(sink).finish(batch(0), staged("fast"))
            return super().record(entry)

    slow.ledger = Faster(LocalStorage(sink.root))
    slow.finish(batch(0), staged("slow"))
    assert work(sink) == [("publish", 0), ("publish", 0), ("discard", "slow")], "nobody knows how far the winner has come"
    assert sink.ledger().unpublished() == []


def test_the_loser_of_a_race_publishes_what_a_driver_has_recorded_that_died_then(sink: Toy) -> None:
    slow = Commit(sink)
    slow.begin(batch(0))

    class Faster(FileLedger):
        def record(self, entry: Entry) -> bool:
            if entry.query != OWNER:
                sink.ledger().record(Entry("q", 0, 5, committables=tuple(map(asdict, staged("fast")))))
            return super().record(entry)

    slow.ledger = Faster(LocalStorage(sink.root))
    slow.finish(batch(0), staged("slow"))
    slow.finish(batch(1), staged("next"))
    Commit(sink).begin(batch(2))
    assert work(sink) == [("publish", 0), ("discard", "slow"), ("publish", 1)]


def test_an_abort_removes_the_stage_of_a_batch_that_is_not_decided(sink: Toy) -> None:
    Commit(sink).abort(batch(0), [*staged("a"), None, *staged("b")])
    assert work(sink) == [("discard", "a"), ("discard", "b")]


def test_an_abort_touches_nothing_of_a_batch_that_is_decided(sink: Toy) -> None:
    sink.recorder.fails = True
    commit = Commit(sink)
    with pytest.raises(Crash):
        commit.finish(batch(0), staged("a"))
    work(sink)
    commit.abort(batch(0), staged("a"))
    assert work(sink) == []
    commit.abort(batch(1), staged("b"))
    assert work(sink) == [("discard", "b")]


def test_an_abort_removes_what_was_staged_for_a_batch_that_others_have_decided(sink: Toy) -> None:
    for number in range(2):
        Commit(sink).finish(batch(number), staged("a"))
    work(sink)
    commit = Commit(sink)
    commit.abort(batch(1), [*staged("a"), *staged("late")])
    commit.abort(batch(0), staged("refused"))
    assert work(sink) == [("discard", "late"), ("discard", "refused")]


def test_a_batch_known_to_be_written_is_recorded_and_not_published(tmp_path: Path) -> None:
    toy = Toy.of({"onLostLedger": "written"})
    assert isinstance(toy, Toy)
    toy.root, toy.recorder = tmp_path, Recorder()
    Commit(toy).finish(batch(4), staged("a"))
    assert work(toy)[0] == ("discard", "a")
    last = toy.ledger().last("q")
    assert last is not None
    assert (last.batch, last.committables) == (4, ())
    assert toy.ledger().unpublished() == []


def test_a_refusal_tells_the_sink_and_the_batch(sink: Toy) -> None:
    Commit(sink).finish(batch(5 - 5, "one"), staged("a"))
    with pytest.raises(CommitRefused, match=r"connectors\.toy, batch 0 of query two: "):
        Commit(sink).begin(batch(0, "two"))


def test_a_write_of_its_own_is_forgotten_when_it_is_published(sink: Toy) -> None:
    query = once_query()
    Commit(sink).finish(batch(0, query), staged("a"))
    assert sink.ledger().last(query) is None
    assert sink.ledger().queries() == frozenset()


def test_a_write_of_its_own_that_was_decided_is_carried_through(sink: Toy) -> None:
    sink.recorder.fails = True
    with pytest.raises(Crash):
        Commit(sink).finish(batch(0, once_query()), staged("a"))
    sink.recorder.fails = False
    work(sink)
    Commit(sink).finish(batch(0, "q"), staged("b"))
    assert work(sink) == [("publish", 0), ("publish", 0)]


def test_a_committer_without_a_ledger_is_an_error_of_the_author(sink: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "ledger", lambda self: None)
    with pytest.raises(TypeError, match="needs a ledger"):
        Commit(sink).finish(batch(0), staged("a"))


def test_names_of_a_batch_are_its_own_and_short() -> None:
    names = {Batch(sink, query, number).prefix() for sink in "ab" for query in "ab" for number in range(3)}
    assert len(names) == 12
    attempts = {batch(7).attempt() for _ in range(50)}
    assert len(attempts) == 50
    assert all(len(name.encode()) <= 63 and name.startswith(batch(7).prefix()) for name in attempts)
    assert sorted(batch(number).file_id() for number in (10, 9, 100)) == [
        batch(number).file_id() for number in (9, 10, 100)
    ]


def test_the_time_of_a_batch_goes_on_where_the_clock_of_the_machine_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, hour = DriverClock(), 3600 * 1_000_000
    assert abs(clock() - time.time_ns() // 1000) < hour
    for hours in (1, -5, 0):
        before, now = clock(), time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda now=now, hours=hours: now + hours * hour * 1000)
        assert clock() > before
        monkeypatch.undo()
    assert clock() - time.time_ns() // 1000 > hour // 2, "what was written within the hour is older"
    older = Batch("s", "q", 0)
    assert older.time < Batch("s", "q", 0).time
    assert older == Batch("s", "q", 0)


class Writer(SinkWriter):
    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, list[str]()

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what in self.fails.split():
            raise Fatal(f"{what} failed")

    def write(self, batch: pa.RecordBatch) -> None:
        self._do("write")

    def prepare(self) -> Committable:
        self._do("prepare")
        return Committable(1)

    def abort(self) -> None:
        self._do("abort")

    def close(self) -> None:
        self.calls.append("close")


ROWS = pa.RecordBatch.from_pydict({"a": [1]})


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("", ["write", "prepare", "close"]),
        ("write", ["write", "abort", "close"]),
        ("prepare", ["write", "prepare", "abort", "close"]),
        ("write abort", ["write", "abort", "close"]),
    ],
)
def test_a_writer_is_always_closed_and_aborted_when_it_failed(
    sink: Toy, monkeypatch: pytest.MonkeyPatch, fails: str, calls: list[str]
) -> None:
    writer = Writer(fails)
    monkeypatch.setattr(Toy, "writer", lambda *_: writer)
    if fails:
        with pytest.raises(Fatal, match=rf"connectors\.toy, batch 3 of query q, task 2: {fails.split()[0]} failed"):
            stage(sink, batch(3), ROWS.schema, 2, iter([ROWS]))
    else:
        assert stage(sink, batch(3), ROWS.schema, 2, iter([ROWS, ROWS.slice(1)])).rows == 1
    assert writer.calls == calls


def test_an_error_of_the_rows_aborts_the_writer(sink: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer()
    monkeypatch.setattr(Toy, "writer", lambda *_: writer)

    def rows() -> object:
        yield ROWS
        raise Crash

    with pytest.raises(Crash):
        stage(sink, batch(0), ROWS.schema, 0, rows())  # type: ignore[arg-type]
    assert writer.calls == ["write", "abort", "close"]


def committed(sink: Toy, numbers: range) -> None:
    commit = Commit(sink)
    for number in numbers:
        commit.begin(batch(number))
        commit.finish(batch(number), staged(str(number)))


def test_a_driver_that_stood_still_while_the_ledger_forgot_its_batch_publishes_nothing(sink: Toy) -> None:
    paused = Commit(sink)
    assert paused.begin(batch(0)) is Verdict.WRITE
    committed(sink, range(HISTORY + 5))
    work(sink)
    with pytest.raises(CommitRefused, match="batch 0 is recorded after batch 104: this driver stood still"):
        paused.contact.call(lambda: paused._record(batch(0), Entry("q", 0, 5)))
    Commit(sink).begin(batch(HISTORY + 5))
    assert work(sink) == []
    assert sink.ledger().unpublished() == []


def test_a_driver_that_dies_after_it_has_recorded_a_forgotten_batch_leaves_nothing_to_publish(sink: Toy) -> None:
    committed(sink, range(HISTORY + 5))
    work(sink)
    assert sink.ledger().record(Entry("q", 0, 5))
    Commit(sink).begin(batch(HISTORY + 5))
    assert work(sink) == []
    assert sink.ledger().unpublished() == []


class Away(LocalStorage):
    """A storage that answers the next ``operation`` with an outage."""

    operation = ""

    def _strike(self, operation: str) -> None:
        if operation == Away.operation:
            Away.operation = ""
            raise Transient("S3 answered SlowDown (503)")

    def put_if_absent(self, name: str, content: Content) -> bool:
        self._strike("put")
        return super().put_if_absent(name, content)

    def delete(self, name: str) -> None:
        self._strike("delete")
        super().delete(name)

    def names(self, folder: str = "") -> list[str]:
        self._strike("list")
        return super().names(folder)


class FarToy(Toy):
    def ledger(self) -> FileLedger:
        return FileLedger(Away(self.root))


@pytest.mark.parametrize("operation", ["put", "delete", "list"])
def test_a_short_outage_of_the_ledger_is_waited_for_at_each_step(tmp_path: Path, operation: str) -> None:
    toy = FarToy.of({"retry.initialBackoff": "10ms"})
    assert isinstance(toy, FarToy)
    toy.root, toy.recorder = tmp_path, Recorder()
    Commit(toy).finish(batch(0), staged("a"))
    commit = Commit(toy)
    Away.operation = operation
    commit.finish(batch(1), staged("b"))
    assert Away.operation == ""
    assert [call for call in toy.recorder.calls if call[0] == "publish"] == [("publish", 0), ("publish", 1)]

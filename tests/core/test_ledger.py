"""The ledger's rules as a table, and the ledger of files."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from connectors.core import CommitRefused, StateError
from connectors.core.ledger import (
    HISTORY,
    OWNER,
    Entry,
    FileLedger,
    ReplayPolicy,
    Verdict,
    app_query,
    check_claim,
    compare_replay,
    decide,
    is_stream,
    once_query,
)
from connectors.storage.base import Content, Item
from connectors.storage.local import LocalStorage

WRITE, SKIP, RECORD_ONLY = Verdict.WRITE, Verdict.SKIP, Verdict.RECORD_ONLY
Q, OTHER = "query-q", "query-o"

TABLE = [
    # last recorded batch, batch, other queries, policy, what follows
    (None, 0, (), {}, WRITE),
    (3, 4, (), {}, WRITE),
    (3, 5, (), {}, "batch 4 never came"),
    (3, 9, (), {"on_new_query": "continue", "on_lost_ledger": "notWritten"}, "(?s)batches 4 to 8 .*onMissingBatches=continue"),
    (3, 9, (), {"on_missing_batches": "continue"}, WRITE),
    (3, 4, (OTHER,), {}, WRITE),
    (3, 3, (), {}, SKIP),
    (3, 3, (OTHER,), {}, SKIP),
    (3, 3, (), {"on_new_query": "continue", "on_lost_ledger": "written"}, SKIP),
    (3, 2, (), {}, "older checkpoint"),
    (3, 0, (OTHER,), {"on_new_query": "continue", "on_lost_ledger": "written"}, "older checkpoint"),
    (None, 0, (OTHER,), {}, "onNewQuery=continue"),
    (None, 7, (OTHER,), {}, "onNewQuery=continue"),
    (None, 0, (OTHER,), {"on_lost_ledger": "written"}, "onNewQuery=continue"),
    (None, 0, (OTHER,), {"on_new_query": "continue"}, WRITE),
    (None, 7, (OTHER,), {"on_new_query": "continue"}, WRITE),
    (None, 0, (OTHER,), {"on_new_query": "replace"}, WRITE),
    (None, 7, (OTHER,), {"on_new_query": "replace"}, "onNewQuery=continue"),
    (None, 1, (), {}, "onLostLedger=written"),
    (None, 7, (), {"on_new_query": "continue"}, "onLostLedger=written"),
    (None, 7, (), {"on_lost_ledger": "written"}, RECORD_ONLY),
    (None, 7, (), {"on_lost_ledger": "notWritten"}, WRITE),
    (None, 0, (), {"on_lost_ledger": "written"}, WRITE),
]


@pytest.mark.parametrize(("last", "batch", "others", "policy", "follows"), TABLE)
def test_a_verdict_follows_from_the_ledger(
    last: int | None, batch: int, others: tuple[str, ...], policy: dict[str, str], follows: Verdict | str
) -> None:
    entry = None if last is None else Entry(Q, last)
    queries = frozenset(others) | (frozenset({Q}) if last is not None else frozenset())

    def decided() -> Verdict:
        return decide("orders", Q, batch, entry, queries, ReplayPolicy(**policy))

    if isinstance(follows, Verdict):
        assert decided() is follows
    else:
        with pytest.raises(CommitRefused, match=follows) as caught:
            decided()
        assert "orders" in str(caught.value)
        assert caught.value.way_out


@pytest.mark.parametrize(
    ("last", "version", "follows"), [(None, 0, WRITE), (None, 9, WRITE), (3, 3, SKIP), (3, 2, SKIP), (3, 4, WRITE)]
)
@pytest.mark.parametrize("others", [frozenset[str](), frozenset({OTHER})])
def test_a_named_batch_write_is_written_once(
    last: int | None, version: int, follows: Verdict, others: frozenset[str]
) -> None:
    query = app_query("nightly")
    assert decide("orders", query, version, None if last is None else Entry(query, last), others, ReplayPolicy()) is follows


def test_only_streaming_queries_claim_a_sink() -> None:
    assert is_stream("5a1f")
    assert not is_stream(app_query("nightly"))
    assert not is_stream(once_query())
    assert once_query() != once_query()


MATCHES = [
    # recorded rows and sum, replayed rows and sum, agreement
    ((10, None), (10, None), True),
    ((10, None), (11, None), False),
    ((None, None), (11, None), True),
    ((10, None), (None, None), True),
    ((10, "a"), (10, "a"), True),
    ((10, "a"), (10, "b"), False),
    ((10, "a"), (11, "a"), False),
    ((10, "a"), (10, None), True),
    ((10, None), (10, "b"), True),
]


@pytest.mark.parametrize(("recorded", "replayed", "agrees"), MATCHES)
def test_a_replay_is_compared_with_what_was_committed(recorded: Any, replayed: Any, agrees: bool) -> None:
    entry = Entry(Q, 3, *recorded)
    compare_replay(entry, *replayed, ReplayPolicy(on_replay_mismatch="skip"))
    if agrees:
        compare_replay(entry, *replayed, ReplayPolicy())
    else:
        with pytest.raises(CommitRefused, match="onReplayMismatch=skip"):
            compare_replay(entry, *replayed, ReplayPolicy())


@pytest.fixture
def ledger(tmp_path: Path) -> FileLedger:
    return FileLedger(LocalStorage(tmp_path / "ledger"))


def publish(ledger: FileLedger, query: str, batch: int) -> None:
    entry = Entry(query, batch, 1, at=float(batch + 1))
    assert ledger.record(entry)
    ledger.mark_published(entry)


def files(ledger: FileLedger) -> int:
    return sum(1 for file in Path(ledger.storage.root).rglob("*") if file.is_file())  # type: ignore[attr-defined]


def test_an_empty_ledger_knows_nothing(ledger: FileLedger) -> None:
    assert (ledger.last(Q), ledger.queries(), ledger.unpublished()) == (None, frozenset(), [])


def test_the_highest_batch_is_the_last_whatever_the_number_of_digits(ledger: FileLedger) -> None:
    for batch in (9, 10, 2, 10**12, 99):
        ledger.record(Entry(Q, batch))
    last = ledger.last(Q)
    assert last is not None
    assert last.batch == 10**12


def test_queries_do_not_see_each_other(ledger: FileLedger) -> None:
    for query in (Q, OTHER, app_query("a/../b c"), once_query()):
        ledger.record(Entry(query, 1))
    assert ledger.queries() == {Q, OTHER}
    assert ledger.last("query") is None
    named = ledger.last(app_query("a/../b c"))
    assert named is not None
    assert named.query == app_query("a/../b c")


def test_a_batch_is_recorded_once(ledger: FileLedger) -> None:
    assert ledger.record(Entry(Q, 1, 10))
    assert not ledger.record(Entry(Q, 1, 20))
    last = ledger.last(Q)
    assert last is not None
    assert last.rows == 10


def _record(root: Path, start: Any, number: int) -> bool:
    start.wait()
    return FileLedger(LocalStorage(root)).record(Entry(Q, 7, number))


def test_one_of_many_processes_records_a_batch(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        for round_ in range(5):
            start = manager.Barrier(6)
            with context.Pool(6) as pool:
                won = pool.starmap(
                    _record, [(tmp_path / str(round_), start, number) for number in range(6)], chunksize=1
                )
            assert sum(won) == 1
            last = FileLedger(LocalStorage(tmp_path / str(round_))).last(Q)
            assert last is not None
            assert last.rows == won.index(True)


def test_what_is_recorded_and_not_published_is_told_oldest_first(ledger: FileLedger) -> None:
    ledger.record(Entry(OTHER, 2, at=20.0))
    ledger.record(Entry(Q, 9, at=10.0))
    ledger.record(Entry(Q, 10, at=30.0))
    publish(ledger, Q, 8)
    assert [(entry.query, entry.batch) for entry in ledger.unpublished()] == [(Q, 9), (OTHER, 2), (Q, 10)]
    ledger.mark_published(Entry(Q, 9))
    ledger.mark_published(Entry(Q, 9))
    assert [entry.batch for entry in ledger.unpublished()] == [2, 10]


def test_the_newest_entries_are_kept_and_the_rest_goes(ledger: FileLedger) -> None:
    for batch in range(HISTORY + 30):
        publish(ledger, Q, batch)
    batches = {int(name[:20]) for name in ledger.storage.names(Q)}
    assert batches == set(range(30, HISTORY + 30))
    assert files(ledger) == HISTORY


def test_what_is_not_published_is_kept_however_old(ledger: FileLedger) -> None:
    ledger.record(Entry(Q, 0))
    for batch in range(1, HISTORY + 30):
        publish(ledger, Q, batch)
    assert [entry.batch for entry in ledger.unpublished()] == [0]


class Crash(Exception):
    pass


class Crashing(LocalStorage):
    """Its process dies when it has put ``lifetime`` files."""

    lifetime = 0

    def put_if_absent(self, name: str, content: Content) -> bool:
        if not self.lifetime:
            raise Crash
        self.lifetime -= 1
        return super().put_if_absent(name, content)


@pytest.mark.parametrize("lifetime", [0, 1, 2])
def test_a_batch_that_a_dead_driver_has_recorded_is_carried_through(ledger: FileLedger, lifetime: int) -> None:
    storage = Crashing(ledger.storage.root)
    storage.lifetime = lifetime
    with contextlib.suppress(Crash):
        FileLedger(storage).record(Entry(Q, 0))
    is_recorded = ledger.last(Q) is not None
    assert [entry.batch for entry in ledger.unpublished()] == [0] * is_recorded
    assert ledger.record(Entry(Q, 0)) is not is_recorded
    assert [entry.batch for entry in ledger.unpublished()] == [0]


def test_a_batch_that_another_driver_publishes_during_the_listing_is_passed_over(ledger: FileLedger) -> None:
    class Late(LocalStorage):
        def names(self, folder: str = "") -> list[str]:
            names = super().names(folder)
            ledger.mark_published(Entry(Q, 0))
            return names

    ledger.record(Entry(Q, 0))
    assert FileLedger(Late(ledger.storage.root)).unpublished() == []


def test_a_batch_write_of_its_own_leaves_nothing_behind(ledger: FileLedger) -> None:
    for _ in range(20):
        publish(ledger, once_query(), 0)
    assert files(ledger) == 0
    assert ledger.storage.folders() == []


class Counting(LocalStorage):
    """Counts the calls that list a folder, and the names that they give."""

    calls = count = 0

    def items(self, folder: str = "") -> list[Item]:
        items = super().items(folder)
        self._note(len(items))
        return items

    def names(self, folder: str = "") -> list[str]:
        names = super().names(folder)
        self._note(len(names))
        return names

    def _note(self, count: int) -> None:
        self.calls += 1
        self.count += count


def test_a_look_up_costs_the_same_after_a_thousand_batches(tmp_path: Path) -> None:
    store = Counting(tmp_path)
    ledger = FileLedger(store)

    def cost() -> int:
        store.count = 0
        ledger.last(Q)
        ledger.queries()
        ledger.unpublished()
        return store.count

    costs = []
    for batch in range(1000):
        publish(ledger, Q, batch)
        if batch in (2 * HISTORY, 999):
            costs.append(cost())
    assert costs[0] == costs[1] <= 4 * HISTORY + 4


def test_a_batch_costs_the_same_beside_a_thousand_others_that_write_to_the_sink(tmp_path: Path) -> None:
    store = Counting(tmp_path)
    ledger = FileLedger(store)
    costs = []
    for number in range(1000):
        store.calls = store.count = 0
        publish(ledger, app_query(f"load {number}"), 0)
        assert ledger.unpublished() == []
        costs.append((store.calls, store.count))
    assert costs[1] == costs[-1] > (0, 0)


@pytest.mark.parametrize("name", ["x" * 251, "ä" * 41])
def test_a_query_may_have_the_longest_name_that_a_folder_can_have(ledger: FileLedger, name: str) -> None:
    entry = Entry(app_query(name), 10**15)
    assert ledger.record(entry)
    assert [pending.query for pending in ledger.unpublished()] == [entry.query]
    ledger.mark_published(entry)
    assert ledger.unpublished() == []


def test_a_claim_takes_over_from_one_that_was_seen_and_from_no_other(ledger: FileLedger) -> None:
    first, late, next_one = (Entry(query, 0, claim=claim) for query, claim in ((Q, 0), (OTHER, 0), (OTHER, 1)))
    assert [ledger.record(claim) for entry in (first, late, next_one) if (claim := entry.ownership())] == [True, False, True]
    owner = ledger.last(OWNER)
    assert owner is not None
    assert (owner.owner, owner.batch) == (OTHER, 1)
    with pytest.raises(CommitRefused, match=f"(?s)belongs to query {OTHER}.*onNewQuery"):
        check_claim("orders", first, owner)
    check_claim("orders", next_one, owner)
    assert ledger.queries() == frozenset()
    assert ledger.unpublished() == []
    assert ledger.content("orders").entries == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "not JSON"), (b"{", "not JSON"), (b"[]", "no state"), (b'{"v":99}', "version 99"), (b'{"v":1}', "lacks")],
)
def test_a_damaged_entry_is_a_clear_error(ledger: FileLedger, content: bytes, says: str) -> None:
    ledger.storage.put_if_absent(f"{Q}/{5:020d}.json", content)
    ledger.storage.put_if_absent(f".pending/x@{5:020d}", Q.encode())
    for look in (lambda: ledger.last(Q), ledger.unpublished):
        with pytest.raises(StateError, match=says):
            look()


def test_foreign_files_in_the_ledger_are_passed_over(ledger: FileLedger) -> None:
    publish(ledger, Q, 1)
    for name in ("readme.txt", f"{9:020d}.json.bak", ".hidden", f"{9:019d}.json"):
        ledger.storage.put_if_absent(f"{Q}/{name}", b"x")
    ledger.storage.put_if_absent(f".pending/x@{7:020d}", Q.encode())  # its driver died before it recorded the batch
    ledger.storage.put_if_absent(".pending/readme", b"")
    last = ledger.last(Q)
    assert last is not None
    assert last.batch == 1
    assert ledger.unpublished() == []


def test_every_policy_has_a_verdict_or_a_way_out_for_every_situation() -> None:
    policies = itertools.product(("stop", "continue"), ("stop", "skip"), ("stop", "written", "notWritten"))
    situations = itertools.product((None, 0, 5), (0, 4, 5, 6), (frozenset[str](), frozenset({OTHER})))
    for policy, (last, batch, others) in itertools.product(policies, situations):
        try:
            verdict = decide("s", Q, batch, None if last is None else Entry(Q, last), others, ReplayPolicy(*policy))
            assert not (verdict is SKIP and (last is None or batch != last))
            assert not (verdict is WRITE and last is not None and batch <= last)
        except CommitRefused as refused:
            assert refused.way_out  # noqa: PT017

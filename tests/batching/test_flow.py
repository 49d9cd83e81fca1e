"""What is sent when, what a failure does, and what stops everything: in time that passes at once."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from connectors.batching import Throttled
from connectors.core import Fatal, Poison, Transient
from connectors.ground.retry import BreakerPolicy, RetrySettings

from .simulation import LIMITS, NEVER, NO_BREAKER, Answer, Simulation


def outage() -> Exception:
    return Transient("away")


def sizes(simulation: Simulation) -> list[int]:
    return [len(sent.entries) for sent in simulation.sent]


def test_a_request_closes_with_its_records_and_the_rest_goes_at_the_end() -> None:
    simulation = Simulation(lambda number, entries: Answer())
    flow = simulation.run([(0.0, list(range(25)))])
    assert sizes(simulation) == [10, 10, 5]
    assert simulation.applied == list(range(25))
    assert flow.counts.acknowledged == flow.counts.taken == 25


def test_a_request_closes_with_its_bytes() -> None:
    simulation = Simulation(lambda number, entries: Answer(), size=lambda entry: 300)
    simulation.run([(0.0, list(range(7)))])
    assert sizes(simulation) == [3, 3, 1]


def test_a_record_as_large_as_a_request_goes_alone() -> None:
    simulation = Simulation(lambda number, entries: Answer(), size=lambda entry: 1000 if entry == 2 else 1)
    simulation.run([(0.0, list(range(5)))])
    assert [sent.entries for sent in simulation.sent] == [[0, 1], [2], [3, 4]]


def test_a_request_closes_when_its_first_entry_has_waited_long_enough() -> None:
    simulation = Simulation(lambda number, entries: Answer())
    simulation.run([(0.0, [1, 2]), (3.0, [3]), (20.0, [4])])
    assert [(sent.at, sent.entries) for sent in simulation.sent] == [(5.0, [1, 2, 3]), (23.0, [4])]


def test_so_many_requests_are_under_way_and_no_more() -> None:
    simulation = Simulation(lambda number, entries: Answer(100.0), limits=dataclasses.replace(LIMITS, timeout=1000.0))
    simulation.run([(0.0, list(range(200)))])
    assert simulation.most_in_flight == 3


def test_input_waits_while_the_buffer_is_full() -> None:
    counts = []

    def answer(number: int, entries: list[int]) -> Answer:
        counts.append(simulation.flow.counts.taken - simulation.flow.counts.acknowledged)
        return Answer(1.0)

    simulation = Simulation(answer)
    simulation.run([(0.0, list(range(500)))])
    assert max(counts) <= LIMITS.buffered + LIMITS.in_flight * LIMITS.records
    assert simulation.applied == list(range(500))


def test_only_failed_entries_are_sent_again_first_and_in_their_order() -> None:
    def answer(number: int, entries: list[int]) -> Answer:
        return Answer(refuse=lambda entry: Throttled("slower") if number == 0 and entry in (3, 7) else None)

    simulation = Simulation(answer, limits=dataclasses.replace(LIMITS, in_flight=1))
    simulation.run([(0.0, list(range(30)))])
    assert simulation.sent[1].entries[:2] == [3, 7]
    assert [entry for sent in simulation.sent[1:] for entry in sent.entries] == [3, 7, *range(10, 30)]
    assert sorted(simulation.applied) == list(range(30))


def test_entries_of_several_failed_requests_come_again_in_the_order_of_the_input() -> None:
    def answer(number: int, entries: list[int]) -> Answer:
        return Answer(seconds=3.0 - number, error=outage) if number < 3 else Answer()

    simulation = Simulation(answer)
    simulation.run([(0.0, list(range(30)))])
    assert simulation.applied == list(range(30))


def test_nothing_is_sent_during_the_pause_after_an_outage_and_pauses_grow() -> None:
    simulation = Simulation(lambda number, entries: Answer(0.0, error=outage) if number < 3 else Answer())
    simulation.run([(0.0, [1])])
    gaps = [after.at - before.at for before, after in pairwise(simulation.sent)]
    assert [0.5 <= gaps[0] <= 1.0, 1.0 <= gaps[1] <= 2.0, 2.0 <= gaps[2] <= 4.0] == [True] * 3


def test_the_target_may_say_how_long_to_wait() -> None:
    busy = Throttled("slower", retry_after=17.0)
    simulation = Simulation(lambda number, entries: Answer(1.0, refuse=lambda entry: busy if number == 0 else None))
    simulation.run([(0.0, [1])])
    assert simulation.sent[1].at - simulation.sent[0].at == 18.0


@pytest.mark.parametrize("kind", [Throttled, Transient])
@pytest.mark.parametrize("reached", [False, True])
def test_a_target_that_says_when_to_come_again_is_not_asked_before(kind: type[Transient], reached: bool) -> None:
    retry = RetrySettings(5, 1.0, 60.0, 2, outage_timeout=600.0, longest_wait=600.0)
    busy = lambda: kind("slower", retry_after=300.0)  # noqa: E731
    simulation = Simulation(lambda number, entries: Answer(0.0, busy if number == 0 else None), retry=retry, reached=reached)
    assert simulation.run([(0.0, [1])]).error is None
    assert [sent.at for sent in simulation.sent] == [0.0, 300.0]
    simulation = Simulation(lambda number, entries: Answer(0.0, lambda: kind("slower", retry_after=3600.0)), retry=retry)
    error = simulation.run([(0.0, [1])]).error
    assert "refused 2 times" in str(error)
    assert "longer than outageTimeout, 600 s" in str(error)
    assert [sent.at for sent in simulation.sent] == [0.0, 600.0]


def test_an_outage_that_outlives_the_tries_stops_everything() -> None:
    simulation = Simulation(lambda number, entries: Answer(error=outage), retry=RetrySettings(2, 1.0, 60.0, 2))
    flow = simulation.run([(0.0, list(range(100)))])
    assert isinstance(flow.error, Transient)
    assert "refused 3 times; the last answer: away" in str(flow.error)
    assert max(simulation.refusals.values()) == 3
    assert flow.next() is None


@pytest.mark.parametrize("error", [Fatal("no rights"), ValueError("a bug")])
def test_an_error_that_nobody_expects_stops_everything_at_once(error: Exception) -> None:
    simulation = Simulation(lambda number, entries: Answer(error=lambda: error))
    flow = simulation.run([(0.0, list(range(100)))])
    assert flow.error is error
    assert len(simulation.sent) <= LIMITS.in_flight


def test_a_fatal_entry_stops_everything() -> None:
    refuse = {5: Fatal("no rights")}
    simulation = Simulation(lambda number, entries: Answer(refuse=refuse.get))
    assert simulation.run([(0.0, list(range(100)))]).error is refuse[5]


def test_bad_entries_are_rejected_once_with_their_rows_and_never_sent_again() -> None:
    bad = {3: Poison("bad"), 14: Poison("bad")}
    simulation = Simulation(lambda number, entries: Answer(refuse=bad.get))
    flow = simulation.run([(0.0, list(range(30)))])
    assert simulation.rejected == [({"entry": "3"}, bad[3]), ({"entry": "14"}, bad[14])]
    assert simulation.applied == [entry for entry in range(30) if entry not in bad]
    assert (flow.counts.acknowledged, flow.counts.rejected) == (28, 2)


def test_a_request_that_is_refused_as_a_whole_is_halved_until_its_bad_entries_are_alone() -> None:
    bad = {3, 11}

    def answer(number: int, entries: list[int]) -> Answer:
        return Answer(error=lambda: Poison("bad")) if bad & set(entries) else Answer()

    simulation = Simulation(answer)
    flow = simulation.run([(0.0, list(range(15)))])
    assert flow.error is None
    assert sorted(simulation.applied) == [entry for entry in range(15) if entry not in bad]
    assert sorted(row["entry"] for row, _ in simulation.rejected) == ["11", "3"]
    assert (flow.counts.acknowledged, flow.counts.rejected) == (13, 2)
    assert flow.counts.retries == 0


def test_a_request_without_an_answer_is_sent_again_and_its_late_answer_is_not_heard() -> None:
    simulation = Simulation(lambda number, entries: Answer(62.0) if number == 0 else Answer(5.0))
    flow = simulation.run([(0.0, [1])])
    assert simulation.sent[1].at == pytest.approx(60.75, abs=0.26)
    assert flow.counts.acknowledged == 1
    assert flow.counts.retries == 1


def test_a_request_without_an_answer_fails_for_good_when_the_user_says_so() -> None:
    limits = dataclasses.replace(LIMITS, fail_on_timeout=True)
    simulation = Simulation(lambda number, entries: Answer(NEVER), limits=limits)
    assert "no answer within 60s" in str(simulation.run([(0.0, [1])]).error)
    assert len(simulation.sent) == 1


def test_the_rate_falls_to_half_once_for_requests_that_fail_together_and_grows_with_each_success() -> None:
    def answer(number: int, entries: list[int]) -> Answer:
        return Answer(refuse=lambda entry: Throttled("slower") if number < 4 and entry % 10 == 0 else None)

    simulation = Simulation(answer, limits=dataclasses.replace(LIMITS, in_flight=8, buffered=100))
    flow = simulation.run([(0.0, list(range(100)))])
    assert len([sent for sent in simulation.sent if sent.at == 0.0]) == 4  # four batches under way at first
    assert min(simulation.limits_seen) == 20
    assert flow.rate.limit == 20 + (len(simulation.sent) - 4)  # a tenth of a batch each


def test_the_rate_is_never_below_one_nor_above_its_maximum() -> None:
    retry = RetrySettings(20, 1.0)
    simulation = Simulation(lambda number, entries: Answer(error=outage) if number < 12 else Answer(), retry=retry)
    flow = simulation.run([(0.0, list(range(600)))])
    assert min(simulation.limits_seen) == 1
    assert flow.rate.limit <= flow.rate.most == 30


def test_an_open_circuit_is_waited_for_and_lets_one_request_through() -> None:
    policy = BreakerPolicy(failures=3, reset_seconds=30.0)
    simulation = Simulation(
        lambda number, entries: Answer(0.0, error=outage) if simulation.now < 3 or number < 3 else Answer(),
        breaker=policy,
        retry=RetrySettings(9),
        limits=dataclasses.replace(LIMITS, in_flight=2),
    )
    flow = simulation.run([(0.0, list(range(100)))])
    assert flow.error is None
    opened, trial = next((a.at, b.at) for a, b in pairwise(simulation.sent) if b.at - a.at > 20)
    assert trial - opened == pytest.approx(30.0)
    assert len([sent for sent in simulation.sent if opened < sent.at < trial + 0.9]) == 1  # on trial, alone
    assert sorted(simulation.applied) == list(range(100))


def test_while_one_request_is_on_trial_the_others_wait_and_use_up_no_try() -> None:
    policy = BreakerPolicy(failures=1, reset_seconds=30.0)
    limits = dataclasses.replace(LIMITS, in_flight=8)
    simulation = Simulation(
        lambda number, entries: Answer(error=outage) if number < 1 else Answer(), limits, breaker=policy
    )
    simulation.run([(0.0, list(range(10))), (2.0, list(range(10, 100)))])
    assert min(simulation.limits_seen) == 20  # there would be room for two
    assert sorted(simulation.applied) == list(range(100))


def test_requests_that_fail_together_are_one_failure_to_the_circuit() -> None:
    policy = BreakerPolicy(failures=2, reset_seconds=30.0)
    simulation = Simulation(lambda number, entries: Answer(error=outage) if number < 3 else Answer(), breaker=policy)
    assert simulation.run([(0.0, list(range(30)))]).error is None
    assert simulation.now < 10


def test_an_open_circuit_uses_up_no_try() -> None:
    policy = BreakerPolicy(failures=3, reset_seconds=300.0)
    simulation = Simulation(lambda number, entries: Answer(error=outage), breaker=policy, retry=RetrySettings(3))
    flow = simulation.run([(0.0, [1])])
    assert "refused 4 times; the last answer: away" in str(flow.error)
    assert simulation.now > 300
    assert len(simulation.sent) == 4


@pytest.mark.parametrize("breaker", [NO_BREAKER, BreakerPolicy(5, 30.0)])
def test_an_outage_of_five_minutes_is_waited_for(breaker: BreakerPolicy) -> None:
    simulation = Simulation(
        lambda number, entries: Answer(error=outage if 2 < simulation.now < 302 else None),
        retry=RetrySettings(outage_timeout=600.0),
        breaker=breaker,
    )
    flow = simulation.run([(0.0, list(range(20))), (3.0, list(range(20, 100)))])
    assert flow.error is None
    assert sorted(simulation.applied) == list(range(100))
    assert 302 < simulation.now < 400


def test_an_answer_to_a_request_from_before_an_outage_does_not_end_it() -> None:
    def answer(number: int, entries: list[int]) -> Answer:
        if number == 1:
            return Answer(seconds=1.5)  # after the failure of the other one
        return Answer(error=outage if simulation.now < 302 else None)

    simulation = Simulation(answer, retry=RetrySettings(outage_timeout=600.0))
    flow = simulation.run([(0.0, list(range(20)))])
    assert simulation.sent[1].at == 0.0
    assert flow.error is None
    assert sorted(simulation.applied) == list(range(20))


def test_an_outage_is_waited_for_only_so_long_and_the_error_says_since_when() -> None:
    retry = RetrySettings(outage_timeout=600.0)
    simulation = Simulation(lambda number, entries: Answer(error=outage), retry=retry, reached=True)
    text = str(simulation.run([(0.0, list(range(20)))]).error)
    assert "the last answer: away" in text
    assert "longer than outageTimeout, 600 s" in text
    assert 600 <= simulation.now < 700


def test_an_entry_that_is_throttled_for_longer_than_its_tries_is_sent_when_there_is_room() -> None:
    def answer(number: int, entries: list[int]) -> Answer:
        return Answer(refuse=lambda entry: Throttled("slower") if entry == 7 and simulation.now < 300 else None)

    simulation = Simulation(answer, retry=RetrySettings(outage_timeout=600.0))
    flow = simulation.run([(0.0, list(range(20)))])
    assert flow.error is None
    assert sorted(simulation.applied) == list(range(20))
    never = Simulation(
        lambda number, entries: Answer(refuse=lambda entry: Throttled("slower") if entry == 7 else None),
        retry=RetrySettings(outage_timeout=600.0),
    )
    assert "longer than outageTimeout, 600 s" in str(never.run([(0.0, list(range(20)))]).error)
    assert 600 <= never.now < 700


def test_a_target_that_has_never_answered_is_given_up_with_the_tries() -> None:
    simulation = Simulation(lambda number, entries: Answer(error=outage), retry=RetrySettings(outage_timeout=600.0))
    assert "refused 6 times" in str(simulation.run([(0.0, [1])]).error)
    assert simulation.now < 60


def test_an_entry_that_is_refused_while_others_are_taken_has_its_tries_and_no_more() -> None:
    refuse = {5: Transient("not now")}
    simulation = Simulation(lambda number, entries: Answer(refuse=refuse.get), retry=RetrySettings(2, outage_timeout=600.0))
    flow = simulation.run([(0.0, list(range(30)))])
    assert "refused 3 times" in str(flow.error)
    assert simulation.refusals[5] == 3


def test_after_a_long_outage_entries_have_all_their_tries_again() -> None:
    """The target is away for five minutes, comes back for one request, and then refuses each request twice."""
    later: dict[tuple[int, ...], int] = {}

    def answer(number: int, entries: list[int]) -> Answer:
        if simulation.now < 300 and number:
            return Answer(error=outage)
        if simulation.applied[10:]:
            later[tuple(entries)] = later.get(tuple(entries), 0) + 1
            return Answer(error=outage if later[tuple(entries)] < 3 else None)
        return Answer()

    simulation = Simulation(answer, dataclasses.replace(LIMITS, in_flight=1), retry=RetrySettings(2, outage_timeout=600.0))
    assert simulation.run([(0.0, list(range(40)))]).error is None
    assert sorted(simulation.applied) == list(range(40))


def test_two_of_one_key_are_never_in_two_requests_at_once() -> None:
    flying: list[set[int]] = []

    def answer(number: int, entries: list[tuple[int, int]]) -> Answer:
        flying.append({key for key, _ in entries})
        both = [request.keys() for request in simulation.flow.under_way.values()]
        together = [key for keys in both for key in set(keys)]
        assert len(together) == len(set(together))
        return Answer(10.0 - number % 7)

    simulation = Simulation(answer, key=lambda entry: entry[0])
    simulation.run([(0.0, [(n % 12, n) for n in range(100)])])
    newest = {key: max(version for other, version in simulation.applied if other == key) for key in range(12)}
    assert {key: [v for k, v in simulation.applied if k == key][-1] for key in range(12)} == newest


def test_what_follows_a_failed_entry_of_its_key_is_sent_again_after_it() -> None:
    def answer(number: int, entries: list[tuple[str, int]]) -> Answer:
        return Answer(refuse=lambda entry: Throttled("slower") if number == 0 and entry == ("a", 1) else None)

    simulation = Simulation(answer, key=lambda entry: entry[0])
    flow = simulation.run([(0.0, [("a", 1), ("b", 1), ("a", 2)])])
    assert simulation.sent[1].entries == [("a", 1), ("a", 2)]
    assert flow.counts.acknowledged == 3


def test_what_is_bad_only_because_an_entry_before_it_of_its_key_failed_is_sent_again_with_it() -> None:
    """As the update of a document whose creation, in the same request, came when the target was busy."""

    def answer(number: int, entries: list[tuple[str, int]]) -> Answer:
        def refuse(entry: tuple[str, int]) -> Exception | None:
            if entry == ("a", 1) and number == 0:
                return Throttled("slower")
            is_made = entry[1] == 1 or ("a", 1) in simulation.applied or (entries[0] == ("a", 1) and number)
            return Poison("no such document") if not is_made or entry == ("a", 3) else None

        return Answer(refuse=refuse)

    simulation = Simulation(answer, key=lambda entry: entry[0])
    flow = simulation.run([(0.0, [("a", 1), ("b", 1), ("a", 2), ("a", 3)])])
    assert simulation.sent[1].entries == [("a", 1), ("a", 2), ("a", 3)]
    assert simulation.applied == [("b", 1), ("a", 1), ("a", 2)]
    assert [row["entry"] for row, _ in simulation.rejected] == [repr(("a", 3))]
    assert (flow.counts.acknowledged, flow.counts.rejected) == (3, 1)


def test_a_request_that_was_given_up_keeps_its_keys_until_its_call_returns() -> None:
    simulation = Simulation(lambda number, entries: Answer(100.0 if number == 0 else 1.0), key=lambda entry: entry[0])
    flow = simulation.run([(0.0, [("a", 1)]), (70.0, [("a", 2)])])
    assert simulation.applied == [("a", 1), ("a", 1), ("a", 2)], "the one that came late, its repetition, the newest"
    assert [sent.at >= 100.0 for sent in simulation.sent] == [False, True]
    assert flow.error is None


def test_a_request_whose_call_never_returns_ends_the_flow_where_its_key_has_an_order() -> None:
    simulation = Simulation(lambda number, entries: Answer(NEVER if number == 0 else 1.0), key=lambda entry: entry[0])
    flow = simulation.run([(0.0, [("a", 1)]), (1.0, [("a", 2)])])
    assert isinstance(flow.error, Transient)
    assert "its call has not returned either" in str(flow.error)
    assert (simulation.now, simulation.applied) == (121.0, [])
    simulation = Simulation(lambda number, entries: Answer(NEVER if number == 0 else 1.0))
    assert simulation.run([(0.0, [1]), (1.0, [2])]).error is None
    assert simulation.applied == [1, 2]

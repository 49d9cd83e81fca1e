"""Whatever a target does: each entry is taken or set aside, exactly as the policy says, and never more often than allowed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.batching import Throttled
from connectors.batching.flow import FlowLimits
from connectors.core import Poison, Transient
from connectors.ground.retry import BreakerPolicy, RetrySettings

from .simulation import NEVER, Answer, Simulation

SECONDS = st.sampled_from([0.0, 0.5, 1.0, 5.0, 59.0])
KINDS = st.sampled_from(["taken"] * 5 + ["some throttled"] * 3 + ["all throttled", "away", "away"])
STEPS = st.tuples(KINDS, SECONDS, st.integers(0, 7))
LATE = st.tuples(st.sampled_from(["taken", "taken", "away", "late", "later"]), SECONDS, st.just(0))
HANGS = st.tuples(st.sampled_from(["taken", "away", "hangs", "late"]), SECONDS, st.just(0))
INPUT = st.lists(st.tuples(st.sampled_from([0.0, 0.0, 1.0, 7.0]), st.integers(1, 40)), min_size=1, max_size=6)
LIMITS = st.builds(
    FlowLimits,
    records=st.integers(1, 12),
    bytes=st.integers(20, 100),
    seconds=st.sampled_from([0.0, 1.0, 5.0]),
    record_bytes=st.just(20),
    in_flight=st.integers(1, 5),
    buffered=st.integers(13, 40),
    timeout=st.just(60.0),
)
RETRY = st.builds(RetrySettings, max_retries=st.integers(0, 6), initial_backoff=st.just(1.0), max_backoff=st.just(20.0))
BREAKER = st.builds(BreakerPolicy, failures=st.integers(1, 6), reset_seconds=st.sampled_from([5.0, 30.0]))


def is_bad(entry: Any) -> bool:
    return hash(entry) % 7 == 3


def answer_of(script: list[tuple[str, float, int]], number: int) -> Answer:
    """The script's step; after its end all goes well."""
    kind, seconds, salt = script[number] if number < len(script) else ("taken", 1.0, 0)
    if kind == "away":
        return Answer(seconds, error=lambda: Transient("away"))
    if kind == "hangs":
        return Answer(NEVER)
    seconds = {"late": 61.0, "later": 119.0}.get(kind, seconds)

    def refuse(entry: Any) -> BaseException | None:
        if is_bad(entry):
            return Poison("bad")
        busy = kind == "all throttled" or (kind == "some throttled" and hash((entry, salt)) % 3 == 0)
        return Throttled("slower") if busy else None

    return Answer(seconds, refuse=refuse)


def numbered(lengths: list[tuple[float, int]], make: Any = lambda n: n) -> list[tuple[float, list[Any]]]:
    arrivals, first = [], 0
    for gap, count in lengths:
        arrivals.append((gap, [make(n) for n in range(first, first + count)]))
        first += count
    return arrivals


def simulated(script: Any, limits: FlowLimits, retry: RetrySettings, breaker: BreakerPolicy, **more: Any) -> Simulation:
    return Simulation(
        lambda number, _: answer_of(script, number), limits, retry, breaker, size=lambda entry: 1 + hash(entry) % 20, **more
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40), INPUT, LIMITS, RETRY, BREAKER)
def test_each_entry_is_taken_once_or_set_aside_once(script: Any, lengths: Any, limits: Any, retry: Any, breaker: Any) -> None:
    given_ = numbered(lengths)
    entries = [entry for _, part in given_ for entry in part]
    simulation = simulated(script, limits, retry, breaker)
    flow = simulation.run(given_)
    aside = sorted(int(row["entry"]) for row, _ in simulation.rejected)
    assert len(set(simulation.applied)) == len(simulation.applied)
    assert len(set(aside)) == len(aside)
    assert all(map(is_bad, aside))
    assert not any(map(is_bad, simulation.applied))
    assert max(simulation.refusals.values(), default=0) <= retry.max_retries + 1
    if flow.error is None:
        assert sorted(simulation.applied + aside) == entries
        assert flow.counts.acknowledged + flow.counts.rejected == flow.counts.taken == len(entries)
    else:
        assert max(simulation.refusals.values(), default=0) == retry.max_retries + 1
        assert isinstance(flow.error, Transient)
        assert flow.counts.acknowledged == len(simulation.applied)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=40), INPUT, LIMITS, RETRY, BREAKER)
def test_no_limit_is_ever_passed(script: Any, lengths: Any, limits: Any, retry: Any, breaker: Any) -> None:
    simulation = simulated(script, limits, retry, breaker)
    simulation.run(numbered(lengths))
    assert simulation.most_in_flight <= limits.in_flight
    for sent in simulation.sent:
        assert 1 <= len(sent.entries) <= limits.records
        assert sum(1 + hash(entry) % 20 for entry in sent.entries) <= limits.bytes
    assert all(1 <= limit <= simulation.flow.rate.most for limit in simulation.limits_seen)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS | LATE, max_size=40), INPUT, LIMITS, RETRY, BREAKER, st.integers(1, 9))
def test_the_newest_of_a_key_is_the_last_to_arrive(
    script: Any, lengths: Any, limits: Any, retry: Any, breaker: Any, keys: int
) -> None:
    given_ = numbered(lengths, lambda n: (n % keys, n))
    simulation = simulated(script, limits, retry, breaker, key=lambda entry: entry[0])
    flow = simulation.run(given_)
    if flow.error is not None:
        return
    for key in range(keys):
        good = [entry for _, part in given_ for entry in part if entry[0] == key and not is_bad(entry)]
        arrived = [entry for entry in simulation.applied if entry[0] == key]
        assert set(arrived) == set(good)
        assert arrived[-1:] == good[-1:]


@settings(max_examples=200, deadline=None)
@given(st.lists(HANGS, max_size=15), INPUT, LIMITS, RETRY)
def test_answers_that_are_late_or_never_come_lose_nothing(script: Any, lengths: Any, limits: Any, retry: Any) -> None:
    given_ = numbered(lengths)
    simulation = simulated(script, limits, retry, BreakerPolicy(1000))
    flow = simulation.run(given_)
    if flow.error is None:
        entries = [entry for _, part in given_ for entry in part]
        aside = {int(row["entry"]) for row, _ in simulation.rejected}
        assert set(simulation.applied) | aside == set(entries)
        assert flow.counts.acknowledged + flow.counts.rejected == len(entries)

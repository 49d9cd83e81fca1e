"""Whatever calls do and whenever they do it: each row has exactly one outcome, and the right one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.async_io.calls import Attempts, Cached, CircuitBreaker, Retry, as_list, one_at_a_time
from connectors.ground.retry import Breaker

TIMEOUT = 10.0
GRACE = 3.0


@dataclass(frozen=True)
class Try:
    """What one call does: works ``seconds``, then ``ends``; a cancel is obeyed, or swallowed and worked on for a while."""

    seconds: float
    ends: str
    swallows: float | None

    async def run(self, row: int) -> str:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            if self.swallows is None:
                raise
            await asyncio.sleep(self.swallows)
            return f"late {row}"
        if self.ends == "fails":
            raise ConnectionError(row)
        if self.ends == "breaks":
            raise ValueError(row)
        if self.ends == "cancels itself":
            raise asyncio.CancelledError
        return f"answer {row}"


# delays that meet the deadline exactly, and each other, are where races live
SECONDS = st.one_of(st.sampled_from([0.0, 1.0, TIMEOUT / 2, TIMEOUT, TIMEOUT * 5]), st.floats(0, 15))
TRIES = st.builds(
    Try,
    seconds=SECONDS,
    ends=st.sampled_from(["answers"] * 4 + ["fails", "fails", "breaks", "cancels itself"]),
    swallows=st.one_of(st.none(), st.none(), st.sampled_from([0.0, 1.0, GRACE, 50.0])),
)
SCRIPTS = st.lists(st.lists(TRIES, min_size=1, max_size=3), max_size=25)


class Service:
    """Plays each row's script, one :class:`Try` per call and the last one for ever; counts what runs at once."""

    def __init__(self, scripts):
        self.scripts, self.calls, self.now, self.most = scripts, defaultdict(int), 0, 0

    async def ask(self, row):
        self.now += 1
        self.most = max(self.most, self.now)
        script = self.scripts[row]
        step = script[min(self.calls[row], len(script) - 1)]
        self.calls[row] += 1
        try:
            return await step.run(row)
        finally:
            self.now -= 1


def cut(rows, cuts):
    edges = [0, *sorted({c % (len(rows) + 1) for c in cuts}), len(rows)]
    return [rows[a:b] for a, b in pairwise(edges)]


def must_answer(script):
    return script[0].ends == "answers" and script[0].seconds < TIMEOUT


def cannot_answer(script, tries):
    return all(step.seconds > TIMEOUT or step.ends != "answers" for step in script[:tries])


@settings(max_examples=300, deadline=None)
@given(
    scripts=SCRIPTS,
    cuts=st.lists(st.integers(0, 1000), max_size=6),
    capacity=st.integers(1, 8),
    ordered=st.booleans(),
    retries=st.integers(0, 2),
    gap=st.sampled_from([0.0, 0.5, 7.0]),
)
def test_each_row_has_exactly_one_outcome(served, scripts, cuts, capacity, ordered, retries, gap):
    service = Service(scripts)
    retry = Retry(max_retries=retries, initial_backoff="500ms", max_backoff="4s")
    ran = served(
        None,
        cut(list(range(len(scripts))), cuts),
        make_call=lambda counters: Attempts(service.ask, counters, retry, None, None),
        fallback=lambda row, cause: f"fallback {row}",
        gap=gap,
        capacity=capacity,
        ordered=ordered,
        timeout=TIMEOUT,
        close_timeout=GRACE,
    )
    assert ran.error is None
    rows = [row for row, _ in ran.outcomes]
    assert sorted(rows) == list(range(len(scripts)))
    assert not ordered or rows == sorted(rows)
    for row, result in ran.outcomes:
        assert result in (f"answer {row}", f"fallback {row}")
        assert result == f"answer {row}" or not must_answer(scripts[row])
        assert result == f"fallback {row}" or not cannot_answer(scripts[row], retries + 1)
    assert service.most <= capacity + ran.counters.abandoned
    assert max(service.calls.values(), default=0) <= retries + 1


@settings(max_examples=200, deadline=None)
@given(
    scripts=SCRIPTS,
    cuts=st.lists(st.integers(0, 1000), max_size=6),
    capacity=st.integers(1, 4),
    batch_size=st.integers(2, 7),
    ordered=st.booleans(),
    gap=st.sampled_from([0.0, 0.5, 7.0]),
)
def test_each_row_of_a_call_of_several_has_exactly_one_outcome(
    served, scripts, cuts, capacity, batch_size, ordered, gap
):
    service = Service(scripts)

    async def call(rows, slot):
        assert 0 < len(rows) <= batch_size
        first = await service.ask(rows[0])
        return [first.replace(str(rows[0]), str(row)) for row in rows]

    ran = served(
        call,
        cut(list(range(len(scripts))), cuts),
        fallback=lambda row, cause: f"fallback {row}",
        gap=gap,
        capacity=capacity,
        ordered=ordered,
        batch_size=batch_size,
        batch_time=1.0,
        timeout=TIMEOUT,
        close_timeout=GRACE,
    )
    assert ran.error is None
    rows = [row for row, _ in ran.outcomes]
    assert sorted(rows) == list(range(len(scripts)))
    assert not ordered or rows == sorted(rows)
    assert all(result in (f"answer {row}", f"fallback {row}") for row, result in ran.outcomes)
    assert service.most <= capacity + ran.counters.abandoned


@settings(max_examples=200, deadline=None)
@given(
    scripts=st.lists(st.lists(TRIES, min_size=1, max_size=3), min_size=1, max_size=4),
    keys=st.lists(st.integers(0, 3), max_size=25),
    capacity=st.integers(1, 8),
    ordered=st.booleans(),
    several=st.booleans(),
    breaking=st.booleans(),
)
def test_each_row_has_exactly_one_outcome_behind_cache_and_circuit_breaker(
    served, scripts, keys, capacity, ordered, several, breaking
):
    service = Service(scripts)
    rows = [{"n": n, "key": key % len(scripts)} for n, key in enumerate(keys)]

    async def ask(argument):
        return [await service.ask(row["key"]) for row in argument] if several else await service.ask(argument["key"])

    def make_call(counters):
        breaker = Breaker(CircuitBreaker(2, "20s"), asyncio.get_running_loop().time) if breaking else None
        call = Attempts(ask, counters, Retry(max_retries=1), None, breaker)
        cached = Cached(call if several else as_list(call), ["key"], {}, counters)
        return cached if several else one_at_a_time(cached)

    ran = served(
        None,
        [rows],
        make_call=make_call,
        fallback=lambda row, cause: f"fallback {row['key']}",
        capacity=capacity,
        ordered=ordered,
        batch_size=3 if several else 1,
        timeout=TIMEOUT,
        close_timeout=GRACE,
    )
    assert ran.error is None
    assert sorted(row["n"] for row, _ in ran.outcomes) == list(range(len(keys)))
    assert not ordered or [row["n"] for row, _ in ran.outcomes] == list(range(len(keys)))
    assert all(result in (f"answer {row['key']}", f"fallback {row['key']}") for row, result in ran.outcomes)


@settings(max_examples=100, deadline=None)
@given(scripts=SCRIPTS, capacity=st.integers(1, 8), ordered=st.booleans(), stops_at=st.floats(0, 30))
def test_a_run_that_is_cancelled_ends_within_its_grace(virtually, driving, scripts, capacity, ordered, stops_at):
    service = Service(scripts)

    async def cancelled():
        async def call(row, slot):
            return await service.ask(row)

        running = asyncio.ensure_future(
            driving(
                call,
                [list(range(len(scripts)))],
                fallback=lambda row, cause: None,
                linger=1000,
                capacity=capacity,
                ordered=ordered,
                timeout=TIMEOUT,
                close_timeout=GRACE,
            )
        )
        await asyncio.sleep(stops_at)
        running.cancel()
        await asyncio.wait([running])
        return asyncio.get_running_loop().time()

    assert virtually(cancelled) <= stops_at + GRACE + 0.1

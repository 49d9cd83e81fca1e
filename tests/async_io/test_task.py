"""One task without Spark: Arrow batches in, Arrow batches out, on real threads and the real loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time

import pyarrow as pa
import pytest

from connectors.async_io.function import AsyncFunction, Plain
from connectors.async_io.policies import Cache, CircuitBreaker, Retry
from connectors.async_io.task import Plan, run
from connectors.async_io.work import Settings
from connectors.async_io.worker import event_loop
from connectors.core.errors import Fatal, Poison, Transient

NAME = pa.schema([("name", pa.string())])


def batch(*ids):
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "extra": [f"x{n}" for n in ids]})


def plan(function, *, results=NAME, keep=("id",), operator_id=None, **more):
    policies = {key: more.pop(key) for key in list(more) if key in Plan.__dataclass_fields__}
    if not isinstance(function, AsyncFunction):
        function = Plain(function)
    settings = Settings(**{"close_timeout": 1.0, "flush_interval": 0.01, **more})
    return Plan("async_io.test", operator_id or f"{id(function)}", function, settings, tuple(keep), results, **policies)


def rows_of(function, *batches, **more):
    out = run(plan(function, **more), iter(batches))
    return [row for each in out for row in each.to_pylist()]


async def name_of(row):
    return {"name": f"n{row['id']}"}


@pytest.mark.parametrize("ordered", [True, False])
def test_kept_columns_stand_beside_the_results(ordered):
    assert rows_of(name_of, batch(1, 2), batch(3), ordered=ordered) == [
        {"id": 1, "name": "n1"},
        {"id": 2, "name": "n2"},
        {"id": 3, "name": "n3"},
    ]


def test_a_row_may_have_no_result_one_or_several():
    async def some(row):
        return [None, [], {"name": "one"}, [{"name": "a"}, {"name": "b"}], {}][row["id"]]

    assert rows_of(some, batch(0, 1, 2, 3, 4), ordered=True) == [
        {"id": 2, "name": "one"},
        {"id": 3, "name": "a"},
        {"id": 3, "name": "b"},
        {"id": 4, "name": None},
    ]


def test_a_function_that_blocks_runs_on_threads_and_never_more_than_capacity():
    together = threading.Barrier(4, timeout=20)
    most, now, lock = [0], [0], threading.Lock()

    def blocking(row):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait()
        with lock:
            now[0] -= 1
        together.wait()
        return {"name": threading.current_thread().name}

    rows = rows_of(blocking, batch(*range(8)), capacity=4)
    assert len(rows) == 8
    assert most == [4]
    assert all(row["name"].startswith("async_io-call") for row in rows)


def test_a_plain_function_may_return_a_coroutine():
    assert rows_of(lambda row: name_of(row), batch(1)) == [{"id": 1, "name": "n1"}]


def test_several_rows_per_call():
    async def names(rows):
        assert isinstance(rows, list)
        return [{"name": f"{len(rows)}"} for _ in rows]

    assert [row["name"] for row in rows_of(names, batch(1, 2), batch(3), batch_size=2, ordered=True)] == ["2", "2", "1"]


def test_results_leave_while_the_input_waits():
    more = threading.Event()

    def batches():
        yield batch(1, 2)
        assert more.wait(20)
        yield batch(3)

    out = run(plan(name_of), batches())
    assert next(out).num_rows == 2
    more.set()
    assert next(out).num_rows == 1


def test_an_error_of_the_input_is_the_tasks():
    def batches():
        yield batch(1)
        raise OSError("the input broke")

    with pytest.raises(OSError, match="the input broke"):
        list(run(plan(name_of), batches()))


def test_the_input_is_read_no_further_than_there_is_room():
    read = []
    go = asyncio.Event()

    async def stuck(row):
        await go.wait()

    def batches():
        for n in range(1000):
            read.append(n)
            yield batch(*range(10))

    out = run(plan(stuck, capacity=5, timeout=0.5, ordered=True), batches())
    with pytest.raises(Transient):
        next(out)
    assert len(read) < 10


def test_results_that_nobody_takes_hold_back_the_input():
    read = []

    def batches():
        for n in range(1000):
            read.append(n)
            yield batch(*range(100))

    out = run(plan(name_of, capacity=5), batches())
    next(out)
    threading.Event().wait(0.3)
    assert len(read) < 100
    assert sum(each.num_rows for each in out) >= 99_000


# -- errors


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionError("refused"), Transient),
        (ValueError("odd"), Poison),
        (Fatal("stop"), Fatal),
        (Transient("busy"), Transient),
    ],
)
def test_an_error_names_the_row_and_the_cause(raised, kind):
    async def fails(row):
        if row["id"] == 2:
            raise raised
        return {}

    with pytest.raises(kind) as caught:
        rows_of(fails, batch(1, 2))
    told = str(caught.value)
    assert "row {'id': 2}" in told
    assert type(raised).__name__ in told
    assert str(raised) in told
    assert caught.value.__cause__ is raised


def test_an_error_shows_no_secret():
    async def fails(row):
        raise ConnectionError

    rows = pa.RecordBatch.from_pydict({"id": [1], "api_token": ["hush"]})
    with pytest.raises(Transient) as caught:
        rows_of(fails, rows, keep=("id", "api_token"))
    assert "hush" not in str(caught.value)


class Guarded(AsyncFunction):
    def __init__(self, fallback=None):
        self.fallback, self.events = fallback, []

    async def open(self, context):
        self.events.append("open")

    async def async_invoke(self, row):
        raise ConnectionError("down")

    def timeout(self, row):
        if self.fallback is None:
            return super().timeout(row)
        return self.fallback

    async def close(self):
        self.events.append("close")


def test_a_fallback_takes_the_place_of_a_failed_row():
    assert rows_of(Guarded({"name": "none"}), batch(1, 2)) == [{"id": 1, "name": "none"}, {"id": 2, "name": "none"}]


def test_a_fallback_that_passes_on_leaves_the_error():
    with pytest.raises(Transient, match="ConnectionError: down"):
        rows_of(Guarded(), batch(1))


def test_a_fallback_that_raises_is_told_with_its_row():
    class Broken(Guarded):
        def timeout(self, row):
            raise KeyError("city")

    with pytest.raises(Poison, match=r"row \{'id': 1\}.*KeyError: 'city'"):
        rows_of(Broken(), batch(1))


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"nam": "x"}, "the result has nam, which the schema has not (name)"),
        ({"name": 5}, "column name of the result does not fit string"),
        (7, "the result must be a dict, a list of dicts, or None; got int"),
        ([{"name": "a"}, 7], "got a list with dict, int"),
    ],
)
def test_a_result_that_does_not_fit_names_row_and_column(result, told):
    async def odd(row):
        return result if row["id"] == 2 else {"name": "fine"}

    with pytest.raises(Poison) as caught:
        rows_of(odd, batch(1, 2, 3))
    assert told in str(caught.value)
    assert "{'id': 2}" in str(caught.value)


def test_a_null_where_the_schema_says_not_null_is_an_error():
    async def nothing(row):
        return {}

    with pytest.raises(Poison, match="column name of the result is null"):
        rows_of(nothing, batch(1), results=pa.schema([pa.field("name", pa.string(), nullable=False)]))


# -- open and close


def test_open_comes_first_and_close_last_once_each_also_after_a_failure():
    for function in (Guarded({"name": ""}), Guarded()):
        with contextlib.suppress(Transient):
            rows_of(function, batch(1))
        assert function.events == ["open", "close"]


def test_an_error_of_open_fails_the_task_and_close_still_comes():
    class Broken(Guarded):
        async def open(self, context):
            raise ConnectionError("no server")

    function = Broken()
    with pytest.raises(ConnectionError, match="no server"):
        rows_of(function, batch(1))
    assert function.events == ["close"]


def test_blocking_open_and_close_do_as_well():
    class Blocking(AsyncFunction):
        def open(self, context):
            self.thread = threading.current_thread().name

        def async_invoke(self, row):
            return {"name": self.thread}

        def close(self):
            closed.append(True)

    closed = []
    assert rows_of(Blocking(), batch(1))[0]["name"] != "async_io"
    assert closed == [True]


def test_an_error_of_close_fails_a_task_that_was_fine():
    class Flushing(Guarded):
        async def close(self):
            raise ConnectionError("not flushed")

    with pytest.raises(ConnectionError, match="not flushed"):
        rows_of(Flushing({}), batch(1))


def test_a_close_that_hangs_is_given_up_after_its_time(caplog):
    class Hanging(Guarded):
        async def close(self):
            await asyncio.Event().wait()

    assert len(rows_of(Hanging({}), batch(1), close_timeout=0.05)) == 1
    assert "close() did not end within 0.05 s" in caplog.text


def test_a_failed_task_waits_no_longer_than_close_timeout_for_calls_in_flight():
    class Stubborn(Guarded):
        async def async_invoke(self, row):
            if row["id"] == 2:
                raise ConnectionError("down")
            while not done.is_set():
                try:
                    await asyncio.wait_for(done.wait(), 20)
                except asyncio.CancelledError:
                    continue

    done = asyncio.Event()
    function = Stubborn()
    began = time.monotonic()
    with pytest.raises(Transient, match="down"):
        rows_of(function, batch(1, 2), close_timeout=0.05)
    assert time.monotonic() - began < 10
    assert function.events == ["open", "close"]


def test_a_consumer_that_wants_no_more_ends_everything():
    function = Guarded({"name": ""})
    out = run(plan(function), iter([batch(n) for n in range(10_000)]))
    next(out)
    out.close()
    assert function.events == ["open", "close"]


# -- what is kept between tasks


def test_a_shared_client_is_made_once_per_worker():
    made = []

    class Sharing(AsyncFunction):
        async def open(self, context):
            async def make():
                made.append(1)
                return asyncio.get_running_loop()

            self.client = await context.shared("test_a_shared_client", make)
            self.plain = context.shared("test_a_plain_client", lambda: made.append(2) or "plain")

        async def async_invoke(self, row):
            return {"name": f"{self.client is asyncio.get_running_loop()} {self.plain}"}

    for _ in range(3):
        assert rows_of(Sharing(), batch(1)) == [{"id": 1, "name": "True plain"}]
    assert made == [1, 2]


def test_a_client_that_could_not_be_made_is_made_again_by_the_next_task():
    tries = []

    class Sharing(AsyncFunction):
        async def open(self, context):
            async def make():
                tries.append(1)
                if len(tries) == 1:
                    raise ConnectionError("not yet")
                return "client"

            self.client = await context.shared("test_a_client_that_could_not_be_made", make)

        async def async_invoke(self, row):
            return {"name": self.client}

    with pytest.raises(ConnectionError):
        rows_of(Sharing(), batch(1))
    assert rows_of(Sharing(), batch(1)) == [{"id": 1, "name": "client"}]


def test_a_cache_serves_the_tasks_that_follow():
    asked = []

    async def ask(row):
        asked.append(row["id"])
        return {"name": f"n{row['id']}"}

    for _ in range(3):
        rows = rows_of(ask, batch(1, 2, 1), cache=Cache(["id"]), operator_id="test_a_cache", ordered=True)
        assert [row["name"] for row in rows] == ["n1", "n2", "n1"]
    assert sorted(asked) == [1, 2]


def test_an_open_circuit_stays_open_for_the_tasks_that_follow():
    asked = []

    class Down(Guarded):
        async def async_invoke(self, row):
            asked.append(row)
            raise ConnectionError

    for _ in range(3):
        breaker = CircuitBreaker(2, "1 hour")
        rows_of(Down({}), batch(1, 2, 3), circuit_breaker=breaker, operator_id="test_an_open_circuit", capacity=1)
    assert len(asked) == 2


def test_calls_that_a_failing_task_takes_down_do_not_open_the_circuit():
    class Failing(Guarded):
        async def async_invoke(self, row):
            if row["id"] == 0:
                raise ConnectionError("down")
            if waiting:
                await asyncio.sleep(30)
            return {"name": "fine"}

    waiting = [True]
    breaker = CircuitBreaker(3, "1 hour")
    with pytest.raises(Transient, match="down"):
        rows_of(Failing(), batch(1, 2, 3, 4, 5, 0), circuit_breaker=breaker, operator_id="test_taken_down")
    waiting.clear()
    rows = rows_of(Failing({}), batch(1, 2), circuit_breaker=breaker, operator_id="test_taken_down")
    assert [row["name"] for row in rows] == ["fine", "fine"]


def test_retry_and_rate_limit_are_wired():
    tries = []

    async def ask(row):
        tries.append(row["id"])
        if len(tries) == 1:
            raise ConnectionError
        return {"name": "fine"}

    assert len(rows_of(ask, batch(1, 2), retry=Retry(1, "1ms"), rate_limit=1000.0)) == 2
    assert len(tries) == 3


def test_the_counters_are_reported_at_the_end():
    told = []
    rows_of(Guarded({}), batch(1, 2), report=told.append)
    assert told[0]["rows"] == 2
    assert told[0]["fallbacks"] == 2
    assert "latency_p99" in told[0]


def test_a_report_that_fails_does_not_fail_the_task(caplog):
    def report(counters):
        raise ValueError

    assert len(rows_of(name_of, batch(1), report=report)) == 1
    assert "report" in caplog.text


def test_many_calls_in_flight_do_not_keep_the_garbage_collector_busy():
    async def call(row):
        await asyncio.sleep(0.001)
        return {"name": "x"}

    event_loop()
    before = gc.get_stats()[0]["collections"]
    assert len(rows_of(call, *(batch_of_numbers(first, 2000) for first in range(0, 20_000, 2000)), capacity=1000)) == 20_000
    assert gc.get_stats()[0]["collections"] - before < 50


@pytest.mark.soak
@pytest.mark.parametrize("ordered", [True, False])
def test_memory_stays_flat_over_ten_million_rows(ordered):
    """Calls that finish at once, some a little later and in another order: what the engine keeps shows in the memory."""
    import psutil

    total, size = 10_000_000, 10_000

    async def call(row):
        if row["id"] % 1000 == 0:
            await asyncio.sleep(0.001)
        return {"name": "x"}

    batches = (batch_of_numbers(first, size) for first in range(0, total, size))
    resident, rows = [], 0
    for out in run(plan(call, ordered=ordered), batches):
        before, rows = rows, rows + out.num_rows
        if rows // 1_000_000 > before // 1_000_000:
            resident.append(psutil.Process().memory_info().rss)
    assert rows == total
    assert max(resident[5:]) < 1.05 * max(resident[1:5]), [n >> 20 for n in resident]


def batch_of_numbers(first, size):
    return pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + size), pa.int64())})

"""The engine: up to ``capacity`` calls in flight over the rows of an endless sequence of batches, on one event loop.

It knows neither Spark nor Arrow nor threads, so a test can drive it with its own clock. What makes it fast:

* **Slots.** ``capacity`` long-lived tasks take row after row and await the user's call directly: no task, lock or
  semaphore per row. The number of slots limits the calls in flight, and there is no drain between two batches.
* **Results by index.** A slot writes into its batch's list of results, so order costs nothing: an ordered run gives
  batches out in their order, an unordered one as they finish.
* **One timer for all timeouts.** It sleeps until the earliest deadline of the rows now in flight.

The deadline decides the outcome of its row at once; the cancel that follows only tidies up. It cannot hit another row: a
slot that is not parked is always suspended inside the call of its row. Whatever that call still returns, raises or swallows
is dropped. A call that ignores its cancel keeps its slot, so that no more than ``capacity`` calls run. If it runs for
``close_timeout`` more, the engine abandons it and replaces its slot; otherwise it could block the task for ever.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from .batches import Call, EngineSettings, Fallback, Output, RowBatch, Slot, check_results
from .function import Counters

_AHEAD_ORDERED: Final = 4
_AHEAD_UNORDERED: Final = 32
_SWEEP_FLOOR: Final = 0.001


class AsyncEngine:
    """Runs ``call`` over batches. Every method belongs to the thread of the event loop.

    The engine calls ``want`` when there is room for one more batch (:meth:`add`), and ``emit`` with each :class:`Output`,
    which counts against the room until :meth:`delivered`. After :meth:`finish`, :meth:`run` ends with the last row.
    """

    def __init__(
        self,
        call: Call,
        fallback: Fallback,
        *,
        emit: Callable[[Output], None],
        want: Callable[[], None] = lambda: None,
        settings: EngineSettings | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.settings = settings or EngineSettings()
        self.counters = counters or Counters()
        self._call, self._fallback, self._emit, self._want = call, fallback, emit, want
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._slots: dict[Slot, None] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._queue: deque[RowBatch] = deque()
        self._open: dict[int, RowBatch] = {}
        self._held_rows = self._held_batches = 0
        self._waits_for_rows = self._closing = self._stopping = False
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Serves rows until all are done after :meth:`finish`. Raises the error of :meth:`fail`, or of a row
        without fallback.
        """
        self._ask()
        self._sweep()
        self._flush()
        try:
            await self._done
        finally:
            await self._stop()

    def add(self, batch: RowBatch) -> None:
        """Adds a batch. Its rows are served in their order, after those of earlier batches."""
        self._waits_for_rows = False
        if batch.size and not self._stopping:
            batch.arrived = self._now()
            self._queue.append(batch)
            self._open[id(batch)] = batch
            self._held_rows += batch.size
            self._held_batches += 1
            self._staff(batch.size)
        self._ask()

    def finish(self) -> None:
        """Notes that no more batches will come."""
        self._closing = True
        self._wake(len(self._idle))
        self._end_when_empty()

    def fail(self, error: BaseException) -> None:
        """Ends :meth:`run` with ``error``; the first one counts."""
        if not self._done.done():
            self._done.set_exception(error)

    def delivered(self, output: Output) -> None:
        """Notes that the consumer took ``output``: its rows no longer count against the room."""
        self._held_rows -= len(output.results)
        self._held_batches -= output.last
        self._ask()

    # -- room

    def _ask(self) -> None:
        if not self._waits_for_rows and not self._closing and self._has_room():
            self._waits_for_rows = True
            self._want()

    def _has_room(self) -> bool:
        """True if one more batch fits: slots never lack rows, at any batch size, and memory stays bounded.

        In ordered mode a slow row holds back all rows after it, so the window is small. In unordered mode it holds back only
        its batch, so more batches may be open; but only few that no slot has begun.
        """
        width = self.settings.capacity * self.settings.batch_size
        ahead = _AHEAD_ORDERED if self.settings.ordered else _AHEAD_UNORDERED
        hungry = len(self._queue) < 2 or sum(batch.size - batch.taken for batch in self._queue) < 2 * width
        return hungry and (self._held_batches < ahead or self._held_rows < ahead * width)

    # -- slots

    def _staff(self, rows: int) -> None:
        calls = -(-rows // self.settings.batch_size)
        for _ in range(min(calls - len(self._idle), self.settings.capacity - len(self._slots))):
            self._hire()
        self._wake(calls)
        self._note_load()

    def _hire(self) -> None:
        slot = Slot()
        serve = self._serve_rows if self.settings.batch_size == 1 else self._serve_batches
        slot.task = self._loop.create_task(serve(slot))
        slot.task.add_done_callback(self._ended)
        self._slots[slot] = None

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)

    async def _parked(self, slot: Slot) -> None:
        slot.park()
        if self._stopping:  # its call has swallowed the only cancel
            raise asyncio.CancelledError
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        self._note_load()
        await waiter

    def _note_load(self) -> None:
        self.counters.in_flight = len(self._slots) - len(self._idle)
        self.counters.in_flight_max = max(self.counters.in_flight_max, self.counters.in_flight)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)

    async def _serve_rows(self, slot: Slot) -> None:
        """The hot loop: everything here costs time for each row."""
        now, call, queue, latencies = self._now, self._call, self._queue, self.counters.latencies
        batch: Any
        while True:
            if not queue:
                batch = row = result = None  # a parked slot must not keep a finished batch in memory
                await self._parked(slot)
                continue
            batch = queue[0]
            index = batch.taken
            row = batch.rows[index]
            batch.taken = index + 1
            if batch.taken == batch.size:
                self._all_taken()
            slot.batch, slot.index, slot.rows, slot.since = batch, index, row, now()
            try:
                result = await call(row, slot)
            except BaseException as error:
                result = self._in_place_of(row, slot, error)
            if slot.late:
                if self._relieved(slot):
                    return
                continue
            batch.results[index] = result
            batch.left -= 1
            latencies.append(now() - slot.since)
            if not batch.left:
                self._finished(batch)

    async def _serve_batches(self, slot: Slot) -> None:
        while True:
            rows = self._take_many(slot)
            if not rows:
                results = []  # nor its last results
                await self._parked(slot)
                continue
            slot.rows, slot.since = rows, self._now()
            try:
                results = check_results(rows, await self._call(rows, slot))
            except BaseException as error:
                results = [self._in_place_of(row, slot, error) for row in rows]
            if slot.late:
                if self._relieved(slot):
                    return
                continue
            self.counters.latencies.append(self._now() - slot.since)
            self._settle(slot, results)

    def _take_many(self, slot: Slot) -> list[Any]:
        """Up to ``batch_size`` rows, across batches; none while more may still come within ``batch_time``."""
        size = self.settings.batch_size
        if not self._queue or not self._worth_a_call():
            return []
        rows: list[Any] = []
        slot.places = []
        while self._queue and len(rows) < size:
            batch = self._queue[0]
            first, batch.taken = batch.taken, min(batch.size, batch.taken + size - len(rows))
            rows += batch.rows[first : batch.taken]
            slot.places.append((batch, first, batch.taken))
            if batch.taken == batch.size:
                self._all_taken()
        if self._queue:
            self._staff(1)  # the remaining rows need a slot that watches ``batch_time``
        return rows

    def _worth_a_call(self) -> bool:
        ready = 0
        for batch in self._queue:
            ready += batch.size - batch.taken
            if ready >= self.settings.batch_size:
                return True
        due = self._queue[0].arrived + self.settings.batch_time
        if self._closing or due <= self._now():
            return True
        self._at("batch", due, lambda: self._wake(1))
        return False

    def _all_taken(self) -> None:
        batch = self._queue.popleft()
        batch.rows = []  # slots hold their own rows: a slow row must not keep all its neighbours in memory
        self._ask()

    # -- outcomes

    def _in_place_of(self, row: Any, slot: Slot, error: BaseException) -> Any:
        """The fallback of a row whose call raised. A cancel that the engine did not send is a failure like any other."""
        if isinstance(error, GeneratorExit) or self._stopping:
            raise error
        return None if slot.late else self._fallback(row, error)

    def _settle(self, slot: Slot, results: list[Any]) -> None:
        done = 0
        for batch, first, stop in slot.pieces():
            if batch.put(first, results[done : done + stop - first]):
                self._finished(batch)
            done += stop - first

    def _finished(self, batch: RowBatch) -> None:
        if self.settings.ordered:
            while self._open and not (head := next(iter(self._open.values()))).left:
                self._leave(head)
        else:
            self._leave(batch)
        self._end_when_empty()

    def _leave(self, batch: RowBatch) -> None:
        del self._open[id(batch)]
        self.counters.rows += batch.size
        self._emit(batch.send_rest())

    def _end_when_empty(self) -> None:
        if self._closing and not self._open and not self._done.done():
            self._done.set_result(None)

    def _flush(self) -> None:
        """Emits finished rows of unfinished batches: the input may be idle, or a neighbour slow."""
        self._at("flush", self._now() + self.settings.flush_interval, self._flush)
        for batch in list(self._open.values()):
            if batch.size - batch.left > batch.sent and (indices := batch.finished(self.settings.ordered)):
                self._emit(batch.send(indices))
            if self.settings.ordered:
                return

    # -- deadlines

    def _sweep(self) -> None:
        """Times out the rows that are due, and sets the timer for the next deadline."""
        now, timeout, grace = self._now(), self.settings.timeout, self.settings.close_timeout
        if timeout == inf:
            return
        wake = now + timeout
        for slot in list(self._slots):
            due = slot.since + (timeout + grace if slot.late else timeout)
            if due > now:
                wake = min(wake, due)
            elif slot.late:
                self._abandon(slot)
            else:
                self._expire(slot)
                wake = min(wake, now + grace)
        self._at("sweep", max(wake, now + _SWEEP_FLOOR), self._sweep)

    def _expire(self, slot: Slot) -> None:
        slot.late = True
        slot.task.cancel()
        cause = TimeoutError(f"no answer within {self.settings.timeout:g} s")
        rows = [slot.rows] if self.settings.batch_size == 1 else slot.rows
        self.counters.timeouts += len(rows)
        try:
            self._settle(slot, [self._fallback(row, cause) for row in rows])
        except Exception as error:
            self.fail(error)

    def _abandon(self, slot: Slot) -> None:
        self.counters.abandoned += 1
        del self._slots[slot]
        slot.task.cancel()
        self._hire()

    def _relieved(self, slot: Slot) -> bool:
        """Called when a late call has returned: True if its slot was replaced. Else the slot goes on without its cancel."""
        if slot not in self._slots:
            return True
        slot.late = False
        if sys.version_info >= (3, 11):
            slot.task.uncancel()
        return False

    # -- the end

    async def _stop(self) -> None:
        self._stopping = True
        self._queue.clear()
        for timer in self._timers.values():
            timer.cancel()
        tasks = [slot.task for slot in self._slots]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.settings.close_timeout)
        self.counters.in_flight = 0

    def _at(self, name: str, when: float, then: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_at(when, then)

"""Simulated processes on one machine: one seed gives one order of their steps, in virtual time.

A process is a set of threads, each of them a thread of Python that runs only while it holds the *baton*. It hands the baton on
where it waits or touches the world (:meth:`Scheduler.step`), to a thread that chance chooses. While a :class:`Scheduler` is
:meth:`installed <Scheduler.installed>`, the time, pauses, events and threads of the library (:mod:`connectors.ground.machine`)
are its own: ten minutes of outage cost nothing. A process that is killed raises :class:`Killed` at each further step of its
threads, so that nothing it does afterwards reaches the world.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ...ground import machine

T = TypeVar("T")
EPOCH: Final = 1_700_000_000.0
"""The time, in seconds since 1970, at which each history begins."""
_POLL_SECONDS: Final = 0.2
_STEP_SECONDS: Final = 0.004
"""The longest time that one step takes."""
_STANDSTILL_SECONDS: Final = 120.0
"""The time of the machine itself after which a thread that makes no step waits for one that waits for its baton."""
_END_SECONDS: Final = 5.0


class Killed(BaseException):
    """The process of this thread is dead."""


class Fault(AssertionError):
    """A history that breaks a promise, or goes on for ever."""


@dataclass(eq=False)
class Process:
    """A process: a driver, a task, or a person. ``skew`` is how many seconds its clock is ahead.

    ``mortal``: the adversary may end it; ``weight``: so many times as often, at each step, as others.
    """

    name: str
    alive: bool = True
    paused_until: float = 0.0
    skew: float = 0.0
    mortal: bool = False
    weight: float = 1.0
    values: dict[Any, Any] = field(default_factory=dict)


class Thread:
    """A thread of a process, with the part of ``threading.Thread`` that the library uses."""

    daemon = True

    def __init__(self, scheduler: Scheduler, process: Process, work: Callable[[], Any], name: str) -> None:
        self.process, self.name = process, name
        self.error: BaseException | None = None
        self.ended = Event(scheduler)
        self._scheduler, self._work = scheduler, work
        self._ident = 0
        self._gate = threading.Lock()
        self._gate.acquire()
        self.wakes: float | None = None
        """The virtual time at which it goes on; ``None``: now."""
        self.waits_for: Event | None = None
        self.ends_well = False
        """Whether its work has said that it is complete."""

    def start(self) -> None:
        self._scheduler.threads.append(self)
        threading.Thread(target=self._run, name=f"{self.process.name}/{self.name}", daemon=True).start()

    def join(self, timeout: float | None = None) -> None:
        self.ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def wait_for_baton(self) -> None:
        self._gate.acquire()

    def take_baton(self) -> None:
        self._scheduler.holder = self
        self._gate.release()

    def place(self) -> str:
        """Where its code is, by its newest calls."""
        calls = traceback.extract_stack(sys._current_frames()[self._ident])[-3:]
        return ", ".join(f"{call.filename}:{call.lineno} in {call.name}" for call in calls)

    def is_ready(self, now: float) -> bool:
        if not self.process.alive:
            return True
        is_awake = (self.waits_for is not None and self.waits_for.is_set()) or (self.wakes is not None and now >= self.wakes)
        return now >= self.process.paused_until and (is_awake or (self.waits_for is None and self.wakes is None))

    def ready_at(self) -> float | None:
        """The virtual time at which it is ready unless an event comes before; ``None``: never by itself."""
        if self.waits_for is not None and self.waits_for.is_set():
            return self.process.paused_until
        return None if self.wakes is None and self.waits_for is not None else max(self.wakes or 0.0, self.process.paused_until)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        self.wait_for_baton()
        self._scheduler.enter(self)
        try:
            if self.process.alive:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._scheduler.leave(self)


class Event:
    """An event, as ``threading.Event``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._scheduler.pause(timeout, self)
        return self._is_set


class Condition:
    """A condition, with the part of ``threading.Condition`` that the library uses."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Thread | None = None
        self._depth = 0
        self._free = Event(scheduler)
        self._waiting: list[Event] = []

    def __enter__(self) -> Condition:
        me = self._scheduler.thread
        while self._owner not in (None, me):
            self._free.clear()
            self._free.wait()
        self._owner = me
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is self._scheduler.thread:  # a thread that was killed while it waited has it no more
            self._depth -= 1
            if self._depth == 0:
                self._release()

    def wait(self, timeout: float | None = None) -> bool:
        event, depth = Event(self._scheduler), self._depth
        self._waiting.append(event)
        self._depth = 0
        self._release()
        is_set = event.wait(timeout)
        if not is_set:
            self._waiting.remove(event)
        self.__enter__()
        self._depth = depth
        return is_set

    def notify(self, count: int = 1) -> None:
        for event in self._waiting[:count]:
            event.set()
        del self._waiting[:count]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def _release(self) -> None:
        self._owner = None
        self._free.set()


class Scheduler(machine.Machine):
    """The machine of one history. ``seed`` decides everything; ``steps`` and ``seconds`` (virtual) bound it."""

    def __init__(self, seed: int, steps: int = 150_000, seconds: float = 30 * 86400.0) -> None:
        self.seed = seed
        self.now = EPOCH
        self.threads: list[Thread] = []
        self.count = 0
        self.events: list[str] = []
        """The timeline: what has happened, in words."""
        self.fault: Fault | None = None
        self._chance = random.Random(f"order {seed}")
        self._names = random.Random(f"names {seed}")
        self._steadiness = self._chance.choice((0.0, 0.5, 0.9))
        """How likely a thread goes on that could hand the baton to another one."""
        self._limits = (steps, EPOCH + seconds)
        self._current = threading.local()
        self._outside = self.holder = Thread(self, Process("outside"), lambda: None, "main")
        self._main = threading.Lock()
        self._main.acquire()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the library lives on this machine. Garbage is not collected: finalizers would come at a time of their own."""
        own, machine.here = machine.here, self
        collects = gc.isenabled()
        self._current.thread = self._outside
        gc.disable()
        try:
            yield
        finally:
            machine.here = own
            if collects:
                gc.enable()

    def run(self, work: Callable[[], Any]) -> None:
        """Runs ``work`` in a first process, until all threads of all processes have ended. Raises what it raised.

        Raises ``RuntimeError`` for a thread that waits without the scheduler, such as at a lock of ``threading``.
        """
        first = Thread(self, Process("operator"), work, "main")
        first.start()
        self._choose().take_baton()
        try:
            self._wait_for_end()
        except BaseException:  # such as by Ctrl-C: nothing goes on behind it
            for thread in list(self.threads):
                thread.process.alive = False
            self._main.acquire(timeout=_END_SECONDS)
            raise
        if self.fault is not None:
            raise self.fault
        if first.error is not None:
            raise first.error

    def _wait_for_end(self) -> None:
        count = self.count
        while not self._main.acquire(timeout=_STANDSTILL_SECONDS):
            if count == self.count:
                raise RuntimeError(
                    f"{self.holder.process.name} stands still, at {self.holder.place()}: if that is a lock which another "
                    "thread has taken for a request, let the context's requests name the function that takes the lock"
                )
            count = self.count

    def spawn(self, name: str, work: Callable[[], Any], *, mortal: bool = True, weight: float = 1.0) -> Thread:
        """Starts a process, which ends with ``work``."""
        process = Process(name, mortal=mortal, weight=weight)

        def live() -> None:
            try:
                work()
            finally:
                process.alive = False

        thread = Thread(self, process, live, "main")
        thread.start()
        return thread

    @property
    def thread(self) -> Thread:
        """The thread that has the baton."""
        return self.current() or self._outside

    def current(self) -> Thread | None:
        """The thread of a process that calls; ``None`` for a thread of somebody else, such as of a client's pool."""
        return getattr(self._current, "thread", None)

    def note(self, text: str) -> None:
        """Adds to the timeline."""
        self.events.append(f"{self.now - EPOCH:12.3f}  {self.thread.process.name:<14} {text}")

    def step(self) -> None:
        """The thread is about to touch the world, or has done it: others may come before it goes on."""
        self.pause(0.0)

    def pause(self, seconds: float | None, event: Event | None = None) -> None:
        """Hands the baton on for ``seconds``, or until ``event``."""
        me = self.current()
        if me is None:  # it runs beside all others, who may wait for it: no time passes
            while seconds is None and event is not None and not event.is_set():
                time.sleep(_STEP_SECONDS)
            return
        if not me.process.alive:
            raise Killed
        me.wakes = None if seconds is None else self.now + seconds
        me.waits_for = event
        following = self._choose(me if seconds == 0.0 else None)
        if following is not me:
            following.take_baton()
            me.wait_for_baton()
        me.wakes = me.waits_for = None
        if not me.process.alive:
            raise Killed

    def poll(self, look: Callable[[], T], seconds: float) -> T:
        """What ``look`` gives, again and again for so long, until it gives something; ever more seldom."""
        end, pause = self.now + seconds, _POLL_SECONDS
        while not (found := look()) and self.now < end:
            self.sleep(min(pause, end - self.now))
            pause *= 2
        return found

    def kill(self, process: Process) -> None:
        """Ends a process. If it is this thread's own, raises :class:`Killed`."""
        process.alive = False
        if process is self.thread.process:
            raise Killed

    def kill_all(self) -> None:
        """Ends all mortal processes."""
        for thread in self.threads:
            if thread.process.mortal:
                thread.process.alive = False
        if not self.thread.process.alive:
            raise Killed

    def is_quiet(self) -> bool:
        """True while no mortal process is alive."""
        return not any(thread.process.mortal and thread.process.alive for thread in self.threads)

    def enter(self, thread: Thread) -> None:
        self._current.thread = thread

    def leave(self, thread: Thread) -> None:
        """The thread has ended: the baton goes on to another one, and after the last one to whoever called :meth:`run`."""
        thread.ended.set()
        self.threads.remove(thread)
        if self.threads:
            self._choose().take_baton()
        else:
            self._main.release()

    def time(self) -> float:
        return self.now + self.thread.process.skew

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.pause(seconds)

    def token(self) -> str:
        return f"{self._names.getrandbits(128):032x}"

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._names.random()

    def event(self) -> Any:
        return Event(self)

    def condition(self) -> Any:
        return Condition(self)

    def new_thread(self, work: Callable[[], Any], name: str) -> Any:
        return Thread(self, self.thread.process, work, name)

    def each(self, work: Callable[[Any], Any], items: Sequence[Any], most: int) -> None:
        for item in items:
            work(item)

    @property
    def values(self) -> dict[Any, Any]:
        return self.thread.process.values

    def _choose(self, current: Thread | None = None) -> Thread:
        """The thread that goes on. Time passes until one can."""
        self.count += 1
        self.now += self._chance.random() * _STEP_SECONDS
        if self.fault is None and (self.count > self._limits[0] or self.now > self._limits[1]):
            self._give_up(f"no end after {self.count} steps and {self.now - EPOCH:.0f} s")
        ready = [thread for thread in self.threads if thread.is_ready(self.now)]
        if not ready:
            times = [at for thread in self.threads if (at := thread.ready_at()) is not None]
            if not times:
                self._give_up("every thread waits for another one")
                return self._choose()
            self.now = max(self.now, min(times))
            ready = [thread for thread in self.threads if thread.is_ready(self.now)]
        dead = [thread for thread in ready if not thread.process.alive]
        if dead:
            return dead[0]
        if current in ready and self._chance.random() < self._steadiness:
            return current
        return ready[int(self._chance.random() * len(ready))]

    def _give_up(self, text: str) -> None:
        self.fault = Fault(text)
        for thread in self.threads:
            thread.process.alive = False

"""The engine: :class:`~connectors.batching.flow.Flow` driven by threads and a real clock.

The task's thread hands entries in and waits when too many do; each request has a thread while it is under way; one more
thread keeps the time. Whoever changes something, under one lock that is taken per record batch and per request, also starts
what has become due by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..core.errors import Fatal
from ..core.retry import log_outage, retry_observer
from ..core.threads import DaemonThreads
from .flow import Failure, Flow, Request
from .pieces import Chunk, Piece

Send = Callable[[list[Any]], Iterable[Failure]]
SetAside = Callable[[dict[str, Any], BaseException], None]


class Sending:
    """Sends entries by ``send``; rows that can never be sent go to ``set_aside``, in the caller's thread."""

    def __init__(self, flow: Flow, send: Send, set_aside: SetAside) -> None:
        self.flow = flow
        self._call, self._set_aside = send, set_aside
        self._changed = threading.Condition()
        self._threads = DaemonThreads("batching request")
        self._retries_told = 0
        self._waiting = False
        self._closed = False
        self._timer = threading.Thread(target=self._keep_time, name="batching timer", daemon=True)
        self._timer.start()

    def put(self, chunk: Chunk) -> None:
        """Takes entries; waits while there is no room. Raises what ended the sending before."""
        rest = Piece(chunk, 0, len(chunk.entries))
        with self._changed:
            self._surface()
            while len(rest):
                if room := self.flow.room():
                    piece, rest = rest.cut(min(room, len(rest)))
                    self.flow.offer(piece)
                    self._pump()
                else:
                    self._changed.wait()
                self._surface()

    def finish(self) -> None:
        """Sends all that waits and returns when everything was taken or set aside. Raises what prevented it."""
        with self._changed:
            self.flow.drain()
            self._pump()
            while not (self.flow.done() or self.flow.error):
                self._changed.wait()
                self._surface()
            self._surface()

    def close(self) -> None:
        """Sends nothing more, and waits for requests that are under way: at most until their time is over."""
        with self._changed:
            self.flow.stop(Fatal("the writer is closed"))
            self._changed.notify_all()
            while self.flow.under_way:
                self._changed.wait()
            self._closed = True
            self._changed.notify_all()
        self._threads.shutdown()
        self._timer.join()

    def _surface(self) -> None:
        for row, error in self.flow.rejected():
            self._set_aside(row, error)
        while self._retries_told < self.flow.counts.retries:
            self._retries_told += 1
            retry_observer().retried()
        self._report_outage()
        if self.flow.error is not None:
            raise self.flow.error

    def _report_outage(self) -> None:
        """Says that the target is waited for when it is away for longer than ``retry.*`` would wait, and when it is back."""
        outage, retry = self.flow.outage, self.flow.contact.retry
        if outage is not None and self.flow.outlasted:
            now = time.time()
            since = now - (time.monotonic() - outage.since)
            if not self._waiting:
                log_outage(outage.error, since, retry)
            retry_observer().waits(outage.error, since, now + retry.max_backoff)
        elif self._waiting:
            retry_observer().resumed()
        self._waiting = outage is not None and self.flow.outlasted

    def _pump(self) -> bool:
        """Starts what is due; true if anything was."""
        started = False
        while (request := self.flow.next()) is not None:
            self._threads.submit(self._run, request)
            started = True
        self._changed.notify_all()
        return started

    def _run(self, request: Request) -> None:
        failures: list[Failure] = []
        error: BaseException | None = None
        try:
            failures = list(self._call(request.entries()))
        except BaseException as raised:  # whatever it is, it must reach the task's thread
            error = raised
        with self._changed:
            if error is not None:
                self.flow.refused(request, error)
            else:
                self.flow.answered(request, failures)
            self._pump()

    def _keep_time(self) -> None:
        with self._changed:
            while not self._closed:
                moment = self.flow.wakes_at()  # first, so that what becomes due from here on is either done now or waited for
                expired = self.flow.expire()
                if not self._pump() and not expired:
                    self._changed.wait(None if moment is None else max(0.0, moment - time.monotonic()))

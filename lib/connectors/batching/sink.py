"""The batching engine. A system adds how a row becomes an entry, and how to send a batch of entries.

The engine is a :class:`~connectors.batching.flow.Flow` driven by threads and a real clock. The task's thread adds entries, and
waits while too many are buffered. Each request has a thread while it is in flight; one more thread keeps the time. A thread
that changes the flow also starts the requests that have become due. It holds one lock per record batch and per request.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from ..core.batch import Batch, Committable
from ..core.dead_letters import row_at
from ..core.sink import Guarantee, Sink, SinkWriter
from ..ground import machine
from ..ground.errors import Fatal, Poison
from ..ground.options import Options, Values
from ..ground.retry import Breaker, BreakerPolicy, Contact, RetrySettings, log_outage, retry_observer
from ..ground.threads import DaemonThreads
from .flow import Failure, Flow, FlowLimits, Request, batching_options
from .pieces import Chunk, Piece

Send = Callable[[list[Any]], Iterable[Failure]]
SetAside = Callable[[dict[str, Any], BaseException], None]


class Sending:
    """Sends entries by ``send``; passes rows that can never be sent to ``set_aside``, in the caller's thread."""

    def __init__(self, flow: Flow, send: Send, set_aside: SetAside) -> None:
        self.flow = flow
        self._call, self._set_aside = send, set_aside
        self._changed = machine.condition()
        self._threads = DaemonThreads("batching request")
        self._reported_retries = 0
        self._waiting = False
        self._closed = False
        self._timer = machine.thread(self._keep_time, "batching timer")
        self._timer.start()

    def put(self, chunk: Chunk) -> None:
        """Takes entries; waits while there is no room. Raises the error that has stopped the sending."""
        rest = Piece(chunk, 0, len(chunk.entries))
        with self._changed, self.ends_with_errors():
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
        """Sends all waiting entries; returns when every entry was taken or set aside. Raises the error that prevents it."""
        with self._changed, self.ends_with_errors():
            self.flow.drain()
            self._pump()
            while not (self.flow.done() or self.flow.error):
                self._changed.wait()
                self._surface()
            self._surface()

    def close(self) -> None:
        """Stops sending, and waits for requests in flight, at most until their time is over."""
        with self._changed:
            self.flow.stop(Fatal("the writer is closed"))
            self._changed.notify_all()
            while self.flow.under_way:
                self._changed.wait()
            self._closed = True
            self._changed.notify_all()
        self._threads.shutdown()
        self._timer.join()

    @contextlib.contextmanager
    def ends_with_errors(self) -> Iterator[None]:
        """Inside, any error stops the flow for good: the entries behind it may be neither waiting nor counted."""
        try:
            yield
        except BaseException as error:
            with self._changed:
                self.flow.stop(error)
                self._changed.notify_all()
            raise

    def _surface(self) -> None:
        for row, error in self.flow.rejected():
            self._set_aside(row, error)
        while self._reported_retries < self.flow.counts.retries:
            self._reported_retries += 1
            retry_observer().retried()
        self._report_outage()
        if self.flow.error is not None:
            raise self.flow.error

    def _report_outage(self) -> None:
        """Tells the observer when an outage outlasts the waits of ``retry.*``, and when the target is back."""
        outage, retry = self.flow.outage, self.flow.contact.retry
        if outage is not None and self.flow.outlasted:
            now = machine.time()
            since = now - (machine.monotonic() - outage.since)
            if not self._waiting:
                log_outage(outage.error, since, retry)
            retry_observer().waits(outage.error, since, now + retry.max_backoff)
        elif self._waiting:
            retry_observer().resumed()
        self._waiting = outage is not None and self.flow.outlasted

    def _pump(self) -> bool:
        """Starts the requests that are due; true if there were any."""
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
            failures = _checked(self._call(request.entries()), request.records)
        except BaseException as raised:  # every error must reach the task's thread
            error = raised
        with self._changed, self.ends_with_errors():
            if error is not None:
                self.flow.refused(request, error)
            else:
                self.flow.answered(request, failures)
            self._pump()

    def _keep_time(self) -> None:
        with self._changed:
            while not self._closed:
                with contextlib.suppress(Exception), self.ends_with_errors():  # the task's thread raises them
                    self._wait()

    def _wait(self) -> None:
        moment = self.flow.wakes_at()  # first: whatever becomes due after it is either started now or waited for
        expired = self.flow.expire()
        if not self._pump() and not expired:
            self._changed.wait(None if moment is None else max(0.0, moment - machine.monotonic()))


def _checked(failures: Iterable[Failure], records: int) -> list[Failure]:
    """``failures`` of a request; raises ``ValueError`` for one that would count an entry as taken which is not."""
    checked = list(failures)
    for place, error in checked:
        if not (0 <= place < records and isinstance(error, BaseException)):
            raise ValueError(f"send() must give an index below {records} and an error; got {place!r}, {error!r}")
    return checked


class BatchingSink(Sink):
    """A sink that sends its rows in requests. Its ``options`` extend :func:`batching_options`; its writer is a
    :class:`BatchingWriter`.

    It has no ledger, since the rows that a failed or repeated task has sent stay in the target. So it is at-least-once, or
    idempotent if a row that is sent again replaces itself.
    """

    options: ClassVar[Options] = batching_options(max_records=1000, max_bytes="5MB", max_time="5s")
    promise = Guarantee.AT_LEAST_ONCE
    conditions = "requests cannot be taken back, nor asked for by their batch"
    rejects_rows = True
    writers_retry = True


class BatchingWriter(SinkWriter):
    """Writes through the engine. A system adds :meth:`send`, and methods that turn rows into entries.

    Close the resources of ``__init__`` in :meth:`close`, after ``super().close()``: until then requests may be in flight.
    """

    client: Any = None
    """A client that :meth:`close` closes."""

    def __init__(self, sink: Sink, batch: Batch) -> None:
        values = sink.values
        self.rejects = self._rejects = sink.rejects(batch)
        self.limits = self.limits_of(values)
        contact = Contact(RetrySettings.of(values), reached=batch.number > 0)
        flow = Flow(self.limits, contact, Breaker(BreakerPolicy.of(values)), machine.monotonic)
        self._sending = Sending(flow, self.send, self._rejects.add)
        self._chunks = 0

    @abstractmethod
    def send(self, entries: list[Any]) -> Iterable[Failure]:
        """Sends one request; called on several threads at a time. Returns the index and error of each entry that failed.

        The engine sends an entry with :class:`Throttled` or another :class:`~connectors.ground.errors.Transient` again. An
        entry with :class:`~connectors.ground.errors.Poison` is a bad row; any other error ends the task. A raised error is
        for the request as a whole. Return or raise within ``request.timeout``, or the request counts as lost.
        """

    def limits_of(self, values: Values) -> FlowLimits:
        """The limits that close a request, and the number of requests in flight; by default the user's."""
        return FlowLimits.of(values)

    def entry(self, row: dict[str, Any]) -> Any:
        """The entry to send for ``row``; by default the row. Raises :class:`~connectors.ground.errors.Poison` for a bad row."""
        return row

    def entries(self, rows: pa.RecordBatch) -> Sequence[Any]:
        """For each row its entry, or a :class:`~connectors.ground.errors.Poison`. Override it to work on columns."""
        return [self._entry_or_poison(row) for row in rows.to_pylist()]

    def sizes(self, entries: Sequence[Any]) -> Sequence[int]:
        """The bytes of each entry; by default ``len`` of it."""
        return list(map(len, entries))

    def keys(self, entries: Sequence[Any]) -> Sequence[Hashable] | None:
        """The key that each entry writes to, if a later entry must not overtake an earlier one of its key; by default none."""
        return None

    def report(self) -> dict[str, Any]:
        """More facts about the task for the committable, as small JSON."""
        return {}

    def write(self, batch: pa.RecordBatch) -> None:
        with self._sending.ends_with_errors():
            if chunk := self._chunk_of(batch):
                self._sending.put(chunk)

    def prepare(self) -> Committable:
        self._sending.finish()
        return Committable(self._sending.flow.counts.acknowledged, self.report())

    def close(self) -> None:
        self._sending.close()
        if self.client is not None:
            self.client.close()

    def _chunk_of(self, batch: pa.RecordBatch) -> Chunk | None:
        """The entries of the rows that may be sent; ``None`` if there are none. The others are rejected."""
        entries = self.entries(batch)
        index: Sequence[int] | None = None
        if any(isinstance(entry, Poison) for entry in entries):
            index = [place for place, entry in enumerate(entries) if self._is_good(batch, place, entry)]
            entries = [entries[place] for place in index]
        return self._chunk(batch, entries, self.sizes(entries), index) if entries else None

    def _chunk(
        self, batch: pa.RecordBatch, entries: Sequence[Any], sizes: Sequence[int], index: Sequence[int] | None
    ) -> Chunk:
        self._chunks += 1
        chunk = Chunk.of(self._chunks, machine.monotonic(), entries, sizes, self.keys(entries), batch, index)
        if max(sizes) <= self.limits.record_bytes:
            return chunk
        return chunk.pick([place for place, size in enumerate(sizes) if self._fits(chunk, place, size)])

    def _is_good(self, batch: pa.RecordBatch, place: int, entry: Any) -> bool:
        if isinstance(entry, Poison):
            self._rejects.add(row_at(batch, place), entry)
        return not isinstance(entry, Poison)

    def _fits(self, chunk: Chunk, place: int, size: int) -> bool:
        most = self.limits.record_bytes
        if size > most:
            error = Poison(f"the record has {size} bytes, more than the {most} that a request may have")
            self._rejects.add(row_at(chunk.rows, chunk.index[place]), error)
        return size <= most

    def _entry_or_poison(self, row: dict[str, Any]) -> Any:
        try:
            return self.entry(row)
        except Poison as bad:
            return bad

"""The decisions of the batching engine, without threads, clocks or input and output.

Entries leave in the order in which they came. A request closes when it has enough records or bytes, when its first entry has
waited long enough, or when the input has ended. Entries that the target refuses *for now* go back to the front, in their
order, and everything waits for a growing pause. Entries that it refuses *for good* are rejected. If it refuses a whole request
for good, the flow sends that again by halves, until the bad entries are alone. An entry without tries left, or an unexpected
error, stops the flow.

An outage lasts from a request that fails as a whole to the next one that does not. During it the flow sends entries without
tries left again until ``outage_timeout``, and waits for an open circuit. Throttled entries also go on for so long.

If entries have keys, two entries of one key are never in two requests at once. An entry that is sent again takes along the
later entries of its key in the request. A request that timed out keeps its keys until its thread returns. So the last entry of
a key that this process sends is the newest, whatever fails. Network and target may still reorder: a target may have accepted a
request before its connection closed, and apply it after a newer one. Only a target that compares versions is safe from that.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ground.errors import ConnectorError, Poison, Transient
from ..ground.options import Choice, Duration, Int, Options, Size, Values
from ..ground.quantities import duration, size
from ..ground.retry import BREAKER_OPTIONS, Breaker, Contact, RetrySettings, outage_error
from .pieces import Piece


class Throttled(Transient):
    """The target asks for fewer records at a time."""


class Aimd:
    """The most records in flight: ``limit``, from 1 to ``most``, grows by steps and shrinks by a factor."""

    def __init__(self, first: int, most: int, step: int, factor: float = 0.5) -> None:
        self.most, self.step, self.factor = most, max(1, step), factor
        self.limit = max(1, min(first, most))

    def up(self) -> None:
        """Notes a request that succeeded as a whole."""
        self.limit = min(self.most, self.limit + self.step)

    def down(self) -> None:
        """Notes that the target refused a request, or a part of it, for now."""
        self.limit = max(1, int(self.limit * self.factor))


def batching_options(
    *, max_records: int, max_bytes: str, max_time: str, most_records: int | None = None, most_bytes: int | None = None
) -> Options:
    """The options of a sink that sends requests, with the defaults and the upper limits of one system."""
    return BREAKER_OPTIONS | Options(
        {
            "batch.maxRecords": Int(max_records, 1, most_records, meaning="a request has at most so many rows"),
            "batch.maxBytes": Size(size(max_bytes), 1, most_bytes, meaning="… and bytes"),
            "batch.maxTime": Duration(duration(max_time), meaning="… and waits at most so long"),
            "batch.maxRecordBytes": Size(
                None, at_least=1, not_above="batch.maxBytes", meaning="a larger row is a bad row; default: batch.maxBytes"
            ),
            "batch.maxInFlight": Int(50, at_least=1, meaning="requests of a task that are under way"),
            "batch.maxBuffered": Int(
                None, at_least=1, above="batch.maxRecords", meaning="rows of a task in memory; default: 10 x batch.maxRecords"
            ),
            "request.timeout": Duration(30.0, at_least="1ms", meaning="of one request"),
            "request.onTimeout": Choice("retry", among=("retry", "fail"), meaning="what a request without an answer does"),
        }
    )


@dataclass(frozen=True)
class FlowLimits:
    """``records``, ``bytes`` and ``seconds`` close a request; at most ``in_flight`` requests are in flight.

    At most ``buffered`` records wait for a request, including those to be sent again. A record of more than ``record_bytes``
    is a bad row. A request without an answer for ``timeout`` seconds has failed; with ``fail_on_timeout`` it stops the flow.
    """

    records: int = 1000
    bytes: int = 5 << 20
    seconds: float = 5.0
    record_bytes: int = 5 << 20
    in_flight: int = 50
    buffered: int = 10_000
    timeout: float = 30.0
    fail_on_timeout: bool = False

    @classmethod
    def of(cls, values: Values) -> FlowLimits:
        """The user's limits, with the defaults that depend on other options."""
        return cls(
            values["batch.maxRecords"],
            values["batch.maxBytes"],
            values["batch.maxTime"],
            values["batch.maxRecordBytes"] or values["batch.maxBytes"],
            values["batch.maxInFlight"],
            values["batch.maxBuffered"] or 10 * values["batch.maxRecords"],
            values["request.timeout"],
            values["request.onTimeout"] == "fail",
        )


Failure = tuple[int, BaseException]
"""The index of an entry in its request, and the error with which the target refused it."""


@dataclass(eq=False)
class Request:
    """Entries that are in flight together."""

    number: int
    pieces: Sequence[Piece]
    started: float
    records: int = field(init=False)

    def __post_init__(self) -> None:
        self.records = sum(map(len, self.pieces))

    def entries(self) -> list[Any]:
        return [entry for piece in self.pieces for entry in piece.entries()]

    @property
    def has_keys(self) -> bool:
        return self.pieces[0].chunk.keys is not None

    def keys(self) -> Iterator[Hashable]:
        for piece in self.pieces:
            yield from piece.keys()


@dataclass
class Counts:
    """The outcomes of entries: ``taken`` = ``acknowledged`` + ``rejected`` + waiting or in flight.

    ``retries`` counts requests with entries that had failed before.
    """

    taken: int = 0
    acknowledged: int = 0
    rejected: int = 0
    requests: int = 0
    retries: int = 0


@dataclass(frozen=True)
class Outage:
    """An outage of the target: the newest ``error``, and when the first request failed, by the clock of the flow."""

    error: Transient
    since: float


class Flow:
    """Decides what to send. Its driver sends the requests from :meth:`next` until there are none, and reports each outcome.

    ``now`` is a clock in seconds. Only one thread at a time may use a flow.
    """

    def __init__(self, limits: FlowLimits, contact: Contact, breaker: Breaker, now: Callable[[], float]) -> None:
        self.limits, self.contact, self.breaker, self._now = limits, contact, breaker, now
        most = limits.records * limits.in_flight
        self.rate = Aimd(4 * limits.records, most, step=limits.records // 10)
        self.counts = Counts()
        self.error: BaseException | None = None
        self.outage: Outage | None = None
        self.outlasted = False
        """True while the flow waits during an outage in which an entry has used up its tries."""
        self.draining = False
        self.under_way: dict[int, Request] = {}
        self._given_up: dict[int, Request] = {}
        self._fresh: deque[Piece] = deque()
        self._again: list[Piece] = []
        self._fresh_records = self._fresh_bytes = self._flying = 0
        self._busy: set[Hashable] = set()
        self._rejected: list[tuple[dict[str, Any], BaseException]] = []
        self._paused_until = 0.0
        self._trial: Request | None = None
        self._round = 0
        """The number of the first request after the last failure: earlier requests fail from the same cause."""

    # input

    def room(self) -> int:
        """The number of further entries that may be offered now."""
        return max(0, self.limits.buffered - self._fresh_records - sum(map(len, self._again)))

    def offer(self, piece: Piece) -> None:
        """Takes entries to send."""
        self._fresh.append(piece)
        self._fresh_records += len(piece)
        self._fresh_bytes += piece.bytes
        self.counts.taken += len(piece)

    def drain(self) -> None:
        """Notes the end of the input: waiting entries are sent without delay."""
        self.draining = True

    def stop(self, error: BaseException) -> None:
        """Stops sending. The first error counts."""
        if self.error is None:
            self.error = error

    # output

    def next(self) -> Request | None:
        """The next request to send now; ``None`` if there is none or it must wait."""
        if self.error is not None or self._trial or len(self.under_way) >= self.limits.in_flight or not self._due():
            return None
        pieces = self._take()
        if not pieces:
            return None
        request = Request(self.counts.requests, pieces, self._now())
        self._send(request)
        return request

    def wakes_at(self) -> float | None:
        """When, by the flow's clock, the driver must look again even if nothing else happens; ``None``: never.

        That is when a pause or an open circuit ends, or the time of a request or a batch is over.
        """
        times = [request.started + self.limits.timeout for request in self.under_way.values()]
        times += [request.started + self._patience() for request in self._given_up.values()]
        if self._fresh or self._again:
            times += [self._paused_until, self._now() + self.breaker.seconds_open()]
        if self._fresh:
            times.append(self._fresh[0].chunk.since + self.limits.seconds)
        return min((time for time in times if time > self._now()), default=None)

    def done(self) -> bool:
        """True when no entry waits or is in flight."""
        return not (self._fresh or self._again or self.under_way)

    def rejected(self) -> list[tuple[dict[str, Any], BaseException]]:
        """The rows that the target has refused for good since the last call."""
        rejected, self._rejected = self._rejected, []
        return rejected

    # outcomes

    def answered(self, request: Request, failures: Sequence[Failure]) -> None:
        """Notes that the target took all entries of ``request`` except ``failures``. A late answer only frees the keys."""
        if self._landed(request):
            self._judge(request, dict(failures))

    def refused(self, request: Request, error: BaseException) -> None:
        """Notes that ``request`` failed as a whole."""
        if self._landed(request):
            self._fail(request, error)

    def _fail(self, request: Request, error: BaseException) -> None:
        if isinstance(error, Poison) and request.records > 1:
            self._separate(request)
        else:
            self._judge(request, dict.fromkeys(range(request.records), error))

    def expire(self) -> list[Request]:
        """Gives up the requests whose time is over, and returns them."""
        now, timeout = self._now(), self.limits.timeout
        late = [request for request in self.under_way.values() if request.started + timeout <= now]
        if any(request.started + self._patience() <= now for request in self._given_up.values()):
            self.stop(_lost(timeout, self._patience()))
        for request in late:
            outage = Transient(f"no answer within {timeout:g}s")
            self._ended(request)
            if request.has_keys:
                self._given_up[request.number] = request
            if self.limits.fail_on_timeout:
                self.stop(outage)
            else:
                self._fail(request, outage)
        return late

    # decisions

    def _due(self) -> bool:
        if not (self._fresh or self._again) or self._now() < self._paused_until:
            return False
        if self.breaker.seconds_open() > 0:
            return False
        enough = self._fresh_records >= self.limits.records or self._fresh_bytes >= self.limits.bytes
        return bool(self._again) or enough or self.draining or self._waited_long_enough()

    def _waited_long_enough(self) -> bool:
        return self._now() >= self._fresh[0].chunk.since + self.limits.seconds

    def _take(self) -> list[Piece]:
        """The entries of the next request; none if those in flight leave no room or have the same key."""
        most = min(self.limits.records, self.rate.limit)
        waiting = self._fresh_records + sum(map(len, self._again))
        if self.under_way and self._flying + min(most, waiting) > self.rate.limit:
            return []
        taken: list[Piece] = []
        size = self.limits.bytes
        while most > 0 and (self._again or self._fresh):
            queue: Any = self._again or self._fresh
            records = queue[0].before_any(self._busy, queue[0].fitting(most, size))
            if records == 0 or (taken and queue[0].is_alone):
                break
            taken.append(self._cut(records))
            most -= records
            size -= taken[-1].bytes
            if taken[-1].is_alone:
                break
        return taken

    def _cut(self, records: int) -> Piece:
        again = bool(self._again)
        piece: Piece = self._again.pop(0) if again else self._fresh.popleft()
        if records < len(piece):
            piece, rest = piece.cut(records)
            if again:
                self._again.insert(0, rest)
            else:
                self._fresh.appendleft(rest)
        if not again:
            self._fresh_records -= len(piece)
            self._fresh_bytes -= piece.bytes
        return piece

    def _send(self, request: Request) -> None:
        self._trial = request if self.breaker.is_open else None
        self.breaker.begin()
        self.counts.requests += 1
        if any(piece.tries for piece in request.pieces):
            self.counts.retries += 1
        self.under_way[request.number] = request
        self._flying += request.records
        self._busy.update(request.keys())

    def _landed(self, request: Request) -> bool:
        """Frees the keys of a request whose thread has returned. False if the request was given up before."""
        self._given_up.pop(request.number, None)
        self._busy.difference_update(request.keys())
        return self._ended(request)

    def _ended(self, request: Request) -> bool:
        """Takes the request out of those in flight; false if it was not among them."""
        if self.under_way.pop(request.number, None) is None:
            return False
        self._flying -= request.records
        if self._trial is request:
            self._trial = None
        return True

    def _patience(self) -> float:
        """How many seconds from its start a request may keep its keys."""
        return self.limits.timeout + max(self.limits.timeout, self.contact.retry.outage_timeout)

    def _separate(self, request: Request) -> None:
        """Sends the entries of a request again in smaller requests, to find the bad ones."""
        self._learn(request, None, whole=False)
        pieces = request.pieces if len(request.pieces) > 1 else request.pieces[0].cut(request.records // 2)
        for piece in pieces:
            insort(self._again, replace(piece, is_alone=True), key=lambda piece: piece.order)

    def _judge(self, request: Request, failures: dict[int, BaseException]) -> None:
        outage = next((error for error in failures.values() if isinstance(error, Transient)), None)
        self._learn(request, outage, whole=len(failures) == request.records)
        if outage is not None:
            failures = _with_followers(request, failures)
        first = 0
        for piece in request.pieces:
            last = first + len(piece)
            self._sort_out(piece, {place - first: failures[place] for place in range(first, last) if place in failures})
            first = last

    def _learn(self, request: Request, outage: Transient | None, whole: bool) -> None:
        """Adapts rate, breaker and outage to an outcome. Failures of requests in flight together count as one."""
        if outage is not None and whole:
            self.outage = Outage(outage, self.outage.since if self.outage else self._now())
        elif request.number >= self._round:
            self._end_outage()
        else:  # the answer to a request from before the failure: the target may be down by now
            self.contact.reached = True
        if outage is None:
            self.breaker.succeeded()
            self.rate.up()
        elif request.number >= self._round:
            self._round = self.counts.requests
            self.rate.down()
            if whole:
                self.breaker.failed()
            else:
                self.breaker.succeeded()

    def _end_outage(self) -> None:
        """Ends the outage. If entries used up their tries in it, all that wait to be sent again get new tries."""
        if self.outlasted:
            self._again = [replace(piece, tries=0) for piece in self._again]
        self.outage, self.outlasted, self.contact.reached = None, False, True

    def _sort_out(self, piece: Piece, failures: dict[int, BaseException]) -> None:
        again = []
        for place, error in failures.items():
            if isinstance(error, Transient):
                again.append(place)
            elif isinstance(error, Poison):
                self.counts.rejected += 1
                self._rejected.append((piece.row(place), error))
            else:
                self.stop(error)
        self.counts.acknowledged += len(piece) - len(failures)
        if again:
            self._send_again(piece.pick(again, self._now()), failures[again[0]])

    def _send_again(self, piece: Piece, outage: BaseException) -> None:
        retry, seconds = self.contact.retry, self._now() - piece.failing_since
        pause = retry.pause(piece.tries, outage)
        patience = retry.patience(pause)
        is_long = pause > retry.max_backoff
        if piece.tries > retry.max_retries or is_long:
            self.outlasted = self._waits_for_target(piece, patience)
            waits_its_turn = (is_long or isinstance(outage, Throttled)) and seconds < patience
            if not (self.outlasted or waits_its_turn):
                self.stop(_used_up(outage, piece, seconds, replace(retry, outage_timeout=patience)))
        insort(self._again, piece, key=lambda piece: piece.order)
        if is_long:
            pause = min(pause, max(0.0, patience - seconds))
        self._paused_until = max(self._paused_until, self._now() + pause)

    def _waits_for_target(self, piece: Piece, timeout: float) -> bool:
        """True if ``piece`` fails because of an outage that is not too long; false if the target took others meanwhile."""
        away = self.outage
        return away is not None and away.since <= piece.failing_since and self._now() - away.since < timeout


def _with_followers(request: Request, failures: dict[int, BaseException]) -> dict[int, BaseException]:
    """``failures``, and the later entries with the key of one that is sent again: they must arrive last again.

    So are those that are refused for good, perhaps only because that one was not there.
    """
    followed, keys = dict(failures), {}
    for place, key in enumerate(request.keys()):
        error = failures.get(place)
        if isinstance(error, Transient):
            keys[key] = error
        elif key in keys and (error is None or isinstance(error, Poison)):
            followed[place] = keys[key]
    return followed


def _lost(timeout: float, patience: float) -> Transient:
    return Transient(
        f"a request got no answer within {timeout:g}s, and after {patience:g}s its call has not returned either: "
        "newer rows of its keys cannot be sent, since it might still arrive after them",
        way_out="start again when the target is back; the batch is sent again whole",
    )


def _used_up(outage: BaseException, piece: Piece, seconds: float, retry: RetrySettings) -> Transient:
    text = outage.message if isinstance(outage, ConnectorError) else str(outage)
    way_out = "start again when the target is back; the batch is sent again whole"
    error = Transient(f"refused {piece.tries} times; the last answer: {text}", way_out=way_out)
    return outage_error(error, piece.tries, seconds, retry)

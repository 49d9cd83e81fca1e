"""A source over a system that cannot be read twice: the driver plans epochs, tasks receive and record them.

:mod:`connectors.core.epochs` says how the log makes that exactly-once; :mod:`connectors.core.epoch_reader` has the tasks' side.
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Fatal, Misconfigured, Problem
from ..ground.options import REQUIRED, Duration, Int, Json, Options, Size, Time
from ..storage.location import Location, storage_of
from .epoch_reader import POLL_SECONDS, EpochReader, EpochSplit
from .epochs import EpochLog, Header, Receiver
from .leases import EpochLeases, LeaseKeeper
from .source import Position, ReadLimit, Slice, Source, SplitEnumerator, SplitT

_log = logging.getLogger("connectors")
_MOST_DEATHS: Final = 8
"""The number of consecutive epochs in which attempts may die while no message comes. Each waits half a lease or longer."""

EPOCH_OPTIONS: Final = Options(
    stateLocation=Location(REQUIRED, meaning="the folder of the epoch log, of this query alone; any storage"),
    storageOptions=Json({}, kind=dict, meaning="fsspec's keys for stateLocation; or objects of them by location"),
    maxRowsPerTrigger=Int(100_000, at_least=1, meaning="messages of an epoch"),
    maxBytesPerTrigger=Size(64 << 20, at_least=1, meaning="bytes of an epoch"),
    maxEpochTime=Duration(10.0, meaning="an epoch receives for so long at most; for no longer than messages are leased"),
    pollInterval=Duration(1.0, meaning="how long an epoch waits for its first message; also between empty epochs"),
    drainTimeout=Duration(
        5.0, meaning="availableNow: the query ends when nothing has come for so long; after a death, for a lease longer"
    ),
)
"""The options of every source with an epoch log."""
STOP_OPTIONS: Final = Options(
    stopAt=Time(None, meaning="availableNow: a time or milliseconds; what was published then or later is left")
)
"""The option of sources whose system tells when a record was published."""
ID_OPTIONS: Final = Options(
    deduplicationWindow=Duration(600.0, meaning="how long after its acknowledgement a message is known by its id")
)


class EpochLogSource(Source):
    """The base class of sources with an epoch log: their options and the log."""

    limits = ("rows", "bytes")
    bounded = False
    keeps_positions: ClassVar[bool] = False
    """True if the log has the positions of partitions, so that ``connectors offsets`` can move them."""

    @classmethod
    def known_options(cls) -> Options:
        return super().known_options() | EPOCH_OPTIONS | cls.options

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or 1)

    def begin(self) -> None:
        """Sets up the system for a new query, such as a consumer group. Runs on the driver, perhaps twice."""

    def resume(self) -> None:
        """Sets up the system for a later run: makes again what :meth:`end` has removed. Runs on the driver."""

    def end(self) -> None:
        """Called on the driver when a run of the query ends, but not when the driver is killed."""

    def end_of_run(self, now: float) -> float:
        """The time until which a run reads that ends with what is there ``now``; both in seconds since 1970."""
        stop = self.values.get("stopAt")
        return now if stop is None else min(now, math.nextafter(stop, -math.inf))

    def refuse_stop(self) -> None:
        """Raises :class:`Misconfigured` if ``stopAt`` is given for a run without an end."""
        if self.values.get("stopAt") is not None:
            text = "ends runs by the trigger availableNow; use that, or leave it out."
            raise Misconfigured(f"connectors.{self.name}", [Problem("stopAt", text)])

    @classmethod
    def positions_after(cls, log: EpochLog, epoch: int) -> Mapping[str, Any]:
        """With ``keeps_positions``, the position of each partition after ``epoch``: ``None`` if it is read to its end."""
        raise NotImplementedError

    def log(self) -> EpochLog:
        """The log in ``stateLocation``."""
        return EpochLog(storage_of(self.values["stateLocation"], self.values["storageOptions"]), self.name)


class EpochSource(EpochLogSource):
    """A source over a system that cannot be read twice. A subclass sets ``name`` and ``schema``, and makes a receiver."""

    @classmethod
    def known_options(cls) -> Options:
        return super().known_options() | ID_OPTIONS

    @abstractmethod
    def receiver(self, schema: pa.Schema | None) -> Receiver:
        """A new receiver of rows that have at least the columns of ``schema``; ``None`` on the driver."""

    def enumerator(self) -> EpochEnumerator:
        return EpochEnumerator(self)

    def reader(self, schema: pa.Schema) -> EpochReader:
        return EpochReader(self, schema)


class EpochLogEnumerator(SplitEnumerator[SplitT]):
    """Plans epochs. A position holds ``epoch``, the number of the last epoch, and ``log``, the id of the epoch log."""

    def __init__(self, source: EpochLogSource) -> None:
        self.log = source.log()
        self._begin, self._resume, self._end = source.begin, source.resume, source.end
        self._end_of_run, self._refuse_stop = source.end_of_run, source.refuse_stop
        self._has_begun = False
        self._first: int | None = None
        """The last epoch of earlier runs."""
        self._poll_interval: float = source.values["pollInterval"]
        self._newest: int | None = None
        self._newest_at = -math.inf
        """The driver's monotonic time when this run first looked past its newest epoch; never compared with a task's clock."""

    @abstractmethod
    def acknowledge(self, last: int) -> None:
        """Acknowledges the epochs up to ``last``, which Spark has committed. May be called again."""

    @abstractmethod
    def is_empty(self, until: float | None) -> bool | None:
        """True if there is nothing to receive; ``None`` if only an epoch can find out."""

    def start(self) -> Position:
        log = self.log.begin()
        self._begin()
        self._has_begun = True
        return {"epoch": 0, "log": log}

    def head(self) -> float | None:
        self._refuse_stop()
        return None

    def freeze(self) -> float:
        """The end of this run, in seconds since 1970: messages published later are too new for it."""
        return self._end_of_run(machine.time())

    def advance(self, at: Position, head: float | None, limit: ReadLimit) -> Position:
        self._first = at["epoch"] if self._first is None else self._first
        if at["epoch"]:
            self.log.check(at["log"])
        self.resume()
        self.acknowledge(at["epoch"])
        after: Position = {"epoch": at["epoch"] + 1, "log": at["log"]}
        if recorded := self.log.headers(at["epoch"] + 1):  # an older checkpoint was restored; numPartitions may differ
            return {**after, "readers": recorded[0].readers}
        is_done = self._is_done(at, head, self.log.headers(at["epoch"]))
        return at if is_done else {**after, **({} if head is None else {"until": head})}

    def resume(self) -> None:
        """Calls the source's ``resume`` before the first plan of a run that did not begin the query."""
        if not self._has_begun:
            self._resume()
            self._has_begun = True

    def is_of_run(self, at: Position, until: float | None) -> bool:
        """True for an epoch of this run, which ends at the time ``until``. With ``stopAt`` earlier runs ended there, too."""
        return until is not None and at.get("until") == until and self._first is not None and at["epoch"] > self._first

    def _is_done(self, at: Position, until: float | None, headers: Sequence[Header]) -> bool:
        """True if there is nothing to receive for now. An epoch of an earlier run that this run replays is no proof."""
        epoch = at["epoch"]
        is_of_run = bool(headers) and self.is_of_run(at, until)
        has_rows = any(header.rows for header in headers)
        if self._newest not in (None, epoch):
            self._newest_at = machine.monotonic()
        self._newest = epoch
        if is_of_run and not has_rows and all(header.is_dry for header in headers) and any(header.late for header in headers):
            return True
        is_empty = self.is_empty(until)
        if is_empty is not None:
            return is_empty
        if is_of_run and all(header.is_complete for header in headers):
            return True
        if not headers or has_rows or any(header.finished for header in headers):  # a finished partition may have children
            return False
        if until is not None:
            return is_of_run and all(header.is_dry for header in headers)
        return machine.monotonic() - self._newest_at < self._poll_interval

    def committed(self, at: Position) -> None:
        self.acknowledge(at["epoch"])

    def stop(self) -> None:
        self._end()


class EpochEnumerator(EpochLogEnumerator[EpochSplit]):
    """Plans epochs of a :class:`Receiver`, extends the leases of their messages and acknowledges them."""

    def __init__(self, source: EpochSource) -> None:
        super().__init__(source)
        self.source = source
        self._receiver: Receiver | None = None
        self._keeper: LeaseKeeper | None = None
        self._until: float | None = None
        """The end of this run's messages, in seconds since 1970 by the receiver's clock; ``None``: the run has no end."""
        self._newest_plan = self._newest_record = -1
        """The newest epoch that this run has planned, and the newest whose record it has seen."""
        self._orphans_until = -math.inf
        """The monotonic time by which all leases of dead tasks and drivers have ended and their messages have come again."""
        self._deaths = 0
        """The number of consecutive newest epochs in which an attempt died and no reader recorded a message."""
        self._orphans = 0.0
        """The seconds to ``_orphans_until`` when the driver planned the newest epoch."""
        self._fresh = -1
        """The epoch that tasks of this run receive: its leases have been extended since, if the keeper was in time."""
        self._acknowledged = -1

    @property
    def receiver(self) -> Receiver:
        """The driver's receiver, opened on first use."""
        if self._receiver is None:
            receiver = self.source.receiver(None)
            receiver.open()
            longest, lease = self.source.values["maxEpochTime"], receiver.lease_seconds
            if lease is not None and longest > lease:
                receiver.close()
                longer = f"a longer {receiver.lease_option}" if receiver.lease_option else "lease messages for longer"
                text = f"is {longest:g}s, but messages are leased for {lease:g}s, and come again while an epoch receives. "
                problem = Problem("maxEpochTime", text + f"Give {lease:g}s or less, or {longer}.")
                raise Misconfigured(f"connectors.{self.source.name}", [problem])
            self._receiver = receiver
        return self._receiver

    def freeze(self) -> float:
        self._until = self.source.end_of_run(self.receiver.now())
        return self._until

    def advance(self, at: Position, head: float | None, limit: ReadLimit) -> Position:
        end = super().advance(at, head, limit)
        self._newest_plan = end["epoch"]
        return end

    def _is_done(self, at: Position, until: float | None, headers: Sequence[Header]) -> bool:
        late, is_first_look = [lease for header in headers for lease in header.late], at["epoch"] != self._newest_record
        if late and self._keeper is not None and self.is_of_run(at, until):
            self._keeper.hold(late)
        elif late and self.receiver.lease_seconds is not None and is_first_look:  # too late for an earlier run
            with contextlib.suppress(Exception):  # the leases end by themselves, or have ended
                self.receiver.release(late)
        orphans = max((header.orphans for header in headers), default=0.0)
        if is_first_look:
            has_died, has_rows = 0 < orphans >= self._orphans, any(header.rows for header in headers)
            self._deaths = self._deaths + 1 if has_died and not has_rows else 0
            if has_died:
                self._await_orphans(orphans)
        self._newest_record = at["epoch"]
        if until is not None and machine.monotonic() < self._orphans_until:
            return False
        is_full = self._keeper is not None and self._keeper.is_full() and self.is_of_run(at, until)
        if is_full and late and not any(header.rows for header in headers):
            text = "connectors.%s: the run ends, since too many messages come that are too late for it: %s"
            _log.warning(text, self.source.name, "earlier ones behind them are left")
            return True
        return super()._is_done(at, until, headers)

    def _await_orphans(self, seconds: float) -> None:
        """Keeps the run going for at least ``seconds``: by then the system redelivers what dead tasks have received.

        Raises :class:`Fatal` if attempts die in epoch after epoch and no message comes.
        """
        now = machine.monotonic()
        if self._until is not None and self._orphans_until < now:
            text = "connectors.%s: a task or a driver died. What it had received comes again when its leases end: %s %g s"
            _log.warning(text, self.source.name, "the query waits up to", seconds)
        if self._until is not None and self._deaths > _MOST_DEATHS:
            raise Fatal(
                f"in each of the last {self._deaths} epochs an attempt at a task has died, and they had no message. What these "
                f"attempts had received is left: it comes again when its leases end, within {seconds:g} s",
                connector=f"connectors.{self.source.name}",
                way_out="find in Spark's log why the tasks fail, and start the query again: it goes on behind its last epoch",
            )
        self._orphans_until = max(self._orphans_until, now + seconds)

    def is_empty(self, until: float | None) -> bool | None:
        pending = self.receiver.pending()
        return None if pending is None else not pending and (until is None or self._stays_empty())

    def _stays_empty(self) -> bool:
        end = machine.monotonic() + self.source.values["drainTimeout"]
        while machine.monotonic() < end:
            if self.receiver.pending():
                return False
            machine.sleep(min(POLL_SECONDS, max(0.0, end - machine.monotonic())))
        return True

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        (self.log.check if start["epoch"] else self.log.claim)(end["log"])
        self.log.check_retained(end["epoch"])
        self.resume()
        self.acknowledge(start["epoch"])
        epoch, readers = end["epoch"], _readers(end, parallelism)
        if not self.log.readers(epoch):
            self._fresh = epoch
        lease = self.receiver.lease_seconds
        if lease is None:
            return super().slices(start, end, parallelism)
        if self._keeper is None:
            self._keeper = LeaseKeeper(self.source, lease)
            self._keeper.finalizer = weakref.finalize(self, self._keeper.end)  # a driver does not always close its planner
        if self._keeper.epoch is None or self._keeper.epoch.epoch != epoch:  # a second action on a batch is no new epoch
            if epoch != self._newest_plan:  # a driver that died has planned it
                self._await_orphans(lease + self.source.values["drainTimeout"])
            is_of_run = self._until is not None and end.get("until") == self._until
            self._keeper.epoch = EpochLeases(epoch, readers, holds_late=is_of_run)
            self._orphans = max(0.0, self._orphans_until - machine.monotonic())
        return [replace(part, detail=self._orphans) for part in super().slices(start, end, parallelism)]

    def splits_of(self, part: Slice) -> Iterator[EpochSplit]:
        for split in super().splits_of(part):
            yield replace(split, orphans=part.detail or 0.0, is_repeated=part.retried)

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[EpochSplit]:
        for epoch in range(start["epoch"] + 1, end["epoch"] + 1):
            for reader in range(readers := _readers(end, parallelism)):
                yield EpochSplit(end["log"], epoch, reader, readers, end.get("until"))

    def stop(self) -> None:
        self._stop_keeper()
        super().stop()

    def close(self) -> None:
        self._stop_keeper()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def acknowledge(self, last: int) -> None:
        if last <= self._acknowledged:
            return
        own = None if self._keeper is None else self._keeper.epoch
        if own is not None and own.epoch <= last:
            own.is_over = True
        for epoch in self.log.unacknowledged(last):
            leases, age = self.log.leases(epoch)
            if leases:
                self.receiver.acknowledge(leases)
            self.log.mark_acknowledged(epoch, self._window(epoch, age, own), self.receiver.settled())
        if self._keeper is not None and own is not None and own.is_over:
            self._keeper.epoch = None
        self.log.delete_old(last)
        self._acknowledged = last

    def _window(self, epoch: int, age: float, own: EpochLeases | None) -> float:
        """The seconds for which the log keeps the ids of ``epoch``.

        If a lease has ended, its message may come again, so the ids stay as long as the system retains messages. The leases
        were ``age`` seconds old when they were recorded; after that the keeper extended them, with its longest pause between.
        """
        window, lease = float(self.source.values["deduplicationWindow"]), self.receiver.lease_seconds
        if lease is None:
            return window
        if own is not None and own.epoch == epoch == self._fresh and age + own.longest_pause() <= lease:
            return window
        return max(window, self.receiver.retention_seconds)

    def _stop_keeper(self) -> None:
        """Ends the extension of leases, and releases the messages that are too late for this run."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with contextlib.suppress(Exception):  # the leases end by themselves
                if late := keeper.stop():
                    self.receiver.release(late)


def _readers(end: Position, parallelism: int) -> int:
    """The number of readers of an epoch: as in its first plan, since a sink may already have its rows."""
    return int(end.get("readers", parallelism))

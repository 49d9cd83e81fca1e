"""Extends the leases of messages, which the system would otherwise redeliver while their batch still runs."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..ground import machine
from .epochs import LEASE, EpochLog, Receiver
from .metrics import PLANNING, Component, Meter, Place
from .planning import source_id

if TYPE_CHECKING:
    from .epoch_source import EpochSource

_log = logging.getLogger("connectors")
_MOST_LATE: Final = 100_000
"""The most late messages that a run holds until its end. To extend more would take longer than leases last."""


class EpochLeases:
    """The leases of one epoch until its acknowledgement, and the longest time without an extension.

    ``holds_late``: the epoch's late messages stay leased until the end of the run, so that no later epoch gets them.
    """

    def __init__(self, epoch: int, readers: int, *, holds_late: bool) -> None:
        self.epoch = epoch
        self.readers = readers
        self.holds_late = holds_late
        self.is_over = self.is_told = False
        self.by_reader: dict[int, list[str]] = {}
        self.plan_time = self._extended = machine.time()
        self._pause = 0.0

    def longest_pause(self) -> float:
        """The longest time without an extension since the epoch was planned, in seconds."""
        return max(self._pause, machine.time() - self._extended)

    def note_extension(self, began: float) -> None:
        """Notes an extension of all leases that were recorded at the time ``began`` (seconds since 1970)."""
        self._pause, self._extended = self.longest_pause(), began


class LeaseKeeper:
    """Extends leases in its own thread on the driver, from a run's first epoch to its end.

    It extends the leases of the newest epoch while its batch runs, and those of messages that are too late for the run.
    """

    def __init__(self, source: EpochSource, lease_seconds: float) -> None:
        self._source = source
        self._lease = lease_seconds
        self.epoch: EpochLeases | None = None
        self.finalizer: weakref.finalize[..., Any] | None = None
        """Ends the thread when the enumerator is garbage-collected, and keeps this object alive until then."""
        self._late: dict[str, None] = {}
        self._place = Place(PLANNING, Component("source", source.name, source_id(source)), 0)
        self._over = machine.event()
        self._thread = machine.thread(self._keep, "connectors.leases")
        self._thread.start()

    def hold(self, leases: Iterable[str]) -> None:
        """Extends the ``leases`` of late messages until the end of the run. Above the limit it drops the oldest."""
        self._late.update(dict.fromkeys(leases))
        for lease in list(islice(self._late, max(0, len(self._late) - _MOST_LATE))):
            self._late.pop(lease, None)

    def is_full(self) -> bool:
        """True if the run can hold no more late messages without giving up others, which then come again."""
        return len(self._late) >= _MOST_LATE

    def end(self) -> None:
        """Stops extending leases."""
        self._over.set()
        if self.finalizer is not None:
            self.finalizer.detach()

    def stop(self) -> list[str]:
        """As :meth:`end`, but also waits up to 10 s for the thread. Returns the leases that the caller must release."""
        self.end()
        self._thread.join(10)
        if self.epoch is not None and self.epoch.holds_late:
            self._read_leases(self._source.log(), self.epoch)
        return list(self._late)

    def _keep(self) -> None:
        receiver, log = self._source.receiver(None), self._source.log()
        is_open = False
        with contextlib.ExitStack() as stack:
            while not self._over.wait(self._lease / 3):
                try:
                    if not is_open:
                        receiver.open()
                        stack.callback(receiver.close)
                        is_open = True
                    self._extend(receiver, log)
                except Exception:  # if a lease ends, the system only redelivers messages whose ids are known
                    _log.warning("connectors.%s: leases could not be extended", self._source.name, exc_info=True)

    def _extend(self, receiver: Receiver, log: EpochLog) -> None:
        epoch, began = self.epoch, machine.time()
        count = 0
        if epoch is not None and not epoch.is_over:
            self._read_leases(log, epoch)
            for leases in epoch.by_reader.values():
                receiver.extend(leases)
                count += len(leases)
            epoch.note_extension(began)
            if count:
                self._tell(epoch)
        if late := list(self._late):
            receiver.extend(late)
        if count or late:
            with Meter(self._place) as meter:
                meter.happened(extended=count + len(late))

    def _tell(self, epoch: EpochLeases) -> None:
        if not epoch.is_told and machine.time() > epoch.plan_time + self._lease:
            epoch.is_told = True
            text = "connectors.%s: the batch of epoch %d takes longer than the lease of its messages (%g s), %s"
            _log.warning(text, self._source.name, epoch.epoch, self._lease, "which is extended until the batch ends")

    def _read_leases(self, log: EpochLog, epoch: EpochLeases) -> None:
        for reader in range(epoch.readers):
            if reader not in epoch.by_reader and (table := log.table(epoch.epoch, reader, (LEASE,))) is not None:
                header, columns = table
                epoch.by_reader[reader] = [*columns[LEASE].to_pylist(), *header.leases]
                if epoch.holds_late:
                    self.hold(header.late)

"""Leases of messages, which a system would deliver again while their batch still runs."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from .epochs import LEASE, EpochLog
from .metrics import PLANNING, Component, Meter, Place
from .planning import source_id

if TYPE_CHECKING:
    from .epoch_source import EpochSource

_log = logging.getLogger("connectors")


class LeaseKeeper:
    """Extends the leases of an epoch's messages while its batch runs, on the driver, in a thread of its own."""

    def __init__(self, source: EpochSource, epoch: int, readers: int) -> None:
        self._source = source
        self.epoch = epoch
        self.finalizer: weakref.finalize[..., Any] | None = None
        """What ends the thread when the enumerator is gone, and keeps this object until then."""
        self._readers = readers
        self._leases: dict[int, list[str]] = {}
        self._extended, self._pause = time.time(), 0.0
        self._place = Place(PLANNING, Component("source", source.name, source_id(source)), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="connectors.leases", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Extends nothing more."""
        self._over.set()
        if self.finalizer is not None:
            self.finalizer.detach()

    def longest_pause(self) -> float:
        """The most seconds that have passed without an extension since the epoch was planned."""
        return max(self._pause, time.time() - self._extended)

    def stop(self) -> None:
        """As :meth:`end`, and waits until the thread has ended."""
        self.end()
        self._thread.join(10)

    def _keep(self) -> None:
        receiver, log = self._source.receiver(None), self._source.log()
        lease = receiver.lease_seconds or 0.0
        warn_at = time.monotonic() + lease
        is_open = False
        with contextlib.closing(receiver):
            while not self._over.wait(lease / 3):
                try:
                    if not is_open:
                        receiver.open()
                        is_open = True
                    self._read_leases(log)
                    began = time.time()
                    for leases in self._leases.values():
                        receiver.extend(leases)
                    self._pause, self._extended = self.longest_pause(), began
                    with Meter(self._place) as meter:
                        meter.happened(extended=sum(map(len, self._leases.values())))
                    if time.monotonic() > warn_at:
                        warn_at = math.inf
                        text = "connectors.%s: the batch of epoch %d takes longer than the lease of its messages (%g s), %s"
                        _log.warning(text, self._source.name, self.epoch, lease, "which is extended until the batch ends")
                except Exception:  # a lease that ends only makes the system deliver again what is known by its id
                    _log.warning("connectors.%s: leases could not be extended", self._source.name, exc_info=True)

    def _read_leases(self, log: EpochLog) -> None:
        for reader in range(self._readers):
            if reader not in self._leases and (table := log.table(self.epoch, reader, (LEASE,))) is not None:
                self._leases[reader] = [*table[1][LEASE].to_pylist(), *table[0].leases]

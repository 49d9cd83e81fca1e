"""A source over the kit's double of a queue: the system for tests of epoch sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from connectors.core import REQUIRED, Duration, Json, Options, Text
from connectors.core.epoch_source import STOP_OPTIONS, EpochSource
from connectors.core.epochs import Messages, Receiver
from connectors.ground import machine
from connectors.testing.queue_double import QueueDouble

_POLL_SECONDS: Final = 0.01


class DoubleReceiver(Receiver):
    """Receives from a :class:`QueueDouble`. ``contacts`` counts the calls of this process."""

    lease_option = "lease"
    contacts: ClassVar[int] = 0

    def __init__(self, queue: QueueDouble) -> None:
        self._queue = queue
        self.lease_seconds = queue.lease_seconds

    def receive(self, rows: int, seconds: float) -> Messages | None:
        DoubleReceiver.contacts += 1
        end = machine.monotonic() + seconds
        while not (received := self._queue.receive(rows)):
            if machine.monotonic() >= end:
                return None
            machine.sleep(_POLL_SECONDS)
        ids, bodies, published, leases = (list(column) for column in zip(*received, strict=True))
        rows_of = pa.RecordBatch.from_pydict({"value": pa.array(bodies, pa.int64())})
        text, number = pa.large_string(), pa.float64()
        return Messages(rows_of, pa.array(leases, text), pa.array(ids, text), pa.array(published, number))

    def acknowledge(self, leases: Sequence[str]) -> None:
        self._queue.acknowledge(leases)

    def release(self, leases: Sequence[str]) -> None:
        self._queue.set_visible(leases, 0.0)

    def extend(self, leases: Sequence[str]) -> None:
        self._queue.set_visible(leases, self._queue.lease_seconds)

    def pending(self) -> bool | None:
        return self._queue.waiting() > 0

    def now(self) -> float:
        return self._queue.now()


class QueueDoubleSource(EpochSource):
    """The numbers in a :class:`QueueDouble`. Column: ``value long``."""

    name, schema = "queue_double", "value long"
    conditions = "each message has an id, and comes again within deduplicationWindow of its acknowledgement, if it does"
    options = STOP_OPTIONS | Options(
        path=Text(REQUIRED, meaning="the file of the queue"),
        lease=Duration(30.0, meaning="how long a message is the receiver's own"),
        misbehaviour=Json({}, kind=dict, meaning="probabilities of duplicate, reorder, forget"),
    )

    def receiver(self, schema: pa.Schema | None) -> Receiver:
        values: Any = self.values
        return DoubleReceiver(QueueDouble(Path(values["path"]), values["lease"], values["misbehaviour"]))

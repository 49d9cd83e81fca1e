"""Batches in several transactions, without Spark: what the tasks of a stage would do, one slot after the other."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from connectors.core import Batch
from connectors.core.batch import Committable
from connectors.core.ledger import Entry
from connectors.ground.options import Int, Options
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.committer import KafkaCommitter
from connectors.systems.kafka.producer import StagingWriter
from connectors.systems.kafka.transactions import TransactionSlots

from .sink_contexts import DirectContext, KafkaContext


def of_slot(records: pa.RecordBatch, slot: int, slots: int) -> pa.RecordBatch:
    """Those of ``records`` whose key belongs to ``slot``."""
    keys = records.column("key").cast(pa.binary()).to_pylist()
    return records.filter(pa.array([zlib.crc32(key) % slots == slot for key in keys], pa.bool_()))


class SlotCommitter(KafkaCommitter):
    """Deals what is staged out to slots and writes them; ``after`` is called with each slot that is written."""

    after: ClassVar[Callable[[int], None]] = staticmethod(lambda slot: None)

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__(sink)
        self.slots = TransactionSlots(sink)

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        batch = Batch(self.sink.sink_id(), entry.query, entry.batch, claim=entry.claim)
        layout = self.slots.layout(batch)
        if layout is None or not entry.rows:
            super().commit(entry, committables)
        elif not isinstance(layout, Entry):
            records = list(self._records([staged.data["file"] for staged in committables if staged.data.get("file")]))
            for slot in range(layout.slots):
                self.slots.write(layout, batch, slot, (of_slot(batch_records, slot, layout.slots) for batch_records in records))
                self.after(slot)
            self.slots.finish(entry, layout)
        for staged in committables:
            self.discard(staged)


class InSlots(KafkaSink):
    """Stages rows as the engine of the kit wants it, and writes them in slots."""

    options = KafkaSink.options | Options(slots=Int(1))  # without its relations

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> Any:
        return StagingWriter(self, batch, schema)

    def committer(self) -> KafkaCommitter:
        return SlotCommitter(self)


class StagedSlotsContext(KafkaContext):
    """Three slots, on the engine."""

    sink = InSlots
    extra: ClassVar[dict[str, str]] = {"slots": "3"}


class SlotsContext(DirectContext):
    """Three slots, on Spark."""

    extra: ClassVar[dict[str, str]] = {"slots": "3"}

"""Hands the columns of records to a producer, in their order, and keeps back what a topic would refuse for itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...core.errors import Misconfigured, Problem, Transient
from ...core.rejects import Rejects
from .library import COPIED, MESSAGE, UNASSIGNED, Library, library
from .memory import places_of
from .records import readable, sizes
from .topics import Topic, Topics

_CHUNK: Final = 10_000
_POLL: Final = 0.02
_BY_RECORD: Final = frozenset({"headers", "topic", "timestamp", "partition"})
"""Columns that no call for whole batches takes; the client's own one passes over partitions in silence."""


class Feeder:
    """Gives records to ``producer``; ``topic`` is theirs unless they have a column of it.

    ``patience`` is how long the queue may stay full, in seconds.
    """

    def __init__(
        self, producer: Any, config: Mapping[str, Any], topics: Topics, topic: str | None, patience: float
    ) -> None:
        self.producer = producer
        self.topics = topics
        self.topic = topic
        self.patience = patience
        self._messages = int(config["queue.buffering.max.messages"])
        self._bytes = int(config["queue.buffering.max.kbytes"]) * 1024
        self._batch = int(config["batch.size"])
        self._since_empty = 0
        self._batches = Batches.of(producer) if "transactional.id" in config else None

    def feed(self, records: pa.RecordBatch, rejects: Rejects) -> int:
        """Queues ``records`` and returns how many; those that their topic cannot take go to ``rejects``."""
        size = sizes(records)
        bad = self._refused(records, size)
        if bad:
            for number in sorted(bad):
                rejects.add(readable(records.slice(number, 1).to_pylist()[0]), bad[number])
            kept = np.ones(records.num_rows, bool)
            kept[list(bad)] = False
            records, size = records.filter(pa.array(kept)), size[kept]
        for first, last in _chunks(size, min(self._bytes // 4, 32 << 20)):
            self._wait_for_room(last - first, int(size[first:last].sum()))
            self._queue(records.slice(first, last - first))
        return int(records.num_rows)

    def _queue(self, records: pa.RecordBatch) -> None:
        if _BY_RECORD & set(records.schema.names):
            self._one_by_one(records)
        elif self._batches is not None:
            self._batches.produce(str(self.topic), records)
        elif hasattr(self.producer, "produce_batch"):  # newer clients only
            self._at_once(records)
        else:
            self._one_by_one(records)

    def _at_once(self, records: pa.RecordBatch) -> None:
        messages = records.select([name for name in records.schema.names if name != "order"]).to_pylist()
        if self.producer.produce_batch(self.topic, messages) < len(messages):
            error = next(message["_error"] for message in messages if message.get("_error") is not None)
            raise Transient(f"records were not queued: {error}")

    def _one_by_one(self, records: pa.RecordBatch) -> None:
        produce: Callable[..., None] = self.producer.produce
        for row in records.to_pylist():
            more = {name: row[name] for name in ("partition", "timestamp") if row.get(name) is not None}
            if row.get("headers"):
                more["headers"] = [(header["key"], header["value"]) for header in row["headers"] if header is not None]
            produce(row.get("topic") or self.topic, row["value"], row.get("key"), **more)

    def _refused(self, records: pa.RecordBatch, size: Any) -> dict[int, str]:
        """Which records their topic cannot take, and why."""
        if "topic" not in records.schema.names:
            return self._refused_by(str(self.topic), records, size, np.arange(records.num_rows))
        bad: dict[int, str] = {}
        names = records.column("topic").dictionary_encode()
        numbers = names.indices.to_numpy(zero_copy_only=False)
        for index, name in enumerate(names.dictionary.to_pylist()):
            bad |= self._refused_by(name, records, size, np.flatnonzero(numbers == index))
        return bad

    def _refused_by(self, name: str, records: pa.RecordBatch, size: Any, rows: Any) -> dict[int, str]:
        """As :meth:`_refused`, of the records ``rows`` for one topic, which is looked up again before any is refused."""
        bad = self._misfits(name, self.topics[name], records, size, rows)
        if not bad and self.topics[name].largest >= self._batch:
            return {}
        topic = self.topics.look_again(name)
        self.producer.list_topics(name, timeout=self.patience)  # the producer refuses partitions that it does not know
        if topic.largest < self._batch:
            text = f"{self._batch} is above max.message.bytes of the topic {name} ({topic.largest}); lower the option."
            raise Misconfigured("connectors.kafka", [Problem("kafka.batch.size", text)])
        return self._misfits(name, topic, records, size, rows)

    def _misfits(self, name: str, topic: Topic, records: pa.RecordBatch, size: Any, rows: Any) -> dict[int, str]:
        large = rows[size[rows] > topic.largest]
        why = "it has about {} bytes, and the topic {} takes {} (max.message.bytes)"
        bad = {int(row): why.format(size[row], name, topic.largest) for row in large}
        if "partition" in records.schema.names:
            column = records.column("partition")
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False)[rows]
            for row in rows[(numbers < 0) | (numbers >= topic.partitions)]:
                bad[int(row)] = (
                    f"the topic {name} has {topic.partitions} partitions, and no partition {column[int(row)]}"
                )
        return bad

    def _wait_for_room(self, count: int, size: int) -> None:
        """Waits before a chunk, never inside: after a refused record, later ones of the same key would overtake it."""
        until = time.monotonic() + self.patience
        full = self._since_empty + size > self._bytes * 3 // 4
        while len(self.producer) and (full or len(self.producer) + count > self._messages):
            self.producer.poll(_POLL)
            if time.monotonic() > until:
                raise Transient("the brokers take no records: the producer's queue stays full")
        self._since_empty = size if not len(self.producer) else self._since_empty + size


class Batches:
    """Queues records by the client's C functions, straight from Arrow's memory.

    Nobody is told of the single record that fails: a transaction is, when it is to be committed. Partitions are those of
    Kafka's own partitioning: in a transaction, the library sends nothing to ones that are given by record.
    """

    def __init__(self, producer: Any, functions: Library, handle: int) -> None:
        self._producer = producer  # it owns what the handle means
        self._functions = functions
        self._handle = handle

    @classmethod
    def of(cls, producer: Any) -> Batches | None:
        """``None`` where the C functions cannot be used."""
        functions = library()
        handle = functions.handle(producer) if functions is not None else None
        return cls(producer, functions, handle) if functions is not None and handle is not None else None

    def produce(self, topic: str, records: pa.RecordBatch) -> None:
        """Queues all of ``records``, for which there must be room. Raises ``Transient`` if one was refused."""
        messages = np.zeros(records.num_rows, MESSAGE)
        held = []  # the addresses are those of these arrays
        for side, place, length in (("key", "key", "key_len"), ("value", "payload", "len")):
            if side in records.schema.names:
                held.append(records.column(side).cast(pa.binary()))
                messages[place], messages[length] = places_of(held[-1])
        name = self._functions.topic_new(self._handle, topic.encode(), None)
        if not name:
            raise Transient(f"the topic {topic} is not known to the client")
        try:
            count = len(messages)
            queued = self._functions.produce_batch(name, UNASSIGNED, COPIED, messages.ctypes.data, count)
        finally:
            self._functions.topic_destroy(name)
        if queued < count:
            code = int(messages["err"][messages["err"] != 0][0])
            raise Transient(f"records were not queued: {self._functions.err2name(code).decode()}")


def _chunks(size: Any, most: int) -> list[tuple[int, int]]:
    """Cuts of at most :data:`_CHUNK` records and about ``most`` bytes."""
    cuts, first, total = [], 0, np.cumsum(size)
    while first < len(size):
        before = int(total[first - 1]) if first else 0
        last = int(np.searchsorted(total, before + most, side="right"))
        last = min(max(last, first + 1), first + _CHUNK, len(size))
        cuts.append((first, last))
        first = last
    return cuts

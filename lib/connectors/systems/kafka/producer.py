"""Producers: they take columns of records in order, and hold back records that a topic would refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ...core.batch import Batch, Committable
from ...core.dead_letters import Rejects, row_at
from ...core.sink import SinkWriter
from ...core.writing import StageWriter
from ...ground import machine
from ...ground.clients import ClientPool
from ...ground.errors import Misconfigured, Problem, Transient
from ...ground.state import digest, dumps
from .cluster import MAX_MILLISECONDS, SinkTopic, SinkTopics
from .config import producer_config
from .errors import ClientReports, client, new_client, producer_error
from .native import COPIED, MESSAGE, UNASSIGNED, NativeLibrary, addresses_of, library
from .records import Serializer, fixed_topic, keep_mask, readable, sizes

if TYPE_CHECKING:
    from .sink import KafkaSink

_CHUNK_RECORDS: Final = 10_000
_CHUNK_BYTES: Final = 32 << 20
_POLL_SECONDS: Final = 0.02
_FLUSH_SECONDS: Final = 5.0
_SINGLE: Final = frozenset({"headers", "topic", "timestamp", "partition"})
"""Records with these columns are sent one at a time: calls for whole batches ignore or refuse the columns."""


class RecordFeeder:
    """Passes records to ``producer``, for ``topic`` unless they have a column of that name.

    ``patience`` is how long the queue may stay full, in seconds.
    """

    def __init__(
        self, producer: Any, config: Mapping[str, Any], topics: SinkTopics, topic: str | None, patience: float
    ) -> None:
        self.producer = producer
        self.topics = topics
        self.topic = topic
        self.patience = patience
        self._max_messages = int(config["queue.buffering.max.messages"])
        self._chunk_records = min(_CHUNK_RECORDS, max(1, self._max_messages // 2))
        self._max_bytes = int(config["queue.buffering.max.kbytes"]) * 1024
        self._batch_size = int(config["batch.size"])
        self._queued_bytes = 0
        self._native = NativeProducer.of(producer) if "transactional.id" in config else None

    def feed(self, records: pa.RecordBatch, rejects: Rejects) -> int:
        """Queues ``records`` and returns their number; records that their topic cannot take go to ``rejects``."""
        size = sizes(records)
        bad = self._refusals(records, size)
        if bad:
            for number in sorted(bad):
                rejects.add(readable(row_at(records, number)), bad[number])
            mask = keep_mask(records, bad)
            records, size = records.filter(pa.array(mask)), size[mask]
        for first, last in _chunks(size, self._chunk_records, min(self._max_bytes // 4, _CHUNK_BYTES)):
            self.wait_for_room(last - first, int(size[first:last].sum()))
            self._queue(records.slice(first, last - first))
        return int(records.num_rows)

    def _queue(self, records: pa.RecordBatch) -> None:
        if _SINGLE & set(records.schema.names):
            self._queue_singly(records)
        elif self._native is not None:
            self._native.produce(str(self.topic), records)
        elif hasattr(self.producer, "produce_batch"):  # newer clients only
            self._queue_batch(records)
        else:
            self._queue_singly(records)

    def _queue_batch(self, records: pa.RecordBatch) -> None:
        messages = records.select([name for name in records.schema.names if name != "order"]).to_pylist()
        if self.producer.produce_batch(self.topic, messages) < len(messages):
            error = next(message["_error"] for message in messages if message.get("_error") is not None)
            raise Transient(f"records were not queued: {error}")

    def _queue_singly(self, records: pa.RecordBatch) -> None:
        produce: Callable[..., None] = self.producer.produce
        for row in records.to_pylist():
            more = {name: row[name] for name in ("partition", "timestamp") if row.get(name) is not None}
            if row.get("headers"):
                more["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
            produce(row.get("topic") or self.topic, row["value"], row.get("key"), **more)

    def _refusals(self, records: pa.RecordBatch, size: Any) -> dict[int, str]:
        """The row numbers of records that their topic cannot take, and why."""
        if "topic" not in records.schema.names:
            return self._refusals_of(str(self.topic), records, size, np.arange(records.num_rows))
        bad: dict[int, str] = {}
        names = records.column("topic").dictionary_encode()
        indices = names.indices.to_numpy(zero_copy_only=False)
        for index, name in enumerate(names.dictionary.to_pylist()):
            bad |= self._refusals_of(name, records, size, np.flatnonzero(indices == index))
        return bad

    def _refusals_of(self, name: str, records: pa.RecordBatch, size: Any, rows: Any) -> dict[int, str]:
        """The refusals among ``rows``, which are for the topic ``name``. Looks the topic up again before it refuses any."""
        topic = self.topics[name]
        if topic.largest >= self._batch_size and not self._misfits(topic, records, size, rows):
            return {}
        topic = self.topics.look_up(name)
        self.producer.list_topics(name, timeout=self.patience)  # the producer refuses unknown partitions
        if topic.largest < self._batch_size:
            text = f"{self._batch_size} is above max.message.bytes of the topic {name} ({topic.largest}); lower the option."
            raise Misconfigured("connectors.kafka", [Problem("kafka.batch.size", text)])
        return self._misfits(topic, records, size, rows)

    @staticmethod
    def _misfits(topic: SinkTopic, records: pa.RecordBatch, size: Any, rows: Any) -> dict[int, str]:
        large = rows[size[rows] > topic.largest]
        why = "it has about {} bytes, and the topic {} takes {} (max.message.bytes)"
        bad = {int(row): why.format(size[row], topic.name, topic.largest) for row in large}
        if "partition" in records.schema.names:
            column = records.column("partition")
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False)[rows]
            why = "the topic {} has {} partitions, and no partition {}"
            for row in rows[(numbers < 0) | (numbers >= topic.partitions)]:
                bad[int(row)] = why.format(topic.name, topic.partitions, column[int(row)])
        if "timestamp" in records.schema.names:
            now = round(machine.time() * 1000)
            times = records.column("timestamp").fill_null(now).to_numpy(zero_copy_only=False)[rows]
            why = "its timestamp is {} than the topic {} takes (message.timestamp.{}.max.ms)"
            earlier, later = times < now - topic.past, times > min(now + topic.future, MAX_MILLISECONDS)
            bad |= dict.fromkeys(rows[earlier].tolist(), why.format("earlier", topic.name, "before"))
            bad |= dict.fromkeys(rows[later].tolist(), why.format("later", topic.name, "after"))
        return bad

    def wait_for_room(self, count: int, size: int = 0) -> None:
        """Waits before a chunk, never inside: after a refused record, later records of its key would overtake it."""
        deadline = machine.monotonic() + self.patience
        is_full = self._queued_bytes + size > self._max_bytes * 3 // 4
        while len(self.producer) and (is_full or len(self.producer) + count > self._max_messages):
            self.producer.poll(_POLL_SECONDS)
            if machine.monotonic() > deadline:
                raise Transient("the brokers take no records: the producer's queue stays full")
        self._queued_bytes = size if not len(self.producer) else self._queued_bytes + size


class NativeProducer:
    """Queues records by the client's C functions, straight from Arrow's memory.

    A single failed record has no report; the commit of its transaction fails. Kafka's own partitioner chooses the partition:
    in a transaction, the library does not send records that name their partition.
    """

    def __init__(self, producer: Any, functions: NativeLibrary, handle: int) -> None:
        self._producer = producer  # it owns the memory of the handle
        self._functions = functions
        self._handle = handle

    @classmethod
    def of(cls, producer: Any) -> NativeProducer | None:
        """A native producer on ``producer``; ``None`` if the C functions cannot be used."""
        functions = library()
        handle = functions.handle(producer) if functions is not None else None
        return cls(producer, functions, handle) if functions is not None and handle is not None else None

    def produce(self, topic: str, records: pa.RecordBatch) -> None:
        """Queues all ``records``, for which there must be room. Raises ``Transient`` if one was refused."""
        messages = np.zeros(records.num_rows, MESSAGE)
        columns = []  # the addresses point into these arrays, which must live on
        for side, address, length in (("key", "key", "key_len"), ("value", "payload", "len")):
            if side in records.schema.names:
                columns.append(records.column(side).cast(pa.binary()))
                messages[address], messages[length] = addresses_of(columns[-1])
        handle = self._functions.topic_new(self._handle, topic.encode(), None)
        if not handle:
            raise Transient(f"the topic {topic} is not known to the client")
        try:
            count = len(messages)
            queued = self._functions.produce_batch(handle, UNASSIGNED, COPIED, messages.ctypes.data, count)
        finally:
            self._functions.topic_destroy(handle)
        if queued < count:
            code = int(messages["err"][messages["err"] != 0][0])
            raise Transient(f"records were not queued: {self._functions.err2name(code).decode()}")


def _chunks(size: Any, max_records: int, max_bytes: int) -> list[tuple[int, int]]:
    """Ranges of at most ``max_records`` records and about ``max_bytes`` bytes."""
    chunks, first, total = [], 0, np.cumsum(size)
    while first < len(size):
        before = int(total[first - 1]) if first else 0
        last = int(np.searchsorted(total, before + max_bytes, side="right"))
        last = min(max(last, first + 1), first + max_records, len(size))
        chunks.append((first, last))
        first = last
    return chunks


class StagingWriter(StageWriter):
    """Serializes rows into a file of records, which the driver sends in one transaction."""

    def __init__(self, sink: KafkaSink, batch: Batch, schema: pa.Schema) -> None:
        self.serializer = Serializer(sink.values, schema)
        self.rejects: Rejects = sink.rejects(batch)
        super().__init__(sink.folder(), batch)

    def write(self, batch: pa.RecordBatch) -> None:
        records = self.serializer.records(batch, self.rejects)
        if records.num_rows:
            self.staged.write(records)


class SendingWriter(SinkWriter):
    """Sends rows without a transaction. They have arrived when the task ends; a second attempt sends them again."""

    def __init__(self, sink: KafkaSink, batch: Batch, schema: pa.Schema) -> None:
        self.serializer = Serializer(sink.values, schema)
        self.rejects: Rejects = sink.rejects(batch)
        self.producer = take_producer(sink)
        self.rows = 0
        self._has_arrived = False

    def write(self, batch: pa.RecordBatch) -> None:
        with self.producer.guarded():
            self.rows += self.producer.feeder.feed(self.serializer.records(batch, self.rejects), self.rejects)

    def prepare(self) -> Committable:
        with self.producer.guarded():
            self.producer.flush()
        self._has_arrived = True
        return Committable(self.rows)

    def abort(self) -> None:
        self._has_arrived = False
        self.producer.abort()

    def close(self) -> None:
        if self._has_arrived:
            self.producer.give_back()


class PooledProducer:
    """An idempotent producer without transactions. It has one user at a time."""

    def __init__(self, sink: KafkaSink, key: str) -> None:
        self._key = key
        self._patience = sink.patience()
        self.reports = ClientReports()
        topics = SinkTopics(sink.config())
        config = producer_config(sink.config(), topics.largest_record(fixed_topic(sink.values)), self.reports)
        config.setdefault("message.timeout.ms", round(self._patience * 1000))
        self.producer: Any = new_client("Producer", config, self.reports)
        self.feeder: Any = RecordFeeder(self.producer, config, topics, fixed_topic(sink.values), self._patience)

    def flush(self) -> None:
        """Returns when all records have arrived. Raises ``Transient`` if one did not."""
        if self.producer.flush(self._patience + _FLUSH_SECONDS):
            raise Transient("the brokers did not take all records in time")
        if self.reports.undelivered:
            raise Transient(f"records did not arrive: {self.reports.undelivered}")

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Closes the producer on an error inside, and raises it as an error of this library."""
        try:
            yield
        except client().KafkaException as error:
            self.abort()
            raise producer_error(error, "records cannot be sent", self.reports.errors) from None
        except BaseException:
            self.abort()
            raise

    def give_back(self) -> None:
        """Returns the producer to the pool for the next task. All records must have arrived."""
        PRODUCERS.give_back(self._key, self)

    def abort(self) -> None:
        """Drops unsent records and closes the producer."""
        if self.producer is not None:
            with contextlib.suppress(Exception):
                self.producer.purge()
            self.close()

    def close(self) -> None:
        self.producer = self.feeder = None  # a producer is closed when nothing refers to it


PRODUCERS: Final = ClientPool(PooledProducer.close)


def take_producer(sink: KafkaSink) -> PooledProducer:
    """A producer of the pool, or a new one."""
    key = digest(dumps([sink.config(), fixed_topic(sink.values)]))
    return PRODUCERS.take(key) or PooledProducer(sink, key)

"""Hands the columns of records to a producer, in their order, and keeps back what a topic would refuse for itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ...core.dead_letters import Rejects
from ...core.errors import Misconfigured, Problem, Transient
from ...core.sink import Batch, Committable, SinkWriter
from ...core.state import digest, dumps
from ...core.writing import ArrowStage
from .cluster import TopicDescription, Topics
from .config import client, explained, producer_config
from .native import COPIED, MESSAGE, UNASSIGNED, Library, library, places_of
from .records import Serializer, readable, sizes
from .resting import Resting

if TYPE_CHECKING:
    from .sink import KafkaSink


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

    def _misfits(self, name: str, topic: TopicDescription, records: pa.RecordBatch, size: Any, rows: Any) -> dict[int, str]:
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


# MERGED What tasks do: stage records in an Arrow file, or send them at least once.

_STEP: Final = 5.0


class StagingWriter(SinkWriter):
    """Serializes rows and puts the records into a file, for the driver to send in one transaction."""

    def __init__(self, sink: KafkaSink, batch: Batch, schema: pa.Schema) -> None:
        self.serializer = Serializer(sink.values, schema)
        self.rejects: Rejects = sink.rejects(batch)
        self.staged = ArrowStage(sink.folder(), batch.attempt())

    def write(self, batch: pa.RecordBatch) -> None:
        records = self.serializer.records(batch, self.rejects)
        if records.num_rows:
            self.staged.write(records)

    def prepare(self) -> Committable:
        self.staged.close()
        return Committable(self.staged.rows, {"file": self.staged.attempt} if self.staged.rows else {})

    def abort(self) -> None:
        self.staged.remove()

    def close(self) -> None:
        self.staged.close()


class SendingWriter(SinkWriter):
    """Sends rows while they come; they are safe when the task ends, and a task that is tried again sends them again."""

    def __init__(self, sink: KafkaSink, batch: Batch, schema: pa.Schema) -> None:
        self.serializer = Serializer(sink.values, schema)
        self.rejects: Rejects = sink.rejects(batch)
        self.sender = sender(sink)
        self.rows = 0
        self._arrived = False

    def write(self, batch: pa.RecordBatch) -> None:
        with self.sender.guarded():
            self.rows += self.sender.feeder.feed(self.serializer.records(batch, self.rejects), self.rejects)

    def prepare(self) -> Committable:
        with self.sender.guarded():
            self.sender.flush()
        self._arrived = True
        return Committable(self.rows)

    def abort(self) -> None:
        self._arrived = False
        self.sender.give_up()

    def close(self) -> None:
        if self._arrived:
            self.sender.rest()


def sender(sink: KafkaSink) -> Sender:
    """One that this process has from an earlier task, or a new one; its taker's alone."""
    key = digest(dumps([sink.config(), sink.values["topic"]]))
    return RESTING.take(key) or Sender(sink, key)


class Sender:
    """An idempotent producer without transactions."""

    def __init__(self, sink: KafkaSink, key: str) -> None:
        self._key = key
        self._told: list[tuple[str, str]] = []
        self._patience = sink.patience()
        config = sink.config()
        made = producer_config(config, sink.smallest(), self._heard, self._delivered)
        made.setdefault("message.timeout.ms", round(self._patience * 1000))
        try:
            self.producer: Any = client().Producer(made)
        except client().KafkaException as error:
            raise explained(error, "the client refuses the options") from None
        self.feeder: Any = Feeder(self.producer, made, Topics(config), sink.values["topic"], self._patience)
        self._failed = ""

    def flush(self) -> None:
        """Returns when everything has arrived. Raises what happened otherwise."""
        if self.producer.flush(self._patience + _STEP):
            raise Transient("the brokers did not take all records in time")
        if self._failed:
            raise Transient(f"records did not arrive: {self._failed}")

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """An error inside is raised as one of ours, and nothing is sent any more."""
        try:
            yield
        except client().KafkaException as error:
            self.give_up()
            raise explained(error, "records cannot be sent", self._told) from None
        except BaseException:
            self.give_up()
            raise

    def rest(self) -> None:
        """Waits for the next task; everything must have arrived."""
        RESTING.give_back(self._key, self)

    def give_up(self) -> None:
        if self.producer is not None:
            with contextlib.suppress(Exception):
                self.producer.purge()
            self.close()

    def close(self) -> None:
        self.producer = self.feeder = None  # it calls back into this sender: a circle, which would live on

    def _heard(self, error: Any) -> None:
        self._told = [*self._told[-20:], (error.name(), error.str())]

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed = error.str()
            self._heard(error)


RESTING: Final = Resting(Sender.close)

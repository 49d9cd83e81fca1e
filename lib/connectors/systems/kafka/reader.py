"""The task's side of the Kafka source: ranges of offsets as Arrow record batches.

A reader takes a consumer from the process's pool. A fetcher takes the records of one partition from the consumer, with the
client's C functions (:mod:`.native`) or with the plain Python client.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...core import DataLoss, SeekingReader, Transient
from ...ground import machine
from ...ground.clients import ClientPool
from ...ground.errors import Fatal
from ...ground.state import digest, dumps
from .errors import ClientReports, client, client_errors, connector_error, error_name, new_client
from .native import NativeLibrary, binary_at, library, messages_at
from .positions import OffsetRange
from .records import HEADERS

_log = logging.getLogger("connectors.kafka")
_LAST_MILLISECOND: Final = (2**63 - 1) // 1000
"""The last time that Spark has: microseconds in 64 bits, in the year 294247."""
_EOF: Final = "_PARTITION_EOF"
_BATCH_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.1
"""The longest wait of one fetch, in seconds: after so long a reader notices the partition's end after the last record."""
_SETTLE_SECONDS: Final = 5.0
"""The seconds of silence after which a partition that ends too early counts as shrunk."""
_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_WAY_OUT: Final = "set failOnDataLoss=false to go on without what is lost"


class PooledConsumer:
    """A consumer, and the errors that it reports. It has one user at a time."""

    def __init__(self, config: Mapping[str, str], key: str) -> None:
        self.key = key
        self.reports = ClientReports()
        self.consumer = new_client("Consumer", config, self.reports)

    def check(self, failure: str) -> None:
        """Raises the last error if waiting does not cure it, such as a wrong password."""
        for name, text in self.reports.errors[-1:]:
            error = connector_error(name, text, failure)
            if isinstance(error, Fatal):
                raise error

    def give_back(self) -> None:
        """Returns the consumer to the pool for the next task."""
        self.consumer.unassign()
        CONSUMERS.give_back(self.key, self)

    def close(self) -> None:
        self.consumer.close()


CONSUMERS: Final = ClientPool(PooledConsumer.close)


def take_consumer(config: Mapping[str, str], use: str) -> PooledConsumer:
    """A pooled consumer with these settings and the same ``use``, or a new one."""
    key = f"{use} {digest(dumps(dict(config)))}"
    consumer = CONSUMERS.take(key)
    if consumer is None:
        return PooledConsumer(config, key)
    consumer.reports.clear()
    return consumer


@dataclass(frozen=True)
class ConsumerEvent:
    """A message that is no record: an error by name, or the end of the partition."""

    name: str
    text: str
    offset: int

    @classmethod
    def of(cls, message: Any) -> ConsumerEvent:
        return cls(message.error().name(), message.error().str(), int(message.offset()))


@dataclass(frozen=True)
class FetchedRecords:
    """Records in the order of their ``offsets``, and the events among them."""

    records: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    events: Sequence[ConsumerEvent]

    def before(self, end: int) -> pa.RecordBatch:
        """The records whose offsets are below ``end``."""
        return self.records.slice(0, int(np.searchsorted(self.offsets, end)))


class PlainFetcher:
    """Takes records with the Python client, which has all columns."""

    def __init__(self, consumer: Any, split: OffsetRange, columns: Sequence[str]) -> None:
        self.consumer = consumer
        self.split = split
        self.columns = columns

    def assign(self, offset: int) -> None:
        self.consumer.assign([client().TopicPartition(self.split.topic, self.split.partition, offset)])

    def take(self, limit: int, seconds: float) -> FetchedRecords:
        """At most ``limit`` records; waits ``seconds`` for them."""
        messages = self.consumer.consume(limit, seconds)
        records = [message for message in messages if message.error() is None]
        errors = [message for message in messages if message.error() is not None] if len(records) < len(messages) else []
        offsets = np.fromiter((message.offset() for message in records), np.int64, len(records))
        return FetchedRecords(self._batch(records), offsets, [ConsumerEvent.of(message) for message in errors])

    def _batch(self, records: Sequence[Any]) -> pa.RecordBatch:
        arrays = [_PLAIN_COLUMNS[name](self.split, records) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, list(self.columns))

    def close(self) -> None:
        self.consumer.unassign()


class NativeFetcher(PlainFetcher):
    """Takes records with the C functions, from a queue for this partition only; the client calls no callbacks for it."""

    def __init__(
        self, consumer: Any, split: OffsetRange, columns: Sequence[str], functions: NativeLibrary, handle: int
    ) -> None:
        super().__init__(consumer, split, columns)
        self.functions = functions
        self._queue = functions.queue_get_partition(handle, split.topic.encode(), split.partition)
        functions.queue_forward(self._queue, None)
        self._pointers: Any = None

    def take(self, limit: int, seconds: float) -> FetchedRecords:
        if self._pointers is None or len(self._pointers) < limit:
            self._pointers = (ctypes.c_void_p * limit)()
        count = self.functions.consume_batch_queue(self._queue, round(seconds * 1000), self._pointers, limit)
        if count <= 0:  # the consumer as a whole may have an event, such as a lost broker
            return self._only([ConsumerEvent.of(message) for message in self.consumer.consume(1, 0)])
        pointers = np.frombuffer(self._pointers, np.uint64, count)
        try:
            return self._fetched(pointers)
        finally:
            destroy = self.functions.message_destroy
            for pointer in pointers.tolist():
                destroy(pointer)

    def _fetched(self, pointers: npt.NDArray[np.uint64]) -> FetchedRecords:
        messages = messages_at(pointers)
        good = messages["err"] == 0
        events: list[ConsumerEvent] = []
        if not good.all():
            bad = zip(pointers[~good], messages[~good], strict=True)
            events = [self._event(pointer, message) for pointer, message in bad]
            messages, pointers = messages[good], pointers[good]
        if not len(messages):
            return self._only(events)
        arrays = [_NATIVE_COLUMNS[name](self, messages, pointers) for name in self.columns]
        offsets = np.ascontiguousarray(messages["offset"])
        return FetchedRecords(pa.RecordBatch.from_arrays(arrays, list(self.columns)), offsets, events)

    def _event(self, pointer: Any, message: Any) -> ConsumerEvent:
        code = int(message["err"])
        name, text = self.functions.err2name(code), self.functions.message_errstr(int(pointer))
        return ConsumerEvent((name or b"").decode(), (text or b"").decode(), int(message["offset"]))

    def _only(self, events: Sequence[ConsumerEvent]) -> FetchedRecords:
        return FetchedRecords(self._batch([]), np.empty(0, np.int64), events)

    def times(self, pointers: npt.NDArray[np.uint64]) -> Iterator[int]:
        """The time of each record in milliseconds."""
        timestamp = self.functions.message_timestamp
        return (timestamp(pointer, None) for pointer in pointers.tolist())

    def time_types(self, pointers: npt.NDArray[np.uint64]) -> Iterator[int]:
        """The source of each time: the producer (0), the broker (1), none (-1)."""
        kind = ctypes.c_int()
        for pointer in pointers.tolist():
            self.functions.message_timestamp(pointer, ctypes.byref(kind))
            yield kind.value - 1

    def close(self) -> None:
        super().close()
        self.functions.queue_destroy(self._queue)


def native_library(columns: Sequence[str]) -> NativeLibrary | None:
    """The client's C functions, if they can be used and have all ``columns``."""
    return library() if set(columns) <= _NATIVE_COLUMNS.keys() and hasattr(pa, "binary_view") else None


def fetcher_for(consumer: Any, split: OffsetRange, columns: Sequence[str]) -> PlainFetcher:
    """The fastest fetcher for these columns that works on this machine.

    The plain client cannot use a consumer after the functions have used it: the partition's queue is not forwarded again, so
    the client would find no records.
    """
    functions = native_library(columns)
    handle = functions.handle(consumer) if functions is not None else None
    if functions is None or handle is None:
        return PlainFetcher(consumer, split, columns)
    return NativeFetcher(consumer, split, columns, functions, handle)


def _headers(message: Any) -> list[dict[str, Any]] | None:
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None


def _timestamps(milliseconds: Any) -> pa.Array:
    """The times as Spark has them. A time beyond those, as of a producer that writes nanoseconds, is the last one of them."""
    times = np.clip(np.asarray(milliseconds, np.int64), -_LAST_MILLISECOND, _LAST_MILLISECOND)
    return pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


_PLAIN_COLUMNS: Final[Mapping[str, Callable[[OffsetRange, Sequence[Any]], pa.Array]]] = {
    "key": lambda _, messages: pa.array([message.key() for message in messages], pa.binary()),
    "value": lambda _, messages: pa.array([message.value() for message in messages], pa.binary()),
    "topic": lambda split, messages: pa.repeat(split.topic, len(messages)),
    "partition": lambda split, messages: pa.repeat(pa.scalar(split.partition, pa.int32()), len(messages)),
    "offset": lambda _, messages: pa.array([message.offset() for message in messages], pa.int64()),
    "timestamp": lambda _, messages: _timestamps([message.timestamp()[1] for message in messages]),
    # for "no time" the client says 0, Kafka and Spark say -1
    "timestampType": lambda _, messages: pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32()),
    "headers": lambda _, messages: pa.array([_headers(message) for message in messages], HEADERS),
}
"""How to make each column from the client's messages."""

_NATIVE_COLUMNS: Final[Mapping[str, Callable[[NativeFetcher, Any, Any], pa.Array]]] = {
    "key": lambda _, messages, __: binary_at(messages["key"], messages["key_len"]),
    "value": lambda _, messages, __: binary_at(messages["payload"], messages["len"]),
    "topic": lambda fetcher, messages, _: pa.repeat(fetcher.split.topic, len(messages)),
    "partition": lambda _, messages, __: pa.array(messages["partition"]),
    "offset": lambda _, messages, __: pa.array(messages["offset"]),
    "timestamp": lambda fetcher, _, pointers: _timestamps(np.fromiter(fetcher.times(pointers), np.int64, len(pointers))),
    "timestampType": lambda fetcher, _, pointers: pa.array(fetcher.time_types(pointers), pa.int32()),
}
"""How to make each column from message structs, which have no headers."""


class KafkaReader(SeekingReader[OffsetRange]):
    """Reads a range of offsets. It ends at its last offset, at a record after that, or at the end of the partition.

    Offsets do not count records: transaction markers, aborted records and compacted records leave gaps.
    """

    def __init__(self, config: Mapping[str, str], columns: Sequence[str], fail: bool, patience: float) -> None:
        super().__init__()
        self.config = config
        self.columns = tuple(columns)
        self.fail = fail
        self.patience = patience
        self._consumer: PooledConsumer | None = None
        self._fetcher: PlainFetcher

    def open(self) -> None:
        self._consumer = self._take_consumer()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.give_back()
            self._consumer = None

    def _take_consumer(self) -> PooledConsumer:
        return take_consumer(self.config, "functions" if native_library(self.columns) else "plain")

    def read_after(self, split: OffsetRange, position: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
        """As in the base class; a position is the next offset."""
        offset = split.first if position is None else position
        consumer = self._consumer = self._consumer or self._take_consumer()
        failure = f"{split.name} cannot be read at offset {offset}"
        last_answer = machine.monotonic()
        self._fetcher = fetcher = fetcher_for(consumer.consumer, split, self.columns)
        try:
            with client_errors(failure):
                fetcher.assign(offset)
            while offset < split.end and not self.awake.is_set():
                with client_errors(failure):
                    fetched = fetcher.take(min(_BATCH_RECORDS, split.end - offset), _POLL_SECONDS)
                if len(fetched.offsets):
                    offset = int(fetched.offsets[-1]) + 1
                    batch = fetched.before(split.end)
                    if batch.num_rows:
                        yield batch, min(offset, split.end)
                for event in fetched.events:
                    offset = self._after_event(split, event, offset)
                if len(fetched.offsets) or fetched.events:
                    last_answer = machine.monotonic()
                else:
                    offset = self._after_silence(consumer, split, offset, machine.monotonic() - last_answer)
        finally:
            if self._consumer is consumer:
                fetcher.close()

    def _after_event(self, split: OffsetRange, event: ConsumerEvent, offset: int) -> int:
        """The offset to continue from after an event that is no record."""
        if event.name == _EOF:
            return max(offset, event.offset)
        error = connector_error(event.name, event.text, f"{split.name} cannot be read at offset {offset}")
        if isinstance(error, DataLoss) or event.name in _GONE:
            return self._after_loss(split, offset, gone=event.name in _GONE)
        raise error

    def _after_silence(self, consumer: PooledConsumer, split: OffsetRange, offset: int, seconds: float) -> int:
        """The offset to continue from after the consumer gave nothing for ``seconds``."""
        failure = f"{split.name} gave nothing at offset {offset}, before {split.end}"
        consumer.check(failure)
        if seconds > _SETTLE_SECONDS and self._watermarks(split)[1] < split.end:
            return self._after_loss(split, offset)
        if seconds > self.patience:
            reason = "".join(f" ({text})" for _, text in consumer.reports.errors[-1:])
            raise Transient(f"{failure}, for {self.patience:g} seconds{reason}")
        return offset

    def _after_loss(self, split: OffsetRange, offset: int, *, gone: bool = False) -> int:
        """The first existing offset. Raises ``DataLoss`` unless the user accepts a loss."""
        low, high = self._watermarks(split)
        if gone and high:
            raise Transient(f"{split.name} is not known to the broker that was asked")
        state = f"there are offsets {low} to {high - 1}" if high else "the topic or partition is gone"
        loss = f"offset {offset} of {split.name} comes next, but {state}"
        DataLoss(loss, way_out=_WAY_OUT).report(_log, fails=self.fail)
        if not offset < low < split.end:
            return split.end
        self._fetcher.assign(low)
        return low

    def _watermarks(self, split: OffsetRange) -> tuple[int, int]:
        """The first offset and the end of the partition; 0 and the split's end if nobody answers, an end of 0 if it is gone."""
        assert self._consumer is not None
        partition = client().TopicPartition(split.topic, split.partition)
        try:
            low, high = self._consumer.consumer.get_watermark_offsets(partition, timeout=5.0)
            return int(low), int(high)
        except client().KafkaException as error:
            return (split.end, 0) if error_name(error) in _GONE else (0, split.end)

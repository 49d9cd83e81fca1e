"""Takes records of one partition out of a consumer, as Arrow: by the client's C functions, or by the plain client."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .failures import client
from .library import Library, library
from .memory import binary_at, messages_at
from .positions import Range

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME: Final = pa.timestamp("us", "UTC")
_EOF: Final = "_PARTITION_EOF"


@dataclass(frozen=True)
class Event:
    """Something that is no record: an error by its name, or the end of the partition."""

    name: str
    text: str
    offset: int

    @property
    def is_end(self) -> bool:
        return self.name == _EOF


@dataclass(frozen=True)
class Fetched:
    """Records in the order of their ``offsets``, and events among them."""

    records: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    events: Sequence[Event]

    def before(self, end: int) -> pa.RecordBatch:
        """The records whose offsets are below ``end``."""
        return self.records.slice(0, int(np.searchsorted(self.offsets, end)))


class PlainFetch:
    """Through the Python client; it can give everything that a record has."""

    def __init__(self, consumer: Any, split: Range, columns: Sequence[str]) -> None:
        self.consumer = consumer
        self.split = split
        self.columns = columns

    def assign(self, offset: int) -> None:
        self.consumer.assign([client().TopicPartition(self.split.topic, self.split.partition, offset)])

    def take(self, most: int, wait: float) -> Fetched:
        """At most so many records; waits ``wait`` seconds for them."""
        got = self.consumer.consume(most, wait)
        records = [message for message in got if message.error() is None]
        events = [_event(message) for message in got if message.error() is not None] if len(records) < len(got) else []
        arrays = [_PLAIN[name](self.split, records) for name in self.columns]
        offsets = np.fromiter((message.offset() for message in records), np.int64, len(records))
        return Fetched(pa.RecordBatch.from_arrays(arrays, list(self.columns)), offsets, events)

    def close(self) -> None:
        self.consumer.unassign()


class BatchFetch(PlainFetch):
    """By the C functions, from a queue that has this partition's records alone, so that no callback is called there."""

    def __init__(self, consumer: Any, split: Range, columns: Sequence[str], functions: Library, handle: int) -> None:
        super().__init__(consumer, split, columns)
        self.functions = functions
        self._queue = functions.queue_get_partition(handle, split.topic.encode(), split.partition)
        functions.queue_forward(self._queue, None)
        self._pointers: Any = None

    def take(self, most: int, wait: float) -> Fetched:
        if self._pointers is None or len(self._pointers) < most:
            self._pointers = (ctypes.c_void_p * most)()
        count = self.functions.consume_batch_queue(self._queue, round(wait * 1000), self._pointers, most)
        if count <= 0:
            for message in self.consumer.consume(1, 0):  # what concerns the consumer as a whole, such as a lost broker
                return Fetched(self._none(), np.empty(0, np.int64), [_event(message)])
            return Fetched(self._none(), np.empty(0, np.int64), [])
        pointers = np.frombuffer(self._pointers, np.uint64, count)
        try:
            return self._fetched(pointers)
        finally:
            destroy = self.functions.message_destroy
            for pointer in pointers.tolist():
                destroy(pointer)

    def _fetched(self, pointers: npt.NDArray[np.uint64]) -> Fetched:
        messages = messages_at(pointers)
        good = messages["err"] == 0
        events: list[Event] = []
        if not good.all():
            events = [self._event(pointer, one) for pointer, one in zip(pointers[~good], messages[~good], strict=True)]
            messages, pointers = messages[good], pointers[good]
        if not len(messages):
            return Fetched(self._none(), np.empty(0, np.int64), events)
        arrays = [_BATCH[name](self, messages, pointers) for name in self.columns]
        offsets = np.ascontiguousarray(messages["offset"])
        return Fetched(pa.RecordBatch.from_arrays(arrays, list(self.columns)), offsets, events)

    def _event(self, pointer: Any, message: Any) -> Event:
        code = int(message["err"])
        name, text = self.functions.err2name(code), self.functions.message_errstr(int(pointer))
        return Event((name or b"").decode(), (text or b"").decode(), int(message["offset"]))

    def _none(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_PLAIN[name](self.split, []) for name in self.columns], list(self.columns))

    def stamps(self, pointers: npt.NDArray[np.uint64]) -> Iterator[int]:
        """The time of each record in milliseconds."""
        ask = self.functions.message_timestamp
        return (ask(pointer, None) for pointer in pointers.tolist())

    def kinds(self, pointers: npt.NDArray[np.uint64]) -> Iterator[int]:
        """What each time is: of its making (0), of its arrival (1), none (-1)."""
        kind = ctypes.c_int()
        for pointer in pointers.tolist():
            self.functions.message_timestamp(pointer, ctypes.byref(kind))
            yield kind.value - 1

    def close(self) -> None:
        super().close()
        self.functions.queue_destroy(self._queue)


def functions_for(columns: Sequence[str]) -> Library | None:
    """The client's functions, where they are fit for use here and give all of ``columns``."""
    return library() if set(columns) <= _BATCH.keys() and hasattr(pa, "binary_view") else None


def fetch_of(consumer: Any, split: Range, columns: Sequence[str]) -> PlainFetch:
    """The fastest way to these columns that works here.

    A consumer whose records the functions have had is none for the plain client any more: it would find nothing in the
    partition's queue, which the client does not forward again.
    """
    functions = functions_for(columns)
    handle = functions.handle(consumer) if functions is not None else None
    if functions is None or handle is None:
        return PlainFetch(consumer, split, columns)
    return BatchFetch(consumer, split, columns, functions, handle)


def _event(message: Any) -> Event:
    return Event(message.error().name(), message.error().str(), int(message.offset()))


def _headers(message: Any) -> list[dict[str, Any]] | None:
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None


def _times(milliseconds: Any) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms", "UTC")).cast(_TIME)


_PLAIN: Final[Mapping[str, Callable[[Range, Sequence[Any]], pa.Array]]] = {
    "key": lambda _, messages: pa.array([message.key() for message in messages], pa.binary()),
    "value": lambda _, messages: pa.array([message.value() for message in messages], pa.binary()),
    "topic": lambda split, messages: pa.repeat(split.topic, len(messages)),
    "partition": lambda split, messages: pa.repeat(pa.scalar(split.partition, pa.int32()), len(messages)),
    "offset": lambda _, messages: pa.array([message.offset() for message in messages], pa.int64()),
    "timestamp": lambda _, messages: _times([message.timestamp()[1] for message in messages]),
    # the client counts from "not there" as 0, Kafka and Spark from -1
    "timestampType": lambda _, messages: pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32()),
    "headers": lambda _, messages: pa.array([_headers(message) for message in messages], HEADERS),
}
"""How each column is made of the client's messages."""

_BATCH: Final[Mapping[str, Callable[[BatchFetch, Any, Any], pa.Array]]] = {
    "key": lambda _, messages, __: binary_at(messages["key"], messages["key_len"]),
    "value": lambda _, messages, __: binary_at(messages["payload"], messages["len"]),
    "topic": lambda fetch, messages, _: pa.repeat(fetch.split.topic, len(messages)),
    "partition": lambda _, messages, __: pa.array(messages["partition"]),
    "offset": lambda _, messages, __: pa.array(messages["offset"]),
    "timestamp": lambda fetch, _, pointers: _times(np.fromiter(fetch.stamps(pointers), np.int64, len(pointers))),
    "timestampType": lambda fetch, _, pointers: pa.array(fetch.kinds(pointers), pa.int32()),
}
"""How each column is made of message structs; headers are not in them."""

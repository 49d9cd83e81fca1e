"""The consumers of a process: each is one task's, and the next one's when that has ended."""

from __future__ import annotations

import ctypes
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...core import DataLoss, SplitReader, Transient
from ...core.errors import Fatal
from ...core.state import digest, dumps
from .config import client, error_of, failed, meaning
from .native import Library, binary_at, library, messages_at
from .positions import Range, named
from .resting import Resting


class Kept:
    """A consumer, and the last thing that it said about its brokers."""

    def __init__(self, config: Mapping[str, str], key: str) -> None:
        self.key = key
        self.fault: Any = None
        self.consumer = client().Consumer({**config, "error_cb": self._hear})

    def _hear(self, error: Any) -> None:
        self.fault = error

    def check(self, what: str) -> None:
        """Raises what waiting does not heal, such as a wrong password."""
        if self.fault is not None and isinstance(error := meaning(self.fault.name(), self.fault.str(), what), Fatal):
            raise error

    def close(self) -> None:
        self.consumer.close()


RESTING: Final = Resting(Kept.close)


def take(config: Mapping[str, str], use: str) -> Kept:
    """A consumer with these settings that nobody else uses, and that was for the same ``use`` before."""
    key = f"{use} {digest(dumps(dict(config)))}"
    found = RESTING.take(key)
    if found is None:
        return Kept(config, key)
    found.fault = None
    return found


def give_back(kept: Kept) -> None:
    """Keeps the consumer for the next task."""
    kept.consumer.unassign()
    RESTING.give_back(kept.key, kept)


# MERGED Takes records of one partition out of a consumer, as Arrow: by the client's C functions, or by the plain
# client.

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


# MERGED The task's side of the Kafka source: ranges of offsets as Arrow record batches.

_log = logging.getLogger("connectors.kafka")
_MESSAGES: Final = 10_000  # in a record batch
_WAIT: Final = 0.1  # seconds; how soon the end of a partition is noticed behind the last record
_SETTLE: Final = 5.0  # seconds at the end of a partition that should be longer, before it is called shrunk
_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_WAY_OUT: Final = "set failOnDataLoss=false to go on without what is lost"


class KafkaReader(SplitReader[Range]):
    """Reads by position: a range ends at its last offset, at a record behind it, or where the partition says that it ends.

    Offsets are no count of records: markers of transactions, aborted records and compacted ones leave holes. So the reader
    remembers after which offset each batch ended, to go on there after an outage.
    """

    def __init__(self, config: Mapping[str, str], columns: Sequence[str], fail: bool, patience: float) -> None:
        super().__init__()
        self.config = config
        self.columns = tuple(columns)
        self.fail = fail
        self.patience = patience
        self._kept: Kept | None = None
        self._fetch: PlainFetch
        self._marks: tuple[Range | None, list[int], list[int]] = (None, [0], [0])

    def open(self) -> None:
        self._kept = self._taken()

    def close(self) -> None:
        if self._kept is not None:
            give_back(self._kept)
            self._kept = None

    def _taken(self) -> Kept:
        return take(self.config, "functions" if functions_for(self.columns) else "plain")

    def read(self, split: Range) -> Iterator[pa.RecordBatch]:
        return self.resume(split, 0)

    def resume(self, split: Range, records: int) -> Iterator[pa.RecordBatch]:
        if self._marks[0] != split or not records:
            self._marks = (split, [0], [split.first])
        _, counts, offsets = self._marks
        known = bisect_right(counts, records)
        del counts[known:], offsets[known:]
        skip = records - counts[-1]
        for batch, following in self._batches(split, offsets[-1]):
            counts.append(counts[-1] + batch.num_rows)
            offsets.append(following)
            if skip < batch.num_rows:
                yield batch.slice(skip) if skip else batch
            skip = max(0, skip - batch.num_rows)

    def _batches(self, split: Range, offset: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The records from ``offset`` on, and the offset after each portion of them."""
        kept = self._kept or self._taken()
        self._kept = kept
        what = f"{named((split.topic, split.partition))} cannot be read at offset {offset}"
        heard = time.monotonic()
        self._fetch = fetch = fetch_of(kept.consumer, split, self.columns)
        try:
            with failed(what):
                fetch.assign(offset)
            while offset < split.end and not self.awake.is_set():
                with failed(what):
                    got = fetch.take(min(_MESSAGES, split.end - offset), _WAIT)
                if len(got.offsets):
                    offset = int(got.offsets[-1]) + 1
                    batch = got.before(split.end)
                    if batch.num_rows:
                        yield batch, min(offset, split.end)
                for event in got.events:
                    offset = self._told(split, event, offset)
                if len(got.offsets) or got.events:
                    heard = time.monotonic()
                else:
                    offset = self._waited(kept, split, offset, time.monotonic() - heard)
        finally:
            if self._kept is kept:
                fetch.close()

    def _told(self, split: Range, event: Event, offset: int) -> int:
        """Where reading goes on after an event that is no record."""
        if event.is_end:
            return max(offset, event.offset)
        error = meaning(event.name, event.text, f"{named((split.topic, split.partition))} cannot be read at offset {offset}")
        if isinstance(error, DataLoss) or event.name in _GONE:
            return self._lost(split, offset, gone=event.name in _GONE)
        raise error

    def _waited(self, kept: Kept, split: Range, offset: int, seconds: float) -> int:
        what = f"{named((split.topic, split.partition))} gave nothing at offset {offset}, before {split.end}"
        kept.check(what)
        if seconds > _SETTLE and self._ends(split) < split.end:
            return self._lost(split, offset)
        if seconds > self.patience:
            why = f" ({kept.fault.str()})" if kept.fault is not None else ""
            raise Transient(f"{what}, for {self.patience:g} seconds{why}")
        return offset

    def _ends(self, split: Range) -> int:
        """Where the partition ends now; the end of the split if nobody answers."""
        return self._watermarks(split)[1]

    def _watermarks(self, split: Range) -> tuple[int, int]:
        assert self._kept is not None
        one = client().TopicPartition(split.topic, split.partition)
        try:
            low, high = self._kept.consumer.get_watermark_offsets(one, timeout=5.0)
            return int(low), int(high)
        except client().KafkaException as error:
            return (split.end, 0) if error_of(error) in _GONE else (0, split.end)

    def _lost(self, split: Range, offset: int, *, gone: bool = False) -> int:
        """Goes on with the first offset that is there, or raises: what the split promised is not there any more."""
        low, high = self._watermarks(split)
        if gone and high:
            raise Transient(f"{named((split.topic, split.partition))} is not known to the broker that was asked")
        there = f"there are offsets {low} to {high - 1}" if high else "the topic or partition is gone"
        what = f"offset {offset} of {split.topic}-{split.partition} comes next, but {there}"
        if self.fail:
            raise DataLoss(what, way_out=_WAY_OUT)
        _log.warning("%s", what)
        if not offset < low < split.end:
            return split.end
        self._fetch.assign(low)
        return low

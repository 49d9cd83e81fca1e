"""The task's side of the Kafka source: ranges of offsets as Arrow record batches."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ...core import DataLoss, SplitReader, Transient
from . import consumers
from .failures import client, error_of, failed, meaning
from .positions import Range, named

_log = logging.getLogger("connectors.kafka")
_MESSAGES: Final = 10_000  # in a record batch
_WAIT: Final = 0.1  # seconds; how soon the end of a partition is noticed behind the last record
_SETTLE: Final = 5.0  # seconds at the end of a partition that should be longer, before it is called shrunk
_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_WAY_OUT: Final = "set failOnDataLoss=false to go on without what is lost"

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


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
        self._kept: consumers.Kept | None = None
        self._marks: tuple[Range | None, list[int], list[int]] = (None, [0], [0])

    def open(self) -> None:
        self._kept = consumers.take(self.config)

    def close(self) -> None:
        if self._kept is not None:
            consumers.give_back(self._kept)
            self._kept = None

    def read(self, split: Range) -> Iterator[pa.RecordBatch]:
        return self.resume(split, 0)

    def resume(self, split: Range, records: int) -> Iterator[pa.RecordBatch]:
        if self._marks[0] != split or not records:
            self._marks = (split, [0], [split.first])
        _, counts, offsets = self._marks
        known = bisect_right(counts, records)
        del counts[known:], offsets[known:]
        skip = records - counts[-1]
        for messages, following in self._messages(split, offsets[-1]):
            counts.append(counts[-1] + len(messages))
            offsets.append(following)
            if skip < len(messages):
                yield self._batch(split, messages[skip:] if skip else messages)
            skip = max(0, skip - len(messages))

    def _messages(self, split: Range, offset: int) -> Iterator[tuple[list[Any], int]]:
        """The records from ``offset`` on, and the offset after each portion of them."""
        kept = self._kept or consumers.take(self.config)
        self._kept = kept
        what = f"{named((split.topic, split.partition))} cannot be read at offset {offset}"
        heard = time.monotonic()
        try:
            with failed(what):
                self._assign(split, offset)
            while offset < split.end and not self.awake.is_set():
                with failed(what):
                    got = kept.consumer.consume(min(_MESSAGES, split.end - offset), _WAIT)
                errors = [message for message in got if message.error() is not None]
                records = [message for message in got if message.error() is None] if errors else got
                if records:
                    offset = records[-1].offset() + 1
                    while records and records[-1].offset() >= split.end:
                        records.pop()
                if records:
                    yield records, min(offset, split.end)
                for message in errors:
                    offset = self._told(split, message, offset)
                if got:
                    heard = time.monotonic()
                else:
                    offset = self._waited(kept, split, offset, time.monotonic() - heard)
        finally:
            if self._kept is kept:
                kept.consumer.unassign()

    def _assign(self, split: Range, offset: int) -> None:
        assert self._kept is not None
        self._kept.consumer.assign([client().TopicPartition(split.topic, split.partition, offset)])

    def _told(self, split: Range, message: Any, offset: int) -> int:
        """Where reading goes on after an event that is no record."""
        name, text = message.error().name(), message.error().str()
        if name == "_PARTITION_EOF":
            return max(offset, int(message.offset()))
        error = meaning(name, text, f"{named((split.topic, split.partition))} cannot be read at offset {offset}")
        if isinstance(error, DataLoss) or name in _GONE:
            return self._lost(split, offset, gone=name in _GONE)
        raise error

    def _waited(self, kept: consumers.Kept, split: Range, offset: int, seconds: float) -> int:
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
        self._assign(split, low)
        return low

    def _batch(self, split: Range, messages: Sequence[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [_COLUMNS[name](split, messages) for name in self.columns], list(self.columns)
        )


def _times(messages: Sequence[Any]) -> pa.Array:
    return pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC")).cast(_TIME)


_TIME: Final = pa.timestamp("us", "UTC")
_COLUMNS: Final[Mapping[str, Callable[[Range, Sequence[Any]], pa.Array]]] = {
    "key": lambda _, messages: pa.array([message.key() for message in messages], pa.binary()),
    "value": lambda _, messages: pa.array([message.value() for message in messages], pa.binary()),
    "topic": lambda split, messages: pa.repeat(split.topic, len(messages)),
    "partition": lambda split, messages: pa.repeat(pa.scalar(split.partition, pa.int32()), len(messages)),
    "offset": lambda _, messages: pa.array([message.offset() for message in messages], pa.int64()),
    "timestamp": lambda _, messages: _times(messages),
    # the client counts from "not there" as 0, Kafka and Spark from -1
    "timestampType": lambda _, messages: pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32()),
    "headers": lambda _, messages: pa.array([_headers(message) for message in messages], HEADERS),
}
"""How each column is made."""


def _headers(message: Any) -> list[dict[str, Any]] | None:
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None

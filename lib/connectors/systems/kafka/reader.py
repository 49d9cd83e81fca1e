"""The task's side of the Kafka source: ranges of offsets as Arrow record batches."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from ...core import DataLoss, SplitReader, Transient
from . import consumers
from .failures import client, error_of, failed, meaning
from .fetching import Event, PlainFetch, fetch_of, functions_for
from .positions import Range, named

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
        self._kept: consumers.Kept | None = None
        self._fetch: PlainFetch
        self._marks: tuple[Range | None, list[int], list[int]] = (None, [0], [0])

    def open(self) -> None:
        self._kept = self._taken()

    def close(self) -> None:
        if self._kept is not None:
            consumers.give_back(self._kept)
            self._kept = None

    def _taken(self) -> consumers.Kept:
        return consumers.take(self.config, "functions" if functions_for(self.columns) else "plain")

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
        self._fetch.assign(low)
        return low

"""Reading in a task: makes and reads its splits one by one, bridges outages, and adds the place to errors.

One thread reads split by split, or ``SplitReader.fetchers`` threads each take the next split; a bounded queue between
them and the task gives back-pressure.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from ..ground import machine
from ..ground.errors import ConnectorError, Transient
from ..ground.retry import Backoff, RetrySettings, observed_retries
from .metrics import Meter
from .source import RecordEmitter, Slice, Source, Split, SplitEnumerator, SplitReader

T = TypeVar("T")
_POLL_SECONDS = 0.1  # a waiting fetcher notices after so long that nobody reads any more


def read_slice(
    source: Source, part: Slice, schema: pa.Schema, meter: Meter | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task's share, as record batches of ``schema``; ``meter`` counts them."""
    with meter or Meter() as counts, contextlib.closing(source.enumerator()) as enumerator:
        splits = enumerator.splits_of(part)
        fetchers = source.reader(schema).fetchers
        workers = [_Fetcher(source, schema, enumerator, counts) for _ in range(fetchers)]
        if fetchers > 1:
            yield from _read_side_by_side(workers, splits)
            return
        with workers[0] as fetcher:
            for split in splits:
                yield from fetcher.fetch(split)


class _Fetcher:
    """Reads splits with one reader."""

    def __init__(self, source: Source, schema: pa.Schema, enumerator: SplitEnumerator[Any], meter: Meter) -> None:
        self.source = source
        self.enumerator = enumerator
        self.meter = meter
        self.retry = RetrySettings.of(source.values)
        self.reader: SplitReader[Any] = source.reader(schema)
        self.emitter: RecordEmitter | None = source.emitter(schema)

    def __enter__(self) -> _Fetcher:
        backoff = Backoff(self.retry, self.meter)
        try:
            while True:
                try:
                    self.reader.open()
                    backoff.reset()
                    return self
                except Transient as outage:
                    backoff.wait(outage, self.reader.awake)
                    self.meter.retried()
        except BaseException:
            self.reader.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.reader.close()

    def fetch(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of ``split``. After an outage the read continues behind the last record that was passed on."""
        try:
            partition = self.meter.at = self.enumerator.partition_of(split)
            for batch in self._whole(split) if self.reader.atomic else self._resumed(split):
                rows = self._retried(partial(self.emitter.emit, batch, split)) if self.emitter else batch
                self._count(partition, batch, rows)
                yield rows
            self.meter.count(partition, **self.reader.counts())
            if self.emitter:
                self._retried(partial(self.emitter.finish, split))
        except ConnectorError as error:
            raise error.located(f"connectors.{self.source.name}", str(split)) from None

    def _retried(self, work: Callable[[], T]) -> T:
        """Calls ``work`` of the emitter with retries: it may ask a schema registry or write dead letters."""
        with observed_retries(self.meter):
            return self.retry.call(work)

    def _count(self, partition: str, records: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        self.meter.count(partition, rows=rows.num_rows, bytes=records.nbytes)
        if self.emitter and self.emitter.bad:
            self.meter.count(partition, errors=self.emitter.bad, dead_letters=self.emitter.dead_letters)
            self.emitter.bad = self.emitter.dead_letters = 0

    def _resumed(self, split: Split) -> Iterator[pa.RecordBatch]:
        backoff, done = Backoff(self.retry, self.meter), 0
        while True:
            try:
                for batch in self.reader.resume(split, done) if done else self.reader.read(split):
                    if batch.num_rows:
                        yield batch
                        done += batch.num_rows
                        backoff.reset()
                backoff.reset()
                return
            except Transient as outage:
                backoff.wait(outage, self.reader.awake)
                self.meter.retried()

    def _whole(self, split: Split) -> Iterator[pa.RecordBatch]:
        backoff = Backoff(self.retry, self.meter)
        while True:
            try:
                batches = list(self.reader.read(split))
                break
            except Transient as outage:
                backoff.wait(outage, self.reader.awake)
                self.meter.retried()
        backoff.reset()
        yield from batches


class _Failed:
    """The error with which a fetcher ended."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _read_side_by_side(running: Sequence[_Fetcher], splits: Iterator[Split]) -> Iterator[pa.RecordBatch]:
    batches: queue.Queue[pa.RecordBatch | _Failed | None] = queue.Queue(maxsize=2 * len(running))
    take, stop = threading.Lock(), machine.event()

    def next_split() -> Split | None:
        with take:
            return next(splits, None)

    def hand_over(item: pa.RecordBatch | _Failed | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                batches.put(item, timeout=_POLL_SECONDS)
                return

    def work(fetcher: _Fetcher) -> None:
        try:
            with fetcher:
                while not stop.is_set() and (split := next_split()) is not None:
                    for batch in fetcher.fetch(split):
                        hand_over(batch)
                        if stop.is_set():
                            return
            hand_over(None)
        except BaseException as error:
            hand_over(_Failed(error))

    threads = [machine.thread(partial(work, fetcher), "connectors") for fetcher in running]
    try:
        for thread in threads:
            thread.start()
        ended = 0
        while ended < len(running):
            item = batches.get()
            if isinstance(item, _Failed):
                raise item.error
            if item is None:
                ended += 1
            else:
                yield item
    finally:
        stop.set()
        for fetcher in running:
            fetcher.reader.wake_up()
        for thread in threads:
            thread.join()

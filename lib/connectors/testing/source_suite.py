"""Every case that a source must pass::

    class TestSequence(SourceSuite):
        context = SequenceContext

The cases need no Spark. They drive the source as Spark does: offsets go through JSON each time, and a restart is a new
object. :class:`~connectors.testing.spark_suites.SparkSourceSuite` runs the same system on Spark.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ..core.epoch_source import EpochLogSource
from ..core.planning import INITIAL, Offset, Planner
from ..core.reading import read_slice
from ..core.source import UNLIMITED, ReadLimit, Slice, Source
from ..ground.errors import DataLoss
from ..ground.state import dumps
from .compare import same_order, same_records
from .contexts import SourceContext, open_context, todo_lines
from .faults import Action, FailureInjector, Injected, Point, faulty_source

COUNT = 50
Rows = list[dict[str, Any]]
Log = list[Offset]


class SourceQuery:
    """A query over a source, batch by batch; ``log`` is what its checkpoint holds.

    ``source`` is the context's, or a subclass of it.
    """

    def __init__(self, context: SourceContext, source: type[Source] | None = None, /, **options: str) -> None:
        self.context = context
        kind = source or context.source
        self.source: Source = kind.of({**context.options(), **options}, streaming=True)
        self.planner = Planner(self.source)
        if isinstance(context, SourceContext):  # which closes them
            context.planners.append(self.planner)

    def next(self, log: Log, limit: ReadLimit | None = None) -> Rows | None:
        """The rows of the next batch, whose end goes into ``log``; ``None`` if there is nothing new."""
        number = self.plan(log, limit)
        return None if number is None else self.batch(log, number)

    def plan(self, log: Log, limit: ReadLimit | None = None) -> int | None:
        """The number of the next batch, whose end goes into ``log``; ``None`` if there is nothing new."""
        assert len(log) < 10 * COUNT, f"the query has not come to its end after {len(log)} batches"
        start = log[-1] if log else INITIAL
        end = self.planner.latest(start, self.source.limit() if limit is None else limit)
        if end == start:
            return None
        log.append(json.loads(json.dumps(end)))
        return len(log) - 1

    def batch(self, log: Log, number: int) -> Rows:
        """The rows of batch ``number`` of ``log``, as a replay reads them."""
        return [row for rows in self.tasks(log, number) for row in rows]

    def tasks(self, log: Log, number: int) -> list[Rows]:
        """The rows of batch ``number`` of ``log``, task by task."""
        start = log[number - 1] if number else INITIAL
        return [self.rows(part) for part in self.planner.slices(start, log[number])]

    def rest(self, log: Log, limit: ReadLimit | None = None) -> Rows:
        """The rows of all batches until there is nothing new."""
        return [row for tasks in self.batches(log, limit) for rows in tasks for row in rows]

    def batches(self, log: Log, limit: ReadLimit | None = None) -> Iterator[list[Rows]]:
        """The rows of all batches, task by task, until there is nothing new."""
        if isinstance(self.source, EpochLogSource) and log:
            self.planner.latest(log[-1])  # the pause begins when the planner sees the end of the last epoch
            time.sleep(self.source.values["pollInterval"])
        while (number := self.plan(log, limit)) is not None:
            tasks = self.tasks(log, number)
            if self.is_end([row for rows in tasks for row in rows]):
                return
            yield tasks

    def is_end(self, rows: Rows | None) -> bool:
        """True if a batch says that there is nothing new; an epoch may do so by having no rows."""
        return rows is None or (not rows and isinstance(self.source, EpochLogSource))

    def whole(self) -> Rows:
        """The rows of a batch read."""
        self.source.streaming = False
        return [row for part in Planner(self.source).whole() for row in self.rows(part)]

    def rows(self, part: Slice) -> Rows:
        return [row for batch in read_slice(self.source, part, self.context.schema) for row in batch.to_pylist()]


class SourceCases:
    """The fixture of a suite. A subclass of a suite sets ``context``."""

    context: ClassVar[type[SourceContext]]

    @pytest.fixture
    def system(self, tmp_path: Path) -> Iterator[SourceContext]:
        with open_context(self.context, tmp_path / "system") as system:
            yield system
            for planner in system.planners:
                planner.close()

    @pytest.fixture
    def log(self) -> Log:
        """The offsets of a new checkpoint."""
        return []

    def needs_empty(self, system: SourceContext) -> None:
        """Skips the case if the system cannot be without records."""
        if system.never_empty:
            pytest.skip(system.never_empty)


class SourceSuite(SourceCases):
    """The cases of a source. A subclass sets ``context``."""

    def test_no_stand_in_is_left(self) -> None:
        if lines := todo_lines(self.context.source):
            pytest.skip("\n".join(lines))

    @pytest.mark.parametrize("parallelism", ["1", "4"])
    def test_everything_is_read_once(self, system: SourceContext, parallelism: str) -> None:
        written = system.write(COUNT)
        same_records(written, SourceQuery(system, numPartitions=parallelism).rest([]))

    def test_a_batch_read_gives_everything_once(self, system: SourceContext) -> None:
        written = system.write(COUNT)
        query = SourceQuery(system)
        if not query.source.bounded:
            pytest.skip("the source has no end")
        same_records(written, query.whole())

    def test_an_empty_system_is_a_batch_without_rows(self, system: SourceContext) -> None:
        self.needs_empty(system)
        query = SourceQuery(system)
        if not query.source.bounded:
            pytest.skip("the source has no end")
        assert query.whole() == []
        same_records(system.write(COUNT), SourceQuery(system).whole())

    def test_a_query_that_begins_on_an_empty_system_reads_what_comes_later(self, system: SourceContext, log: Log) -> None:
        self.needs_empty(system)
        ending = SourceQuery(system)
        ending.planner.freeze()
        assert ending.rest(log) == []
        options, running = system.options(), SourceQuery(system)
        assert running.rest(log) == []
        assert SourceQuery(system).rest(log) == []
        copy, written = list(log), system.write(COUNT)
        same_records(written, SourceQuery(system).rest(log))
        if system.options() == options:  # else they fix the end of the data, and a running query reads no further
            same_records(written, running.rest(copy))

    def test_limited_batches_are_several_and_lose_nothing(self, system: SourceContext, log: Log) -> None:
        written = system.write(COUNT)
        same_records(written, SourceQuery(system, **system.limit).rest(log))
        assert len(log) > 2, f"{dict(system.limit)} must cut {COUNT} records into several batches; there was {len(log)}"

    def test_a_limit_of_rows_is_kept(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        query = SourceQuery(system, **system.limit)
        most = query.source.limit().rows
        if most is None:
            pytest.skip("the source does not limit rows")
        least = 0 if issubclass(system.source, EpochLogSource) else 1
        while (rows := query.next(log)) is not None:
            assert least <= len(rows) <= most

    def test_a_limit_is_shared_among_partitions(self, system: SourceContext, log: Log) -> None:
        partitions = {system.partition(row) for row in system.write(COUNT)}
        if partitions == {None} or len(partitions) < 2:
            pytest.skip("partition of the context tells no two partitions apart")
        query = SourceQuery(system, **system.limit)
        seen = {system.partition(row) for _ in partitions for row in query.next(log) or []}
        assert seen == partitions, f"{len(partitions)} batches have read nothing of {sorted(map(str, partitions - seen))}"

    def test_what_the_system_has_lost_stops_the_query(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        SourceQuery(system, **system.limit).next(log)
        if not system.lose():
            pytest.skip("lose of the context makes the system lose nothing")
        with pytest.raises(DataLoss, match="failOnDataLoss"):
            SourceQuery(system).rest(log)

    def test_a_query_goes_on_after_a_loss_when_the_user_says_so(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        SourceQuery(system).rest(log)
        if not system.lose():
            pytest.skip("lose of the context makes the system lose nothing")
        query = SourceQuery(system, failOnDataLoss="false")
        query.rest(log)
        same_records(system.write(COUNT), query.rest(log))

    def test_the_records_of_a_partition_come_in_the_order_in_which_they_were_written(
        self, system: SourceContext, log: Log
    ) -> None:
        if system.unordered:
            pytest.skip(system.unordered)
        written = system.write(COUNT)
        batches = list(SourceQuery(system, numPartitions="1", **system.limit).batches(log))
        written += system.write(COUNT)
        batches += SourceQuery(system, numPartitions="3").batches(log)
        same_order(written, batches, system.partition)

    @pytest.mark.parametrize("parallelism", ["1", "3", "5"])
    def test_a_restart_after_each_batch_loses_and_doubles_nothing(
        self, system: SourceContext, log: Log, parallelism: str
    ) -> None:
        written = system.write(COUNT)
        rows: Rows = []
        while True:
            query = SourceQuery(system, numPartitions=parallelism, **system.limit)
            if query.is_end(batch := query.next(log)):
                break
            rows += batch or []
        same_records(written, rows)

    def test_records_that_come_later_are_read_by_a_restarted_query(self, system: SourceContext, log: Log) -> None:
        first = system.write(COUNT)
        same_records(first, SourceQuery(system).rest(log))
        second = system.write(COUNT)
        same_records(second, SourceQuery(system).rest(log))

    @pytest.mark.parametrize("parallelism", ["1", "2", "5"])
    def test_a_replay_reads_the_same_rows_with_another_parallelism_and_more_data(
        self, system: SourceContext, log: Log, parallelism: str
    ) -> None:
        system.write(COUNT)
        query = SourceQuery(system, numPartitions="3", **system.limit)
        batches = [[row for rows in tasks for row in rows] for tasks in query.batches(log)]
        system.write(COUNT)
        again = SourceQuery(system, numPartitions=parallelism)
        for number, rows in enumerate(batches):
            same_records(rows, again.batch(log, number))

    def test_a_replay_cuts_the_same_splits_with_another_parallelism(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        SourceQuery(system, numPartitions="3").next(log)
        splits = [_splits(SourceQuery(system, numPartitions=parallelism), log) for parallelism in ("1", "3", "5")]
        assert splits[0] == splits[1] == splits[2]

    def test_the_start_does_not_move(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        if system.latest is None:
            pytest.skip("latest of the context has no options that start at the newest record")
        options = dict(system.latest)
        before = SourceQuery(system, **options).next(log)
        written = system.write(COUNT)
        again = SourceQuery(system, **options)
        same_records(before or [], again.batch(log, 0) if log else [])
        same_records(written, again.rest(log))

    def test_a_source_without_new_data_stands_still(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        query = SourceQuery(system)
        query.rest(log)
        if isinstance(query.source, EpochLogSource):  # it may have to look
            assert query.rest(log) == SourceQuery(system).rest(log) == []
            return
        assert query.planner.latest(log[-1]) == log[-1]
        assert SourceQuery(system).planner.latest(log[-1]) == log[-1]

    def test_an_empty_range_has_no_tasks(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        query = SourceQuery(system)
        query.rest(log)
        assert list(query.planner.slices(log[-1], log[-1])) == []

    def test_a_frozen_query_ends_with_what_was_there(self, system: SourceContext, log: Log) -> None:
        written = system.write(COUNT)
        query = SourceQuery(system, **system.limit)
        query.planner.freeze()
        first = query.next(log) or []
        later = system.write(COUNT)
        rows = first + query.rest(log)
        same_records(written, [row for row in rows if row not in later] if system.undated else rows)

    def test_an_offset_is_small_canonical_json(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        SourceQuery(system, **system.limit).rest(log)
        for offset in log:
            assert json.dumps(offset, separators=(",", ":"), ensure_ascii=False) == dumps(offset)
            assert offset["v"] == 1
            assert len(dumps(offset)) < 4096

    def test_the_range_is_cut_lazily_and_alike_each_time(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        query = SourceQuery(system)
        query.next(log)
        for part in query.planner.slices(INITIAL, log[0]):
            splits = query.planner.enumerator.splits_of(part)
            assert iter(splits) is splits, "splits_of must give an iterator, not a list"
            assert list(splits) == list(query.planner.enumerator.splits_of(part))

    def test_a_split_is_resumed_after_any_record(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        query = SourceQuery(system, numPartitions="2")
        query.next(log)
        for split in _splits(query, log):
            reader = query.source.reader(system.schema)
            reader.open()
            with contextlib.closing(reader):
                whole = [row for batch in reader.read(split) for row in batch.to_pylist()]
                for count in {1, len(whole) // 2, len(whole) - 1, len(whole)} - {0, -1}:
                    rest = [row for batch in reader.resume(split, count) for row in batch.to_pylist()]
                    assert rest == whole[count:], f"resumed after {count} of {len(whole)} records of {split}"

    def test_an_outage_while_reading_is_bridged(self, system: SourceContext, tmp_path: Path) -> None:
        written = system.write(COUNT)
        injector = FailureInjector(tmp_path / "faults")
        injector.arm(Point.READ_ROW, Action.OUTAGE, times=2, row=2)
        same_records(written, SourceQuery(system, faulty_source(system.source, injector), numPartitions="1").rest([]))
        assert injector.struck() == 2

    def test_an_error_while_reading_surfaces(self, system: SourceContext, tmp_path: Path) -> None:
        system.write(COUNT)
        injector = FailureInjector(tmp_path / "faults")
        injector.arm(Point.READ_ROW)
        with pytest.raises(Injected):
            SourceQuery(system, faulty_source(system.source, injector)).rest([])

    def test_a_reader_that_is_left_stops(self, system: SourceContext, log: Log) -> None:
        system.write(COUNT)
        query = SourceQuery(system, numPartitions="1")
        query.next(log)
        before = threading.active_count()
        for part in query.planner.slices(INITIAL, log[0]):
            batches = read_slice(query.source, part, system.schema)
            next(batches, None)
            batches.close()  # type: ignore[attr-defined]
        assert threading.active_count() <= before

    def test_readers_of_different_tasks_do_not_disturb_each_other(self, system: SourceContext, log: Log) -> None:
        written = system.write(COUNT)
        query = SourceQuery(system, numPartitions="4")
        query.next(log, UNLIMITED)
        tasks = [read_slice(query.source, part, system.schema) for part in query.planner.slices(INITIAL, log[0])]
        same_records(written, rows_by_turns(tasks) + query.rest(log))


def rows_by_turns(tasks: list[Iterator[pa.RecordBatch]]) -> Rows:
    """The rows of ``tasks``, a batch of each task in turn."""
    rows: Rows = []
    while tasks:
        for task in list(tasks):
            batch = next(task, None)
            if batch is None:
                tasks.remove(task)
            else:
                rows += batch.to_pylist()
    return rows


def _splits(query: SourceQuery, log: Log) -> list[Any]:
    parts = query.planner.slices(INITIAL, log[0])
    return [split for part in parts for split in islice(query.planner.enumerator.splits_of(part), 1000)]

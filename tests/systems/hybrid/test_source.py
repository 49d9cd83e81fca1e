"""What a hybrid source does from part to part."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal, Misconfigured, PartitionProgress, StateError
from connectors.core.planning import INITIAL, Planner
from connectors.core.progress import unpacked
from connectors.core.reading import read_slice
from connectors.systems import add_system
from connectors.systems.hybrid import HybridSource
from connectors.systems.hybrid.parts import PartSplit
from connectors.testing import same_records
from connectors.testing.source_suite import SourceQuery

from ..reference_contexts import QueueContext
from .contexts import SCHEMA, Parts, rows


def test_parts_follow_each_other_in_batches_of_their_own(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.files("b", 10, 20)
    parts.clock(25)
    log: list[Any] = []
    batches = [sorted(row["id"] for rows in tasks for row in rows) for tasks in SourceQuery(parts).batches(log)]
    assert batches == [[*range(10)], [*range(10, 20)], [*range(25)]]
    assert [offset["at"]["part"] for offset in log] == ["a", "b", "clock"]


def test_a_part_ends_where_its_data_end_when_a_run_comes_to_it(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(12)
    log: list[Any] = []
    query = SourceQuery(parts, maxFilesPerTrigger="1")
    assert query.next(log) == rows(0, 10)
    parts.files("a", 100, 110)
    assert query.next(log) == rows(0, 12)
    parts.clock(14)
    assert SourceQuery(parts).rest(log) == rows(12, 14)


def test_a_run_that_ends_reads_the_last_part_up_to_where_it_ended_when_the_run_came_to_it(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(10)
    log: list[Any] = []
    query = SourceQuery(parts, maxRowsPerTrigger="4")
    query.planner.freeze()
    assert query.next(log) == rows(0, 10)
    assert query.next(log) == rows(0, 4)
    parts.clock(20)
    assert query.rest(log) == rows(4, 10)
    assert SourceQuery(parts).rest(log) == rows(10, 20)


def test_a_part_without_an_end_must_be_the_last(parts: Parts) -> None:
    parts.parts = [{"format": "sequence", "options": {"maxRowsPerTrigger": 10}}]
    parts.clock(3)
    with pytest.raises(Misconfigured, match="without it an availableNow query would never end"):
        SourceQuery(parts).next([])


def test_a_source_that_comes_behind_the_last_one_follows_it(parts: Parts) -> None:
    parts.files("a", 0, 10)
    log: list[Any] = []
    same_records(SourceQuery(parts).rest(log), rows(0, 10))
    parts.files("a", 10, 20)
    parts.clock(3)
    same_records(SourceQuery(parts).rest(log), [*rows(10, 20), *rows(0, 3)])


def test_a_part_behind_rows_that_are_not_recorded_cannot_start_by_a_column(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(100)
    parts.more = {"startFrom": "ts - 5 seconds", "deduplicateBy": "id", "stateLocation": str(parts.folder / "state")}
    log: list[Any] = []
    same_records(SourceQuery(parts).rest(log), rows(0, 100))
    (parts.folder / "now").write_text("120")
    parts.parts.append({**parts.parts[-1], "name": "second clock"})
    query = SourceQuery(parts)
    assert query.next(log) == rows(100, 120)
    with pytest.raises(Fatal, match=r"rows before second clock were read(.|\n)*give a time in startFrom"):
        query.next(log)
    parts.more = {"startFrom": "2023-01-01T00:02:00Z"}
    (parts.folder / "now").write_text("130")
    assert SourceQuery(parts).rest(log) == [*rows(120, 130)] * 2


WITHOUT: dict[str, str] = {}
BY_ID = {"startFrom": "ts - 5 seconds", "deduplicateBy": "id", "stateLocation": "state"}


@pytest.mark.parametrize("before", [WITHOUT, {**BY_ID, "startFrom": "ts"}, {**BY_ID, "deduplicateBy": "ts"}])
def test_rows_that_are_recorded_in_another_way_are_no_overlap(
    parts: Parts, before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parts.folder)
    parts.files("a", 0, 10)
    parts.clock(20)
    log: list[Any] = []
    parts.more = before
    assert SourceQuery(parts).next(log) == rows(0, 10)
    parts.more = BY_ID
    with pytest.raises(Fatal, match="with another startFrom or deduplicateBy"):
        SourceQuery(parts).next(log)


def test_parts_that_are_read_do_not_come_again_in_another_order(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(3)
    log: list[Any] = []
    SourceQuery(parts).rest(log)
    parts.parts.reverse()
    with pytest.raises(StateError, match=r"a is behind clock in sources, and was read to its end before it"):
        SourceQuery(parts).rest(log)


def test_only_parts_that_are_read_may_go(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(3)
    log: list[Any] = []
    SourceQuery(parts).rest(log)
    del parts.parts[0]
    parts.clock(5)
    assert SourceQuery(parts).rest(log) == rows(3, 5)
    parts.parts[0]["name"] = "another"
    with pytest.raises(StateError, match=r"is in the part clock, which sources does not have: another"):
        SourceQuery(parts).rest(log)


def test_a_part_without_a_record_is_an_error(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.parts[0]["options"]["path"] += "/typo"
    parts.clock(3)
    with pytest.raises(Fatal, match="a has no record, so that clock would be all there is"):
        SourceQuery(parts).rest([])


def test_the_start_of_a_part_without_a_record_yet_does_not_move(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(0)
    log: list[Any] = []
    same_records(SourceQuery(parts).rest(log), rows(0, 10))
    assert log[-1]["at"]["part"] == "clock"
    parts.clock(4)
    assert SourceQuery(parts).rest(log) == rows(0, 4)


def test_a_later_part_starts_at_a_time(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(15)
    parts.more = {"startFrom": "2023-01-01T00:00:10Z"}
    same_records(SourceQuery(parts).rest([]), rows(0, 15))


def test_after_an_outage_a_part_goes_on_behind_the_records_of_which_rows_came(parts: Parts) -> None:
    parts.files("a", 0, 9)
    parts.clock(15)
    parts.more = {"startFrom": "ts - 30 seconds", "deduplicateBy": "id", "stateLocation": str(parts.folder / "state")}
    log: list[Any] = []
    query = SourceQuery(parts, numPartitions="1")
    query.next(log)
    number = query.plan(log)
    assert number is not None
    (part,) = query.planner.slices(*log[-2:])
    (split,) = query.planner.enumerator.splits_of(part)
    reader = query.source.reader(SCHEMA)
    batches = reader.read(split)
    read: list[Any] = []
    while len(read) < 3:  # the clock gives two rows at a time, of which the first nine are left out
        read += next(batches).to_pylist()
    rest = [row for batch in reader.resume(split, len(read)) for row in batch.to_pylist()]
    assert read + rest == rows(9, 15)
    reader.close()


def test_without_keys_the_overlap_comes_twice(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(15)
    parts.more = {"startFrom": "ts - 3 seconds", "stateLocation": str(parts.folder / "state")}
    same_records(SourceQuery(parts).rest([]), [*rows(0, 15), *rows(6, 10)])


def test_rows_of_all_parts_before_are_known_in_the_overlap(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(15)
    parts.parts.append({**parts.parts[-1], "name": "second clock"})
    state = {"stateLocation": str(parts.folder / "state")}
    parts.more = {"startFrom": "ts - 30 seconds", "deduplicateBy": "id,ts", **state}
    log: list[Any] = []
    same_records(SourceQuery(parts, maxRowsPerTrigger="4").rest(log), rows(0, 15))
    parts.clock(20)
    same_records(SourceQuery(parts).rest(log), rows(15, 20))


def test_progress_tells_the_parts(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(3)
    log: list[Any] = []
    SourceQuery(parts).rest(log)
    assert unpacked(log[-1]) == [PartitionProgress("a", "end", "end", 0, 0.0)]


def test_counts_are_of_partitions_of_the_part(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(3)
    enumerator = HybridSource.of(parts.options(), streaming=True).enumerator()
    assert enumerator.partition_of(PartSplit("clock", None)) == "clock"


def test_a_queue_is_acknowledged_as_a_part(parts: Parts) -> None:
    queue = QueueContext(parts.folder)
    add_system(queue.source)
    parts.files("a", 0, 3)
    parts.parts.append({"format": queue.source.name, "options": queue.options(), "columns": {"id": "value"}})
    source = HybridSource.of(parts.options(), streaming=True)
    schema, planner = pa.schema([("id", pa.int64())]), Planner(source)
    queue.write(20)
    offsets, read = [INITIAL], []
    while len(read) < 23:
        offsets.append(planner.latest(offsets[-1]))
        slices = planner.slices(*offsets[-2:])
        read += [row["id"] for part in slices for batch in read_slice(source, part, schema) for row in batch.to_pylist()]
        planner.committed(offsets[-1])
    planner.close()
    assert sorted(read) == sorted([*range(3), *range(20)])
    assert queue.queue.unacknowledged() == 0

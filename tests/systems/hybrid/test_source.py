"""What a hybrid source does from part to part, and what it refuses."""

from __future__ import annotations

import json
import pickle
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from connectors import systems
from connectors.core import Fatal, Misconfigured, PartitionProgress, StateError, Transient
from connectors.core.planning import INITIAL, Planner
from connectors.core.progress import unpacked
from connectors.core.reading import read_slice
from connectors.storage import storage_of
from connectors.systems import add_system
from connectors.systems.hybrid import HybridSource
from connectors.systems.hybrid.overlap import Overlap, Recent
from connectors.systems.hybrid.parts import PartSplit
from connectors.systems.hybrid.source import OwnSources
from connectors.testing import same_records
from connectors.testing.contexts import open_context
from connectors.testing.source_suite import SourceQuery

from ..reference_contexts import QueueContext
from .contexts import BEGIN, SCHEMA, ClockSource, HybridContext, row, rows, write_history


class Parts(HybridContext):
    """Parts that a test describes one by one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.parts: list[dict[str, Any]] = []
        self.more: dict[str, str] = {}

    def files(self, name: str, first: int, end: int) -> None:
        write_history(self.folder / name, first, end)
        if name not in [part.get("name") for part in self.parts]:
            self.parts.append({"format": "files", "name": name, "options": {"path": str(self.folder / name)}})

    def clock(self, end: int, **options: Any) -> None:
        (self.folder / "now").write_text(str(end))
        if "clock" not in [part["format"] for part in self.parts]:
            self.parts.append({"format": "clock", "options": {"path": str(self.folder / "now"), **options}})

    def options(self) -> dict[str, str]:
        return {"sources": json.dumps(self.parts), **self.more}


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    with open_context(Parts, tmp_path / "system") as system:
        yield system
        for planner in system.planners:
            planner.close()


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


def test_a_row_with_a_null_in_its_key_is_never_left_out(tmp_path: Path) -> None:
    overlap = Overlap(storage_of(str(tmp_path)), "query", "ts", 60, ["id"])
    batch = pa.RecordBatch.from_pylist([{"id": None, "ts": BEGIN}, row(1), {"id": 7, "ts": None}], SCHEMA)
    recent = overlap.recent()
    overlap.add(recent, batch)
    overlap.record("split", recent)
    assert overlap.end("part") == row(1)["ts"].timestamp() * 1e6
    rest = overlap.without_read(batch, "part", overlap.end("part") or 0)
    assert rest.to_pylist() == batch.take([0, 2]).to_pylist()


def test_keys_of_several_columns_and_any_type_are_told_apart(tmp_path: Path) -> None:
    kinds = [("a", pa.string()), ("b", pa.binary()), ("c", pa.decimal128(9, 2)), ("d", pa.float32()), ("e", pa.date32())]
    schema = pa.schema([*kinds, ("ts", SCHEMA.field("ts").type)])
    overlap = Overlap(storage_of(str(tmp_path)), "query", "ts", 60, [name for name, _ in kinds])
    one = {"a": "1", "b": b"\0\xff", "c": Decimal("1.10"), "d": 0.1, "e": BEGIN.date(), "ts": BEGIN}
    cells = ({"a": "1\0", "b": b"\xff"}, {"c": Decimal("1.11")}, {"d": 0.2}, {"e": date(2027, 1, 1)})
    others = [{**one, **other} for other in cells]
    recent = overlap.recent()
    overlap.add(recent, pa.RecordBatch.from_pylist([one], schema))
    overlap.record("split", recent)
    last = overlap.end("part") or 0
    rest = overlap.without_read(pa.RecordBatch.from_pylist([others[0], one, *others[1:], one], schema), "part", last)
    assert rest.to_pylist() == pa.RecordBatch.from_pylist(others, schema).to_pylist()


def test_many_files_of_splits_become_one_and_say_the_same(tmp_path: Path) -> None:
    overlap = Overlap(storage_of(str(tmp_path)), "query", "ts", 20, ["id"])
    for number in range(150):
        recent = overlap.recent()
        overlap.add(recent, pa.RecordBatch.from_pylist([row(number)], SCHEMA))
        overlap.record(f"split {number}", recent)
        if number == 120:
            overlap.tidy()
            assert len([*(tmp_path / "query" / "read").iterdir()]) == 1
    last = overlap.end("part") or 0
    again = overlap.without_read(pa.RecordBatch.from_pylist(rows(100, 150), SCHEMA), "part", last)
    assert again.to_pylist() == rows(100, 129)


def test_rows_before_the_overlap_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.systems.hybrid.overlap._MOST_ROWS", 10)
    recent = Recent(5)
    for number in range(100):
        recent.add(pa.table({"time": [number], "key": [b"%d" % number]}))
        assert recent._rows.num_rows <= 22
    assert recent.table().to_pylist()[1:] == [{"time": number, "key": b"%d" % number} for number in range(94, 100)]


def test_without_a_key_the_last_time_is_all_that_is_noted() -> None:
    recent = Recent(5)
    for number in (3, 7, 5):
        recent.add(pa.table({"time": [number, number], "key": pa.nulls(2, pa.binary())}))
    assert recent.table().to_pylist() == [{"time": 7, "key": None}]


def test_the_state_that_says_which_rows_were_read_must_not_be_lost(parts: Parts) -> None:
    parts.files("a", 0, 10)
    parts.clock(15)
    parts.more = {"startFrom": "ts - 3 seconds", "deduplicateBy": "id", "stateLocation": str(parts.folder / "state")}
    log: list[Any] = []
    query = SourceQuery(parts)
    query.next(log)
    number = query.plan(log)
    (file,) = (parts.folder / "state").glob("*/before/*")
    file.unlink()
    with pytest.raises(StateError, match=r"which rows were read before clock, is gone(.|\n)*restore the folder"):
        query.batch(log, number or 0)


def test_files_that_go_while_they_are_joined_are_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = storage_of(str(tmp_path))
    overlap = Overlap(storage, "query", "ts", 20, ["id"])
    overlap.record("split", overlap.recent())
    items = storage.items

    def items_before(folder: str) -> Any:
        listed = items(folder)
        for item in listed:
            storage.delete(f"{folder}/{item.name}")
        return listed

    monkeypatch.setattr(storage, "items", items_before)
    with pytest.raises(Transient, match="joined with others"):
        overlap.join()


def test_times_must_be_there(parts: Parts) -> None:
    parts.files("a", 0, 1)
    nothing = pa.Table.from_pylist([{"id": 1, "ts": None}], SCHEMA)
    pq.write_table(nothing, next((parts.folder / "a").iterdir()))
    parts.clock(15)
    parts.more = {"startFrom": "ts", "stateLocation": str(parts.folder / "state")}
    with pytest.raises(Fatal, match="no row before clock has a time in ts"):
        SourceQuery(parts).rest([])


@pytest.mark.parametrize("year", [2099, 9999])
def test_a_part_does_not_start_in_the_future(parts: Parts, year: int) -> None:
    parts.files("a", 0, 10)
    row_of_future = {"id": 99, "ts": datetime(year, 1, 1, tzinfo=timezone.utc)}
    pq.write_table(pa.Table.from_pylist([row_of_future], SCHEMA), parts.folder / "a" / "future.parquet")
    parts.clock(15)
    parts.more = {"startFrom": "ts - 5 seconds", "deduplicateBy": "id", "stateLocation": str(parts.folder / "state")}
    log: list[Any] = []
    query = SourceQuery(parts)
    assert len(query.next(log) or ()) == 11
    with pytest.raises(Fatal, match=f"the last time in ts before clock is in the future: {year}-01-01 00:00:00"):
        query.next(log)
    parts.more = {"startFrom": "2023-01-01T00:00:10Z"}
    assert SourceQuery(parts).rest(log) == rows(10, 15)


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


FILES = {"format": "files", "options": {"path": "/nowhere"}}
CLOCK = {"format": "clock", "options": {"path": "/nowhere"}}
QUEUE = {"format": "pubsub", "options": {"projectId": "p", "subscriptionId": "s", "stateLocation": "/nowhere"}}
STATE = {"stateLocation": "/nowhere"}
WRONG: list[tuple[Any, dict[str, str], str]] = [
    ([], {}, "sources .*must name a source"),
    ({}, {}, "sources .*must be a JSON list"),
    (["files"], {}, "number 1: format missing"),
    ([{"format": "files", "path": "/x"}], {}, "number 1: path is no option of this part"),
    ([{"format": "fils"}], {}, 'number 1: source "fils" is no source; did you mean "files"'),
    ([{"format": "cassandra"}], {}, "number 1: format cannot be cassandra"),
    ([{"format": "hybrid"}], {}, "number 1: format cannot be hybrid"),
    ([{"format": "files", "options": []}], {}, "number 1: options must be a JSON object"),
    ([{"format": "files", "columns": {"a": 1}}], {}, "number 1: columns must be names; got 1"),
    ([FILES, CLOCK], {"maxAge": "3"}, "maxage .*is no option of this source, which has .*, and of none of its parts"),
    ([{"format": "files", "options": {"Retry.maxRetries": 9}}], {}, "number 1: Retry.maxRetries holds for all parts"),
    ([QUEUE, FILES], {}, "has pubsub before another part, and a queue has no end"),
    ([FILES, FILES], {}, "two parts with the name files"),
    ([{"format": "files", "options": {"pth": "/x"}}], {}, 'files: pth .*did you mean "path"'),
    ([CLOCK, FILES], {"startFrom": "2023-01-01"}, "cannot be a time for connectors.files"),
    ([FILES, CLOCK], {"startFrom": "?!"}, "a time, or a column of times, less an overlap"),
    ([FILES, CLOCK], {"startFrom": "ts - soon"}, "a time, or a column of times, less an overlap"),
    ([FILES, CLOCK], {"startFrom": "ts"}, "stateLocation .*missing; startFrom=ts"),
    ([FILES, CLOCK], {"deduplicateBy": "id"}, "deduplicateBy .*startFrom"),
    ([FILES, CLOCK], {"deduplicateBy": "id", "startFrom": "2023-01-01"}, "needs a column in startFrom"),
    (
        [FILES, CLOCK],
        {"startFrom": "2023-01-01", "startingTime": "3"},
        "says where clock starts, and so does its startingTime",
    ),
    (
        [FILES, {"format": "clock", "options": {"path": "/x", "startingTime": 3}}],
        {"startFrom": "2023-01-01"},
        "says where clock starts, and so does its startingTime",
    ),
]


@pytest.mark.parametrize(("sources", "more", "error"), WRONG)
def test_what_cannot_work_is_refused(sources: Any, more: dict[str, str], error: str) -> None:
    with pytest.raises(Misconfigured, match=f"(?s){error}"):
        HybridSource.of({"sources": json.dumps(sources), **more}, streaming=True)


@pytest.mark.parametrize(
    ("more", "error"),
    [({"startFrom": "id"}, "names id, and the rows have no such column of type timestamp"),
     ({"startFrom": "ts", "deduplicateBy": "x"}, "names x, which the rows do not have: id, ts"),
     ({"startFrom": "ts", "deduplicateBy": "tags"}, "must name plain columns; tags is list")],
)  # fmt: skip
def test_columns_of_options_must_be_there(more: dict[str, str], error: str) -> None:
    source = HybridSource.of({"sources": json.dumps([FILES, CLOCK]), **more, **STATE}, streaming=True)
    with pytest.raises(Misconfigured, match=error):
        source.reader(SCHEMA if "tags" not in error else SCHEMA.append(pa.field("tags", pa.list_(pa.string()))))


def test_a_dot_in_the_name_of_a_column_is_no_field(parts: Parts) -> None:
    schema = pa.schema([("order.id", pa.int64())])
    (parts.folder / "a").mkdir()
    pq.write_table(pa.table([[1, 2]], schema=schema), parts.folder / "a" / "1.parquet")
    parts.parts = [{"format": "files", "options": {"path": str(parts.folder / "a")}}]
    parts.schema = schema
    assert SourceQuery(parts).rest([]) == [{"order.id": 1}, {"order.id": 2}]


@pytest.mark.parametrize("name", ["idd", "ID"])
def test_names_that_the_rows_do_not_have_are_refused(name: str) -> None:
    part = {**FILES, "columns": {name: "number"}}
    source = HybridSource.of({"sources": json.dumps([CLOCK, part])}, streaming=True)
    with pytest.raises(Misconfigured, match=f"files: columns names {name}, which the rows do not have: id, ts"):
        source.reader(SCHEMA)


def test_a_schema_is_needed_where_names_are_mapped() -> None:
    source = HybridSource.of({"sources": json.dumps([{**FILES, "columns": {"id": "number"}}])}, streaming=True)
    with pytest.raises(Misconfigured, match=r"give the types of the rows by \.schema"):
        source.schema  # noqa: B018


def test_secrets_of_parts_are_not_shown() -> None:
    parts = [{"format": "jdbc", "options": {"url": "jdbc:postgresql://h/d", "password": "hidden", "dbtable": 3}}]
    with pytest.raises(Misconfigured) as refused:
        HybridSource.of({"sources": json.dumps(parts), "startFrom": "?"}, streaming=True)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "MAXROWSPERTRIGGER", "maxOffsetsPerTrigger"])
def test_an_option_of_a_part_comes_before_that_of_all(name: str) -> None:
    clock = {"format": "clock", "options": {"path": "/x", name: 5}}
    source: Any = HybridSource.of({"sources": json.dumps([FILES, clock]), "maxRowsPerTrigger": "10"}, streaming=True)
    assert source.member(source.parts[1], None).limit().rows == 5


def test_a_time_is_in_milliseconds() -> None:
    source: Any = HybridSource.of({"sources": json.dumps([FILES, CLOCK]), "startFrom": "2023-01-01"}, streaming=True)
    assert source.member(source.parts[1], 0).values["startingTime"] == BEGIN.timestamp() * 1000


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


def test_a_source_of_ones_own_that_cannot_be_imported_elsewhere_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere: Any = ModuleType("elsewhere")
    elsewhere.Lost = type("Lost", (ClockSource,), {"name": "lost", "__module__": "elsewhere"})
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "elsewhere", elsewhere)
        patched.setitem(systems._ADDED, "lost", (elsewhere.Lost, None))
        pickled = cloudpickle.dumps(OwnSources())
    monkeypatch.setattr(systems, "_ADDED", {})
    pickle.loads(pickled)
    assert "lost" not in systems._ADDED
    assert systems.source_class("clock") is ClockSource


def test_an_option_above_the_parts_is_that_of_all_that_know_it() -> None:
    parts = [{**FILES, "options": {}}, {"format": "files", "name": "b", "options": {"path": "/b", "maxFilesPerTrigger": 3}}]
    options = {"path": "/a", "MAXFILESPERTRIGGER": "5", "retry.maxRetries": "7", "startingTime": "1"}
    source: Any = HybridSource.of({"sources": json.dumps([*parts, CLOCK]), **options}, streaming=True)
    first, second, clock = (source.member(part, None).values for part in source.parts)
    assert (first["path"], second["path"]) == ("/a", "/b")
    assert (first["maxFilesPerTrigger"], second["maxFilesPerTrigger"]) == (5, 3)
    assert (first["retry.maxRetries"], clock["retry.maxRetries"], clock["startingTime"]) == (7, 7, 1)

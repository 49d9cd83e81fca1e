"""Which rows of the overlap of two parts have been read."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Fatal, StateError, Transient
from connectors.storage import storage_of
from connectors.systems.hybrid.overlap import Overlap, Recent
from connectors.testing.source_suite import SourceQuery

from .contexts import BEGIN, SCHEMA, Parts, row, rows


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

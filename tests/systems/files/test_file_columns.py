"""How a column of a file becomes one of the query: by its name, in whatever case, and without a change of any value."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from connectors.core import Fatal
from connectors.systems.files import FilesSource
from connectors.systems.files.source import FilesReader, Listing, WholeFile

TIME = pa.timestamp("us", "UTC")
NOON = datetime.datetime(2024, 1, 31, 12)


def read(folder: Path, kind: str, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of all files below ``folder``."""
    listing = Listing(str(folder), {}, recursive=True)
    reader = FilesReader(listing, kind, schema, True)
    files = [WholeFile(file.path, file.size, file.changed) for file in listing]
    return [row for file in files for rows in reader.read(file) for row in rows.to_pylist()]


def write(folder: Path, kind: str, rows: pa.Table) -> None:
    if kind == "avro":
        fields = [{"name": name, "type": "long"} for name in rows.schema.names]
        with (folder / "a.avro").open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, rows.to_pylist())
    else:
        {"parquet": pq.write_table, "orc": orc.write_table}[kind](rows, str(folder / f"a.{kind}"))


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_a_column_may_have_another_case_in_the_file(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind, pa.table({"ID": [1, 2]}))
    assert read(tmp_path, kind, pa.schema([("id", pa.int64())])) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_a_column_of_the_same_case_wins(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind, pa.table({"ID": [1], "id": [2]}))
    assert read(tmp_path, kind, pa.schema([("id", pa.int64())])) == [{"id": 2}]


@pytest.mark.parametrize("names", [("ID", "Id"), ("id", "id")])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, names: tuple[str, str]) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=names), tmp_path / "a.parquet")
    with pytest.raises(Fatal, match=rf'"id" is there more than once: {names[0]}, {names[1]}'):
        read(tmp_path, "parquet", pa.schema([("id", pa.int64())]))


def test_the_folder_of_a_column_and_a_nested_field_may_have_another_case(tmp_path: Path) -> None:
    (tmp_path / "Year=2024").mkdir()
    rows = pa.table({"item": [{"Price": 1, "more": 2}, None], "items": [[{"Price": 3}], None]})
    pq.write_table(rows, tmp_path / "Year=2024" / "a.parquet")
    kind = pa.struct([("price", pa.int64()), ("new", pa.string())])
    schema = pa.schema([("year", pa.int32()), ("item", kind), ("items", pa.list_(kind))])
    first = {"year": 2024, "item": {"price": 1, "new": None}, "items": [{"price": 3, "new": None}]}
    assert read(tmp_path, "parquet", schema) == [first, {"year": 2024, "item": None, "items": None}]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1_700_000_000, TIME),
        (20240131, pa.date32()),
        (NOON, pa.int64()),
        (NOON, pa.date32()),
        (5, pa.bool_()),
        (1e300, pa.float32()),
        (0.1, pa.float32()),
        (1.005, pa.decimal128(10, 2)),
        (Decimal("123456789012345678.12"), pa.float64()),
        ({"at": [{"x": 1.005}]}, pa.struct([("at", pa.list_(pa.struct([("x", pa.decimal128(10, 2))])))])),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(tmp_path: Path, value: Any, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"a": [value, None]}), tmp_path / "a.parquet")
    with pytest.raises(Fatal, match='the column "a" is'):
        read(tmp_path, "parquet", pa.schema([("a", kind)]))


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pa.array([5], pa.int32()), pa.int64(), 5),
        (pa.array([2**53]), pa.float64(), 2.0**53),
        (pa.array([0.5]), pa.float32(), 0.5),
        (pa.array([0.5], pa.float16()), pa.float32(), 0.5),
        (pa.array([float("-inf")]), pa.float32(), float("-inf")),
        (pa.array([0.1]), pa.decimal128(10, 2), Decimal("0.10")),
        (pa.array([Decimal("1.50")]), pa.float64(), 1.5),
        (pa.array([5]), pa.string(), "5"),
        (pa.array(["x"]).dictionary_encode(), pa.string(), "x"),
        (pa.array([datetime.date(2024, 1, 31)]), pa.timestamp("us"), datetime.datetime(2024, 1, 31)),
        (pa.array([NOON], pa.timestamp("ms")), pa.timestamp("us"), NOON),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.list_(pa.int64()), [1, 2]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    ],
    ids=str,
)
def test_a_column_of_another_type_keeps_its_values(tmp_path: Path, column: pa.Array, kind: pa.DataType, expected: Any) -> None:
    rows = pa.table({"a": pa.concat_arrays([column, pa.nulls(1, column.type)])})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert read(tmp_path, "parquet", pa.schema([("a", kind)])) == [{"a": expected}, {"a": None}]


def test_a_union_of_avro_is_read_as_the_columns_that_it_is_shown_as(tmp_path: Path) -> None:
    records = [{"type": "record", "name": name, "fields": [{"name": name, "type": "long"}]} for name in ("p", "q")]
    kinds = {"either": records, "mixed": ["null", "long", "string"], "at": {"type": "int", "logicalType": "time-millis"}}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    rows = [
        {"either": ("p", {"p": 1}), "mixed": 2, "at": datetime.time(1)},
        {"either": ("q", {"q": 3}), "mixed": "x", "at": datetime.time(2)},
        {"either": ("q", {"q": 4}), "mixed": None, "at": datetime.time(3)},
    ]
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, rows, codec="deflate")
    shown = FilesSource.of({"path": str(tmp_path), "fileFormat": "avro"}).schema
    either = "struct<`member0`: struct<`p`: bigint>, `member1`: struct<`q`: bigint>>"
    assert shown == f"`either` {either}, `mixed` struct<`member0`: bigint, `member1`: string>, `at` int"
    members = pa.struct([("member0", pa.struct([("p", pa.int64())])), ("member1", pa.struct([("q", pa.int64())]))])
    mixed = pa.struct([("member0", pa.int64()), ("member1", pa.string())])
    assert read(tmp_path, "avro", pa.schema([("either", members), ("mixed", mixed), ("at", pa.int32())])) == [
        {"either": {"member0": {"p": 1}, "member1": None}, "mixed": {"member0": 2, "member1": None}, "at": 3_600_000},
        {"either": {"member0": None, "member1": {"q": 3}}, "mixed": {"member0": None, "member1": "x"}, "at": 7_200_000},
        {"either": {"member0": None, "member1": {"q": 4}}, "mixed": None, "at": 10_800_000},
    ]

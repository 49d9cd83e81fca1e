"""What the source of DynamoDB reads: every item once, each type, and what a busy service does to a scan."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.core.writing import stage
from connectors.systems.dynamodb import DynamoDbSink, DynamoDbSource
from connectors.testing.contexts import open_context
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen

from .contexts import ItemsContext

pytestmark = pytest.mark.server
IDS = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ItemsContext]:
    with open_context(ItemsContext, tmp_path / "table") as context:
        yield context


@pytest.fixture
def proxy(table: ItemsContext) -> Iterator[FaultProxy]:
    with FaultProxy(table.server.url) as proxy:
        yield proxy


def source_of(context: ItemsContext, **options: str) -> DynamoDbSource:
    own = {name: value for name, value in context.options().items() if name != "keyColumns"}
    source = DynamoDbSource.of({**own, **options})
    assert isinstance(source, DynamoDbSource)
    return source


def read(source: DynamoDbSource, schema: pa.Schema) -> list[dict[str, Any]]:
    parts = Planner(source).whole()
    return [row for part in parts for batch in read_slice(source, part, schema) for row in batch.to_pylist()]


def put(table: ItemsContext, rows: pa.Table) -> None:
    stage(DynamoDbSink.of(table.options()), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))


def wide(count: int) -> pa.Table:
    """Items of which a page has about a hundred."""
    return pa.table({"id": list(range(count)), "name": ["x" * 10_000] * count})


@pytest.mark.parametrize("segments", ["1", "2", "7"])
def test_every_item_of_every_segment_is_read_once(table: ItemsContext, segments: str) -> None:
    put(table, pa.table({"id": list(range(300)), "name": ["x"] * 300}))
    source = source_of(table, segments=segments)
    assert len(Planner(source).whole()) == int(segments)
    assert sorted(row["id"] for row in read(source, IDS)) == list(range(300))


def test_all_pages_of_a_segment_are_read_and_only_the_columns_are_asked_for(table: ItemsContext, proxy: FaultProxy) -> None:
    put(table, wide(400))
    rows = read(source_of(table, endpoint=proxy.url, segments="2"), IDS)
    assert sorted(row["id"] for row in rows) == list(range(400))
    scans = [json.loads(request.body) for request in proxy.seen]
    assert sum("ExclusiveStartKey" in scan for scan in scans) >= 2
    assert all(scan["ExpressionAttributeNames"] == {"#0": "id"} and scan["TotalSegments"] == 2 for scan in scans)


def test_what_the_sink_has_written_comes_back_with_its_types_and_digits(table: ItemsContext) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.timezone.utc)
    values: dict[str, tuple[Any, pa.DataType]] = {
        "id": (1, pa.int64()),
        "text": ("ä", pa.string()),
        "yes": (True, pa.bool_()),
        "bytes": (b"\x00\xff", pa.binary()),
        "long": (-(2**63), pa.int64()),
        "double": (0.1 + 0.2, pa.float64()),
        "price": (Decimal("12345678901234567890.123456789012345678"), pa.decimal128(38, 18)),
        "moment": (moment, pa.timestamp("us", "UTC")),
        "day": (moment.date(), pa.date32()),
        "list": ([1, None], pa.list_(pa.int32())),
        "map": ([("a", 1.5)], pa.map_(pa.string(), pa.float64())),
        "struct": ({"a": "x", "b": None}, pa.struct([("a", pa.string()), ("b", pa.int8())])),
        "nothing": (None, pa.string()),
    }
    schema = pa.schema([(name, kind) for name, (_, kind) in values.items()])
    rows = pa.table({name: pa.array([value], kind) for name, (value, kind) in values.items()}, schema=schema)
    put(table, rows)
    assert read(source_of(table), schema) == rows.to_pylist()


def test_columns_are_inferred(table: ItemsContext) -> None:
    table.client.put_item(
        TableName=table.table,
        Item={
            "id": {"N": "1"},
            "price": {"N": "1.5"},
            "whole": {"N": "9223372036854775807"},
            "huge": {"N": "1" + "0" * 30},
            "raw": {"B": b"x"},
            "tags": {"SS": ["a"]},
            "place": {"M": {"city": {"S": "Bern"}, "height": {"N": "542.5"}}},
            "mixed": {"S": "x"},
            "empty": {"NULL": True},
        },
    )
    table.client.put_item(TableName=table.table, Item={"id": {"N": "2"}, "price": {"N": "2"}, "mixed": {"N": "3.50"}})
    source = source_of(table)
    columns = {
        "id": "bigint",
        "price": "decimal(38,18)",
        "whole": "bigint",
        "huge": "decimal(38,0)",
        "raw": "binary",
        "tags": "array<string>",
        "place": "struct<`city`: string, `height`: decimal(38,18)>",
        "mixed": "string",
        "empty": "string",
    }
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    assert sorted(source.schema.split(", `")) == sorted(declared.split(", `"))
    huge = pa.schema([("id", pa.int64()), ("huge", pa.decimal128(38, 0))])
    assert {row["huge"] for row in read(source, huge)} == {None, Decimal(10) ** 30}
    mixed = pa.schema([("id", pa.int64()), ("mixed", pa.string())])
    assert sorted(row["mixed"] for row in read(source, mixed)) == ["3.50", "x"]


@pytest.mark.parametrize("fault", ["connection", "throttled"])
def test_a_scan_goes_on_with_the_page_at_which_it_was_interrupted(table: ItemsContext, proxy: FaultProxy, fault: str) -> None:
    put(table, wide(400))
    busy = json.dumps({"__type": "com.amazonaws#ProvisionedThroughputExceededException", "message": "slow down"})
    starts: list[Any] = []

    def rule(request: Seen, forward: Any) -> Reply | None:
        starts.append(json.loads(request.body).get("ExclusiveStartKey"))
        if len(starts) % 2 == 0:
            return Reply(400, busy.encode()) if fault == "throttled" else None
        return Reply(200, forward().body)

    proxy.rule = rule
    rows = read(source_of(table, endpoint=proxy.url, segments="1"), IDS)
    assert sorted(row["id"] for row in rows) == list(range(400))
    assert starts.count(None) == 1, "the scan never begins anew"
    assert len(starts) > 4


def test_an_item_that_does_not_fit_is_named(table: ItemsContext) -> None:
    put(table, pa.table({"id": [1], "name": ["x"]}))
    with pytest.raises(Fatal, match=r"does not fit the columns: .*name"):
        read(source_of(table), pa.schema([("name", pa.int64())]))


def test_a_table_without_items_needs_a_schema(table: ItemsContext) -> None:
    with pytest.raises(Misconfigured, match=r"has no items that would show it; give \.schema"):
        print(source_of(table).schema)
    assert read(source_of(table), IDS) == []


def test_a_table_that_does_not_exist_is_named(table: ItemsContext) -> None:
    with pytest.raises(Fatal, match="the table nowhere does not exist"):
        read(source_of(table, table="nowhere"), IDS)


def test_a_stream_is_refused(table: ItemsContext) -> None:
    with pytest.raises(Misconfigured, match="is read as a batch only"):
        DynamoDbSource.of({"table": "t", "region": "us-east-1"}, streaming=True)


def test_segments_and_partitions_are_the_same() -> None:
    with pytest.raises(Misconfigured, match="is given beside numPartitions"):
        DynamoDbSource.of({"table": "t", "segments": "2", "numPartitions": "3"})


@pytest.mark.spark
def test_spark_reads_a_table_by_its_inferred_columns(table: ItemsContext, spark: Any) -> None:
    put(table, pa.table({"id": list(range(50)), "price": [number / 4 for number in range(50)]}))
    own = {name: value for name, value in table.options().items() if name != "keyColumns"}
    frame = spark.read.format("connectors.dynamodb").options(**own).load()
    assert dict(frame.dtypes) == {"id": "bigint", "price": "decimal(38,18)"}
    assert sorted((row["id"], float(row["price"])) for row in frame.collect()) == [(id, id / 4) for id in range(50)]

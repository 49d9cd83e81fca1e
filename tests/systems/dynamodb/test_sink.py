"""What the sink of DynamoDB writes: types, keys, versions and deletions; and what a busy service does not process."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.dynamodb import DynamoDbSink
from connectors.testing.contexts import open_context
from connectors.testing.servers import DynamoDbServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from tests.servers import optional

from .contexts import ACCOUNT, ItemsContext

pytestmark = pytest.mark.server


class Ranges(ItemsContext):
    """A key of two attributes."""

    keys: ClassVar = {"device": "S", "at": "N"}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ItemsContext]:
    with open_context(ItemsContext, tmp_path / "target") as context:
        yield context


@pytest.fixture
def proxy(target: ItemsContext) -> Iterator[FaultProxy]:
    with FaultProxy(target.server.url) as proxy:
        yield proxy


def write(target: ItemsContext, rows: pa.Table, **options: str) -> Any:
    """What a task that writes rows says."""
    sink = DynamoDbSink.of({**target.options(), **options})
    return stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))


def numbered(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": list(numbers), "name": [f"n{number}" for number in numbers]})


def test_each_type_has_its_attribute_and_numbers_keep_their_digits(target: ItemsContext) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.timezone.utc)
    values: dict[str, tuple[Any, pa.DataType, Any]] = {
        "text": ("ä", pa.string(), {"S": "ä"}),
        "empty": ("", pa.string(), {"S": ""}),
        "yes": (True, pa.bool_(), {"BOOL": True}),
        "bytes": (b"\x00\xff", pa.binary(), {"B": b"\x00\xff"}),
        "long": (2**63 - 1, pa.int64(), {"N": "9223372036854775807"}),
        "tenth": (0.1, pa.float64(), {"N": "0.1"}),
        "sum": (0.1 + 0.2, pa.float64(), {"N": "0.30000000000000004"}),
        "floats": ([0.1 + 0.2], pa.list_(pa.float64()), {"L": [{"N": "0.30000000000000004"}]}),
        "single": (0.1, pa.float32(), {"N": "0.1"}),
        "price": (Decimal("12345678901234567890.123456789012345678"), pa.decimal128(38, 18), None),
        "moment": (moment, pa.timestamp("us", "UTC"), {"S": "2026-01-02T03:04:05.678901Z"}),
        "day": (moment.date(), pa.date32(), {"S": "2026-01-02"}),
        "list": ([1, None], pa.list_(pa.int32()), {"L": [{"N": "1"}, {"NULL": True}]}),
        "map": ([("a", 1.5)], pa.map_(pa.string(), pa.float64()), {"M": {"a": {"N": "1.5"}}}),
        "struct": ({"a": "x", "b": None}, pa.struct({"a": pa.string(), "b": pa.int8()}), {"M": {"a": {"S": "x"}}}),
        "nothing": (None, pa.string(), None),
    }
    columns = {name: pa.array([value], kind) for name, (value, kind, _) in values.items()}
    write(target, pa.table({"id": [1], **columns}))
    (item,) = target.items()
    assert item["price"] == {"N": "12345678901234567890.123456789012345678"}
    assert "nothing" not in item
    for name, (_, _, expected) in values.items():
        if expected is not None:
            assert item[name] == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200, 1e-200])
def test_a_number_that_the_service_has_not_is_a_bad_row(target: ItemsContext, value: float) -> None:
    rows = pa.table({"id": [1, 2], "value": [value, 1.5]})
    write(target, rows, errors="skip")
    assert target.rows() == [{"id": 2, "value": Decimal("1.5")}]
    with pytest.raises(Poison, match='the column "value" is'):
        write(target, rows)


def test_requests_have_25_items_and_16_mb(target: ItemsContext, proxy: FaultProxy) -> None:
    write(target, numbered(120), endpoint=proxy.url)
    requests = [json.loads(call.body)["RequestItems"][target.table] for call in proxy.seen if b"RequestItems" in call.body]
    assert max(map(len, requests)) == 25
    assert len(target.rows()) == 120


def test_the_last_row_of_a_key_wins(target: ItemsContext) -> None:
    rows = pa.table({"id": [number % 7 for number in range(500)], "name": [f"n{number}" for number in range(500)]})
    write(target, rows)
    assert {row["id"]: row["name"] for row in target.rows()} == {number % 7: f"n{number}" for number in range(493, 500)}


def test_a_key_may_have_two_columns_and_the_table_says_which(tmp_path: Path) -> None:
    with open_context(Ranges, tmp_path / "target") as target:
        rows = pa.table({"device": ["a", "a", "b"], "at": [1, 2, 1], "value": [1, 2, 3]})
        write(target, rows, keyColumns="")
        write(target, rows.slice(1), keyColumns="device,at")
        written = sorted((row["device"], row["at"], row["value"]) for row in target.rows())
        assert written == [("a", 1, 1), ("a", 2, 2), ("b", 1, 3)]
        with pytest.raises(Misconfigured, match="has the key device, at, and the rows have no column at"):
            write(target, rows.drop(["at"]), keyColumns="")


def test_a_row_with_a_true_in_the_delete_column_deletes(target: ItemsContext) -> None:
    write(target, numbered(4))
    rows = pa.table({"id": [0, 1, 2], "name": ["x", "y", "z"], "gone": [True, False, None]})
    write(target, rows, deleteColumn="gone")
    write(target, rows, deleteColumn="gone")
    assert sorted((row["id"], row["name"]) for row in target.rows()) == [(1, "y"), (2, "z"), (3, "n3")]
    assert all("gone" not in row for row in target.rows())


def test_a_row_that_deletes_is_not_bad_for_what_the_service_does_not_get(target: ItemsContext) -> None:
    write(target, numbered(4))
    values = [float("nan"), 1.0, 2.0, None]
    rows = pa.table({"id": [0, 1, 2, None], "name": ["a", "y" * (500 << 10), "c", "d"], "value": values})
    write(target, rows.append_column("gone", pa.array([True, True, False, True])), deleteColumn="gone", errors="skip")
    assert sorted(target.items(), key=lambda item: str(item["id"]["N"])) == [
        {"id": {"N": "2"}, "name": {"S": "c"}, "value": {"N": "2"}},
        {"id": {"N": "3"}, "name": {"S": "n3"}},
    ]
    with pytest.raises(Poison, match='the column "id" is null'):
        write(target, rows.append_column("gone", pa.array([True] * 4)), deleteColumn="gone")


def test_an_older_row_never_replaces_a_newer_one(target: ItemsContext) -> None:
    def rows(name: str, *versions: int) -> pa.Table:
        return pa.table({"id": list(range(len(versions))), "name": [name] * len(versions), "version": list(versions)})

    write(target, rows("first", 5, 5, 5), orderColumn="version")
    staged = write(target, rows("second", 4, 5, 6), orderColumn="version")
    assert [row["name"] for row in sorted(target.rows(), key=lambda row: row["id"])] == ["first", "first", "second"]
    assert staged.data["stale"] == 2
    gone = rows("third", 4, 9, 4).append_column("gone", pa.array([True, True, False]))
    write(target, gone, orderColumn="version", deleteColumn="gone")
    assert sorted(row["id"] for row in target.rows()) == [0, 2], "a deletion that is older changes nothing"
    many = pa.table({"id": [1] * 40, "name": ["x"] * 40, "version": [number * 7 % 40 for number in range(40)]})
    write(target, many, orderColumn="version")
    assert next(row["version"] for row in target.rows() if row["id"] == 1) == 39


class Local(ItemsContext):
    """A table of Amazon's own DynamoDB: moto fails where versions cannot be compared."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = optional(DynamoDbServer)  # type: ignore[assignment]


def test_a_version_that_cannot_be_compared_with_the_items_is_no_older_one(tmp_path: Path) -> None:
    with open_context(Local, tmp_path / "target") as target:
        target.client.put_item(TableName=target.table, Item={"id": {"N": "1"}, "version": {"S": "5"}})
        rows = pa.table({"id": [1, 2], "version": [7, 7], "gone": [False, False]})
        for row in (rows, rows.set_column(2, "gone", [[True, False]])):
            with pytest.raises(Poison, match=r'id 1 has a version \(orderColumn "version"\) of the type N, .* of the type S'):
                write(target, row, orderColumn="version", deleteColumn="gone")
        staged = write(target, rows, orderColumn="version", deleteColumn="gone", errors="skip")
        assert (staged.rejected, staged.data["stale"]) == (1, 1), "the other one was written before"
        assert sorted((row["id"], row["version"]) for row in target.rows()) == [(1, "5"), (2, 7)]


class Texts(ItemsContext):
    """A key of two texts."""

    keys: ClassVar = {"first": "S", "second": "S"}


def test_keys_whose_parts_read_alike_in_a_row_are_two_keys(tmp_path: Path) -> None:
    with open_context(Texts, tmp_path / "target") as target:
        write(target, pa.table({"first": ["a\x1fSb", "a"], "second": ["c", "b\x1fSc"]}))
        assert len(target.rows()) == 2


def test_a_request_has_each_key_once_and_the_last_row_of_it_wins(target: ItemsContext, proxy: FaultProxy) -> None:
    """The service refuses a request that has a key twice; moto takes it."""
    rows = pa.table({"id": [number % 7 for number in range(60)], "name": [f"n{number}" for number in range(60)]})
    write(target, rows, endpoint=proxy.url)
    for call in proxy.seen:
        (requests,) = json.loads(call.body)["RequestItems"].values()
        keys = [request["PutRequest"]["Item"]["id"]["N"] for request in requests]
        assert len(keys) == len(set(keys))
    assert {row["id"]: row["name"] for row in target.rows()} == {number % 7: f"n{number}" for number in range(53, 60)}


def unprocessed(places: Callable[[int, int], set[int]]) -> Callable[[Seen, Callable[..., Reply]], Reply]:
    """A rule that leaves items out: ``places`` says which, by the number of the request and its size."""
    count = 0

    def rule(call: Seen, forward: Callable[..., Reply]) -> Reply:
        nonlocal count
        count += 1
        ((table, requests),) = json.loads(call.body)["RequestItems"].items()
        left = places(count, len(requests))
        good = [request for place, request in enumerate(requests) if place not in left]
        bad = [request for place, request in enumerate(requests) if place in left]
        if good:
            forward(json.dumps({"RequestItems": {table: good}}).encode())
        return Reply(200, json.dumps({"UnprocessedItems": {table: bad} if bad else {}}).encode())

    return rule


def test_only_the_items_that_were_not_processed_are_sent_again(target: ItemsContext, proxy: FaultProxy) -> None:
    sizes: list[int] = []

    def places(number: int, size: int) -> set[int]:
        sizes.append(size)
        return {0, size // 2} if number < 4 else set()

    proxy.rule = unprocessed(places)
    write(target, numbered(100), endpoint=proxy.url)
    assert len(target.rows()) == 100
    assert sum(sizes) == 106, "three requests of two items each came again"


def test_a_busy_table_is_waited_for_within_the_outage_timeout(target: ItemsContext, proxy: FaultProxy) -> None:
    proxy.rule = unprocessed(lambda number, size: {0} if number < 4 else set())
    write(target, numbered(20), endpoint=proxy.url, **{"retry.maxRetries": "1"})
    assert len(target.rows()) == 20


def test_what_the_service_refuses_is_a_bad_row_and_the_others_are_written(target: ItemsContext) -> None:
    rows = pa.table({"id": ["a text", "1"], "name": ["x", "y"]})
    with pytest.raises(Poison, match="ValidationException"):
        write(target, rows)
    large = pa.table({"id": [1, 2, 3], "name": ["x", "y" * (500 << 10), "z"]})
    write(target, large, errors="skip")
    assert sorted(row["id"] for row in target.rows()) == [1, 3]


def test_a_request_that_is_too_large_as_json_is_sent_in_parts(target: ItemsContext, proxy: FaultProxy) -> None:
    large = Reply(413, b"", {"Content-Type": "application/x-amz-json-1.0"})
    proxy.rule = lambda request, forward: large if request.body.count(b"PutRequest") > 6 else forward()
    write(target, numbered(25), endpoint=proxy.url)
    assert len(target.rows()) == 25


def test_a_null_in_the_key_is_a_bad_row(target: ItemsContext) -> None:
    write(target, pa.table({"id": [1, None], "name": ["a", "b"]}), errors="skip")
    assert target.rows() == [{"id": 1, "name": "a"}]


def test_a_table_that_does_not_exist_is_named(target: ItemsContext) -> None:
    with pytest.raises(Fatal, match="the table nowhere does not exist"):
        write(target, numbered(1), table="nowhere")


def test_what_no_retry_mends_is_one_error_within_seconds(
    target: ItemsContext, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    denied = {"__type": "AccessDeniedException", "message": "not authorized to perform dynamodb:BatchWriteItem"}
    proxy.rule = lambda *_: Reply(400, json.dumps(denied).encode(), {"Content-Type": "application/x-amz-json-1.0"})
    own, staged = {**target.options(), "endpoint": proxy.url}, {"guarantee": "exactly-once", "stagingLocation": str(tmp_path)}
    began = time.monotonic()
    for more in ({}, staged):
        for without, kind, text in (
            ({"region"}, Misconfigured, "region +missing, and the environment names none"),
            ({"accessKeyId", "secretAccessKey"}, Fatal, r"AWS gets no credentials for the table [\s\S]*give accessKeyId"),
            (set(), Fatal, r"AWS refuses access to the table [\s\S]*dynamodb:BatchWriteItem[\s\S]*grant the role"),
        ):
            options = {name: value for name, value in own.items() if name not in without}
            rows = numbered(1)
            with pytest.raises(kind, match=text):
                stage(DynamoDbSink.of({**options, **more}), Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    assert time.monotonic() - began < 20


def test_columns_that_are_not_the_tables_key_are_named(tmp_path: Path, target: ItemsContext, proxy: FaultProxy) -> None:
    with open_context(Ranges, tmp_path / "ranges") as ranges:
        schema = pa.schema([("device", pa.string()), ("at", pa.int64())])
        DynamoDbSink.of(ranges.options()).check_target(schema)
        with pytest.raises(Misconfigured, match=r"keyColumns +must be the table's key, device, at; got device\."):
            DynamoDbSink.of({**ranges.options(), "keyColumns": "device"}).check_target(schema)
    denied = {"__type": "AccessDeniedException", "message": "not authorized to perform dynamodb:DescribeTable"}
    proxy.rule = lambda *_: Reply(400, json.dumps(denied).encode(), {"Content-Type": "application/x-amz-json-1.0"})
    DynamoDbSink.of({**target.options(), "endpoint": proxy.url}).check_target(schema)
    proxy.rule = lambda *_: None
    DynamoDbSink.of({**target.options(), "endpoint": proxy.url}).check_target(schema)


def test_a_ledger_that_may_not_be_made_is_named(target: ItemsContext, proxy: FaultProxy, tmp_path: Path) -> None:
    def refuse(request: Seen, forward: Callable[..., Reply]) -> Reply:
        if request.headers["X-Amz-Target"].endswith("CreateTable"):
            denied = {"__type": "AccessDeniedException", "message": "not authorized to perform dynamodb:CreateTable"}
            return Reply(400, json.dumps(denied).encode(), {"Content-Type": "application/x-amz-json-1.0"})
        return forward()

    proxy.rule = refuse
    own = {"endpoint": proxy.url, "guarantee": "exactly-once", "stagingLocation": str(tmp_path), "ledgerTable": "none-yet"}
    sink = DynamoDbSink.of({**target.options(), **own})
    with pytest.raises(Fatal, match=r"refuses access to the table none-yet \(ledgerTable\): [\s\S]*dynamodb:CreateTable"):
        Commit(sink).begin(Batch(sink.sink_id(), "q", 0))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, r"table +missing"),
        ({"table": "t", "batch.maxRecords": "26"}, r"batch.maxRecords +must be 25 or less"),
        ({"table": "t", "keyColumns": "a,b,c"}, r"keyColumns +must be one or two"),
        ({"table": "t", "orderColumn": "v", "batch.maxRecords": "5"}, r"batch.maxRecords +has no use with orderColumn"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        DynamoDbSink.of({**ACCOUNT, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keyColumns": "key"}, 'keyColumns +names the column "key"'),
        ({"orderColumn": "v"}, 'orderColumn +names the column "v"'),
        ({"deleteColumn": "name"}, 'deleteColumn +must be a boolean column; "name" is string'),
        ({"orderColumn": "list"}, "orderColumn +must be a column of numbers, times or text"),
        ({"orderColumn": "new"}, 'orderColumn +must be a column of numbers, times or text; "new" is bool'),
    ],
)
def test_wrong_columns_are_named(target: ItemsContext, options: dict[str, str], text: str) -> None:
    rows = numbered(1).append_column("list", pa.array([[1]])).append_column("new", pa.array([True]))
    with pytest.raises(Misconfigured, match=text):
        write(target, rows, **options)


def test_a_type_without_a_form_is_named(target: ItemsContext) -> None:
    rows = numbered(1).append_column("wait", pa.array([datetime.timedelta(1)]))
    with pytest.raises(Misconfigured, match=r'takes no column of duration\[us\], which "wait" is'):
        write(target, rows)

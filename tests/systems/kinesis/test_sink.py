"""The sink of Kinesis: limits, keys, order, partial failures; and that of Firehose, which stands on the same engine."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Poison
from connectors.core.writing import stage
from connectors.systems.firehose import FirehoseSink
from connectors.systems.kinesis import KinesisSink
from connectors.testing import SinkSuite
from connectors.testing.servers import MotoServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from tests.servers import required

from .contexts import ACCOUNT, PutContext

pytestmark = pytest.mark.server


class TestPut(SinkSuite):
    context = PutContext


@pytest.fixture
def target(tmp_path: Path) -> PutContext:
    return PutContext(tmp_path)


@pytest.fixture
def proxy(target: PutContext) -> Iterator[FaultProxy]:
    with FaultProxy(target.server.url) as proxy:
        yield proxy


def write(sink: type[Any], options: Mapping[str, str], rows: pa.Table, **more: str) -> int:
    batches = rows.to_batches()
    staged = stage(sink.of({**options, **more}), Batch("s", "q", 0), rows.schema, 0, iter(batches))
    return int(staged.rows)


def data(target: PutContext) -> list[str]:
    return [record["Data"].decode() for record in target.server.records(target.stream)]


def numbered(count: int, keys: int = 5) -> pa.Table:
    numbers = range(count)
    return pa.table({"data": [str(number) for number in numbers], "key": [f"key-{number % keys}" for number in numbers]})


def body(call: Seen) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(call.body)
    return request


COLUMNS = {"dataColumn": "data", "partitionKeyColumn": "key"}


def test_rows_become_json_or_the_column_that_is_named(target: PutContext) -> None:
    rows = pa.table({"id": [1, 2], "name": ["ä", None]})
    write(KinesisSink, target.options(), rows)
    write(KinesisSink, target.options(), rows.slice(0, 1), dataColumn="name")
    assert sorted(data(target)) == ['{"id":1,"name":"ä"}', '{"id":2,"name":null}', "ä"]


def test_the_keys_are_those_of_the_columns_and_random_without(target: PutContext) -> None:
    rows = pa.table({"data": ["a", "b"], "key": ["x", "y"], "hash": ["5", None]})
    write(KinesisSink, target.options(), rows, dataColumn="data", partitionKeyColumn="key", explicitHashKeyColumn="hash")
    write(KinesisSink, target.options(), rows, dataColumn="data")
    keys = [record["PartitionKey"] for record in target.server.records(target.stream)]
    assert sorted(keys)[2:] == ["x", "y"] or {"x", "y"} < set(keys)
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"data": "a", "key": ""}, "partition key must have 1 to 256 characters"),
        ({"data": "a", "key": "k" * 257}, "partition key must have 1 to 256 characters"),
        ({"data": "a", "key": "😀" * 129}, "partition key must have 1 to 256 characters"),
        ({"data": "a", "key": None}, "partition key must have 1 to 256 characters; it is None"),
        ({"data": None, "key": "k"}, 'the column "data" is null'),
        ({"data": "x" * (1 << 20), "key": "k"}, "more than the 1048576 that a request may have"),
    ],
)
def test_a_row_that_cannot_be_put_is_a_bad_row(target: PutContext, row: dict[str, Any], text: str) -> None:
    rows = pa.Table.from_pylist([{"data": "good", "key": "k"}, row], pa.schema([("data", pa.string()), ("key", pa.string())]))
    with pytest.raises(Poison, match=text):
        write(KinesisSink, target.options(), rows, **COLUMNS)
    assert write(KinesisSink, target.options(), rows, **COLUMNS, errors="skip") == 1
    assert set(data(target)) <= {"good"}


def test_a_hash_key_is_a_number_also_with_zeros_before_it_and_others_are_bad_rows(target: PutContext) -> None:
    columns = {**COLUMNS, "explicitHashKeyColumn": "hash"}
    hashes = ["0", "007", "0" * 39, str((1 << 128) - 1), "1" * 5000, "²", "\u0661", "+5", "", str(1 << 128)]
    rows = pa.table({"data": [*"abcdefghij"], "key": ["k"] * 10, "hash": hashes})
    assert write(KinesisSink, target.options(), rows, **columns, errors="skip") == 4
    assert sorted(data(target)) == ["a", "b", "c", "d"]


@pytest.mark.soak
def test_a_request_keeps_the_limits_of_the_service(target: PutContext, proxy: FaultProxy) -> None:
    rows = pa.table({"data": ["x" * 9000] * 1200})
    slow = {"batch.maxBytes": "4MB", "request.timeout": "5 minutes"}  # the stand-in, on a busy machine
    write(KinesisSink, {**target.options(), "endpoint": proxy.url}, rows, dataColumn="data", **slow)
    requests = [body(call)["Records"] for call in proxy.seen]
    assert sum(map(len, requests)) == 1200
    assert max(map(len, requests)) <= 500
    assert max(9016 * len(request) for request in requests) <= 4 << 20


def failing(target: PutContext, places: Callable[[int, list[Any]], set[int]]) -> Callable[[Seen, Callable[..., Reply]], Reply]:
    """A rule that refuses records of a request: ``places`` says which, by the number of the request and its records."""
    count = 0

    def rule(call: Seen, forward: Callable[..., Reply]) -> Reply:
        nonlocal count
        count += 1
        request = body(call)
        bad = places(count, request["Records"])
        good = [record for place, record in enumerate(request["Records"]) if place not in bad]
        taken = json.loads(forward(json.dumps({**request, "Records": good}).encode()).body)["Records"] if good else []
        code = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"}
        records = [code if place in bad else taken.pop(0) for place in range(len(request["Records"]))]
        answer = {"FailedRecordCount": len(bad), "Records": records, "EncryptionType": "NONE"}
        return Reply(200, json.dumps(answer).encode(), {"Content-Type": "application/x-amz-json-1.1"})

    return rule


def test_only_the_records_that_were_refused_are_put_again(target: PutContext, proxy: FaultProxy) -> None:
    proxy.rule = failing(target, lambda number, records: {0, len(records) // 2} if number < 4 else set())
    options = {**target.options(), "endpoint": proxy.url}
    assert write(KinesisSink, options, numbered(300), **COLUMNS, **{"batch.maxRecords": "100"}) == 300
    assert sorted(map(int, data(target))) == list(range(300))


@pytest.mark.parametrize("ordered", ["true", "false"])
def test_rows_of_a_key_keep_their_order_if_the_user_wants_it(target: PutContext, proxy: FaultProxy, ordered: str) -> None:
    proxy.rule = failing(target, lambda number, records: {0} if number in (1, 3, 8, 15) else set())
    options = {**target.options(), "endpoint": proxy.url, "batch.maxRecords": "40"}
    write(KinesisSink, options, numbered(200), **COLUMNS, ordered=ordered)
    written = list(map(int, data(target)))
    assert sorted(written) == list(range(200))
    in_order = [[number for number in written if number % 5 == key] for key in range(5)]
    assert (in_order == [sorted(numbers) for numbers in in_order]) == (ordered == "true")


def test_a_stream_that_does_not_exist_is_named(target: PutContext) -> None:
    with pytest.raises(Fatal, match="the stream nobody does not exist"):
        write(KinesisSink, {**target.options(), "streamName": "nobody"}, numbered(1), **COLUMNS)


@pytest.mark.parametrize(
    ("sink", "options", "text"),
    [
        (KinesisSink, {"streamName": "s", "batch.maxRecords": "501"}, r"batch.maxRecords +must be 500 or less"),
        (KinesisSink, {"streamName": "s", "batch.maxBytes": "11MB"}, r"batch.maxBytes +must be 10485760 bytes or less"),
        (KinesisSink, {"streamName": "s", "ordered": "true"}, r"ordered +has no use without partitionKeyColumn"),
        (KinesisSink, {}, r"streamName +missing"),
        (KinesisSink, {"streamName": "s", "guarantee": "exactly-once"}, r"guarantee +.*exactly-once"),
        (FirehoseSink, {}, r"deliveryStream +missing"),
        (FirehoseSink, {"deliveryStream": "s", "batch.maxBytes": "5MB"}, r"batch.maxBytes +must be 4194304 bytes or less"),
    ],
)
def test_wrong_options_are_named(sink: type[Any], options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        sink.of({**ACCOUNT, **options})


@pytest.mark.parametrize(("sink", "stream"), [(KinesisSink, {"streamName": "s"}), (FirehoseSink, {"deliveryStream": "s"})])
def test_what_no_retry_mends_is_one_error_within_seconds(
    sink: type[Any], stream: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, proxy: FaultProxy
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    denied = {"__type": "AccessDeniedException", "message": "not authorized to perform the action on s"}
    proxy.rule = lambda *_: Reply(400, json.dumps(denied).encode(), {"Content-Type": "application/x-amz-json-1.1"})
    keys = {name: value for name, value in ACCOUNT.items() if name != "region"}
    began = time.monotonic()
    with pytest.raises(Misconfigured, match=r"region +missing, and the environment names none"):
        write(sink, {**stream, **keys, "endpoint": proxy.url}, numbered(1))
    with pytest.raises(Fatal, match=r"(?s)AWS gets no credentials for .*give accessKeyId"):
        write(sink, {**stream, "region": "eu-west-1", "endpoint": proxy.url}, numbered(1))
    with pytest.raises(Fatal, match=r"(?s)AWS refuses access to .*not authorized to perform the action on s.*grant"):
        write(sink, {**stream, **ACCOUNT, "endpoint": proxy.url}, numbered(1))
    assert time.monotonic() - began < 10


def test_a_column_that_is_not_there_or_no_text_is_named(target: PutContext) -> None:
    with pytest.raises(Misconfigured, match=r'dataColumn +names the column "body", which the rows do not have: data, key'):
        write(KinesisSink, target.options(), numbered(1), dataColumn="body")
    with pytest.raises(Misconfigured, match=r'partitionKeyColumn +must be a column of text; "n" is int64'):
        write(KinesisSink, target.options(), pa.table({"n": [1]}), partitionKeyColumn="n")


# Firehose


class Delivery:
    """A delivery stream into a bucket, both new."""

    def __init__(self) -> None:
        self.server = required(MotoServer)
        self.name = f"d-{uuid.uuid4().hex[:12]}"
        self.server.bucket(self.name)
        destination = {"RoleARN": "arn:aws:iam::123456789012:role/r", "BucketARN": f"arn:aws:s3:::{self.name}"}
        client = self.server.client("firehose")
        client.create_delivery_stream(DeliveryStreamName=self.name, ExtendedS3DestinationConfiguration=destination)

    def options(self) -> dict[str, str]:
        retry = {"retry.initialBackoff": "10ms", "batch.maxInFlight": "1"}
        return {**ACCOUNT, "endpoint": self.server.url, "deliveryStream": self.name, **retry}

    def content(self) -> bytes:
        client = self.server.client("s3")
        keys = [item["Key"] for item in client.list_objects_v2(Bucket=self.name).get("Contents", [])]
        return b"".join(client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in sorted(keys))


@pytest.mark.parametrize("delimiter", ["\n", "\\n"])
def test_firehose_delivers_lines(delimiter: str) -> None:
    delivery = Delivery()
    assert write(FirehoseSink, delivery.options(), numbered(700), dataColumn="data", delimiter=delimiter) == 700
    assert sorted(map(int, delivery.content().splitlines())) == list(range(700))


def test_firehose_puts_refused_records_again(tmp_path: Path) -> None:
    delivery = Delivery()
    calls = 0

    def rule(call: Seen, forward: Callable[..., Reply]) -> Reply:
        nonlocal calls
        calls += 1
        if calls > 1:
            return forward()
        request = body(call)
        forward(json.dumps({**request, "Records": request["Records"][1:]}).encode())
        refused = {"ErrorCode": "ServiceUnavailableException", "ErrorMessage": "slow down"}
        outcomes = [refused, *({"RecordId": "1"} for _ in request["Records"][1:])]
        answer = {"FailedPutCount": 1, "RequestResponses": outcomes}
        return Reply(200, json.dumps(answer).encode(), {"Content-Type": "application/x-amz-json-1.1"})

    with FaultProxy(delivery.server.url) as proxy:
        proxy.rule = rule
        options = {**delivery.options(), "endpoint": proxy.url, "delimiter": "\n"}
        write(FirehoseSink, options, numbered(100), dataColumn="data")
    assert sorted(map(int, delivery.content().splitlines())) == list(range(100))


def test_a_delivery_stream_that_does_not_exist_is_named() -> None:
    with pytest.raises(Fatal, match="the delivery stream nobody does not exist"):
        write(FirehoseSink, {**Delivery().options(), "deliveryStream": "nobody"}, numbered(1), dataColumn="data")


def test_a_delivery_stream_is_made_of_columns() -> None:
    left, right = Delivery(), Delivery()
    numbers = range(100)
    names = [(left, right)[number % 2].name.removeprefix("d-") for number in numbers]
    table = pa.table({"data": [str(number) for number in numbers], "end": names})
    write(FirehoseSink, left.options(), table, dataColumn="data", delimiter="\n", deliveryStream="d-{end}")
    assert sorted(map(int, left.content().splitlines())) == [*numbers[::2]]
    assert sorted(map(int, right.content().splitlines())) == [*numbers[1::2]]
    nameless = pa.table({"data": ["x"], "end": pa.nulls(1, pa.string())})
    with pytest.raises(Poison, match=r"a column of d-\{end\} is null"):
        write(FirehoseSink, left.options(), nameless, dataColumn="data", deliveryStream="d-{end}")


def test_of_several_delivery_streams_only_what_one_has_not_taken_is_put_again() -> None:
    left, right = Delivery(), Delivery()
    refused = {left.name: 0, right.name: 2}

    def rule(call: Seen, forward: Callable[..., Reply]) -> Reply:
        name = body(call)["DeliveryStreamName"]
        refused[name] -= 1
        return Reply(503, b"{}", {}) if refused[name] >= 0 else forward()

    with FaultProxy(left.server.url) as proxy:
        proxy.rule = rule
        table = pa.table({"data": [str(n) for n in range(20)], "stream": [left.name, right.name] * 10})
        options = {**left.options(), "endpoint": proxy.url, "deliveryStream": "{stream}", "delimiter": "\n"}
        write(FirehoseSink, options, table, dataColumn="data")
    assert sorted(map(int, left.content().splitlines())) == [*range(0, 20, 2)]
    assert sorted(map(int, right.content().splitlines())) == [*range(1, 20, 2)]


def test_a_record_too_large_for_firehose_is_a_bad_row() -> None:
    with pytest.raises(Poison, match="more than the 1024000 that"):
        write(FirehoseSink, Delivery().options(), pa.table({"data": ["x" * 1_024_001]}), dataColumn="data")

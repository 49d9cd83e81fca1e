"""The source of Kinesis: reshards, starts, packed records, throttling, gaps, expiry, fan-out, and clear errors."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import DataLoss, Fatal, Misconfigured, Transient
from connectors.core.progress import unpacked
from connectors.systems.kinesis import KinesisSource, cursor
from connectors.systems.kinesis.aggregates import MAGIC, hash_of
from connectors.systems.kinesis.cursor import POOL
from connectors.testing.servers import MotoServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from connectors.testing.source_suite import SourceQuery
from tests.servers import required

from .contexts import ACCOUNT, FanOutContext, StreamContext

pytestmark = pytest.mark.server
Rows = list[dict[str, Any]]


@pytest.fixture(params=[StreamContext])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamContext]:
    folder = tmp_path / "system"
    folder.mkdir()
    context = request.param(folder)
    yield context
    POOL.close_all()
    context.close()


@pytest.fixture
def proxy(system: StreamContext) -> Iterator[FaultProxy]:
    with FaultProxy(system.server.url) as proxy:
        yield proxy


def operation(request: Seen) -> str:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return headers["x-amz-target"].partition(".")[2]


def refusal(code: str, status: int = 400, message: str = "on purpose") -> Reply:
    return answered({"__type": code, "message": message}, status)


def answered(body: Mapping[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.1"})


def numbers(rows: Rows | None) -> list[int]:
    return [int(row["data"]) for row in rows or []]


def check_keys(rows: Rows, count: int) -> None:
    """Every number once, and those of a key in their order."""
    assert sorted(numbers(rows)) == list(range(count))
    for key in {row["partitionKey"] for row in rows}:
        own = [int(row["data"]) for row in rows if row["partitionKey"] == key]
        assert own == sorted(own), key


# reshards


def reshard(system: StreamContext) -> None:
    """Splits the first open shard, and merges the last two."""
    server, stream = system.server, system.stream
    server.split(stream, server.open_shards(stream)[0])
    is_open = server.open_shards(stream)
    shards = [shard for shard in server.shards(stream) if shard["ShardId"] in is_open]
    *_, first, second = sorted(shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    server.merge(stream, first["ShardId"], second["ShardId"])


@pytest.mark.parametrize(
    "system",
    [StreamContext, pytest.param(FanOutContext, marks=pytest.mark.soak)],
    indirect=True,
    ids=["polling", "efo"],
)
@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
@pytest.mark.parametrize("readers", [pytest.param("1", marks=pytest.mark.soak), "3"])
def test_records_of_a_key_stay_in_order_over_splits_and_merges(system: StreamContext, is_down: bool, readers: str) -> None:
    log: list[Any] = []
    rows: Rows = []
    query = SourceQuery(system, numPartitions=readers, maxRowsPerTrigger="20")
    for _ in range(3):
        system.write(40)
        if not is_down:
            rows += query.next(log) or []
        reshard(system)
        system.write(40)
        if is_down:
            query = SourceQuery(system, numPartitions=readers, maxRowsPerTrigger="20")
            rows += query.next(log) or []
    last = SourceQuery(system, numPartitions=readers, maxRowsPerTrigger="20")
    last.planner.freeze()
    while (number := last.plan(log)) is not None and len(log) < 100:
        rows += last.batch(log, number)
    check_keys(rows, 240)
    assert len({row["shardId"] for row in rows}) > 4


def test_a_finished_shard_is_not_asked_again(system: StreamContext, proxy: FaultProxy) -> None:
    system.write(10)
    closed = system.server.open_shards(system.stream)[0]
    system.server.split(system.stream, closed)
    log: list[Any] = []
    rows = SourceQuery(system, endpoint=proxy.url).rest(log)
    rows += SourceQuery(system, endpoint=proxy.url).rest(log)
    proxy.seen.clear()
    POOL.close_all()
    system.write(10)
    rows += SourceQuery(system, endpoint=proxy.url).rest(log)
    check_keys(rows, 20)
    shards = {json.loads(request.body)["ShardId"] for request in proxy.seen if operation(request) == "GetShardIterator"}
    assert shards
    assert closed not in shards


def without(*names: str) -> Callable[[Seen, Callable[..., Reply]], Reply]:
    """A rule that hides shards, as the service does when all their records have expired."""

    def hide(request: Seen, forward: Callable[..., Reply]) -> Reply:
        if operation(request) == "GetShardIterator" and (name := json.loads(request.body)["ShardId"]) in names:
            return refusal("ResourceNotFoundException", message=f"Shard {name} does not exist")
        if operation(request) != "ListShards":
            return forward()
        answer = json.loads(forward().body)
        answer["Shards"] = [shard for shard in answer["Shards"] if shard["ShardId"] not in names]
        return answered(answer)

    return hide


def test_a_shard_that_was_read_to_its_end_may_expire(
    system: StreamContext, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    system.write(10)
    log: list[Any] = []
    gone = system.server.open_shards(system.stream)[0]
    system.server.split(system.stream, gone)
    rows = SourceQuery(system, endpoint=proxy.url).rest(log)
    proxy.rule = without(gone)
    system.write(10)
    with caplog.at_level(logging.WARNING):
        query = SourceQuery(system, endpoint=proxy.url)
        rows += query.rest(log)
    check_keys(rows, 20)
    assert "expired" not in caplog.text
    source: Any = query.source
    assert gone not in source.log().plan(max(source.log().epochs()))["finished"], "it is still remembered"


@pytest.mark.parametrize("is_finished", [False, True], ids=["unread", "child unread"])
def test_a_shard_that_has_expired_before_it_was_read_is_data_loss(
    system: StreamContext, proxy: FaultProxy, caplog: pytest.LogCaptureFixture, is_finished: bool
) -> None:
    """The parent is read to its end, or not. Its children began at least as long ago as it left the listing."""
    gone = system.server.open_shards(system.stream)[0]
    log: list[Any] = []
    query = SourceQuery(system, endpoint=proxy.url)
    if is_finished:
        system.write(10)
        system.server.split(system.stream, gone)
        rows = query.next(log) or []
        assert gone in {name for header in query.source.log().headers(1) for name in header.finished}  # type: ignore[attr-defined]
    else:
        rows = query.next(log) or []
        system.write(10)
        system.server.split(system.stream, gone)
    left = [row for row in system.write(10) if row["shardId"] != gone]
    proxy.rule = without(gone)
    POOL.close_all()
    with pytest.raises(DataLoss, match=r"(?s)has lost records that were not read: .*expired.*failOnDataLoss=false"):
        SourceQuery(system, endpoint=proxy.url).rest(list(log))
    rows += SourceQuery(system, endpoint=proxy.url, failOnDataLoss="false").rest(log)
    assert "have expired" in caplog.text
    assert set(numbers(rows)) >= set(numbers(left))
    caplog.clear()
    assert SourceQuery(system, endpoint=proxy.url).rest(log) == []
    assert "have expired" not in caplog.text, "it is not remembered"


def test_a_shard_that_expires_between_plan_and_task_is_data_loss(
    system: StreamContext, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    row = system.write(1)[0]
    shard, position = row["shardId"], {"after": row["sequenceNumber"]}
    proxy.rule = without(shard)
    with pytest.raises(DataLoss, match=f"{shard} of {system.stream} has expired before it was read to its end"):
        _cursor(system, endpoint=proxy.url).read(shard, position, None, 10)
    page = _cursor(system, endpoint=proxy.url, failOnDataLoss="false").read(shard, position, None, 10)
    assert page.is_finished
    assert page.rows.num_rows == 0
    assert f"{shard} of {system.stream} has expired" in caplog.text


# starts


def test_a_start_at_a_time_is_exact(system: StreamContext) -> None:
    time.sleep(1 - time.time() % 1)  # what follows is in one second: the client sends whole ones
    system.write(10)
    time.sleep(0.01)
    now = round(time.time() * 1000)
    system.write(10)
    start = {"startingPosition": "AT_TIMESTAMP", "startingTimestamp": str(now)}
    assert sorted(numbers(SourceQuery(system, **start).rest([]))) == list(range(10, 20))


def test_a_start_by_shard_is_the_first_record_that_is_read(system: StreamContext) -> None:
    written = system.write(20)
    shard = written[0]["shardId"]
    own = [row for row in written if row["shardId"] == shard]
    start = json.dumps({shard: own[3]["sequenceNumber"]})
    rows = SourceQuery(system, startingPosition=start).rest([])
    others = [row for row in written if row["shardId"] != shard]
    assert sorted(numbers(rows)) == sorted(numbers(own[3:] + others))


def test_a_start_at_a_shard_that_the_stream_does_not_have_is_named(system: StreamContext) -> None:
    start = json.dumps({system.server.open_shards(system.stream)[0]: "1", "shardId-7": "1"})
    with pytest.raises(Misconfigured, match=r"startingPosition +names shards that the stream does not have, .*: shardId-7\."):
        SourceQuery(system, startingPosition=start).plan([])


def test_latest_leaves_out_shards_that_were_closed_before_and_reads_children_whole(system: StreamContext) -> None:
    system.write(10)
    system.server.split(system.stream, system.server.open_shards(system.stream)[0])
    time.sleep(2.1)  # the start is the second of the service's clock, and one before it
    log: list[Any] = []
    assert SourceQuery(system, startingPosition="LATEST").rest(log) == []
    reshard(system)
    written = system.write(20)
    rows = SourceQuery(system, startingPosition="LATEST").rest(log)
    rows += SourceQuery(system, startingPosition="LATEST").rest(log)
    assert sorted(numbers(rows)) == sorted(numbers(written))


@pytest.mark.parametrize("seconds", [0, 30], ids=["right clock", "clock ahead"])
def test_latest_is_where_the_stream_stood_at_the_first_offset(
    system: StreamContext, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The driver dies between the first offset and its plan; meanwhile records come, and a shard is split."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    log: list[Any] = []
    SourceQuery(system, startingPosition="LATEST").plan(log)
    written = system.write(20)
    reshard(system)
    written += system.write(20)
    query = SourceQuery(system, startingPosition="LATEST")
    rows = query.batch(log, 0) + query.rest(log)
    assert sorted(numbers(rows)) == sorted(numbers(written))


@pytest.mark.parametrize("is_stream", [True, False], ids=["available now", "batch"])
def test_what_is_there_at_the_start_of_a_run_is_read_by_a_driver_whose_clock_is_behind(
    system: StreamContext, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 30)
    system.write(10)
    query, log = SourceQuery(system), []
    if is_stream:
        query.planner.freeze()
    rows = query.rest(log) if is_stream else query.whole()
    assert sorted(numbers(rows)) == list(range(10))


# records that the producer library has packed


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def packed(records: Sequence[tuple[str, bytes]], hash_keys: Sequence[str] = ()) -> bytes:
    """Records in one, as the published format says; the last ones have ``hash_keys``."""
    body = b"".join(_field(1, key.encode()) for key, _ in records) + b"".join(_field(2, key.encode()) for key in hash_keys)
    for number, (_, data) in enumerate(records):
        index = number - (len(records) - len(hash_keys))
        hash_key = b"\x10" + _varint(index) if index >= 0 else b""
        body += _field(3, b"\x08" + _varint(number) + hash_key + _field(3, data))
    return MAGIC + body + hashlib.md5(body).digest()


def test_a_restart_inside_a_packed_record_loses_and_doubles_nothing(system: StreamContext) -> None:
    keys = [key for key in (f"key-{number}" for number in range(200)) if hash_of(key) < 1 << 127][:50]
    for first in (0, 20):
        system.put([(keys[0], packed([(key, b"%d" % (first + number)) for number, key in enumerate(keys[:20])]))])
    system.put([(keys[0], b"40")])
    log: list[Any] = []
    rows: Rows = []
    while batch := SourceQuery(system, maxRowsPerTrigger="7").next(log):
        POOL.close_all()  # as in another process
        assert SourceQuery(system).batch(log, len(log) - 1) == batch
        POOL.close_all()
        rows += batch
    assert numbers(rows) == list(range(41))
    assert [row["subSequenceNumber"] for row in rows] == [*range(20), *range(20), 0]
    assert [row["partitionKey"] for row in rows[:20]] == keys[:20]


@pytest.mark.parametrize("system", [StreamContext, FanOutContext], indirect=True, ids=["polling", "efo"])
def test_a_page_that_could_not_be_unpacked_is_fetched_again(
    system: StreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is packed needs the hash keys of its shard, and the service does not answer at first."""
    key = "key"
    shard = system.put([(key, packed([(key, b"%d" % number) for number in range(10)]))])[0]["shardId"]
    if isinstance(system, FanOutContext):
        SourceQuery(system).plan([])  # registers the consumer
    cursor = _cursor(system)
    list_shards, listings = cursor.client.list_shards, 0

    def fail() -> Any:
        nonlocal listings
        listings += 1
        if listings == 1:
            raise Transient("the service does not answer")
        return list_shards()

    monkeypatch.setattr(cursor.client, "list_shards", fail)
    rows: Rows = []
    end = time.monotonic() + 10
    while len(rows) < 10 and time.monotonic() < end:
        with contextlib.suppress(Transient):
            rows += cursor.read(shard, {"from": "TRIM_HORIZON"}, None, 100).rows.to_pylist()
    cursor.close()
    assert numbers(rows) == list(range(10))
    assert listings == 2


def test_packed_records_of_another_shard_are_left_out_for_the_producer_sends_them_again(system: StreamContext) -> None:
    first = next(key for key in (f"key-{number}" for number in range(99)) if hash_of(key) < 1 << 126)
    parts = [(first, b"0"), (first, b"1"), (first, b"2")]
    system.put([(first, packed(parts, hash_keys=[str((1 << 127) + 5), "7"]))])
    assert numbers(SourceQuery(system).rest([])) == [0, 2]


def test_a_record_that_only_begins_like_a_packed_one_is_as_it_is(system: StreamContext) -> None:
    data = MAGIC + b"no message" * 3
    system.put([("key", data)])
    assert [row["data"] for row in SourceQuery(system).rest([])] == [data]


# the service's limits


@pytest.mark.parametrize("refused", ["GetRecords", "ListShards", "GetShardIterator"])
def test_throttling_is_waited_for(system: StreamContext, proxy: FaultProxy, refused: str) -> None:
    calls = 0

    def throttle(request: Seen, forward: Callable[..., Reply]) -> Reply:
        nonlocal calls
        calls += operation(request) == refused
        is_refused = operation(request) == refused and calls % 2 == 1
        return refusal("ProvisionedThroughputExceededException") if is_refused else forward()

    proxy.rule = throttle
    written = system.write(60)
    options = {"endpoint": proxy.url, "retry.initialBackoff": "10ms", "maxRowsPerTrigger": "20", "drainTimeout": "1s"}
    query, log = SourceQuery(system, **options), []
    rows = query.rest(log)
    assert sorted(numbers(rows)) == sorted(numbers(written))
    assert calls > 1


def test_a_later_run_in_the_same_process_waits_for_a_shard_that_is_throttled(system: StreamContext, proxy: FaultProxy) -> None:
    options = {"endpoint": proxy.url, "drainTimeout": "300ms"}
    log: list[Any] = []
    first = SourceQuery(system, **options)
    first.planner.freeze()
    rows = [row for number in iter(lambda: first.plan(log), None) for row in first.batch(log, number)]
    system.write(10)
    end = time.monotonic() + 1.5

    def throttle(request: Seen, forward: Callable[..., Reply]) -> Reply:
        is_refused = operation(request) == "GetRecords" and time.monotonic() < end
        return refusal("ProvisionedThroughputExceededException") if is_refused else forward()

    proxy.rule = throttle
    second = SourceQuery(system, **options)
    second.planner.freeze()
    rows += [row for number in iter(lambda: second.plan(log), None) for row in second.batch(log, number)]
    check_keys(rows, 10)


def test_a_shard_is_polled_as_seldom_as_the_user_says(system: StreamContext, proxy: FaultProxy) -> None:
    polls: dict[str, list[float]] = {}

    def note(request: Seen, forward: Callable[..., Reply]) -> Reply:
        reply = forward()
        if operation(request) == "GetShardIterator":
            polls[json.loads(reply.body)["ShardIterator"]] = []
        if operation(request) == "GetRecords":
            times = polls.pop(json.loads(request.body)["ShardIterator"])
            polls[json.loads(reply.body)["NextShardIterator"]] = [*times, time.monotonic()]
        return reply

    proxy.rule = note
    system.write(40)
    query = SourceQuery(system, endpoint=proxy.url, fetchInterval="200ms", maxRowsPerTrigger="10")
    check_keys(query.rest([]), 40)
    gaps = [later - earlier for times in polls.values() for earlier, later in pairwise(times)]
    assert len(gaps) >= 4
    assert min(gaps) > 0.19


def test_a_shard_is_not_asked_for_more_bytes_than_it_gives_in_a_second(
    system: StreamContext, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cursor._BYTES_PER_SECOND == 2 << 20
    monkeypatch.setattr(cursor, "_BYTES_PER_SECOND", 20_000)  # the stand-in is slow with large records
    pages: list[tuple[float, int]] = []

    def note(request: Seen, forward: Callable[..., Reply]) -> Reply:
        reply = forward()
        if operation(request) == "GetRecords" and (records := json.loads(reply.body)["Records"]):
            pages.append((time.monotonic(), sum(len(record["Data"]) * 3 // 4 for record in records)))
        return reply

    proxy.rule = note
    for number in range(4):
        system.server.put(system.stream, [("key", b"%d" % number + b" " * 9_000)])
    query = SourceQuery(system, endpoint=proxy.url, maxRowsPerTrigger="2")
    check_keys(query.rest([]), 4)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(pages)]
    assert gaps
    assert all(gap > 0.95 * size / 20_000 > 0.4 for gap, (_, size) in zip(gaps, pages, strict=False))


@pytest.mark.parametrize("consumer", [{}, pytest.param({"consumer": "efo", "consumerName": "arn"}, marks=pytest.mark.soak)])
def test_a_stream_is_read_by_its_arn(system: StreamContext, consumer: dict[str, str]) -> None:
    summary = system.server.client.describe_stream_summary(StreamName=system.stream)["StreamDescriptionSummary"]
    written = system.write(20)
    own = {name: value for name, value in system.options().items() if name != "streamName"}
    system.options = lambda: {**own, "streamArn": summary["StreamARN"], **consumer}  # type: ignore[method-assign]
    wait = {"pollInterval": "2500ms", "drainTimeout": "2500ms"} if consumer else {}
    rows = SourceQuery(system, **wait).rest([])
    assert sorted(numbers(rows)) == sorted(numbers(written))
    assert {row["stream"] for row in rows} == {system.stream}


def test_a_gap_in_a_shard_is_not_its_end(system: StreamContext, proxy: FaultProxy) -> None:
    empty = 0

    def gap(request: Seen, forward: Callable[..., Reply]) -> Reply:
        nonlocal empty
        if operation(request) == "GetRecords" and empty < 8:
            empty += 1
            answer = {"Records": [], "NextShardIterator": json.loads(request.body)["ShardIterator"], "MillisBehindLatest": 5000}
            return answered(answer)
        return forward()

    proxy.rule = gap
    system.write(10)
    query, log = SourceQuery(system, endpoint=proxy.url), []
    query.planner.freeze()
    check_keys(query.rest(log), 10)
    assert empty == 8


def test_an_iterator_that_has_expired_is_made_anew(system: StreamContext, proxy: FaultProxy) -> None:
    def expire(request: Seen, forward: Callable[..., Reply]) -> Reply:
        if operation(request) == "GetRecords" and len(proxy.seen) % 3 == 0:
            return refusal("ExpiredIteratorException")
        return forward()

    system.write(10)
    log: list[Any] = []
    query = SourceQuery(system, endpoint=proxy.url)
    rows = query.rest(log)
    proxy.rule = expire
    system.write(10)
    check_keys(rows + query.rest(log), 20)


# data loss


def _cursor(system: StreamContext, **options: str) -> Any:
    cursor = KinesisSource.of({**system.options(), **options}, streaming=True).cursor(system.schema)
    cursor.open()
    return cursor


def test_records_that_may_have_expired_while_the_query_was_down_are_data_loss(
    system: StreamContext, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The stand-in trims nothing: the proxy hides the record that was read last."""
    row = system.write(1)[0]
    day_ago = round(time.time() * 1000) - 25 * 3_600_000
    position = {"after": row["sequenceNumber"], "time": day_ago}
    page = _cursor(system).read(row["shardId"], position, None, 10)  # it is still there
    assert page.position["time"] > day_ago

    def trim(request: Seen, forward: Callable[..., Reply]) -> Reply:
        return forward(request.body.replace(b'"AT_SEQUENCE_NUMBER"', b'"AFTER_SEQUENCE_NUMBER"'))

    proxy.rule = trim
    with pytest.raises(DataLoss, match=r"(?s)was read up to 25.0 hours ago, and the stream keeps records for 24 hours.*failOn"):
        _cursor(system, endpoint=proxy.url).read(row["shardId"], position, None, 10)
    page = _cursor(system, endpoint=proxy.url, failOnDataLoss="false").read(row["shardId"], position, None, 10)
    assert "may have expired" in caplog.text
    assert page.position["time"] > day_ago


def test_records_that_expire_before_a_reader_that_is_behind_are_data_loss(
    system: StreamContext, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with its iterator, which the service moves to the oldest record that is left."""
    rows = system.put([("key", b"%d" % number) for number in range(4)])
    shard, left = rows[0]["shardId"], rows[3]["sequenceNumber"]
    reader = _cursor(system, endpoint=proxy.url)
    position = reader.read(shard, {"from": "TRIM_HORIZON"}, None, 1).position

    def trim(request: Seen, forward: Callable[..., Reply]) -> Reply:
        answer = json.loads(forward().body)
        if operation(request) != "GetRecords":
            return answered(answer)
        return answered({**answer, "Records": [record for record in answer["Records"] if record["SequenceNumber"] == left]})

    proxy.rule = trim
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 25 * 3600)
    with pytest.raises(DataLoss, match=r"was read up to 25.0 hours ago, and the stream keeps records for 24 hours"):
        reader.read(shard, position, None, 10)


def test_first_records_that_expire_between_the_plan_of_a_child_and_its_read_are_data_loss(
    system: StreamContext, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The query was far behind when the parent ended. The driver dies with the plan, and comes back hours later."""
    parent = system.server.open_shards(system.stream)[0]
    system.server.split(system.stream, parent)
    log: list[Any] = []
    query = SourceQuery(system, endpoint=proxy.url)
    query.next(log)
    written = system.write(20)
    number = query.plan(log)
    assert number is not None
    query.planner.slices(log[number - 1], log[number])
    proxy.rule = without(parent)
    POOL.close_all()
    with pytest.raises(DataLoss, match=r"the parents of \S+ of \S+ have expired: its first records, not read yet, may have"):
        SourceQuery(system, endpoint=proxy.url).batch(log, number)
    POOL.close_all()
    rows = SourceQuery(system, endpoint=proxy.url, failOnDataLoss="false").batch(log, number)
    assert sorted(numbers(rows)) == sorted(numbers(written))
    assert "have expired" in caplog.text


def test_a_replay_of_a_range_that_has_expired_stands_still(system: StreamContext) -> None:
    shard, start = system.server.open_shards(system.stream)[0], {"from": "TRIM_HORIZON"}
    page = _cursor(system).read(shard, start, {"after": "5"}, 10)
    assert (page.rows.num_rows, page.position) == (0, start)


def test_an_idle_stream_keeps_its_place(system: StreamContext) -> None:
    written = system.write(2)
    log: list[Any] = []
    query = SourceQuery(system)
    query.rest(log)
    query.rest(log)
    before = time.time()
    query.rest(log)
    source: Any = query.source
    newest = max(source.log().epochs())
    positions = [position for header in source.log().headers(newest) for position in header.positions.values()]
    assert {position["after"] for position in positions} <= {row["sequenceNumber"] for row in written}
    assert all(position["time"] / 1000 > before - 1 for position in positions)


def make_anew(system: StreamContext) -> None:
    system.server.client.delete_stream(StreamName=system.stream)
    while system.stream in system.server.client.list_streams()["StreamNames"]:
        time.sleep(0.05)
    time.sleep(1.1)  # the stand-in gives streams of the same second the same sequence numbers
    system.server.create(system.stream)
    POOL.close_all()


def test_a_stream_that_was_made_anew_is_data_loss(system: StreamContext) -> None:
    system.write(10)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    make_anew(system)
    written = system.write(10)
    with pytest.raises(DataLoss, match=r"(?s)does not know the record \d+, .*was the stream deleted and made anew"):
        SourceQuery(system).rest(list(log))
    rows = SourceQuery(system, failOnDataLoss="false").rest(log)
    assert sorted(numbers(rows)) == sorted(numbers(written))


def test_a_finished_shard_that_is_open_again_is_one_of_another_stream(system: StreamContext) -> None:
    for shard in system.server.open_shards(system.stream):
        system.server.split(system.stream, shard)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    make_anew(system)
    written = system.write(10)
    with pytest.raises(DataLoss, match=r"(?s)has lost records .*shardId-000000000000, .*deleted and made anew.*failOnDataLoss"):
        SourceQuery(system).rest(list(log))
    rows = SourceQuery(system, failOnDataLoss="false").rest(log)
    assert sorted(numbers(rows)) == sorted(numbers(written))


def test_a_shard_whose_end_the_listing_does_not_know_yet_stays_finished(system: StreamContext, proxy: FaultProxy) -> None:
    def forget_ends(request: Seen, forward: Callable[..., Reply]) -> Reply:
        if operation(request) != "ListShards":
            return forward()
        answer = json.loads(forward().body)
        for shard in answer["Shards"]:
            shard["SequenceNumberRange"].pop("EndingSequenceNumber", None)
        return answered(answer)

    system.write(10)
    system.server.split(system.stream, system.server.open_shards(system.stream)[0])
    proxy.rule = forget_ends
    query, log = SourceQuery(system, endpoint=proxy.url), []
    rows = query.rest(log)
    system.write(10)
    check_keys(rows + query.rest(log), 20)


def test_no_shard_is_read_further_past_the_slowest_one_than_the_user_allows(system: StreamContext) -> None:
    low, high = (next(key for key in (f"k{n}" for n in range(99)) if (hash_of(key) >> 127) == half) for half in (0, 1))
    written: Rows = []
    for key in (low, high, low, high):
        written += system.put([(key, b"%d" % (len(written) + number)) for number in range(3)])
        time.sleep(0.7)
    query, log = SourceQuery(system, maxDrift="500ms", numPartitions="2"), []
    query.planner.freeze()
    rows: Rows = []
    while batch := query.next(log):
        left = [row["approximateArrivalTimestamp"] for row in written if row not in rows]
        assert max(row["approximateArrivalTimestamp"] for row in batch) - min(left) <= datetime.timedelta(seconds=0.5)
        rows += batch
    assert sorted(numbers(rows)) == list(range(12))
    assert len(log) >= 4


# what a user sees


def test_the_data_is_decoded_and_bad_records_are_set_aside(system: StreamContext, tmp_path: Path) -> None:
    system.put([("a", b'{"id": 1, "name": "x"}'), ("b", b"no json"), ("c", b'{"id": 3, "name": "z"}')])
    options = {"value.format": "json", "schema": "id long, name string", "errors": "skip"}
    source = KinesisSource.of({**system.options(), **options}, streaming=True)
    assert source.schema.startswith("data struct<id long, name string>, partitionKey string")
    data = pa.struct([("id", pa.int64()), ("name", pa.string())])
    system.schema = pa.schema([("data", data), ("partitionKey", pa.string())])  # type: ignore[misc]
    rows = SourceQuery(system, **options).rest([])
    assert sorted((row["data"]["id"], row["partitionKey"]) for row in rows) == [(1, "a"), (3, "c")]


def test_the_table_of_the_query_shows_the_lag_of_each_shard(system: StreamContext) -> None:
    written = system.write(10)
    log: list[Any] = []
    query = SourceQuery(system)
    query.next(log)
    system.write(1)
    query.next(log)
    parts = {part.partition: part for part in unpacked(log[1])}
    last = {row["shardId"]: row["sequenceNumber"] for row in written}
    assert {name: part.position for name, part in parts.items()} == last
    assert all(part.lag_seconds == 0 for part in parts.values())


def test_a_consumer_is_registered_once_and_goes_only_when_the_user_says_so(tmp_path: Path) -> None:
    def consumers(context: StreamContext) -> list[str]:
        client = context.server.client
        arn = client.describe_stream_summary(StreamName=context.stream)["StreamDescriptionSummary"]["StreamARN"]
        listed = client.list_stream_consumers(StreamARN=arn)["Consumers"]
        return [consumer["ConsumerName"] for consumer in listed if consumer["ConsumerStatus"] != "DELETING"]

    context = FanOutContext(tmp_path)
    query = SourceQuery(context)
    query.plan([])
    query.planner.close()
    assert consumers(context) == ["query"]
    foreign = SourceQuery(context, deregisterConsumer="true", stateLocation=str(tmp_path / "other"))
    foreign.plan([])
    foreign.planner.close()
    assert consumers(context) == ["query"]  # it was there before
    log: list[Any] = []
    again = SourceQuery(context, deregisterConsumer="true", stateLocation=str(tmp_path / "third"), consumerName="third")
    again.next(log)
    assert consumers(context) == ["query", "third"], "tasks have ended, the run has not"
    again.planner.close()
    assert consumers(context) == ["query"]
    later = SourceQuery(context, deregisterConsumer="true", stateLocation=str(tmp_path / "third"), consumerName="third")
    later.next(log)
    assert consumers(context) == ["query", "third"], "registered again for another run"
    later.planner.close()
    assert consumers(context) == ["query"]
    context.close()


@pytest.mark.parametrize("system", [FanOutContext], indirect=True)
def test_a_consumer_that_was_registered_anew_is_found_by_a_process_that_knew_the_one_before(system: FanOutContext) -> None:
    row = system.put([("key", b"0")])[0]
    for _ in range(2):
        query = SourceQuery(system, deregisterConsumer="true")
        query.plan([])
        cursor = _cursor(system)
        cursor.client.shards.clear()  # the service has ended the subscription
        rows: Rows = []
        end = time.monotonic() + 10
        while not rows and time.monotonic() < end:
            rows = cursor.read(row["shardId"], {"from": "TRIM_HORIZON"}, None, 10).rows.to_pylist()
        cursor.close()
        assert numbers(rows) == [0]
        query.planner.close()
        time.sleep(1.1)  # the name of a consumer has the second of its registration


@pytest.mark.soak
@pytest.mark.parametrize("system", [FanOutContext], indirect=True)
def test_what_was_polled_for_a_replay_is_not_pushed_again(system: FanOutContext) -> None:
    SourceQuery(system).plan([])  # registers the consumer
    first = system.put([("key", b"0")])[0]
    shard = first["shardId"]
    cursor = _cursor(system)

    def live(position: Any) -> tuple[list[int], Any]:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            page = cursor.read(shard, position, None, 10)
            if page.rows.num_rows:
                return numbers(page.rows.to_pylist()), page.position
        return [], position

    read, position = live({"from": "TRIM_HORIZON"})
    more = system.put([("key", b"1"), ("key", b"2")])
    end = {"after": more[-1]["sequenceNumber"]}
    time.sleep(2)  # they are pushed, too
    replay = cursor.read(shard, position, end, 10)
    last = system.put([("key", b"3")])[0]
    assert (read, numbers(replay.rows.to_pylist()), replay.position) == ([0], [1, 2], end)
    read, position = live(end)
    assert read == [3]
    system.put([("key", b"4")])
    assert numbers(cursor.read(shard, position, {"after": last["sequenceNumber"]}, 10).rows.to_pylist()) == []
    assert live(position)[0] == [4]
    cursor.close()


# errors


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    return {**ACCOUNT, "streamName": "nobody", "stateLocation": str(tmp_path / "log"), "request.timeout": "3s"}


def begin(values: Mapping[str, str]) -> None:
    began = time.monotonic()
    try:
        KinesisSource.of(values, streaming=True).begin()
    finally:
        assert time.monotonic() - began < 8


def test_a_stream_that_does_not_exist_is_named_at_once(system: StreamContext, values: dict[str, str]) -> None:
    with pytest.raises(Fatal, match=r"(?s)the stream nobody does not exist: .*correct the name, the region or the account"):
        begin({**values, "endpoint": system.server.url})


def test_no_permission_is_named_at_once(proxy: FaultProxy, values: dict[str, str]) -> None:
    proxy.rule = lambda *_: refusal("AccessDeniedException", message="not authorized to perform kinesis:DescribeStreamSummary")
    with pytest.raises(Fatal, match=r"(?s)AWS refuses access to the stream nobody: .*kinesis:DescribeStreamSummary.*grant"):
        begin({**values, "endpoint": proxy.url})


def test_a_service_that_is_away_is_an_outage(values: dict[str, str], proxy: FaultProxy) -> None:
    with pytest.raises(Transient, match="AWS does not answer for the stream nobody"):
        begin({**values, "endpoint": "http://127.0.0.1:1"})
    proxy.rule = lambda *_: refusal("InternalFailure", 500)
    with pytest.raises(Transient, match="AWS does not answer for the stream nobody"):
        begin({**values, "endpoint": proxy.url})


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without any configuration of AWS."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_a_missing_region_and_missing_credentials_are_named(bare: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"region +missing, and the environment names none"):
        begin({name: value for name, value in values.items() if name != "region"})
    options = {name: value for name, value in values.items() if "Key" not in name}
    with pytest.raises(Fatal, match=r"(?s)AWS gets no credentials for the stream nobody.*give accessKeyId"):
        begin({**options, "endpoint": "http://127.0.0.1:1"})


def test_a_role_is_assumed(bare: pytest.MonkeyPatch, proxy: FaultProxy, values: dict[str, str]) -> None:
    bare.setenv("AWS_ENDPOINT_URL_STS", required(MotoServer).url)
    role = {"roleArn": "arn:aws:iam::123456789012:role/reader", "endpoint": proxy.url}
    with pytest.raises(Fatal, match="does not exist"):
        begin({**values, **role})
    (request,) = proxy.seen
    assert "Credential=ASIA" in request.headers["Authorization"]  # a temporary key, and not the user's own


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streamArn": "arn:aws:kinesis:…"}, r"streamName +and streamArn exclude each other"),
        ({"startingPosition": "yesterday"}, r'startingPosition +must be LATEST, .*; got "YESTERDAY"'),
        ({"startingPosition": '{"shardId-0": 5}'}, r"startingPosition +must be LATEST, .*JSON object of sequence numbers"),
        ({"startingPosition": "AT_TIMESTAMP"}, r"startingTimestamp +missing"),
        ({"startingTimestamp": "5"}, r"startingTimestamp +has no use without"),
        ({"consumer": "efo"}, r"consumerName +missing"),
        ({"consumerName": "x"}, r"consumerName +has no use with consumer=polling"),
        ({"endpoint": "localhost"}, r"endpoint +must be a URL"),
        ({"secretAccessKey": ""}, r"(secretAccessKey|accessKeyId)"),
    ],
)
def test_wrong_options_are_named(values: dict[str, str], options: dict[str, str], text: str) -> None:
    if "secretAccessKey" in options:
        values.pop("secretAccessKey")
        options = {}
    with pytest.raises(Misconfigured, match=text) as error:
        KinesisSource.of({**values, **options}, streaming=True)
    assert "secret" not in str(error.value).replace("secretAccessKey", "")

"""The source of Kinesis: reshards, starts, throttling, gaps and fan-out."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.core.progress import unpacked
from connectors.systems.kinesis import KinesisSource, cursor
from connectors.systems.kinesis.aggregates import hash_of
from connectors.systems.kinesis.cursor import POOL
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from connectors.testing.source_suite import SourceQuery
from tests.systems.kinesis.contexts import FanOutContext, StreamContext
from tests.systems.kinesis.streams import Rows, answered, check_keys, cursor_of, numbers, operation, refusal

pytestmark = pytest.mark.server


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


@pytest.mark.soak
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
        cursor = cursor_of(system)
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
    cursor = cursor_of(system)

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

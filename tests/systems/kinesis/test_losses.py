"""Records, shards and streams of Kinesis that expire, and streams that are made anew."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from connectors.core import DataLoss
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.systems.kinesis import KinesisSource
from connectors.systems.kinesis.aggregates import hash_of
from connectors.systems.kinesis.cursor import POOL, SCHEMA
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from connectors.testing.source_suite import SourceQuery
from tests.systems.kinesis.contexts import StreamContext
from tests.systems.kinesis.streams import Rows, answered, check_keys, cursor_of, numbers, operation, refusal
from tests.systems.kinesis.test_packed_records import packed

pytestmark = pytest.mark.server


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
        cursor_of(system, endpoint=proxy.url).read(shard, position, None, 10)
    page = cursor_of(system, endpoint=proxy.url, failOnDataLoss="false").read(shard, position, None, 10)
    assert page.is_finished
    assert page.rows.num_rows == 0
    assert f"{shard} of {system.stream} has expired" in caplog.text


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


def test_records_that_may_have_expired_while_the_query_was_down_are_data_loss(
    system: StreamContext, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The stand-in trims nothing: the proxy hides the record that was read last."""
    row = system.write(1)[0]
    day_ago = round(time.time() * 1000) - 25 * 3_600_000
    position = {"after": row["sequenceNumber"], "time": day_ago}
    page = cursor_of(system).read(row["shardId"], position, None, 10)  # it is still there
    assert page.position["time"] > day_ago

    def trim(request: Seen, forward: Callable[..., Reply]) -> Reply:
        return forward(request.body.replace(b'"AT_SEQUENCE_NUMBER"', b'"AFTER_SEQUENCE_NUMBER"'))

    proxy.rule = trim
    with pytest.raises(DataLoss, match=r"(?s)was read up to 25.0 hours ago, and the stream keeps records for 24 hours.*failOn"):
        cursor_of(system, endpoint=proxy.url).read(row["shardId"], position, None, 10)
    page = cursor_of(system, endpoint=proxy.url, failOnDataLoss="false").read(row["shardId"], position, None, 10)
    assert "may have expired" in caplog.text
    assert page.position["time"] > day_ago


def test_records_that_expire_before_a_reader_that_is_behind_are_data_loss(
    system: StreamContext, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with its iterator, which the service moves to the oldest record that is left."""
    rows = system.put([("key", b"%d" % number) for number in range(4)])
    shard, left = rows[0]["shardId"], rows[3]["sequenceNumber"]
    reader = cursor_of(system, endpoint=proxy.url)
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
    page = cursor_of(system).read(shard, start, {"after": "5"}, 10)
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


def make_anew(system: StreamContext, shards: int = 2) -> None:
    system.server.client.delete_stream(StreamName=system.stream)
    while system.stream in system.server.client.list_streams()["StreamNames"]:
        time.sleep(0.05)
    time.sleep(1.1)  # the stand-in gives streams of the same second the same sequence numbers
    system.server.create(system.stream, shards)


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


def test_a_process_that_knew_a_stream_reads_the_one_that_was_made_anew(system: StreamContext) -> None:
    """Its pages, iterators and hash keys are of the stream before."""

    def rows() -> Rows:
        source = KinesisSource.of(system.options())
        parts = Planner(source).whole()
        return [row for part in parts for page in read_slice(source, part, SCHEMA) for row in page.to_pylist()]

    low, high = (next(key for key in map(str, range(99)) if hash_of(key) >> 127 == half) for half in (0, 1))
    system.put([(low, packed([(low, b"0")]))])
    assert numbers(rows()) == [0]
    make_anew(system, shards=1)
    system.put([(low, packed([(low, b"1"), (high, b"2")]))])
    assert [numbers(rows()), numbers(rows())] == [[1, 2], [1, 2]]


def test_a_retention_that_the_user_changes_holds_for_the_next_epoch(system: StreamContext) -> None:
    stream = {"StreamName": system.stream}
    system.server.client.increase_stream_retention_period(**stream, RetentionPeriodHours=48)
    cursor = cursor_of(system)
    assert cursor.client.retention == 48 * 3600
    cursor.close()
    system.server.client.decrease_stream_retention_period(**stream, RetentionPeriodHours=24)
    assert cursor_of(system).client.retention == 24 * 3600


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

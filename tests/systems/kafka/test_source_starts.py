"""Where a query over Kafka begins and ends, and what it tells its group."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from connectors.core import Misconfigured
from connectors.systems.kafka import cluster
from connectors.systems.kafka.source import KafkaSource

from .reading import Query, batch
from .source_contexts import BEGIN, Topic, fresh


@pytest.fixture
def topic() -> Topic:
    return Topic(2)


def offsets_of(topic: Topic, group: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": topic.server.bootstrap, "group.id": group})
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    offsets = {token.partition: token.offset for token in consumer.committed(partitions, timeout=20)}
    consumer.close()
    return offsets


def commit(topic: Topic, group: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": topic.server.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic.name, *offset) for offset in offsets.items()], asynchronous=False)
    consumer.close()


def test_a_stream_begins_with_what_comes_later_unless_it_is_told(topic: Topic) -> None:
    topic.send([b"old"], 0)
    options = topic.options()
    del options["startingOffsets"]
    query = Query(options)
    assert query.values() == []
    topic.send([b"new"], 0)
    assert Query(options, query.log).values() == [b"new"]


def test_a_batch_begins_with_the_first_record_unless_it_is_told(topic: Topic) -> None:
    topic.send([b"old"], 0)
    options = topic.options()
    del options["startingOffsets"]
    assert batch(options) == [b"old"]


def test_json_gives_each_partition_a_start_of_its_own(topic: Topic) -> None:
    topic.send([b"a0", b"a1", b"a2"], 0)
    topic.send([b"b0", b"b1"], 1)
    start = json.dumps({topic.name: {"0": 1, "1": -2}})
    assert sorted(Query(topic.options(startingOffsets=start)).values()) == [b"a1", b"a2", b"b0", b"b1"]


def test_json_that_leaves_a_partition_out_is_refused(topic: Topic) -> None:
    with pytest.raises(Misconfigured, match=f"startingOffsets +says nothing of {topic.name}-1"):
        Query(topic.options(startingOffsets=json.dumps({topic.name: {"0": 1}}))).next()


def test_a_query_goes_on_where_its_group_is(topic: Topic) -> None:
    topic.send([b"a0", b"a1"], 0)
    topic.send([b"b0", b"b1"], 1)
    group = fresh("group")
    commit(topic, group, {0: 1, 1: 2})
    assert Query(topic.options(startingOffsets="committed", **{"kafka.group.id": group})).values() == [b"a1"]


@pytest.mark.parametrize(("fallback", "expected"), [("earliest", [b"a1", b"b0"]), ("latest", [b"a1"])])
def test_a_partition_that_the_group_does_not_know_takes_the_fallback(
    topic: Topic, fallback: str, expected: list[bytes]
) -> None:
    topic.send([b"a0", b"a1"], 0)
    topic.send([b"b0"], 1)
    group = fresh("group")
    commit(topic, group, {0: 1})
    more = {"kafka.group.id": group, "startingOffsets.fallback": fallback}
    assert sorted(Query(topic.options(startingOffsets="committed", **more)).values()) == expected


def test_a_group_without_offsets_is_an_error_without_a_fallback(topic: Topic) -> None:
    more = {"kafka.group.id": fresh("group"), "startingOffsets.fallback": "none"}
    with pytest.raises(Misconfigured, match=r"has no offsets of .*-0, .*-1; set startingOffsets.fallback"):
        Query(topic.options(startingOffsets="committed", **more)).next()


def test_a_query_begins_at_a_time(topic: Topic) -> None:
    topic.send([b"a0", b"a1", b"a2"], 0)
    topic.send([b"b0", b"b1", b"b2"], 1)
    assert sorted(Query(topic.options(startingTimestamp=str(BEGIN + 2))).values()) == [b"a2", b"b2"]
    times = json.dumps({topic.name: {"0": BEGIN + 1, "1": BEGIN + 2}})
    assert sorted(Query(topic.options(startingOffsetsByTimestamp=times)).values()) == [b"a1", b"a2", b"b2"]


def test_a_time_after_the_last_record_is_an_error_or_the_end(topic: Topic) -> None:
    topic.send([b"a", b"b"])
    late = topic.options(startingTimestamp=str(BEGIN + 1000))
    with pytest.raises(Misconfigured, match="startingOffsetsByTimestampStrategy"):
        Query(late).next()
    assert Query({**late, "startingOffsetsByTimestampStrategy": "latest"}).values() == []


def test_a_stream_ends_where_it_is_told(topic: Topic) -> None:
    topic.send([b"a0", b"a1", b"a2"], 0)
    topic.send([b"b0"], 1)
    query = Query(topic.options(endingOffsets=json.dumps({topic.name: {"0": 2, "1": 3}})))
    assert sorted(query.values()) == [b"a0", b"a1", b"b0"]
    topic.send([b"a3"], 0, at=BEGIN + 10)
    topic.send([b"b1", b"b2", b"b3"], 1, at=BEGIN + 10)
    assert query.values() == [b"b1", b"b2"]
    assert sorted(batch(topic.options(endingTimestamp=str(BEGIN + 1)))) == [b"a0", b"b0"]


def test_a_stream_leaves_what_has_the_time_to_stop_at_or_a_later_one(topic: Topic) -> None:
    topic.send([b"a0", b"a1", b"a2"], 0)
    topic.send([b"b0"], 1)
    stop = datetime.fromtimestamp((BEGIN + 1) / 1000, timezone.utc).isoformat()
    query = Query(topic.options(stopAt=stop))
    assert sorted(query.values()) == [b"a0", b"b0"]
    topic.send([b"b1"], 1, at=BEGIN + 10)
    assert query.values() == []
    assert sorted(Query(topic.options(), query.log).values()) == [b"a1", b"a2", b"b1"]
    with pytest.raises(Misconfigured, match=r"stopAt +is given beside endingTimestamp"):
        Query(topic.options(stopAt=stop, endingTimestamp="1"))


@pytest.mark.parametrize("is_committed", [True, False])
def test_markers_and_aborted_records_are_no_records_of_a_time(is_committed: bool) -> None:
    """Their times are others: a marker has the time of its commit, in years after those of these records."""
    topic = Topic(1)
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"aborted"], producer=writer, at=BEGIN + 1_000_000)
    writer.abort_transaction(30)
    for number in range(4):
        writer.begin_transaction()
        topic.send([b"%d" % number], producer=writer, at=BEGIN + 1000 * number)
        (writer.commit_transaction if is_committed or number < 3 else writer.abort_transaction)(30)
    last = [b"3"] if is_committed else []
    assert batch(topic.options(endingTimestamp=str(BEGIN + 10_000))) == [b"0", b"1", b"2", *last]
    assert batch(topic.options(endingTimestamp=str(BEGIN + 2000))) == [b"0", b"1"]
    assert Query(topic.options(stopAt=str(BEGIN + 1000))).values() == [b"0"]
    options = {name: value for name, value in topic.options().items() if name != "startingOffsets"}
    assert batch({**options, "startingTimestamp": str(BEGIN + 2000)}) == [b"2", *last]
    with pytest.raises(Misconfigured, match="no record of that time or later"):
        batch({**options, "startingTimestamp": str(BEGIN + 10_000)})


def test_times_of_records_need_not_grow_behind_an_aborted_record() -> None:
    topic = Topic(1)
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"aborted"], producer=writer, at=BEGIN + 1_000_000)
    writer.abort_transaction(30)
    for number in (0, 3, 1, 4):
        writer.begin_transaction()
        topic.send([b"%d" % number], producer=writer, at=BEGIN + 1000 * number)
        writer.commit_transaction(30)
    options = {name: value for name, value in topic.options().items() if name != "startingOffsets"}
    assert batch({**options, "startingTimestamp": str(BEGIN + 3000)}) == [b"3", b"1", b"4"]
    query = Query(topic.options(stopAt=str(BEGIN + 9000)))
    assert query.values() == [b"0", b"3", b"1", b"4"]
    topic.send([b"9"], at=BEGIN + 9000)
    topic.send([b"2"], at=BEGIN + 2000)
    assert query.values() == []


def test_a_stream_goes_on_behind_a_record_that_comes_while_the_time_to_stop_at_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic(1)
    writer = topic.transactional()
    late = [b"b", b"c"]

    def send(value: bytes) -> None:
        writer.begin_transaction()
        topic.send([value], producer=writer)
        writer.commit_transaction(30)

    def scan(*arguments: Any) -> int:
        offset = first_of_time(*arguments)
        if late:
            send(late.pop(0))
        return offset

    first_of_time = cluster._first_of_time
    monkeypatch.setattr(cluster, "_first_of_time", scan)
    send(b"0")  # the marker is later than the time to stop at
    send(b"a")
    query = Query(topic.options(stopAt=str(BEGIN + 9000)))
    assert query.values() == [b"0", b"a", b"b", b"c"]


def test_partitions_are_read_as_assigned(topic: Topic) -> None:
    topic.send([b"a"], 0)
    topic.send([b"b"], 1)
    options = topic.options(assign=json.dumps({topic.name: [1]}))
    del options["subscribe"]
    assert Query(options).values() == [b"b"]


def test_a_topic_that_does_not_exist_is_an_error_with_a_hint(topic: Topic) -> None:
    with pytest.raises(Misconfigured, match=rf'{topic.name}s does not exist; did you mean "{topic.name}'):
        Query(topic.options(subscribe=topic.name + "s")).next()


def test_the_group_learns_of_a_batch_when_the_next_is_planned(topic: Topic) -> None:
    group = fresh("group")
    options = topic.options(**{"kafka.group.id": group})
    query = Query(options)
    topic.send([b"a0", b"a1"], 0)
    assert query.next() is not None
    assert offsets_of(topic, group)[0] < 0, "the batch may not be in the sink yet"
    restarted = Query(options, query.log)
    assert restarted.next() is None
    assert offsets_of(topic, group)[0] == 2
    topic.send([b"a2"], 0)
    restarted.next()
    restarted.planner.committed(restarted.log[-1])
    assert offsets_of(topic, group)[0] == 3


def test_the_group_learns_nothing_if_the_user_says_so(topic: Topic) -> None:
    group = fresh("group")
    options = topic.options(commitOffsets="false", **{"kafka.group.id": group})
    topic.send([b"a"], 0)
    query = Query(options)
    query.values()
    query.planner.committed(query.log[-1])
    assert offsets_of(topic, group)[0] < 0


def test_the_checkpoint_wins_over_the_group(topic: Topic) -> None:
    group = fresh("group")
    options = topic.options(startingOffsets="committed", **{"kafka.group.id": group})
    query = Query(options)
    topic.send([b"a0", b"a1"], 0)
    query.values()
    commit(topic, group, {0: 0})
    assert Query(options, query.log).values() == []


def test_a_start_that_makes_no_sense_is_refused(topic: Topic) -> None:
    with pytest.raises(Misconfigured, match=r"startingOffsets +must not be latest in a batch"):
        batch(topic.options(startingOffsets="latest"))
    with pytest.raises(Misconfigured, match=r"kafka\.group\.id +missing"):
        KafkaSource.of(topic.options(startingOffsets="committed"), streaming=True)
    with pytest.raises(Misconfigured, match=r"endingOffsets +latest ends no stream"):
        KafkaSource.of(topic.options(endingOffsets="latest"), streaming=True)

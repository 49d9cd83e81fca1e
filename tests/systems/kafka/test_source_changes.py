"""Topics that grow, shrink, vanish or are made anew while a query runs, or while it is down."""

from __future__ import annotations

import json
import logging
import time

import pytest

from connectors.core import DataLoss
from connectors.core.planning import INITIAL
from connectors.systems.kafka.positions import OffsetRange

from .reading import Query, batch
from .source_contexts import BEGIN, SCHEMA, Topic, fresh


@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_partition_is_read_from_its_first_record(restarted: bool) -> None:
    topic = Topic(1)
    topic.send([b"old"], 0)
    options = topic.options(startingOffsets="latest")
    query = Query(options)
    assert query.values() == []
    topic.send([b"a"], 0)
    topic.grow(2)
    topic.send([b"b"], 1)
    query = Query(options, query.log) if restarted else query
    assert sorted(query.values()) == [b"a", b"b"]
    topic.send([b"c"], 1)
    assert query.values() == [b"c"]


def test_a_new_partition_is_not_looked_for_before_its_time() -> None:
    topic = Topic(1)
    query = Query(topic.options(discoveryInterval="1h"))
    topic.send([b"a"], 0)
    assert query.values() == [b"a"]
    topic.grow(2)
    topic.send([b"b"], 1)
    assert query.values() == []


def test_a_pattern_finds_topics_that_come_later() -> None:
    prefix = fresh("pattern")
    first = Topic(1, f"{prefix}-a")
    Topic(1, f"not-{prefix}-a").send([b"other"])
    options = first.options(subscribePattern=f"{prefix}-.")
    del options["subscribe"]
    first.send([b"a"])
    query = Query(options)
    assert query.values() == [b"a"]
    Topic(1, f"{prefix}-b").send([b"b"])
    assert query.values() == [b"b"]


def test_a_pattern_finds_a_topic_that_is_called_like_those_of_kafka_and_not_kafkas_own() -> None:
    topic = Topic(1, fresh("__debezium-heartbeat"))
    topic.transactional()  # Kafka has a topic for its state
    options = topic.options(subscribePattern=f"({topic.name}|__consumer_offsets|__transaction_state)")
    del options["subscribe"]
    topic.send([b"a"])
    query = Query(options)
    assert query.values() == [b"a"]
    assert list(query.log[-1]["at"]["topics"]) == [topic.name]


def test_a_deleted_topic_stops_the_query_or_is_left_out() -> None:
    topic, other = Topic(1), Topic(1)
    options = topic.options(subscribe=f"{topic.name},{other.name}")
    topic.send([b"a"])
    query = Query(options)
    query.values()
    topic.delete()
    with pytest.raises(
        DataLoss, match=rf"(?s){topic.name}-0.*the topic is gone.*read up to offset 1.*failOnDataLoss=false"
    ):
        query.next()
    other.send([b"b"])
    assert Query({**options, "failOnDataLoss": "false"}, query.log).values() == [b"b"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_was_made_anew_stops_the_query_though_it_is_longer(restarted: bool) -> None:
    topic = Topic(1)
    topic.send([b"a"])
    options = topic.options(discoveryInterval="1h")
    query = Query(options)
    query.values()
    topic.delete()
    topic.create()
    topic.send([b"b", b"c", b"d"])
    with pytest.raises(DataLoss, match="deleted and made anew"):
        (Query(options, query.log) if restarted else query).next()
    going_on = Query({**options, "failOnDataLoss": "false"}, query.log)
    assert going_on.values() == [b"b", b"c", b"d"]
    topic.send([b"e"])
    assert Query(options, going_on.log).values() == [b"e"]


def test_a_topic_that_is_made_anew_while_a_batch_is_pending_does_not_lend_it_its_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch was planned by a run that is gone, and the new topic has its offsets, too."""
    topic, other = Topic(1), Topic(1)
    options = topic.options(subscribe=f"{topic.name},{other.name}")
    topic.send([b"a", b"b"])
    other.send([b"o"])
    query = Query(options)
    pending = json.loads(json.dumps(query.planner.latest(INITIAL)))
    assert len(query.planner.slices(INITIAL, pending)) > 0
    topic.delete()
    topic.create()
    topic.send([b"c", b"d", b"e"])
    with pytest.raises(DataLoss, match="made anew; a batch that was planned before"):
        Query(options).planner.slices(INITIAL, pending)
    going_on = Query({**options, "failOnDataLoss": "false"})
    with caplog.at_level(logging.WARNING, "connectors.kafka"):
        assert [row["value"] for row in going_on.run(INITIAL, pending)] == [b"o"]
    assert "made anew" in caplog.text
    assert going_on.values() == [b"c", b"d", b"e"]


def test_a_topic_that_is_made_anew_during_a_run_that_ends_does_not_lend_it_its_records() -> None:
    """Such a run asks for the topics only once, at its start."""
    topic = Topic(1)
    topic.send([b"a", b"b", b"c"])
    query = Query(topic.options(maxOffsetsPerTrigger="1"))
    query.planner.freeze()
    assert [row["value"] for row in query.next() or ()] == [b"a"]
    topic.delete()
    topic.create()
    topic.send([b"d", b"e", b"f", b"g"])
    with pytest.raises(DataLoss, match="made anew; a batch that was planned before"):
        query.next()
    assert Query(topic.options(failOnDataLoss="false"), query.log).values() == [b"d", b"e", b"f", b"g"]


@pytest.mark.parametrize("change", ["grown", "made anew"])
def test_a_topic_that_changes_while_the_query_is_down_is_noticed_at_its_start(change: str) -> None:
    topic = Topic(1)
    topic.send([b"a"])
    query = Query(topic.options())
    assert query.values() == [b"a"]
    query.planner.close()
    if change == "grown":
        topic.grow(3)
        topic.send([b"b", b"c"], 2)
        assert Query(topic.options(), query.log).values() == [b"b", b"c"]
    else:
        topic.delete()
        topic.create()
        with pytest.raises(DataLoss, match="deleted and made anew"):
            Query(topic.options(), query.log).next()


@pytest.mark.soak
def test_a_compacted_topic_is_read_over_its_holes() -> None:
    """The brokers' cleaner has to come by, which takes a while."""
    topic = Topic(1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    for number in range(50):
        topic.send([b"old %d" % number], 0, key=b"%d" % (number % 5), at=BEGIN + 1000 * number)
    until = time.monotonic() + 120
    while len(values := batch(topic.options())) == len(topic.rows):
        assert time.monotonic() < until, "the cleaner has not come by"
        topic.send([b"more"], 0, key=b"more", at=BEGIN + 1000 * len(topic.rows))  # the newest segment stays as it is
        time.sleep(1)
    newest = {row["key"]: row["value"] for row in topic.rows}
    assert set(values) >= set(newest.values()), "the newest of each key is there"
    halves = Query(topic.options(minPartitions="7")).values()
    assert set(halves) >= set(newest.values())
    assert len(halves) < len(topic.rows)


def test_expired_records_stop_the_query_or_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic(1)
    topic.send([b"a"])
    query = Query(topic.options())
    query.values()
    topic.send([b"b", b"c", b"d"])
    topic.expire({0: 3})
    with pytest.raises(DataLoss, match="offset 1 comes next, but the first one that is there is 3"):
        query.next()
    with caplog.at_level(logging.WARNING, "connectors.kafka"):
        assert Query(topic.options(failOnDataLoss="false"), query.log).values() == [b"d"]
    assert "offset 1 comes next" in caplog.text


def test_records_that_expire_between_plan_and_read_are_noticed_by_the_task() -> None:
    topic = Topic(1)
    topic.send([b"a", b"b", b"c"])
    for fail, expected in (("true", None), ("false", [b"c"])):
        query = Query(topic.options(failOnDataLoss=fail))
        reader = query.source.reader(SCHEMA)
        topic.expire({0: 2})
        rows = reader.read(OffsetRange(topic.name, 0, 0, 3))
        if expected is None:
            with pytest.raises(DataLoss, match=r"offset 0 of .* comes next, but there are offsets 2 to 2"):
                list(rows)
        else:
            assert [value for batch in rows for value in batch.column("value").to_pylist()] == expected
        reader.close()


def test_a_topic_that_is_deleted_between_plan_and_read_ends_its_range() -> None:
    topic = Topic(1)
    topic.send([b"a"])
    query = Query(topic.options(failOnDataLoss="false"))
    query.log.append(query.planner.latest(INITIAL))
    topic.delete()
    reader = query.source.reader(SCHEMA)
    assert list(reader.read(OffsetRange(topic.name, 0, 0, 1))) == []
    reader.close()


def test_a_partition_that_is_not_read_while_its_topic_is_made_anew_is_read_from_its_first_record() -> None:
    topic = Topic(2)
    topic.send([b"a", b"b"])
    options = {name: value for name, value in topic.options(failOnDataLoss="false").items() if name != "subscribe"}
    both, first = (json.dumps({topic.name: partitions}) for partitions in ([0, 1], [0]))
    query = Query({**options, "assign": both})
    assert sorted(query.values()) == [b"a", b"b"]
    topic.delete()
    topic.create()
    topic.send([b"c", b"d"])
    assert Query({**options, "assign": first}, query.log).values() == [b"c"]
    assert Query({**options, "assign": both, "failOnDataLoss": "true"}, query.log).values() == [b"d"]


def test_topics_that_are_not_read_any_more_keep_their_place() -> None:
    first, second = Topic(1), Topic(1)
    first.send([b"a"])
    second.send([b"b"])
    both = first.options(subscribe=f"{first.name},{second.name}")
    query = Query(both)
    query.values()
    second.send([b"d"])
    first.send([b"c"])
    alone = Query(first.options(), query.log)
    assert alone.values() == [b"c"]
    assert Query(both, alone.log).values() == [b"d"]

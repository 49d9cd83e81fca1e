"""Admission holds back the partitions that are ahead of the slowest one, by the times of their records."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from connectors.core import Fatal, Misconfigured, Problem, Transient
from connectors.core.alignment import AlignmentGroup
from connectors.core.planning import INITIAL
from connectors.storage import storage_of
from connectors.systems.kafka.source import KafkaSource

from .reading import Query
from .source_contexts import BEGIN, Topic

MINUTE = 60_000
DRIFT = {"maxDrift": "5 minutes"}


def minutes(topic: Topic, partition: int, first: int, last: int) -> None:
    """A record for each of the minutes ``first`` up to, not including, ``last``."""
    for minute in range(first, last):
        topic.send([b"%d" % minute], partition, at=BEGIN + minute * MINUTE)


def lateness(query: Query) -> int:
    """By how many minutes a record came after one of an earlier batch that is newer, at most; ``next`` until the end."""
    newest, latest = 0, 0
    while (rows := query.next()) is not None:
        stamps = [int(row["value"]) for row in rows]
        latest = max([latest, *(newest - stamp for stamp in stamps)])
        newest = max([newest, *stamps])
    return latest


def test_no_row_of_a_partition_that_is_behind_is_late() -> None:
    topic = Topic(2)
    minutes(topic, 0, 60, 70)
    minutes(topic, 1, 0, 70)
    aligned = Query(topic.options(**DRIFT))
    aligned.planner.freeze()
    assert lateness(aligned) <= 5
    assert sum(aligned.at(topic.name).values()) == 80
    assert lateness(Query(topic.options(maxRowsPerTrigger="10"))) > 30, "without alignment rows are late"


def test_limits_and_alignment_work_together() -> None:
    topic = Topic(2)
    minutes(topic, 0, 20, 30)
    minutes(topic, 1, 0, 30)
    query = Query(topic.options(maxRowsPerTrigger="4", **DRIFT))
    query.planner.freeze()
    assert lateness(query) <= 5
    assert sum(query.at(topic.name).values()) == 40


def test_a_partition_at_its_end_holds_back_the_others_until_it_is_idle() -> None:
    topic = Topic(2)
    minutes(topic, 0, 0, 1)
    minutes(topic, 1, 0, 30)
    query = Query(topic.options(idleTimeout="1h", **DRIFT))
    assert len(query.values()) == 1 + 6
    assert query.at(topic.name) == {"0": 1, "1": 6}
    assert Query(topic.options(idleTimeout="0s", **DRIFT), query.log).values() == [b"%d" % number for number in range(6, 30)]


def test_a_batch_does_not_wait_for_records_that_are_held_back() -> None:
    topic = Topic(2)
    minutes(topic, 0, 0, 1)
    minutes(topic, 1, 0, 30)
    for least in ("10", "100"):
        query = Query(topic.options(idleTimeout="1h", minOffsetsPerTrigger=least, **DRIFT))
        assert len(query.next() or []) == 1 + 6
    assert not Query(topic.options(minOffsetsPerTrigger="100")).next(), "without alignment it waits"


def test_partitions_without_a_record_hold_back_nobody() -> None:
    topic = Topic(4)
    minutes(topic, 0, 0, 30)
    minutes(topic, 1, 0, 30)
    query = Query(topic.options(idleTimeout="1h", **DRIFT))
    assert lateness(query) <= 5
    assert sum(query.at(topic.name).values()) == 60


def test_a_query_that_ends_is_not_held_back_by_partitions_at_their_end() -> None:
    topic = Topic(2)
    minutes(topic, 0, 0, 1)
    minutes(topic, 1, 0, 30)
    query = Query(topic.options(idleTimeout="1h", **DRIFT))
    query.planner.freeze()
    assert len(query.values()) == 31


def test_disorder_in_a_partition_does_not_stop_it() -> None:
    topic = Topic(2)
    for minute in (0, 50, 1, 2, 40, 3):
        minutes(topic, 0, minute, minute + 1)
    minutes(topic, 1, 0, 60)
    for limit in ({}, {"maxRowsPerTrigger": "3"}):
        query = Query(topic.options(**limit, **DRIFT))
        query.planner.freeze()
        assert len(query.values()) == 66


def test_transactions_do_not_hide_the_times_of_records() -> None:
    topic = Topic(2)
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"aborted"], 0, producer=writer, at=BEGIN - 1000 * MINUTE)
    writer.abort_transaction(30)
    minutes(topic, 0, 60, 70)
    minutes(topic, 1, 0, 70)
    query = Query(topic.options(**DRIFT))
    query.planner.freeze()
    assert lateness(query) <= 5
    assert query.at(topic.name) == {"0": 2 + 10, "1": 70}


@pytest.mark.parametrize("option", ["maxDrift", "idleTimeout"])
def test_durations_are_read_as_everywhere(option: str) -> None:
    values = KafkaSource.of({"kafka.bootstrap.servers": "h:1", "subscribe": "t", option: "5 minutes"}).values
    assert values[option] == 300.0


class OneBroker:
    """A consumer to which only the broker of partition 0 answers, which grows all the time."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._newest: Any = None
        self._until = time.monotonic() + 10

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, seconds: float) -> Any:
        assert time.monotonic() < self._until, "it waits for ever"
        message = self._consumer.poll(0.001 if self._newest else seconds)
        self._newest = self._newest if message is None or message.partition() else message
        return self._newest


def test_a_partition_that_grows_does_not_hide_that_another_one_does_not_answer() -> None:
    topic = Topic(2)
    topic.send([b"a", b"b"])
    cluster = KafkaSource.of(topic.options(), streaming=True).cluster()
    offsets = {(topic.name, 0): 0, (topic.name, 1): 0}
    assert cluster.times(offsets) == {(topic.name, 0): BEGIN, (topic.name, 1): BEGIN + 1}
    cluster.timeout, cluster._peeking = 0.5, OneBroker(cluster._peeking)  # type: ignore[assignment]
    with pytest.raises(Transient, match="no answer in time"):
        cluster.times(offsets)
    cluster.close()


def group(topic: Topic, folder: Path, **more: str) -> dict[str, str]:
    """Options of a source in a group, whose queries share ``folder``."""
    return topic.options(alignmentGroup="orders", stateLocation=str(folder), **{"idleTimeout": "1h", **DRIFT, **more})


def test_a_source_waits_for_the_others_of_its_group(tmp_path: Path) -> None:
    ahead, behind = Topic(1), Topic(1)
    minutes(ahead, 0, 0, 60)
    minutes(behind, 0, 0, 60)
    slow, fast = Query(group(behind, tmp_path, maxRowsPerTrigger="10")), Query(group(ahead, tmp_path))
    for first in (0, 6, 12):
        assert len(slow.next() or []) == 6
        assert fast.values() == [b"%d" % minute for minute in range(first, first + 6)]
    slow.planner.close()
    assert fast.values()[-1] == b"59"
    fast.planner.close()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_query_that_ends_waits_until_the_others_have_come_near(tmp_path: Path) -> None:
    ahead, behind = Topic(1), Topic(1)
    minutes(ahead, 0, 40, 90)
    minutes(behind, 0, 0, 60)
    slow, fast = Query(group(behind, tmp_path, maxRowsPerTrigger="7")), Query(group(ahead, tmp_path))
    slow.planner.freeze()
    fast.planner.freeze()
    slow.next()
    read: list[bytes] = []
    thread = Thread(target=lambda: read.extend(fast.values()))
    thread.start()
    while slow.values():
        pass
    thread.join(30)
    assert read == [b"%d" % minute for minute in range(40, 90)]
    slow.planner.close()
    fast.planner.close()


def test_a_source_whose_driver_is_dead_holds_back_its_group_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = Topic(1), Topic(1)
    minutes(ahead, 0, 40, 60)
    minutes(behind, 0, 0, 60)
    dead = Query(group(behind, tmp_path, idleTimeout="2s"))
    dead.planner.latest(INITIAL)
    alignment: Any = dead.planner.enumerator
    monkeypatch.setattr(alignment._alignment.group._end, "wait", lambda seconds: True)  # as a kill ends its thread
    time.sleep(0.6)
    fast = Query(group(ahead, tmp_path, idleTimeout="2s"))
    assert fast.values() == []
    time.sleep(2)
    assert len(fast.values()) == 20
    fast.planner.close()


def test_a_live_source_with_a_long_batch_holds_back_its_group(tmp_path: Path) -> None:
    ahead, behind = Topic(1), Topic(1)
    minutes(ahead, 0, 40, 60)
    minutes(behind, 0, 0, 60)
    slow, fast = Query(group(behind, tmp_path, idleTimeout="1s")), Query(group(ahead, tmp_path, idleTimeout="1s"))
    slow.planner.latest(INITIAL)
    for _ in range(8):
        time.sleep(0.3)
        assert fast.values() == []
    slow.planner.close()
    assert len(fast.values()) == 20
    fast.planner.close()


def test_a_source_is_dead_by_its_own_idle_time(tmp_path: Path) -> None:
    """One with a longer time shows less often that it lives."""
    ahead, behind = Topic(1), Topic(1)
    minutes(ahead, 0, 40, 60)
    minutes(behind, 0, 0, 60)
    slow, fast = Query(group(behind, tmp_path)), Query(group(ahead, tmp_path, idleTimeout="200ms"))
    slow.planner.latest(INITIAL)
    for _ in range(4):
        assert fast.values() == []
        time.sleep(0.7)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] != []
    slow.planner.close()
    assert len(fast.values()) == 20
    fast.planner.close()


@pytest.mark.parametrize("error", [Transient, Misconfigured, Fatal, OSError])
def test_a_storage_that_refuses_for_a_while_does_not_end_the_signs_of_life(
    tmp_path: Path, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [AlignmentGroup(storage_of(str(tmp_path)), "orders", 0.4) for _ in range(2)]
    storage: Any = groups[0].storage
    groups[0].exchange(7)
    replace, refused = storage.replace, Event()

    def refuse(name: str, content: bytes) -> None:
        storage.replace = replace
        refused.set()
        raise error("s3", [Problem("a", "b")]) if error is Misconfigured else error("no")

    storage.replace = refuse
    assert refused.wait(10)
    for _ in range(8):
        assert groups[1].exchange(None) == [7]
        time.sleep(0.2)
    assert "cannot be told that a source lives" in caplog.text
    for member in groups:
        member.close()

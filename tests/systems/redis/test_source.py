"""The source of Redis Streams: the consumer group, entries of dead consumers, entries that were trimmed, errors."""

from __future__ import annotations

import datetime
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Fatal, Misconfigured, Transient
from connectors.core.epochs import HISTORY
from connectors.ground.errors import DataLoss
from connectors.systems.redis import RedisSource
from connectors.systems.redis.connection import RedisClient
from connectors.systems.redis.source import RedisReceiver
from connectors.testing.compare import same_records
from connectors.testing.servers import RedisServer
from connectors.testing.source_suite import SourceQuery

from .contexts import StreamContext

pytestmark = pytest.mark.server


@pytest.fixture
def system(tmp_path: Path) -> Iterator[StreamContext]:
    folder = tmp_path / "system"
    folder.mkdir()
    context = StreamContext(folder)
    yield context
    context.close()


def numbers(rows: list[dict[str, Any]] | None) -> list[int]:
    return sorted(int(dict(row["fields"])["number"]) for row in rows or [])


def held(system: StreamContext) -> int:
    """The entries that were delivered and are not acknowledged."""
    return int(system.client.xpending(system.stream, system.group)["pending"])


def test_an_entry_is_acknowledged_after_its_batch_and_not_before(system: StreamContext) -> None:
    system.write(5)
    query, log = SourceQuery(system), []
    query.next(log)
    assert held(system) == 5
    query.planner.latest(log[-1])
    assert held(system) == 0


def test_runs_leave_one_consumer(system: StreamContext) -> None:
    log: list[Any] = []
    for parallelism in ("1", "3", "2"):
        system.write(5)
        SourceQuery(system, numPartitions=parallelism).rest(log)
    assert len(system.client.xinfo_consumers(system.stream, system.group)) == 1


def test_a_group_that_is_there_goes_on_where_it_was(system: StreamContext) -> None:
    system.write(5)
    system.client.xgroup_create(system.stream, system.group, "0")
    reply = system.client.xreadgroup(system.group, "somebody", {system.stream: ">"}, count=2)
    (entries,) = dict(reply).values() if isinstance(reply, dict) else [entries for _, entries in reply]
    entries = entries[0] if isinstance(entries[0], list) else entries
    system.client.xack(system.stream, system.group, *(id for id, _ in entries))
    assert numbers(SourceQuery(system).rest([])) == [2, 3, 4]


@pytest.mark.parametrize("position", ["latest", "id"])
def test_a_new_group_begins_where_the_user_says(system: StreamContext, position: str) -> None:
    rows = system.write(3)
    start = position if position == "latest" else rows[1]["id"]
    query, log = SourceQuery(system, startingPosition=start), []
    before = numbers(query.rest(log))
    system.write(2)
    assert before + numbers(query.rest(log)) == ([3, 4] if position == "latest" else [2, 3, 4])


def test_entries_of_a_consumer_that_died_are_claimed_after_min_idle(system: StreamContext) -> None:
    system.write(4)
    system.client.xgroup_create(system.stream, system.group, "0")
    system.client.xreadgroup(system.group, "dead", {system.stream: ">"}, count=3)
    log: list[Any] = []
    assert numbers(SourceQuery(system, minIdle="400ms", maxEpochTime="100ms").rest(log)) == [3]
    time.sleep(0.5)
    assert numbers(SourceQuery(system, minIdle="400ms", maxEpochTime="100ms").rest(log)) == [0, 1, 2]


def test_entries_that_were_deleted_while_a_dead_consumer_held_them_are_data_loss(system: StreamContext) -> None:
    rows = system.write(4)
    system.client.xgroup_create(system.stream, system.group, "0")
    system.client.xreadgroup(system.group, "dead", {system.stream: ">"}, count=3)
    system.client.xdel(system.stream, rows[1]["id"])
    time.sleep(0.15)
    log: list[Any] = []
    for _ in range(2):  # also a task, or a run, that is tried again
        with pytest.raises(DataLoss, match=rf"(?s)1 entries of .* before they were read: {rows[1]['id']}.*failOnDataLoss"):
            SourceQuery(system, minIdle="100ms", maxEpochTime="100ms").rest(log)


def test_of_entries_that_were_deleted_the_others_are_read_when_the_user_says_so(system: StreamContext) -> None:
    rows = system.write(4)
    system.client.xgroup_create(system.stream, system.group, "0")
    system.client.xreadgroup(system.group, "dead", {system.stream: ">"}, count=3)
    system.client.xdel(system.stream, rows[1]["id"])
    time.sleep(0.15)
    query, log = SourceQuery(system, minIdle="100ms", maxEpochTime="100ms", failOnDataLoss="false"), []
    assert numbers(query.rest(log)) == [0, 2, 3]
    query.planner.latest(log[-1])
    assert held(system) == 0


def test_entries_that_are_trimmed_while_they_are_held_for_the_next_run_are_a_loss(system: StreamContext) -> None:
    options = {"minIdle": "300ms", "maxEpochTime": "100ms"}
    system.write(2)
    query, log = SourceQuery(system, **options), []
    query.planner.freeze()
    time.sleep(0.002)  # an id has milliseconds
    system.write(3)
    assert numbers(query.next(log)) == [0, 1]
    query.planner.latest(log[-1])
    system.client.xtrim(system.stream, maxlen=1, approximate=False)
    time.sleep(0.2)  # their leases are extended meanwhile
    query.planner.close()
    time.sleep(0.3)
    with pytest.raises(DataLoss, match=r"2 entries of the stream .* were trimmed or deleted before they were read"):
        SourceQuery(system, **options).next(log)


def test_entries_that_were_trimmed_before_they_were_given_are_counted(system: StreamContext) -> None:
    if int(system.client.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("before Redis 7 a stream does not count its entries")
    system.write(3)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    system.write(5)
    system.client.xtrim(system.stream, maxlen=2, approximate=False)
    with pytest.raises(DataLoss, match=r"(?s)3 entries of the stream .* were trimmed before the group .*failOnDataLoss"):
        SourceQuery(system).rest(log)
    query = SourceQuery(system, failOnDataLoss="false")
    assert numbers(query.rest(log)) == [6, 7]
    assert numbers(SourceQuery(system).rest(log)) == []


def test_entries_that_are_trimmed_before_the_first_read_are_counted(system: StreamContext) -> None:
    if int(system.client.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("before Redis 7 a stream does not count its entries")
    system.write(5)
    system.client.xtrim(system.stream, maxlen=4, approximate=False)  # of what was there before the query nothing is promised
    query = SourceQuery(system)
    log: list[Any] = []
    number = query.plan(log)
    assert number is not None
    system.client.xtrim(system.stream, maxlen=2, approximate=False)
    with pytest.raises(DataLoss, match=r"2 entries of the stream .* were trimmed before the group"):
        query.batch(log, number)
    assert numbers(SourceQuery(system, failOnDataLoss="false").batch(log, number)) == [3, 4]


def test_entries_that_are_trimmed_after_the_plan_stop_the_task(system: StreamContext) -> None:
    system.write(3)
    query, log = SourceQuery(system), []
    number = query.plan(log)
    system.lose()
    assert number is not None
    with pytest.raises(DataLoss, match=r"entries of the stream .* were trimmed"):
        query.batch(log, number)


def test_a_name_that_is_no_text_is_escaped(system: StreamContext) -> None:
    system.client.xadd(system.stream, {b"\xff": b"1"})
    (row,) = SourceQuery(system).next([]) or []
    assert row["fields"] == [("\\xff", b"1")]


def test_a_group_that_was_deleted_is_data_loss(system: StreamContext) -> None:
    system.write(3)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    system.client.xgroup_destroy(system.stream, system.group)
    system.write(2)
    with pytest.raises(DataLoss, match=r'has no group "spark" any more'):
        SourceQuery(system).rest(log)
    assert numbers(SourceQuery(system, failOnDataLoss="false").rest(log)) == [3, 4]  # the others are known by their ids


def test_a_stream_that_was_deleted_is_data_loss(system: StreamContext) -> None:
    system.write(3)
    log: list[Any] = []
    SourceQuery(system).rest(log)
    system.client.delete(system.stream)
    with pytest.raises(DataLoss, match=r'has no group "spark" any more'):
        SourceQuery(system).rest(log)
    query = SourceQuery(system, failOnDataLoss="false")
    assert query.rest(log) == []
    written = system.write(2)
    assert numbers(query.rest(log)) == numbers(written)


def test_a_key_that_holds_no_stream_is_named(system: StreamContext) -> None:
    system.client.set(system.stream, "text")
    with pytest.raises(Fatal, match=r'the key "stream-.*" holds no stream'):
        SourceQuery(system).rest([])


def test_a_wrong_password_is_an_error_at_once_that_does_not_show_it(tmp_path: Path) -> None:
    with RedisServer() as server:
        import redis

        redis.Redis.from_url(server.url).config_set("requirepass", "right-one")
        options = {"host": "127.0.0.1", "port": str(server.port), "stream": "s", "group": "g"}
        source = RedisSource.of({**options, "password": "wrong-one", "stateLocation": str(tmp_path)}, streaming=True)
        begin = time.monotonic()
        with pytest.raises(Fatal, match="Redis refuses the login") as error:
            source.begin()
        assert "wrong-one" not in str(error.value)
        assert time.monotonic() - begin < 5
        RedisSource.of({**options, "password": "right-one", "stateLocation": str(tmp_path)}, streaming=True).begin()


def test_a_server_that_is_away_is_an_outage(tmp_path: Path) -> None:
    options = {"host": "127.0.0.1", "port": "1", "stream": "s", "group": "g", "stateLocation": str(tmp_path)}
    with pytest.raises(Transient, match="Redis does not answer"):
        RedisSource.of(options, streaming=True).begin()


def test_a_server_that_hangs_is_an_outage(tmp_path: Path) -> None:
    with RedisServer() as server:
        values = RedisSource.of(
            {"url": server.url, "stream": "s", "group": "g", "stateLocation": str(tmp_path)}, streaming=True
        ).values
        receiver = RedisReceiver(values)
        receiver.open()
        assert receiver.client.client.get_connection_kwargs()["socket_timeout"] == 10 + 5  # beside drainTimeout
        client = RedisClient("connectors.redis", values, 0.5)
        os.kill(server.children[0].pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(Transient, match="Redis does not answer: TimeoutError"):
            client.command("PING")
        assert time.monotonic() - begin < 2
        os.kill(server.children[0].pid, signal.SIGCONT)


def test_an_answer_has_as_many_entries_as_its_bytes_allow(system: StreamContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's columns of bytes end at 2 GB, which 10,000 entries of 250 KB have together."""
    monkeypatch.setattr("connectors.systems.redis.source._REPLY_BYTES", 500_000)
    receiver = RedisReceiver(RedisSource.of(system.options(), streaming=True).values)
    receiver.open()
    receiver.make_group()
    for number in range(320):
        system.client.xadd(system.stream, {"number": number, "content": b"x" * (10_000 if number < 200 else 1)})
    counts = []
    while (messages := receiver.receive(1_000, 0.01)) is not None:
        counts.append(messages.rows.num_rows)
    assert counts == [100, 49, 49, 49, 73]
    receiver.close()


def test_every_wrong_option_is_named(tmp_path: Path) -> None:
    options = {"stream": "s", "group": "g", "stateLocation": str(tmp_path)}
    with pytest.raises(Misconfigured) as error:
        RedisSource.of({**options, "startingPosition": "yesterday", "url": "http://x", "minIdle": "0s"}, streaming=True)
    for text in ("startingPosition", "yesterday", "url", "redis://", "minIdle"):
        assert text in str(error.value)
    with pytest.raises(Misconfigured, match=r"host +missing; give host or url"):
        RedisSource.of(options, streaming=True)


def test_a_server_that_is_killed_and_comes_back_with_its_data_loses_and_doubles_nothing(tmp_path: Path) -> None:
    server = RedisServer()
    server.append_only = True
    with server:
        system = StreamContext(tmp_path)
        system.server = server
        system.write(10)
        query, log = SourceQuery(system, maxRowsPerTrigger="4"), []
        rows = numbers(query.next(log))
        server.kill()
        server.relaunch()
        system.write(5)
        assert sorted(rows + numbers(query.rest(log))) == list(range(15))
        query.planner.latest(log[-1])
        assert held(system) == 0


@pytest.fixture
def own_system(tmp_path: Path) -> Iterator[StreamContext]:
    """A stream on a server of its own, which may be killed."""
    with RedisServer() as server:
        context = StreamContext(tmp_path)
        context.server = server
        yield context


def all_of(query: SourceQuery, log: list[Any]) -> list[dict[str, Any]]:
    """The rows until nothing waits. An epoch without any may have left out what came again."""
    rows = []
    while (number := query.plan(log)) is not None:
        rows += query.batch(log, number)
    return rows


@pytest.mark.parametrize("min_idle", ["60s", "100ms"], ids=["held at the end", "claimed before"])
def test_a_server_that_is_back_from_an_older_copy_doubles_and_loses_nothing(
    own_system: StreamContext, caplog: pytest.LogCaptureFixture, min_idle: str
) -> None:
    """Also an entry that a dead consumer holds, with an id below those that are committed."""
    system, log = own_system, list[Any]()
    options = {"maxRowsPerTrigger": "2", "deduplicationWindow": "0s", "maxEpochTime": "100ms"}
    written = system.write(2)
    system.client.xgroup_create(system.stream, system.group, "0")
    system.client.xreadgroup(system.group, "dead", {system.stream: ">"})
    written += system.write(2 * HISTORY + 6)
    time.sleep(0.15)
    rows = SourceQuery(system, **options).next(log) or []
    system.client.save()
    query = SourceQuery(system, minIdle=min_idle, **options)
    rows += all_of(query, log)
    assert "older copy" not in caplog.text
    system.server.kill()
    system.server.relaunch()
    written += system.write(3)
    rows += all_of(SourceQuery(system, minIdle="100ms", **options), log)
    same_records(written, rows)
    assert held(system) == 0
    assert ("older copy" in caplog.text) == (min_idle == "100ms")  # else the copy knows as much as was known


def test_a_new_entry_of_a_server_that_took_over_with_a_late_clock_is_read(own_system: StreamContext) -> None:
    system, log = own_system, list[Any]()
    now = int(time.time() * 1000)
    system.client.xadd(system.stream, {"number": 0}, id=f"{now - 20_000}-0")
    system.client.save()
    system.client.xadd(system.stream, {"number": 1}, id=f"{now}-0")
    query = SourceQuery(system)
    assert numbers(query.rest(log)) == [0, 1]
    query.planner.latest(log[-1])
    system.server.kill()
    system.server.relaunch()
    SourceQuery(system, failOnDataLoss="false").source.begin()  # the copy is older than the group
    system.client.xadd(system.stream, {"number": 2}, id=f"{now - 10_000}-0")
    assert numbers(SourceQuery(system).rest(log)) == [2]


def test_ids_that_are_no_times_are_read_by_a_query_that_ends(system: StreamContext) -> None:
    now = int(time.time() * 1000)
    ids = [now, now + 3_600_000, now * 1000, now * 1_000_000, 2**64 - 1]  # also an hour ahead, as after a clock that went back
    for number, id in enumerate(ids):
        system.client.xadd(system.stream, {"number": number}, id=f"{id}-0")
    query = SourceQuery(system)
    query.planner.freeze()
    rows = query.rest([])
    assert numbers(rows) == [0, 1, 2, 3, 4]
    first = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(milliseconds=now)
    assert [row["timestamp"] for row in rows] == [first, first + datetime.timedelta(hours=1), None, None, None]


def test_a_query_ends_with_what_there_was_by_the_clock_of_the_server(
    system: StreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.write(3)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    query = SourceQuery(system)
    query.planner.freeze()
    assert numbers(query.rest([])) == [0, 1, 2]

"""``commit=task``: each task commits its rows with its own row of the ledger."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, CommitRefused, Misconfigured, Poison, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Verdict
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import LockTimeout
from connectors.systems.jdbc.dialects.base import Dialect
from connectors.testing.servers import HOST, MariaDbServer, PostgresServer
from tests.servers import optional, required

from .contexts import DatabaseContext, TaskContext, TaskMariaDbContext, table_in
from .proxy import Proxy
from .test_operations import ROWS, UPSERT, content, rows

QUERY = "33333333-query"
SLOTS = rows((1, "a", 1), (2, "b", 2)), rows((3, "c", 3))
ALL = [(1, "a", 1), (2, "b", 2), (3, "c", 3)]


class Keyless(TaskContext):
    body = "id BIGINT, name VARCHAR(100), n INTEGER"


class KeylessOnMariaDb(TaskMariaDbContext):
    body = Keyless.body


database = table_in(postgresql=Keyless, mariadb=KeylessOnMariaDb)
on_postgresql = table_in(postgresql=Keyless)


def sink_of(database: DatabaseContext, number: int = 0, **options: str) -> tuple[JdbcSink, Batch]:
    """A sink that is ready for the tasks of a batch."""
    sink: Any = JdbcSink.of({**database.options(), **options})
    batch = Batch(sink.sink_id(), QUERY, number)
    return sink.with_slots(batch), batch


def write(sink: JdbcSink, batch: Batch, slot: int, part: Any) -> Any:
    return stage(sink, batch, ROWS, slot, iter([part]))


def write_all(sink: JdbcSink, batch: Batch, parts: Any = SLOTS) -> None:
    Commit(sink).finish(batch, [write(sink, batch, slot, part) for slot, part in enumerate(parts)])


def test_rows_are_visible_task_by_task_and_a_replay_writes_only_what_is_missing(database: DatabaseContext) -> None:
    sink, batch = sink_of(database)
    write(sink, batch, 0, SLOTS[0])  # and the run dies
    assert content(database) == ALL[:2]
    assert Commit(sink).begin(batch) is Verdict.WRITE
    write_all(sink, batch)
    assert content(database) == ALL
    assert Commit(sink).begin(batch) is Verdict.SKIP


def test_a_replay_keeps_the_number_of_slots_and_the_next_batch_may_have_another(database: DatabaseContext) -> None:
    slots = [sink_of(database, batch, numPartitions=number)[0].slots for batch, number in ((0, "3"), (0, "5"), (1, "5"))]
    assert slots == [3, 3, 5]


def test_of_two_attempts_at_a_slot_the_second_waits_and_writes_nothing(database: DatabaseContext) -> None:
    sink, batch = sink_of(database)
    first = sink.writer(batch, ROWS, 0)
    first.write(SLOTS[0])
    first._load()  # type: ignore[attr-defined]
    results: list[Any] = []
    second = threading.Thread(target=lambda: results.append(write(sink, batch, 0, SLOTS[0])))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    committable = first.prepare()
    first.close()
    second.join(30)
    assert results == [committable]
    assert content(database) == ALL[:2]


def test_an_attempt_that_is_given_up_leaves_its_slot_to_the_next(database: DatabaseContext) -> None:
    sink, batch = sink_of(database)
    first = sink.writer(batch, ROWS, 0)
    first.write(SLOTS[0])
    first._load()  # type: ignore[attr-defined]
    first.close()
    assert content(database) == []
    write_all(sink, batch)
    assert content(database) == ALL


def test_a_task_of_an_older_batch_is_refused(database: DatabaseContext) -> None:
    old, first = sink_of(database)
    write_all(old, first)
    write_all(*sink_of(database, 1))
    with pytest.raises(CommitRefused, match="newer batch"):
        write(old, first, 0, SLOTS[0])
    with pytest.raises(CommitRefused, match="newer batch"):
        sink_of(database, 0)
    assert content(database) == sorted(ALL * 2)


def test_a_replay_with_other_rows_is_refused_unless_that_is_allowed(database: DatabaseContext) -> None:
    sink, batch = sink_of(database)
    write(sink, batch, 0, SLOTS[0])
    for parts in ((SLOTS[1], SLOTS[1]), (SLOTS[0].slice(0, 0), SLOTS[1])):
        with pytest.raises(CommitRefused, match=r"(?s)the tasks 0 of batch 0 .* onReplayMismatch"):
            write_all(sink, batch, parts)
    write_all(*sink_of(database, onReplayMismatch="skip"), (SLOTS[1], SLOTS[1]))
    assert content(database) == ALL


def test_rows_are_changed_and_deleted_by_key(database: DatabaseContext) -> None:
    database.run(f"CREATE UNIQUE INDEX by_id ON {database.table} (id)")
    write_all(*sink_of(database, **UPSERT), SLOTS)
    write_all(*sink_of(database, 1, **UPSERT, orderColumn="n"), (rows((1, "new", 9), (1, "old", 8)), rows((4, "d", 4))))
    assert content(database) == [(1, "new", 9), *ALL[1:], (4, "d", 4)]
    sink, batch = sink_of(database, 2, operation="update", keyColumns="id")
    write_all(sink, batch, (rows((2, "B", 7)), rows((9, "nobody", 1))))
    assert content(database) == [(1, "new", 9), (2, "B", 7), (3, "c", 3), (4, "d", 4)]


def test_a_refused_row_leaves_nothing_of_its_task(database: DatabaseContext) -> None:
    database.run(f"ALTER TABLE {database.table} ADD CONSTRAINT small CHECK (n < 3)")
    sink, batch = sink_of(database)
    with pytest.raises(Poison):
        write_all(sink, batch)
    assert content(database) == ALL[:2]
    database.run(f"ALTER TABLE {database.table} DROP CONSTRAINT small")
    write_all(sink, batch)
    assert content(database) == ALL


@pytest.mark.parametrize("when", ["before", "at", "after"])
def test_a_task_whose_connection_is_lost_around_its_commit_is_tried_again(on_postgresql: Keyless, when: str) -> None:
    with Proxy(required(PostgresServer).port) as proxy:
        sink, batch = sink_of(on_postgresql, url=f"postgresql://{HOST}:{proxy.port}/postgres")
        writer = sink.writer(batch, ROWS, 0)
        writer.write(SLOTS[0])
        writer._load()  # type: ignore[attr-defined]
        proxy.arm("COMMIT", when)
        with pytest.raises(Transient) if when != "after" else contextlib.suppress(Transient):  # the answer may come in time
            writer.prepare()
        writer.close()
        assert proxy.dropped == 1
        write_all(sink, batch)
    assert content(on_postgresql) == ALL


def test_the_server_ends_the_session_of_a_task_whose_commit_got_lost(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "idle_seconds", 1.0)
    server = (required(PostgresServer) if isinstance(database, Keyless) else optional(MariaDbServer)).port
    with Proxy(server) as proxy:
        url = database.address()["url"].replace(f":{server}/", f":{proxy.port}/")
        sink, batch = sink_of(database, url=url, **{"request.timeout": "5s"})
        writer = sink.writer(batch, ROWS, 0)
        writer.write(SLOTS[0])
        writer._load()  # type: ignore[attr-defined]
        assert not writer._is_written  # type: ignore[attr-defined]
        proxy.arm("COMMIT", "half")
        with pytest.raises(Transient):
            writer.prepare()
        writer.close()
        write_all(sink, batch)
    assert content(database) == ALL


def test_an_attempt_that_keeps_a_slot_from_the_next_is_named(database: DatabaseContext) -> None:
    sink, batch = sink_of(database, **{"request.timeout": "1s"})
    first: Any = sink.writer(batch, ROWS, 0)
    first.write(SLOTS[0])
    first._load()
    named = "SELECT pg_backend_pid()" if isinstance(database, Keyless) else "SELECT connection_id()"
    number = first._loader.connection.rows(named)[0][0]
    try:
        with pytest.raises(LockTimeout, match=rf"session {number} of "):
            write(sink, batch, 0, SLOTS[0])
    finally:
        first.close()


def test_elsewhere_it_is_refused_by_name(on_postgresql: Keyless) -> None:
    sink: Any = JdbcSink.of(on_postgresql.options())
    with pytest.raises(Misconfigured, match="task needs foreach_batch"):
        write(sink, Batch(sink.sink_id(), QUERY, 0), 0, SLOTS[0])
    assert content(on_postgresql) == []


def test_a_query_that_gives_other_rows_each_time_is_refused_before_any_task(on_postgresql: Keyless) -> None:
    sink = JdbcSink.of(on_postgresql.options())
    sink.check_replay(lambda: True)
    with pytest.raises(Misconfigured, match="Take commit=batch"):
        sink.check_replay(lambda: False)
    others = {name: value for name, value in on_postgresql.options().items() if name not in ("commit", "numPartitions")}
    JdbcSink.of(others).check_replay(lambda: False)


def test_a_replay_without_rows_is_compared_with_what_an_earlier_run_has_written(tmp_path: Path) -> None:
    with contextlib.closing(Keyless(tmp_path / "target")) as database:
        sink, batch = sink_of(database)
        write(sink, batch, 0, SLOTS[0])  # and the run dies
        with pytest.raises(CommitRefused, match=r"the tasks 0 of .* have other rows"):
            Commit(sink_of(database)[0]).finish(batch, [], 0)
        Commit(sink_of(database, 0, onReplayMismatch="skip")[0]).finish(batch, [], 0)
        empty = JdbcSink.of(database.options())
        Commit(empty).finish(Batch(empty.sink_id(), QUERY, 1), [], 0)

"""The staging table that all tasks of a batch fill: late attempts, and how much a task and a commit ask of the database."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from connectors.core import Batch, Fatal
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import Connection
from connectors.systems.jdbc.dialects import Table
from connectors.systems.jdbc.load import AdbcConnection
from connectors.systems.jdbc.stage import drop, stage_of, stage_prefix
from connectors.testing.servers import PostgresServer

from .contexts import DatabaseContext, table_in
from .faults import BATCH, EXPECTED, Keyless, KeylessOnMariaDb, batch_of, sink_of, staged
from .test_operations import UPSERT, content, rows

database = table_in(postgresql=Keyless, mariadb=KeylessOnMariaDb)
on_postgresql = table_in(postgresql=Keyless)


def write(sink: JdbcSink, batch: Batch, tasks: int, threads: int = 1) -> list[Any]:
    """One row of each task."""
    with ThreadPoolExecutor(threads) as pool:
        parts = [rows((number, "x", number)) for number in range(tasks)]
        return list(pool.map(lambda part: stage(sink, batch, part.schema, 0, iter([part])), parts))


def stages(database: DatabaseContext, sink: JdbcSink) -> list[str]:
    """The staging tables of ``sink``."""
    with contextlib.closing(database.connect()) as connection:
        return connection.dialect.tables(connection, database.table.split(".")[0], stage_prefix(sink.sink_id()))


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """Collects what is sent to a database meanwhile, but for COPY and transactions."""
    sent: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Connection, AdbcConnection):
            for name in ("execute", "rows", "many"):
                method = vars(kind).get(name)
                if method is not None:
                    patch.setattr(kind, name, _collecting(method, sent))
        yield sent


def _collecting(method: Any, sent: list[str]) -> Any:
    def collect(self: Any, sql: str, *values: Any) -> Any:
        sent.append(sql)
        return method(self, sql, *values)

    return collect


def test_a_commit_asks_as_much_for_many_tasks_as_for_few_and_each_task_as_much_as_another(database: DatabaseContext) -> None:
    sink, commit = sink_of(database), Commit(sink_of(database))
    commit.finish(batch_of(sink), write(sink, batch_of(sink), 1))  # makes the ledger
    asked = []
    for number, tasks in ((1, 3), (2, 12)):
        batch = batch_of(sink, number)
        write(sink, batch, 1)  # makes the table
        with statements() as by_tasks:
            committables = write(sink, batch, tasks)
        with statements() as by_driver:
            commit.finish(batch, committables)
        asked.append((len(by_tasks) / tasks, len(by_driver), max(map(len, by_driver)) // (tasks * 25 + 1000)))
    assert asked[0] == asked[1]
    assert asked[0][2] == 0, "a statement has a number for each task, and nothing else"
    assert len(content(database)) == 16
    assert database.leftovers() in ([], None)


def test_rows_of_attempts_that_spark_has_not_taken_stay_out(database: DatabaseContext) -> None:
    """A task that was tried again, one that was given up and ends late, and one that comes when all is written."""
    database.run(f"CREATE UNIQUE INDEX by_id ON {database.table} (id)")
    for number, options in enumerate(({}, UPSERT, {**UPSERT, "orderColumn": "n"}, {"operation": "update", "keyColumns": "id"})):
        sink = sink_of(database, sinkId=str(number), **options)
        batch, wrong = batch_of(sink), rows((1, "wrong", 9), (9, "wrong", 9))
        stage(sink, batch, wrong.schema, 0, iter([wrong]))
        committables = staged(sink, batch)
        stage(sink, batch, wrong.schema, 1, iter([wrong]))
        Commit(sink).finish(batch, committables)
        stage(sink, batch, wrong.schema, 1, iter([wrong]))
        assert content(database) == EXPECTED
    bad = sink_of(database, sinkId="bad", errors="skip")
    stage(bad, batch_of(bad), wrong.schema, 0, iter([wrong]))
    part = rows((1, "a key that is there", 1), (4, "d", 4))
    Commit(bad).finish(batch_of(bad), [stage(bad, batch_of(bad), part.schema, 0, iter([part]))])
    assert content(database) == [*EXPECTED, (4, "d", 4)]


def test_an_attempt_that_stands_still_holds_up_nothing(database: DatabaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.systems.jdbc.load.LOADED_AT_ONCE", 1)
    sink = sink_of(database, **{"request.timeout": "20s"})
    batch = batch_of(sink)
    writer = sink.writer(batch, BATCH[0].schema, 0)
    writer.write(BATCH[0])
    committables, began = staged(sink, batch), time.monotonic()
    Commit(sink).finish(batch, committables)
    assert time.monotonic() - began < 15
    assert content(database) == EXPECTED
    with contextlib.suppress(Fatal):  # where the table could go
        writer.prepare()
    writer.close()
    Commit(sink).drop_attempts(batch_of(sink, run="another"))
    assert (content(database), database.leftovers() or []) == (EXPECTED, [])


def test_a_stage_that_a_late_task_has_used_or_made_anew_goes_with_the_next_batch(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.systems.jdbc.load.LOADED_AT_ONCE", 1)
    sink = sink_of(database)
    first, second, next_one = batch_of(sink), batch_of(sink, 1, run="another"), batch_of(sink, 2)
    with contextlib.closing(sink.writer(first, BATCH[0].schema, 0)) as late:
        late.write(BATCH[0])
        Commit(sink).finish(first, staged(sink, first))
    stage(sink, first, BATCH[0].schema, 0, iter([BATCH[0]]))
    assert len(stages(database, sink)) == 1
    staged(sink, next_one)
    Commit(sink).finish(second, staged(sink, second))
    assert stages(database, sink) == [stage_of(next_one)]


SLOW_ANALYZE = (
    "autovacuum_analyze_threshold = 0, autovacuum_analyze_scale_factor = 0, autovacuum_vacuum_cost_delay = 100, "
    "autovacuum_vacuum_cost_limit = 1"
)
WORKERS = "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE backend_type = 'autovacuum worker' AND relation = {}"


def test_a_stage_that_autovacuum_looks_at_is_dropped() -> None:
    with PostgresServer(autovacuum_naptime="1s") as server:
        dialect = JdbcSink.of({"url": server.jdbc, "user": server.user, "dbtable": "any"}).dialect()
        with contextlib.closing(dialect.connect()) as connection:
            connection.execute(f"CREATE TABLE cst_stage (text TEXT) WITH ({SLOW_ANALYZE})")
            connection.execute("INSERT INTO cst_stage SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
            while not connection.rows(WORKERS.format("'cst_stage'::regclass")):
                time.sleep(0.05)
            drop(connection, Table("cst_stage"))
            assert dialect.tables(connection, "", "cst_") == []


def test_a_stage_that_another_run_drops_and_a_late_task_makes_anew_is_not_taken_for_whole(database: DatabaseContext) -> None:
    sink = sink_of(database)
    slow = batch_of(sink, run="slow")
    committables = staged(sink, slow)
    Commit(sink).drop_attempts(batch_of(sink, run="fast"))
    staged(sink, slow)
    with pytest.raises(Fatal, match="3 rows were staged and 0 are there"):
        Commit(sink).finish(slow, committables)
    assert content(database) == []


def test_a_stage_cannot_go_between_the_look_at_its_rows_and_their_move(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(database, **{"request.timeout": "2s"})
    slow = batch_of(sink, run="slow")
    committables, commit = staged(sink, slow), Commit(sink)
    check_keys = "connectors.systems.jdbc.stage.StageMove.check_keys"
    monkeypatch.setattr(check_keys, lambda _: sink.committer().drop_attempts(batch_of(sink, run="fast")))  # type: ignore[union-attr]
    commit.finish(slow, committables)
    assert content(database) == EXPECTED


def test_tasks_that_begin_at_once_share_one_table(database: DatabaseContext) -> None:
    for number in range(3):
        sink = sink_of(database)
        batch, barrier = batch_of(sink, number), threading.Barrier(6)

        def run(number: int, sink: JdbcSink = sink, batch: Batch = batch, barrier: threading.Barrier = barrier) -> Any:
            part = rows((number, "x", number))
            writer = sink.writer(batch, part.schema, 0)
            writer.write(part)
            barrier.wait(60)
            committable = writer.prepare()
            writer.close()
            return committable

        with ThreadPoolExecutor(6) as pool:
            committables: Sequence[Any] = list(pool.map(run, range(6)))
        Commit(sink).finish(batch, committables)
        assert len(content(database)) == 6 * (number + 1)


def test_other_tables_beside_the_target_are_not_listed(database: DatabaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB opens each table of which it tells more than the name."""
    schema = database.table.split(".")[0]
    for number in range(50):
        database.run(f"CREATE TABLE {schema}.other{number} (id INT)")
    counts: list[int] = []
    ask = Connection.rows

    def counted(self: Connection, sql: str, values: Any = ()) -> Any:
        answer = ask(self, sql, values)
        counts.append(len(answer))
        return answer

    sink = sink_of(database)
    batch, commit = batch_of(sink), Commit(sink)
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "rows", counted)
        commit.begin(batch)
        commit.drop_attempts(batch)
        commit.finish(batch, staged(sink, batch))
    assert content(database) == EXPECTED
    assert max(counts) < 10


@pytest.mark.soak
def test_twelve_thousand_tasks_are_committed(on_postgresql: Keyless) -> None:
    sink = sink_of(on_postgresql)
    batch = batch_of(sink)
    committables = write(sink, batch, 12_000, threads=4)
    began = time.monotonic()
    Commit(sink).finish(batch, committables)
    assert time.monotonic() - began < 60
    assert on_postgresql.query(f"SELECT count(*), sum(n) FROM {on_postgresql.table}") == [(12_000, 12_000 * 11_999 // 2)]

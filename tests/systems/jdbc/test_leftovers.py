"""What runs that ended early have left, and who finishes or removes it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, CommitRefused, DataLoss, Fatal, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, Verdict
from connectors.core.writing import stage
from connectors.ground.state import digest
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.ledger import TableLedger
from connectors.systems.jdbc.prepared import PreparedTransactions
from connectors.systems.jdbc.stage import stage_prefix
from connectors.systems.jdbc.target import table_of
from connectors.testing import in_a_child
from connectors.testing.servers import PostgresServer

from .contexts import DatabaseContext, PostgresContext, Preparing, SqliteContext, table_in
from .faults import BATCH, EXPECTED, Keyless, KeylessOnMariaDb, Prepare, PrepareOnMariaDb, batch_of, sink_of, staged
from .test_operations import content


class KeylessInAFile(SqliteContext):
    body = Keyless.body


database = table_in(batch=Keyless, prepared=Prepare)
preparing = table_in(postgresql=Prepare, mariadb=PrepareOnMariaDb)
keyless = table_in(batch=Keyless)
on_postgresql = table_in(prepared=Prepare)


def prepared(database: DatabaseContext) -> int:
    """How many prepared transactions there are of the sink."""
    return len(database.prepared()) if isinstance(database, Preparing) else 0


def stages(database: PostgresContext) -> list[Any]:
    schema = database.table.split(".")[0]
    return database.query(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename LIKE 'cst%'")


def test_a_transaction_whose_session_still_lives_is_waited_for(tmp_path: Path) -> None:
    """The session of a task ends a moment after its client; one that stays, on a machine that is lost, is an outage."""
    with contextlib.closing(PrepareOnMariaDb(tmp_path / "target")) as database:
        sink = sink_of(database, **{"retry.maxRetries": "0", "outageTimeout": "0s"})
        batch = batch_of(sink)
        writer = sink.writer(batch, BATCH[0].schema, 0)
        writer.write(BATCH[0])
        committable = writer.prepare()
        with pytest.raises(Transient, match="is still there"):
            Commit(sink).finish(batch, [committable])
        writer.close()
        assert Commit(sink).begin(batch) is Verdict.SKIP
        assert content(database) == EXPECTED[:2]


def test_a_sink_of_the_same_name_in_another_database_keeps_its_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.systems.jdbc.prepared.ABANDONED_SECONDS", -1.0)
    with contextlib.closing(PrepareOnMariaDb(tmp_path / "target")) as database:
        sink = sink_of(database, sinkId="one name")
        staged(sink, batch_of(sink, 5))
        schema = database.table.split(".")[0]
        elsewhere = sink_of(database, sinkId="one name", url=database.address()["url"].replace("/test", f"/{schema}"))
        Commit(elsewhere).begin(batch_of(elsewhere))
        with contextlib.closing(sink.dialect().connect()) as connection:
            prefix = f"connectors-{digest(sink.sink_id())}-"
            assert len(connection.dialect.prepared(connection, prefix)) == 2
            Commit(sink).begin(batch_of(sink))
            assert connection.dialect.prepared(connection, prefix) == {}


def test_a_table_without_a_schema_in_its_name_has_the_ledger_and_stages_beside_it(tmp_path: Path) -> None:
    class Visible(Keyless):
        own_schema = ""

    with contextlib.closing(Visible(tmp_path / "target")) as database:
        sink = sink_of(database, stagingRetention="0s")
        staged(sink, batch_of(sink, 5))
        Commit(sink).finish(batch_of(sink), staged(sink, batch_of(sink)))
        assert Commit(sink).begin(batch_of(sink)) is Verdict.SKIP
        prefix = stage_prefix(sink.sink_id())
        assert database.query(f"SELECT relname FROM pg_class WHERE starts_with(relname, '{prefix}')") == []


def test_nothing_is_left_after_a_batch_that_was_committed_or_given_up(database: PostgresContext) -> None:
    sink = sink_of(database)
    batch = batch_of(sink)
    Commit(sink).finish(batch, staged(sink, batch))
    assert (stages(database), prepared(database)) == ([], 0)
    later = batch_of(sink, 1)
    committables = staged(sink, later)
    assert (len(stages(database)), prepared(database)) == ((0, 2) if isinstance(database, Preparing) else (1, 0))
    Commit(sink).abort(later, committables)
    assert (stages(database), prepared(database)) == ([], 0)


def test_transactions_that_a_dead_run_prepared_are_rolled_back_with_their_batch(preparing: Preparing) -> None:
    sink = sink_of(preparing)
    batch = batch_of(sink)
    staged(sink, batch)  # and the run dies
    assert prepared(preparing) == 2
    commit = Commit(sink)
    assert commit.begin(batch) is Verdict.WRITE
    commit.finish(batch, staged(sink, batch))
    assert prepared(preparing) == 0
    assert content(preparing) == EXPECTED


@pytest.mark.parametrize("kind", [Keyless, Prepare, PrepareOnMariaDb])
def test_a_run_drops_what_earlier_runs_of_its_batch_have_staged(kind: type[DatabaseContext], tmp_path: Path) -> None:
    with contextlib.closing(kind(tmp_path / "target")) as database:
        sink = sink_of(database)
        first, second = batch_of(sink, run="first"), batch_of(sink, run="second")
        staged(sink, first)
        staged(sink, batch_of(sink, 5))
        own = staged(sink, second)
        commit = Commit(sink)
        each = 2 if isinstance(database, Preparing) else 1  # transactions, or the table of a batch
        assert len(database.leftovers() or []) == 3 * each
        commit.drop_attempts(second)
        assert len(database.leftovers() or []) == 2 * each
        commit.finish(second, own)
        assert content(database) == EXPECTED
        staged(sink, batch_of(sink, 5, run="third"))
        commit.drop_attempts(batch_of(sink, 5, run="third"), failed=True)
        assert database.leftovers() == []


@pytest.mark.parametrize("kind", [Keyless, KeylessOnMariaDb, KeylessInAFile, Prepare, PrepareOnMariaDb])
def test_a_run_whose_stage_another_one_has_dropped_writes_nothing(kind: type[DatabaseContext], tmp_path: Path) -> None:
    with contextlib.closing(kind(tmp_path / "target")) as database:
        sink = sink_of(database)
        slow, fast = batch_of(sink, run="slow"), batch_of(sink, run="fast")
        committables = staged(sink, slow)
        Commit(sink).drop_attempts(fast)
        with pytest.raises(Fatal, match=r"(?s)another run of the query|one run of the query write at a time"):
            Commit(sink).finish(slow, committables)
        assert content(database) == []
        Commit(sink).finish(fast, staged(sink, fast))
        assert content(database) == EXPECTED


def test_a_run_spares_what_the_ledger_has_decided(preparing: Preparing, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_of(preparing)
    batch = batch_of(sink, run="first")
    committables = staged(sink, batch)
    staged(sink, batch)
    assert in_a_child(lambda: _die_after(0, sink, batch, committables)) == -signal.SIGKILL
    commit = Commit(sink)
    commit.drop_attempts(batch_of(sink, run="second"))
    assert prepared(preparing) == 2
    assert commit.begin(batch) is Verdict.SKIP
    assert (content(preparing), prepared(preparing)) == (EXPECTED, 0)


def test_starts_that_fail_do_not_use_up_the_prepared_transactions_of_the_server(tmp_path: Path) -> None:
    """The driver dies after its three tasks, or the last of them fails for good; in the end the cause is mended."""
    with PostgresServer(max_prepared_transactions="7") as server:
        sink = JdbcSink.of({"url": server.jdbc, "user": server.user, "dbtable": "t", "createTable": "true",
                            "commit": "prepared", "retry.maxRetries": "0", "outageTimeout": "0s"})  # fmt: skip
        parts = (*BATCH, BATCH[0])

        def start(number: int) -> tuple[Commit, Batch, list[Any]]:
            commit, batch = Commit(sink), batch_of(sink, run=f"run {number}")
            assert commit.begin(batch) is Verdict.WRITE
            commit.drop_attempts(batch)
            return commit, batch, [stage(sink, batch, rows.schema, index, iter([rows])) for index, rows in enumerate(parts)]

        for number in range(6):
            commit, batch, committables = start(number)
            if number % 2:
                commit.abort(batch, [*committables[:2], None])
        commit, batch, committables = start(6)
        commit.finish(batch, committables)
        with contextlib.closing(sink.dialect().connect()) as connection:
            assert sorted(connection.rows("SELECT id, name, n FROM t")) == sorted([*EXPECTED, *EXPECTED[:2]])
            assert connection.rows("SELECT gid FROM pg_prepared_xacts") == []


def test_they_are_rolled_back_by_a_run_that_commits_in_another_way_too(preparing: Preparing) -> None:
    sink = sink_of(preparing)
    batch = batch_of(sink)
    staged(sink, batch)
    assert prepared(preparing) == 2
    other = sink_of(preparing, commit="batch")
    assert Commit(other).begin(batch) is Verdict.WRITE
    Commit(other).finish(batch, staged(other, batch))
    assert prepared(preparing) == 0
    assert content(preparing) == EXPECTED


def test_transactions_that_nobody_decided_are_rolled_back_when_they_are_old(
    preparing: Preparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(preparing)
    staged(sink, batch_of(sink, 5))
    Commit(sink).begin(batch_of(sink, 0))
    assert prepared(preparing) == 2
    monkeypatch.setattr("connectors.systems.jdbc.prepared.ABANDONED_SECONDS", -1.0)
    Commit(sink).begin(batch_of(sink, 0))
    assert prepared(preparing) == 0


def test_a_decided_batch_is_carried_through_by_the_next_run(preparing: Preparing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is killed after the decision, and after each of its two transactions."""
    for survived in range(3):
        sink = sink_of(preparing, sinkId=f"killed after {survived}")
        batch = batch_of(sink)
        committables = staged(sink, batch)
        assert in_a_child(lambda: _die_after(survived, sink, batch, committables)) == -signal.SIGKILL  # noqa: B023
        assert Commit(sink).begin(batch) is Verdict.SKIP
        assert content(preparing) == sorted(EXPECTED * (survived + 1))


def _die_after(count: int, sink: JdbcSink, batch: Batch, committables: list[Any]) -> None:
    commits, dialect = 0, type(sink.dialect())
    inner = dialect.commit_prepared

    def commit_prepared(self: Any, connection: Any, name: str) -> None:
        nonlocal commits
        if commits == count:
            os.kill(os.getpid(), signal.SIGKILL)
        inner(self, connection, name)
        commits += 1

    dialect.commit_prepared = commit_prepared  # type: ignore[method-assign]
    if count == 2:
        TableLedger.amend = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    Commit(sink).finish(batch, committables)


def test_a_batch_whose_prepared_transactions_are_gone_is_not_decided(preparing: Preparing) -> None:
    sink = sink_of(preparing)
    batch = batch_of(sink)
    committables = staged(sink, batch)
    with contextlib.closing(preparing.connect()) as connection:
        prepared_by_sink = PreparedTransactions(connection, table_of(preparing.table), sink.sink_id())
        prepared_by_sink.roll_back([committables[0].data["prepared"]])
    with pytest.raises(Fatal, match="1 of 2 prepared transactions of the batch are gone"):
        Commit(sink).finish(batch, committables)
    assert content(preparing) == []
    Commit(sink).abort(batch, committables)
    assert prepared(preparing) == 0


def test_a_decided_transaction_that_somebody_rolls_back_is_an_error_until_its_rows_are_there(preparing: Preparing) -> None:
    sink = sink_of(preparing)
    batch = batch_of(sink)
    committables = staged(sink, batch)
    assert in_a_child(lambda: _die_after(0, sink, batch, committables)) == -signal.SIGKILL
    with contextlib.closing(preparing.connect()) as connection:
        connection.dialect.rollback_prepared(connection, committables[1].data["prepared"])
    for _ in range(2):
        with pytest.raises(DataLoss, match="1 of 2 prepared transactions of a batch that is decided were rolled back") as lost:
            Commit(sink).begin(batch)
    assert content(preparing) == EXPECTED[:2]
    preparing.run(f"INSERT INTO {preparing.table} VALUES (3, 'c', 3)")
    preparing.run(lost.value.way_out.split("say so by ")[1].split(";")[0])
    assert Commit(sink).begin(batch) is Verdict.SKIP
    assert Commit(sink).begin(batch) is Verdict.SKIP
    assert content(preparing) == EXPECTED
    assert preparing.query(f"SELECT * FROM {preparing.table.split('.')[0]}.connectors_prepared") == []


def test_a_driver_does_not_roll_back_what_another_one_is_about_to_commit(preparing: Preparing) -> None:
    """The first driver stands still between its check and its decision, until the second one waits for it."""
    sink = sink_of(preparing)
    first, second = batch_of(sink, run="first"), batch_of(sink, run="second")
    slow, committables = Commit(sink), staged(sink, first)
    assert slow.begin(first) is Verdict.WRITE
    checked, decided = threading.Event(), threading.Event()
    record = slow.committer._transaction  # type: ignore[union-attr]

    def stand_still(*what: Any) -> None:
        checked.set()
        assert decided.wait(60)
        record(*what)

    slow.committer._transaction = stand_still  # type: ignore[union-attr]

    def replay() -> None:
        commit = Commit(sink)
        assert commit.begin(second) is Verdict.WRITE
        commit.drop_attempts(second)
        commit.finish(second, staged(sink, second), rows=3)

    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(slow.finish, first, committables, 3)]
        assert checked.wait(60)
        ends.append(threads.submit(replay))
        while not ends[1].done() and not waits_for_lock(preparing):
            pass
        decided.set()
        for end in ends:
            end.result(60)
    assert (content(preparing), prepared(preparing)) == (EXPECTED, 0)


def waits_for_lock(database: DatabaseContext) -> bool:
    """True while a session waits for another one's lock."""
    on_mariadb = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
    on_postgresql = "SELECT 1 FROM pg_locks WHERE NOT granted"
    return bool(database.query(on_mariadb if isinstance(database, PrepareOnMariaDb) else on_postgresql))


def test_of_two_runs_with_one_batch_only_one_comes_through(database: PostgresContext) -> None:
    sink = sink_of(database)
    batch = batch_of(sink)
    first, second = staged(sink, batch), staged(sink, batch)
    slow = Commit(sink)
    slow.begin(batch)
    Commit(sink).finish(batch, first)
    with pytest.raises(CommitRefused, match="another run"):
        slow.committer.commit(Entry(batch.query, 0, 3), second)  # type: ignore[union-attr]
    assert content(database) == EXPECTED


def test_the_staging_of_dead_runs_is_swept_when_it_is_old(keyless: Keyless) -> None:
    sink = sink_of(keyless)
    staged(sink, batch_of(sink, 7))
    Commit(sink).begin(batch_of(sink))
    assert len(stages(keyless)) == 1
    eager = sink_of(keyless, stagingRetention="0s")
    eager.committer().sweep(frozenset({batch_of(sink, 7).prefix()}))  # type: ignore[union-attr]
    assert len(stages(keyless)) == 1
    eager.committer().sweep(frozenset())  # type: ignore[union-attr]
    assert stages(keyless) == []


def test_prepared_says_what_the_server_lacks(tmp_path: Path) -> None:
    with PostgresServer(max_prepared_transactions="0") as server:
        address = {"url": server.jdbc, "user": server.user, "dbtable": "t", "createTable": "true"}
        sink = JdbcSink.of({**address, "commit": "prepared"})
        with pytest.raises(Misconfigured, match="max_prepared_transactions"):
            staged(sink, batch_of(sink))


def test_by_default_a_batch_is_seen_as_a_whole_also_where_the_server_can_prepare(on_postgresql: Prepare) -> None:
    """Each look of a reader finds all rows of the batch or none; ``prepared`` would show those of one task first."""
    for mode in ("auto", None):
        options = {name: value for name, value in on_postgresql.options().items() if name != "commit"}
        sink = JdbcSink.of({**options, **({"commit": mode} if mode else {}), "sinkId": f"mode {mode}"})
        committables = staged(sink, batch_of(sink))
        assert all("stage" in committable.data for committable in committables)
        assert on_postgresql.prepared() == []
        Commit(sink).finish(batch_of(sink), committables)
    writers = f"SELECT count(DISTINCT xmin::text), count(*) FROM {on_postgresql.table}"
    assert on_postgresql.query(writers) == [(2, 6)], "one transaction for each batch"


def test_a_task_that_fails_leaves_no_row_and_no_transaction(database: PostgresContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.systems.jdbc.load.LOADED_AT_ONCE", 1)  # so that rows are in the database by then

    def rows_and_an_error() -> Iterator[Any]:
        yield BATCH[0]
        raise ValueError("the query has an error")

    sink = sink_of(database)
    with pytest.raises(ValueError, match="the query"):
        stage(sink, batch_of(sink), BATCH[0].schema, 0, rows_and_an_error())
    schema = database.table.split(".")[0]
    assert [database.query(f"SELECT * FROM {schema}.{name}") for (name,) in stages(database)] in ([], [[]])
    assert prepared(database) == 0
    Commit(sink).drop_attempts(batch_of(sink), failed=True)
    assert stages(database) == []

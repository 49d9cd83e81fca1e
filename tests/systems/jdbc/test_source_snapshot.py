"""All partitions of a read see one moment on PostgreSQL, whatever is written between them, or the read fails."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.core.source import Slice
from connectors.ground.errors import Fatal
from connectors.systems.jdbc import snapshot
from connectors.testing.servers import PostgresServer

from .batch_reading import BatchRead, fill, read, table_of
from .contexts import DatabaseContext, PostgresContext

HOLDERS = "application_name LIKE 'connectors-moment-%' AND state = 'idle in transaction'"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[DatabaseContext]:
    with contextlib.closing(table_of(PostgresContext, "id INT, k INT", tmp_path)) as context:
        fill(context, [(n, n) for n in range(40)])
        yield context


@pytest.fixture
def moved(table: DatabaseContext) -> Any:
    """Moves rows from the last partitions to the first and back, removes some and adds others: what a writer may do."""

    def move() -> None:
        table.run(f"UPDATE {table.table} SET k = 39 - k")
        table.run(f"DELETE FROM {table.table} WHERE id % 5 = 0")
        fill(table, [(100 + n, n) for n in range(40)])

    return move


def ids(scan: BatchRead, part: Slice) -> list[int]:
    return [row["id"] for batch in scan.batches(part) for row in batch.to_pylist()]


def through_writes(scan: BatchRead, move: Any) -> list[int]:
    numbers: list[int] = []
    for part in scan.parts():
        numbers += ids(scan, part)
        move()
    return sorted(numbers)


def test_a_writer_between_the_partitions_changes_nothing(table: DatabaseContext, moved: Any) -> None:
    assert through_writes(read(table, partitionColumn="k", numPartitions=4), moved) == list(range(40))


def test_without_a_snapshot_it_does(table: DatabaseContext, moved: Any) -> None:
    numbers = through_writes(read(table, partitionColumn="k", numPartitions=4, snapshot="false"), moved)
    assert numbers != list(range(40))


def _child(scan: BatchRead, part: Slice, pipe: Any) -> None:
    pipe.send(json.dumps(ids(scan, part)))
    pipe.recv()


def test_processes_share_the_moment_and_each_of_them_keeps_it(table: DatabaseContext, moved: Any) -> None:
    scan = read(table, partitionColumn="k", numPartitions=4)
    parts = scan.parts()
    numbers = ids(scan, parts[0])
    moved()
    parent_end, child_end = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(scan, parts[1], child_end))
    child.start()
    numbers += json.loads(parent_end.recv())
    moved()
    snapshot._close_all()  # as if the process that began the moment had ended
    numbers += ids(scan, parts[2])
    moved()
    parent_end.send("end")
    child.join()
    numbers += ids(scan, parts[3])
    assert sorted(numbers) == list(range(40))


def test_each_action_sees_a_moment_of_its_own(table: DatabaseContext) -> None:
    scan = read(table, partitionColumn="k", numPartitions=2)
    parts = scan.parts()
    assert len(ids(scan, replace(parts[0], run="1"))) == 20
    table.run(f"DELETE FROM {table.table} WHERE id % 2 = 0")
    assert len(ids(scan, replace(parts[1], run="1"))) == 20
    assert sum(len(ids(scan, replace(part, run="2"))) for part in parts) == 20


def test_when_nobody_holds_the_moment_any_more_the_read_fails(table: DatabaseContext) -> None:
    scan = read(table, partitionColumn="k", numPartitions=3)
    parts = scan.parts()
    ids(scan, parts[0])
    table.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {HOLDERS}")
    with pytest.raises(Fatal, match=r"(?s)the moment .* is gone.*snapshot=false"):
        ids(scan, parts[1])
    fresh = read(table, partitionColumn="k", numPartitions=3).parts()
    with pytest.raises(Fatal, match="is gone"):
        ids(scan, replace(fresh[1], retried=True))
    assert len(ids(scan, fresh[1])) + len(ids(scan, replace(fresh[0], retried=True))) > 0


def test_a_lost_connection_goes_on_at_the_same_moment(table: DatabaseContext, moved: Any) -> None:
    scan = read(table, partitionColumn="k", numPartitions=2, fetchsize=4)
    first, second = scan.parts()
    batches = scan.batches(first)
    numbers = [row["id"] for row in next(batches).to_pylist()]
    moved()
    # rows that are in the client's buffer would still come: what is broken is the next statement
    reader: Any = scan.source.reader(scan.schema)
    reader.open()
    (split,) = scan.source.enumerator().splits_of(first)
    numbers += [row["id"] for batch in reader.resume(split, 4) for row in batch.to_pylist()]
    reader.close()
    numbers += ids(scan, second)
    assert sorted(numbers) == list(range(40))


def test_what_holds_a_moment_locks_no_table_and_ends(table: DatabaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot._close_all()  # those of other tests
    monkeypatch.setattr(snapshot, "LINGER", 0.2)
    scan = read(table, partitionColumn="k", numPartitions=2)
    assert len(scan.rows()) == 40
    table.run(f"SET lock_timeout = 500; ALTER TABLE {table.table} ADD COLUMN more INT")
    running = f"SELECT count(*) FROM pg_stat_activity WHERE {HOLDERS}"
    while table.query(running) != [(0,)]:
        pass


def test_one_partition_needs_no_moment(table: DatabaseContext) -> None:
    scan = read(table)
    (part,) = scan.parts()
    assert part.detail["moment"] == ""


def test_a_connection_that_was_kept_is_replaced_after_a_restart_of_the_server() -> None:
    with PostgresServer() as server:
        scan = BatchRead(
            {"url": server.jdbc, "user": server.user, "query": "SELECT 1 AS a", "retry.maxRetries": 0, "outageTimeout": "0s"}
        )
        assert scan.rows() == [{"a": 1}]
        server.kill()
        server.relaunch()
        assert scan.rows() == [{"a": 1}]

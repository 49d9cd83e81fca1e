"""Change data capture of a hard workload, killed again and again: the Delta tables equal those of the database.

``SEED`` chooses another workload and other kills, ``KILLS`` the number of rounds, ``SWITCHES`` what the workload does
(``-blocking,+infinity``; see :mod:`tests.systems.cdc.switches`), ``RECORDS=1`` keeps the records of each batch as Parquet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.testing.environments import CLUSTER
from connectors.testing.servers import MariaDbServer, MySqlServer, PostgresServer
from tests.servers import optional, required
from tests.systems.cdc.kills import jvm, planner_at_a_point, task
from tests.systems.cdc.mariadb import MariaDbWorkload, MySqlWorkload
from tests.systems.cdc.rounds import Rounds
from tests.systems.cdc.switches import ALTERATIONS, SNAPSHOTS, environment_switches
from tests.systems.cdc.workload import PostgresWorkload, Workload

pytestmark = pytest.mark.server
SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("KILLS", "200"))


@contextmanager
def rounds_of(workload: Workload, folder: Path, **options: Any) -> Iterator[Rounds]:
    rounds = Rounds(workload, folder, **options)
    try:
        yield rounds
    finally:
        rounds.close()
        workload.close()


@pytest.mark.soak
def test_a_few_rounds(tmp_path: Path) -> None:
    """What a driver outlives: each start of Spark costs ten seconds."""
    workload = PostgresWorkload(required(PostgresServer), tmp_path, SEED, environment_switches())
    workload.statements.most_rows = 200
    kills = {jvm: 1.0, planner_at_a_point: 1.0, task: 1.0}
    with rounds_of(workload, tmp_path, rows=100, kills=kills) as rounds:
        rounds.run(3)


@pytest.mark.soak
@pytest.mark.parametrize("environment", ["local[2,4]", CLUSTER])
def test_a_whole_database_by_one_sink(tmp_path: Path, environment: str, capsys: pytest.CaptureFixture[str]) -> None:
    count = min(50 if environment != CLUSTER else 20, ROUNDS)
    workload = PostgresWorkload(required(PostgresServer), tmp_path, SEED, environment_switches())
    with rounds_of(workload, tmp_path, environment=environment, is_whole=True) as rounds:
        rounds.run(count)
    with capsys.disabled():
        print("", *rounds.report, sep="\n")


@pytest.mark.soak
def test_tables_that_evolve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = PostgresWorkload(required(PostgresServer), tmp_path, SEED, environment_switches() | {"evolve"})
    with rounds_of(workload, tmp_path, is_whole=True) as rounds:
        rounds.run(min(30, ROUNDS), quiet_every=2)
    with capsys.disabled():
        print("", *rounds.report, sep="\n")


@pytest.mark.soak
@pytest.mark.spark
def test_tables_of_all_types_that_are_equal_are_so_to_the_comparison_that_users_have(spark: Any, tmp_path: Path) -> None:
    workload = PostgresWorkload(required(PostgresServer), tmp_path, SEED, environment_switches())
    with rounds_of(workload, tmp_path, is_whole=True) as rounds:
        for number in range(min(4, ROUNDS)):
            workload.work(rounds.rows, number)
        rounds.quiet_point(0)
        compared = connect.compare(workload.database(), f"{tmp_path}/", tables=["orders", "items"]).collect()
        assert all(row.rows > 100 and row.left_out == [] for row in compared)
        assert [row for row in compared if row.missing or row.extra or row.different] == []


@pytest.mark.soak
def test_without_kills(tmp_path: Path) -> None:
    """The workload alone, with a run of the query to its end after each round."""
    workload = PostgresWorkload(required(PostgresServer), tmp_path, SEED, environment_switches())
    with rounds_of(workload, tmp_path) as rounds:
        for number in range(min(10, ROUNDS)):
            rounds.report.append(f"round {number}: {workload.work(rounds.rows, number)}")
            rounds.quiet_point(number)


@pytest.mark.soak
@pytest.mark.parametrize("environment", ["local[2,4]", CLUSTER])
def test_many_rounds(tmp_path: Path, environment: str, capsys: pytest.CaptureFixture[str]) -> None:
    count = min(100 if environment != CLUSTER else 20, ROUNDS)
    workload = PostgresWorkload(required(PostgresServer), tmp_path, SEED, environment_switches())
    with rounds_of(workload, tmp_path, environment=environment) as rounds:
        rounds.run(count)
    with capsys.disabled():
        print("", *rounds.report, sep="\n")


@pytest.mark.soak
@pytest.mark.parametrize("without", [SNAPSHOTS, ALTERATIONS], ids=["without snapshots", "without new columns"])
@pytest.mark.parametrize(
    ("kind", "server"), [(MariaDbWorkload, MariaDbServer), (MySqlWorkload, MySqlServer)], ids=["mariadb", "mysql"]
)
def test_many_rounds_of_a_binary_log(
    tmp_path: Path, without: frozenset[str], kind: type[MariaDbWorkload], server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debezium notes the columns that a snapshot has seen for the binary log before it, too: both at once is not promised."""
    workload = kind(optional(server), tmp_path, SEED, environment_switches() - without)
    with rounds_of(workload, tmp_path) as rounds:
        rounds.run(min(30, ROUNDS))
    with capsys.disabled():
        print("", *rounds.report, sep="\n")

"""The pipelines that follow a whole database: killed, and then compared table by table."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.testing.demo_servers import WholeDatabase
from connectors.testing.demos import demo

from .pipeline_jobs import Job
from .quickstart import run
from .whole_database import database_tables, delta_tables, sqlite_tables


@pytest.mark.long
@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
def test_a_whole_database_is_equal_after_kills_also_its_new_table_for_a_user_who_may_read_and_replicate(
    spark: Any, tmp_path: Path
) -> None:
    own = demo("cdc_database", str(tmp_path / "own"))
    assert isinstance(own, WholeDatabase)
    job = Job("cdc_database_to_delta", tmp_path, source="sales", database_hostname=own.address, database_user="follower")
    job.parameters["options"] = '{"maxRowsPerTrigger": "150"}'
    refused, output = job.run()
    assert not refused
    assert 'role "follower" does not exist' in output
    own.feed("sales", 300)
    with own.connect() as database:
        database.execute("CREATE ROLE follower LOGIN REPLICATION")
        database.execute("GRANT USAGE ON SCHEMA sales TO follower")
        database.execute("GRANT SELECT ON ALL TABLES IN SCHEMA sales TO follower")

    def commits(table: str) -> int:
        return len(list((job.target / table / "_delta_log").glob("*.json")))

    code, output = run(job.name, job.parameters, lambda: commits("orders") > 2)
    assert code == -signal.SIGKILL, output
    succeeded, output = job.run()
    assert succeeded, output
    assert delta_tables(job.target) == database_tables(own, "sales")
    own.feed("sales", 300)  # the table of returns is new
    with own.connect() as database:
        database.execute("ALTER TABLE sales.cities ADD COLUMN country text DEFAULT 'CH'")
        database.execute("UPDATE sales.cities SET country = 'IT' WHERE city = 'Lugano'")
    code, output = run(job.name, job.parameters, lambda: commits("returns") > 1)
    assert code == -signal.SIGKILL, output
    succeeded, output = job.run()
    assert succeeded, output
    assert delta_tables(job.target) == database_tables(own, "sales")
    database_options = {"url": own.server.jdbc, "user": own.server.user}
    compared = connect.compare(database_options, f"{job.target}/").collect()
    assert {row.table for row in compared} == database_tables(own, "sales").keys()
    assert [row for row in compared if row.missing or row.extra or row.different or row.left_out] == []
    spark.sql(f"INSERT INTO delta.`{job.target}/returns` SELECT * FROM delta.`{job.target}/returns` LIMIT 1")
    succeeded, output = job.run("quality")
    assert not succeeded
    assert "unique(order_id, part): 2 of" in output


@pytest.mark.long
@pytest.mark.soak
@pytest.mark.spark
def test_tables_that_queries_follow_are_equal_after_kills(spark: Any, tmp_path: Path) -> None:
    own = demo("jdbc_database", str(tmp_path / "own"))
    job = Job("jdbc_database_to_delta", tmp_path, source=".*", url=own.address, options='{"maxRowsPerTrigger": "60"}')

    def commits() -> int:
        return len(list((job.target / "orders" / "_delta_log").glob("*.json")))

    gone: set[int] = set()
    for kill_at in (2, 9):  # commits: a day has five or more; the table of returns is new on the second day
        own.feed()
        gone |= {row["id"] for row in sqlite_tables(own.folder / "orders.db")["orders"]}
        code, output = run(job.name, job.parameters, lambda least=kill_at: commits() >= least)
        assert code == -signal.SIGKILL, output
        succeeded, output = job.run()
        assert succeeded, output
    expected, copied = sqlite_tables(own.folder / "orders.db"), delta_tables(job.target)
    gone -= {row["id"] for row in expected["orders"]}
    assert len(gone) == 15
    copied["orders"] = [row for row in copied["orders"] if row["id"] not in gone]
    assert copied == expected

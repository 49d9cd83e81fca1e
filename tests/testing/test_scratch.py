"""Systems in which a proof makes names of its own: what is put is there, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.testing.demo import orders_of
from connectors.testing.sampling import wait_until
from connectors.testing.scratch import SCRATCH, Scratch, Slots
from connectors.testing.servers import (
    DynamoDbServer,
    KafkaServer,
    KinesisServer,
    MariaDbServer,
    MotoServer,
    OpenSearchServer,
    PostgresServer,
    RedisServer,
)
from tests.servers import optional, required

ACCOUNT = {"accessKeyId": "test", "secretAccessKey": "test"}


def postgres(folder: Path) -> Scratch:
    server = required(PostgresServer)
    return SCRATCH["jdbc"](server.jdbc, {"user": server.user})


def mariadb(folder: Path) -> Scratch:
    server = optional(MariaDbServer)
    return SCRATCH["jdbc"](server.jdbc, {"user": server.user, "password": server.password})


def bucket(folder: Path) -> Scratch:
    options = {"storageOptions": json.dumps(required(MotoServer).bucket("scratch-of-tests"))}
    return SCRATCH["files"]("s3://scratch-of-tests/*.parquet", options)


def changes(folder: Path) -> Scratch:
    server = required(PostgresServer)
    return SCRATCH["cdc"](f"127.0.0.1:{server.port}", {"database_user": server.user})


SYSTEMS: dict[str, Callable[[Path], Scratch]] = {
    "kafka": lambda folder: SCRATCH["kafka"](required(KafkaServer).bootstrap, {}),
    "kinesis": lambda folder: SCRATCH["kinesis"]("us-east-1", {"endpoint": required(KinesisServer).url, **ACCOUNT}),
    "dynamodb": lambda folder: SCRATCH["dynamodb"]("us-east-1", {"endpoint": optional(DynamoDbServer).url, **ACCOUNT}),
    "redis": lambda folder: SCRATCH["redis"](required(RedisServer).url, {}),
    "elasticsearch": lambda folder: SCRATCH["elasticsearch"](required(OpenSearchServer).url, {}),
    "sqlite": lambda folder: SCRATCH["jdbc"](f"jdbc:sqlite:{folder}/orders.db", {}),
    "postgresql": postgres,
    "mariadb": mariadb,
    "changes": changes,
    "files": lambda folder: SCRATCH["files"](str(folder), {}),
    "s3": bucket,
    "lines": lambda folder: SCRATCH["lines"](str(folder), {}),
}


SLOW = {"kinesis", "elasticsearch", "mariadb", "s3"}
"""Systems whose servers take long to start."""


@pytest.mark.server
@pytest.mark.parametrize("system", [pytest.param(name, marks=pytest.mark.soak if name in SLOW else ()) for name in SYSTEMS])
def test_a_name_is_made_filled_and_removed_and_no_other_is_touched(system: str, tmp_path: Path) -> None:
    scratch = SYSTEMS[system](tmp_path)
    scratch.create("scratch_other")
    scratch.put("scratch_other", list(orders_of(0, 3)))
    assert not scratch.exists("scratch_orders")
    for _ in range(2):
        scratch.create("scratch_orders")
        scratch.put("scratch_orders", list(orders_of(0, 20)))
        assert scratch.exists("scratch_orders")
        scratch.drop("scratch_orders")
        wait_until(lambda: not scratch.exists("scratch_orders"))
        assert scratch.exists("scratch_other")
    scratch.drop("scratch_other")


@pytest.mark.server
def test_a_slot_is_removed_though_a_dead_pipeline_holds_it_and_no_other_is(tmp_path: Path) -> None:
    import psycopg
    from psycopg import pq

    server = required(PostgresServer)
    slots = Slots(f"127.0.0.1:{server.port}", {"database_user": server.user})
    with psycopg.connect(server.url, user=server.user, autocommit=True) as connection:
        for name in ("scratch_slot", "scratch_slot_2"):
            connection.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        connection.execute("CREATE PUBLICATION scratch_slot")
        assert slots.exists("Scratch-Slot")
        login = f"host=127.0.0.1 port={server.port} user={server.user} dbname=postgres replication=database"
        login += " options='-c wal_sender_timeout=0'"  # else the server itself ends it after a minute
        pipeline = pq.PGconn.connect(login.encode())
        options = "(proto_version '1', publication_names 'scratch_slot')"
        answer = pipeline.exec_(f"START_REPLICATION SLOT scratch_slot LOGICAL 0/0 {options}".encode())
        assert answer.status == pq.ExecStatus.COPY_BOTH
        slots.drop("Scratch-Slot")
        pipeline.finish()
        assert not slots.exists("Scratch-Slot")
        assert slots.exists("scratch_slot_2")
        slots.drop("scratch_slot_2")
        assert not slots.exists("scratch_slot_2")

"""A Java sink in its child JVM: the file sink of Connect, and Debezium's JDBC sink against a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.connect.errors import ConnectException
from connectors.connect.host import HEADERS, SINK_COLUMNS
from connectors.connect.java.sink_host import JavaSinkHost
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM_JDBC, FILES, exists, settings
from tests.servers import required

FILE_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


def rows(values: Any, key: Any = None, first: int = 0) -> pa.Table:
    """Rows of one partition of the topic ``t``."""
    value = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    count = len(value)
    columns = {
        "topic": pa.repeat("t", count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "key": key if key is not None else pa.nulls(count),
        "value": value,
        "headers": pa.nulls(count, HEADERS),
        "timestamp": pa.nulls(count, pa.timestamp("us", tz="UTC")),
    }
    return pa.table(columns).select(list(SINK_COLUMNS))


@contextmanager
def started(properties: dict[str, str], package: str = FILES, **more: Any) -> Iterator[JavaSinkHost]:
    host = JavaSinkHost(settings(properties, package, **more))
    try:
        yield host
    finally:
        host.close()


def file_sink(path: Path, **more: str) -> dict[str, str]:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return {"connector.class": FILE_SINK, "name": "out", "topics": "t", "file": str(path), **named}


def test_records_are_written_when_the_task_flushes_and_the_jvm_stays_for_the_next_batch(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with started(file_sink(path, value__converter="StringConverter")) as host:
        for number in range(2):
            task = host.task(0, ["t"])
            assert task.put(rows([f"line {number}".encode(), b"x"], first=2 * number)) == []
            assert task.flush() == []
            task.close()
        jvm = host.pid
        assert path.read_text() == "line 0\nx\nline 1\nx\n"
    assert not exists(jvm)


def test_a_row_that_no_converter_reads_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with started(file_sink(path, errors__tolerance="all")) as host:
        task = host.task(0, ["t"])
        letters = task.put(rows([b'"good"', b"{bad", b'"better"', b"{", b'"best"']))
        task.flush()
    assert path.read_text() == "good\nbetter\nbest\n"
    assert [(letter.offset, letter.value, letter.stage) for letter in letters] == [
        (1, b"{bad", "VALUE_CONVERTER"),
        (3, b"{", "VALUE_CONVERTER"),
    ]
    assert letters[0].error_class == "org.apache.kafka.connect.errors.DataException"
    with started(file_sink(path)) as host, pytest.raises(ConnectException, match="DataException"):
        host.task(0, ["t"]).put(rows([b"{bad"]))


@pytest.mark.soak
def test_transforms_run_in_the_jvm(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    transform = {
        "transforms": "only",
        "transforms.only.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
        "transforms.only.field": "name",
    }
    values = pa.array([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], pa.struct([("id", pa.int32()), ("name", pa.string())]))
    with started({**file_sink(path), **transform}) as host:
        task = host.task(0, ["t"])
        task.put(rows(values))
        task.flush()
    assert path.read_text() == "a\nb\n"


@pytest.mark.soak
def test_a_jvm_that_dies_before_the_flush_is_replaced_and_no_row_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with started(file_sink(path)) as host:
        task = host.task(0, ["t"])
        task.put(rows([b'"one"']))
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        task.put(rows([b'"two"'], first=1))
        task.flush()
    assert {"one", "two"} <= set(path.read_text().split())


@pytest.mark.server
def test_debezium_upserts_typed_rows_into_a_database() -> None:
    import psycopg

    server = required(PostgresServer)
    properties = {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "name": "table",
        "topics": "t",
        "connection.url": server.jdbc,
        "connection.username": "postgres",
        "connection.password": "sesame",
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "id",
        "schema.evolution": "basic",
        "collection.name.format": "java_sink",
    }
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("price", pa.decimal128(10, 2))])
    values = [{"id": number, "name": f"n{number}", "price": number} for number in range(50)]
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres", autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS java_sink")
        with started(properties, DEBEZIUM_JDBC) as host:
            task = host.task(0, ["t"])
            for _ in range(2):  # a replay
                task.put(rows(pa.array(values, kind)))
                task.flush()
        content = database.execute("SELECT id, name, price::int FROM java_sink ORDER BY id").fetchall()
    assert content == [(row["id"], row["name"], row["price"]) for row in values]


@pytest.mark.soak
def test_wrong_settings_of_a_sink_are_told_at_once(tmp_path: Path) -> None:
    wrong = {**file_sink(tmp_path / "x"), "tasks.max": "none", "value.converter": "no.such.Converter"}
    assert {problem.option for problem in JavaSinkHost(settings(wrong)).validate()} == {"tasks.max", "value.converter"}
    source = {**wrong, "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector"}
    problems = [problem.text for problem in JavaSinkHost(settings(source)).validate() if problem.option == "connector.class"]
    assert len(problems) == 1
    assert "is no sink connector" in problems[0]
    assert json.dumps(wrong)

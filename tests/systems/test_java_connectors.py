"""Java connectors as sources and sinks of Spark: files, a database, queues of SQS, and MariaDB's changes into Delta."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from connectors import connect
from connectors.testing.servers import MariaDbServer, MotoServer, PostgresServer
from tests.connect.java_sources import (
    CAMEL_SQS,
    DEBEZIUM_JDBC,
    DEBEZIUM_MARIADB,
    FILES,
    file_properties,
    mariadb_properties,
    sqs_properties,
)
from tests.servers import optional, required

pytestmark = pytest.mark.soak
FILE_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


def test_lines_go_through_spark_from_a_java_source_into_a_java_sink(spark: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"line {number}\n" for number in range(100)))
    strings = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    rows = (
        spark.readStream.format("connectors.connect")
        .option("config", json.dumps({**file_properties(source), **strings}))
        .option("pluginPackages", FILES)
        .option("stateLocation", str(tmp_path / "state"))
        .option("drainTimeout", "2s")
        .load()
    )
    sink = {"connector.class": FILE_SINK, "name": "out", "topics": "lines", "file": str(target), **strings}
    writer = rows.select("topic", "value").writeStream.format("connectors.connect")
    writer = writer.option("config", json.dumps(sink)).option("pluginPackages", FILES)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    for more in ("", "more\n"):
        source.write_text(source.read_text() + more)
        writer.start().awaitTermination()
    expected = [*(f"line {number}" for number in range(100)), "more"]
    assert sorted(target.read_text().splitlines()) == sorted(expected)


@pytest.mark.server
def test_typed_rows_are_upserted_by_debeziums_jdbc_sink(spark: Any) -> None:
    import psycopg

    server = required(PostgresServer)
    config = {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "name": "table",
        "topics": "java_sink_spark",
        "connection.url": server.jdbc,
        "connection.username": "postgres",
        "connection.password": "x",
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "id",
        "schema.evolution": "basic",
    }
    rows = spark.range(500).selectExpr("cast(id AS int) AS id", "concat('n', id) AS name", "id / 4 AS price")
    for _ in range(2):
        writer = rows.repartition(2).write.format("connectors.connect").mode("append")
        writer.option("config", json.dumps(config)).option("pluginPackages", DEBEZIUM_JDBC).save()
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres") as database:
        totals = database.execute("SELECT count(*), sum(id), sum(price) FROM java_sink_spark").fetchone()
    assert totals == (500, 124750, 31187.5)


@pytest.mark.server
def test_messages_of_sqs_go_through_spark_into_another_queue_by_camel(spark: Any, tmp_path: Path) -> None:
    """The source's JVM is killed meanwhile. Messages that it had not acknowledged come again, and none is lost."""
    server = required(MotoServer)
    sqs = server.client("sqs")
    orders = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "20"})["QueueUrl"]
    copies = sqs.create_queue(QueueName="copies")["QueueUrl"]
    rows = (
        spark.readStream.format("connectors.connect")
        .option("config", json.dumps(sqs_properties("source", "orders", server.url)))
        .option("pluginPackages", CAMEL_SQS)
        .option("stateLocation", str(tmp_path / "state"))
        .load()
    )
    writer = rows.selectExpr("'copies' AS topic", "value").writeStream.format("connectors.connect")
    writer = writer.option("config", json.dumps(sqs_properties("sink", "copies", server.url)))
    writer = writer.option("pluginPackages", CAMEL_SQS).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="500 milliseconds").start()
    try:
        send(sqs, orders, range(200))
        arrived = receive(sqs, copies, 200)
        send(sqs, orders, range(200, 400))
        (connector,) = subprocess.check_output(["pgrep", "-f", "connectors.connector=orders"], text=True).split()
        os.kill(int(connector), signal.SIGKILL)
        arrived |= receive(sqs, copies, 200, arrived)
    finally:
        query.stop()
    assert arrived == {f"order {number}" for number in range(400)}


@pytest.mark.server
def test_a_table_of_mariadb_and_its_copy_in_delta_are_equal_through_a_dead_connector(spark: Any, tmp_path: Path) -> None:
    import pymysql

    server = optional(MariaDbServer)
    with pymysql.connect(host="127.0.0.1", port=server.port, user="app", password="app", autocommit=True) as database:
        cursor = database.cursor()
        for statement in (
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id int PRIMARY KEY, name varchar(40), amount decimal(10, 2))",
            "INSERT INTO shop.orders VALUES " + ", ".join(f"({n}, 'n{n}', {n}.25)" for n in range(200)),
        ):
            cursor.execute(statement)
        config = mariadb_properties(server.port, "shop", 5401, tmp_path / "history.dat")
        stream = spark.readStream.format("connectors.connect").option("config", json.dumps(config))
        rows = stream.option("pluginPackages", DEBEZIUM_MARIADB).option("stateLocation", str(tmp_path / "state")).load()
        writer = rows.writeStream.foreachBatch(connect.merge(str(tmp_path / "orders")))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(processingTime="200 milliseconds").start()
        try:
            await_equal(spark, cursor, tmp_path / "orders", "id, name, amount")
            cursor.execute("UPDATE shop.orders SET amount = amount + 1 WHERE id % 3 = 0")
            (connector,) = subprocess.check_output(["pgrep", "-f", "connectors.connector=mariadb_shop"], text=True).split()
            os.kill(int(connector), signal.SIGKILL)
            cursor.execute("DELETE FROM shop.orders WHERE id % 7 = 0")
            cursor.execute("ALTER TABLE shop.orders ADD COLUMN note varchar(10)")
            cursor.execute("INSERT INTO shop.orders VALUES (1000, 'late', 1.50, 'gift')")
            await_equal(spark, cursor, tmp_path / "orders", "id, name, amount, note")
        finally:
            query.stop()


def send(sqs: Any, queue: str, orders: range) -> None:
    for first in orders[::10]:
        entries = [{"Id": str(order), "MessageBody": f"order {order}"} for order in range(first, first + 10)]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)


def receive(sqs: Any, queue: str, count: int, known: Set[str] = frozenset(), seconds: float = 120) -> set[str]:
    """The first ``count`` messages that are not ``known``, or fewer after ``seconds``."""
    bodies: set[str] = set()
    until = time.monotonic() + seconds
    while len(bodies) < count and time.monotonic() < until:
        messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
        bodies |= {message["Body"] for message in messages} - known
    return bodies


def await_equal(spark: Any, cursor: Any, path: Path, columns: str, seconds: float = 120) -> None:
    """Returns when the table in Delta has the rows of the database."""
    cursor.execute(f"SELECT {columns} FROM shop.orders ORDER BY id")
    expected, rows, until = list(cursor.fetchall()), [], time.monotonic() + seconds
    while rows != expected:
        assert time.monotonic() < until, f"{len(rows)} rows, {len(expected)} in the database"
        time.sleep(0.5)
        if any((path / "_delta_log").glob("*.json")):
            table = spark.read.format("delta").load(str(path))
            if {*columns.split(", ")} <= {*table.columns}:
                rows = [tuple(row) for row in table.selectExpr(*columns.split(", ")).orderBy("id").collect()]

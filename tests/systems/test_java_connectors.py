"""Java connectors as a source and as sinks of Spark: files in, files and a database out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM_JDBC, FILES, file_properties
from tests.servers import required

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
        found = database.execute("SELECT count(*), sum(id), sum(price) FROM java_sink_spark").fetchone()
    assert found == (500, 124750, 31187.5)

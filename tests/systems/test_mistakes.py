"""Mistakes of a user: what the error says, and that it comes before the first task."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import connectors
from connectors.core import Batch, ConnectorError, DataLoss, Misconfigured, Source, Transient
from connectors.core.commit import Commit
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems import all_systems
from connectors.systems.files import FilesSource
from connectors.systems.jdbc.sink import JdbcSink
from connectors.systems.kafka.sink import KafkaSink
from connectors.systems.kafka.source import KafkaSource
from connectors.testing.servers import MariaDbServer
from connectors.testing.servers.base import free_ports
from tests.servers import optional

LONGS = pa.schema([pa.field("a", pa.int64())])
SECRET = "a-password-nobody-may-see"
ONCE = {"retry.maxRetries": "0"}


def source_of(system: str, options: dict[str, str], *, streaming: bool = False) -> Source:
    kind, _ = all_systems()[system]
    assert kind is not None
    return kind.of(options, streaming=streaming)


def read(source: Source, schema: pa.Schema = LONGS) -> list[Any]:
    slices = Planner(source).whole()
    return [row for part in slices for batch in read_slice(source, part, schema) for row in batch.to_pylist()]


def error_of(call: Callable[[], object]) -> ConnectorError:
    with pytest.raises(ConnectorError) as raised:
        call()
    return raised.value


# ---- systems that are down


@pytest.mark.parametrize("end", ["source", "exactly-once sink", "at-least-once sink"])
def test_a_kafka_broker_that_is_down_is_an_error_within_seconds_that_names_it_and_what_to_see_to(end: str) -> None:
    broker = f"127.0.0.1:{free_ports(1)[0]}"
    options = {"kafka.bootstrap.servers": broker, **ONCE}

    def use() -> None:
        if end == "source":
            Planner(KafkaSource.of({**options, "subscribe": "t"})).whole()
            return
        prefix = {"transactionalIdPrefix": "p"} if end.startswith("exactly") else {}
        sink, batch = KafkaSink.of({**options, "topic": "t", **prefix}, placed=True), Batch("s", "q", 0)
        if prefix:
            Commit(sink).begin(batch)
        sink.writer(batch, pa.schema([pa.field("value", pa.string())]), 0)

    began = time.monotonic()
    error = error_of(use)
    assert time.monotonic() - began < 8
    assert isinstance(error, Transient)
    assert f"no broker of {broker} can be reached" in str(error)
    assert "Connection refused" in str(error)
    assert "Way out: see that kafka.bootstrap.servers is right" in str(error)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "mysql"])
def test_a_database_that_is_down_is_an_error_that_names_it_and_what_to_see_to_and_no_password(kind: str) -> None:
    port = free_ports(1)[0]
    login = {"user": "u", "password": SECRET, "dbtable": "t", **ONCE}
    options = {"url": f"jdbc:{kind}://127.0.0.1:{port}/x", **login}
    sink, batch = JdbcSink.of(options), Batch("s", "q", 0)
    for use in (lambda: source_of("jdbc", options).schema, lambda: Commit(sink).begin(batch)):
        text = str(error_of(use))
        assert f"127.0.0.1:{port}/x" in text
        assert "Way out: see that url is right, and that the database runs there" in text
        assert SECRET not in text


# ---- files


@pytest.mark.parametrize(("path", "says"), [("none", "does not exist"), ("none/*.parquet", "matches no file")])
def test_a_batch_read_of_a_path_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path, path: str, says: str) -> None:
    source = FilesSource.of({"path": f"{tmp_path}/{path}"})
    for use in (lambda: read(source), lambda: source.schema):
        assert f'path   "{tmp_path}/{path}" {says}' in str(error_of(use))


def test_a_stream_waits_for_its_path_and_an_empty_folder_has_no_rows(tmp_path: Path) -> None:
    planner = Planner(FilesSource.of({"path": f"{tmp_path}/later"}, streaming=True))
    waiting = planner.latest(INITIAL)
    (tmp_path / "later").mkdir()
    assert read(FilesSource.of({"path": f"{tmp_path}/later"})) == []
    pq.write_table(pa.table({"a": [1]}), tmp_path / "later" / "part.parquet")
    assert planner.latest(waiting) != waiting


@pytest.mark.parametrize("format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_json_read_as_another_format_names_the_file_and_the_option(tmp_path: Path, format: str, fail: str) -> None:
    (tmp_path / "rows.json").write_text('{"a": 1}\n' * 20)
    source = FilesSource.of({"path": str(tmp_path), "fileFormat": format, "failOnDataLoss": fail})
    for use in (lambda: read(source), lambda: source.schema):
        text = str(error_of(use))
        assert f"fileFormat   {format} is not the format of {tmp_path}/rows.json" in text
        assert "is it json?" in text
        assert "failOnDataLoss" not in text


def test_a_parquet_file_that_is_cut_off_is_still_a_loss_of_data(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part.parquet")
    content = (tmp_path / "part.parquet").read_bytes()
    (tmp_path / "part.parquet").write_bytes(content[:-4])
    assert isinstance(error_of(lambda: read(FilesSource.of({"path": str(tmp_path)}))), DataLoss)


# ---- options


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a lng", 'has the column "a" of the type "lng", which Spark does not have; did you mean "long"?'),
        ("a long, b", 'has the column "b" without a type.'),
        ("a long b int", 'has "b" after the type of "a"; is a comma missing?'),
        ("a struct<b: array<strng>>", 'has the column "b" of the type "strng"'),
    ],
)
def test_columns_that_are_none_name_the_option_and_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    options = {"path": str(tmp_path), "value.format": "json", "schema": text}
    assert f"schema   {says}" in str(error_of(lambda: source_of("file_stream", options)))


@pytest.mark.parametrize(
    "text",
    [
        "id long, name string NOT NULL COMMENT 'x, y'", "`a b` decimal(10,2), m map<string,array<struct<x:int,y: date>>>",
        "a interval day to second, t timestamp without time zone, n timestamp_ntz", "v varchar(10), s STRING COLLATE UNICODE",
    ],
)  # fmt: skip
@pytest.mark.spark
def test_columns_that_spark_takes_are_taken(spark: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "lines").touch()
    frame = spark.read.format("connectors.file_stream").options(path=str(tmp_path / "lines"), schema=text)
    assert "value" in frame.option("value.format", "json").load().columns


def test_foreach_batch_says_how_it_takes_a_missing_option() -> None:
    text = str(error_of(lambda: connectors.foreach_batch("files", {"fileFormat": "json"})))
    assert text.endswith('path   missing; give it in the options of foreach_batch: {"path": …}.')


@pytest.mark.server
def test_a_mysql_before_8_is_refused() -> None:
    optional(MariaDbServer)
    with MariaDbServer(version="5.7.44") as server:  # a MariaDB that says so of itself
        options = {"url": server.jdbc.replace("mariadb", "mysql"), "user": server.user, "password": server.password}
        text = str(error_of(lambda: source_of("jdbc", {**options, "dbtable": "t"}).schema))
    assert "a server of version 5.7.44" in text
    assert "MySQL must be 8.0 or later" in text


# ---- columns, before the first task


@pytest.fixture
def database(tmp_path: Path) -> str:
    with contextlib.closing(sqlite3.connect(tmp_path / "test.db")) as connection:
        connection.execute("CREATE TABLE t (value INTEGER PRIMARY KEY)")
    return f"sqlite:///{tmp_path}/test.db"


CASES: dict[str, tuple[str, dict[str, str], str, str]] = {
    "a key that the rows lack": (
        "jdbc", {"operation": "upsert", "keyColumns": "idd"}, "value",
        'keyColumns   names the column "idd", which the rows do not have: value.',
    ),
    "a key that the table lacks": (
        "jdbc", {"operation": "upsert", "keyColumns": "k"}, "value, value AS k", "k   is no column of t (value)",
    ),
    "a table that is not there": ("jdbc", {"dbtable": "nope"}, "value", "dbtable   names no table nope"),
    "a folder's column": ("files", {"partitionBy": "nope"}, "value", 'partitionBy   names "nope", but the columns are value.'),
    "a document's id": ("elasticsearch", {"idColumn": "idd"}, "value", 'idColumn   names the column "idd"'),
    "lines of numbers": ("file_stream", {}, "value", "takes one column"),
    "no topic": ("kafka", {}, "CAST(value AS STRING) AS value", "topic   missing; give it"),
}  # fmt: skip


@pytest.fixture
def options(tmp_path: Path, database: str) -> Callable[[str], dict[str, str]]:
    def of(system: str) -> dict[str, str]:
        return {
            "jdbc": {"url": database, "dbtable": "t"},
            "files": {"path": f"{tmp_path}/out"},
            "file_stream": {"path": f"{tmp_path}/out"},
            "elasticsearch": {"hosts": f"http://127.0.0.1:{free_ports(1)[0]}", "index": "i"},
            "kafka": {"kafka.bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"},
        }[system]

    return of


def _watched(frame: Any, mark: Path) -> Any:
    """``frame``, whose tasks leave a mark."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark.touch()
        yield from batches

    return frame.mapInArrow(task, frame.schema)


def _write(spark: Any, carrier: str, system: str, options: dict[str, str], columns: list[str], mark: Path) -> None:
    if carrier == "df.write":
        frame = _watched(spark.range(3).selectExpr("id AS value").selectExpr(*columns), mark)
        frame.write.format(f"connectors.{system}").options(**options).mode("append").save()
        return
    rows = spark.readStream.format("connectors.sequence").option("end", 3).load().selectExpr(*columns)
    writer = _watched(rows, mark).writeStream.option("checkpointLocation", f"{mark.parent}/checkpoint")
    if carrier == "format":
        writer = writer.format(f"connectors.{system}").options(**options)
    else:
        writer = writer.foreachBatch(connectors.foreach_batch(system, options))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark
@pytest.mark.parametrize("carrier", ["foreach_batch", "format", "df.write"])
@pytest.mark.parametrize("case", CASES)
def test_columns_are_checked_before_the_first_task(
    spark: Any, tmp_path: Path, options: Callable[[str], dict[str, str]], carrier: str, case: str
) -> None:
    system, more, columns, says = CASES[case]
    typed, mark = {**options(system), **more}, tmp_path / "a task has begun"
    with pytest.raises((PySparkException, ConnectorError)) as raised:
        _write(spark, carrier, system, typed, columns.split(", "), mark)
    assert says in str(raised.value)
    assert not mark.exists()
    if case == "no topic":
        assert ("foreach_batch: {" in str(raised.value)) is (carrier == "foreach_batch")


@pytest.mark.spark
def test_the_target_is_checked_again_when_the_columns_of_a_query_change(spark: Any, database: str) -> None:
    write = ForeachBatch(JdbcSink.of({"url": database, "dbtable": "t"}))
    write.write(spark.range(3).selectExpr("id AS value"), Batch("s", "q", 0))
    with pytest.raises(Misconfigured, match="other   is no column of t"):
        write.write(spark.range(3).selectExpr("id AS other"), Batch("s", "q", 1))


@pytest.mark.spark
def test_a_batch_write_to_kafka_says_before_the_first_task_that_it_needs_a_stage(spark: Any, tmp_path: Path) -> None:
    typed = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t", "transactionalIdPrefix": "p"}
    frame = _watched(spark.sql("SELECT 'a' AS value"), tmp_path / "mark")
    with pytest.raises(Exception, match="stagingLocation   missing; give a folder"):
        frame.write.format("connectors.kafka").options(**typed).mode("append").save()
    assert not (tmp_path / "mark").exists()

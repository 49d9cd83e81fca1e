"""The Kafka source on Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException

from connectors.testing.compare import same_records
from connectors.testing.spark_suites import SparkSourceSuite
from connectors_tools.cli import main

from .source_contexts import KafkaContext, Topic

COUNT = 50


class TextContext(KafkaContext):
    """Text in place of bytes, which JSON cannot show."""

    limit: ClassVar[Mapping[str, str]] = {"maxOffsetsPerTrigger": "30"}

    def options(self) -> dict[str, str]:
        return self.topic.options(**{"key.format": "string", "value.format": "string"})

    def write(self, count: int) -> list[dict[str, Any]]:
        text = {"key": "k", "timestampType": 0, "topic": self.topic.name}
        return [
            {**text, "value": row["value"].decode(), "partition": row["partition"], "offset": row["offset"]}
            for row in super().write(count)
        ]


class TestKafka(SparkSourceSuite):
    context = TextContext

    def test_a_batch_read_gives_everything_once(self, spark: Any, system: KafkaContext) -> None:
        written = system.write(COUNT)
        rows = spark.read.format("connectors.kafka").options(**system.options()).load()
        same_records(written, rows.drop("timestamp").collect())

    def _stream(self, spark: Any, system: KafkaContext, folder: Path, **options: str) -> None:
        typed = {**system.options(), **system.limit, **options}
        rows = spark.readStream.format("connectors.kafka").options(**typed).load().drop("timestamp")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()


def test_spark_sees_the_columns_of_its_own_source(environment: Any) -> None:
    topic = Topic(1)
    (row,) = topic.send([b"v"], headers=[("h", b"1"), ("h", b"2")])
    options = topic.options(includeHeaders="true")
    frame = environment.spark.read.format("connectors.kafka").options(**options).load()
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    (read,) = frame.selectExpr("*", "unix_millis(timestamp) AS millis").collect()
    assert (bytes(read.key), bytes(read.value), read.topic, read.offset) == (b"k", b"v", topic.name, 0)
    assert read.millis == row["timestamp"].timestamp() * 1000
    assert [(header.key, bytes(header.value)) for header in read.headers] == [("h", b"1"), ("h", b"2")]


def test_the_column_that_a_schema_names_is_the_only_one_made(environment: Any) -> None:
    topic = Topic(1)
    topic.send([b"a", b"b"])
    frame = environment.spark.read.format("connectors.kafka").schema("value binary").options(**topic.options()).load()
    assert [bytes(row.value) for row in frame.collect()] == [b"a", b"b"]


@pytest.mark.parametrize(("columns", "expected"), [("value string", ["v"]), ("key string", ["k"]), ("offset bigint", [0])])
def test_columns_that_a_schema_leaves_out_are_not_decoded(environment: Any, columns: str, expected: list[Any]) -> None:
    topic = Topic(1)
    topic.send([b"v"], key=b"k")
    options = topic.options(**{"key.format": "string", "value.format": "string"})
    frame = environment.spark.read.format("connectors.kafka").schema(columns).options(**options).load()
    assert [row[0] for row in frame.collect()] == expected


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_made_anew_stops_a_running_query_or_is_read_from_its_begin(
    spark: Any, tmp_path: Path, fail: bool
) -> None:
    topic = Topic(1)
    topic.send([b"a", b"b"])
    options = topic.options(**{"value.format": "string", "failOnDataLoss": str(fail).lower(), "discoveryInterval": "1h"})
    rows = spark.readStream.format("connectors.kafka").schema("value string").options(**options).load()
    writer = rows.writeStream.format("json").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start(str(tmp_path / "out"))
    try:
        _wait(query, tmp_path, ["a", "b"])
        topic.delete()
        topic.create()
        topic.send([b"c", b"d", b"e"])
        if fail:
            with pytest.raises(StreamingQueryException, match="deleted and made anew"):
                query.awaitTermination(60)
            assert _written(tmp_path) == ["a", "b"]
        else:
            _wait(query, tmp_path, ["a", "b", "c", "d", "e"])
    finally:
        query.stop()


def _wait(query: Any, folder: Path, expected: list[str]) -> None:
    until = time.monotonic() + 60
    while query.isActive and _written(folder) != expected and time.monotonic() < until:
        time.sleep(0.1)
    assert _written(folder) == expected, str(query.exception())


def _written(folder: Path) -> list[str]:
    """What committed batches have written, each row as often as it is there."""
    count = len([file for file in (folder / "checkpoint" / "commits").glob("*") if file.name.isdigit()])
    files = (folder / "out").glob("part-*.json") if count else ()
    return sorted(json.loads(line)["value"] for file in files for line in file.read_text().splitlines())


def test_a_query_goes_back_by_offsets_and_begins_anew_where_its_options_say(spark: Any, tmp_path: Path) -> None:
    topic = Topic(1)
    topic.send([str(number).encode() for number in range(10)])

    def values(**options: str) -> list[int]:
        found: list[int] = []
        rows = spark.readStream.format("connectors.kafka").options(**topic.options(**options)).load()
        batch = rows.selectExpr("int(string(value)) AS value")
        writer = batch.writeStream.foreachBatch(lambda rows, _: found.extend(row.value for row in rows.collect()))
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        return sorted(found)

    def move(*arguments: str) -> None:
        options = ("--yes", "--accept-duplicates")
        result = CliRunner().invoke(main, ["offsets", arguments[0], str(tmp_path), *arguments[1:], *options])
        assert result.exit_code == 0, result.output

    assert values() == list(range(10))
    move("set", "--shift-by", "-3")
    assert values() == [7, 8, 9]
    move("set", "--to-offset", json.dumps({topic.name: {"0": 9}}))
    assert values() == [9]
    move("reset")
    assert values(startingOffsets=json.dumps({topic.name: {"0": 8}})) == [8, 9]

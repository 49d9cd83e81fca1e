"""The Kafka source on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from connectors.testing.compare import same_records
from connectors.testing.spark_suites import SparkSourceSuite

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
        given = {**system.options(), **system.limit, **options}
        rows = spark.readStream.format("connectors.kafka").options(**given).load().drop("timestamp")
        writer = rows.writeStream.format("json").trigger(availableNow=True)
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
    (found,) = frame.selectExpr("*", "unix_millis(timestamp) AS millis").collect()
    assert (bytes(found.key), bytes(found.value), found.topic, found.offset) == (b"k", b"v", topic.name, 0)
    assert found.millis == row["timestamp"].timestamp() * 1000
    assert [(one.key, bytes(one.value)) for one in found.headers] == [("h", b"1"), ("h", b"2")]


def test_the_column_that_a_schema_names_is_the_only_one_made(environment: Any) -> None:
    topic = Topic(1)
    topic.send([b"a", b"b"])
    frame = environment.spark.read.format("connectors.kafka").schema("value binary").options(**topic.options()).load()
    assert [bytes(row.value) for row in frame.collect()] == [b"a", b"b"]

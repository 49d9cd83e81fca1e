"""JSON means the same here as in Spark's own from_json and to_json, but that nothing wrong becomes null."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.formats import JsonFormat

pytestmark = pytest.mark.spark
COLUMNS = (
    "t timestamp, n timestamp_ntz, d date, m decimal(9,2), f double, g float, i int, s string, b binary, o boolean, "
    "l array<struct<x: long>>, k map<string, long>"
)

RECORDS = [
    '{"t":"2024-02-29T12:00:00Z","n":"2024-02-29T12:00:00","d":"2024-02-29"}',
    '{"t":"2024-02-29T14:00:00.5+02:00","n":"2024-02-29T12:00:00.123456"}',
    '{"t":"2024-02-29 12:00:00","d":null}',
    '{"t":0}',
    '{"m":1.5,"f":1,"g":0.1,"i":-7,"s":"\\u00e9\\n","o":true}',
    '{"m":"12.25","f":"NaN","g":"Infinity","b":"AP8="}',
    '{"l":[{"x":1},{},null],"k":{"a":1,"b":null},"more":[1,{}]}',
    "{}",
    ' { "s" : "" } ',
]


def kind_of(spark: Any) -> pa.DataType:
    from connectors.spark.session import arrow_schema

    return arrow_schema(spark.createDataFrame([], f"value struct<{COLUMNS}>").schema).field("value").type


def test_json_is_read_as_by_from_json(spark: Any) -> None:
    from pyspark.sql import functions as F

    frame = spark.createDataFrame([(text,) for text in RECORDS], "text string").coalesce(1)
    table = frame.select(F.from_json("text", COLUMNS).alias("value")).toArrow()
    kind = kind_of(spark)
    expected = table.column("value").combine_chunks().cast(kind).to_pylist()
    decoded = JsonFormat(kind).decode(pa.array([text.encode() for text in RECORDS], pa.binary()))
    assert list(decoded.bad) == []
    for record, got, row in zip(RECORDS, decoded.values.to_pylist(), expected, strict=True):
        assert repr(got) == repr(row), record


def test_what_to_json_writes_is_read_and_what_we_write_from_json_reads(spark: Any) -> None:
    from pyspark.sql import functions as F

    kind = kind_of(spark)
    rows = JsonFormat(kind).decode(pa.array([text.encode() for text in RECORDS], pa.binary())).values
    frame = spark.createDataFrame(pa.table({"value": rows}), f"value struct<{COLUMNS}>").coalesce(1)
    spark_json = frame.select(F.to_json("value").cast("binary").alias("text")).toArrow().column("text").combine_chunks()
    own_json = JsonFormat(kind).encode(rows)
    decoded = JsonFormat(kind).decode(spark_json.cast(pa.binary()))
    assert list(decoded.bad) == []
    for index, (got, row) in enumerate(zip(decoded.values.to_pylist(), rows.to_pylist(), strict=True)):
        if index != 1:  # whose microseconds to_json leaves out
            assert repr(got) == repr(row), spark_json[index]
    back = spark.createDataFrame(pa.table({"text": own_json.cast(pa.string())})).coalesce(1)
    again = back.select(F.from_json("text", COLUMNS).alias("value")).toArrow().column("value").combine_chunks().cast(kind)
    assert repr(again.to_pylist()) == repr(rows.to_pylist())

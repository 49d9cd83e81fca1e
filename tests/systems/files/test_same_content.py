"""The same rows are the same content, whichever carrier writes them: Spark's own writers or Python, batch or stream."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import connectors

from ..reference_contexts import FilesContext

pytestmark = pytest.mark.spark

ROWS = 9
"""Columns with fewer values end with nulls."""

PLAIN = {
    "text": "'', ' a \"quoted\", ü ', '#x', 'line\\nend\\r', '\\\\', cast(X'61FF62EDA080' AS string), "
    "cast(X'000108090B0C1F7FE280A8F09F9880' AS string), '  '",
    "real": "double('NaN'), double('Infinity'), double('-Infinity'), -0.0D, 1.0D, 1.0E7D, -9.99E-4D, 4.9E-324D, 1.25E300D",
    "single": "float('NaN'), float(0.1), float(1e10), float(16777216), float(3.3e-5), float('-Infinity'), float(-0.0)",
    "exact": "cast(0 AS decimal(38,18)), cast('-0.0000001' AS decimal(38,18)), cast('123456789012.5' AS decimal(38,18))",
    "small": "cast('1.50' AS decimal(5,2)), cast('-999.99' AS decimal(5,2))",
    "flag": "true, false",
    "tiny": "cast(-128 AS tinyint), cast(127 AS tinyint)",
    "long": "-9223372036854775808L, 9223372036854775807L",
    "bytes": "X'00FF', X'', X'22'",
    "day": "date'2025-01-31', date'1582-10-10', date'1582-10-04', date'0001-01-01', date'0000-02-29', date'-0044-03-15', "
    "date'+12345-06-07', date'1500-03-01', date'1969-12-31'",
}
TIMES = {
    "time": "timestamp'2025-03-30 01:30:00Z', timestamp'2025-10-26 00:30:00.123456Z', timestamp'1500-01-01 00:00:00.0009Z', "
    "timestamp'1969-12-31 23:59:59.999999Z', timestamp'-0044-03-15 00:00:00Z', timestamp'+12345-07-01 00:00:00Z', "
    "timestamp'2050-07-01 00:00:00Z', timestamp'1880-01-01 00:00:00.001Z'",
    "naive": "timestamp_ntz'2025-03-30 02:30:00', timestamp_ntz'1969-12-31 23:59:59.999999', "
    "timestamp_ntz'-0044-03-15 00:00:00', timestamp_ntz'+12345-01-01 00:00:00.1'",
}
CLOCK = {"clock": "time'01:02:03', time'23:59:59.100000', time'00:00:00.000001'"}
NESTED = {
    "items": "array(1, NULL), array(), array(cast(NULL AS int))",
    "nested": "named_struct('a', 1, 'b', named_struct('c', cast(NULL AS string))), named_struct('a', NULL, 'b', NULL), "
    "named_struct('a', NULL, 'b', named_struct('c', '\"'))",
    "map": "map('a\"', 1.5D, 'b', NULL, 'c', double('NaN')), map()",
    "structs": "array(named_struct('x', date'1500-01-02', 'y', NULL), NULL, named_struct('x', date'2025-01-31', 'y', X'00'))",
    "days": "map('a', array(date'1500-01-01', NULL))",
}
NESTED_TIMES = {
    "times": "array(timestamp'2025-03-30 01:30:00.5Z', NULL)",
    "stamps": "named_struct('t', timestamp'2025-03-30 01:30:00.5Z', 'inner', array(named_struct('x', 1), NULL))",
    "deep": "map('k', named_struct('t', timestamp_ntz'2025-03-30 02:30:00', 'e', cast(NULL AS int)))",
}
NESTED_CLOCK = {"clocks": "map('k', array(named_struct('t', time'01:02:03.5'), NULL))"}
KEYS = {
    "by_real": "map(1.0E10D, 1, double('NaN'), 2)",
    "by_exact": "map(cast('1.50' AS decimal(20,5)), 1)",
    "by_flag": "map(true, 1)",
    "by_long": "map(5L, 1)",
}
TIMES_AS_KEYS = {
    "by_day": "map(date'2025-01-31', 1)",
    "by_time": "map(timestamp'2025-01-31 00:00:00.123456Z', 1)",
    "by_naive": "map(timestamp_ntz'2025-01-31 00:00:00.123456', 1)",
    "by_clock": "map(time'01:02:03', 1)",
}
OTHER_ZONES = [pytest.param(zone, marks=pytest.mark.soak) for zone in ("UTC", "-00:30", "GMT+2", "+5:30")]
ODD_NAMES = {'a "b" é': "1"}
VOID = {"nothing": "NULL"}

COLUMNS = {
    "json": {**PLAIN, **TIMES, **CLOCK, **NESTED, **NESTED_TIMES, **NESTED_CLOCK, **KEYS, **ODD_NAMES, **VOID},
    "csv": {**PLAIN, **TIMES, **CLOCK, "again": PLAIN["text"]},
    "text": {"text": PLAIN["text"]},
    "parquet": {
        **PLAIN, **TIMES, **CLOCK, **NESTED, **NESTED_TIMES, **NESTED_CLOCK, **KEYS, **TIMES_AS_KEYS, **ODD_NAMES,
    },
    "orc": {**PLAIN, **NESTED},
    "avro": {**PLAIN, **TIMES, **NESTED, **NESTED_TIMES, **VOID},
}


@pytest.fixture(autouse=True)
def _clock_times(spark: Any) -> Iterator[None]:
    """Spark 4.2 has the type of times of the day behind a switch."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


def selected(frame: Any, columns: dict[str, str], number: str) -> Any:
    values = [f"try_element_at(array({each}), cast({number} AS int)) AS `{name}`" for name, each in columns.items()]
    return frame.selectExpr(*values)


def stream(spark: Any, columns: dict[str, str]) -> Any:
    numbers = spark.readStream.format("connectors.sequence").option("end", ROWS).option("numPartitions", 1).load()
    return selected(numbers, columns, "value")


def run(writer: Any, folder: Path) -> None:
    checkpoint = str(folder.with_name(f"{folder.name}-checkpoint"))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def by_foreach_batch(spark: Any, columns: dict[str, str], folder: Path, **options: str) -> None:
    write = connectors.foreach_batch("files", path=str(folder), **options)
    run(stream(spark, columns).writeStream.foreachBatch(write), folder)


def by_stream(spark: Any, columns: dict[str, str], folder: Path, **options: str) -> None:
    run(stream(spark, columns).writeStream.format("connectors.files").options(path=str(folder), **options), folder)


def by_write(spark: Any, columns: dict[str, str], folder: Path, **options: str) -> None:
    frame = selected(spark.range(1, ROWS + 1, numPartitions=1), columns, "id")
    frame.write.format("connectors.files").options(path=str(folder), **options).mode("append").save()


CARRIERS: dict[str, Callable[..., None]] = {"foreach_batch": by_foreach_batch, "format": by_stream, "write": by_write}


def contents(spark: Any, folder: Path, columns: dict[str, str], kind: str) -> Any:
    """What a reader finds: the lines of text, with numbers as such, or the types and values that Spark and Arrow read."""
    (file,) = FilesContext(folder).files()
    if kind == "json":
        return [json.loads(line, parse_float=Decimal) for line in file.read_text().split("\n")[:-1]]
    if kind in ("csv", "text"):
        lines = file.read_bytes().decode(errors="backslashreplace").split("\n")
        return [re.sub(r"(?<=,)-?\d[\d.]*E-\d+(?=,)", lambda number: format(Decimal(number[0]), "f"), line) for line in lines]
    if kind == "avro":
        with file.open("rb") as content:
            reader = fastavro.block_reader(content)
            return [reader.writer_schema["fields"], *(block.bytes_.getvalue() for block in reader)]
    table = pq.ParquetFile(file).read() if kind == "parquet" else orc.read_table(file)
    return seen_by_spark(spark.read.format(kind).load(str(file))) | {f"{name} in Arrow": shown(table, name) for name in columns}


def seen_by_spark(frame: Any) -> dict[str, Any]:
    rows = frame.selectExpr(*(f"cast(`{name}` AS string) `{name}`" for name in frame.columns)).collect()
    return {name: (kind, [row[name] for row in rows]) for name, kind in frame.dtypes}


def shown(table: pa.Table, name: str) -> tuple[str, str]:
    """A column's type and values; as Arrow's text, since Python's dates end with the year 9999."""
    column = table.column(name).combine_chunks()
    values = str(column.to_pylist()) if pa.types.is_nested(column.type) else column.to_string(window=100)
    return str(column.type).replace(" not null", ""), values


@pytest.mark.parametrize("zone", ["Europe/Berlin"], indirect=True)
@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.usefixtures("zone")
def test_every_carrier_writes_the_same_content(spark: Any, tmp_path: Path, kind: str) -> None:
    results = {}
    for carrier, write in CARRIERS.items():
        write(spark, COLUMNS[kind], tmp_path / carrier, fileFormat=kind)
        results[carrier] = contents(spark, tmp_path / carrier, COLUMNS[kind], kind)
    assert results["format"] == results["foreach_batch"]
    assert results["write"] == results["foreach_batch"]


@pytest.mark.parametrize("zone", ["America/St_Johns", *OTHER_ZONES], indirect=True)
@pytest.mark.usefixtures("zone")
def test_times_in_text_are_in_utc_in_any_session(spark: Any, tmp_path: Path) -> None:
    columns = {"id": "1", **TIMES, **NESTED_TIMES}
    for carrier in ("foreach_batch", "write"):
        CARRIERS[carrier](spark, columns, tmp_path / carrier, fileFormat="json")
    native, arrow = (contents(spark, tmp_path / carrier, columns, "json") for carrier in ("foreach_batch", "write"))
    assert arrow == native
    assert native[1]["time"] == "2025-10-26T00:30:00.123456Z"


def test_nulls_are_left_out_of_json_whatever_the_session_says(spark: Any, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.jsonGenerator.ignoreNullFields", "false")
    try:
        by_foreach_batch(spark, {"only": "1, NULL"}, tmp_path / "files", fileFormat="json")
    finally:
        spark.conf.unset("spark.sql.jsonGenerator.ignoreNullFields")
    assert contents(spark, tmp_path / "files", {}, "json") == [{"only": 1}, *[{}] * (ROWS - 1)]


@pytest.mark.parametrize("text", ["'x', '', NULL, ' ', '#'", "1, NULL, 2"])
def test_csv_of_one_column_has_a_line_for_every_row(spark: Any, tmp_path: Path, text: str) -> None:
    for carrier, write in CARRIERS.items():
        write(spark, {"only": text}, tmp_path / carrier, fileFormat="csv")
        rows = contents(spark, tmp_path / carrier, {"only": text}, "csv")
        assert len(rows) == ROWS + 1
        shutil.rmtree(tmp_path / carrier)


REFUSED = [
    ("json", "interval '1-2' year to month"),
    ("json", "parse_json('{}')"),
    *(("json", value) for value in TIMES_AS_KEYS.values()),
    ("csv", "NULL"),
    ("orc", "array(timestamp_ntz'2025-01-31 00:00:00')"),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_a_type_that_python_cannot_write_alike_is_refused_by_name(spark: Any, tmp_path: Path, kind: str, value: str) -> None:
    frame = spark.sql(f"SELECT 1 AS id, {value} AS odd")
    writer = frame.write.format("connectors.files").options(path=str(tmp_path / "out"), fileFormat=kind)
    ways_out = "foreach_batch|another fileFormat|json or parquet"
    with pytest.raises(Exception, match=rf'(?s)cannot start.*"odd" of type .*({ways_out})'):
        writer.mode("append").save()
    assert FilesContext(tmp_path / "out").files() == []

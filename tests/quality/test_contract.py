"""A data contract gives the checks that its statements stand for, and names those that it has none for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import quality
from connectors.ground.errors import Misconfigured

CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
id: shop
schema:
  - name: orders
    physicalName: shop.orders
    properties:
      - {name: shop, logicalType: string, primaryKey: true, primaryKeyPosition: 1, required: true}
      - {name: id, logicalType: integer, primaryKey: true, primaryKeyPosition: 2, classification: public}
      - name: cents
        logicalType: integer
        logicalTypeOptions: {minimum: 0, exclusiveMaximum: 100, multipleOf: 5}
      - name: city
        logicalType: string
        logicalTypeOptions: {minLength: 2, pattern: "^[A-Z]"}
        quality:
          - {metric: invalidValues, mustBe: 0, arguments: {validValues: [Bern, Zürich]}}
          - {metric: nullValues, mustBeLessThan: 5, unit: percent}
          - {type: text, description: As on the map}
      - {name: at, logicalType: timestamp, unique: true, required: true, encoding: none}
      - {name: tags, logicalType: array, logicalTypeOptions: {maxItems: 2}, items: {logicalType: string}}
    quality:
      - {metric: rowCount, mustBeGreaterThan: 2}
      - {type: sql, query: SELECT 1, mustBe: 1}
  - {name: empty, properties: [{name: x}]}
slaProperties: [{property: latency, value: 4, unit: d}]
"""
BOUND = "schema: [{{name: a, properties: [{{name: x, logicalType: {}, logicalTypeOptions: {}}}]}}]"
GOOD = {"shop": "A", "id": 1, "cents": 5, "city": "Bern", "at": "2026-01-01 00:00:00", "tags": ["x"]}
BAD = [
    ("not_null(shop)", {"shop": None}),
    ("not_null(id)", {"id": None}),
    ("between(cents, 0)", {"cents": -1}),
    ("exclusiveMaximum(cents, 100)", {"cents": 100}),
    ("minLength(city, 2)", {"city": "B"}),
    ("pattern(city, ^[A-Z])", {"city": "bern"}),
    ("in_set(city, Bern, Zürich)", {"city": "Genf"}),
    ("not_null(at)", {"at": None}),
    ("maxItems(tags, 2)", {"tags": ["x", "y", "z"]}),
]
SCHEMA = "shop string, id int, cents bigint, city string, at string, tags array<string>"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT)
    return str(path)


def test_a_contract_gives_a_check_for_each_statement_and_lists_the_others(file: str) -> None:
    checks = quality.rules(f"{file}#orders")
    assert set(checks.set_checks) == {"unique(shop, id)", "unique(at)", "row_count(min=3)"}
    assert checks.unchecked == (
        "cents.logicalTypeOptions.multipleOf",
        "city.quality[1]",
        "city.quality[2]",
        "at.encoding",
        "tags.items",
        "quality[1]",
        "slaProperties",
    )
    assert "not checked: cents.logicalTypeOptions.multipleOf" in repr(checks)


@pytest.mark.spark
def test_the_rows_that_break_a_contract_are_told_from_the_others(spark: Any, file: str) -> None:
    checks = quality.rules(f"{file}#orders")
    rows = [GOOD, *({**GOOD, **change} for _, change in BAD)]
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA).withColumn("at", spark_timestamp())
    failed = [set(row.failed_checks) for row in checks.mark(frame).collect()]
    assert failed[0] == set()
    assert [name in names for (name, _), names in zip(BAD, failed[1:], strict=True)] == [True] * len(BAD), failed
    wrong = frame.withColumn("id", frame["id"].cast("string")).withColumn("at", frame["at"].cast("date"))
    assert set(checks.mark(wrong).first().failed_checks) == {"type(id, integer)", "type(at, timestamp)"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "options", "good", "bad"),
    [
        ("date", '{minimum: "2026-01-02", format: yyyy-MM-dd}', "DATE '2026-01-02'", "DATE '2026-01-01'"),
        ("date", "{maximum: 2026-01-02}", "DATE '2026-01-02'", "DATE '2026-01-03'"),
        ("timestamp", '{maximum: "2026-01-02T00:00:00Z"}', "TIMESTAMP '2026-01-02 00:00:00Z'", "TIMESTAMP '2026-01-03'"),
        ("number", "{exclusiveMinimum: 0}", "1D", "double('NaN')"),
        ("string", """{pattern: "^it's \\\\d$"}""", "\"it's 1\"", "\"it's d\""),
    ],
)
def test_a_bound_is_compared_as_what_it_is(spark: Any, tmp_path: Path, kind: str, options: str, good: str, bad: str) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(BOUND.format(kind, options))
    rows = spark.sql(f"SELECT {good} AS x UNION ALL SELECT {bad} UNION ALL SELECT NULL")
    marked = quality.rules(str(path)).mark(rows).collect()
    assert [len(row.failed_checks) for row in marked] == [0, 1, 0]


def spark_timestamp() -> Any:
    from pyspark.sql import functions

    return functions.col("at").cast("timestamp")


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("#sales", CONTRACT, 'must name one schema of .*shop.yaml#orders"; it has orders, empty'),
        ("", CONTRACT, "must name one schema of"),
        ("#empty", CONTRACT, "states nothing about rows"),
        ("", "id: [", "is no YAML"),
        ("", "orders: 1", "is no data contract"),
        ("", "schema: [{name: a, properties: [{name: id, required: true, required: false}]}]", '"required" more than once'),
        (
            "",
            "schema: [{name: a, quality: [{metric: rowCount, mustBe: 5}, {metric: rowCount, mustBe: 5, unit: rows}], "
            "properties: [{name: id, unique: true, quality: [{metric: duplicateValues, mustBe: 0}], quality: []}]}]",
            'an object has "quality" more than once',
        ),
        ("", None, 'shop.yaml" cannot be read'),
        ("", "schema: [{name: a, properties: {id: {required: true}}}]", "is no data contract .* must be lists of objects"),
        ("", "schema: [{name: a, properties: [{required: true}]}]", "is no data contract .*KeyError: 'name'"),
        ("", "schema: [{name: a, quality: [nullValues]}]", "is no data contract"),
        ("", "schema: [{name: a, quality: [{metric: rowCount, mustBe: '5'}]}]", "is no data contract"),
        ("", BOUND.format("date", "{minimum: soon}"), "is no data contract .*soon"),
    ],
)
def test_what_is_wrong_with_a_contract_is_told(tmp_path: Path, place: str, text: str | None, message: str) -> None:
    path = tmp_path / "shop.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Misconfigured, match=message):
        quality.rules(f"{path}{place}")


def test_objects_of_a_contract_may_merge_another_one(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text("base: &base {required: true}\nschema: [{name: a, properties: [{<<: *base, name: id}]}]")
    assert quality.rules(str(path)).row_checks == ("not_null(id)",)

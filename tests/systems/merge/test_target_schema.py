"""The target of a pipeline that follows a whole database: what its notebook shows, and how its gate judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors import quality
from connectors.core import Misconfigured
from connectors.workbench.target_schema import TargetSchema
from tests.systems.merge.test_merge_all import Tables, databases


@pytest.fixture
def tables(spark: Any, tmp_path: Path) -> Tables:
    tables = Tables(spark, tmp_path / "shop")
    orders, users, batches = databases("orders", "users", "_batches")
    both = [table.upsert(id=number, name="a", amount=number) for table in (orders, users) for number in (1, 2)]
    tables.merge(*both, batches.upsert(id=1, name="b", amount=1))
    tables.merge(orders.delete(1), orders.delete(2))
    return tables


def schema(tables: Tables, checks: Any = None) -> TargetSchema:
    return TargetSchema(f"{tables.path}/", json.dumps(checks or {}))


def test_each_table_has_its_rows_and_its_changes(spark: Any, tables: Tables) -> None:
    shown = schema(tables).tables(spark)
    assert [tuple(row)[:3] for row in shown.collect()] == [("_batches", 1, 1), ("orders", 0, 4), ("users", 2, 2)]
    assert {row.table for row in schema(tables).alterations(spark).collect()} == {"_batches", "orders", "users"}
    folders = {Path(folder).name for folder in schema(tables).folders()}
    assert folders == tables.names(), "all of it goes with a demonstration, and nothing else"


@pytest.mark.soak
def test_keys_and_rules_of_each_table_are_judged(spark: Any, tables: Tables) -> None:
    quality.enforce(*schema(tables).verdicts(spark))
    rules = {"users": [{"between": ["amount", 0, 1]}, {"row_count": {"min": 3}}], "*": [{"not_null": "name"}]}
    verdicts = {report.name: report for report in schema(tables, rules).verdicts(spark)}
    checks = {name: {outcome.check: outcome.ok for outcome in report.outcomes} for name, report in verdicts.items()}
    assert checks["orders"] == {"row_count(min=0)": True, "not_null(id)": True, "unique(id)": True, "not_null(name)": True}
    assert checks["users"] == {
        "not_null(id)": True, "unique(id)": True, "between(amount, 0, 1)": False, "row_count(min=3)": False,
    }  # fmt: skip
    spark.sql(f"INSERT INTO delta.`{tables.path}/users` SELECT * FROM delta.`{tables.path}/users` WHERE id = 1")
    with pytest.raises(quality.QualityFailed, match=r"unique\(id\): 2 of 3 rows"):
        quality.enforce(*schema(tables).verdicts(spark))


@pytest.mark.soak
def test_rules_of_a_table_that_is_not_there_and_a_target_without_a_batch_are_errors(spark: Any, tables: Tables) -> None:
    with pytest.raises(Misconfigured, match=r"has rules for items, which is no table of .*There are: _batches, orders, users"):
        schema(tables, {"items": [{"not_null": "id"}]}).verdicts(spark)
    for ask in ("tables", "alterations", "verdicts"):
        with pytest.raises(Misconfigured, match=r"to which no batch was written\. Run the pipeline"):
            getattr(TargetSchema(f"{tables.path}/none", "{}"), ask)(spark)

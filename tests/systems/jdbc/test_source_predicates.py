"""``predicates``: one partition for each condition, as in Spark's own reader, at one moment where the database has one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.systems.jdbc import JdbcSink, JdbcSource

from .batch_reading import fill, numbers, read, source_options, table_of
from .contexts import DatabaseContext, PostgresContext, SqliteContext

__all__ = ["numbers"]
CONDITIONS = ["id <= 10", "id > 10 AND id < 21 OR id = 50", "name LIKE 'row 3%' -- the thirties"]


def test_each_condition_is_a_partition(numbers: DatabaseContext) -> None:
    scan = read(numbers, predicates=json.dumps(CONDITIONS))
    assert [str(next(scan.source.enumerator().splits_of(part))) for part in scan.parts()] == CONDITIONS
    partitions = [sorted(row["id"] for batch in scan.batches(part) for row in batch.to_pylist()) for part in scan.parts()]
    assert partitions == [list(range(1, 11)), [*range(11, 21), 50], [3, *range(30, 40)]]


@pytest.mark.parametrize("conditions", [["id < 30", "id > 20"], "['id < 30', 'id > 20']", '["id < 30", "id > 20"]'])
def test_rows_of_two_conditions_are_read_twice_and_of_none_not_at_all(numbers: DatabaseContext, conditions: Any) -> None:
    numbers.run(f"INSERT INTO {numbers.table} VALUES (0, NULL)")
    query = f"SELECT * FROM {numbers.table} WHERE id <> 25"
    ids = sorted(row["id"] for row in read(numbers, query=query, predicates=conditions).rows())
    assert ids == sorted([*(number for number in range(30) if number != 25), *(n for n in range(21, 51) if n != 25)])
    names = read(numbers, predicates=["name = 'row 1'", "name <> 'row 1'"]).rows()
    assert sorted(row["id"] for row in names) == list(range(1, 51))  # what is NULL fulfils neither


def test_a_condition_that_the_database_refuses_is_named(numbers: DatabaseContext) -> None:
    for wrong in ("colour = 1", "id = (", "id = 1; DELETE FROM t"):
        with pytest.raises(Misconfigured, match=r"predicates +has the condition .*, which the database refuses: "):
            read(numbers, predicates=["id < 3", wrong]).parts()
    assert len(numbers.rows()) == 50


def test_all_partitions_see_one_moment(tmp_path: Path) -> None:
    with contextlib.closing(table_of(PostgresContext, "id INT, k INT", tmp_path)) as context:
        fill(context, [(n, n) for n in range(40)])
        for snapshot, is_whole in (("true", True), ("false", False)):
            scan = read(context, predicates=["k < 20", "k >= 20"], snapshot=snapshot)
            ids: list[int] = []
            for part in scan.parts():
                ids += [row["id"] for batch in scan.batches(part) for row in batch.to_pylist()]
                context.run(f"UPDATE {context.table} SET k = 39 - k")
            assert (sorted(ids) == list(range(40))) is is_whole
            context.run(f"UPDATE {context.table} SET k = id")


OPTIONS = {"url": "jdbc:sqlite:/d.db", "dbtable": "t", "predicates": '["id < 1"]'}


@pytest.mark.parametrize("beside", ["partitionColumn", "numPartitions", "lowerBound", "incremental", "tables"])
def test_other_ways_to_cut_are_refused_beside_it(beside: str) -> None:
    more = {
        "partitionColumn": {"partitionColumn": "id"}, "numPartitions": {"numPartitions": "2"},
        "lowerBound": {"partitionColumn": "id", "numPartitions": "2", "lowerBound": "0", "upperBound": "9"},
        "incremental": {"incremental": "bulk"}, "tables": {"tables": "a,b", "dbtable": None},
    }[beside]  # fmt: skip
    with pytest.raises(Misconfigured, match=rf"predicates +(is given beside|has no use with) {beside}"):
        JdbcSource.of({**OPTIONS, **more})


@pytest.mark.parametrize("wrong", ["[]", "id < 1", '["id < 1", " "]', "[1]", '{"a": 1}'])
def test_what_is_no_list_of_conditions(wrong: str) -> None:
    with pytest.raises(Misconfigured, match=r"predicates +must be a JSON list of SQL conditions, such as"):
        JdbcSource.of({**OPTIONS, "predicates": wrong})


def test_a_stream_and_a_sink_refuse_it() -> None:
    with pytest.raises(Misconfigured, match=r"predicates +is for batch reads; in a stream, put the condition into query\."):
        JdbcSource.of(OPTIONS, streaming=True)
    with pytest.raises(Misconfigured, match=r"predicates +is an option of the source"):
        JdbcSink.of(OPTIONS)
    with pytest.raises(Misconfigured, match=r"statement +is an option of the sink"):
        JdbcSource.of({**OPTIONS, "statement": "SELECT 1"})


def test_on_spark_a_python_list_is_taken_and_gives_its_partitions(spark: Any, tmp_path: Path) -> None:
    with contextlib.closing(table_of(SqliteContext, "id BIGINT, name TEXT", tmp_path)) as context:
        fill(context, [(number, f"'row {number}'") for number in range(20)])
        reader = spark.read.format("connectors.jdbc").options(**source_options(context))
        for conditions in (["id < 5", "id >= 5 AND name <> 'row 7'"], json.dumps(["id < 5", "id >= 5 AND name <> 'row 7'"])):
            frame = reader.option("predicates", conditions).load()
            assert frame.rdd.getNumPartitions() == 2
            assert sorted(row.id for row in frame.collect()) == [number for number in range(20) if number != 7]

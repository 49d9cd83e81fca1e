"""A function is a source too, in three shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal, Misconfigured, Source, source
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.core.simple import DECLARED

LONG = pa.schema([("value", pa.int64())])


@pytest.fixture(autouse=True)
def _forget_declared() -> Iterator[None]:
    before = dict(DECLARED)
    yield
    DECLARED.clear()
    DECLARED.update(before)


def rows(kind: type[Source], schema: pa.Schema = LONG, **options: Any) -> list[dict[str, Any]]:
    instance = kind.of(options)
    slices = (read_slice(instance, part, schema) for part in Planner(instance).whole())
    return [row for batches in slices for batch in batches for row in batch.to_pylist()]


def values(kind: type[Source], **options: Any) -> list[int]:
    return [row["value"] for row in rows(kind, **options)]


def test_a_function_without_parameters_is_read_once_by_one_task() -> None:
    calls = []

    @source("three", "value long")
    def three() -> Iterator[int]:
        """Three numbers."""
        calls.append(1)
        yield from (1, 2, 3)

    assert values(three) == [1, 2, 3]
    assert len(calls) == 1
    assert (three.name, three.bounded, three.__doc__, three.__name__) == ("three", True, "Three numbers.", "three")
    assert DECLARED["three"] is three


@pytest.mark.parametrize("partitions", ["2", "7"])
def test_a_function_without_parameters_refuses_to_be_parallel(partitions: str) -> None:
    @source("one", "value long")
    def single() -> list[int]:
        return [1]

    assert values(single, numPartitions="1") == [1]
    with pytest.raises(Misconfigured, match=f"must be 1 or less; got {partitions}"):
        single.of({"numPartitions": partitions})


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_function_of_a_subtask_is_called_by_each_task(count: int) -> None:
    @source("parallel", "value long")
    def parallel(subtask: int, subtasks: int) -> Iterator[int]:
        yield from range(subtask, 20, subtasks)

    assert sorted(values(parallel, numPartitions=str(count))) == list(range(20))


def test_a_parallel_function_refuses_more_readers_than_the_system_allows() -> None:
    @source("narrow", "value long", max_parallelism=3)
    def narrow(subtask: int, subtasks: int) -> list[int]:
        return [subtask]

    assert sorted(values(narrow, numPartitions="3")) == [0, 1, 2]
    with pytest.raises(Misconfigured, match="3 or less"):
        narrow.of({"numPartitions": "4"})


def test_a_bounded_function_is_read_once_by_a_stream() -> None:
    @source("once", "value long")
    def once() -> list[int]:
        return [1, 2]

    plan = Planner(once.of({}, streaming=True))
    end = plan.latest(INITIAL)
    assert len(plan.slices(INITIAL, end)) == 1
    assert Planner(once.of({}, streaming=True)).latest(end) is end


def test_a_function_of_rows_streams_what_latest_says_and_resumes() -> None:
    size = [5]

    @source("growing", "value long", latest=lambda: size[0])
    def growing(start: int, end: int) -> range:
        return range(start * 10, end * 10, 10)

    def read(start: Any, end: Any) -> list[int]:
        plan = Planner(growing.of({}, streaming=True))
        parts = (read_slice(plan.source, part, LONG) for part in plan.slices(start, end))
        return [value for batches in parts for batch in batches for value in batch.column(0).to_pylist()]

    plan = Planner(growing.of({"maxRowsPerTrigger": "3"}, streaming=True))
    first = plan.latest(INITIAL, plan.source.limit())
    assert read(INITIAL, first) == [0, 10, 20]
    size[0] = 8
    second = plan.latest(first)
    assert read(first, second) == [30, 40, 50, 60, 70]
    size[0] = 2
    assert plan.latest(second) is second, "a system that shrinks must not move the position back"
    assert not growing.bounded


def test_a_function_is_handed_what_the_user_gave() -> None:
    @source("polite", "value string", latest=lambda options: int(options["count"]))
    def polite(start: int, end: int, options: dict[str, str]) -> Iterator[str]:
        yield from (f"{options['greeting']} {number}" for number in range(start, end))

    plan = Planner(polite.of({"Greeting": "hello", "count": "2"}, streaming=True))
    parts = plan.slices(INITIAL, plan.latest(INITIAL))
    schema = pa.schema([("value", pa.string())])
    texts = [
        row["value"] for part in parts for batch in read_slice(plan.source, part, schema) for row in batch.to_pylist()
    ]
    assert texts == ["hello 0", "hello 1"]


def unknown(a: int, b: int) -> list[int]:
    return []


def half(start: int) -> list[int]:
    return []


def turned(end: int, start: int) -> list[int]:
    return []


def ranged(start: int, end: int) -> list[int]:
    return []


def none() -> list[int]:
    return []


@pytest.mark.parametrize(
    ("function", "latest"), [(unknown, None), (half, None), (turned, lambda: 1), (ranged, None), (none, lambda: 1)]
)
def test_a_function_with_other_parameters_is_refused(function: Any, latest: Any) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__}.* is no source: its parameters must be"):
        source("wrong", "value long", latest=latest)(function)
    assert "wrong" not in DECLARED


TWO = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_rows_are_tuples_lists_or_dicts() -> None:
    @source("mixed", "id long, name string")
    def mixed() -> list[Any]:
        return [(1, "a"), [2, "b"], {"name": "c", "id": 3}, {"id": 4}, (5, None)]

    assert [tuple(row.values()) for row in rows(mixed, TWO)] == [(1, "a"), (2, "b"), (3, "c"), (4, None), (5, None)]


@pytest.mark.parametrize("row", [(1,), (1, "a", 2), 7, "ab"])
def test_a_row_with_another_number_of_columns_is_refused(row: Any) -> None:
    @source("uneven", "id long, name string")
    def uneven() -> list[Any]:
        return [row]

    with pytest.raises(Fatal, match="2 columns"):
        rows(uneven, TWO)


def test_a_column_of_lists_holds_lists_of_any_length() -> None:
    @source("lists", "value array<long>")
    def lists() -> list[Any]:
        return [[1, 2], [3], [], None]

    schema = pa.schema([("value", pa.list_(pa.int64()))])
    assert [row["value"] for row in rows(lists, schema)] == [[1, 2], [3], [], None]


def test_many_rows_come_in_several_batches() -> None:
    @source("many", "value long")
    def many() -> range:
        return range(25_000)

    instance = many.of({})
    sizes = [batch.num_rows for part in Planner(instance).whole() for batch in read_slice(instance, part, LONG)]
    assert sum(sizes) == 25_000
    assert max(sizes) <= 10_000

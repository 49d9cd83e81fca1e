"""Comparing tells what is missing, what is there twice, and what should not be there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.testing import same_order, same_records


def complaint(expected: Any, actual: Any, **how: bool) -> str:
    with pytest.raises(AssertionError) as caught:
        same_records(expected, actual, **how)
    return str(caught.value)


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.none())), st.randoms())
def test_the_same_records_in_any_order_are_the_same(records: list[Any], chance: Any) -> None:
    shuffled = list(records)
    chance.shuffle(shuffled)
    same_records(records, shuffled)


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_it_agrees_with_sorting(expected: list[int], actual: list[int]) -> None:
    if sorted(expected) == sorted(actual):
        same_records(expected, actual)
    else:
        complaint(expected, actual)


def test_what_is_wrong_is_named() -> None:
    assert complaint([{"id": 1}, {"id": 2}, {"id": 3}], [{"id": 1}, {"id": 3}, {"id": 3}, {"id": 4}]) == (
        '3 records expected, 4 found\n  1 missing: {"id":2}\n  1 unexpected: {"id":4}\n  1 duplicated: {"id":3}'
    )


def test_repeats_are_allowed_where_the_guarantee_allows_them() -> None:
    same_records([1, 2], [2, 1, 2, 2], repeats=True)
    assert "missing: 2" in complaint([1, 2], [1, 1], repeats=True)
    assert "unexpected: 3" in complaint([1, 2], [1, 2, 3], repeats=True)


def test_a_record_that_is_expected_twice_must_come_twice() -> None:
    same_records([1, 1], [1, 1])
    assert "1 missing: 1" in complaint([1, 1], [1])
    assert "1 duplicated: 1" in complaint([1], [1, 1])


def test_a_long_list_is_cut_and_counted() -> None:
    text = complaint(range(100), [0] * 3)
    assert "99 missing" in text
    assert "and 94 more" in text
    assert "2 duplicated: 0 (x2)" in text
    assert len(text) < 300


def test_the_order_of_keys_does_not_count_and_the_kind_of_a_value_does() -> None:
    same_records([{"a": 1, "b": 2}], [{"b": 2, "a": 1}])
    complaint([{"a": 1}], [{"a": "1"}])
    complaint([{"a": None}], [{}])
    complaint([{"a": 1}], [{"a": True}])


def test_nothing_is_the_same_as_nothing() -> None:
    same_records([], [])
    assert "missing" in complaint([1], [])


def disorder(written: list[int], batches: list[list[list[int]]]) -> str:
    with pytest.raises(AssertionError) as error:
        same_order(written, batches, lambda record: record % 2)
    return str(error.value)


def test_records_of_one_partition_have_an_order_and_those_of_two_have_none() -> None:
    same_order([1, 2, 3, 4], [[[2, 1, 4, 3]]], lambda record: record % 2)
    assert "partition 1: 1 came after the newer 3" in disorder([1, 2, 3, 4], [[[3, 1, 2, 4]]])


def test_the_order_counts_from_batch_to_batch() -> None:
    same_order([1, 3, 5], [[[1]], [[3], [5]]], lambda record: 0)
    assert "batch 1, partition 1: 1 came after" in disorder([1, 3], [[[3]], [[1]]])


def test_tasks_of_one_batch_have_no_order() -> None:
    same_order([1, 3, 5, 7], [[[5, 7], [1, 3]]], lambda record: 0)
    assert "batch 1" in disorder([1, 3, 5, 7], [[[5], [1]], [[3], [7]]])


def test_equal_records_are_taken_in_turn() -> None:
    same_order([1, 3, 1], [[[1, 3, 1]]], lambda record: 0)
    assert "3 came after the newer 1" in disorder([1, 3, 1], [[[1, 1, 3]]])


def test_an_order_of_other_records_is_no_order() -> None:
    assert "missing: 3" in disorder([1, 3], [[[1]]])

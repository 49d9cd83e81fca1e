"""The sequence: bounds, rates, limits, and the largest numbers that there are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core import Misconfigured, ReadLimit
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.sequence import SequenceSource

SCHEMA = pa.schema([("value", pa.int64())])
LARGEST = 2**63 - 2


def numbers(**options: int) -> list[int]:
    source = SequenceSource.of({name: str(value) for name, value in options.items()})
    batches = [batch for part in Planner(source).whole() for batch in read_slice(source, part, SCHEMA)]
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_it_counts_from_one_to_the_end() -> None:
    assert sorted(numbers(end=5)) == [1, 2, 3, 4, 5]


@given(start=st.integers(-50, 50), count=st.integers(0, 60), parts=st.integers(1, 9))
def test_any_bounds_and_parallelism_give_each_number_once(start: int, count: int, parts: int) -> None:
    assert sorted(numbers(start=start, end=start + count - 1, numPartitions=parts)) == list(range(start, start + count))


def test_the_largest_and_smallest_numbers_can_be_had() -> None:
    assert numbers(start=LARGEST - 1, end=LARGEST) == [LARGEST - 1, LARGEST]
    assert numbers(start=-LARGEST, end=-LARGEST) == [-LARGEST]


def test_more_than_one_record_batch_is_in_order() -> None:
    assert numbers(end=250_001, numPartitions=1) == list(range(1, 250_002))


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"start": "5", "end": "3"}, "end"),
        ({}, "end"),
        ({"end": "x"}, "end"),
        ({"end": str(2**63)}, "end"),
        ({"end": "1", "rowsPerSecond": "0"}, "rowsPerSecond"),
        ({"end": "1", "numPartitions": "0"}, "numPartitions"),
    ],
    ids=["end before start", "no end", "no number", "too large", "no rate", "no task"],
)
def test_wrong_options_are_named(options: dict[str, str], option: str) -> None:
    with pytest.raises(Misconfigured) as error:
        SequenceSource.of(options, streaming=True)
    assert [problem.option for problem in error.value.problems] == [option]


def test_a_sequence_without_end_is_no_batch_and_never_ends_an_ending_query() -> None:
    source = SequenceSource.of({"maxRowsPerTrigger": "3"}, streaming=True)
    assert not source.bounded
    with pytest.raises(Misconfigured, match="never end"):
        Planner(source).freeze()
    assert Planner(source).latest(INITIAL, source.limit())["at"] == {"next": 4}


def test_a_rate_gives_what_the_time_that_passed_allows() -> None:
    enumerator = SequenceSource.of({"rowsPerSecond": "10"}, streaming=True).enumerator()
    assert enumerator.advance({"next": 1, "since": 1000}, 3550.0, ReadLimit())["next"] == 26
    assert enumerator.advance({"next": 1, "since": 1000}, 3550.0, ReadLimit(rows=7))["next"] == 8
    assert enumerator.advance({"next": 30, "since": 1000}, 3550.0, ReadLimit())["next"] == 30, "a clock that went back"


def test_an_end_that_was_lowered_takes_nothing_back(tmp_path: Path) -> None:
    offset = Planner(SequenceSource.of({"end": "9"}, streaming=True)).latest(INITIAL)
    assert Planner(SequenceSource.of({"end": "4"}, streaming=True)).latest(offset) == offset

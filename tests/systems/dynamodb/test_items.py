"""Numbers as DynamoDB has them, without a service."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Poison
from connectors.systems.dynamodb.items import Attribute, items_of, size_of, text_of

LONG = "12345678901234567890123456789012345678"


def test_keys_that_agree_in_28_digits_are_two_keys() -> None:
    assert text_of({"N": LONG}) != text_of({"N": LONG[:-1] + "9"})
    assert text_of({"N": "1.50"}) == text_of({"N": "1.5"}) == text_of({"N": "15e-1"})


@pytest.mark.parametrize(
    ("number", "fits"), [(LONG, True), (LONG + "00", True), (LONG + "9", False), (LONG + "90", False)]
)
def test_a_number_has_38_digits_and_zeros(number: str, fits: bool) -> None:
    column = pa.array([Decimal(number)], pa.decimal256(45, 0))
    (item,) = items_of(pa.RecordBatch.from_arrays([column], ["n"]))
    assert isinstance(item, Poison) is not fits


@pytest.mark.parametrize(
    ("number", "size"),
    [
        *[("0", 1), ("7", 2), ("-7", 3), ("77", 3), ("12345", 4), ("-12345", 5), ("1" + "0" * 20, 2), ("1e+20", 2)],
        *[("0.1", 2), ("1.2", 3), ("12.3", 3), ("0.0123", 3), ("-0.5", 3), ("0.12345678901234567", 10)],
    ],
)
def test_a_number_has_the_bytes_that_the_service_counts(number: str, size: int) -> None:
    """As DynamoDB Local counts them, and one more for two digits that are no pair."""
    item: dict[str, Attribute] = {"n": {"N": number}}
    assert size_of(item) == len("n") + size


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.string(), "a", "a"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.bool_(), True, "true"),
        (pa.float64(), 1e20, "1.0E20"),
        (pa.decimal128(20, 8), Decimal("0.00000001"), "0.00000001"),
        (pa.timestamp("us", "UTC"), datetime.datetime(2025, 1, 31, 12), "2025-01-31T12:00:00.000000Z"),
        (pa.struct([("a", pa.int64())]), {"a": 1}, '{"a":1}'),
    ],
)
def test_the_keys_of_a_map_are_texts_as_elsewhere(kind: pa.DataType, key: Any, text: str) -> None:
    column = pa.array([[(key, 1)], []], pa.map_(kind, pa.int64()))
    first, second = items_of(pa.RecordBatch.from_arrays([column], ["m"]))
    assert first == {"m": {"M": {text: {"N": "1"}}}}
    assert second == {"m": {"M": {}}}

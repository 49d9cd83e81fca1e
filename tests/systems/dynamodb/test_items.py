"""Numbers as DynamoDB has them, without a service."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from connectors.core import Poison
from connectors.systems.dynamodb.items import items_of, text_of

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

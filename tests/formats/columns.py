"""Columns of any type with any values, for property tests of formats."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

UTC = datetime.timezone.utc
FIRST, LAST = datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)


def decimals(kind: pa.DataType) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(
        lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -kind.scale))
    )


LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.dates(FIRST.date(), LAST.date()),
    pa.timestamp("us", "UTC"): st.datetimes(FIRST, LAST).map(lambda at: at.replace(tzinfo=UTC)),
    pa.timestamp("us"): st.datetimes(FIRST, LAST),
    pa.decimal128(9, 2): decimals(pa.decimal128(9, 2)),
    pa.decimal128(38, 18): decimals(pa.decimal128(38, 18)),
}

NAMES = ["a", "b", "c", "d"]


def structs(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.lists(kinds, min_size=1, max_size=4).map(lambda some: pa.struct(list(zip(NAMES, some, strict=False))))


FLAT = structs(st.sampled_from(list(LEAVES)))
NESTED = structs(
    st.recursive(
        st.sampled_from(list(LEAVES)),
        lambda inner: st.one_of(inner.map(pa.list_), structs(inner), inner.map(lambda kind: pa.map_(pa.string(), kind))),
        max_leaves=4,
    )
)


def values(kind: pa.DataType, *, top: bool = False) -> st.SearchStrategy[Any]:
    """Values of ``kind``, and null; not for the whole column's ``top``, if it is to have none."""
    if pa.types.is_struct(kind):
        strategy: st.SearchStrategy[Any] = st.fixed_dictionaries(
            {kind.field(number).name: values(kind.field(number).type) for number in range(kind.num_fields)}
        )
    elif pa.types.is_list(kind):
        strategy = st.lists(values(kind.value_type), max_size=4)
    elif pa.types.is_map(kind):
        pairs = st.dictionaries(st.text(max_size=4), values(kind.item_type), max_size=3)
        strategy = pairs.map(lambda pairs: list(pairs.items()))
    else:
        strategy = LEAVES[kind]
    return strategy if top else st.none() | strategy


def columns(kinds: st.SearchStrategy[pa.DataType], most: int = 5) -> st.SearchStrategy[pa.Array]:
    return kinds.flatmap(lambda kind: st.lists(values(kind), max_size=most).map(lambda some: pa.array(some, kind)))


def same(array: pa.Array, other: pa.Array) -> bool:
    """Equal, where NaN is equal to NaN."""
    return array.type == other.type and repr(array.to_pylist()) == repr(other.to_pylist())

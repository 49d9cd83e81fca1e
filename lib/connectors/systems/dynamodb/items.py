"""Rows as items. A number keeps its digits: it travels as text, as it is written."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core import Poison
from ...formats.text import json_text
from ...formats.text import text_of as texts_of
from ...ground.columns import is_binary, is_text

Attribute = Mapping[str, Any]
"""A value as DynamoDB has it: its type and what it holds, such as ``{"N": "1.5"}``."""

MOST_DEPTH: Final = 31
"""The lists and maps of a column that may lie in each other: an item has 32 levels, and is the first of them."""
_DIGITS: Final = 38
_EXACT: Final = Context(prec=_DIGITS)
"""Python's own context rounds to 28 digits."""
_TOO_LONG: Final = 1 << 63
"""A whole number that no bigint holds."""
_LARGEST, _SMALLEST = Decimal("9.9999999999999999999999999999999999999E+125"), Decimal("1E-130")


def items_of(rows: pa.RecordBatch) -> list[dict[str, Attribute] | Poison]:
    """The item of each row, without its nulls."""
    columns = [_attributes(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
    items: list[dict[str, Attribute] | Poison] = []
    for values in zip(*columns, strict=True):
        bad = next((value for value in values if isinstance(value, Poison)), None)
        item = {name: value for name, value in zip(rows.schema.names, values, strict=True) if value is not None}
        items.append(item if bad is None else bad)
    return items


def value_of(attribute: Attribute) -> Any:
    """An attribute as JSON would have it: what no bigint holds as a decimal, binary as base64, a set as a list."""
    ((kind, value),) = attribute.items()
    if kind == "N":
        number = Decimal(value)
        return int(value) if value.lstrip("-").isdigit() and -_TOO_LONG <= number < _TOO_LONG else number
    if kind == "B":
        return base64.b64encode(value).decode()
    if kind == "L":
        return list(map(value_of, value))
    if kind == "M":
        return {name: value_of(part) for name, part in value.items()}
    if kind in ("SS", "NS", "BS"):
        return [value_of({kind[0]: part}) for part in value]
    return None if kind == "NULL" else value


def size_of(item: Mapping[str, Attribute]) -> int:
    """The bytes of an item, about as DynamoDB counts them."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def supported(kind: pa.DataType) -> bool:
    """True if values of a type have a form in DynamoDB."""
    if types.is_struct(kind):
        return all(supported(kind.field(place).type) for place in range(kind.num_fields))
    if types.is_map(kind):
        return supported(kind.item_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return supported(kind.value_type)
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date)
    return is_text(kind) or is_binary(kind) or any(test(kind) for test in known)


def depth_of(kind: pa.DataType) -> int:
    """The number of lists and maps of a type that lie in each other; a struct is a map."""
    if types.is_struct(kind):
        return 1 + max((depth_of(field.type) for field in kind), default=0)
    if types.is_map(kind):
        return 1 + depth_of(kind.item_type)
    return 1 + depth_of(kind.value_type) if types.is_list(kind) or types.is_large_list(kind) else 0


def _attributes(name: str, column: pa.Array) -> Sequence[Attribute | Poison | None]:
    """The values of a column."""
    kind = column.type
    if types.is_timestamp(kind) or types.is_date(kind):
        return [None if text is None else {"S": text} for text in texts_of(column).to_pylist()]
    if types.is_floating(kind):
        texts = pc.cast(column, pa.string()).to_pylist()  # the shortest text that stands for the number
        if _all_fit(column):
            return [None if text is None else {"N": text} for text in texts]
        return [None if text is None else _number(name, text) for text in texts]
    write = _writer(name, kind)
    return [None if value is None else write(value) for value in column.to_pylist()]


def _all_fit(column: pa.Array) -> bool:
    """True if DynamoDB has all numbers of a column of floats: the quick answer for most columns."""
    size = pc.abs(column.cast(pa.float64()))
    fits = pc.or_(pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, float(_SMALLEST)), pc.less(size, 1e126)))
    return bool(pc.all(fits, min_count=0).as_py())  # NaN fits nowhere


def _number(name: str, text: str) -> Attribute | Poison:
    value = Decimal(text)
    if not value.is_finite():
        return Poison(f'the column "{name}" is {text}, which DynamoDB has not')
    if value and not (_SMALLEST <= abs(value) <= _LARGEST and _digits(value) <= _DIGITS):
        return Poison(f'the column "{name}" is {text}, and a number of DynamoDB has {_DIGITS} digits, from 1E-130 to 1E+126')
    return {"N": text}


def _digits(value: Decimal) -> int:
    """The digits of a number without the zeros at its end."""
    return len("".join(map(str, value.as_tuple().digits)).rstrip("0"))


def _writer(name: str, kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that makes an attribute of a value of Python; a :class:`Poison` where it cannot."""
    if types.is_boolean(kind):
        return lambda value: {"BOOL": value}
    if types.is_decimal128(kind):
        return lambda value: {"N": format(value, "f")}  # none has more than 38 digits
    if types.is_decimal(kind):
        return lambda value: _number(name, format(value, "f"))
    if types.is_integer(kind):
        return lambda value: {"N": repr(value)}  # none has more than 20 digits
    if types.is_floating(kind):
        return lambda value: _number(name, repr(value))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: {"B": value}
    if types.is_timestamp(kind) or types.is_date(kind):
        return lambda value: {"S": texts_of(pa.array([value], kind))[0].as_py()}
    if types.is_list(kind) or types.is_large_list(kind):
        item = _writer(name, kind.value_type)
        return lambda value: _joined("L", [_NULL if part is None else item(part) for part in value])
    if types.is_map(kind):
        inner = _writer(name, kind.item_type)
        return lambda value: _joined(
            "M", dict(zip(_keys(value, kind), [_NULL if part is None else inner(part) for _, part in value], strict=True))
        )
    if types.is_struct(kind):
        fields = {field.name: _writer(name, field.type) for field in kind}
        return lambda value: _joined(
            "M", {field: write(value[field]) for field, write in fields.items() if value[field] is not None}
        )
    return lambda value: {"S": value}


_NULL: Final = {"NULL": True}


def _keys(entries: Sequence[tuple[Any, Any]], kind: pa.MapType) -> list[str]:
    """The keys of a map, which are texts to the service."""
    keys = [key for key, _ in entries]
    if is_text(kind.key_type):
        return keys
    column = pa.array(keys, kind.key_type)
    texts: list[str] = (json_text(column) if types.is_nested(kind.key_type) else texts_of(column)).to_pylist()
    return texts


def _joined(kind: str, parts: Any) -> Any:
    bad = next((part for part in (parts.values() if kind == "M" else parts) if isinstance(part, Poison)), None)
    return bad if bad is not None else {kind: parts}


def _size(attribute: Attribute) -> int:
    ((kind, value),) = attribute.items()
    if kind == "S":
        return len(value.encode())
    if kind == "M":
        return 3 + sum(len(name.encode()) + 1 + _size(part) for name, part in value.items())
    if kind == "L":
        return 3 + sum(1 + _size(part) for part in value)
    if kind == "N":
        return _number_size(value)
    return len(value) if kind == "B" else 1


def _number_size(text: str) -> int:
    """The bytes of a number, one more where its digits make no pairs: a byte for two digits, for the exponent and a minus."""
    digits = len(text.lower().partition("e")[0].lstrip("-").replace(".", "").strip("0"))
    return 2 + digits // 2 + text.startswith("-") if digits else 1


def text_of(attribute: Attribute) -> str:
    """A key's value as text, the same for values that are the same to DynamoDB."""
    ((kind, value),) = attribute.items()
    if kind == "N":
        return f"N{_EXACT.plus(Decimal(value)).normalize(_EXACT)}"  # minus zero is zero
    return f"{kind}{base64.b64encode(value).decode() if kind == 'B' else value}"

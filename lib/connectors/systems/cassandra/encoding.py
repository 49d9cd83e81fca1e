"""Arrow's values as the protocol has them: whole columns at a time where a type has one size, else value by value."""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core import Poison
from .decoding import cql_of, fields_of, name_of

Encoder = Callable[[Any], bytes]
Cell = bytes | None | Poison

_DAYS_AT_EPOCH: Final = 1 << 31
_NULL: Final = struct.pack(">i", -1)
_WHOLE: Final = {"bigint": 8, "counter": 8, "int": 4, "smallint": 2, "tinyint": 1}
_DAY: Final = 86_400 * 1_000_000_000


def refusal(kind: Any, arrow: pa.DataType) -> str | None:
    """Why values of an Arrow type cannot be written as one of the driver's; ``None`` if they can."""
    name = name_of(kind)
    if name == "frozen":
        return refusal(kind.subtypes[0], arrow)
    if name in ("list", "set", "vector"):
        inner = kind.subtype if name == "vector" else kind.subtypes[0]
        is_list = types.is_list(arrow) or types.is_large_list(arrow)
        return refusal(inner, arrow.value_type) if is_list else f"is {arrow}, no array"
    if name == "map":
        if not types.is_map(arrow):
            return f"is {arrow}, no map"
        return refusal(kind.subtypes[0], arrow.key_type) or refusal(kind.subtypes[1], arrow.item_type)
    if name in ("tuple", "udt"):
        return _struct_refusal(kind, arrow)
    if any(test(arrow) for test in _ACCEPTED.get(name, ())):
        return None
    return f"is {arrow}, no {name}"


def _struct_refusal(kind: Any, arrow: pa.DataType) -> str | None:
    if not types.is_struct(arrow):
        return f"is {arrow}, no struct"
    names = [arrow.field(place).name for place in range(arrow.num_fields)]
    fields = fields_of(kind)
    if name_of(kind) == "tuple":
        if len(names) != len(fields):
            return f"has {len(names)} fields, and the tuple {len(fields)}"
        pairs = list(zip(range(len(names)), kind.subtypes, strict=True))
    else:
        if unknown := [name for name in names if name not in fields]:
            return f"has the field {unknown[0]}, and the type only {', '.join(fields)}"
        pairs = [(names.index(field), part) for field, part in zip(fields, kind.subtypes, strict=True) if field in names]
    return next((text for place, part in pairs if (text := refusal(part, arrow.field(place).type))), None)


_STRING: Final = (types.is_string, types.is_large_string)
_BINARY: Final = (types.is_binary, types.is_large_binary)
_NUMBER: Final = (types.is_integer,)
_FRACTION: Final = (types.is_integer, types.is_floating, types.is_decimal)
_ACCEPTED: Final[dict[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
    **dict.fromkeys(("ascii", "text", "uuid", "timeuuid", "inet"), _STRING),
    **dict.fromkeys(("bigint", "counter", "int", "smallint", "tinyint"), _NUMBER),
    **dict.fromkeys(("float", "double"), (types.is_integer, types.is_floating)),
    "boolean": (types.is_boolean,),
    "blob": (*_BINARY, *_STRING),
    "timestamp": (types.is_timestamp, types.is_integer),
    "date": (types.is_date,),
    "time": (types.is_integer, types.is_time64),
    "varint": (types.is_integer, types.is_decimal, *_STRING),
    "decimal": (*_FRACTION, *_STRING),
    "duration": (types.is_struct, types.is_duration),
}


class ColumnEncoder:
    """Makes cells of the values of one column; a :class:`Poison` of one that the type of the table does not have."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name, self.kind = name, kind
        self._encode = encoder(kind)

    def __call__(self, column: pa.Array) -> list[Cell]:
        try:
            return self._by_column(column)
        except (pa.ArrowException, ValueError, ArithmeticError, struct.error):
            return [cell for row in range(len(column)) for cell in self._of_row(column.slice(row, 1))]

    def _of_row(self, value: pa.Array) -> list[Cell]:
        try:
            return self._by_column(value)
        except (pa.ArrowException, ValueError, ArithmeticError, struct.error) as wrong:
            cql = cql_of(self.kind)
            value_text = repr(value[0].as_py()) if isinstance(wrong, InvalidOperation) else str(wrong)
            text = " ".join(value_text.split())
            return [Poison(f'the column "{self.name}" has a value that is no {cql}: {text}')]

    def _by_column(self, column: pa.Array) -> list[Cell]:
        name = name_of(self.kind)
        if name in _WHOLE:
            return sized(pc.cast(column, f"int{8 * _WHOLE[name]}"), f">i{_WHOLE[name]}")
        if name in ("float", "double"):
            return sized(_fractions(column, name), ">f4" if name == "float" else ">f8")
        if name == "timestamp":
            return sized(_milliseconds(column), ">i8")
        if name == "date":
            return sized(pc.add(pc.cast(pc.cast(column, pa.date32()), pa.int32()).cast(pa.int64()), _DAYS_AT_EPOCH), ">u4")
        if name == "text" or (name == "blob" and not types.is_string(column.type)):
            return list(column.cast(pa.binary()).to_pylist())
        encode = self._encode
        return [None if value is None else encode(value) for value in column.to_pylist()]


def sized(column: pa.Array, layout: str) -> list[Cell]:
    """The cells of numbers, each of one size."""
    present = None
    if column.null_count:
        present = column.is_valid().to_pylist()
        column = column.fill_null(0)
    dtype = np.dtype(layout)
    content = column.to_numpy(zero_copy_only=False).astype(dtype).tobytes()
    width = dtype.itemsize
    cells: list[Cell] = [content[place : place + width] for place in range(0, len(content), width)]
    return cells if present is None else [cell if is_value else None for cell, is_value in zip(cells, present, strict=True)]


def _fractions(column: pa.Array, name: str) -> pa.Array:
    """The numbers as ``float`` or ``double``. Raises ``ValueError`` for a whole number that would be another one."""
    numbers = pc.cast(column, name, safe=False)
    if types.is_integer(column.type):
        is_same = pc.equal(pc.cast(numbers, column.type, safe=False), column)
    else:
        is_same = pc.or_(pc.invert(pc.is_finite(column)), pc.is_finite(numbers))
    if pc.all(is_same).as_py() is False:
        raise ValueError(f"{column[0].as_py()} would be {numbers[0].as_py()}")
    return numbers


def _milliseconds(column: pa.Array) -> pa.Array:
    """Milliseconds since 1970: Cassandra keeps no more, and a part of one is cut off. A whole number counts them."""
    if types.is_integer(column.type):
        return pc.cast(column, pa.int64())
    numbers = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values = pc.divide(pc.subtract(numbers, _modulo(numbers)), 1000)
    return values


def _modulo(numbers: pa.Array) -> pa.Array:
    """The microseconds above whole milliseconds, also before 1970."""
    remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000))
    return pc.if_else(pc.less(remainder, 0), pc.add(remainder, 1000), remainder)


def encoder(kind: Any) -> Encoder:
    """A function that makes a cell of a value of Python, as Arrow gives it."""
    name = name_of(kind)
    if name == "frozen":
        return encoder(kind.subtypes[0])
    if name in ("list", "set"):
        item = encoder(kind.subtypes[0])
        return lambda values: _collection(len(values), map(item, _without_null(values, name)))
    if name == "map":
        key, value = encoder(kind.subtypes[0]), encoder(kind.subtypes[1])
        return lambda pairs: _collection(
            len(pairs), [cell for name, part in pairs for cell in (key(name), value(_not_null(part, "map")))]
        )
    if name == "vector":
        return _vector(kind, encoder(kind.subtype))
    if name in ("tuple", "udt"):
        fields = list(zip(fields_of(kind), map(encoder, kind.subtypes), strict=True))
        return _tuple(fields) if name == "tuple" else _user_type(fields)
    return _PLAIN[name]


def _collection(count: int, cells: Any) -> bytes:
    return struct.pack(">i", count) + b"".join(_cell(cell) for cell in cells)


def _cell(cell: bytes | None) -> bytes:
    return _NULL if cell is None else struct.pack(">i", len(cell)) + cell


def _vector(kind: Any, element: Encoder) -> Encoder:
    from cassandra.marshal import uvint_pack

    is_fixed = kind.subtype.serial_size() is not None

    def encode(values: Sequence[Any]) -> bytes:
        if len(values) != kind.vector_size:
            raise ValueError(f"it has {len(values)} elements, and the vector {kind.vector_size}")
        cells = map(element, _without_null(values, "vector"))
        return b"".join(cells if is_fixed else (uvint_pack(len(cell)) + cell for cell in cells))

    return encode


def _tuple(fields: Sequence[tuple[str, Encoder]]) -> Encoder:
    def encode(value: dict[str, Any]) -> bytes:
        parts = zip(value.values(), fields, strict=True)
        return b"".join(_cell(None if part is None else write(part)) for part, (_, write) in parts)

    return encode


def _user_type(fields: Sequence[tuple[str, Encoder]]) -> Encoder:
    def encode(value: dict[str, Any]) -> bytes:
        return b"".join(_cell(None if value.get(name) is None else write(value[name])) for name, write in fields)

    return encode


def _without_null(values: Sequence[Any], name: str) -> Sequence[Any]:
    for value in values:
        _not_null(value, name)
    return values


def _not_null(value: Any, name: str) -> Any:
    if value is None:
        raise ValueError(f"a {name} of Cassandra has no nulls in it")
    return value


def _varint(value: Any) -> bytes:
    number = int(Decimal(value))
    if number != Decimal(value):
        raise ValueError(f"{value} is no whole number")
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def _decimal(value: Any) -> bytes:
    sign, digits, exponent = Decimal(repr(value) if isinstance(value, float) else value).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is no decimal")
    number = int("".join(map(str, digits)) or "0")
    return struct.pack(">i", -exponent) + _varint(-number if sign else number)


def _duration(value: Any) -> bytes:
    from cassandra.cqltypes import DurationType
    from cassandra.util import Duration

    if isinstance(value, dict):
        months, days, nanoseconds = (int(value.get(name) or 0) for name in ("months", "days", "nanoseconds"))
    else:
        sign, size = -1 if value.days < 0 else 1, abs(value)  # Python has only the days of an interval before zero negative
        months, days, nanoseconds = 0, sign * size.days, sign * (size.seconds * 1_000_000 + size.microseconds) * 1000
    if len({number > 0 for number in (months, days, nanoseconds) if number}) > 1:
        raise ValueError("the parts of a duration have one sign")
    return bytes(DurationType.serialize(Duration(months, days, nanoseconds), 5))


def _time(value: Any) -> bytes:
    """Nanoseconds of the day. Cassandra takes others too, and no driver can then read the table."""
    if not isinstance(value, int):
        value = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000_000 + value.microsecond * 1000
    if not 0 <= value < _DAY:
        raise ValueError(f"{value} is no number of nanoseconds of a day")
    return struct.pack(">q", value)


def _timestamp(value: Any) -> bytes:
    if isinstance(value, int):
        return struct.pack(">q", value)
    return bytes(sized(_milliseconds(pa.array([value], pa.timestamp("us"))), ">i8")[0])  # type: ignore[arg-type]


def _date(value: Any) -> bytes:
    return struct.pack(">I", value.toordinal() - 719_163 + _DAYS_AT_EPOCH)


def _number(layout: str) -> Encoder:
    pack = struct.Struct(layout).pack

    def encode(value: Any) -> bytes:
        try:
            return pack(value)
        except struct.error as wrong:
            raise ValueError(str(wrong)) from None

    return encode


def _fraction(layout: str) -> Encoder:
    number = struct.Struct(layout)

    def encode(value: Any) -> bytes:
        cell = number.pack(value)
        if isinstance(value, int) and number.unpack(cell)[0] != value:
            raise ValueError(f"{value} would be {number.unpack(cell)[0]}")
        return cell

    return encode


def _time_id(value: str) -> bytes:
    cell = uuid.UUID(value).bytes
    if cell[6] >> 4 != 1:
        raise ValueError(f"{value} is of version {cell[6] >> 4}, and a timeuuid of version 1")
    return cell


def _inet(value: str) -> bytes:
    address = ipaddress.ip_address(value)
    if "%" in value:
        raise ValueError(f"{value} has a zone, which Cassandra does not keep")
    return address.packed


def _ascii(value: str) -> bytes:
    return value.encode("ascii")


_PLAIN: Final[dict[str, Encoder]] = {
    "ascii": _ascii,
    "text": str.encode,
    "uuid": lambda value: uuid.UUID(value).bytes,
    "timeuuid": _time_id,
    "inet": _inet,
    "blob": lambda value: value if isinstance(value, bytes) else value.encode(),
    "boolean": lambda value: b"\x01" if value else b"\x00",
    "varint": _varint,
    "decimal": _decimal,
    "duration": _duration,
    "time": _time,
    "timestamp": _timestamp,
    "date": _date,
    "bigint": _number(">q"),
    "counter": _number(">q"),
    "int": _number(">i"),
    "smallint": _number(">h"),
    "tinyint": _number(">b"),
    "double": _fraction(">d"),
    "float": _fraction(">f"),
}

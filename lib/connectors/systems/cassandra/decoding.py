"""Values of CQL as Arrow has them: whole columns at a time where a type has one size, else value by value.

===================================  =====================================================
CQL                                  Spark
===================================  =====================================================
ascii, text, varchar, inet           string
uuid, timeuuid                       string
tinyint, smallint, int, bigint       byte, short, int, long
counter                              long
float, double, boolean               the same
varint                               decimal(38,0)
decimal                              decimal(38,18)
timestamp, date                      the same
time                                 long: nanoseconds of the day
duration                             struct<months int, days int, nanoseconds bigint>
blob                                 binary
list, set; map; vector               array; map; array
tuple                                struct<_1, _2, …>
a user's type                        struct
===================================  =====================================================

A column of ``.schema(…)`` may ask for another type that the values have: a ``string`` of anything, a decimal of another
scale, a ``long`` of a varint. A ``long`` of a timestamp has its milliseconds, as the sink takes them.
"""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core import Fatal

Decoder = Callable[[bytes], Any]
Cells = Sequence["bytes | None"]
"""The values of a column as the protocol has them."""

_DAYS_AT_EPOCH: Final = 1 << 31
DURATION: Final = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])
_FIXED: Final[dict[str, tuple[str, pa.DataType]]] = {
    "bigint": (">i8", pa.int64()),
    "counter": (">i8", pa.int64()),
    "int": (">i4", pa.int32()),
    "smallint": (">i2", pa.int16()),
    "tinyint": (">i1", pa.int8()),
    "double": (">f8", pa.float64()),
    "float": (">f4", pa.float32()),
    "boolean": (">u1", pa.bool_()),
    "timestamp": (">i8", pa.timestamp("us", "UTC")),
    "date": (">u4", pa.date32()),
    "time": (">i8", pa.int64()),
}
"""Types of one size: how numpy reads them, and what Arrow has for them."""
_PLAIN: Final[dict[str, pa.DataType]] = {
    **{name: kind for name, (_, kind) in _FIXED.items()},
    **dict.fromkeys(("ascii", "text", "varchar", "uuid", "timeuuid", "inet"), pa.string()),
    "blob": pa.binary(),
    "varint": pa.decimal128(38, 0),
    "decimal": pa.decimal128(38, 18),
    "duration": DURATION,
}


def name_of(kind: Any) -> str:
    """The name of a type of the driver, without what is inside it; ``udt`` for one of a user's own."""
    if hasattr(kind, "fieldnames") and kind.fieldnames and kind.typename != "tuple":
        return "udt"
    if hasattr(kind, "vector_size"):
        return "vector"
    return str({"timestamp": "timestamp", "varchar": "text"}.get(kind.typename, kind.typename))


def cql_of(kind: Any) -> str:
    """A type as CQL writes it."""
    return str(kind.cql_parameterized_type()).replace("org.apache.cassandra.db.marshal.VectorType", "vector")


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type for a type of the driver. Raises ``ValueError`` for one of Java's classes."""
    name = name_of(kind)
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "frozen":
        return arrow_type(kind.subtypes[0])
    if name in ("list", "set"):
        return pa.list_(arrow_type(kind.subtypes[0]))
    if name == "vector":
        return pa.list_(arrow_type(kind.subtype))
    if name == "map":
        return pa.map_(arrow_type(kind.subtypes[0]), arrow_type(kind.subtypes[1]))
    if name in ("tuple", "udt"):
        return pa.struct([(field, arrow_type(part)) for field, part in zip(fields_of(kind), kind.subtypes, strict=True)])
    raise ValueError(f"the type {cql_of(kind)} has no counterpart in Spark")


def fields_of(kind: Any) -> list[str]:
    """The names of the parts of a tuple or a user's type."""
    if name_of(kind) == "udt":
        return list(kind.fieldnames)
    return [f"_{number}" for number in range(1, len(kind.subtypes) + 1)]


class ColumnDecoder:
    """Makes Arrow arrays of ``asked`` of the cells of one column, whose values are of ``kind``."""

    def __init__(self, name: str, kind: Any, asked: pa.DataType | None = None) -> None:
        self.name, self.kind = name, kind
        self.natural = _natural(kind, asked)
        self.asked = asked if asked is not None else self.natural
        self._decode = decoder(kind)

    def __call__(self, cells: Cells) -> pa.Array:
        """Raises :class:`~connectors.ground.errors.Fatal` for a value that the asked type does not have."""
        try:
            return self._cast(self._natural_values(cells))
        except (pa.ArrowException, ValueError, OverflowError, struct.error) as wrong:
            text = f'a value of the column "{self.name}" ({cql_of(self.kind)}) is no {self.asked}'
            way_out = f"give .schema(…) that fits it; {_WIDEST.get(name_of(self.kind), 'string takes every value')}"
            raise Fatal(f"{text}: {' '.join(str(wrong).split())}", way_out=way_out) from None

    def _natural_values(self, cells: Cells) -> pa.Array:
        name = name_of(self.kind)
        if name in _FIXED:
            return fixed(cells, "bigint" if types.is_int64(self.natural) else name)
        if name in ("text", "ascii", "blob"):
            return binary(cells, pa.binary() if name == "blob" else pa.string())
        if name in ("uuid", "timeuuid"):
            return uuids(cells)
        decode = self._decode
        if name not in _NESTED:  # an empty value is one without a value, from the days of Thrift
            values = [decode(cell) if cell else None for cell in cells]
        else:
            values = [None if cell is None else decode(cell) for cell in cells]
        if types.is_string(self.natural) and name in ("varint", "decimal"):
            values = [None if value is None else format(value, "f") for value in values]
        return pa.array(values, self.natural)

    def _cast(self, values: pa.Array) -> pa.Array:
        if values.type == self.asked:
            return values
        if types.is_string(self.asked) and types.is_nested(values.type):
            return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
        cast = pc.cast(values, self.asked)
        if _infinities(cast) != _infinities(values):
            raise ValueError("it is too large")
        return cast


_WIDEST: Final = {"timestamp": "long takes every value: milliseconds since 1970", "blob": "binary takes every value"}
_NESTED: Final = ("list", "set", "map", "tuple", "udt", "vector", "frozen")


def _infinities(values: pa.Array) -> int:
    """The number of infinite values, also inside of others: Arrow makes one of a double that a float does not have."""
    if types.is_floating(values.type):
        return int(pc.sum(pc.is_inf(values)).as_py() or 0)
    if types.is_map(values.type):
        return _infinities(values.keys) + _infinities(values.items)
    if types.is_list(values.type):
        return _infinities(values.flatten())
    return sum(map(_infinities, values.flatten())) if types.is_struct(values.type) else 0


def _natural(kind: Any, asked: pa.DataType | None) -> pa.DataType:
    """The type that values are read as: for numbers of any size that of the column, so that they keep their digits."""
    name = name_of(kind)
    if asked is not None and name in ("varint", "decimal") and (types.is_decimal(asked) or types.is_string(asked)):
        return asked
    if name == "timestamp" and asked is not None and types.is_integer(asked):
        return pa.int64()
    return _nested(kind, asked)


def _nested(kind: Any, asked: pa.DataType | None) -> pa.DataType:
    """The Arrow type for a type of the driver, with the decimals inside it as asked for."""
    name = name_of(kind)
    if name == "frozen":
        return _nested(kind.subtypes[0], asked)
    if asked is not None and types.is_decimal(asked) and name in ("varint", "decimal"):
        return asked
    if asked is not None and types.is_list(asked) and name in ("list", "set", "vector"):
        return pa.list_(_nested(kind.subtype if name == "vector" else kind.subtypes[0], asked.value_type))
    if asked is not None and types.is_map(asked) and name == "map":
        return pa.map_(_nested(kind.subtypes[0], asked.key_type), _nested(kind.subtypes[1], asked.item_type))
    if asked is not None and types.is_struct(asked) and name in ("tuple", "udt"):
        parts = zip(fields_of(kind), kind.subtypes, strict=True)
        return pa.struct([(field, _nested(part, _field(asked, field))) for field, part in parts])
    return arrow_type(kind)


def _field(asked: pa.StructType, name: str) -> pa.DataType | None:
    place = asked.get_field_index(name)
    return asked.field(place).type if place >= 0 else None


def fixed(cells: Cells, name: str) -> pa.Array:
    """The values of cells of one size. An empty cell is null."""
    layout, kind = _FIXED[name]
    dtype = np.dtype(layout)
    content, present = _sized(cells, dtype.itemsize, name)
    values = np.frombuffer(content, dtype)
    if name == "date":
        values = (values.astype(np.int64) - _DAYS_AT_EPOCH).astype(np.int32)
    elif name == "boolean":
        values = np.packbits(values != 0, bitorder="little")
    else:
        values = values.astype(dtype.newbyteorder("="))
    if name == "timestamp":
        return _array(pa.timestamp("ms", "UTC"), len(cells), present, values).cast(kind)
    return _array(kind, len(cells), present, values)


def binary(cells: Cells, kind: pa.DataType) -> pa.Array:
    """Cells as they are."""
    present = _present(cells)
    values: Sequence[Any] = cells if present is None else [cell or b"" for cell in cells]
    return _array(kind, len(cells), present, _ends(np.fromiter(map(len, values), np.int64, len(values))), b"".join(values))


_HEX: Final = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), np.uint8).reshape(256, 2)
_HYPHENS: Final = (8, 13, 18, 23)
_DIGITS: Final = np.array([place for place in range(36) if place not in _HYPHENS])


def uuids(cells: Cells) -> pa.Array:
    """The texts of 16 bytes each."""
    content, present = _sized(cells, 16, "uuid")
    text = np.full((len(cells), 36), ord("-"), np.uint8)
    text[:, _DIGITS] = _HEX[np.frombuffer(content, np.uint8)].reshape(len(cells), 32)
    return _array(pa.string(), len(cells), present, _ends(np.full(len(cells), 36)), text)


def _sized(cells: Cells, size: int, name: str) -> tuple[bytes, Any]:
    """The bytes of cells of one size, zeros for a null, and which there are; ``None`` if all are."""
    content = b"".join(cells) if None not in cells else b""  # type: ignore[arg-type]
    if len(content) == size * len(cells) and b"" not in cells:
        return content, None
    if wrong := next((cell for cell in cells if cell and len(cell) != size), None):
        raise ValueError(f"a {name} has {size} bytes, and not {len(wrong)}")
    present = np.fromiter(map(bool, cells), np.bool_, len(cells))
    return b"".join([cell or bytes(size) for cell in cells]), None if bool(present.all()) else present


def _present(cells: Cells) -> Any:
    """A mask of the cells that are not null; ``None`` if none is null."""
    if None not in cells:
        return None
    return np.fromiter((cell is not None for cell in cells), np.bool_, len(cells))


def _ends(sizes: Any) -> Any:
    """The offsets at which values of these sizes begin, and the one at which the last value ends."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _array(kind: pa.DataType, count: int, present: Any, *content: Any) -> pa.Array:
    """An array of its buffers; ``pa.array`` would import pandas first, which takes a second in each new process."""
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [valid, *map(pa.py_buffer, content)])


def decoder(kind: Any) -> Decoder:
    """A function that makes of one cell what Arrow takes."""
    name = name_of(kind)
    if name == "frozen":
        return decoder(kind.subtypes[0])
    if name in ("list", "set"):
        item = decoder(kind.subtypes[0])
        return lambda cell: [None if part is None else item(part) for part in _parts(cell, 4, _count(cell))]
    if name == "map":
        key, value = decoder(kind.subtypes[0]), decoder(kind.subtypes[1])
        return lambda cell: _pairs(cell, key, value)
    if name in ("tuple", "udt"):
        fields = list(zip(fields_of(kind), map(decoder, kind.subtypes), strict=True))
        return lambda cell: {
            field: None if part is None else read(part)
            for (field, read), part in zip(fields, _padded(_parts(cell, 0, len(fields)), len(fields)), strict=True)
        }
    if name == "vector":
        element = decoder(kind.subtype)
        return lambda cell: [element(part) for part in _elements(kind, cell)]
    return _plain_decoder(kind, name)


def _plain_decoder(kind: Any, name: str) -> Decoder:
    if name == "date":
        days = struct.Struct(">I").unpack
        return lambda cell: days(cell)[0] - _DAYS_AT_EPOCH
    if name == "timestamp":
        milliseconds = struct.Struct(">q").unpack
        return lambda cell: milliseconds(cell)[0] * 1000
    if name == "boolean":
        return lambda cell: cell != b"\x00"
    if name in _FIXED:
        unpack = struct.Struct({">i8": ">q", ">i4": ">i", ">i2": ">h", ">i1": ">b", ">f8": ">d", ">f4": ">f"}[_FIXED[name][0]])
        return lambda cell: unpack.unpack(cell)[0]
    if name in ("text", "ascii"):
        return lambda cell: cell.decode()
    if name in ("uuid", "timeuuid"):
        return lambda cell: str(uuid.UUID(bytes=cell))
    if name == "inet":
        return lambda cell: str(ipaddress.ip_address(cell))
    if name == "varint":
        return lambda cell: Decimal(int.from_bytes(cell, "big", signed=True))
    if name == "decimal":
        return _decimal
    if name == "duration":
        return lambda cell: _duration(kind, cell)
    return lambda cell: cell


def _decimal(cell: bytes) -> Decimal:
    scale = int.from_bytes(cell[:4], "big", signed=True)
    unscaled = int.from_bytes(cell[4:], "big", signed=True)
    return Decimal((0 if unscaled >= 0 else 1, tuple(map(int, str(abs(unscaled)))), -scale))


def _duration(kind: Any, cell: bytes) -> dict[str, int]:
    value = kind.deserialize(cell, 5)
    return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}


def _count(cell: bytes) -> int:
    return int.from_bytes(cell[:4], "big")


def _parts(cell: bytes, place: int, count: int) -> list[bytes | None]:
    """So many values, each behind its size; fewer where the cell ends, as after a field was added to a type."""
    parts: list[bytes | None] = []
    while len(parts) < count and place < len(cell):
        size = int.from_bytes(cell[place : place + 4], "big", signed=True)
        place += 4
        parts.append(cell[place : place + size] if size >= 0 else None)
        place += max(0, size)
    return parts


def _elements(kind: Any, cell: bytes) -> list[bytes]:
    """The values of a vector, each behind its size unless that is the same for all."""
    from cassandra.marshal import uvint_unpack

    if size := kind.subtype.serial_size():
        return [cell[place : place + size] for place in range(0, len(cell), size)]
    elements, place = [], 0
    while place < len(cell):
        size, width = uvint_unpack(cell[place:])
        place += width + size
        elements.append(cell[place - size : place])
    return elements


def _padded(parts: list[bytes | None], count: int) -> list[bytes | None]:
    return parts + [None] * (count - len(parts))


def _pairs(cell: bytes, key: Decoder, value: Decoder) -> list[tuple[Any, Any]]:
    parts = _parts(cell, 4, 2 * _count(cell))
    return [
        (key(name), None if part is None else value(part))
        for name, part in zip(parts[::2], parts[1::2], strict=True)
        if name is not None
    ]

"""The leaves of an Avro schema: what has no parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .avro_cursor import Cursor, Flags, Ints

_WIDER = {
    "int": (pa.types.is_int32, pa.types.is_int64, pa.types.is_floating),
    "long": (pa.types.is_int64, pa.types.is_floating),
    "float": (pa.types.is_floating,),
    "double": (pa.types.is_float64,),
}


_LONGEST_DECIMAL = 64  # bytes; 16 hold every decimal that Spark has


class Node:
    """Reads one part of a schema. With ``want`` as ``None`` nobody wants it: it is passed over."""

    least = 1
    """The fewest bytes of a value."""

    def __init__(self, want: pa.DataType | None, path: str) -> None:
        self.want = want
        self.path = path or "the record"

    def read(self, at: Cursor) -> Any:
        raise NotImplementedError


def fits(right: bool, kind: str, want: pa.DataType | None, path: str) -> None:
    """Raises ``ValueError`` if what was written as ``kind`` cannot be read as ``want``."""
    if not right:
        raise ValueError(f"{path or 'the record'} was written as {kind} and cannot be read as {want}")


def leaf(kind: str, schema: Any, want: pa.DataType | None, path: str) -> Node:
    """The node of a type that has no parts. Raises ``ValueError`` if it cannot be read as ``want``."""
    logical = schema.get("logicalType", "")
    if kind == "null":
        return NullNode(want, path)
    if kind == "boolean":
        fits(want is None or pa.types.is_boolean(want), kind, want, path)
        return BooleanNode(want, path)
    if kind in ("int", "long"):
        return _number(kind, logical, want, path)
    if kind in ("float", "double"):
        fits(want is None or any(test(want) for test in _WIDER[kind]), kind, want, path)
        return FloatNode(want, path, 4 if kind == "float" else 8)
    if kind == "enum":
        fits(want is None or pa.types.is_string(want) or pa.types.is_large_string(want), kind, want, path)
        return EnumNode(want, path, schema["symbols"])
    size = schema["size"] if kind == "fixed" else None
    if want is not None and pa.types.is_decimal(want):
        right = logical == "decimal" and schema.get("scale", 0) == want.scale and schema["precision"] <= want.precision
        fits(right, f"{logical or kind}({schema.get('precision', '')},{schema.get('scale', 0)})", want, path)
        return DecimalNode(want, path, size)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    fits(want is None or (any(test(want) for test in texts) and logical != "decimal"), logical or kind, want, path)
    return TextNode(want, path, size)


def _number(kind: str, logical: str, want: pa.DataType | None, path: str) -> Node:
    if want is not None and pa.types.is_timestamp(want):
        fits(logical.endswith(("timestamp-millis", "timestamp-micros")), logical or kind, want, path)
        return NumberNode(want, path, kind, 1000 if logical.endswith("millis") else 1)
    if want is not None and pa.types.is_date(want):
        fits(logical == "date", logical or kind, want, path)
        return NumberNode(want, path, kind)
    narrow = want is not None and kind == "int" and (pa.types.is_int8(want) or pa.types.is_int16(want))
    fits(want is None or narrow or any(test(want) for test in _WIDER[kind]), logical or kind, want, path)
    return NumberNode(want, path, kind)


class NullNode(Node):
    least = 0

    def read(self, at: Cursor) -> Any:
        return None if self.want is None else pa.nulls(len(at), self.want)


class BooleanNode(Node):
    def read(self, at: Cursor) -> Any:
        value = at.bytes(self.path)
        at.fail(value > 1, f"{self.path}: neither true nor false")
        return None if self.want is None else pa.array(value != 0)


class NumberNode(Node):
    def __init__(self, want: pa.DataType | None, path: str, kind: str, times: int = 1) -> None:
        super().__init__(want, path)
        bits = 32 if kind == "int" else 64
        if want is not None and pa.types.is_integer(want):
            bits = min(bits, want.bit_width)
        self.most = (2 ** (bits - 1) - 1) // times
        self.bits = bits
        self.times = times

    def read(self, at: Cursor) -> Any:
        value = at.numbers(self.path)
        if self.bits < 64 or self.times > 1:
            over = (value > self.most) | (value < -self.most - 1)
            at.fail(over, f"{self.path}: a number of more than {self.bits} bits")
            value = np.where(over, 0, value) * self.times
        if self.want is None:
            return None
        if pa.types.is_floating(self.want):
            return pa.array(value.astype(self.want.to_pandas_dtype()))
        if pa.types.is_date(self.want):
            return pa.array(value.astype(np.int32)).cast(self.want)
        return pa.array(value).cast(self.want)


class FloatNode(Node):
    def __init__(self, want: pa.DataType | None, path: str, width: int) -> None:
        super().__init__(want, path)
        self.width = self.least = width

    def read(self, at: Cursor) -> Any:
        word = at.words(self.width, self.path)
        if self.want is None:
            return None
        value = word.view(np.float64) if self.width == 8 else word.astype(np.uint32).view(np.float32)
        return pa.array(value).cast(self.want)


class TextNode(Node):
    """Text, bytes, and bytes of a fixed size."""

    def __init__(self, want: pa.DataType | None, path: str, size: int | None = None) -> None:
        super().__init__(want, path)
        self.size = size
        self.least = 1 if size is None else size

    def read(self, at: Cursor) -> Any:
        sizes: Any = at.lengths(self.path) if self.size is None else self.size
        if self.want is None:
            at.skip(sizes, self.path)
            return None
        values = at.slices(sizes, self.path)
        try:
            return values.cast(self.want)
        except pa.ArrowInvalid:
            wrong = np.array([not _is_text(one) for one in values.to_pylist()])
            at.fail(wrong, f"{self.path}: not UTF-8")
            return pc.if_else(pa.array(wrong), pa.scalar(b"", pa.binary()), values).cast(self.want)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class EnumNode(Node):
    def __init__(self, want: pa.DataType | None, path: str, symbols: list[str]) -> None:
        super().__init__(want, path)
        self.symbols = pa.array(symbols, pa.string() if want is None else want)

    def read(self, at: Cursor) -> Any:
        value = at.numbers(self.path)
        wrong = (value < 0) | (value >= len(self.symbols))
        at.fail(wrong, f"{self.path}: no such symbol")
        return None if self.want is None else self.symbols.take(pa.array(np.where(wrong, 0, value)))


class DecimalNode(Node):
    def __init__(self, want: pa.DataType, path: str, size: int | None) -> None:
        super().__init__(want, path)
        self.size = size
        self.least = 1 if size is None else size
        digits = 10**want.precision - 1
        self.most, self.smallest = (pa.scalar(one, pa.decimal128(38, 0)) for one in (digits, -digits))

    def read(self, at: Cursor) -> Any:
        sizes = at.lengths(self.path) if self.size is None else np.full(len(at), self.size)
        begin = at.skip(sizes, self.path)
        data = at.records.data
        values = np.empty((len(at), 16), np.uint8)
        sizes = np.where(at.at - begin == sizes, sizes, 0)
        sign = np.where((sizes > 0) & (data[begin] > 127), 255, 0).astype(np.uint8)
        for place in range(16):  # Arrow has the lowest byte first, Avro the highest
            values[:, place] = np.where(place < sizes, data[np.maximum(begin + sizes - 1 - place, 0)], sign)
        made = pa.Array.from_buffers(pa.decimal128(38, 0), len(at), [None, pa.py_buffer(values)])
        wrong = self._overflows(made) | self._longer(data, begin, sizes, sign)
        at.fail(wrong, f"{self.path}: more digits than {self.want}")
        values[wrong] = 0
        return pa.Array.from_buffers(self.want, len(at), [None, pa.py_buffer(values)])

    def _overflows(self, unscaled: pa.Array) -> Flags:
        over = pc.or_(pc.greater(unscaled, self.most), pc.less(unscaled, self.smallest))
        return np.asarray(over.to_numpy(zero_copy_only=False), np.bool_)

    @staticmethod
    def _longer(data: Any, begin: Ints, sizes: Ints, sign: Any) -> Flags:
        """True where bytes beyond the sixteenth say more than the sign."""
        longer = sizes > _LONGEST_DECIMAL
        for place in range(16, int(min(sizes.max(initial=0), _LONGEST_DECIMAL))):
            longer |= (place < sizes) & (data[np.maximum(begin + sizes - 1 - place, 0)] != sign)
        return np.asarray(longer, np.bool_)

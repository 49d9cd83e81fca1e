"""Thrift's compact protocol, as far as a Parquet footer needs it: read as it is, changed in places, written again.

A struct is a dict of field numbers to ``(type, value)``; fields that nobody here knows come out as they went in.
"""

from __future__ import annotations

import io
from typing import Any, Final

Struct = dict[int, tuple[int, Any]]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_INTEGERS: Final = (I16, I32, I64)


def read_struct(data: bytes) -> Struct:
    """The struct that begins ``data``. Raises ``ValueError`` for anything else."""
    try:
        return _Reader(data).struct()
    except (IndexError, KeyError) as error:
        raise ValueError("no struct in the compact protocol") from error


def written(struct: Struct) -> bytes:
    """``struct`` in the compact protocol."""
    out = io.BytesIO()
    _write(out, STRUCT, struct)
    return out.getvalue()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def raw(self, size: int) -> bytes:
        value = self.data[self.at : self.at + size]
        if len(value) < size:
            raise IndexError(self.at)
        self.at += size
        return value

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while header := self.byte():
            number = number + (header >> 4) if header >> 4 else self.integer()
            kind = header & 0x0F
            found[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self.value(kind))
        return found

    def value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self.integer()
        if kind == BINARY:
            return self.raw(self.varint())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            header = self.byte()
            inner, size = header & 0x0F, header >> 4
            size = self.varint() if size == 15 else size
            return inner, [self.value(inner) for _ in range(size)]
        if kind in (TRUE, FALSE, BYTE):
            return self.byte()
        if kind == DOUBLE:
            return self.raw(8)
        raise KeyError(kind)  # maps: no footer has one


def _write(out: io.BytesIO, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _varint(out, (value << 1) ^ (value >> 63))
    elif kind == BINARY:
        _varint(out, len(value))
        out.write(value)
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        inner, items = value
        out.write(bytes([min(len(items), 15) << 4 | inner]))
        if len(items) >= 15:
            _varint(out, len(items))
        for item in items:
            _write(out, inner, item)
    else:
        out.write(value if kind == DOUBLE else bytes([value]))


def _write_struct(out: io.BytesIO, struct: Struct) -> None:
    before = 0
    for number in sorted(struct):
        kind, value = struct[number]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        if number - before <= 15:
            out.write(bytes([(number - before) << 4 | kind]))
        else:
            out.write(bytes([kind]))
            _varint(out, number << 1)
        if kind not in (TRUE, FALSE):
            _write(out, kind, value)
        before = number
    out.write(b"\0")


def _varint(out: io.BytesIO, value: int) -> None:
    while value > 0x7F:
        out.write(bytes([value & 0x7F | 0x80]))
        value >>= 7
    out.write(bytes([value]))

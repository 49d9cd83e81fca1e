"""Several Avro files as one, block by block, without decoding any of them: only the marker after each block changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Final

_MAGIC: Final = b"Obj\x01"
_MARKER: Final = 16


@dataclass(frozen=True)
class Header:
    """The header of a file: what it says of its records, and the marker between its blocks."""

    schema: object
    codec: bytes
    raw: bytes
    marker: bytes

    @classmethod
    def of(cls, file: BinaryIO) -> Header | None:
        """The header of ``file``; ``None`` if it is no Avro file."""
        file.seek(0)
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        told: dict[bytes, bytes] = {}
        while count := _long(file):
            if count < 0:
                _long(file)
            for _ in range(abs(count)):
                name = file.read(_long(file))
                told[name] = file.read(_long(file))
        marker, end = file.read(_MARKER), file.tell()
        file.seek(0)
        schema = json.loads(told[b"avro.schema"])
        return cls(schema, told.get(b"avro.codec", b"null"), file.read(end), marker)

    def like(self, other: Header) -> bool:
        """True if both hold records of one schema, compressed in one way."""
        return (self.schema, self.codec) == (other.schema, other.codec)


def join_avro(files: Iterable[BinaryIO], out: BinaryIO) -> None:
    """Writes the blocks of ``files``, whose headers are alike, to ``out``, in their order."""
    first: Header | None = None
    for file in files:
        header = Header.of(file)
        if header is None or (first is not None and not header.like(first)):
            raise ValueError("no Avro file, or one with other columns")
        if first is None:
            first = header
            out.write(header.raw)
        while (count := _long(file, at_end=0)) != 0:
            size = _long(file)
            out.write(long_of(count) + long_of(size) + file.read(size) + first.marker)
            if file.read(_MARKER) != header.marker:
                raise ValueError("an Avro file is damaged: a block ends without its marker")


def _long(file: BinaryIO, at_end: int | None = None) -> int:
    value = shift = 0
    while True:
        byte = file.read(1)
        if not byte:
            if at_end is not None and not shift:
                return at_end
            raise EOFError("an Avro file ends within a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def long_of(value: int) -> bytes:
    """A number as Avro writes it."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)

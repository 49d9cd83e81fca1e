"""Joins files of one format without decoding them: lines one after the other, Parquet by row groups, Avro by blocks."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from ...core.folder import SinkFolder
    from .rolling import HiddenPart


Struct = dict[int, tuple[int, Any]]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_INTEGERS: Final = (I16, I32, I64)


def read_struct(data: bytes) -> Struct:
    """The struct that begins ``data``. Raises ``ValueError`` for anything else."""
    try:
        return _JoinedReader(data).struct()
    except (IndexError, KeyError) as error:
        raise ValueError("no struct in the compact protocol") from error


def written(struct: Struct) -> bytes:
    """``struct`` in the compact protocol."""
    out = io.BytesIO()
    _write(out, STRUCT, struct)
    return out.getvalue()


class _JoinedReader:
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
        fields: Struct = {}
        number = 0
        while header := self.byte():
            number = number + (header >> 4) if header >> 4 else self.integer()
            kind = header & 0x0F
            fields[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self.value(kind))
        return fields

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


_PARQUET_MAGIC: Final = b"PAR1"
# Numbers of fields, from parquet.thrift.
_SCHEMA, _ROWS, _GROUPS, _EXTRA, _ORDERS = 2, 3, 4, 5, 7
_CHUNKS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _CHUNK, _INDEXES = 2, 3, (4, 5, 6, 7)
_POSITIONS = (9, 10, 11, 14)
"""Data pages, index pages, dictionary page, Bloom filter."""


@dataclass(frozen=True)
class Footer:
    """The footer of a file, and its position."""

    at: int
    fields: Struct

    @classmethod
    def of(cls, file: BinaryIO) -> Footer | None:
        """The footer of ``file``; ``None`` if it cannot be joined: encrypted, or no Parquet file."""
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        if tail[4:] != _PARQUET_MAGIC:
            return None
        at = size - 8 - int.from_bytes(tail[:4], "little")
        file.seek(at)
        return cls(at, read_struct(file.read(size - 8 - at)))

    def like(self, other: Footer) -> bool:
        """True if both have the same schema with the same metadata."""
        return all(self.fields.get(number) == other.fields.get(number) for number in (_SCHEMA, _EXTRA, _ORDERS))


def join_parquet(files: Iterable[BinaryIO], out: BinaryIO) -> None:
    """Writes the row groups of ``files``, whose footers are alike, to ``out``, in their order."""
    out.write(_PARQUET_MAGIC)
    at, groups, whole = len(_PARQUET_MAGIC), [], Struct()
    for file in files:
        footer = Footer.of(file)
        if footer is None or (whole and not footer.like(Footer(0, whole))):
            raise ValueError("no Parquet file, or one with other columns")
        file.seek(len(_PARQUET_MAGIC))
        _copy(file, out, footer.at - len(_PARQUET_MAGIC))
        groups += [_moved(group, at - len(_PARQUET_MAGIC)) for group in footer.fields[_GROUPS][1][1]]
        rows = footer.fields[_ROWS][1] + (whole[_ROWS][1] if whole else 0)
        whole = {**footer.fields, _ROWS: (I64, rows)}
        at += footer.at - len(_PARQUET_MAGIC)
    footer_bytes = written({**whole, _GROUPS: (LIST, (STRUCT, groups))})
    out.write(footer_bytes + len(footer_bytes).to_bytes(4, "little") + _PARQUET_MAGIC)


def _moved(group: Struct, by: int) -> Struct:
    chunks = [_moved_chunk(chunk, by) for chunk in group[_CHUNKS][1][1]]
    fields = {number: field for number, field in group.items() if number != _ORDINAL}
    return _shifted({**fields, _CHUNKS: (LIST, (STRUCT, chunks))}, (_GROUP_OFFSET,), by)


def _moved_chunk(chunk: Struct, by: int) -> Struct:
    fields = {number: field for number, field in chunk.items() if number not in _INDEXES}
    inner = _shifted(chunk[_CHUNK][1], _POSITIONS, by)
    return _shifted({**fields, _CHUNK: (STRUCT, inner)}, (_CHUNK_OFFSET,), by)


def _shifted(struct: Struct, positions: Sequence[int], by: int) -> Struct:
    """``struct`` with its positions moved; 0 is no position, since some writers use it for none."""
    moved = {number: (struct[number][0], struct[number][1] + by) for number in positions if struct.get(number, (0, 0))[1]}
    return {**struct, **moved}


def _copy(file: BinaryIO, out: BinaryIO, size: int) -> None:
    while size:
        block = file.read(min(size, 1 << 20))
        if not block:
            raise EOFError("a Parquet file is shorter than its footer says")
        out.write(block)
        size -= len(block)


_AVRO_MAGIC: Final = b"Obj\x01"
_MARKER: Final = 16


@dataclass(frozen=True)
class Header:
    """The header of a file: the metadata of its records, and the marker between its blocks."""

    schema: object
    codec: bytes
    raw: bytes
    marker: bytes

    @classmethod
    def of(cls, file: BinaryIO) -> Header | None:
        """The header of ``file``; ``None`` if it is no Avro file."""
        file.seek(0)
        if file.read(len(_AVRO_MAGIC)) != _AVRO_MAGIC:
            return None
        metadata: dict[bytes, bytes] = {}
        while count := _long(file):
            if count < 0:
                _long(file)
            for _ in range(abs(count)):
                name = file.read(_long(file))
                metadata[name] = file.read(_long(file))
        marker, end = file.read(_MARKER), file.tell()
        file.seek(0)
        schema = json.loads(metadata[b"avro.schema"])
        return cls(schema, metadata.get(b"avro.codec", b"null"), file.read(end), marker)

    def like(self, other: Header) -> bool:
        """True if both hold records of the same schema with the same compression."""
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


JOINED = ("parquet", "json", "csv", "text", "avro")
"""The file formats that can be joined without decoding."""


def joinable(folder: SinkFolder, parts: Sequence[HiddenPart]) -> Iterator[list[HiddenPart]]:
    """``parts`` in runs, each of which can become one file; a change of columns begins a new run."""
    if not _has_schema(parts[0].path):
        yield list(parts)
        return
    run: list[HiddenPart] = []
    first: Footer | Header | None = None
    for part in parts:
        with folder.open(part.path) as file:
            here = _schema(part.path, file)
        if run and (here is None or first is None or not here.like(first)):  # type: ignore[arg-type]
            yield run
            run = []
        first = here if not run else first
        run.append(part)
    yield run


def join(folder: SinkFolder, paths: Sequence[str], ready: str) -> None:
    """Writes the files at ``paths``, in their order, as one file ``ready``; see :func:`joinable`."""
    with folder.create(ready) as out:
        if not _has_schema(ready):
            for file in _opened(folder, paths):  # also compressed: gzip and bzip2 files may have several members
                shutil.copyfileobj(file, out, 1 << 20)
        elif ready.endswith(".parquet"):
            join_parquet(_opened(folder, paths), out)
        else:
            join_avro(_opened(folder, paths), out)


def _opened(folder: SinkFolder, paths: Sequence[str]) -> Iterator[BinaryIO]:
    """The files, opened one after the other: there may be more than a process may have open."""
    for path in paths:
        with folder.open(path) as file:
            yield file


def _has_schema(path: str) -> bool:
    return path.endswith((".parquet", ".avro"))


def _schema(path: str, file: BinaryIO) -> Footer | Header | None:
    return Footer.of(file) if path.endswith(".parquet") else Header.of(file)

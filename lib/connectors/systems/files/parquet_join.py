"""Several Parquet files as one, row group by row group, without decoding any of them.

The pages are copied as they are. In the footer, positions move by as much as the pages before them are long. Page indexes
are left out (they hold positions too, and readers do without).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from .thrift import I64, LIST, STRUCT, Struct, read_struct, written

_MAGIC: Final = b"PAR1"
# Numbers of fields, from parquet.thrift.
_SCHEMA, _ROWS, _GROUPS, _EXTRA, _ORDERS = 2, 3, 4, 5, 7
_CHUNKS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _CHUNK, _INDEXES = 2, 3, (4, 5, 6, 7)
_POSITIONS = (9, 10, 11, 14)
"""Data pages, index pages, dictionary page, Bloom filter."""


@dataclass(frozen=True)
class Footer:
    """The footer of a file, and where it begins."""

    at: int
    fields: Struct

    @classmethod
    def of(cls, file: BinaryIO) -> Footer | None:
        """The footer of ``file``; ``None`` if it cannot be joined: encrypted, or no Parquet file."""
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        if tail[4:] != _MAGIC:
            return None
        at = size - 8 - int.from_bytes(tail[:4], "little")
        file.seek(at)
        return cls(at, read_struct(file.read(size - 8 - at)))

    def like(self, other: Footer) -> bool:
        """True if both have the same schema, and say the same of it."""
        return all(self.fields.get(number) == other.fields.get(number) for number in (_SCHEMA, _EXTRA, _ORDERS))


def join_parquet(files: Iterable[BinaryIO], out: BinaryIO) -> None:
    """Writes the row groups of ``files``, whose footers are alike, to ``out``, in their order."""
    out.write(_MAGIC)
    at, groups, whole = len(_MAGIC), [], Struct()
    for file in files:
        footer = Footer.of(file)
        if footer is None or (whole and not footer.like(Footer(0, whole))):
            raise ValueError("no Parquet file, or one with other columns")
        file.seek(len(_MAGIC))
        _copy(file, out, footer.at - len(_MAGIC))
        groups += [_moved(group, at - len(_MAGIC)) for group in footer.fields[_GROUPS][1][1]]
        rows = footer.fields[_ROWS][1] + (whole[_ROWS][1] if whole else 0)
        whole = {**footer.fields, _ROWS: (I64, rows)}
        at += footer.at - len(_MAGIC)
    footer_bytes = written({**whole, _GROUPS: (LIST, (STRUCT, groups))})
    out.write(footer_bytes + len(footer_bytes).to_bytes(4, "little") + _MAGIC)


def _moved(group: Struct, by: int) -> Struct:
    chunks = [_moved_chunk(chunk, by) for chunk in group[_CHUNKS][1][1]]
    kept = {number: field for number, field in group.items() if number != _ORDINAL}
    return _shifted({**kept, _CHUNKS: (LIST, (STRUCT, chunks))}, (_GROUP_OFFSET,), by)


def _moved_chunk(chunk: Struct, by: int) -> Struct:
    kept = {number: field for number, field in chunk.items() if number not in _INDEXES}
    inner = _shifted(chunk[_CHUNK][1], _POSITIONS, by)
    return _shifted({**kept, _CHUNK: (STRUCT, inner)}, (_CHUNK_OFFSET,), by)


def _shifted(struct: Struct, positions: Sequence[int], by: int) -> Struct:
    """``struct`` with its positions moved; 0 is no position: some writers say so that there is none."""
    moved = {number: (struct[number][0], struct[number][1] + by) for number in positions if struct.get(number, (0, 0))[1]}
    return {**struct, **moved}


def _copy(file: BinaryIO, out: BinaryIO, size: int) -> None:
    while size:
        block = file.read(min(size, 1 << 20))
        if not block:
            raise EOFError("a Parquet file is shorter than its footer says")
        out.write(block)
        size -= len(block)



"""Csv as Spark's writer makes it: no header, quotes as in RFC 4180, ``""`` for an empty text, nothing for null."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core.cell_text import text_of
from ...core.json_text import content_of

_LARGEST = 64 << 20
"""So many bytes of rows become text at a time: Arrow's strings have room for 2 GB."""


def csv_lines(rows: pa.RecordBatch) -> Iterator[bytes]:
    """The lines of ``rows`` as UTF-8, in pieces, which follow each other."""
    if rows.nbytes > _LARGEST and rows.num_rows > 1:
        middle = rows.num_rows // 2
        yield from csv_lines(rows.slice(0, middle))
        yield from csv_lines(rows.slice(middle))
        return
    cells = [_cells(column, is_first=not number) for number, column in enumerate(rows.columns)]
    joined = pc.binary_join_element_wise(*cells, ",") if len(cells) > 1 else cells[0]
    yield content_of(pc.binary_join_element_wise(joined, "\n", ""))


def _cells(column: pa.Array, *, is_first: bool) -> pa.Array:
    kind = column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array([_hex(cell) for cell in column.to_pylist()], pa.string())
    texts = text_of(column)
    if types.is_string(kind) or types.is_large_string(kind):
        texts = _quoted(texts, r'^$|^#|[",\r\n]' if is_first else r'^$|[",\r\n]')
    return pc.fill_null(texts, "")


def _quoted(texts: pa.Array, pattern: str) -> pa.Array:
    """``texts`` with those in quotes that match ``pattern``; a ``#`` in front may be a comment to a reader."""
    special = pc.match_substring_regex(texts, pattern)
    if not pc.any(special).as_py():
        return texts
    return pc.if_else(special, pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', ""), texts)


def _hex(cell: bytes | None) -> str:
    """``[00 FF]``, the form in which Spark shows binary."""
    return "" if cell is None else f"[{cell.hex(' ').upper()}]"

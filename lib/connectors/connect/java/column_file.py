"""Rows of a source on their way out of the JVM: ``ColumnFile.java`` writes buffers of Arrow, of which this makes arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ..host import HEADERS, SOURCE_COLUMNS

_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def source_rows(content: bytes, sizes: Iterable[Sequence[int]]) -> pa.Table:
    """The rows in the ``content`` of a file: its buffers, which are not copied.

    ``sizes`` has rows, nulls, and bytes or items of each column, as ``RecordWriter.java`` reports them.
    """
    buffers, columns = _Buffers(content), iter(sizes)
    arrays = [
        buffers.cells(pa.string(), *next(columns)),
        buffers.numbers(pa.int32(), *next(columns)),
        buffers.cells(pa.binary(), *next(columns)),
        buffers.cells(pa.binary(), *next(columns)),
        buffers.headers(*(next(columns) for _ in range(3))),
        buffers.numbers(_MILLISECONDS, *next(columns)).cast(SOURCE_COLUMNS.field("timestamp").type),
        buffers.cells(pa.string(), *next(columns)),
        buffers.cells(pa.string(), *next(columns)),
    ]
    return pa.table(arrays, schema=SOURCE_COLUMNS)


class _Buffers:
    """Buffers behind each other, each at a multiple of 8 bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self._end = pa.py_buffer(content), 0

    def cells(self, kind: pa.DataType, rows: int, nulls: int, size: int) -> pa.Array:
        buffers = [self._valid(rows, nulls), self._next(4 * (rows + 1)), self._next(size)]
        return pa.Array.from_buffers(kind, rows, buffers, nulls)

    def numbers(self, kind: pa.DataType, rows: int, nulls: int, _: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [self._valid(rows, nulls), self._next(rows * kind.bit_width // 8)], nulls)

    def headers(self, lists: Sequence[int], keys: Sequence[int], values: Sequence[int]) -> pa.Array:
        rows, nulls, _ = lists
        buffers = [self._valid(rows, nulls), self._next(4 * (rows + 1))]
        children = [self.cells(pa.string(), *keys), self.cells(pa.binary(), *values)]
        pairs = pa.Array.from_buffers(HEADERS.value_type, keys[0], [None], 0, children=children)
        return pa.Array.from_buffers(HEADERS, rows, buffers, nulls, children=[pairs])

    def _valid(self, rows: int, nulls: int) -> pa.Buffer | None:
        return self._next((rows + 7) // 8) if nulls else None

    def _next(self, size: int) -> pa.Buffer:
        start = self._end
        self._end += -(-size // 8) * 8
        return self._content.slice(start, size)

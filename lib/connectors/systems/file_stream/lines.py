"""Lines of a file and their ends (``\\n``, ``\\r\\n`` and ``\\r``), found in whole blocks of bytes at a time.

A ``\\r`` at the end of what is there waits for what follows: it may be the first half of ``\\r\\n``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .tail import listing

_BLOCK = 1 << 20  # larger ones leave the processor's cache: 4 MiB took twice as long
_TAIL = 64 << 10
_NEWLINE, _RETURN = 10, 13

Ends = npt.NDArray[np.int64]


def line_ends(block: bytes, complete: bool) -> tuple[Ends, Ends]:
    """The offsets of the terminators in ``block``, and of the bytes after them; ``complete`` if nothing can follow it."""
    data = np.frombuffer(block, dtype=np.uint8)
    if b"\r" not in block:
        begin = np.flatnonzero(data == _NEWLINE)
        return begin, begin + 1
    newline, carriage = data == _NEWLINE, data == _RETURN
    followed = np.zeros(len(data), dtype=bool)
    followed[:-1] = newline[1:]
    second = np.zeros(len(data), dtype=bool)
    second[1:] = carriage[:-1] & newline[1:]
    starts = carriage | (newline & ~second)
    if carriage[-1] and not complete:
        starts[-1] = False
    begin = np.flatnonzero(starts)
    return begin, begin + 1 + (carriage & followed)[begin]


def last_line_end(file: BinaryIO, low: int, high: int, size: int) -> int:
    """The position after the last complete line that ends in ``low..high``; ``low`` if there is none."""
    stop = high
    while stop > low:
        first = max(low, stop - _TAIL)
        file.seek(first)
        block = file.read(min(stop + 1, size) - first)  # one byte more: what follows a \r decides
        _, after = line_ends(block, complete=False)
        within = after[first + after <= high]
        if len(within):
            return first + int(within[-1])
        stop = first + 1 if first > low else low
    return low


def first_line_end(file: BinaryIO, low: int, size: int) -> int | None:
    """The position after the first line that ends after ``low``; ``None`` if no line is complete."""
    position = low
    while position < size:
        file.seek(position)
        block = file.read(min(_TAIL, size - position))
        if not block:  # shorter than it was
            return None
        _, after = line_ends(block, complete=False)
        if len(after):
            return position + int(after[0])
        at_return = block.endswith(b"\r") and position + len(block) < size
        position += len(block) - (1 if at_return and len(block) > 1 else 0)
    return None


def read_lines(file: BinaryIO, first: int, last: int, end: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The lines that begin in ``first..last``, of a range that ends after a line, at ``end``, block by block.

    Yields the position after each line, and the lines themselves without terminators. Raises ``EOFError`` when the file
    is shorter than it was.
    """
    position, rest = first, b""
    file.seek(first)
    while position < last:
        more = file.read(_next_size(position + len(rest), len(rest), last, end))
        if not more:
            raise EOFError(f"no complete line at byte {position}")
        block = rest + more if rest else more
        begin, after = line_ends(block, complete=position + len(block) == end)
        starts = np.concatenate(([0], after))[: len(after)]
        count = int(np.searchsorted(starts, last - position))
        if count:
            begin, after = begin[:count], after[:count]
            yield pa.array(after + position), _cut(block[: after[-1]], begin, after)
            position += int(after[-1])
            block = block[after[-1] :]
        rest = block


def _next_size(at: int, waiting: int, last: int, end: int) -> int:
    """The bytes to read at ``at``: up to ``last``, then little more; as many as wait, so that a long line costs no squares."""
    return min(max(_BLOCK, waiting), last - at) if at < last else min(max(_TAIL, waiting), end - at)


def _cut(block: bytes, begin: Ends, after: Ends) -> pa.Array:
    """The lines of ``block`` as a binary column: one copy without the terminators, and their offsets."""
    widths = after - begin
    removed = np.concatenate(([0], np.cumsum(widths)))
    offsets = np.concatenate(([0], begin - removed[:-1])).astype(np.int32)
    if b"\r" not in block:
        content = block.replace(b"\n", b"")
    else:
        data = np.frombuffer(block, dtype=np.uint8)
        keep = np.ones(len(data), dtype=bool)
        keep[begin] = False
        keep[after - 1] = False
        content = data[keep].tobytes()
    return pa.Array.from_buffers(pa.binary(), len(begin), [None, pa.py_buffer(offsets), pa.py_buffer(content)])


_MOST = 4 << 20  # bytes of one file


def first_lines(path: str, count: int) -> pa.Array:
    """At most ``count`` complete lines of the files that ``path`` names now, as binary."""
    lines: list[pa.Array] = []
    for name, state in sorted(listing(os.path.abspath(path)).files.items()):
        with open(name, "rb") as file:
            end = last_line_end(file, 0, min(state.size, _MOST), state.size)
            for _, values in read_lines(file, 0, end, end):
                lines.append(values[:count])
                count -= len(lines[-1])
                if not count:
                    break
        if not count:
            break
    return pa.concat_arrays(lines) if lines else pa.nulls(0, pa.binary())

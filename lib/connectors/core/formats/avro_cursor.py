"""Many Avro records read side by side: one place in each, and what numpy takes from all these places at once.

A record that is wrong is noted with its reason, and its place is put to its end: what is read of it from then on is
nothing, and no other record is touched. No length that a record claims is believed before it is compared with the bytes
that the record has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_PAD = 16  # so that eight bytes, or a number of ten, can be taken anywhere
_STOPS, _SEVENS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
_SQUEEZE = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


class Records:
    """The bytes of a column of records, and which of them are wrong."""

    def __init__(self, column: pa.Array) -> None:
        count = len(column)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + count + 1]
        self.offsets = offsets.astype(np.int64) - int(offsets[0])
        body = column.buffers()[2]
        self.data = np.zeros(int(self.offsets[-1]) + _PAD, np.uint8)
        if body is not None and body.size:
            self.data[: int(self.offsets[-1])] = np.frombuffer(body, np.uint8)[int(offsets[0]) : int(offsets[-1])]
        self.words = np.ndarray((len(self.data) - 7,), "<u8", buffer=self.data.data, strides=(1,))
        self.failed = np.zeros(count, np.bool_)
        self.errors: dict[int, str] = {}

    def cursor(self) -> Cursor:
        return Cursor(self, self.offsets[:-1].copy(), self.offsets[1:].copy(), np.arange(len(self.failed)))


class Cursor:
    """A place in each of some records; ``row`` says which records."""

    def __init__(self, records: Records, at: Ints, end: Ints, row: Ints) -> None:
        self.records = records
        self.at = at
        self.end = end
        self.row = row

    def __len__(self) -> int:
        return len(self.row)

    def part(self, which: Any) -> Cursor:
        """The same for some of the records only; :meth:`follow` brings its places back."""
        return Cursor(self.records, self.at[which], self.end[which], self.row[which])

    def follow(self, part: Cursor, which: Any) -> None:
        self.at[which] = part.at

    def fail(self, wrong: Flags, why: str) -> None:
        """Notes that the records at ``wrong`` cannot be read; the first reason counts."""
        if wrong.any():
            for row in self.row[wrong].tolist():
                self.records.errors.setdefault(row, why)
            self.records.failed[self.row[wrong]] = True
            self.at[wrong] = self.end[wrong]

    def skip(self, widths: Any, what: str) -> Ints:
        """Moves on by ``widths`` bytes, and returns where they began."""
        before = self.at
        self.at = before + widths
        self.fail((self.at > self.end) | (self.at < before), f"ends within {what}")
        return np.minimum(before, self.at)

    def bytes(self, what: str) -> npt.NDArray[np.uint8]:
        return self.records.data[self.skip(1, what)]

    def words(self, width: int, what: str) -> Words:
        taken: Words = self.records.words[self.skip(width, what)]
        return taken

    def numbers(self, what: str) -> Ints:
        """Avro's whole numbers: seven bits a byte, the lowest first, zigzag."""
        before = self.at
        first = self.records.data[before]
        value = first.astype(np.uint64)
        self.at = before + 1
        longer = first > 127
        if longer.any():
            which = np.flatnonzero(longer)
            value[which], self.at[which] = self._longer(before[which], which, what)
        self.fail(self.at > self.end, f"ends within {what}")
        signed: Ints = ((value >> _ONE) ^ (np.uint64(0) - (value & _ONE))).view(np.int64)
        return signed

    def _longer(self, at: Ints, which: Ints, what: str) -> tuple[Words, Ints]:
        word = self.records.words[at]
        stops = ~word & _STOPS
        lowest = stops & (np.uint64(0) - stops)
        word &= (lowest | (lowest - _ONE)) & _SEVENS
        for keep, move, by in _SQUEEZE:
            word = (word & keep) | ((word & move) >> by)
        used = (np.frexp(lowest.astype(np.float64))[1] // 8).astype(np.int64)
        if (endless := lowest == 0).any():
            data, late = self.records.data, at[endless]
            ninth, tenth = data[late + 8].astype(np.uint64), data[late + 9].astype(np.uint64)
            more = ninth > 127
            high = np.where(more, tenth & _ONE, 0).astype(np.uint64)
            word[endless] |= (ninth & np.uint64(127)) << np.uint64(56) | high << np.uint64(63)
            used[endless] = np.where(more, 10, 9)
            wrong = np.zeros(len(self), np.bool_)
            wrong[which[endless]] = more & (tenth > 1)
            self.fail(wrong, f"{what}: a number of more than 64 bits")
        return word, np.minimum(at + used, self.end[which] + 1)

    def lengths(self, what: str) -> Ints:
        """The lengths of what follows, none of them more than the bytes that are left."""
        sizes = self.numbers(what)
        self.fail(
            (sizes < 0) | (sizes > self.end - self.at), f"{what}: longer than the record, or shorter than nothing"
        )
        return np.where(self.records.failed[self.row], 0, sizes)

    def slices(self, sizes: Any, what: str) -> pa.Array:
        """The next ``sizes`` bytes of each, as a binary column."""
        begin = self.skip(sizes, what)
        if not len(begin):
            return pa.nulls(0, pa.binary())
        ends = np.column_stack((begin, np.maximum(self.at, begin))).ravel()
        offsets, data = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self.records.data)
        whole = pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, offsets, data])
        return whole.take(pa.array(np.arange(0, len(ends), 2)))

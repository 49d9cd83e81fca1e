"""The overlap of two parts: which rows have been read, and how late they were, for a part that starts in the midst of them.

A folder of the query's own has Arrow files of ``time`` (microseconds since 1970) and ``key`` (a digest, or null)::

    read/<digest of a split>    the last time of its rows, and the keys of those that came within the overlap before it
    before/<part>               the same of all rows before a part; it is written once and read by the tasks of that part

A task that is tried again writes the same file once more, and files of ``read`` may be joined at any time: no row counts twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...core import Misconfigured, Problem, StateError, Transient
from ...ground.state import digest
from ...storage.base import Storage

_SCHEMA: Final = pa.schema([("time", pa.int64()), ("key", pa.binary(16))])
_MOST_FILES: Final = 100
_MOST_KEYS: Final = 100_000
"""The keys after which a task first forgets those that are before the overlap."""
_KEYS: Final[dict[tuple[str, str], frozenset[bytes]]] = {}
"""The files of ``before`` that this process has read, which never change."""
_MOST_PLACES: Final = 8


class Recent:
    """The last time of rows, and the keys of those that came at most ``overlap`` microseconds before it."""

    def __init__(self, overlap: int) -> None:
        self.overlap = overlap
        self.last: int | None = None
        self.keys: dict[bytes, int] = {}
        self._most = _MOST_KEYS

    def add(self, times: pa.Array, keys: Sequence[bytes | None] = ()) -> None:
        """Adds rows by their ``times``, microseconds since 1970, and their ``keys``, if they have some."""
        newest = pc.max(times).as_py()
        if newest is None:
            return
        self.last = newest if self.last is None else max(self.last, newest)
        for key, time in zip(keys, times.to_pylist(), strict=True) if keys else ():
            if key is not None and time is not None:
                self.keys[key] = max(time, self.keys.get(key, time))
        if len(self.keys) > self._most:
            self.keys = self._within()
            self._most = max(_MOST_KEYS, 2 * len(self.keys))

    def _within(self) -> dict[bytes, int]:
        first = (self.last or 0) - self.overlap
        return {key: time for key, time in self.keys.items() if time >= first}

    def table(self) -> pa.Table:
        keys = self._within()
        times = [] if self.last is None else [self.last]
        return pa.table([[*times, *keys.values()], [*[None for _ in times], *keys]], schema=_SCHEMA)


def check_columns(schema: pa.Schema, column: str, keys: Sequence[str]) -> None:
    """Raises :class:`Misconfigured` for rows of ``schema`` without ``column``, a timestamp, or without ``keys``."""
    if missing := [name for name in keys if name not in schema.names]:
        text = f"names {', '.join(missing)}, which the rows do not have: {', '.join(schema.names)}."
        raise Misconfigured("connectors.hybrid", [Problem("deduplicateBy", text)])
    if column not in schema.names or not pa.types.is_timestamp(schema.field(column).type):
        text = f"names {column}, and the rows have no such column of type timestamp: {', '.join(schema.names)}."
        raise Misconfigured("connectors.hybrid", [Problem("startFrom", text)])


class Overlap:
    """The rows of the parts of one query, by their ``column`` of times and the columns that identify them, ``keys``."""

    def __init__(self, storage: Storage, query: str, column: str, overlap: float, keys: Sequence[str]) -> None:
        self.storage, self.folder = storage, query
        self.column, self.keys = column, tuple(keys)
        self.microseconds = round(overlap * 1e6)

    def times(self, rows: pa.RecordBatch) -> pa.Array:
        """The times of ``rows`` in microseconds since 1970."""
        column = rows.column(self.column)
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())

    def digests(self, rows: pa.RecordBatch) -> list[bytes | None]:
        """A digest of the key of each row; ``None`` for a key with a null, which identifies no row."""
        columns = [rows.column(name).to_pylist() for name in self.keys]
        return [
            None if None in key else hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
            for key in zip(*columns, strict=True)
        ]

    def recent(self) -> Recent:
        return Recent(self.microseconds)

    def add(self, recent: Recent, rows: pa.RecordBatch) -> None:
        """Adds ``rows`` to what a split has read."""
        times = self.times(rows)
        if self.keys and (newest := pc.max(times).as_py()) is not None:
            first = max(newest, newest if recent.last is None else recent.last) - self.microseconds
            within = pc.fill_null(pc.greater_equal(times, first), fill_value=False)
            recent.add(times.filter(within), self.digests(rows.filter(within)))
        recent.add(times)

    def record(self, split: str, recent: Recent) -> None:
        """Stores what a split has read, before its task ends."""
        self._put(f"read/{digest(split, length=24)}", recent)

    def join(self) -> Recent:
        """What all splits have read. Many files become one."""
        files = [f"{self.folder}/read/{item.name}" for item in self.storage.items(f"{self.folder}/read")]
        files = [name for name in files if not name.rpartition("/")[2].startswith(".")]
        recent = self.recent()
        for name in files:
            try:
                table = pa.ipc.open_file(self.storage.read(name)).read_all()
            except FileNotFoundError:
                raise Transient(f"{name} was joined with others by another driver of the query") from None
            recent.add(table["time"].combine_chunks(), table["key"].to_pylist())
        if len(files) > _MOST_FILES:
            joined = f"read/{digest(*files, length=24)}"
            self._put(joined, recent)
            for name in files:
                if name != f"{self.folder}/{joined}":
                    self.storage.delete(name)
        return recent

    def tidy(self) -> None:
        """Joins the files of splits where they are many."""
        if len(self.storage.items(f"{self.folder}/read")) > _MOST_FILES:
            self.join()

    def end(self, part: str) -> int | None:
        """The last time before ``part``; ``None`` if no row had one. From now on its tasks can ask which rows were read."""
        recent = self.join()
        self._put(f"before/{digest(part)}", recent)
        return recent.last

    def without_read(self, rows: pa.RecordBatch, part: str, last: int) -> pa.RecordBatch:
        """``rows`` of ``part`` without those that were read before it."""
        if not self.keys:
            return rows
        times = self.times(rows)
        places = pc.indices_nonzero(pc.fill_null(pc.less_equal(times, last), fill_value=False))
        if not len(places):
            return rows
        known = self._keys_before(part)
        again = [place for place, key in zip(places.to_pylist(), self.digests(rows.take(places)), strict=True) if key in known]
        return rows.take(pa.array(sorted({*range(rows.num_rows)}.difference(again)), pa.int64())) if again else rows

    def _keys_before(self, part: str) -> frozenset[bytes]:
        name = f"{self.folder}/before/{digest(part)}"
        place = self.storage.root, name
        if place not in _KEYS:
            try:
                table = pa.ipc.open_file(self.storage.read(name)).read_all()
            except FileNotFoundError:
                text = f"{self.storage.root}/{name}, which says which rows were read before {part}, is gone"
                raise StateError(text, way_out="restore the folder of stateLocation, or begin with a new checkpoint") from None
            if len(_KEYS) >= _MOST_PLACES:
                _KEYS.clear()
            _KEYS[place] = frozenset(key for key in table["key"].to_pylist() if key is not None)
        return _KEYS[place]

    def _put(self, name: str, recent: Recent) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_table(recent.table())
        self.storage.make_folder(f"{self.folder}/{name.partition('/')[0]}")
        self.storage.replace(f"{self.folder}/{name}", sink.getvalue().to_pybytes(), durable=True)

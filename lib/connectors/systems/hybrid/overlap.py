"""The overlap of two parts: which rows have been read, and how late they were, for a part that starts in the midst of them.

A folder of the query's own has Arrow files of ``time`` (microseconds since 1970) and ``key`` (its columns as one text)::

    read/<digest of a split>    the rows of one split that came within the overlap before the last of them
    before/<part>               those of all splits before a part; it is written once and read by the tasks of that part

A task that is tried again writes the same file once more, and files of ``read`` may be joined at any time: no row counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...core import Misconfigured, Problem, StateError, Transient
from ...ground.columns import is_binary
from ...ground.state import digest
from ...storage.base import Storage

_SCHEMA: Final = pa.schema([("time", pa.int64()), ("key", pa.binary())])
_MOST_FILES: Final = 100
_MOST_ROWS: Final = 100_000
"""The rows after which a task first forgets those that are before the overlap."""
_KEYS: Final[dict[tuple[str, str], frozenset[bytes]]] = {}
"""The files of ``before`` that this process has read, which never change."""
_MOST_PLACES: Final = 8


class Recent:
    """The last time of rows, and the ``time`` and ``key`` of those that came at most ``overlap`` microseconds before it.

    A row without a key is there only if it is the last.
    """

    def __init__(self, overlap: int) -> None:
        self.overlap = overlap
        self.last: int | None = None
        self._rows = _SCHEMA.empty_table()
        self._most = _MOST_ROWS

    def add(self, rows: pa.Table) -> None:
        """Adds rows."""
        newest = pc.max(rows["time"]).as_py()
        if newest is None:
            return
        self.last = newest if self.last is None else max(self.last, newest)
        self._rows = pa.concat_tables([self._rows, self._within(rows)])
        if self._rows.num_rows > self._most:
            self._most = max(_MOST_ROWS, 2 * self.table().num_rows)

    def table(self) -> pa.Table:
        """The rows."""
        if self.last is not None:
            end = pa.table([[self.last], [None]], schema=_SCHEMA)
            self._rows = pa.concat_tables([end, self._within(self._rows)]).combine_chunks()
        return self._rows

    def _within(self, rows: pa.Table) -> pa.Table:
        first = pa.scalar((self.last or 0) - self.overlap, pa.int64())
        return rows.filter(pc.and_(pc.greater_equal(rows["time"], first), pc.is_valid(rows["key"])))


def time_text(time: int) -> str:
    """A time in microseconds since 1970 as text, of any year."""
    return str(pa.array([time], pa.timestamp("us")).cast(pa.string())[0])


def check_columns(schema: pa.Schema, column: str, keys: Sequence[str]) -> None:
    """Raises :class:`Misconfigured` for rows of ``schema`` without ``column``, a timestamp, or without ``keys``."""
    if missing := [name for name in keys if name not in schema.names]:
        text = f"names {', '.join(missing)}, which the rows do not have: {', '.join(schema.names)}."
        raise Misconfigured("connectors.hybrid", [Problem("deduplicateBy", text)])
    if nested := [name for name in keys if pa.types.is_nested(schema.field(name).type)]:
        text = f"must name plain columns; {nested[0]} is {schema.field(nested[0]).type}."
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

    def _times_and_keys(self, rows: pa.RecordBatch) -> pa.Table:
        """The time of each row in microseconds since 1970, and its key: the columns as texts, each behind its length."""
        column = rows.column(self.column)
        times = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        parts: list[pa.Array] = []
        for name in self.keys:
            column = rows.column(name)
            text = column if is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
            parts += [pc.binary_length(text).cast(pa.string()).cast(pa.binary()), text]
        key = pc.binary_join_element_wise(*parts, b"\0") if parts else pa.nulls(rows.num_rows, pa.binary())
        return pa.table([times, key], schema=_SCHEMA)

    def recent(self) -> Recent:
        return Recent(self.microseconds)

    def add(self, recent: Recent, rows: pa.RecordBatch) -> None:
        """Adds ``rows`` to what a split has read."""
        recent.add(self._times_and_keys(rows))

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
            recent.add(table)
        if len(files) > _MOST_FILES:
            self._put(f"read/{digest(*files, length=24)}", recent)
            for name in files:
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
        keyed = self._times_and_keys(rows)
        places = pc.indices_nonzero(pc.fill_null(pc.less_equal(keyed["time"], last), fill_value=False))
        known = self._keys_before(part) if len(places) else frozenset()
        keys = zip(places.to_pylist(), keyed["key"].take(places).to_pylist(), strict=True)
        again = [place for place, key in keys if key in known]
        if not again:
            return rows
        return rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows)), pa.array(again))))

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
        rows, sink = recent.table(), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        self.storage.make_folder(f"{self.folder}/{name.partition('/')[0]}")
        self.storage.replace(f"{self.folder}/{name}", sink.getvalue().to_pybytes(), durable=True)

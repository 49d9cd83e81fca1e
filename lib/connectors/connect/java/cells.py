"""Columns of bytes on their way out of the JVM: chains of method handles write them, this process maps them to Arrow.

A record's cells go one behind the other into one file, and their lengths, as 32-bit numbers, into another; -1 is a null. So a
record costs the JVM a few writes into buffers, and this process nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from .handles import Handles

_BUFFER: Final = 1 << 16
_REWIND: Final = 32 << 20
"""A file that is longer starts anew once it is read."""


class Cells:
    """Rows of ``columns`` cells, written in the JVM by :meth:`writer` and read here by :meth:`take`."""

    def __init__(self, handles: Handles, folder: Path, name: str, columns: int) -> None:
        self.handles, self.columns = handles, columns
        self._data = _Stream(handles, folder / f"{name}.data")
        self._lengths = _Stream(handles, folder / f"{name}.lengths")

    def writer(self) -> Any:
        """A handle that takes the cells of a row and writes them."""
        handles, count = self.handles, self.columns
        cell = self._cell_writer()
        kinds = [handles.class_array(*[handles["Bytes"]] * number) for number in range(count)]
        drop = handles.make.dropArguments
        return handles.in_turn([drop(drop(cell, 1, kinds[count - 1 - index]), 0, kinds[index]) for index in range(count)])

    def take(self) -> list[pa.Array]:
        """The columns of the rows that were written since the last call, as ``large_binary``."""
        lengths = np.frombuffer(self._lengths.take(), dtype=">i4").astype(np.int64)
        data = self._data.take()
        offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
        nulls = int((lengths < 0).sum())
        valid = pa.py_buffer(np.packbits(lengths >= 0, bitorder="little")) if nulls else None
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
        flat = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers, null_count=nulls)
        rows = len(lengths) // self.columns
        return [flat.take(pa.array(np.arange(rows) * self.columns + index)) for index in range(self.columns)]

    def close(self) -> None:
        for stream in (self._data, self._lengths):
            stream.close()

    def _cell_writer(self) -> Any:
        """A handle that writes one cell."""
        handles = self.handles
        write_int = handles.bound(self._lengths.output, "DataOutput", "writeInt", "void", "int")
        length = handles.make.arrayLength(handles["Bytes"])
        lengths = handles.chain(length, write_int)
        data = handles.bound(self._data.output, "DataOutput", "write", "void", "Bytes")
        null = handles.make.dropArguments(
            handles.make.insertArguments(write_int, 0, handles.objects(-1)), 0, handles.class_array(handles["Bytes"])
        )
        is_null = handles.cast(handles.static("java.util.Objects", "isNull", "bool", "Object"), "bool", "Bytes")
        return handles.make.guardWithTest(is_null, null, handles.in_turn([data, lengths]))


class _Stream:
    """A file that the JVM writes, and this process reads behind it."""

    def __init__(self, handles: Handles, path: Path) -> None:
        io = handles.java.java.io
        file = io.FileOutputStream(str(path))
        self.channel = file.getChannel()
        self.output = io.DataOutputStream(io.BufferedOutputStream(file, _BUFFER))
        self._file = path.open("rb")
        path.unlink()  # both sides have it open; nothing is left of it when they are gone

    def take(self) -> bytes:
        self.output.flush()
        content = self._file.read()
        if self._file.tell() > _REWIND:
            self.channel.truncate(0)
            self._file.seek(0)
        return content

    def close(self) -> None:
        self._file.close()
        with contextlib.suppress(Exception):  # the JVM may be gone
            self.output.close()


def text(column: pa.Array) -> pa.Array:
    """Cells that are UTF-8."""
    return column.cast(pa.binary()).cast(pa.string())


def numbers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cells that are the text of whole numbers."""
    return text(column).cast(kind)


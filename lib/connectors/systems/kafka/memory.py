"""Memory that belongs to others as Arrow arrays and NumPy views, without Python work for each element."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .library import MESSAGE

Numbers = npt.NDArray[Any]

_WORDS: Final = np.arange(MESSAGE.itemsize // 8)
_VIEW: Final = np.dtype({"names": ["length", "prefix", "buffer", "offset"], "formats": ["i4", "u4", "i4", "i4"]})
_INLINE: Final = 12
"""Shorter values stand in the view itself."""
_WINDOW: Final = 30
"""Bits of an offset in a buffer: an ``int32`` must hold it."""


class _Span:
    """Memory from ``start`` on as NumPy sees it; only elements that are indexed are touched."""

    def __init__(self, start: int, size: int, kind: str, width: int) -> None:
        self.__array_interface__ = {"data": (start, True), "shape": (size // width,), "typestr": kind, "version": 3}


def messages_at(addresses: Numbers) -> Numbers:
    """Copies of the message structs at ``addresses``."""
    places = addresses.astype(np.int64)
    start = int(places.min())
    words = np.asarray(_Span(start, int(places.max()) - start + MESSAGE.itemsize, "<u8", 8))
    found = np.ascontiguousarray(words[((places - start) >> 3)[:, None] + _WORDS])
    return found.view(np.uint8).reshape(len(places), MESSAGE.itemsize).view(MESSAGE).reshape(len(places))


def binary_at(addresses: Numbers, lengths: Numbers) -> pa.Array:
    """The bytes at ``addresses``, copied; null where an address is 0."""
    places, sizes = addresses.astype(np.int64), lengths.astype(np.int64)
    null = places == 0
    if null.all():
        return pa.nulls(len(places), pa.binary())
    start = int(places[~null].min())
    offsets, sizes = np.where(null, 0, places - start), np.where(null, 0, sizes)
    windows, buffer = np.unique(offsets >> _WINDOW, return_inverse=True)
    views = np.zeros(len(places), _VIEW)
    views["length"], views["buffer"] = sizes, buffer
    views["offset"] = offsets - (windows[buffer] << _WINDOW)
    _inline(views, start, offsets, sizes)
    ends = np.zeros(len(windows), np.int64)
    np.maximum.at(ends, buffer, offsets + sizes - (windows[buffer] << _WINDOW))
    buffers = [
        pa.foreign_buffer(start + (int(window) << _WINDOW), int(end)) for window, end in zip(windows, ends, strict=True)
    ]
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    found = pa.Array.from_buffers(pa.binary_view(), len(places), [valid, pa.py_buffer(views), *buffers])
    return found.cast(pa.binary())


def _inline(views: Numbers, start: int, offsets: Numbers, sizes: Numbers) -> None:
    """Copies short values into their views."""
    short = sizes <= _INLINE
    if not short.any():
        return
    raw = views.view(np.uint8).reshape(len(views), _VIEW.itemsize)
    raw[short, 4:] = 0
    size = int((offsets + sizes)[short].max())
    memory = np.asarray(_Span(start, max(size, 1), "|u1", 1))
    for length in range(1, _INLINE + 1):
        rows = np.flatnonzero(sizes == length)
        if len(rows):
            raw[rows, 4 : 4 + length] = memory[offsets[rows][:, None] + np.arange(length)]


def places_of(array: pa.Array) -> tuple[Numbers, Numbers]:
    """Where the values of a binary array are, and their lengths; the address of a null is 0. ``array`` must live on."""
    _, ends, data = array.buffers()
    at = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.uint64)
    base = np.uint64(data.address if data is not None and data.address else ends.address)  # an empty value has an address too
    places, lengths = base + at[:-1], np.diff(at)
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        places[null], lengths[null] = 0, 0
    return places, lengths

"""The C functions of the client's library for whole batches, and its memory as Arrow arrays: no Python work per record.

They are only an accelerator. The Python client creates, assigns and closes everything; the functions fill or empty its queue.
They are used only if everything they rely on is as expected: the library that the client has loaded, its version and
functions, the size of its public struct, and where the client keeps its handle. Otherwise everything goes through the Python
client, with the same results. ``CONNECTORS_KAFKA_CLIENT=plain`` in the environment asks for that.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .errors import client

Numbers = npt.NDArray[Any]

MESSAGE: Final = np.dtype(
    {
        "names": ["err", "partition", "payload", "len", "key", "key_len", "offset"],
        "formats": ["i4", "i4", "u8", "u8", "u8", "u8", "i8"],
        "offsets": [0, 16, 24, 32, 40, 48, 56],
        "itemsize": 72,
    }
)
"""``rd_kafka_message_t`` as in the library's header."""

_WORDS: Final = np.arange(MESSAGE.itemsize // 8)
_VIEW: Final = np.dtype({"names": ["length", "prefix", "buffer", "offset"], "formats": ["i4", "u4", "i4", "i4"]})
_INLINE: Final = 12
"""Values up to this length are in the view itself."""
_WINDOW: Final = 30
"""The bits of an offset in a buffer, which an ``int32`` must hold."""


class _Span:
    """Memory from ``start`` on as a NumPy array; NumPy touches only indexed elements."""

    def __init__(self, start: int, size: int, kind: str, width: int) -> None:
        self.__array_interface__ = {"data": (start, True), "shape": (size // width,), "typestr": kind, "version": 3}


def messages_at(addresses: Numbers) -> Numbers:
    """Copies of the message structs at ``addresses``."""
    integers = addresses.astype(np.int64)
    start = int(integers.min())
    words = np.asarray(_Span(start, int(integers.max()) - start + MESSAGE.itemsize, "<u8", 8))
    structs = np.ascontiguousarray(words[((integers - start) >> 3)[:, None] + _WORDS])
    return structs.view(np.uint8).reshape(len(integers), MESSAGE.itemsize).view(MESSAGE).reshape(len(integers))


def binary_at(addresses: Numbers, lengths: Numbers) -> pa.Array:
    """The bytes at ``addresses``, copied; null if an address is 0."""
    integers, sizes = addresses.astype(np.int64), lengths.astype(np.int64)
    null = integers == 0
    if null.all():
        return pa.nulls(len(integers), pa.binary())
    start = int(integers[~null].min())
    offsets, sizes = np.where(null, 0, integers - start), np.where(null, 0, sizes)
    windows, buffer = np.unique(offsets >> _WINDOW, return_inverse=True)
    views = np.zeros(len(integers), _VIEW)
    views["length"], views["buffer"] = sizes, buffer
    views["offset"] = offsets - (windows[buffer] << _WINDOW)
    _inline(views, start, offsets, sizes)
    ends = np.zeros(len(windows), np.int64)
    np.maximum.at(ends, buffer, offsets + sizes - (windows[buffer] << _WINDOW))
    buffers = [
        pa.foreign_buffer(start + (int(window) << _WINDOW), int(end)) for window, end in zip(windows, ends, strict=True)
    ]
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    array = pa.Array.from_buffers(pa.binary_view(), len(integers), [valid, pa.py_buffer(views), *buffers])
    return array.cast(pa.binary())


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


def addresses_of(array: pa.Array) -> tuple[Numbers, Numbers]:
    """The addresses and lengths of the values of a binary array, which must live on; the address of a null is 0."""
    _, ends, data = array.buffers()
    at = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.uint64)
    base = np.uint64(data.address if data is not None and data.address else ends.address)  # an empty value has an address too
    addresses, lengths = base + at[:-1], np.diff(at)
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        addresses[null], lengths[null] = 0, 0
    return addresses, lengths


PLAIN: Final = "CONNECTORS_KAFKA_CLIENT"
"""The environment variable that turns off the C functions with the value ``plain``."""

UNASSIGNED: Final = -1
COPIED: Final = 0x2
"""A flag of ``rd_kafka_produce_batch``: the library copies the bytes."""

_VERSIONS: Final = range(0x02000000, 0x03000000)
_SEARCHED: Final = 16_384
"""The number of bytes at the start of a handle in which its name is searched."""
_NAME: Final = re.compile(rb"[^\0]+#(?:producer|consumer)-\d+(?=\0)")
_log = logging.getLogger("connectors.kafka")


class _Message(ctypes.Structure):
    _fields_ = [
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("_private", ctypes.c_void_p),
    ]


_P, _I, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_version": (_I, []),
    "rd_kafka_name": (_S, [_P]),
    "rd_kafka_err2name": (_S, [_I]),
    "rd_kafka_message_errstr": (_S, [_P]),
    "rd_kafka_topic_new": (_P, [_P, _S, _P]),
    "rd_kafka_topic_destroy": (None, [_P]),
    "rd_kafka_produce_batch": (_I, [_P, ctypes.c_int32, _I, _P, _I]),
    "rd_kafka_queue_get_partition": (_P, [_P, _S, ctypes.c_int32]),
    "rd_kafka_queue_forward": (None, [_P, _P]),
    "rd_kafka_queue_destroy": (None, [_P]),
    "rd_kafka_consume_batch_queue": (ctypes.c_ssize_t, [_P, _I, _P, ctypes.c_size_t]),
    "rd_kafka_message_timestamp": (ctypes.c_int64, [_P, _P]),
    "rd_kafka_message_destroy": (None, [_P]),
}


class UnfitLibrary(Exception):
    """The library is not as expected, so everything goes through the Python client."""


class NativeLibrary:
    """The functions by name, without ``rd_kafka_``. Raises :class:`UnfitLibrary`."""

    def __init__(self, path: str) -> None:
        try:
            loaded = ctypes.CDLL(path)
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("rd_kafka_"), function)
        except (OSError, AttributeError) as missing:
            raise UnfitLibrary(str(missing)) from None
        version = self.version()
        if version != client().libversion()[1] or version not in _VERSIONS:
            raise UnfitLibrary(f"version {version:#x} of {path} is not known")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def handle(self, owner: Any) -> int | None:
        """The address of the handle in a client object; ``None`` if it is not certain.

        The handle is the object's first field, and the handle holds its own name, which the library can read too. Until both
        names agree, the kernel reads the memory, so that a wrong address gives an error instead of a crash.
        """
        address = ctypes.c_uint64.from_address(id(owner) + object.__basicsize__).value
        name = _name_at(address) if type(owner).__basicsize__ > object.__basicsize__ else None
        if name is None or self.name(address) != name:
            _log.debug("batches go through the plain Kafka client: its handle is not where it is expected")
            return None
        return int(address)


def library() -> NativeLibrary | None:
    """The functions; ``None`` if the library is not as expected, or the environment asks for the plain client."""
    return None if os.environ.get(PLAIN) == "plain" else _checked()


@functools.cache
def _checked() -> NativeLibrary | None:
    try:
        if sys.platform != "linux" or sys.byteorder != "little" or ctypes.sizeof(_P) != 8:
            raise UnfitLibrary(f"{sys.platform} is not known")
        if ctypes.sizeof(_Message) != MESSAGE.itemsize or any(
            MESSAGE.fields[name][1] != getattr(_Message, name).offset for name in MESSAGE.names or ()  # type: ignore[index]
        ):
            raise UnfitLibrary("messages have another layout")
        return NativeLibrary(_loaded())
    except UnfitLibrary as reason:
        _log.debug("batches go through the plain Kafka client: %s", reason)
        return None


def _loaded() -> str:
    """The file of the library that the client has loaded."""
    client("confluent_kafka")
    lines = Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split(maxsplit=5)[-1] for line in lines if "/librdkafka" in line}
    if len(libraries) != 1:
        raise UnfitLibrary(f"{len(libraries)} libraries are loaded")
    return libraries.pop()


def _name_at(address: int) -> bytes | None:
    """The name of the handle at ``address``, if there is one."""
    if address < 4096 or address % 8 or address >= 1 << 47:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        match = _NAME.search(os.pread(memory, _SEARCHED, address))
    except OSError:
        return None
    finally:
        os.close(memory)
    return match.group() if match else None

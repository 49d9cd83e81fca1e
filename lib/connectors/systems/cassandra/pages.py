"""Pages of rows as they come, cut into columns by the driver's compiled code.

The driver's own handlers make a Python object of each value, by the thread that reads the connection. Here that thread keeps
the bytes of a page; the task cuts them into one list of cells per column, while the next page is under way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from ...ground.clients import client_library

_INSTALL: Final = "cassandra-driver"
_INT: Final = struct.Struct(">i")


class Page:
    """Rows as Cassandra has sent them. ``columns`` are the names and types; ``state`` is where the next page begins."""

    def __init__(self, content: bytes, columns: Sequence[tuple[str, Any]], protocol: int) -> None:
        self.content, self.columns, self.protocol = content, columns, protocol
        self.state: bytes | None = None
        self.count = _INT.unpack_from(content)[0]

    @classmethod
    def empty(cls) -> Page:
        return cls(_INT.pack(0), (), 0)

    def cells(self) -> list[list[bytes | None]]:
        """The values of each column as the protocol has them."""
        return _cut(self.content, len(self.columns)) if self.columns else []

    def rows(self) -> list[dict[str, Any]]:
        """The rows as the driver reads them, for the few of a system's table."""
        read = [
            [None if value is None else kind.from_binary(value, self.protocol) for value in cells]
            for cells, (_, kind) in zip(cut_in_python(self.content, len(self.columns)), self.columns, strict=True)
        ]
        names = [name for name, _ in self.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*read, strict=True)]


@lru_cache(maxsize=1)
def page_handler() -> Any:
    """The driver's handler of messages whose rows are a :class:`Page`."""
    protocol = client_library("cassandra.protocol", _INSTALL, connector="connectors.cassandra")

    class PageMessage(protocol.ResultMessage):  # type: ignore[misc,name-defined]
        def recv_results_rows(self, body: Any, version: int, types: Any, metadata: Any, encryption: Any) -> None:
            self.recv_results_metadata(body, types)
            columns = self.column_metadata or metadata
            self.column_names = [column[2] for column in columns]
            self.column_types = [column[3] for column in columns]
            self.parsed_rows = Page(body.read(), [(column[2], column[3]) for column in columns], version)

    class PageHandler(protocol._ProtocolHandler):  # type: ignore[misc,name-defined]
        pass

    PageHandler.message_types_by_opcode = {**PageHandler.message_types_by_opcode, PageMessage.opcode: PageMessage}
    return PageHandler


def _cut(content: bytes, count: int) -> list[list[bytes | None]]:
    """The cells of each of ``count`` columns, ``None`` for null."""
    compiled = _compiled(count)
    if compiled is None:
        return cut_in_python(content, count)
    parser, description, reader = compiled
    return [column.tolist() for column in parser.parse_rows(reader(content), description).values()]


@lru_cache(maxsize=64)
def _compiled(count: int) -> tuple[Any, Any, Any] | None:
    """The driver's parser into columns, told that each is of bytes; ``None`` where the driver was not compiled."""
    try:
        from cassandra.bytesio import BytesIOReader
        from cassandra.cqltypes import BytesType
        from cassandra.deserializers import make_deserializers
        from cassandra.numpy_parser import NumpyParser
        from cassandra.parsing import ParseDesc
    except ImportError:
        return None
    types = [BytesType] * count
    names = [str(number) for number in range(count)]
    return NumpyParser(), ParseDesc(names, types, None, [None] * count, make_deserializers(types), 4), BytesIOReader


def cut_in_python(content: bytes, count: int) -> list[list[bytes | None]]:
    """The same as the driver's compiled code, for a driver without it."""
    columns: list[list[bytes | None]] = [[] for _ in range(count)]
    place, read = 4, _INT.unpack_from
    for _ in range(read(content)[0]):
        for column in columns:
            size = read(content, place)[0]
            place += 4
            if size < 0:
                column.append(None)
            else:
                column.append(content[place : place + size])
                place += size
    return columns

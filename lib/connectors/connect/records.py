"""Records of sources and sinks, their headers, and batches of them in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .data import Schema


class Header:
    """A header of a record: a ``key``, a ``value`` and its ``schema``."""

    __slots__ = ("key", "schema", "value")

    def __init__(self, key: str, value: Any, schema: Schema | None = None) -> None:
        self.key = key
        self.value = value
        self.schema = schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Header) and (self.key, self.value, self.schema) == (
            other.key,
            other.value,
            other.schema,
        )

    def __hash__(self) -> int:
        return hash((self.key, repr(self.value)))

    def __repr__(self) -> str:
        return f"Header({self.key}={self.value!r})"


class Headers:
    """The headers of a record in their order; a key may come several times."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Sequence[Header] = ()) -> None:
        self._headers = list(headers)

    def add(self, key: str, value: Any, schema: Schema | None = None) -> Headers:
        self._headers.append(Header(key, value, schema))
        return self

    def all_with_name(self, key: str) -> list[Header]:
        return [header for header in self._headers if header.key == key]

    def last_with_name(self, key: str) -> Header | None:
        return next(iter(reversed(self.all_with_name(key))), None)

    def __iter__(self) -> Iterator[Header]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._headers == other._headers

    def __hash__(self) -> int:
        return hash(tuple(self._headers))

    def __repr__(self) -> str:
        return f"Headers({self._headers})"


def _headers_of(headers: Any) -> Headers:
    if headers is None:
        return Headers()
    if isinstance(headers, Headers):
        return headers
    if isinstance(headers, Mapping):
        return Headers([Header(key, value) for key, value in headers.items()])
    return Headers(headers)


class ConnectRecord:
    """The common part of the records of sources and sinks. ``timestamp`` is in milliseconds since 1970."""

    __slots__ = ("headers", "key", "key_schema", "partition", "timestamp", "topic", "value", "value_schema")

    topic: str | None
    partition: int | None
    key_schema: Schema | None
    key: Any
    value_schema: Schema | None
    value: Any
    timestamp: int | None
    headers: Headers

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._cells() == other._cells()

    def __hash__(self) -> int:
        return hash(repr(self))

    def _cells(self) -> list[Any]:
        return [getattr(self, name) for name in self._names()]

    @classmethod
    def _names(cls) -> list[str]:
        return [name for base in cls.__mro__ for name in getattr(base, "__slots__", ()) if name != "origin"]

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={getattr(self, name)!r}" for name in self._names() if getattr(self, name) is not None
        )
        return f"{type(self).__name__}({shown})"


class SourceRecord(ConnectRecord):
    """A record of a source: where it comes from, and what becomes a row.

    ``source_partition`` names the stream of records (a file, a table), ``source_offset`` the place in it to go on from:
    both are dictionaries of JSON values. ``source_offset=None`` tells of no place.
    """

    __slots__ = ("source_offset", "source_partition")

    def __init__(
        self,
        source_partition: Mapping[str, Any] | None,
        source_offset: Mapping[str, Any] | None,
        topic: str,
        value: Any = None,
        *,
        value_schema: Schema | None = None,
        key: Any = None,
        key_schema: Schema | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers | Mapping[str, Any] | Sequence[Header] | None = None,
    ) -> None:
        self.source_partition = source_partition
        self.source_offset = source_offset
        self.topic = topic
        self.value = value
        self.value_schema = value_schema
        self.key = key
        self.key_schema = key_schema
        self.partition = partition
        self.timestamp = timestamp
        self.headers = _headers_of(headers)


class SinkRecord(ConnectRecord):
    """A record for a sink; ``offset`` is its place in (``topic``, ``partition``), the same in each replay."""

    __slots__ = ("offset", "origin")

    topic: str
    partition: int

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        value: Any = None,
        *,
        value_schema: Schema | None = None,
        key: Any = None,
        key_schema: Schema | None = None,
        timestamp: int | None = None,
        headers: Headers | Mapping[str, Any] | Sequence[Header] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.origin: Any = None  # the row that the record was made of, for dead letters
        self.value = value
        self.value_schema = value_schema
        self.key = key
        self.key_schema = key_schema
        self.timestamp = timestamp
        self.headers = _headers_of(headers)


@dataclass(frozen=True)
class SourceBatch:
    """Many records of one source partition at once, in columns: what a task may return from ``poll`` in place of a list.

    All have one ``topic`` and one schema for ``value`` (an Arrow array of the schema's type) and for ``key``. ``offsets`` is a
    column of whole numbers: the source offset of a record is ``{offset_field: its number}``.
    """

    source_partition: Mapping[str, Any]
    offset_field: str
    offsets: pa.Array
    topic: str
    value: pa.Array
    value_schema: Schema
    key: pa.Array | None = None
    key_schema: Schema | None = None
    timestamp: int | None = None

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class RecordMetadata:
    """The metadata that ``commit_record`` gets of a record: the epoch in which Spark has committed it."""

    topic: str
    epoch: int

"""The contract of formats, the two plain formats, and the names that Spark's SQL has for Arrow types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class BadRecord:
    """A record of a column that cannot be read: its ``index``, and the ``error``."""

    index: int
    error: str
    kind: str = "Poison"
    """The class of the error, where there was one."""


@dataclass(frozen=True)
class Decoded:
    """The values of a column; those of ``bad`` records are null."""

    values: pa.Array
    bad: Sequence[BadRecord] = ()


@dataclass(frozen=True)
class FormatSettings:
    """The settings that a format may need beside the type of its values: schemas of its own, and where to look schemas up."""

    avro_schema: str | None = None
    descriptor_file: str | None = None
    message_name: str | None = None
    registry_url: str | None = None
    registry_user: str | None = None
    registry_password: str | None = field(default=None, repr=False)
    subject: str | None = None
    """The name under which :meth:`Format.encode` registers its schema, ``<topic>-value`` by custom."""


class Format(ABC):
    """Reads a column of bytes as values of ``kind``, the Arrow type of the column in the source's schema, and back.

    A format of your own is a subclass with ``name`` and ``decode``, chosen by ``value.format=module:Class``; a sink needs
    ``encode`` too. Spark's workers must be able to import it. A library puts its formats into ``FORMATS``.
    """

    name: ClassVar[str]
    needs_schema: ClassVar[bool] = False
    """True if the user must give the columns; the values are structs of them."""
    column: ClassVar[str] = "binary"
    """The SQL type of the values when no columns are given."""

    def __init__(self, kind: pa.DataType, settings: FormatSettings | None = None) -> None:
        self.kind = kind
        self.settings = settings or FormatSettings()

    @abstractmethod
    def decode(self, records: pa.Array) -> Decoded:
        """The values of ``records`` (binary); a null record is a null value. Never raises for what a record holds.

        Raises :class:`~connectors.ground.errors.Transient` when something that it needs, such as a registry, is away.
        """

    def check_encode(self) -> None:  # noqa: B027
        """Raises ``ValueError`` if no value of ``kind`` has bytes. A sink calls it before its first row."""

    def encode(self, values: pa.Array) -> pa.Array:
        """``values`` (of ``kind``) as bytes; a null value is a null record. Raises ``ValueError`` for what has no bytes."""
        raise NotImplementedError(f"the format {self.name} only reads")


def decoded_each(records: pa.Array, read: Callable[[bytes], Any], kind: pa.DataType) -> Decoded:
    """Every record through ``read``, which raises ``ValueError`` for a bad one."""
    values: list[Any] = []
    bad: list[BadRecord] = []
    for index, record in enumerate(records.to_pylist()):
        try:
            values.append(None if record is None else read(record))
        except (ValueError, RecursionError, OverflowError) as error:  # Arrow's own errors are values errors too
            values.append(None)
            bad.append(BadRecord(index, str(error), type(error).__name__))
    return Decoded(pa.array(values, kind), bad)


def present(decode: Callable[[pa.Array], Decoded], records: pa.Array) -> Decoded:
    """``decode`` for the records that are not null, with null at the places of the others."""
    if not records.null_count:
        return decode(records)
    valid = records.is_valid()
    places = pc.indices_nonzero(valid)
    decoded = decode(records.take(places))
    at = places.to_pylist() if decoded.bad else []
    return Decoded(spread(decoded.values, valid), [replace(record, index=at[record.index]) for record in decoded.bad])


def smaller_parts(first: int, end: int, row: int | None) -> list[tuple[int, int]]:
    """The parts to read next after an error in the records ``first`` to ``end``.

    Arrow often names a bad ``row``, counted from ``first``: it is read alone, to be sure. Without it, each half is read.
    """
    at = -1 if row is None else first + row
    if first <= at < end:
        parts = [(first, at), (at, at + 1), (at + 1, end)]
    else:
        middle = (first + end) // 2
        parts = [(first, middle), (middle, end)]
    return [part for part in parts if part[0] < part[1]]


def spread(values: pa.Array, valid: pa.Array) -> pa.Array:
    """``values`` at the places where ``valid`` is true, null at the others."""
    places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return values.take(pc.if_else(valid, places, pa.scalar(None, pa.int64())))


def scattered(pieces: Sequence[pa.Array], places: Sequence[Any], count: int, kind: pa.DataType) -> pa.Array:
    """An array of ``count`` values: those of ``pieces`` at their ``places``, null where there is none."""
    if not pieces:
        return pa.nulls(count, kind)
    source = np.full(count, -1, np.int64)
    where = np.concatenate(places)
    source[where] = np.arange(len(where))
    values = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return values.take(pa.array(source, mask=source < 0))


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


class BytesFormat(Format):
    """The bytes as they are."""

    name = "bytes"

    def decode(self, records: pa.Array) -> Decoded:
        return Decoded(records.cast(self.kind))

    def encode(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.binary())


class StringFormat(Format):
    """UTF-8 text."""

    name = "string"
    column = "string"

    def decode(self, records: pa.Array) -> Decoded:
        try:
            return Decoded(records.cast(self.kind))
        except pa.ArrowInvalid:
            return decoded_each(records, text_of, self.kind)

    def encode(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.string()).cast(pa.binary())


def text_of(record: bytes) -> str:
    """The text of ``record``. Raises ``ValueError`` when it is not UTF-8."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None


_NAMES: Final = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.duration("us"): "interval day to second",
}


def sql_type(kind: pa.DataType) -> str:
    """The SQL type of an Arrow type. Raises ``ValueError`` when Spark has none."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.type)}' for field in fields_of(kind))}>"
    if pa.types.is_list(kind):
        return f"array<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if kind not in _NAMES:
        raise ValueError(f"Spark has no type for {kind}")
    return _NAMES[kind]


_MICROSECONDS: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
WHOLE_TIMES: Final = {"timestampFormat": f"{_MICROSECONDS}XXX", "timestampNTZFormat": _MICROSECONDS}
"""Options of Spark's ``to_json``, which otherwise cuts times to milliseconds."""


def quoted(name: str) -> str:
    """``name`` in backticks, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"

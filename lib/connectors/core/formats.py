"""Formats: what bytes mean. A source that hands out bytes or lines decodes them by ``value.format`` and ``key.format``.

A format turns a column of bytes into a column of values, in Arrow, and names the records that it cannot read. What
happens to those is the user's choice (``errors``), and the same for every source.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from .errors import Problem
from .options import Choice, Options, Text, Values


@dataclass(frozen=True)
class BadRecord:
    """Record ``index`` of a column cannot be read, because of ``error``."""

    index: int
    error: str


@dataclass(frozen=True)
class Decoded:
    """The values of a column; those of ``bad`` records are null."""

    values: pa.Array
    bad: Sequence[BadRecord] = ()


class Format(ABC):
    """Reads a column of bytes as values of ``kind``, the Arrow type of the column in the source's schema."""

    name: ClassVar[str]
    needs_schema: ClassVar[bool] = False

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    @abstractmethod
    def decode(self, records: pa.Array) -> Decoded:
        """The values of ``records`` (binary); a null record is a null value. Never raises for what a record holds."""


class BytesFormat(Format):
    """The bytes as they are."""

    name = "bytes"

    def decode(self, records: pa.Array) -> Decoded:
        return Decoded(records.cast(self.kind))


class StringFormat(Format):
    """UTF-8 text."""

    name = "string"

    def decode(self, records: pa.Array) -> Decoded:
        try:
            return Decoded(records.cast(self.kind))
        except pa.ArrowInvalid:
            return _one_by_one(records, self._text, self.kind)

    @staticmethod
    def _text(record: bytes) -> str:
        try:
            return record.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None


class JsonFormat(Format):
    """One JSON object a record, read as a struct. Missing fields are null; fields that the schema lacks are passed over."""

    name = "json"
    needs_schema = True

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self.fields = pa.schema([kind.field(number) for number in range(kind.num_fields)])

    def decode(self, records: pa.Array) -> Decoded:
        present = pc.indices_nonzero(records.is_valid())
        bad: list[BadRecord] = []
        lines = records.take(present) if records.null_count else records
        values = self._decode(lines, 0, bad)
        if records.null_count:
            places = present.to_pylist()
            bad = [BadRecord(places[one.index], one.error) for one in bad]
            values = _spread(values, records.is_valid())
        return Decoded(values, bad)

    def _decode(self, lines: pa.Array, first: int, bad: list[BadRecord]) -> pa.Array:
        """The structs of ``lines``; where they cannot be read together, each half by itself, down to the bad ones."""
        if not len(lines):
            return pa.nulls(0, self.kind)
        try:
            return self._read(lines)
        except (pa.ArrowInvalid, ValueError) as error:
            if len(lines) == 1:
                bad.append(BadRecord(first, str(error)))
                return pa.nulls(1, self.kind)
        half = len(lines) // 2
        halves = [self._decode(lines[:half], first, bad), self._decode(lines[half:], first + half, bad)]
        return pa.concat_arrays(halves)

    def _read(self, lines: pa.Array) -> pa.Array:
        import pyarrow.json as arrow_json

        _must_be_objects(lines)
        text = b"\n".join(lines.to_pylist())
        table = arrow_json.read_json(
            io.BytesIO(text),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=self.fields, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(lines):
            raise ValueError("not one JSON object a record")
        columns = [column.combine_chunks() for column in table.columns]
        return pa.StructArray.from_arrays(columns, fields=list(self.fields))


def _must_be_objects(lines: pa.Array) -> None:
    """Arrow reads values across line ends. If each line begins with { and ends with }, no value can cross one."""
    trimmed = lines.cast(pa.string())  # which fails unless all of it is UTF-8; the reader would not look
    trimmed = pc.utf8_trim_whitespace(trimmed)
    if not pc.all(pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))).as_py():
        raise ValueError("not a JSON object")


class CsvFormat(Format):
    """One line of comma-separated values a record, read as a struct in the order of the schema."""

    name = "csv"
    needs_schema = True

    def decode(self, records: pa.Array) -> Decoded:
        return _one_by_one(records, self._row, self.kind)

    def _row(self, record: bytes) -> dict[str, Any]:
        import pyarrow.csv as csv

        names = [self.kind.field(number).name for number in range(self.kind.num_fields)]
        types = {self.kind.field(number).name: self.kind.field(number).type for number in range(self.kind.num_fields)}
        table = csv.read_csv(
            io.BytesIO(record),
            read_options=csv.ReadOptions(column_names=names, use_threads=False),
            convert_options=csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        if table.num_rows != 1:
            raise ValueError("not one line of values")
        return dict(table.to_pylist()[0])


FORMATS: dict[str, type[Format]] = {made.name: made for made in (BytesFormat, StringFormat, JsonFormat, CsvFormat)}
"""Formats by name. A format of your own is a subclass, put in here before it is used."""


def _one_by_one(records: pa.Array, read: Any, kind: pa.DataType) -> Decoded:
    values: list[Any] = []
    bad: list[BadRecord] = []
    for index, record in enumerate(records.to_pylist()):
        try:
            values.append(None if record is None else read(record))
        except (ValueError, pa.ArrowInvalid) as error:
            values.append(None)
            bad.append(BadRecord(index, str(error)))
    return Decoded(pa.array(values, kind), bad)


def _spread(values: pa.Array, valid: pa.Array) -> pa.Array:
    """``values`` at the places where ``valid`` is true, null at the others."""
    places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return values.take(pc.if_else(valid, places, pa.scalar(None, pa.int64())))


def format_options(default: str) -> Options:
    """The options of a source that hands out bytes: ``value.format``, ``schema``, ``errors``, ``deadLetterPath``."""
    return Options(
        {
            "value.format": Choice(default, among=tuple(FORMATS)),
            "schema": Text(None),
            "errors": Choice("fail", among=("fail", "skip", "deadLetter")),
            "deadLetterPath": Text(None),
        }
    )


def check_format(values: Values) -> Iterator[Problem]:
    """The problems of format options taken together."""
    if FORMATS[values["value.format"]].needs_schema and not values["schema"]:
        needs = f'value.format "{values["value.format"]}" needs the columns'
        yield Problem("schema", f'missing; {needs}, such as "id long, name string".')
    if values["errors"] == "deadLetter" and not values["deadLetterPath"]:
        yield Problem("deadLetterPath", "missing; errors=deadLetter needs a folder for the records that cannot be read.")
    if values["deadLetterPath"] and values["errors"] != "deadLetter":
        yield Problem("deadLetterPath", f'has no use with errors={values["errors"]}; set errors=deadLetter.')


def value_type(values: Values) -> str:
    """The SQL type of the column ``value``."""
    name = values["value.format"]
    if FORMATS[name].needs_schema:
        return f"struct<{values['schema']}>"
    return {"bytes": "binary", "string": "string"}[name]

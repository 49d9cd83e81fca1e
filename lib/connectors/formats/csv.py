"""CSV: one line a record."""

from __future__ import annotations

import io
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..ground.errors import Misconfigured, Problem
from .base import BadRecord, Decoded, Format, FormatSettings, fields_of, present, smaller_parts

_ROW = re.compile(r"Row #(\d+)")
_QUOTE = re.compile(r'[",\r\n]|^\s|\s$')
_MARK = b"\xef\xbb\xbf"  # Arrow passes over one byte order mark, so that a record's own stays
_DATE_ONLY = r"^\s*\d{4}-\d\d-\d\d\s*$"
_ZONED = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"


class CsvFormat(Format):
    """One line of comma-separated values a record, read as a struct in the order of the schema.

    An empty value is null, and one in quotes an empty text. A timestamp without a zone is in UTC. Too few or too many
    values make a bad record. The columns are plain ones; lists, maps and structs have no place in a line.
    """

    name = "csv"
    needs_schema = True

    def __init__(self, kind: pa.DataType, settings: FormatSettings | None = None) -> None:
        super().__init__(kind, settings)
        nested = [field.name for field in fields_of(kind) if pa.types.is_nested(field.type)]
        if nested:
            text = f"csv has no room for lists, maps and structs: {', '.join(nested)}. Use json, or read it as string."
            raise Misconfigured("connectors", [Problem("schema", text)])
        self._types = {str(number): _readable(field.type) for number, field in enumerate(fields_of(kind))}

    def decode(self, records: pa.Array) -> Decoded:
        return present(self._decode, records.cast(pa.binary()))

    def encode(self, values: pa.Array) -> pa.Array:
        written = values.cast(pa.struct([(field.name, _written(field.type)) for field in fields_of(values.type)]))
        rows = written.to_pylist()
        names = [field.name for field in fields_of(values.type)]
        lines = [None if row is None else ",".join(_cell(row[name]) for name in names).encode() for row in rows]
        return pa.array(lines, pa.binary())

    def _decode(self, records: pa.Array) -> Decoded:
        pieces: list[pa.Array] = []
        bad: list[BadRecord] = []
        todo = [(0, len(records))] if len(records) else []
        while todo:
            first, end = todo.pop()
            part = records[first:end]
            try:
                if len(part) > 1 and _may_cross(part):
                    raise ValueError("by itself")
                pieces.append(self._read(part))
            except (pa.ArrowInvalid, ValueError) as error:
                if len(part) == 1:
                    bad.append(BadRecord(first, str(error), type(error).__name__))
                    pieces.append(pa.nulls(1, self.kind))
                else:
                    todo += reversed(smaller_parts(first, end, _row(error)))
        return Decoded(pa.concat_arrays(pieces) if pieces else pa.nulls(0, self.kind), bad)

    def _read(self, records: pa.Array) -> pa.Array:
        import pyarrow.csv as csv

        text = b"\n".join(records.to_pylist())
        if text.endswith(b",") and text.count(b'"') % 2 == 0:
            text += b"\n"  # or Arrow takes the empty value at the very end for one in quotes, if one before it was
        if not text and len(records) == 1 and len(self._types) == 1:
            return pa.array([{self.kind.field(0).name: None}], self.kind)
        table = csv.read_csv(
            io.BytesIO(_MARK + text),
            read_options=csv.ReadOptions(
                column_names=list(self._types), use_threads=False, block_size=max(len(text) + 8, 1 << 10)
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(self._types) > 1),
            convert_options=csv.ConvertOptions(
                column_types=self._types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        if table.num_rows != len(records):
            raise ValueError("not one line of values")
        fields = fields_of(self.kind)
        columns = [
            _as(column.combine_chunks(), field.type) for column, field in zip(table.columns, fields, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields)


def _readable(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_decimal(kind) else kind


def decimals_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The decimals in texts of csv. Arrow's own reader does not count their digits before the point; its cast does."""
    return pc.utf8_trim(texts, " \t").cast(kind)


def _written(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else pa.string()


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(kind):
        return decimals_of(column, kind) if pa.types.is_decimal(kind) else column
    midnight = pc.binary_join_element_wise(column, "T00:00:00", "")
    whole = pc.if_else(pc.match_substring_regex(column, _DATE_ONLY), midnight, column)
    if kind.tz is not None:
        zoned = pc.match_substring_regex(whole, _ZONED)
        whole = pc.if_else(zoned, whole, pc.binary_join_element_wise(whole, "Z", ""))
    return whole.cast(kind)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value.decode("utf-8") if isinstance(value, bytes) else value
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTE.search(text) else text


def _may_cross(records: pa.Array) -> bool:
    """True if a value may go on in the next record, or a record be more or less than a line."""
    odd = pc.match_substring_regex(records, '["\\r\\n]')
    return bool(pc.any(pc.or_(odd, pc.equal(pc.binary_length(records), 0))).as_py())


def _row(error: Exception) -> int | None:
    """The row that Arrow names, counted from 0 (Arrow counts from 1)."""
    named = _ROW.search(str(error))
    return int(named[1]) - 1 if named else None

"""Bytes and text as they are."""

from __future__ import annotations

import pyarrow as pa

from .base import Decoded, Format, one_by_one


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
            return one_by_one(records, text_of, self.kind)

    def encode(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.string()).cast(pa.binary())


def text_of(record: bytes) -> str:
    """The text of ``record``. Raises ``ValueError`` when it is not UTF-8."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None

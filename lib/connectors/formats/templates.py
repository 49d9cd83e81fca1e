"""Texts with columns in braces, such as ``events:{user_id}``, filled with the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import Formatter

import pyarrow as pa
import pyarrow.types as types

from ..ground.errors import Poison
from .text import json_text, text_of


def filled(
    template: str, rows: pa.RecordBatch, coded: Callable[[bytes], bytes] | None = None
) -> list[bytes | Poison]:
    """The template with the columns of each row in it, each value by ``coded``."""
    parts = [(literal.replace("%", "%%"), name) for literal, name, _, _ in Formatter().parse(template)]
    pattern = "".join(literal + ("%b" if name else "") for literal, name in parts).encode()
    columns = [texts(rows.column(name)) for _, name in parts if name]
    if not columns:
        return [pattern % ()] * rows.num_rows
    null = Poison(f"a column of {template} is null")
    if coded is not None:
        columns = [[None if text is None else coded(text) for text in column] for column in columns]
    return [null if None in row else pattern % row for row in zip(*columns, strict=True)]


def filled_texts(template: str, rows: pa.RecordBatch) -> list[str | Poison]:
    """As :func:`filled`, for names, which must be text."""
    return [text if isinstance(text, Poison) else _decoded(template, text) for text in filled(template, rows)]


def _decoded(template: str, text: bytes) -> str | Poison:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return Poison(f"a column of {template} is no text: {text!r:.100}")


def texts(column: pa.Array) -> Sequence[bytes | None]:
    """The values of a column as text; binary as it is, nested values as JSON."""
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return list(column.to_pylist())
    text = json_text(column) if types.is_nested(column.type) else text_of(column)
    return list(text.cast(pa.binary()).to_numpy(zero_copy_only=False))  # faster than to_pylist

"""Turns the rows of a query into columns of Kafka records, in Arrow: topic, key, value, partition, timestamp, headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...core.dead_letters import Rejects, row_at
from ...formats import Side, format_of
from ...formats.templates import filled_texts
from ...ground.columns import is_binary, is_text, template_columns
from ...ground.errors import Misconfigured, Poison, Problem
from ...ground.options import Values, usage

Array = Any

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_KINDS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int64(),  # a number that no partition has is a bad row
    "timestamp": pa.timestamp("ms"),
    "headers": HEADERS,
}
_FRAME_BYTES: Final = 82
"""At least the size of a batch of one record without key, value and headers; lengths take up to 5 bytes each."""


def fixed_topic(values: Values) -> str | None:
    """The topic of every record; ``None`` if it depends on the row, by a template or a column."""
    topic = values["topic"]
    return None if topic is None or template_columns(topic) else str(topic)


class Serializer:
    """Makes the columns of records. Raises ``Misconfigured`` for a frame without the necessary columns."""

    def __init__(self, values: Values, schema: pa.Schema) -> None:
        self.values = values
        self.schema = schema
        if problems := list(wrong_columns(values, schema)):
            raise Misconfigured("connectors.kafka", problems)
        self._sides: list[Side] = [side for side in ("key", "value") if side in schema.names]
        self._formats = {
            side: format_of(values, schema.field(side).type, side, fixed_topic(values)) for side in self._sides
        }
        if problems := list(self._unwritable()):
            raise Misconfigured("connectors.kafka", problems)

    def _unwritable(self) -> Iterator[Problem]:
        """The problems of columns that have bytes in no row; with ``errors=skip`` every row would be left out."""
        for side, form in self._formats.items():
            schema = f"{side}.avroSchema"
            try:
                form.check_encode()
            except ValueError as wrong:
                if self.values[schema]:
                    yield Problem(schema, f"does not fit the column {side}: {wrong}; correct one of the two.")
                else:
                    yield Problem(side, f"cannot be written with {side}.format={form.name}: {wrong}; cast or drop the column.")

    def records(self, rows: pa.RecordBatch, rejects: Rejects) -> pa.RecordBatch:
        """The records of ``rows``; bad rows go to ``rejects``."""
        rows = _without(rows, self._bad(rows), rejects)
        columns: dict[str, Array] = {}
        for side in self._sides:
            rows, columns[side], mask = self._encoded(side, rows, rejects)
            columns = {name: column if name == side else column.filter(mask) for name, column in columns.items()}
        for name, kind in _KINDS.items():
            if name == "topic" and self.values["topic"]:
                if not fixed_topic(self.values):
                    columns[name] = self._topics(rows)
            elif name in self.schema.names:
                columns[name] = _cast(rows.column(name), kind)
        if self.values["orderColumn"]:
            columns["order"] = rows.column(self.values["orderColumn"])
        return pa.RecordBatch.from_pydict(columns)

    def _encoded(self, side: Side, rows: pa.RecordBatch, rejects: Rejects) -> tuple[pa.RecordBatch, Array, Array]:
        """The rows with bytes, their bytes, and a mask of these rows in ``rows``."""
        encode, column = self._formats[side].encode, rows.column(side)
        try:
            return rows, encode(column), pa.array(keep_mask(rows))
        except ValueError:
            pass
        encoded: list[Any] = []
        bad: dict[int, str] = {}
        for number in range(rows.num_rows):
            try:
                encoded.append(encode(column.slice(number, 1)))
            except ValueError as error:
                bad[number] = f"its {side} has no form in {self.values[f'{side}.format']}: {error}"
        values = pa.concat_arrays(encoded) if encoded else pa.array([], pa.binary())
        return _without(rows, bad, rejects), values, pa.array(keep_mask(rows, bad))

    def _topics(self, rows: pa.RecordBatch) -> Array:
        """The topic of each row; null where a column of the template is null."""
        if not self.values["topic"]:
            return rows.column("topic")
        names = filled_texts(self.values["topic"], rows)
        return pa.array([None if isinstance(name, Poison) else name for name in names], pa.string())

    def _bad(self, rows: pa.RecordBatch) -> dict[int, str]:
        bad: dict[int, str] = {}
        if not fixed_topic(self.values):
            topics = self._topics(rows)
            bad.update(dict.fromkeys(_nulls(topics), "its topic is null, or no text"))
            bad.update(dict.fromkeys(_equal(topics, ""), "its topic is empty"))
        if self.values["operation"] == "upsert":
            bad.update(dict.fromkeys(_nulls(rows.column("key")), "its key is null, and operation=upsert needs one"))
        if "timestamp" in rows.schema.names:
            zeros = _equal(_cast(rows.column("timestamp"), _KINDS["timestamp"]), 0)
            why = "its timestamp is the first of 1970, for which the client would send the present time"
            bad.update(dict.fromkeys(zeros, why))
        if "headers" in rows.schema.names:
            headers = pc.list_flatten(rows.column("headers"))
            row_numbers = pc.list_parent_indices(rows.column("headers"))
            for index in _nulls(pc.struct_field(headers, 0)) if len(headers) else ():
                bad[row_numbers[index].as_py()] = "a header has no name"
        return bad


def sizes(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The most bytes that each record takes in a batch of its own."""
    total = np.full(records.num_rows, _FRAME_BYTES, np.int64)
    for side in ("key", "value"):
        if side in records.schema.names:
            total += _lengths(records.column(side))
    if "headers" in records.schema.names:
        headers = pc.list_flatten(records.column("headers"))
        row_numbers = pc.list_parent_indices(records.column("headers")).to_numpy(zero_copy_only=False)
        for index in (0, 1):
            np.add.at(total, row_numbers, _lengths(pc.struct_field(headers, index)) + 5)
    return total


def _lengths(column: Array) -> npt.NDArray[Any]:
    lengths: npt.NDArray[Any] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return lengths


def last_of_each_key(records: pa.Table) -> pa.Table:
    """The last record of each key in each topic: by the column ``order`` if there is one, else by position.

    The records stay in the order of their positions.
    """
    positions = pa.array(np.arange(records.num_rows))
    keys = [name for name in ("topic", "key") if name in records.column_names]
    if "order" not in records.column_names:
        keyed = records.select(keys).append_column("at", positions)
        last = keyed.group_by(keys).aggregate([("at", "max")]).column("at_max").combine_chunks()
    else:
        keyed = records.select([*keys, "order"]).append_column("at", positions)
        without_order = keyed.column("order").is_null()
        ordered = keyed.filter(pc.invert(without_order))
        ordered = ordered.take(pc.sort_indices(ordered, [("order", "ascending"), ("at", "ascending")]))
        ranked = pa.concat_tables([keyed.filter(without_order), ordered]).append_column("rank", positions)
        ranks = ranked.select([*keys, "rank"]).group_by(keys).aggregate([("rank", "max")]).column("rank_max")
        last = ranked.column("at").combine_chunks().take(ranks.combine_chunks())
    return records.take(last.take(pc.sort_indices(last)))


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """A record for people: bytes become text if they are text."""
    return {name: _text(cell) if isinstance(cell, bytes) else cell for name, cell in row.items()}


def _text(cell: bytes) -> str | bytes:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell


def keep_mask(rows: pa.RecordBatch, bad: Iterable[int] = ()) -> npt.NDArray[np.bool_]:
    """True for each row that is not ``bad``."""
    mask = np.ones(rows.num_rows, bool)
    mask[list(bad)] = False
    return mask


def _without(rows: pa.RecordBatch, bad: Mapping[int, str], rejects: Rejects) -> pa.RecordBatch:
    if not bad:
        return rows
    for number in sorted(bad):
        rejects.add(row_at(rows, number), bad[number])
    return rows.filter(pa.array(keep_mask(rows, bad)))


def _nulls(column: Array) -> list[int]:
    return list(pc.indices_nonzero(column.is_null()).to_pylist()) if column.null_count else []


def _equal(column: Array, value: object) -> list[int]:
    return list(pc.indices_nonzero(pc.equal(column, value)).to_pylist())


def _cast(column: Array, kind: pa.DataType) -> Array:
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us")).cast(kind, safe=False)  # Kafka has milliseconds
        return column.cast(pa.int64())
    return column.cast(kind)


def wrong_columns(values: Values, schema: pa.Schema, *, placed: bool = False) -> Iterator[Problem]:
    """The problems of a frame with the columns ``schema`` that prevent its rows from becoming records."""
    if "value" not in schema.names:
        text = "the column is missing; make it, such as to_json(struct(*)) AS value, or with value.format=json."
        yield Problem("value", text)
    if not values["topic"] and "topic" not in schema.names:
        hint = usage(placed=placed).format(name="topic")
        yield Problem("topic", f"missing; give it {hint}; or make a column topic that names the topic of each row.")
    if values["operation"] == "upsert" and "key" not in schema.names:
        yield Problem("key", "the column is missing; operation=upsert needs keys.")
    for side in ("key", "value"):
        if side in schema.names and values[f"{side}.format"] == "bytes" and not _has_bytes(schema.field(side).type):
            text = f"has the type {schema.field(side).type}; cast it to string or binary, or give {side}.format."
            yield Problem(side, text)
    for name, fits, expected in (
        ("topic", is_text, "a string"),
        ("partition", pa.types.is_integer, "an int"),
        ("timestamp", pa.types.is_timestamp, "a timestamp"),
        ("headers", _are_headers, "array<struct<key string, value binary>>"),
    ):
        if name in schema.names and not fits(schema.field(name).type):
            yield Problem(name, f"the column must be {expected}; it is {schema.field(name).type}.")


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(is_text(kind) or is_binary(kind))


def _are_headers(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        and pa.types.is_struct(kind.value_type)
        and kind.value_type.num_fields == 2
        and is_text(kind.value_type.field(0).type)
        and _has_bytes(kind.value_type.field(1).type)
    )

"""``value.unpack``: the columns of a row are the fields of the record's value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from ...connect.host import SOURCE_COLUMNS, ConnectorSettings
from ...core import Poison, Problem, RecordEmitter, Split
from ...formats import JsonFormat
from ...formats.schema_text import wrong_columns
from ...ground.options import Values

UNPACKED: Final = pa.schema(
    [SOURCE_COLUMNS.field("value"), SOURCE_COLUMNS.field("sourcePartition"), SOURCE_COLUMNS.field("sourceOffset")]
)
_JSON: Final = ("org.apache.kafka.connect.json.JsonConverter", "JsonConverter", "Json", None)


class UnpackEmitter(RecordEmitter):
    """Reads the JSON that the converter has written; a record without value is a row of nulls."""

    def __init__(self, schema: pa.Schema, settings: ConnectorSettings) -> None:
        self._schema = schema
        kind = pa.struct(list(schema))
        self._envelope = _has_envelope(settings)
        self._format = JsonFormat(pa.struct([("payload", kind)]) if self._envelope else kind)

    def emit(self, records: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        decoded = self._format.decode(records["value"])
        if decoded.bad:
            bad = decoded.bad[0]
            raise Poison(
                f"the value at {records['sourceOffset'][bad.index]} of {records['sourcePartition'][bad.index]} does not fit "
                f"the schema: {bad.error}",
                record=records["value"][bad.index].as_py() or b"",
                way_out="correct the option schema, or read the column value without value.unpack",
            )
        values = decoded.values.flatten()[0] if self._envelope else decoded.values
        return pa.RecordBatch.from_arrays(values.flatten(), schema=self._schema)


def unpack_problems(values: Values) -> Iterator[Problem]:
    """The problems of ``value.unpack`` and ``schema``."""
    if not values["value.unpack"]:
        return
    if values["schema"]:
        yield from (Problem("schema", f"{wrong}.") for wrong in wrong_columns(values["schema"]))
    if values["config"].get("value.converter") not in _JSON:
        yield Problem("value.unpack", "needs JsonConverter as value.converter.")


def _has_envelope(settings: ConnectorSettings) -> bool:
    if "value.converter" not in settings.properties:
        return False
    return settings.properties.get("value.converter.schemas.enable", "true").lower() == "true"

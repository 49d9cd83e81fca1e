"""The emitter of sources that hand out bytes: decodes a column by its format, and does with bad records what the user chose."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from .dead_letters import SourceLetters
from .errors import Poison
from .formats import FORMATS, BadRecord
from .options import Values
from .source import RecordEmitter, Split
from .state import dumps


class FormatEmitter(RecordEmitter):
    """Decodes the column ``value``. ``position`` names the columns that say where a record was."""

    def __init__(self, source: str, values: Values, schema: pa.Schema, position: Sequence[str]) -> None:
        self.source = source
        self.errors = values["errors"]
        self.format = FORMATS[values["value.format"]](schema.field("value").type)
        self.schema = schema
        self.position = tuple(position)
        self.letters = SourceLetters(source, values["deadLetterPath"]) if self.errors == "deadLetter" else None

    def emit(self, records: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        decoded = self.format.decode(records.column("value"))
        columns = [decoded.values if name == "value" else records.column(name) for name in self.schema.names]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return self._without(rows, records, decoded.bad) if decoded.bad else rows

    def finish(self, split: Split) -> None:
        if self.letters:
            self.letters.put(split)

    def _without(self, rows: pa.RecordBatch, records: pa.RecordBatch, bad: Sequence[BadRecord]) -> pa.RecordBatch:
        for one in bad:
            record = records.column("value")[one.index].as_py()
            where = dumps({name: records.column(name)[one.index].as_py() for name in self.position})
            if self.errors == "fail":
                raise Poison(
                    f"a record cannot be read as {self.format.name}: {one.error}; it begins with {record[:80]!r}",
                    record=record,
                    where=where,
                    way_out="set errors=deadLetter with a deadLetterPath, or errors=skip",
                )
            if self.letters:
                self.letters.add(where, one.error, record)
        self.bad += len(bad)
        self.dead_letters += len(bad) if self.letters else 0
        keep = pa.array([True] * rows.num_rows).to_numpy(zero_copy_only=False).copy()
        keep[[one.index for one in bad]] = False
        return rows.filter(pa.array(keep))

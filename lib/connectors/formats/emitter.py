"""The emitter of sources that hand out bytes: decodes a column by its format, and does with bad records what the user chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..core.dead_letters import SourceLetters
from ..core.letter_files import microseconds
from ..core.source import RecordEmitter, Split
from ..ground.errors import Poison
from ..ground.options import Values
from ..ground.state import dumps
from ..storage.base import Storage
from ..storage.location import storage_of
from . import BadRecord, Decoded, format_of, sides

Headers = Callable[[pa.RecordBatch, Split], Sequence[Any]]
"""The headers of records of a split, one by one, for a source that does not read them with every record."""


class FormatEmitter(RecordEmitter):
    """Decodes the columns ``value`` and ``key``, those of them that ``schema`` has; ``position`` names the columns that say
    where a record was, and ``value`` the column of values where it is called otherwise.

    A record of which the key or the value is bad is one dead letter, with the bytes of the value.
    """

    def __init__(
        self,
        source: str,
        values: Values,
        schema: pa.Schema,
        position: Sequence[str],
        headers: Headers | None = None,
        value: str = "value",
    ) -> None:
        self.source = source
        self.errors = values["errors"]
        columns = {value if side == "value" else side: side for side in sides(values)}
        names = [name for name in columns if name in schema.names]
        self.formats = {name: format_of(values, schema.field(name).type, columns[name]) for name in names}
        self._value = value
        self.schema = schema
        self.position = tuple(position)
        self.letters = SourceLetters(source, _letter_storage(values)) if self.errors == "deadLetter" else None
        self.headers = headers

    def emit(self, records: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        decoded = {name: format.decode(records.column(name)) for name, format in self.formats.items()}
        columns = [decoded[name].values if name in decoded else records.column(name) for name in self.schema.names]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        bad = self._bad(decoded)
        return self._without(rows, records, bad, split) if bad else rows

    def _bad(self, decoded: Mapping[str, Decoded]) -> Sequence[BadRecord]:
        """Every bad record once; where there are keys, its error says which of the two is bad."""
        if list(decoded) == [self._value]:
            return decoded[self._value].bad
        errors: dict[int, list[str]] = {}
        kinds: dict[int, str] = {}
        for name, column in decoded.items():
            for bad in column.bad:
                errors.setdefault(bad.index, []).append(f"{name}: {bad.error}")
                kinds.setdefault(bad.index, bad.kind)
        return [BadRecord(index, "; ".join(texts), kinds[index]) for index, texts in sorted(errors.items())]

    def finish(self, split: Split) -> None:
        if self.letters:
            self.letters.put(split)

    def _without(self, rows: pa.RecordBatch, records: pa.RecordBatch, bad: Sequence[BadRecord], split: Split) -> pa.RecordBatch:
        if self.errors == "fail":
            raise self._poison(records, bad[0])
        indices = [record.index for record in bad]
        if self.letters:
            self._set_aside(self.letters, records.take(pa.array(indices)), bad, split)
        self.bad += len(bad)
        self.dead_letters += len(bad) if self.letters else 0
        keep = pa.array([True] * rows.num_rows).to_numpy(zero_copy_only=False).copy()
        keep[indices] = False
        return rows.filter(pa.array(keep))

    def _poison(self, records: pa.RecordBatch, failure: BadRecord) -> Poison:
        record = records.column(self._value)[failure.index].as_py()
        names = " and ".join(dict.fromkeys(format.name for format in self.formats.values()))
        begin = "has no value" if record is None else f"begins with {record[:80]!r}"
        return Poison(
            f"a record cannot be read as {names}: {failure.error}; it {begin}",
            record=record or b"",
            where=dumps({name: records.column(name)[failure.index].as_py() for name in self.position}),
            way_out="set errors=deadLetter with a deadLetterPath, or errors=skip",
        )

    def _set_aside(self, letters: SourceLetters, records: pa.RecordBatch, bad: Sequence[BadRecord], split: Split) -> None:
        """Each of the bad ``records`` becomes a letter that can be sent again: with its key, headers and timestamp."""
        names = [name for name in _ORIGINAL if name in records.schema.names]
        originals = {name: microseconds(records.column(name)).to_pylist() for name in names}
        if self.headers is not None and "headers" not in originals:
            originals["headers"] = list(self.headers(records, split))
        for number, record in enumerate(bad):
            where = dumps({name: records.column(name)[number].as_py() for name in self.position})
            original = {name: cells[number] for name, cells in originals.items()}
            letters.add(where, record.kind, record.error, records.column(self._value)[number].as_py(), **original)


_ORIGINAL = ("key", "headers", "timestamp")


def _letter_storage(values: Values) -> Storage:
    return storage_of(values["deadLetterPath"], values["storageOptions"])

"""The rows in the files of an epoch log, and how some of them are removed for good.

Only acknowledged epochs lose rows: Spark has committed them, and a replay, for which an older checkpoint must be restored,
gives what is left. The epoch that may be next in a replay keeps its rows: a sink that has its batch compares their number.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from connectors.core.epochs import EpochLog, Header, content_of
from connectors.core.letter_files import Letter, LetterFile, letter_key, letters_in, open_letters
from connectors.ground.state import digest, dumps

_REMOVED: Final = "removed"
"""The folder of the records of removals, in that of the epoch."""

Row = Mapping[str, Any]


class RecordedFile(NamedTuple):
    """A file with rows: a reader's record, or rows that the driver has read."""

    name: str
    header: Header
    batches: list[pa.RecordBatch]

    def rows(self) -> Iterator[Row]:
        """The rows as Python has them."""
        for batch in self.batches:
            yield from batch.to_pylist()


def recorded_files(log: EpochLog, epoch: int) -> Iterator[RecordedFile]:
    """The files of ``epoch`` that have rows, without those that somebody deletes meanwhile."""
    folder = f"epochs/{epoch:020d}"
    for name in (f"{folder}/{name}" for name in log.storage.names(folder) if name.endswith((".arrow", ".rows"))):
        with contextlib.suppress(FileNotFoundError):
            reader = pa.ipc.open_file(io.BytesIO(log.storage.read(name)))
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            if batches:
                yield RecordedFile(name, Header.of(reader.schema.metadata, name), batches)


def recorded_letters(log: EpochLog, epoch: int) -> Iterator[tuple[str, list[Letter]]]:
    """The files of dead letters beside the rows of ``epoch``: the query publishes them, also again after a restart."""
    folder = f"epochs/{epoch:020d}"
    for name in (f"{folder}/{name}" for name in log.storage.names(folder) if name.endswith(".letters")):
        with contextlib.suppress(FileNotFoundError), open_letters(log.storage, name) as file:
            yield name, list(letters_in(file))


def remove_rows(log: EpochLog, epoch: int, has_row: Callable[[Row], bool], has_letter: Callable[[Letter], bool]) -> None:
    """Removes the rows of ``has_row`` from an ``epoch``, if it is acknowledged, and the letters of ``has_letter``.

    The ids of all its messages stay known. Each record batch keeps its number, by which a plan names it. What counts are
    records of the removal: two processes that remove from one file at once put nothing back.
    """
    folder, is_over = f"epochs/{epoch:020d}/{_REMOVED}", log.is_acknowledged(epoch)
    rows = (row for file in recorded_files(log, epoch) for row in file.rows()) if is_over else ()
    keys = {_row_key(row) for row in rows if has_row(row)}
    keys |= {letter_key(letter) for _, letters in recorded_letters(log, epoch) for letter in letters if has_letter(letter)}
    if keys and is_over:
        log.keep_ids(epoch, log.settled())
    if keys:
        log.storage.put_if_absent(f"{folder}/{digest(*sorted(keys), length=24)}", dumps(sorted(keys)).encode())
    records: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # the query has deleted the epoch
        while records != (records := log.storage.names(folder)):
            _rewrite(log, epoch, {key for name in records for key in json.loads(log.storage.read(f"{folder}/{name}"))})
    if epoch <= log.floor():  # the query deletes the epoch meanwhile, and no file may bring it back
        log.storage.delete_folder(f"epochs/{epoch:020d}")


def _rewrite(log: EpochLog, epoch: int, removed: Set[str]) -> None:
    """Writes the files of an epoch again without the rows and letters of ``removed``."""
    for name, header, batches in recorded_files(log, epoch):
        rest = [batch.filter(_mask(batch, removed)) for batch in batches]
        rows = sum(batch.num_rows for batch in rest)
        if rows < sum(batch.num_rows for batch in batches):
            header = replace(header, rows=rows)
            log.storage.replace(name, content_of(batches[0].schema, _recoded(rest), header), durable=True)
    for name, letters in recorded_letters(log, epoch):
        left = LetterFile()
        for letter in letters:
            if letter_key(letter) not in removed:
                left.add(letter)
        if left.count < len(letters):
            log.storage.replace(name, left.content(), durable=True)


def _mask(batch: pa.RecordBatch, removed: Set[str]) -> pa.Array:
    return pa.array([_row_key(row) not in removed for row in batch.to_pylist()], pa.bool_())


def _row_key(row: Row) -> str:
    """A digest by which rows are compared."""
    return digest(repr(row), length=32)


def _recoded(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches with dictionaries that have no value but those of their rows."""
    table = pa.Table.from_batches(batches)
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            values = pa.concat_arrays(table[index].cast(field.type.value_type).chunks)
            table = table.set_column(index, field, values.dictionary_encode().cast(field.type))
    whole, first, parts = table.combine_chunks(), 0, []
    for batch in batches:
        columns = [column.slice(first, batch.num_rows).combine_chunks() for column in whole.columns]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=whole.schema))
        first += batch.num_rows
    return parts

"""The rows in the files of an epoch log, and how some of them are removed for good.

Only acknowledged epochs lose rows: Spark has committed them, and a replay, for which an older checkpoint must be restored,
gives what is left. The epoch that may be next in a replay keeps its rows: a sink that has its batch compares their number.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from .epochs import EpochLog, Header, content_of


class RecordedFile(NamedTuple):
    """A file with rows: a reader's record, or rows that the driver has read."""

    name: str
    header: Header
    batches: list[pa.RecordBatch]


def recorded_files(log: EpochLog, epoch: int) -> Iterator[RecordedFile]:
    """The files of ``epoch`` that have rows, without those that somebody deletes meanwhile."""
    folder = f"epochs/{epoch:020d}"
    for name in (f"{folder}/{name}" for name in log.storage.names(folder) if name.endswith((".arrow", ".rows"))):
        with contextlib.suppress(FileNotFoundError):
            reader = pa.ipc.open_file(io.BytesIO(log.storage.read(name)))
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            if batches:
                yield RecordedFile(name, Header.of(reader.schema.metadata, name), batches)


def keep_rows(log: EpochLog, epoch: int, keeps: Callable[[pa.RecordBatch], pa.Array]) -> None:
    """Removes the rows for which ``keeps`` is false from an acknowledged ``epoch``.

    The ids of all its messages stay known. Each record batch keeps its number, by which a plan names it.
    """
    log.keep_ids(epoch, log.settled())
    for name, header, batches in recorded_files(log, epoch):
        rest = [batch.filter(keeps(batch)) for batch in batches]
        rows = sum(batch.num_rows for batch in rest)
        if rows < sum(batch.num_rows for batch in batches):
            header = replace(header, rows=rows)
            log.storage.replace(name, content_of(batches[0].schema, _recoded(rest), header), durable=True)
    if epoch <= log.floor():  # the query deletes the epoch meanwhile, and no file may bring it back
        log.storage.delete_folder(f"epochs/{epoch:020d}")


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

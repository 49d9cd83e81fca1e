"""``connectors.buffered``: the buffered exactly-once sink of Flink's guides, for JSON lines in a folder.

The guides' sink keeps pending rows per checkpoint and releases them when the checkpoint is complete. Here a micro-batch is
the checkpoint: the sink buffers its rows in hidden files, the ledger records the batch, and then the sink releases it as one
file. It releases batches in the order of their numbers, so a reader never sees a later one first.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa

from ..core import REQUIRED, Batch, Committable, Committer, Options, Problem, Sink, SinkWriter, Text
from ..core.datasets import Dataset, of_location
from ..core.folder import SinkFolder
from ..core.ledger import FileLedger, LedgerContent
from ..core.sink import RETENTION
from ..formats.text import json_lines
from ..ground import machine
from ..ground.options import Values
from ..storage import is_local, storage_of
from ..storage.location import without_user
from .files.committer import begin


class BufferedSink(Sink):
    """A file of JSON lines per micro-batch under ``path``, visible as a whole or not at all.

    Guarantee: exactly-once. The ledger is hidden beside the files.
    """

    name = "buffered"
    options = Options(
        path=Text(REQUIRED, meaning="the folder of the finished files"),
        stagingRetention=RETENTION,
    )

    conditions = "a local or mounted folder; a whole batch appears at once"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if not is_local(values["path"]):
            yield Problem("path", f'must be a local or mounted folder; got "{without_user(values["path"])}".')

    def target(self) -> str:
        return str(self.values["path"])

    def datasets(self) -> Sequence[Dataset]:
        return [of_location(self.values["path"])]

    def folder(self) -> SinkFolder:
        return SinkFolder(storage_of(self.values["path"]), self.sink_id())

    def ledger(self) -> FileLedger:
        return self.folder().ledger()

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        return SinkFolder.contents(storage_of(target)) or None if is_local(target) else None

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> BufferedWriter:
        return BufferedWriter(self.folder(), batch)

    def committer(self) -> BufferedCommitter:
        return BufferedCommitter(self.folder(), self.values["stagingRetention"])


class BufferedWriter(SinkWriter):
    """Buffers the rows of a task attempt in a hidden file, made with the first row."""

    def __init__(self, folder: SinkFolder, batch: Batch) -> None:
        self.folder = folder
        self.batch = batch
        self.attempt = batch.attempt()
        self.rows = 0
        self._file: BinaryIO | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = self.folder.create(f"{begin('connectors.buffered', self.folder, self.batch, self.attempt)}/rows")
        self._file.writelines(json_lines(batch))
        self.rows += batch.num_rows

    def prepare(self) -> Committable:
        self.close()
        if not self.rows:
            return Committable(0, {"attempt": self.attempt})
        name = rows_name(self.folder, self.attempt)
        self.folder.sync([name])
        return Committable(self.rows, {"attempt": self.attempt, "size": self.folder.size(name)})

    def abort(self) -> None:
        self.close()
        self.folder.remove(self.attempt)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class BufferedCommitter(Committer):
    """Joins the buffers of a batch into one hidden file, and releases it under its final name."""

    def __init__(self, folder: SinkFolder, retention: float) -> None:
        self.folder = folder
        self.retention = retention

    def check(self, committables: Sequence[Committable], rows: int) -> None:
        buffers = [committable.data for committable in committables if committable.rows]
        self.folder.check_staged((rows_name(self.folder, data["attempt"]), data["size"]) for data in buffers)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.folder.drop_attempts(batch, failed=failed)

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        buffers = [committable for committable in committables if committable.rows]
        if not buffers:
            return
        whole = f"{batch.prefix()}-ready"
        ready, final = rows_name(self.folder, whole), f"part-{batch.file_id()}-0.json"
        if self.folder.size(ready) is None:
            self._join(buffers, ready)
        for committable in buffers:  # from here on, a batch that is not in `ready` was released before
            self.discard(committable)
        self.folder.sync_stage()
        self.folder.publish(ready, final)
        self.folder.sync_names([final])
        self.folder.remove(whole)

    def discard(self, committable: Committable) -> None:
        self.folder.remove(committable.data["attempt"])

    def sweep(self, live: frozenset[str]) -> None:
        self.folder.sweep(self.retention, live)

    def _join(self, buffers: Sequence[Committable], ready: str) -> None:
        names = [rows_name(self.folder, buffer.data["attempt"]) for buffer in buffers]
        if any(self.folder.size(name) is None for name in names):
            return
        growing = f"{ready}-{machine.token()}"
        with self.folder.create(growing) as whole:
            for name in names:
                with self.folder.open(name) as buffer:
                    shutil.copyfileobj(buffer, whole)
        self.folder.sync([growing])
        self.folder.publish(growing, ready)
        self.folder.sync_names([ready])


def rows_name(folder: SinkFolder, attempt: str) -> str:
    """The file with the rows of an attempt."""
    return f"{folder.stage(attempt)}/rows"

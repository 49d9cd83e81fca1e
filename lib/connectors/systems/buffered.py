"""``connectors.buffered``: the buffered exactly-once sink of Flink's guides, for JSON lines in a folder.

The guides keep pending rows per checkpoint and release them when the checkpoint is complete. Here a micro-batch is the
checkpoint: its rows are buffered in hidden files, the ledger records the batch, and then the batch is released, whole, as
one file. Batches are released in the order of their numbers, so a reader never sees a later one first.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from ..core import REQUIRED, Batch, Committable, Committer, Duration, Options, Problem, Sink, SinkWriter, Text
from ..core.folder import TargetFolder
from ..core.ledger import FileLedger
from ..core.options import Values
from ..core.serde import to_json_lines
from .files.staging import new_stage


class BufferedSink(Sink):
    """A file of JSON lines per micro-batch under ``path``, visible as a whole or not at all.

    Options: ``path`` (required), ``stagingRetention`` (7 days), and those of every sink.
    Guarantee: exactly-once. The ledger lies hidden beside the files.
    """

    name = "buffered"
    options = Options(path=Text(REQUIRED), stagingRetention=Duration(7 * 86400.0, unit="s"))

    conditions = "a local or mounted folder; a whole batch appears at once"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if "://" in values["path"] and not values["path"].startswith("file:"):
            yield Problem("path", f'must be a local or mounted folder; got "{values["path"]}".')

    def target(self) -> str:
        return str(self.values["path"])

    def folder(self) -> TargetFolder:
        return TargetFolder(self.values["path"], self.sink_id())

    def ledger(self) -> FileLedger:
        return self.folder().ledger()

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> BufferedWriter:
        return BufferedWriter(self.folder(), batch)

    def committer(self) -> BufferedCommitter:
        return BufferedCommitter(self.folder(), self.values["stagingRetention"])


class BufferedWriter(SinkWriter):
    """Buffers the rows of a task attempt in a hidden file, made with the first row."""

    def __init__(self, folder: TargetFolder, batch: Batch) -> None:
        self.folder = folder
        self.batch = batch
        self.attempt = batch.attempt()
        self.rows = 0
        self._file: BinaryIO | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            stage = new_stage("connectors.buffered", self.folder, self.batch, self.attempt)
            self._file = (stage / "rows").open("wb")
        self._file.write(to_json_lines(batch))
        self.rows += batch.num_rows

    def prepare(self) -> Committable:
        self.close()
        return Committable(self.rows, {"attempt": self.attempt})

    def abort(self) -> None:
        self.close()
        self.folder.remove(self.attempt)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class BufferedCommitter(Committer):
    """Joins the buffers of a batch in one hidden file, and releases it under its final name."""

    def __init__(self, folder: TargetFolder, retention: float) -> None:
        self.folder = folder
        self.retention = retention

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        buffers = [committable for committable in committables if committable.rows]
        if not buffers:
            return
        ready = self.folder.stage(f"{batch.prefix()}-ready") / "rows"
        if not ready.exists():
            self._join(buffers, ready)
        for committable in buffers:  # from here on, what is not in `ready` was released before
            self.discard(committable)
        self.folder.publish(self.folder.relative(ready), f"part-{batch.file_id()}-0.json")
        self.folder.remove(ready.parent.name)

    def discard(self, committable: Committable) -> None:
        self.folder.remove(committable.data["attempt"])

    def sweep(self, live: frozenset[str]) -> None:
        self.folder.sweep(self.retention, live)

    def _join(self, buffers: Sequence[Committable], ready: Path) -> None:
        files = [self.folder.stage(buffer.data["attempt"]) / "rows" for buffer in buffers]
        if not all(file.exists() for file in files):
            return
        ready.parent.mkdir(parents=True, exist_ok=True)
        growing = ready.with_name("growing")
        with growing.open("wb") as whole:
            for file in files:
                with file.open("rb") as buffer:
                    shutil.copyfileobj(buffer, whole)
        growing.rename(ready)

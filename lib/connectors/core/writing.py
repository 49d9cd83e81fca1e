"""Writing in a task: passes its rows to a writer, which stages them, or removes its stage if it fails."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..ground.errors import ConnectorError, Fatal
from .batch import Batch, Committable
from .folder import SinkFolder
from .sink import Sink, SinkWriter


def stage(sink: Sink, batch: Batch, schema: pa.Schema, subtask: int, rows: Iterator[pa.RecordBatch]) -> Committable:
    """Stages the rows of one task attempt. Raises the writer's error, with the batch and task where it happened."""
    sink.refuse_frame(schema, placed=True)  # only the driver knows whether rows are placed as the sink needs
    writer = sink.writer(batch, schema, subtask)
    try:
        for records in rows:
            if records.num_rows:
                writer.write(records)
        return _with_rejects(writer, writer.prepare())
    except BaseException as error:
        with contextlib.suppress(Exception):  # the first error is raised
            writer.abort()
        if isinstance(error, ConnectorError):
            raise error.located(f"connectors.{sink.name}", f"{batch}, task {subtask}") from None
        raise
    finally:
        writer.close()


def _with_rejects(writer: SinkWriter, staged: Committable) -> Committable:
    if writer.rejects is None:
        return staged
    return dataclasses.replace(staged, rejected=writer.rejects.count, letters=writer.rejects.stage())


class ArrowStage:
    """The rows of a task attempt in a hidden Arrow file, for a driver that passes them to the target.

    The first rows create the file; ``rows`` is how many it holds.
    """

    def __init__(self, folder: SinkFolder, attempt: str) -> None:
        self.folder = folder
        self.attempt = attempt
        self.rows = 0
        self._file: Any = None
        self._writer: Any = None

    @property
    def file(self) -> str:
        """The name of the file in its folder."""
        return _name(self.folder, self.attempt)

    @staticmethod
    @contextlib.contextmanager
    def reader(folder: SinkFolder, attempt: str) -> Iterator[pa.ipc.RecordBatchFileReader]:
        """The rows of ``attempt``. Raises :class:`Fatal` if the driver does not find them."""
        try:
            file = folder.open(_name(folder, attempt))
        except FileNotFoundError:
            raise Fatal(
                f"a task has staged rows in {folder.root}, and the driver does not find them there",
                way_out="give a stagingLocation that the driver and all executors share, and let one run of the query write "
                "at a time; nothing was written",
            ) from None
        with file:
            yield pa.ipc.open_file(file)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self.folder.begin(self.attempt)
            self._file = self.folder.create(self.file)
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Completes the file. May be called again."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = None

    def remove(self) -> None:
        self.close()
        self.folder.remove(self.attempt)


class StageWriter(SinkWriter):
    """A writer that stages rows in an :class:`ArrowStage`; a subclass passes them to it in ``write``."""

    def __init__(self, folder: SinkFolder, batch: Batch) -> None:
        self.staged = ArrowStage(folder, batch.attempt())

    def prepare(self) -> Committable:
        """Completes the file. The committable names the attempt as ``file`` if it has rows."""
        self.staged.close()
        return Committable(self.staged.rows, {"file": self.staged.attempt} if self.staged.rows else {})

    def abort(self) -> None:
        self.staged.remove()

    def close(self) -> None:
        self.staged.close()


def _name(folder: SinkFolder, attempt: str) -> str:
    return f"{folder.stage(attempt)}/rows.arrow"

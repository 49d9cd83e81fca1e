"""Rows of a task attempt in a hidden Arrow file, for a driver that reads them and hands them to the target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from .errors import Fatal
from .folder import SinkFolder


class ArrowStage:
    """The Arrow file of one ``attempt``, made with the first rows. ``rows`` is how many it holds."""

    def __init__(self, folder: SinkFolder, attempt: str) -> None:
        self.folder = folder
        self.attempt = attempt
        self.rows = 0
        self._file: Any = None
        self._writer: Any = None

    @staticmethod
    @contextlib.contextmanager
    def reader(folder: SinkFolder, attempt: str) -> Iterator[pa.ipc.RecordBatchFileReader]:
        """The rows of ``attempt``. Raises :class:`Fatal` where the driver does not find them."""
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
            self._file = self.folder.create(_name(self.folder, self.attempt))
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        """What was written is complete. May be called again."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = None

    def remove(self) -> None:
        self.close()
        self.folder.remove(self.attempt)


def _name(folder: SinkFolder, attempt: str) -> str:
    return f"{folder.stage(attempt)}/rows.arrow"

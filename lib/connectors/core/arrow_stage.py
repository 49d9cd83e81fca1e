"""Rows of a task attempt in a hidden Arrow file, for a driver that reads them and hands them to the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from .folder import TargetFolder


class ArrowStage:
    """The Arrow file of one ``attempt``, made with the first rows. ``rows`` is how many it holds."""

    def __init__(self, folder: TargetFolder, attempt: str) -> None:
        self.folder = folder
        self.attempt = attempt
        self.rows = 0
        self._file: Any = None

    @staticmethod
    def file(folder: TargetFolder, attempt: str) -> Path:
        """Where the rows of ``attempt`` are."""
        return folder.stage(attempt) / "rows.arrow"

    def write(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            file = self.file(self.folder, self.attempt)
            file.parent.mkdir(parents=True)
            self._file = pa.ipc.new_file(str(file), batch.schema)
        self._file.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        """What was written is complete. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        self.close()
        self.folder.remove(self.attempt)

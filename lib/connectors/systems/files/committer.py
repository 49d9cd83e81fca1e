"""Publication of staged files by rename."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from ...core import Batch, Committable, Committer
from ...core.folder import TargetFolder


class FilesCommitter(Committer):
    """Moves each staged file to ``<bucket>/<prefix>-<batch>-<n>.<extension>``."""

    def __init__(self, folder: TargetFolder, prefix: str, retention: float) -> None:
        self.folder = folder
        self.prefix = prefix
        self.retention = retention

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        number = 0
        for committable in committables:
            for staged, bucket in committable.data["files"]:
                name = f"{self.prefix}-{batch.file_id()}-{number}{extension(staged)}"
                self.folder.publish(staged, str(PurePosixPath(bucket) / name))
                number += 1
        for committable in committables:
            self.discard(committable)

    def discard(self, committable: Committable) -> None:
        self.folder.remove(committable.data["attempt"])

    def sweep(self, live: frozenset[str]) -> None:
        self.folder.sweep(self.retention, live)


def extension(name: str) -> str:
    """``.snappy.parquet`` of ``part-00000-….snappy.parquet``: everything from the first dot of the file name on."""
    _, dot, rest = PurePosixPath(name).name.partition(".")
    return dot + rest

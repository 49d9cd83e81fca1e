"""Publication of staged files: at once under their final names, or as hidden parts that grow into larger files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from ...core import Batch, Committable, Committer
from ...core.ledger import is_stream
from .place import Folder
from .sealing import Sealer


class FilesCommitter(Committer):
    """Moves each staged file to ``<bucket>/<prefix>-<batch>-<n>.<extension>``; with ``rolling``, first among the parts."""

    def __init__(self, folder: Folder, prefix: str, retention: float, sealer: Sealer, *, rolling: bool) -> None:
        self.folder = folder
        self.prefix = prefix
        self.retention = retention
        self.sealer = sealer
        self.rolling = rolling

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        waits = self.rolling and is_stream(batch.query)  # a batch write is over when it is committed
        number = 0
        for committable in committables:
            for staged, bucket in committable.data["files"]:
                name = f"{self.prefix}-{batch.file_id()}-{number}{extension(staged)}"
                if waits:
                    self.sealer.add(staged, bucket, name)
                else:
                    self.folder.publish(staged, str(PurePosixPath(bucket) / name))
                number += 1
        for committable in committables:
            self.discard(committable)
        if waits:
            self.sealer.seal()

    def discard(self, committable: Committable) -> None:
        self.folder.remove(committable.data["attempt"])

    def sweep(self, live: frozenset[str]) -> None:
        self.folder.sweep(self.retention, live)
        self.sealer.seal(ending=not self.rolling)  # parts of a run before, which may have rolled by another rule


def extension(name: str) -> str:
    """``.snappy.parquet`` of ``part-00000-….snappy.parquet``: everything from the first dot of the file name on."""
    _, dot, rest = PurePosixPath(name).name.partition(".")
    return dot + rest

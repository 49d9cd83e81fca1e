"""Staging and publication: at once under the final names, or as hidden parts that grow into larger files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from ...core import Batch, Committable, Committer, Fatal, Misconfigured, Problem
from ...core.folder import SinkFolder
from ...core.ledger import is_stream
from ...ground.options import Values
from .rolling import Sealer
from .success_files import SuccessFiles


def begin(connector: str, folder: SinkFolder, batch: Batch, attempt: str) -> str:
    """Makes the staging folder of ``attempt`` and returns it, relative to the target; else raises :class:`Misconfigured`.

    It refuses a batch that replaces the target: readers list the folder file by file, so between the first change and the
    last they would see both contents or none.
    """
    if batch.replace:
        text = 'must be append; "overwrite" cannot be atomic in a folder of files. Write to a new folder, or use a table.'
        raise Misconfigured(connector, [Problem("mode", text)])
    try:
        return folder.begin(attempt)
    except OSError as error:
        text = f'"{folder.root}" cannot be written: {error.strerror} ({error.filename}).'
        raise Misconfigured(connector, [Problem("path", text)]) from None


class FilesCommitter(Committer):
    """Moves each staged file to ``<bucket>/<prefix>-<batch>-<n>.<extension>``; with ``rolling``, first to the parts."""

    def __init__(self, folder: SinkFolder, values: Values, sealer: Sealer, *, rolling: bool) -> None:
        self.folder = folder
        self.prefix = values["partPrefix"]
        self.retention = values["stagingRetention"]
        self.sealer = sealer
        self.success_files = SuccessFiles(folder, values) if values["bucket.successFile"] else None
        self.rolling = rolling

    def check(self, committables: Sequence[Committable], rows: int) -> None:
        reported = sum(committable.rows + committable.rejected for committable in committables)
        if reported != rows:
            raise Fatal(
                f"the staged files hold {reported} rows, and the batch has {rows}: another program has written into the stage, "
                f"or {self.folder.root} is not the same folder for the driver and for all executors",
                way_out="nothing was recorded; the next start writes the batch again, in a folder that all of them share",
            )
        for committable in committables:
            files = committable.data["files"]
            if committable.rows and not files:
                raise Fatal(f"a task reports {committable.rows} rows and no file", way_out="nothing was recorded; start again")
            self.folder.check_staged((name, size) for name, _, size in files)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.folder.drop_attempts(batch, failed=failed)

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        waits = self.rolling and is_stream(batch.query)  # a batch write is over when it is committed
        at = max((committable.data["at"] for committable in committables), default=0.0)
        staged_files = [file for committable in committables for file in committable.data["files"]]
        files = []
        for number, (staged, bucket, size) in enumerate(staged_files):
            name = f"{self.prefix}-{batch.file_id()}-{number}{extension(staged)}"
            final = self.sealer.part(bucket, name, at, size) if waits else str(PurePosixPath(bucket) / name)
            files.append((staged, final))
        self.folder.publish_all(files)
        self.folder.sync_names(final for _, final in files)
        for committable in committables:
            self.discard(committable)
        finished = self.success_files.finished(committables) if self.success_files else {}
        if waits or finished:
            self.sealer.seal(finished=finished)
        if self.success_files:
            self.success_files.put(batch, finished)

    def discard(self, committable: Committable) -> None:
        self.folder.remove(committable.data["attempt"])

    def sweep(self, live: frozenset[str]) -> None:
        # First the seals that an earlier run has decided, however long ago, since their files are staged. That run's parts
        # may have rolled by another rule.
        self.sealer.seal(ending=not self.rolling)
        self.folder.sweep(self.retention, live)


def extension(name: str) -> str:
    """``.snappy.parquet`` of ``part-00000-….snappy.parquet``: everything from the first dot of the file name on."""
    _, dot, rest = PurePosixPath(name).name.partition(".")
    return dot + rest

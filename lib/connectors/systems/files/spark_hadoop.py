"""HDFS by Spark's own client: whatever the session can reach, this can, with the same user and settings."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .hadoop import Client, Status, told


class SparkHadoop:
    """The HDFS of a classic session, on its driver."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def status(self, path: str) -> Status | None:
        try:
            return _status(self._call(path, lambda files, at: files.getFileStatus(at)))
        except FileNotFoundError:
            return None

    def children(self, folder: str) -> list[Status]:
        try:
            return [_status(one) for one in self._call(folder, lambda files, at: files.listStatus(at))]
        except FileNotFoundError:
            return []

    def names(self, folder: str) -> list[str]:
        try:
            paths = self._call(folder, lambda files, at: self.client.listed(files.listStatus(at)))
        except FileNotFoundError:
            return []
        return [path.rpartition("/")[2] for path in paths]

    def make_folder(self, path: str) -> None:
        self._call(path, lambda files, at: files.mkdirs(at))

    def rename(self, path: str, to: str) -> bool:
        return bool(self._call(path, lambda files, at: files.rename(at, self.client.path(to))))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._call(path, lambda files, at: files.delete(at, recursive))

    def download(self, path: str, content: BinaryIO) -> None:
        with _temporary() as local:
            here = self.client.path(f"file:{local}")
            self._call(path, lambda files, at: files.copyToLocalFile(False, at, here, True))
            with local.open("rb") as copy:
                shutil.copyfileobj(copy, content, 1 << 20)

    def upload(self, content: BinaryIO, path: str) -> None:
        with _temporary() as local:
            with local.open("wb") as copy:
                content.seek(0)
                shutil.copyfileobj(content, copy, 1 << 20)
            here = self.client.path(f"file:{local}")
            self._call(path, lambda files, at: files.copyFromLocalFile(False, False, here, at))

    def _call(self, path: str, ask: Callable[[Any, Any], Any]) -> Any:
        try:
            return ask(self.client.files, self.client.path(path))
        except Exception as error:
            java = self.client.cause(error)
            if java is None:
                raise
            raise told(*java, path) from None


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    """A name for a file that the JVM of this machine and Python both see."""
    with tempfile.TemporaryDirectory(prefix="connectors-") as folder:
        yield Path(folder) / "content"


def _status(found: Any) -> Status:
    path, is_folder = found.getPath().getName(), bool(found.isDirectory())
    return Status(str(path), is_folder, int(found.getLen()), int(found.getModificationTime()))

"""What is asked of HDFS, what its refusals mean here, and HDFS by Spark's own client."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from ..core.errors import Transient

HDFS: Final = "hdfs://"
_MISSING: Final = ("FileNotFoundException", "NoSuchFileException")
_DENIED: Final = ("AccessControlException", "SecurityException", "AuthenticationException")
_NO_FOLDER: Final = ("ParentNotDirectoryException", "PathIsNotDirectoryException")
_TAKEN: Final = ("FileAlreadyExistsException", "PathExistsException")
_FULL: Final = ("NSQuotaExceededException", "DSQuotaExceededException", "QuotaExceededException")


class Status(NamedTuple):
    """A file or folder: its ``size`` in bytes, and when it was ``changed`` (milliseconds since 1970)."""

    name: str
    is_folder: bool
    size: int
    changed: int


class Client(Protocol):
    """Spark's own client of a Hadoop file system; ``files`` is Java's object."""

    files: Any

    def path(self, path: str) -> Any: ...
    def listed(self, statuses: Any) -> list[str]: ...
    def cause(self, error: Exception) -> tuple[str, str] | None: ...


ClientOf = Callable[[str], "Client | None"]
"""The client for a URL; ``None`` where there is no JVM."""


class Hadoop(Protocol):
    """One HDFS; paths are absolute. Raises ``OSError`` for what is refused, ``Transient`` for an outage."""

    def status(self, path: str) -> Status | None: ...
    def children(self, folder: str) -> Sequence[Status]: ...
    def names(self, folder: str) -> Sequence[str]: ...
    def make_folder(self, path: str) -> None: ...

    def rename(self, path: str, to: str) -> bool:
        """Moves in one step, and never over what is there. Look at the answer: a refusal is false, not an error."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Removes what is there, if it is. Raises ``OSError`` for a folder with something in it, unless ``recursive``."""
        ...

    def download(self, path: str, content: BinaryIO) -> None: ...
    def upload(self, content: BinaryIO, path: str) -> None: ...


def error_of(exception: str, message: str, path: str) -> Exception:
    """The error here for a Java ``exception`` (a class name, with or without its package) about ``path``."""
    kind, text = exception.rpartition(".")[2], message.partition("\n")[0]
    if kind in _MISSING:
        return FileNotFoundError(2, "no such file", path)
    if kind in _DENIED:
        return PermissionError(13, f"permission denied: {text}", path)
    if kind in _NO_FOLDER:
        return NotADirectoryError(20, "not a directory", path)
    if kind in _TAKEN:
        return FileExistsError(17, "there is a file", path)
    if kind == "PathIsNotEmptyDirectoryException":
        return OSError(39, "the folder is not empty", path)
    if kind in _FULL:
        return OSError(122, f"quota exceeded: {text}", path)
    return Transient(f"HDFS answered {kind} for {path}: {text}")


class SparkHadoop:
    """The HDFS of a classic session, on its driver: what the session can reach, with the same user and settings."""

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
            raise error_of(*java, path) from None


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    """A name for a file that the JVM of this machine and Python both see."""
    with tempfile.TemporaryDirectory(prefix="connectors-") as folder:
        yield Path(folder) / "content"


def _status(found: Any) -> Status:
    path, is_folder = found.getPath().getName(), bool(found.isDirectory())
    return Status(str(path), is_folder, int(found.getLen()), int(found.getModificationTime()))

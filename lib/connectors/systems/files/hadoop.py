"""What the sink and the source ask of HDFS, and what its refusals mean here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from ...core import Transient

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


def told(exception: str, message: str, path: str) -> Exception:
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

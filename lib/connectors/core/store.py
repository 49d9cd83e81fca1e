"""A folder with one atomic operation: putting a file that is not there yet. Ledgers, dead letters and logs stand on it."""

from __future__ import annotations

import contextlib
import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path


class Store(ABC):
    """Small files under one folder, named by relative paths with ``/``."""

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Creates the file whole, or leaves the one that is there. True if this call made it; atomic among processes."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The contents. Raises ``FileNotFoundError``."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """The names of the files directly in ``folder``; empty if there is no such folder."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of the folders directly below."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes the file, if it is there, and its folder with the last file."""


class LocalStore(Store):
    """A folder of a local or mounted file system. A temporary file that is complete is linked to its name."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def get(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def names(self, folder: str = "") -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root / folder) as found:
            return [entry.name for entry in found if entry.is_file() and not entry.name.startswith(".")]
        return []

    def folders(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as found:
            return [entry.name for entry in found if entry.is_dir() and not entry.name.startswith(".")]
        return []

    def delete(self, name: str) -> None:
        file = self.root / name
        file.unlink(missing_ok=True)
        if file.parent != self.root:
            with contextlib.suppress(OSError):  # not empty, or gone
                file.parent.rmdir()

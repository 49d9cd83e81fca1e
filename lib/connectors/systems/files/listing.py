"""Which files there are to read: a file, a folder or a glob, without what is hidden, on any file system of Arrow."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ...storage import is_hidden, is_local, local_path, storage_of

_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Found:
    """A file: its ``path`` below the root, its ``size``, and when it was ``changed`` (nanoseconds since 1970)."""

    path: str
    size: int
    changed: int


class Listing:
    """The finished files that a path stands for. ``root`` is its part without magic: what is found lies below it."""

    def __init__(self, path: str, options: Mapping[str, Any], *, recursive: bool) -> None:
        self.path = str(local_path(path)) if is_local(path) else path
        self.recursive = recursive
        folders = self.path.rstrip("/").split("/")
        plain = next((n for n, folder in enumerate(folders) if glob.has_magic(folder)), len(folders))
        self.root = "/".join(folders[:plain]) or "/"
        self._patterns = folders[plain:]
        self.storage = storage_of(self.root, options)

    def __iter__(self) -> Iterator[Found]:
        item = self.storage.item("")
        if item is not None and not item.is_folder and not self._patterns:
            yield Found("", item.size, item.changed)
        elif item is not None and item.is_folder:
            yield from self._below("", self._patterns)

    def full(self, path: str) -> str:
        """The location of a file below the root; the root itself may be the file."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def open(self, path: str) -> pa.NativeFile:
        """The file, open for reading. Raises ``FileNotFoundError``."""
        return self.storage.open(path)

    def _below(self, folder: str, patterns: list[str]) -> Iterator[Found]:
        for item in self.storage.items(folder):
            if is_hidden(item.name) or (patterns and not fnmatchcase(item.name, patterns[0])):
                continue
            path = f"{folder}/{item.name}" if folder else item.name
            if not item.is_folder and len(patterns) <= 1:
                yield Found(path, item.size, item.changed)
            elif item.is_folder and (patterns or self.recursive):
                yield from self._below(path, patterns[1:])


def partition_values(path: str) -> dict[str, str | None]:
    """What the folders of ``path`` say: ``{"year": "2024"}`` of ``year=2024/part-0.parquet``."""
    pairs = (folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == _NULL else unquote(value) for name, value in pairs}

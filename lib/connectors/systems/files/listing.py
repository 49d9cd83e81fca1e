"""Which files there are to read: a file, a folder or a glob, without what is hidden, on any file system of Arrow."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

from ...core.folder import is_hidden
from .storage import file_system

_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Found:
    """A file: its ``path`` below the root, its ``size``, and when it was ``changed`` (nanoseconds since 1970)."""

    path: str
    size: int
    changed: int


class Listing:
    """The finished files that a path stands for. ``root`` is its part without magic: what is found lies below it."""

    def __init__(self, path: str, storage: Mapping[str, Any], *, recursive: bool) -> None:
        self.files, self.path = file_system(path, storage)
        self.recursive = recursive
        folders = self.path.rstrip("/").split("/")
        plain = next((n for n, folder in enumerate(folders) if glob.has_magic(folder)), len(folders))
        self.root = "/".join(folders[:plain]) or "/"
        self._patterns = folders[plain:]

    def __iter__(self) -> Iterator[Found]:
        from pyarrow import fs

        at = self.files.get_file_info(self.root)
        if at.type == fs.FileType.File and not self._patterns:
            yield self._found(at)
        elif at.type == fs.FileType.Directory:
            yield from self._below(self.root, self._patterns)

    def full(self, path: str) -> str:
        """The path in the file system of one below the root; the root itself may be the file."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def _below(self, folder: str, patterns: list[str]) -> Iterator[Found]:
        from pyarrow import fs

        for info in self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            name, is_file = info.base_name, info.type == fs.FileType.File
            if is_hidden(name) or (patterns and not fnmatchcase(name, patterns[0])):
                continue
            if is_file and len(patterns) <= 1:
                yield self._found(info)
            elif not is_file and (patterns or self.recursive):
                yield from self._below(info.path, patterns[1:])

    def _found(self, info: Any) -> Found:
        below = info.path.removeprefix(self.root).lstrip("/")
        return Found(below, info.size, info.mtime_ns or 0)


def partition_values(path: str) -> dict[str, str | None]:
    """What the folders of ``path`` say: ``{"year": "2024"}`` of ``year=2024/part-0.parquet``."""
    pairs = (folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == _NULL else unquote(value) for name, value in pairs}

"""Files in HDFS for the source, which asks them as it asks a file system of Arrow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...core import Transient

if TYPE_CHECKING:
    from .hadoop import Status
    from .webhdfs import WebHdfs

_AHEAD = 4 << 20
"""Bytes of one request, at least."""


@dataclass(frozen=True)
class HdfsFiles:
    """What :class:`~connectors.systems.files.listing.Listing` and the reader ask."""

    hdfs: WebHdfs

    def get_file_info(self, asked: Any) -> Any:
        """What is at a path, or in the folder of a ``FileSelector``."""
        from pyarrow import fs

        if isinstance(asked, fs.FileSelector):
            return [_info(str(PurePosixPath(asked.base_dir, one.name)), one) for one in self.hdfs.children(asked.base_dir)]
        found = self.hdfs.status(asked)
        return _info(asked, found) if found else fs.FileInfo(asked, fs.FileType.NotFound)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """The file at ``path``. Raises ``FileNotFoundError``."""
        found = self.hdfs.status(path)
        if found is None:
            raise FileNotFoundError(2, "no such file", path)
        return pa.PythonFile(io.BufferedReader(_Content(self.hdfs, path, found.size), _AHEAD), mode="r")


def _info(path: str, found: Status) -> Any:
    from pyarrow import fs

    kind = fs.FileType.Directory if found.is_folder else fs.FileType.File
    return fs.FileInfo(path, kind, size=None if found.is_folder else found.size, mtime_ns=found.changed * 1_000_000)


class _Content(io.RawIOBase):
    """A file that is read from any position, as long as it was when it was opened."""

    def __init__(self, hdfs: WebHdfs, path: str, size: int) -> None:
        self._hdfs = hdfs
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        wanted = min(len(into), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._hdfs.read(self._path, self._at, wanted)
        if len(data) != wanted:
            raise Transient(f"{self._path} came incompletely: {len(data)} bytes of {wanted} at {self._at}")
        into[:wanted] = data
        self._at += wanted
        return wanted

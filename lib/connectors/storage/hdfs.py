"""A folder in HDFS: its rename is one step and never overwrites.

A refused rename is told by its answer, not by an error; what is there then says what it means: the staged file is gone
(it was published before), the final name is taken (an error), or its folder is gone (made again).
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import urlparse

import pyarrow as pa

from ..core.errors import Fatal, Misconfigured, Problem, Transient
from .base import Content, Item, Storage, Upload, ranged, spooled
from .hadoop import ClientOf, Hadoop, SparkHadoop, Status
from .webhdfs import WebHdfs

_TRIES = 3
_WEB_PORT = 9870


def hadoop(location: str, options: Mapping[str, Any], client_of: ClientOf | None = None) -> Hadoop:
    """What reaches the HDFS of ``location``: Spark's own client where there is one, else WebHDFS."""
    client = client_of(location) if client_of else None
    return SparkHadoop(client) if client else web_hdfs(location, options)


def web_hdfs(location: str, options: Mapping[str, Any]) -> WebHdfs:
    """WebHDFS for ``location``: at its host and Hadoop's own port, unless ``options`` say otherwise."""
    host = options.get("host") or urlparse(location).hostname
    if not host:
        problem = Problem("storageOptions", "has no host; a process without a JVM needs the NameNode's web address.")
        raise Misconfigured("connectors.storage", [problem])
    scheme = "https" if options.get("use_https") else "http"
    address = f"{scheme}://{host}:{options.get('port', _WEB_PORT)}"
    return WebHdfs(address, options.get("user"), options.get("token"))


class HdfsStorage(Storage):
    """A folder in HDFS. A temporary file that is complete is renamed."""

    def __init__(self, location: str, options: Mapping[str, Any], client_of: ClientOf | None = None) -> None:
        self.root = location.rstrip("/")
        self._folder = urlparse(self.root).path.rstrip("/")
        self.hdfs = hadoop(location, options, client_of)

    def put_if_absent(self, name: str, content: Content) -> bool:
        target = self._path(name)
        for _ in range(_TRIES):
            temporary = self._temporary(target, content)
            if self.hdfs.rename(temporary, target):
                return True
            with contextlib.suppress(FileNotFoundError):
                self.hdfs.delete(temporary)
            if self.hdfs.status(target) is not None:
                return False
        raise Transient(f"HDFS does not rename to {target}")

    def replace(self, name: str, content: Content) -> None:
        """HDFS has no rename over a file by WebHDFS: for a moment there is neither the old file nor the new one."""
        target = self._path(name)
        temporary = self._temporary(target, content)
        self.hdfs.delete(target)
        if not self.hdfs.rename(temporary, target):
            self.hdfs.delete(temporary)
            raise Transient(f"HDFS does not rename to {target}")

    def read(self, name: str) -> bytes:
        content = spooled()
        self.hdfs.download(self._path(name), content)
        content.seek(0)
        return content.read()

    def open(self, name: str) -> pa.NativeFile:
        path = self._path(name)
        status = self.hdfs.status(path)
        if status is None:
            raise FileNotFoundError(2, "no such file", path)
        if isinstance(self.hdfs, WebHdfs):
            client = self.hdfs
            return ranged(path, status.size, lambda offset, length: client.read(path, offset, length))
        content = spooled()
        self.hdfs.download(path, content)
        if content.tell() != status.size:
            raise Transient(f"{name} came incompletely")
        content.seek(0)
        return pa.PythonFile(content, mode="r")

    def create(self, name: str) -> BinaryIO:
        return cast(BinaryIO, Upload(lambda content: self.hdfs.upload(content, self._path(name))))

    def items(self, folder: str = "") -> list[Item]:
        return [_item(status) for status in self.hdfs.children(self._path(folder))]

    def names(self, folder: str = "") -> list[str]:
        """Those of folders too: one call in place of several for each file."""
        return [name for name in self.hdfs.names(self._path(folder)) if not name.startswith(".")]

    def item(self, name: str) -> Item | None:
        status = self.hdfs.status(self._path(name))
        return _item(status) if status else None

    def delete(self, name: str) -> None:
        self.hdfs.delete(self._path(name))

    def delete_folder(self, name: str) -> None:
        self.hdfs.delete(self._path(name), recursive=True)

    def make_folder(self, name: str) -> None:
        self.hdfs.make_folder(self._path(name))

    def publish(self, name: str, final: str, journal: str) -> bool:
        source, target = self._path(name), self._path(final)
        for _ in range(_TRIES):
            if self.hdfs.status(source) is None:
                return False
            if self.hdfs.status(target) is not None:
                if self.hdfs.status(source) is None:  # another process has published it in this very moment
                    return False
                raise Fatal(
                    f"{final} exists in {self.root}, and it is not the file that is to be published",
                    way_out="move that file away; nothing was overwritten, and the next start goes on from here",
                )
            self.hdfs.make_folder(target.rpartition("/")[0])
            if self.hdfs.rename(source, target):
                return True
        raise Transient(f"HDFS does not rename {name} to {final}")

    def prune(self, folder: str, top: str) -> None:
        path, end = PurePosixPath(self._path(folder)), PurePosixPath(self._path(top))
        while end in path.parents:
            try:
                self.hdfs.delete(str(path))
            except OSError:  # something is in it
                return
            path = path.parent

    def spark_url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}".rstrip("/") or "/"

    def _temporary(self, target: str, content: Content) -> str:
        path = f"{target.rpartition('/')[0]}/.{uuid.uuid4().hex}"
        if not isinstance(content, bytes):
            content.seek(0)
        self.hdfs.upload(io.BytesIO(content) if isinstance(content, bytes) else content, path)  # makes the folder
        return path


def _item(status: Status) -> Item:
    return Item(status.name, status.is_folder, status.size, status.changed * 1_000_000)

"""HDFS from a process without a JVM: WebHDFS, the REST interface of its NameNode.

The NameNode answers an upload or a download with the address of a DataNode, where the bytes go directly. Nothing is asked
twice here: an answer that was lost is a :class:`Transient`, and the layers above look before they act again. fsspec has a
client of WebHDFS too, which drops the answer of a rename and uploads block by block.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from ..core.errors import Misconfigured, Problem, Transient
from .hadoop import Status, error_of

_SECONDS = 60.0
_BLOCK = 1 << 20


class WebHdfs:
    """The HDFS whose NameNode serves ``address`` (``http://host:port``), as ``user`` or with a delegation ``token``."""

    def __init__(self, address: str, user: str | None = None, token: str | None = None) -> None:
        self.address = address
        given = {"user.name": user, "delegation": token}
        self._who = {name: value for name, value in given.items() if value}

    def status(self, path: str) -> Status | None:
        try:
            return _status(self._asked("GET", path, "GETFILESTATUS")["FileStatus"])
        except FileNotFoundError:
            return None

    def children(self, folder: str) -> list[Status]:
        try:
            found = self._asked("GET", folder, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            return []
        return [one for one in map(_status, found) if one.name]  # a file is listed as itself, without a name

    def names(self, folder: str) -> list[str]:
        return [one.name for one in self.children(folder)]

    def make_folder(self, path: str) -> None:
        self._asked("PUT", path, "MKDIRS")

    def rename(self, path: str, to: str) -> bool:
        return bool(self._asked("PUT", path, "RENAME", destination=to)["boolean"])

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._asked("DELETE", path, "DELETE", recursive=str(recursive).lower())

    def download(self, path: str, content: BinaryIO) -> None:
        with self._content(path) as answer:
            for block in answer.stream(_BLOCK):
                content.write(block)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Some bytes of a file; fewer than ``length`` only at its end."""
        with self._content(path, offset=offset, length=length) as answer:
            return bytes(answer.read())

    def upload(self, content: BinaryIO, path: str) -> None:
        node = self._node("PUT", path, "CREATE", overwrite="false")
        size = content.seek(0, io.SEEK_END)
        content.seek(0)
        # A DataNode keeps who uploads again by the same connection waiting, for 0.4 s and more.
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream", "Connection": "close"}
        with self._answer("PUT", node, path, body=content, headers=headers) as answer:
            answer.read()

    @contextmanager
    def _content(self, path: str, **arguments: Any) -> Iterator[Any]:
        node = self._node("GET", path, "OPEN", **arguments)
        with self._answer("GET", node, path) as answer:
            yield answer

    def _node(self, method: str, path: str, operation: str, **arguments: Any) -> str:
        return str(self._asked(method, path, operation, noredirect="true", **arguments)["Location"])

    def _asked(self, method: str, path: str, operation: str, **arguments: Any) -> Any:
        query = urlencode({"op": operation, **self._who, **arguments})
        with self._answer(method, f"{self.address}/webhdfs/v1{quote(path)}?{query}", path) as answer:
            content = answer.read()
        return json.loads(content) if content else {}

    @contextmanager
    def _answer(self, method: str, url: str, path: str, **more: Any) -> Iterator[Any]:
        pool, errors = _pool(os.getpid()), import_module("urllib3.exceptions")
        try:
            answer = pool.request(method, url, redirect=False, preload_content=False, **more)
            try:
                if answer.status >= 300:
                    raise _refused(answer, path)
                yield answer
            finally:
                answer.release_conn()
        except errors.HTTPError as error:
            place = url.split("?")[0].split("/webhdfs/")[0]
            way_out = "give host and port of the NameNode's web address in storageOptions, if they are others"
            raise Transient(f"WebHDFS at {place} cannot be reached: {type(error).__name__}", way_out=way_out) from None


@lru_cache(maxsize=2)
def _pool(process: int) -> Any:
    """One pool of connections for each process: they do not survive a fork."""
    try:
        urllib3 = import_module("urllib3")
    except ImportError:
        problem = Problem("path", "hdfs:// needs urllib3 in processes without a JVM; pip install 'urllib3>=2'.")
        raise Misconfigured("connectors.storage", [problem]) from None
    timeout = urllib3.Timeout(connect=10.0, read=_SECONDS)
    return urllib3.PoolManager(maxsize=4, retries=False, timeout=timeout)


def _status(found: Mapping[str, Any]) -> Status:
    return Status(found["pathSuffix"], found["type"] == "DIRECTORY", found["length"], found["modificationTime"])


def _refused(answer: Any, path: str) -> Exception:
    """The error of an answer that is none of success."""
    try:
        error = json.loads(answer.read())["RemoteException"]
        return error_of(str(error["exception"]), str(error["message"]), path)
    except (ValueError, KeyError, TypeError):
        return Transient(f"WebHDFS answered {answer.status} for {path}")

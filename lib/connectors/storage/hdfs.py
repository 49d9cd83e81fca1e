"""HDFS: its rename is one step and never overwrites. Reached by Spark's own client, or by WebHDFS in a process without a JVM.

A refused rename is an answer, not an error. The state of the files then says what the refusal means: the staged file is gone
(it was published before), the final name is taken (an error), or its folder is gone (the next try makes it again).

WebHDFS is the REST interface of the NameNode, which answers an upload or a download with the address of a DataNode. No request
is repeated here: an answer that was lost is a :class:`Transient`, and the layers above look before they act again. fsspec has
a client of WebHDFS too, which drops the answer of a rename and uploads block by block.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, Protocol, cast
from urllib.parse import quote, urlencode, urlparse

import pyarrow as pa

from ..ground import machine
from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem, Transient
from .base import Content, Item, Storage, Upload, ranged, remove_temporaries, spooled, temporary_name

HDFS: Final = "hdfs://"
_MISSING: Final = ("FileNotFoundException", "NoSuchFileException")
_DENIED: Final = ("AccessControlException", "SecurityException", "AuthenticationException")
_NO_FOLDER: Final = ("ParentNotDirectoryException", "PathIsNotDirectoryException")
_TAKEN: Final = ("FileAlreadyExistsException", "PathExistsException")
_FULL: Final = ("NSQuotaExceededException", "DSQuotaExceededException", "QuotaExceededException")


class HdfsClient(Protocol):
    """Spark's own client of a Hadoop file system; ``files`` is Java's object."""

    @property
    def files(self) -> Any: ...
    def exists(self) -> bool: ...
    def path(self, path: str) -> Any: ...
    def listed(self, statuses: Any) -> list[str]: ...
    def cause(self, error: Exception) -> tuple[str, str] | None: ...


ClientOf = Callable[[str], "HdfsClient | None"]
"""The client for a URL; ``None`` where there is no JVM."""


class Hadoop(Protocol):
    """One HDFS; paths are absolute. Raises ``OSError`` for what is refused, ``Transient`` for an outage."""

    def status(self, path: str) -> Item | None: ...
    def children(self, folder: str) -> Sequence[Item]: ...
    def names(self, folder: str) -> Sequence[str]: ...
    def make_folder(self, path: str) -> None: ...

    def rename(self, path: str, to: str) -> bool:
        """Moves in one step, and never over what is there. Look at the answer: a refusal is false, not an error."""
        ...

    def touch(self, path: str) -> None:
        """Says that a file was changed now, by the clock of this machine."""
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

    def __init__(self, client: HdfsClient) -> None:
        self.client = client

    def status(self, path: str) -> Item | None:
        try:
            return _java_status(self._call(path, lambda files, at: files.getFileStatus(at)))
        except FileNotFoundError:
            return None

    def children(self, folder: str) -> list[Item]:
        try:
            return [_java_status(status) for status in self._call(folder, lambda files, at: files.listStatus(at))]
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

    def touch(self, path: str) -> None:
        self._call(path, lambda files, at: files.setTimes(at, int(machine.time() * 1000), -1))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._call(path, lambda files, at: files.delete(at, recursive))

    def download(self, path: str, content: BinaryIO) -> None:
        with _temporary() as local:
            local_copy = self.client.path(f"file:{local}")
            self._call(path, lambda files, at: files.copyToLocalFile(False, at, local_copy, True))
            with local.open("rb") as copy:
                shutil.copyfileobj(copy, content, 1 << 20)

    def upload(self, content: BinaryIO, path: str) -> None:
        with _temporary() as local:
            with local.open("wb") as copy:
                content.seek(0)
                shutil.copyfileobj(content, copy, 1 << 20)
            local_copy = self.client.path(f"file:{local}")
            self._call(path, lambda files, at: files.copyFromLocalFile(False, False, local_copy, at))

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


def _java_status(status: Any) -> Item:
    path, is_folder = status.getPath().getName(), bool(status.isDirectory())
    return Item(str(path), is_folder, int(status.getLen()), int(status.getModificationTime()) * 1_000_000)


_SECONDS = 60.0
_BLOCK = 1 << 20


class WebHdfs:
    """The HDFS whose NameNode serves ``address`` (``http://host:port``), as ``user`` or with a delegation ``token``."""

    def __init__(self, address: str, user: str | None = None, token: str | None = None) -> None:
        self.address = address
        identity = {"user.name": user, "delegation": token}
        self._identity = {name: value for name, value in identity.items() if value}

    def status(self, path: str) -> Item | None:
        try:
            return _web_status(self._request("GET", path, "GETFILESTATUS")["FileStatus"])
        except FileNotFoundError:
            return None

    def children(self, folder: str) -> list[Item]:
        try:
            statuses = self._request("GET", folder, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            return []
        return [status for status in map(_web_status, statuses) if status.name]  # a file is listed as itself, without a name

    def names(self, folder: str) -> list[str]:
        return [status.name for status in self.children(folder)]

    def make_folder(self, path: str) -> None:
        self._request("PUT", path, "MKDIRS")

    def rename(self, path: str, to: str) -> bool:
        return bool(self._request("PUT", path, "RENAME", destination=to)["boolean"])

    def touch(self, path: str) -> None:
        self._request("PUT", path, "SETTIMES", modificationtime=int(machine.time() * 1000), accesstime=-1)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self._request("DELETE", path, "DELETE", recursive=str(recursive).lower())

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
        return str(self._request(method, path, operation, noredirect="true", **arguments)["Location"])

    def _request(self, method: str, path: str, operation: str, **arguments: Any) -> Any:
        query = urlencode({"op": operation, **self._identity, **arguments})
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
            address = url.split("?")[0].split("/webhdfs/")[0]
            way_out = "give host and port of the NameNode's web address in storageOptions, if they are others"
            raise Transient(f"WebHDFS at {address} cannot be reached: {type(error).__name__}", way_out=way_out) from None


@lru_cache(maxsize=2)
def _pool(process: int) -> Any:
    """One pool of connections for each process: they do not survive a fork."""
    urllib3 = client_library("urllib3", "'urllib3>=2.6.3'", connector="connectors.storage", option="path")
    timeout = urllib3.Timeout(connect=10.0, read=_SECONDS)
    return urllib3.PoolManager(maxsize=4, retries=False, timeout=timeout)


def _web_status(status: Mapping[str, Any]) -> Item:
    is_folder = status["type"] == "DIRECTORY"
    return Item(status["pathSuffix"], is_folder, status["length"], status["modificationTime"] * 1_000_000)


def _refused(answer: Any, path: str) -> Exception:
    """The error of an answer that is no success."""
    try:
        error = json.loads(answer.read())["RemoteException"]
        return error_of(str(error["exception"]), str(error["message"]), path)
    except (ValueError, KeyError, TypeError):
        return Transient(f"WebHDFS answered {answer.status} for {path}")


_TRIES = 3
_WEB_PORT = 9870


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
        client = client_of(location) if client_of else None
        self.hdfs: Hadoop = SparkHadoop(client) if client else web_hdfs(location, options)

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

    def replace(self, name: str, content: Content, *, durable: bool = False) -> None:
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
        return list(self.hdfs.children(self._path(folder)))

    def names(self, folder: str = "") -> list[str]:
        """Those of folders too: one call in place of several for each file."""
        return [name for name in self.hdfs.names(self._path(folder)) if not name.startswith(".")]

    def item(self, name: str) -> Item | None:
        return self.hdfs.status(self._path(name))

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
                raise self.name_taken(final)
            self.hdfs.make_folder(target.rpartition("/")[0])
            with contextlib.suppress(FileNotFoundError, PermissionError):  # published by now, or a file of another user
                self.hdfs.touch(source)
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

    def sweep_temporaries(self, under: str, older_than: float) -> None:
        remove_temporaries(self, under, older_than)

    def spark_url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}".rstrip("/") or "/"

    def _temporary(self, target: str, content: Content) -> str:
        path = f"{target.rpartition('/')[0]}/{temporary_name()}"
        self.hdfs.upload(io.BytesIO(content) if isinstance(content, bytes) else content, path)  # makes the folder
        return path

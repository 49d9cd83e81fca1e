"""Object stores and whatever else fsspec knows: everything for the stores with a proven conditional create, else reading.

A publication is a copy that the service makes on its side, in one step, and only where the target does not exist.

The package ``obstore`` (0.12) cannot take the place of fsspec here. A process that is forked after its first use hangs in
each call; a key with an empty part, such as ``a//b``, breaks every listing that meets it; and it takes Azure's answer that
a copy has begun for its end, after which the staged file would be deleted.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa

from ..ground.errors import ConnectorError, Misconfigured
from .base import Content, Item, Storage, Upload
from .service_errors import misconfigured, translated

SYNCHRONOUS: Final = 256 << 20
"""Bytes that Azure copies before it answers: https://learn.microsoft.com/rest/api/storageservices/copy-blob-from-url.

A longer copy goes on after the answer, with an incomplete blob in sight.
"""


def rewrite_on_google(system: Any, source: str, target: str) -> None:
    """Copies an object of ``gcsfs`` on Google's side, of any size."""
    (bucket, key, _), (to_bucket, to_key, _) = system.split_path(source), system.split_path(target)
    path, headers = "b/{}/o/{}/rewriteTo/b/{}/o/{}", {"Content-Type": "application/json"}
    condition = {"ifGenerationMatch": "0"}
    answer: dict[str, Any] = {}
    while not answer.get("done"):  # a large object between storage classes takes several requests
        token = answer.get("rewriteToken")
        arguments = (bucket, key, to_bucket, to_key)
        answer = system.call("POST", path, *arguments, headers=headers, rewriteToken=token, json_out=True, **condition)


def copy_on_azure(system: Any, source: str, target: str) -> bool:
    """Copies a blob in one step. False if the service cannot read the source with what this process may show it."""
    from fsspec.asyn import sync

    try:
        sync(system.loop, _copy_blob, system, source, target)
    except Exception as error:
        if getattr(error, "error_code", None) != "CannotVerifyCopySource":
            raise
        return False
    return True


async def _copy_blob(system: Any, source: str, target: str) -> None:
    (container, blob, _), (to_container, to_blob, _) = system.split_path(source), system.split_path(target)
    missing = import_module("azure.core").MatchConditions.IfMissing
    async with system.service_client.get_blob_client(container, blob) as staged:
        url, proof = await _readable(staged)
    async with system.service_client.get_blob_client(to_container, to_blob) as final:
        await final.start_copy_from_url(url, requires_sync=True, match_condition=missing, **proof)


async def _readable(blob: Any) -> tuple[str, dict[str, str]]:
    """The URL of a blob for the service itself, which reads only what a signature or a token lets it read."""
    credential = blob.credential
    if key := getattr(credential, "account_key", None):
        azure = import_module("azure.storage.blob")
        names = (blob.account_name, blob.container_name, blob.blob_name)
        until = datetime.now(timezone.utc) + timedelta(hours=1)
        signature = azure.generate_blob_sas(*names, account_key=key, permission="r", expiry=until)
        return f"{blob.url}?{signature}", {}
    if hasattr(credential, "get_token"):
        token = await credential.get_token("https://storage.azure.com/.default")
        return blob.url, {"source_authorization": f"Bearer {token.token}"}
    return blob.url, {}  # with the signature in the options, if there is one


PROVEN: Final = {"abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "gs": "gcsfs", "gcs": "gcsfs"}
"""The protocols whose conditional create is proven by a race against a server, and the packages that they need."""
WRITABLE: Final = ", ".join(f"{protocol}://" for protocol in ("s3", "hdfs", *PROVEN))
"""The protocols of storages that can create a file only where there is none, for messages."""
PACKAGES: Final = {"adlfs": "'adlfs>=2026.8' 'azure-storage-blob>=12.31'", "gcsfs": "'gcsfs>=2026.10'"}
"""The packages to install. Old versions of ``azure-storage-blob`` mix the blocks of two writers of one large blob."""
_CHUNK: Final = 4 << 20
_DELETIONS: Final = 16


class ObjectStore(Storage):
    """A folder by fsspec: ``abfss://container@account.dfs.core.windows.net/folder``, ``gs://bucket/folder``, …

    ``options`` are the ``storageOptions`` of fsspec's file system. Nothing is connected before the first call, and each
    process connects anew: a file system's thread and connections do not survive a fork. Listings are never cached.

    A protocol that is not :data:`PROVEN` reads, and refuses :meth:`put_if_absent` and :meth:`publish` by
    :class:`~connectors.ground.errors.Misconfigured`; so do wrong credentials, a bucket that does not exist, and a package
    that is missing. Google's zonal buckets do not answer: they speak gRPC only.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options or {})
        self.protocol = url.partition("://")[0]
        self.root = re.sub(r"(?<=//)([^/@:]*):[^/@]*@", r"\1:***@", self.url)
        self._connections: dict[int, tuple[Any, str]] = {}
        self._bucket_exists = False

    def put_if_absent(self, name: str, content: Content) -> bool:
        """See :meth:`Storage.put_if_absent`. Azure: ``If-None-Match: *``; Google: ``ifGenerationMatch=0``.

        True also if the file has exactly this content: an answer that was lost was asked for again, and the file is
        this call's own. So contents must differ by writer where it matters who won.
        """
        self._require_proven("put_if_absent")
        try:
            self._put(name, content, mode="create")
        except FileExistsError:
            return self._has(name, content)
        return True

    def replace(self, name: str, content: Content, *, durable: bool = False) -> None:
        self._put(name, content)

    def read(self, name: str) -> bytes:
        with self._errors():
            system, path = self._locate(name)
            return bytes(system.cat_file(path))

    def open(self, name: str) -> pa.NativeFile:
        with self._errors():
            system, path = self._locate(name)
            file = system.open(path, "rb")
            if (getattr(file, "details", None) or {}).get("type") == "directory":
                raise FileNotFoundError(f"{path} is a folder")
            return pa.PythonFile(io.BufferedReader(_ObjectReader(self._errors, file)), mode="r")

    def create(self, name: str) -> BinaryIO:
        return cast(BinaryIO, Upload(lambda content: self._put(name, content)))

    def items(self, folder: str = "") -> list[Item]:
        try:
            with self._errors():
                system, path = self._locate(folder)
                entries = system.ls(path, detail=True)
        except FileNotFoundError:
            return []
        inside = {_inside(path, entry["name"]): entry for entry in entries}
        return [_item(name, entry) for name, entry in inside.items() if name and "/" not in name]

    def item(self, name: str) -> Item | None:
        try:
            with self._errors():
                system, path = self._locate(name)
                entry = system.info(path)
        except FileNotFoundError:
            return None
        item = _item(name, entry)
        unknown = not item.is_folder and entry["size"] is None
        return item._replace(size=len(self.read(name))) if unknown else item

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors():
            system, path = self._locate(name)
            system.rm_file(path)

    def delete_folder(self, name: str) -> None:
        with self._errors():
            system, path = self._locate(name)
            names = list(_below(system, path))
        with ThreadPoolExecutor(_DELETIONS) as pool:
            for _ in pool.map(lambda file: self.delete(f"{name}/{file}" if name else file), names):
                pass

    def make_folder(self, name: str) -> None:
        """Does nothing: a folder exists as soon as a file is in it."""

    def touched(self, folder: str) -> dict[str, float]:
        with self._errors():
            system, path = self._locate(folder)
            entries = _below(system, path)
        newest: dict[str, float] = {}
        for file, entry in entries.items():
            name = file.split("/")[0]
            newest[name] = max(newest.get(name, 0.0), _changed(entry) / 1e9)
        return newest

    def publish(self, name: str, final: str, journal: str) -> bool:
        """See :meth:`Storage.publish`. Two steps, because there is no atomic rename: a conditional copy, and a deletion.

        The final file appears whole and at once. After a crash between the steps both files exist, with the same content;
        the next call finds that and deletes the staged one. If somebody has moved the final file away in the meantime,
        the next call cannot know it and publishes the content **once more**. Readers that take files away must therefore
        wait until the writer's next start, or remember the names that they have taken: a second copy has the same name.

        Google copies on its side, and so does Azure up to 256 MiB; a larger file passes through this process.
        """
        self._require_proven("publish")
        try:
            try:
                self._copy(name, final)
            except FileExistsError:
                with self.open(name) as staged:
                    same = self._has(final, cast(BinaryIO, staged))
                if not same and self.size(name) is not None:
                    raise self.name_taken(final) from None
        except FileNotFoundError:
            return False
        self.delete(name)
        return True

    def _copy(self, name: str, final: str) -> None:
        """Creates ``final`` with the content of ``name``, conditionally. Raises ``FileExistsError``, ``FileNotFoundError``."""
        if (size := self.size(name)) is None:
            raise FileNotFoundError(f"{self.root}/{name}")
        with self._errors():
            (system, source), (_, target) = self._locate(name), self._locate(final)
            if PROVEN[self.protocol] == "gcsfs":
                rewrite_on_google(system, source, target)
                return
            if size <= SYNCHRONOUS and copy_on_azure(system, source, target):
                return
        if self.size(final) is not None:  # spares a large upload that would be refused
            raise FileExistsError(f"{self.root}/{final} exists")
        with self.open(name) as staged:
            self._put(final, cast(BinaryIO, staged), mode="create")

    def _put(self, name: str, content: Content, **mode: str) -> None:
        """Uploads the content; with ``mode="create"`` conditionally. A large one goes by blocks, and is committed at once."""
        try:
            with self._errors(writes=True):
                system, path = self._locate(name)
                if isinstance(content, bytes):
                    system.pipe_file(path, content, **mode)
                else:
                    with tempfile.NamedTemporaryFile() as file:
                        shutil.copyfileobj(content, file)
                        file.flush()
                        system.put_file(file.name, path, **mode)
        except FileNotFoundError:  # what else can be missing where a file is to be
            raise self._no_bucket() from None

    def _has(self, name: str, content: Content) -> bool:
        """True if the file has this content. A file that is gone had another."""
        expected = io.BytesIO(content) if isinstance(content, bytes) else content
        expected.seek(0)
        try:
            with self.open(name) as file:
                while (chunk := file.read(_CHUNK)) == expected.read(_CHUNK):
                    if not chunk:
                        return True
        except FileNotFoundError:
            return False
        return False

    def _require_proven(self, operation: str) -> None:
        if self.protocol not in PROVEN:
            text = f"{operation} is not proven for {self.protocol}://: it can only be read. Use a folder, or {WRITABLE}."
            raise misconfigured("path", text)

    def _locate(self, name: str) -> tuple[Any, str]:
        """The file system of this process, and the path of ``name`` in it."""
        if os.getpid() not in self._connections:
            self._connections.setdefault(os.getpid(), self._connect())
        system, root = self._connections[os.getpid()]
        return system, f"{root}/{name}" if name else root

    def _connect(self) -> tuple[Any, str]:
        try:
            kind = _kind(self.protocol)
            options = {**kind._get_kwargs_from_urls(self.url), **self.options}
            system = kind(**options, use_listings_cache=False)  # fsspec shares it among equal options of a process
            _systems.add(system)
            return system, str(kind._strip_protocol(self.url)).rstrip("/")
        except ImportError as missing:
            package = PACKAGES.get(PROVEN.get(self.protocol, ""))
            text = f"`pip install {package}`" if package else str(missing)
            raise misconfigured("path", f"{self.protocol}:// needs a package: {text}") from None
        except (TypeError, ValueError) as refused:
            reason = translated(refused, self.root, self.options)
            raise misconfigured("storageOptions", f"they do not fit: {reason}") from None

    @contextlib.contextmanager
    def _errors(self, writes: bool = False) -> Iterator[None]:
        """Raises what the contract of a storage names, whatever fsspec and its clients raise."""
        try:
            yield
        except ConnectorError:
            raise
        except Exception as error:
            failure = translated(error, self.root, self.options)
            if isinstance(failure, FileNotFoundError) and not writes:
                self._require_bucket()
            raise failure from None
        self._bucket_exists = True

    def _require_bucket(self) -> None:
        """Asks once whether it is the bucket that is missing, so that a listing of a wrong name is not merely empty."""
        if self._bucket_exists or self.protocol not in PROVEN:
            return
        system, root = self._locate("")
        bucket = root.split("/")[0]
        try:
            if PROVEN[self.protocol] == "gcsfs":
                system.call("GET", "b/{}/o", bucket, maxResults=1)  # needs no right beyond those to objects
            else:
                system.info(bucket)
        except Exception as error:
            failure = translated(error, self.root, self.options)
            if isinstance(failure, FileNotFoundError):
                raise self._no_bucket() from None
            if not isinstance(failure, PermissionError):  # not asked by who may use its objects only
                raise failure from None
        self._bucket_exists = True

    def _no_bucket(self) -> Misconfigured:
        text = f"the bucket or container of {self.root} does not exist. Make it, or correct the name."
        return misconfigured("path", text)


class _ObjectReader(io.RawIOBase):
    """A file of fsspec whose errors are those of a storage."""

    def __init__(self, errors: Callable[[], AbstractContextManager[None]], file: Any) -> None:
        self._errors = errors
        self._file = file

    def readinto(self, buffer: Any) -> int:
        with self._errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


def _kind(protocol: str) -> Any:
    """The class of a file system. Google's is the one that speaks HTTP: the other asks by gRPC what a bucket is."""
    if PROVEN.get(protocol) == "gcsfs":
        return import_module("gcsfs.core").GCSFileSystem
    if PROVEN.get(protocol) == "adlfs":
        protocol = "abfs"  # without the package fsspec does not know abfss://, and could not name the package
    return import_module("fsspec").get_filesystem_class(protocol)


def _below(system: Any, path: str) -> dict[str, Any]:
    """The files anywhere in a folder, by their paths in it, and what the service says of each."""
    try:
        files = system.find(path, detail=True)
    except FileNotFoundError:
        return {}
    return {name: entry for file, entry in files.items() if (name := _inside(path, file))}


def _inside(folder: str, path: str) -> str:
    """The name of ``path`` in ``folder``; empty if it is not in it."""
    top = f"{folder.strip('/')}/".lstrip("/")
    return path.strip("/").removeprefix(top) if path.strip("/").startswith(top) else ""


def _item(name: str, entry: Mapping[str, Any]) -> Item:
    return Item(name, entry["type"] == "directory", int(entry.get("size") or 0), _changed(entry))


def _changed(entry: Mapping[str, Any]) -> int:
    """The time when a file was changed, in nanoseconds since 1970; each file system has a key and a type of its own for it."""
    values = (entry.get(key) for key in ("last_modified", "mtime", "updated", "LastModified", "created"))
    value = next((value for value in values if value), 0.0)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    return int(value * 1_000_000) * 1000 if isinstance(value, (int, float)) else 0


_systems: weakref.WeakSet[Any] = weakref.WeakSet()
"""The file systems of this process and, after a fork, of its parent."""


def _disarm() -> None:
    """Forgets, in a forked child, how its parent's file systems end: at the exit they would wait for a thread it lacks."""
    for system in list(_systems):
        for reference in weakref.getweakrefs(system):
            if isinstance(end := reference.__callback__, weakref.finalize):
                end.atexit = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disarm)

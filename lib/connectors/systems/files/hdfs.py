"""A target folder in HDFS: staging, ledger and publication by its rename, which is one step and never overwrites.

A refused rename is told by its answer, not by an error; what is there then says what it means: the staged file is gone
(it was published before), the final name is taken (an error), or its folder is gone (made again).
"""

from __future__ import annotations

import contextlib
import io
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urlparse

from ...core import Fatal, Transient
from ...core.folder import is_hidden
from ...core.ledger import FileLedger
from ...core.store import Store
from .hadoop import ClientOf, Hadoop
from .spark_hadoop import SparkHadoop
from .storage import web_hdfs
from .uploaded import Uploaded, spooled

_TRIES = 3


def hadoop(path: str, storage: Mapping[str, Any], client_of: ClientOf | None = None) -> Hadoop:
    """What reaches the HDFS of ``path``: Spark's client where there is one, else WebHDFS."""
    client = client_of(path) if client_of else None
    return SparkHadoop(client) if client else web_hdfs(path, storage)


class HdfsStore(Store):
    """Small files under one folder. A temporary file that is complete is renamed."""

    def __init__(self, files: Hadoop, root: str) -> None:
        self.files = files
        self.root = root

    def put_if_absent(self, name: str, content: bytes) -> bool:
        target = f"{self.root}/{name}"
        temporary = f"{target.rpartition('/')[0]}/.{uuid.uuid4().hex}"
        for _ in range(_TRIES):
            self.files.upload(io.BytesIO(content), temporary)  # makes the folder
            if self.files.rename(temporary, target):
                return True
            with contextlib.suppress(FileNotFoundError):
                self.files.delete(temporary)
            if self.files.status(target) is not None:
                return False
        raise Transient(f"HDFS does not rename to {target}")

    def get(self, name: str) -> bytes:
        content = io.BytesIO()
        self.files.download(f"{self.root}/{name}", content)
        return content.getvalue()

    def names(self, folder: str = "") -> list[str]:
        return [name for name in self.files.names(f"{self.root}/{folder}".rstrip("/")) if not name.startswith(".")]

    def folders(self) -> list[str]:
        return [one.name for one in self.files.children(self.root) if one.is_folder and not one.name.startswith(".")]

    def delete(self, name: str) -> None:
        file = PurePosixPath(self.root, name)
        self.files.delete(str(file))
        if str(file.parent) != self.root:
            with contextlib.suppress(OSError):  # not empty, or gone
                self.files.delete(str(file.parent))


class HdfsFolder:
    """One sink's view of its target in HDFS; see :class:`~connectors.core.folder.TargetFolder` for what each method does."""

    def __init__(self, path: str, sink_id: str, storage: Mapping[str, Any], client_of: ClientOf | None = None) -> None:
        self.root = path.rstrip("/")
        self._at = urlparse(self.root).path or "/"
        self._own = f".connectors/{quote(sink_id, safe='').replace('.', '%2E')}"
        self.hdfs = hadoop(path, storage, client_of)

    @classmethod
    def sink_ids(cls, path: str, storage: Mapping[str, Any]) -> list[str]:
        folder = cls(path, "", storage)
        return sorted(unquote(name) for name in folder.hdfs.names(folder._path(".connectors")))

    def ledger(self, name: str = "ledger") -> FileLedger:
        return FileLedger(HdfsStore(self.hdfs, self._path(self.hidden(name))))

    def begin(self, attempt: str) -> str:
        stage = self.hidden("stage", attempt)
        self.hdfs.make_folder(self._path(stage))
        return stage

    def hidden(self, *names: str) -> str:
        return "/".join((self._own, *names))

    def spark_url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def spark_options(self) -> dict[str, str]:
        return {}

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        for one in self.hdfs.children(self._path(under)):
            if is_hidden(one.name):
                continue
            if one.is_folder:
                yield from self.files(f"{under}/{one.name}")
            else:
                yield f"{under}/{one.name}", one.size

    def listed(self, under: str) -> Iterator[str]:
        return (name for name, _ in self.files(under))

    def size(self, name: str) -> int | None:
        found = self.hdfs.status(self._path(name))
        return found.size if found else None

    def reading(self, name: str) -> BinaryIO:
        content = spooled()
        self.hdfs.download(self._path(name), content)
        if content.tell() != self.size(name):
            raise Transient(f"{name} came incompletely")
        content.seek(0)
        return content

    def writing(self, name: str) -> BinaryIO:
        return cast(BinaryIO, Uploaded(lambda content: self.hdfs.upload(content, self._path(name))))

    def publish(self, staged: str, final: str) -> None:
        source, target = self._path(staged), self._path(final)
        for _ in range(_TRIES):
            if self.hdfs.status(source) is None:
                return
            if self.hdfs.status(target) is not None:
                if self.hdfs.status(source) is None:  # somebody else has published it in this very moment
                    return
                raise self._exists(final)
            self.hdfs.make_folder(target.rpartition("/")[0])
            if self.hdfs.rename(source, target):
                self._prune(PurePosixPath(source).parent)
                return
        raise Transient(f"HDFS does not rename {staged} to {final}")

    def delete(self, name: str) -> None:
        self.hdfs.delete(self._path(name))
        self._prune(PurePosixPath(self._path(name)).parent)

    def remove(self, attempt: str) -> None:
        self.hdfs.delete(self._path(self.hidden("stage", attempt)), recursive=True)

    def sweep(self, older_than: float, live: frozenset[str]) -> None:
        for one in self.hdfs.children(self._path(self.hidden("stage"))):
            old = time.time() - one.changed / 1000 > older_than
            if old and one.name.split("-")[0] not in live:
                self.remove(one.name)

    def _path(self, name: str) -> str:
        return f"{self._at.rstrip('/')}/{name}"

    def _prune(self, folder: PurePosixPath) -> None:
        """Removes empty folders of hidden parts, upwards."""
        parts = PurePosixPath(self._path(self.hidden("parts")))
        while parts in folder.parents:
            try:
                self.hdfs.delete(str(folder))
            except OSError:
                return
            folder = folder.parent

    def _exists(self, final: str) -> Fatal:
        return Fatal(
            f"{final} exists in {self.root}, and it is not the file that is to be published",
            way_out="move that file away; nothing was overwritten, and the next start goes on from here",
        )

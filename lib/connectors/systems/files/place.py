"""The folders that files are written to: a local one, or one in S3 or HDFS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol

from ...core.folder import TargetFolder
from ...core.ledger import FileLedger
from .hadoop import HDFS, ClientOf
from .hdfs import HdfsFolder
from .s3 import S3Folder
from .storage import S3


class Folder(Protocol):
    """What the sink asks of a target folder; :class:`~connectors.core.folder.TargetFolder` tells what each method does."""

    @property
    def root(self) -> object:
        """The target, as a message names it."""

    def begin(self, attempt: str) -> str: ...
    def ledger(self, name: str = ...) -> FileLedger: ...
    def hidden(self, *names: str) -> str: ...
    def spark_url(self, name: str) -> str: ...
    def spark_options(self) -> dict[str, str]: ...
    def files(self, under: str) -> Iterator[tuple[str, int]]: ...
    def listed(self, under: str) -> Iterator[str]: ...
    def size(self, name: str) -> int | None: ...
    def reading(self, name: str) -> BinaryIO: ...
    def writing(self, name: str) -> BinaryIO: ...
    def publish(self, staged: str, final: str) -> None: ...
    def delete(self, name: str) -> None: ...
    def remove(self, attempt: str) -> None: ...
    def sweep(self, older_than: float, live: frozenset[str]) -> None: ...


def place(path: str, sink_id: str, storage: Mapping[str, Any], client_of: ClientOf | None = None) -> Folder:
    """The folder at ``path``, as the sink ``sink_id`` sees it; ``client_of`` gives Spark's own client for ``hdfs://``."""
    if path.startswith(HDFS):
        return HdfsFolder(path, sink_id, storage, client_of)
    return S3Folder(path, sink_id, storage) if path.startswith(S3) else TargetFolder(path, sink_id)


def sink_ids(path: str, storage: Mapping[str, Any]) -> list[str]:
    """The sinks that have written to the folder at ``path``."""
    if path.startswith(HDFS):
        return HdfsFolder.sink_ids(path, storage)
    return S3Folder.sink_ids(path, storage) if path.startswith(S3) else TargetFolder.sink_ids(path)

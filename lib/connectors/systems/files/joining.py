"""Several files of one format as one: lines one after the other, Parquet by row groups, Avro by blocks. Nothing is decoded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from .avro_join import Header, join_avro
from .parquet_join import Footer, join_parquet

if TYPE_CHECKING:
    from ...core.folder import SinkFolder
    from .rolling import Part

JOINED = ("parquet", "json", "csv", "text", "avro")
"""The file formats that can be joined without being decoded."""


def joinable(folder: SinkFolder, parts: Sequence[Part]) -> Iterator[list[Part]]:
    """``parts`` in runs that can be one file each: a change of columns begins a new one."""
    if not _has_schema(parts[0].path):
        yield list(parts)
        return
    run: list[Part] = []
    first: Footer | Header | None = None
    for part in parts:
        with folder.open(part.path) as file:
            here = _schema(part.path, file)
        if run and (here is None or first is None or not here.like(first)):  # type: ignore[arg-type]
            yield run
            run = []
        first = here if not run else first
        run.append(part)
    yield run


def join(folder: SinkFolder, paths: Sequence[str], ready: str) -> None:
    """Writes the files at ``paths``, in their order, as one file ``ready``; see :func:`joinable`."""
    with folder.create(ready) as out:
        if not _has_schema(ready):
            for file in _opened(folder, paths):  # compressed ones too: gzip and bzip2 files may have several members
                shutil.copyfileobj(file, out, 1 << 20)
        elif ready.endswith(".parquet"):
            join_parquet(_opened(folder, paths), out)
        else:
            join_avro(_opened(folder, paths), out)


def _opened(folder: SinkFolder, paths: Sequence[str]) -> Iterator[BinaryIO]:
    """One after the other: there may be more of them than a process may have open."""
    for path in paths:
        with folder.open(path) as file:
            yield file


def _has_schema(path: str) -> bool:
    return path.endswith((".parquet", ".avro"))


def _schema(path: str, file: BinaryIO) -> Footer | Header | None:
    return Footer.of(file) if path.endswith(".parquet") else Header.of(file)

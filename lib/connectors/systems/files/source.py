"""The source of ``connectors.files``: finished files, each once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...core import (
    REQUIRED,
    Choice,
    DataLoss,
    Duration,
    Flag,
    Json,
    Misconfigured,
    Options,
    PartitionProgress,
    Position,
    Problem,
    ReadLimit,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    Text,
    Transient,
)
from ...core.options import Values
from ...core.state import digest
from ...storage import check_location
from .listing import Found, Listing, partition_values
from .reading import conformed, read_file, schema_of, sql_columns

FORMATS = ("parquet", "json", "csv", "text", "avro", "orc")
MOST_FILES = 1000
"""How many files a batch of a stream has at most: their names are in its offset."""
_WAY_OUT = "bring the file back, or set failOnDataLoss=false to go on without it"


@dataclass(frozen=True)
class WholeFile(Split):
    """A file, below the source's root, as it was when it was listed."""

    path: str
    size: int
    changed: int


class FilesSource(Source):
    """The rows of finished files, each file once.

    Options: ``path`` (required; a file, a folder or a glob; ``s3://``, and by WebHDFS ``hdfs://``, too), ``fileFormat``
    parquet|json|csv|text|avro|orc (parquet), ``recursiveFileLookup`` (false), ``maxFilesPerTrigger`` (1000 in a stream),
    ``maxBytesPerTrigger``, ``maxFileAge`` (1 hour), ``failOnDataLoss`` (true), ``storageOptions`` (fsspec's keys).

    Names that begin with ``.`` or ``_`` are passed over; ``.gz``, ``.bz2``, ``.zst`` and ``.lz4`` are unpacked. Columns are
    those of ``.schema(…)``, else of the newest file; json and csv need ``.schema(…)``. Columns that a file lacks are told
    by its folders (``year=2024``), or null. Lines of csv have no header.

    Files are read in the order of their times. What is remembered of them does not grow for ever: a file that appears
    more than ``maxFileAge`` after its own last change, seen from the newest file read, is taken for one that was read.
    Files must appear complete, by a rename or an upload, and not change after that.
    """

    name = "files"
    limits = ("files", "bytes")
    options = Options(
        path=Text(REQUIRED),
        fileFormat=Choice("parquet", among=FORMATS),
        recursiveFileLookup=Flag(False),
        maxFileAge=Duration(3600.0),
        failOnDataLoss=Flag(True),
        storageOptions=Json({}, kind=dict),
    )
    conditions = "files appear complete, do not change, and appear within maxFileAge (1 hour) of their last change"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_location("path", values["path"], values["storageOptions"], write=False, sole=True)

    @property
    def schema(self) -> str:  # type: ignore[override]
        listing = self.listing()
        newest = max(listing, key=lambda file: (file.changed, file.path), default=None)
        if newest is None:
            problem = Problem("schema", f'missing, and "{self.values["path"]}" has no file yet; give .schema(…).')
            raise Misconfigured("connectors.files", [problem])
        with listing.open(newest.path) as file:
            columns = schema_of(file, newest.path, self.values["fileFormat"])
        told = [(name, pa.string()) for name in partition_values(newest.path) if name not in columns.names]
        return sql_columns(pa.schema([*columns, *(pa.field(*one) for one in told)]))

    def listing(self) -> Listing:
        recursive = self.values["recursiveFileLookup"]
        return Listing(self.values["path"], self.values["storageOptions"], recursive=recursive)

    def enumerator(self) -> FilesEnumerator:
        return FilesEnumerator(self.listing(), self.values["maxFileAge"], MOST_FILES if self.streaming else None)

    def reader(self, schema: pa.Schema) -> FilesReader:
        return FilesReader(self.listing(), self.values["fileFormat"], schema, self.values["failOnDataLoss"])


@dataclass(frozen=True)
class Head:
    """The files that are there, and the time of the listing."""

    files: Sequence[Found]
    now: int


class FilesEnumerator(SplitEnumerator[WholeFile]):
    """Tells new files by their times and names.

    A position has the ``files`` of its batch, the time ``at`` up to which files were read, and in ``seen`` the time and a
    digest of the name of each file that was read in earlier batches and is not older than ``max_age`` before ``at``.
    """

    def __init__(self, listing: Listing, max_age: float, most: int | None) -> None:
        self.listing = listing
        self.max_age = round(max_age * 1e9)
        self.most = most

    def start(self) -> Position:
        return {}

    def head(self) -> Head:
        try:
            return Head(sorted(self.listing, key=_order), time.time_ns())
        except OSError as error:
            raise Transient(f"{self.listing.path} cannot be listed: {error}") from None

    def advance(self, at: Position, head: Head, limit: ReadLimit) -> Position:
        taken = list(_limited(self._new(at, head), limit, self.most))
        if not taken:
            return at
        newest = max(at.get("at", 0), min(taken[-1].changed, head.now))  # a file from the future is not believed
        read = [*at.get("seen", []), *([file[2], _mark(file[0])] for file in at.get("files", []))]
        return {
            "at": newest,
            "files": [[file.path, file.size, file.changed] for file in taken],
            "seen": sorted(one for one in read if one[0] > newest - self.max_age),
        }

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[WholeFile]:
        return (WholeFile(*file) for file in end["files"])

    def progress(self, at: Position, head: Head) -> Sequence[PartitionProgress]:
        waiting = list(self._new(at, head))
        since = (head.now - waiting[0].changed) / 1e9 if waiting else 0.0
        return [PartitionProgress(self.listing.path, lag_records=None, lag_seconds=max(0.0, since))]

    def _new(self, at: Position, head: Head) -> Iterator[Found]:
        seen = {mark for _, mark in at.get("seen", [])} | {_mark(file[0]) for file in at.get("files", [])}
        oldest = at["at"] - self.max_age if "at" in at else -1
        return (file for file in head.files if file.changed > oldest and _mark(file.path) not in seen)


def _limited(files: Iterator[Found], limit: ReadLimit, most: int | None) -> Iterator[Found]:
    count = min(one for one in (limit.files, most, 1 << 62) if one is not None)
    size = 0
    for number, file in enumerate(files):
        size += file.size
        if number >= count or (number and limit.bytes is not None and size > limit.bytes):
            return
        yield file


def _order(file: Found) -> tuple[int, str]:
    return file.changed, file.path


def _mark(path: str) -> str:
    return digest(path)


class FilesReader(SplitReader[WholeFile]):
    """Reads a file from its begin to its end."""

    def __init__(self, listing: Listing, kind: str, schema: pa.Schema, fail: bool) -> None:
        super().__init__()
        self.listing = listing
        self.kind = kind
        self.schema = schema
        self.fail = fail

    def read(self, split: WholeFile) -> Iterator[pa.RecordBatch]:
        told: dict[str, str | None] = partition_values(split.path)
        wanted = pa.schema([field for field in self.schema if field.name not in told])
        try:
            with self.listing.open(split.path) as file:
                if file.size() != split.size:
                    raise DataLoss(f"{split.path} had {split.size} bytes when it was listed and has {file.size()} now")
                path = self.listing.full(split.path)
                for rows in read_file(file, path, self.kind, wanted):
                    yield conformed(rows, self.schema, path, told)
        except FileNotFoundError:
            self._lost(DataLoss(f"{split.path} was deleted or moved before it was read", way_out=_WAY_OUT))
        except DataLoss as lost:
            lost.way_out = lost.way_out or _WAY_OUT
            self._lost(lost)
        except OSError as error:
            raise Transient(f"{split.path} cannot be read: {error}") from None

    def _lost(self, error: DataLoss) -> None:
        if self.fail:
            raise error from None
        import logging

        logging.getLogger("connectors.files").warning("%s", error.message)



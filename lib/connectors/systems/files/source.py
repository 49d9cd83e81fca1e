"""The source of ``connectors.files``: reads each finished file once, from the listing of a file, a folder or a glob."""

from __future__ import annotations

import datetime
import glob
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ...core import (
    REQUIRED,
    Choice,
    DataLoss,
    Duration,
    Fatal,
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
    Transient,
)
from ...core.datasets import Dataset, of_location
from ...ground.state import digest
from ...storage import is_hidden, is_local, local_path, storage_of
from ...storage.location import Location, alternatives, without_user
from .file_columns import conformed, name_in
from .folders import FORMATS, NULL
from .reader import read_file, schema_of, sql_columns


@dataclass(frozen=True)
class ListedFile:
    """A file: its ``path`` below the root, its ``size``, and when it was ``changed`` (nanoseconds since 1970)."""

    path: str
    size: int
    changed: int

    @property
    def place(self) -> Place:
        """The place of the file in the reading order."""
        return self.changed, self.path


Place = tuple[int, str]


class Listing:
    """The finished files that a path matches. ``root`` is its part without wildcards; all files are below it."""

    def __init__(self, path: str, options: Mapping[str, Any], *, recursive: bool) -> None:
        self.path = str(local_path(path)) if is_local(path) else path
        self.name = without_user(self.path)
        """The path, without secrets, for messages."""
        self.recursive = recursive
        folders = self.path.rstrip("/").split("/")
        plain = next((n for n, folder in enumerate(folders) if glob.has_magic(folder) or "{" in folder), len(folders))
        self.root = "/".join(folders[:plain]) or ("/" if plain else ".")
        self._patterns = [alternatives(folder) for folder in folders[plain:]]
        self.storage = storage_of(self.root, options)

    def __iter__(self) -> Iterator[ListedFile]:
        item = self.storage.item("")
        if item is not None and not item.is_folder and not self._patterns:
            yield ListedFile("", item.size, item.changed)
        elif item is not None and item.is_folder:
            yield from self._below("", self._patterns)

    def exists(self) -> bool:
        """True if the path exists; a glob exists if it matches a file."""
        return any(True for _ in self) if self._patterns else self.storage.item("") is not None

    def not_found(self) -> Problem:
        """The problem of a path that does not exist."""
        what = "matches no file" if self._patterns else "does not exist"
        text = f'"{self.name}" {what}. Correct it; or read a stream with .schema(…), which waits for the first file.'
        return Problem("path", text)

    def full(self, path: str) -> str:
        """The location of a file below the root; the root itself may be the file."""
        return f"{self.storage.root.rstrip('/')}/{path}" if path else self.storage.root

    def open(self, path: str) -> pa.NativeFile:
        """The file, open for reading. Raises ``FileNotFoundError``."""
        return self.storage.open(path)

    def _below(self, folder: str, patterns: list[list[str]]) -> Iterator[ListedFile]:
        for item in self.storage.items(folder):
            if is_hidden(item.name) or (patterns and not any(fnmatchcase(item.name, glob) for glob in patterns[0])):
                continue
            path = f"{folder}/{item.name}" if folder else item.name
            if not path:  # a key of S3 with "//" after the root: its folder has no name, and would be the root again
                continue
            if not item.is_folder and len(patterns) <= 1:
                yield ListedFile(path, item.size, item.changed)
            elif item.is_folder and (patterns or self.recursive or "=" in item.name):
                yield from self._below(path, patterns[1:])


def partition_values(path: str) -> dict[str, str | None]:
    """The values in the folders of ``path``: ``{"year": "2024"}`` for ``year=2024/part-0.parquet``."""
    pairs = (folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == NULL else unquote(value) for name, value in pairs}


MOST_FILES = 1000
"""The most files in a batch of a stream, since their names are in its offset."""
MOST_NAMES = 10_000
"""The most names of earlier batches' files in an offset (370 kB); if files come faster, it forgets names earlier."""
_log = logging.getLogger("connectors.files")
_SPARE_NAMES = 100_000
"""A run remembers the names of as many deleted files as there are files, and of so many more."""
_TOUCH = "to have such a file read, give it a new modification time (touch; in an object store copy it onto itself)"
_WAY_OUT = "bring the file back, or set failOnDataLoss=false to go on without it"


@dataclass(frozen=True)
class WholeFile(Split):
    """A file below the source's root, as it was in the listing."""

    path: str
    size: int
    changed: int


class FilesSource(Source):
    """The rows of finished files, each file once.

    The source skips names that begin with ``.`` or ``_``, and unpacks ``.gz``, ``.bz2``, ``.zst`` and ``.lz4``. Columns are
    those of ``.schema(…)``, else of the newest file; json and csv need ``.schema(…)``. Columns that a file lacks come from
    its folders (``year=2024``), or are null. In parquet, orc and avro a name may have another case, and a column another
    type; a value that would change in the type of the query is an error. Lines of csv have no header, and quotes in a text
    in quotes are doubled.

    The source reads files in the order of their times, and does not remember them for ever. A file may appear more than
    ``maxFileAge`` after its own last change, measured from the newest file read, or behind 10,000 newer files that were read.
    The source takes such a file for one that it has read.
    Such files, moved in with an old modification time, are an error. With ``failOnDataLoss=false`` they count as
    ``skipped`` in the query's table, from its next batch on, and a warning names the first one. For files that came while
    the query was down, the source compares the number of old files with that of its last batch. If old files were deleted,
    that count is too low. A file that is deleted and restored appears too.
    Files must appear complete, by a rename or an upload, and not change after that. S3 gives a file uploaded in parts the
    time when its upload began. This also holds for files of this library's sink, which may appear hours later, at a start
    after a crash. A batch of a path that does not exist is an error; a stream with ``.schema(…)`` waits for the path.
    A query may get another ``path`` if its part before the first wildcard is the same.
    """

    name = "files"
    limits = ("files", "bytes")
    options = Options(
        path=Location(
            REQUIRED, write=False, sole=True,
            meaning="a file, a folder or a glob: local, s3://, hdfs:// by WebHDFS, whatever fsspec knows"
        ),
        fileFormat=Choice("parquet", among=FORMATS, meaning="the format of the files"),
        recursiveFileLookup=Flag(
            False, meaning="also the files of folders in the folder; those of a column, such as year=2024, are read always"
        ),
        maxFileAge=Duration(
            3600.0, meaning="a file that appears longer than this after its last change counts as read"
        ),
        failOnDataLoss=Flag(True, meaning="a file that vanishes before it is read, or appears too late, is an error"),
        storageOptions=Json({}, kind=dict, meaning="fsspec's keys; or objects of them by location"),
    )
    conditions = (
        "files appear complete, do not change, have one name below the path (no links to each other), and appear within "
        "maxFileAge (1 hour) of their last change and before 10,000 newer ones are read"
    )

    @property
    def schema(self) -> str:  # type: ignore[override]
        listing = self.listing()
        newest = max(listing, key=lambda file: (file.changed, file.path), default=None)
        if newest is None:
            problem = Problem("schema", f'missing, and "{self.values["path"]}" has no file yet; give .schema(…).')
            raise Misconfigured("connectors.files", [problem] if listing.exists() else [listing.not_found()])
        with listing.open(newest.path) as file:
            columns = schema_of(file, listing.full(newest.path), self.values["fileFormat"])
        folders = [pa.field(name, pa.string()) for name in partition_values(newest.path) if name not in columns.names]
        return sql_columns(pa.schema([*columns, *folders]))

    def listing(self) -> Listing:
        recursive = self.values["recursiveFileLookup"]
        return Listing(self.values["path"], self.values["storageOptions"], recursive=recursive)

    def datasets(self) -> Sequence[Dataset]:
        return [of_location(self.values["path"])]

    def enumerator(self) -> FilesEnumerator:
        most, fail = MOST_FILES if self.streaming else None, self.values["failOnDataLoss"]
        return FilesEnumerator(self.listing(), self.values["maxFileAge"], most, fail)

    def reader(self, schema: pa.Schema) -> FilesReader:
        return FilesReader(self.listing(), self.values["fileFormat"], schema, self.values["failOnDataLoss"])


@dataclass(frozen=True)
class FilesHead:
    """The files of a listing, and the time of the listing."""

    files: Sequence[ListedFile]
    now: int


class FilesEnumerator(SplitEnumerator[WholeFile]):
    """Recognizes new files by their times and names. Names are relative to ``root``, where the path has its first wildcard.

    A position has the ``files`` of its batch, and the time ``at`` up to which files were read. ``seen`` has the time and a
    digest of the name of each file that earlier batches read and that is not forgotten. ``old`` is the place (time and name)
    in the order of files before which names are forgotten, and the number of files before it; ``skipped`` says how many of
    them appeared too late.
    """

    def __init__(self, listing: Listing, max_age: float, most: int | None, fail: bool) -> None:
        self.listing = listing
        self.max_age = round(max_age * 1e9)
        self.most = most
        self._late_files = LateFiles(listing.name, max_age, fail)

    def start(self) -> Position:
        return {}

    def head(self) -> FilesHead:
        try:
            files = sorted(self.listing, key=lambda file: file.place)
            if self.most is None and not files and not self.listing.exists():  # a batch read does not wait for it
                raise Misconfigured("connectors.files", [self.listing.not_found()])
        except OSError as error:
            raise _failure(f"{self.listing.name} cannot be listed", error) from None
        return FilesHead(files, time.time_ns())

    def advance(self, at: Position, head: FilesHead, limit: ReadLimit) -> Position:
        self._check_root(at)
        if at and "files" not in at:  # only the start is empty; anything else would read from the beginning again
            raise KeyError("files")
        new = list(self._new(at, head))
        skipped = self._late_files.count(at, head.files, new)
        taken = list(_limited(iter(new), limit, self.most))
        if not taken:
            return at
        newest = max(at.get("at", 0), min(taken[-1].changed, head.now))  # do not trust a time in the future
        read = [*at.get("seen", []), *([file[2], _mark(file[0])] for file in at.get("files", []))]
        unread = [file.place for file in new[len(taken) :][:1]]
        latest = min([(newest + 1, ""), *unread])
        too_old = max(_forgotten(at), min((newest - self.max_age + 1, ""), latest))
        seen, forgotten = _remembered(read, head.files, too_old, latest)
        return {
            "at": newest,
            "files": [[file.path, file.size, file.changed] for file in taken],
            "seen": seen,
            "old": [*forgotten, sum(file.place < forgotten for file in head.files)],
            "skipped": skipped,
            "root": self.listing.storage.root,
        }

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[WholeFile]:
        self._check_root(end)
        return (WholeFile(*file) for file in end["files"])

    def _check_root(self, at: Position) -> None:
        """Raises :class:`Misconfigured` if names in the position ``at`` are relative to another root."""
        root = self.listing.storage.root
        if os.path.abspath(at.get("root", root)) != os.path.abspath(root):  # a relative path may have become absolute
            text = f'is below "{root}", and in the checkpoint below "{at["root"]}": files would be read twice, or not at all. '
            text += "Give the earlier path, or one with its first wildcard at the same place; or take a new checkpoint."
            raise Misconfigured("connectors.files", [Problem("path", text)])

    def progress(self, at: Position, head: FilesHead) -> Sequence[PartitionProgress]:
        waiting = list(self._new(at, head))
        since = (head.now - waiting[0].changed) / 1e9 if waiting else 0.0
        seconds = max(0.0, since)
        return [
            PartitionProgress(self.listing.name, lag_records=None, lag_seconds=seconds, skipped=at.get("skipped", 0))
        ]

    def _new(self, at: Position, head: FilesHead) -> Iterator[ListedFile]:
        seen = {mark for _, mark in at.get("seen", [])} | {_mark(file[0]) for file in at.get("files", [])}
        forgotten = _forgotten(at)
        return (file for file in head.files if file.place >= forgotten and _mark(file.path) not in seen)


def _forgotten(at: Position) -> Place:
    """The place before which names are forgotten. It never goes back: a larger ``max_age`` restores no name."""
    return (at["old"][0], at["old"][1]) if at else (-1, "")


def _remembered(
    read: list[list[Any]], files: Sequence[ListedFile], forgotten: Place, latest: Place
) -> tuple[list[list[Any]], Place]:
    """The part of ``read`` to remember, and the place before which all names are forgotten.

    With more than :data:`MOST_NAMES` names, that place is later than ``forgotten``, but not after ``latest``. Files with the
    same time are in the order of their names, which the listing tells.
    """
    paths = {_mark(file.path): file.path for file in files} if len(read) > MOST_NAMES else {}
    if paths:
        places = sorted((changed, paths.get(mark, "")) for changed, mark in read)
        forgotten = max(forgotten, min(places[-MOST_NAMES], latest))
    time, path = forgotten
    kept = (mark for mark in read if mark[0] > time or (mark[0] == time and paths.get(mark[1], path) >= path))
    return sorted(kept), forgotten


class LateFiles:
    """Counts files that appear when they are already too old to tell them from files that were read. Warns once.

    With ``fail`` they are a :class:`DataLoss`.

    Within a run it recognizes them by hashes of the names of read and skipped files. At its first listing it only has the
    position's number of old files, and there may be more now.
    """

    def __init__(self, path: str, max_age: float, fail: bool) -> None:
        self.path = path
        self.max_age = max_age
        self.fail = fail
        self._names: set[int] | None = None
        self._skipped = 0
        self._warned = False

    def count(self, at: Position, files: Sequence[ListedFile], unread: Sequence[ListedFile]) -> int:
        """The number of files skipped up to this listing; ``unread`` are the listing's files still to be read."""
        forgotten, read = _forgotten(at), {hash(file[0]) for file in at.get("files", [])}
        old = [file for file in files if file.place < forgotten]
        if self._names is None:
            self._skipped = at.get("skipped", 0)
            self._add(len(old) - (at["old"][2] if at else 0), old)  # without those that were as old at its last batch
        else:
            late = [file for file in old if hash(file.path) not in self._names and hash(file.path) not in read]
            self._add(len(late), late)
        names = read | {hash(file.path) for file in files} - {hash(file.path) for file in unread}
        known = self._names or set()
        self._names = known | names if len(known) <= 2 * len(names) + _SPARE_NAMES else names
        return self._skipped

    def _add(self, number: int, among: Sequence[ListedFile]) -> None:
        if number <= 0:
            return
        text = f"{number} {'file' if number == 1 else 'files'} appeared more than maxFileAge ({self.max_age:g} s)"
        text = f"{text}, or {MOST_NAMES:,} files, behind the newest file read, and would be skipped as if read before"
        text = f"{self.path}: {text}. {self._example(number, among)}"
        if self.fail:
            raise DataLoss(text, way_out=f"{_TOUCH}; or set failOnDataLoss=false to go on without what is too late")
        self._skipped += number
        if not self._warned:
            self._warned = True
            _log.warning("%s Way out: %s.", text, _TOUCH)

    def _example(self, number: int, among: Sequence[ListedFile]) -> str:
        if number == len(among):
            return f"An example is {among[-1].path or self.path}."
        changed = datetime.datetime.fromtimestamp(among[-1].changed / 1e9, datetime.timezone.utc)
        until = changed.isoformat(" ", "seconds")
        return (
            f"They came while the query was down and are among the {len(among)} files last changed until {until}; "
            f"which ones they are is not known. The newest of these is {among[-1].path}."
        )


def _limited(files: Iterator[ListedFile], limit: ReadLimit, most: int | None) -> Iterator[ListedFile]:
    count = min(bound for bound in (limit.files, most, 1 << 62) if bound is not None)
    size = 0
    for number, file in enumerate(files):
        size += file.size
        if number >= count or (number and limit.bytes is not None and size > limit.bytes):
            return
        yield file


def _mark(path: str) -> str:
    return digest(path)


def _failure(what: str, error: OSError) -> Exception:
    if isinstance(error, PermissionError):
        return Fatal(f"{what}: {error}", way_out="give this process the right to read it, or move it away")
    return Transient(f"{what}: {error}")


class FilesReader(SplitReader[WholeFile]):
    """Reads a file from beginning to end."""

    def __init__(self, listing: Listing, kind: str, schema: pa.Schema, fail: bool) -> None:
        super().__init__()
        self.listing = listing
        self.kind = kind
        self.schema = schema
        self.fail = fail

    def read(self, split: WholeFile) -> Iterator[pa.RecordBatch]:
        path = self.listing.full(split.path)
        partition: dict[str, str | None] = partition_values(split.path)
        columns = pa.schema([field for field in self.schema if name_in([*partition], field.name) is None])
        try:
            with self.listing.open(split.path) as file:
                if file.size() != split.size:
                    raise DataLoss(f"{path} had {split.size} bytes when it was listed and has {file.size()} now")
                for rows in read_file(file, path, self.kind, columns):
                    yield conformed(rows, self.schema, path, partition)
        except FileNotFoundError:
            loss = DataLoss(f"{path} was deleted or moved before it was read", way_out=_WAY_OUT)
            loss.report(_log, fails=self.fail)
        except DataLoss as lost:
            lost.way_out = lost.way_out or _WAY_OUT
            lost.report(_log, fails=self.fail)
        except OSError as error:
            raise _failure(f"{path} cannot be read", error) from None

"""The source of ``connectors.file_stream``."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa

from ...core import (
    REQUIRED,
    DataLoss,
    Flag,
    Int,
    Misconfigured,
    Options,
    PartitionProgress,
    Position,
    Problem,
    ReadLimit,
    RecordEmitter,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    Text,
)
from ...core.datasets import Dataset, of_location
from ...core.planning import fair_shares
from ...formats import check_format, format_options, value_type
from ...formats.emitter import FormatEmitter
from ...ground import machine
from ...ground.options import Values
from ...storage.location import alternatives, is_local, local_path, without_user
from .lines import first_line_end, first_lines, last_line_end, read_lines
from .tail import FileState, FollowedFile, TailHead, holds, listing, locate, look, mark_of, opened, rotation_form

_log = logging.getLogger("connectors.file_stream")
_LARGEST_SPLIT, _SMALLEST_SPLIT = 32 << 20, 1 << 20
_SPLITS_PER_TASK = 4  # so that tasks get even shares of files of any size
_QUIET_SECONDS = 60.0  # a renamed file that was read to its end is let go when nobody wrote to it for so long
_WAY_OUT = "set failOnDataLoss=false to go on without what is lost; a file that is there is read from its first byte"


@dataclass(frozen=True)
class LineRange(Split):
    """The lines of a file that begin in ``first..last``, out of a range of whole lines, ``begin..end``."""

    path: str
    node: str
    mark: str
    begin: int
    end: int
    first: int
    last: int


class FileStreamSource(Source):
    """The lines of files that grow, as Kafka Connect's file source gives them.

    Columns: ``filename`` (full path), ``position`` (the byte after the line and its terminator), ``value``.
    Guarantee: exactly-once; a file can be read again from any byte. An unfinished last line waits. A file renamed within
    its folder is read to its end first, and so are files that were rotated away between two batches: the names of these
    have the form of its new name, as ``app.log.2`` has that of ``app.log.1``. A truncated or replaced file is an error,
    and so is one that vanishes while lines of it wait.
    """

    name = "file_stream"
    limits = ("bytes",)
    position_unit = "bytes"
    conditions = (
        "files are appended to or renamed, not truncated or rewritten; nobody writes to a renamed file that has rested for a "
        "minute"
    )
    options = Options(
        path=Text(REQUIRED, meaning="a file or a glob, which may appear later"),
        numPartitions=Int(4, at_least=1, meaning="parallel readers"),
        failOnDataLoss=Flag(True, meaning="a truncated or vanished file is an error; false starts again at its byte 0"),
        alias={"file": "path"},
    ) | format_options(
        "string", infers=True
    )

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        kind = value_type(values, sample=lambda count: first_lines(str(local_path(values["path"])), count))
        self.schema = f"filename string, position long, value {kind}"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if not is_local(values["path"]):
            shown = without_user(values["path"])
            text = f'must be a local or mounted path or glob: files that grow are followed by their inodes. Got "{shown}".'
            yield Problem("path", text)
        elif os.path.isdir(local_path(values["path"])):
            text = f'is a folder, and no file in it would be read; give a glob, such as "{values["path"].rstrip("/")}/*.log".'
            yield Problem("path", text)
        yield from check_format(values)

    def parallelism(self) -> int:
        return int(self.values["numPartitions"])

    def datasets(self) -> Sequence[Dataset]:
        return [of_location(self.values["path"])]

    def enumerator(self) -> FileStreamEnumerator:
        return FileStreamEnumerator(self)

    def reader(self, schema: pa.Schema) -> LineReader:
        return LineReader(self.values["failOnDataLoss"])

    def emitter(self, schema: pa.Schema) -> RecordEmitter:
        return FormatEmitter("connectors.file_stream", self.values, schema, ("filename", "position"))


def _may_match(pattern: str) -> bool:
    """True for a glob in a folder that exists: no file has such a name yet."""
    return glob.has_magic(pattern) and os.path.isdir(os.path.dirname(pattern))


class FileStreamEnumerator(SplitEnumerator[LineRange]):
    """The position is ``{"files": {number: file}, "next": number}``; a file keeps its number when it is renamed."""

    def __init__(self, source: FileStreamSource) -> None:
        self.pattern = os.path.abspath(local_path(source.values["path"]))
        self.fail = source.values["failOnDataLoss"]
        self.waits = source.streaming
        self._checked: dict[str, FileState] = {}

    def start(self) -> Position:
        return {"files": {}, "next": 1}

    def head(self) -> TailHead:
        head = listing(self.pattern)
        if not head.files and not self.waits and not any(map(_may_match, alternatives(self.pattern))):
            text = f'"{self.pattern}" names no file. Correct it; or read a stream, which waits for the first.'
            raise Misconfigured("connectors.file_stream", [Problem("path", text)])
        return head

    def advance(self, at: Position, head: TailHead, limit: ReadLimit) -> Position:
        files, looks, number = self._follow(at, head)
        backlog = {key: _unread(file, looks[key]) for key, file in files.items()}
        ready = {key: size for key, size in backlog.items() if size and not _waits(key, files, backlog)}
        shares = fair_shares(limit.bytes, ready)
        for key, size in backlog.items():
            files[key] = _advanced(files[key], looks[key], shares.get(key, 0), size)
        over = {key for key, file in files.items() if not shares.get(key) and _is_over(file, looks[key], head)}
        return {"files": {key: file.state() for key, file in files.items() if key not in over}, "next": number}

    def progress(self, at: Position, head: TailHead) -> Sequence[PartitionProgress]:
        """Each file; positions are bytes. An unfinished last line waits for its end, so it is no lag."""
        return [
            PartitionProgress(state["path"], state["at"], self._readable(state, head))
            for state in at["files"].values()
        ]

    def _readable(self, state: Mapping[str, Any], head: TailHead) -> int:
        """The byte after the last line that could be read."""
        listed = head.nodes.get(state["node"])
        return int(max(state["at"], listed.size)) if listed and state.get("more") else int(state["at"])

    def partition_of(self, split: LineRange) -> str:
        return split.path

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[LineRange]:
        ranges = []
        for key, state in sorted(end["files"].items(), key=lambda item: int(item[0])):
            begin = start["files"].get(key, {"at": 0})["at"]
            if state["at"] > begin:
                ranges.append((FollowedFile(**state), begin))
        total = sum(file.at - begin for file, begin in ranges)
        step = min(max(_SMALLEST_SPLIT, total // (parallelism * _SPLITS_PER_TASK)), _LARGEST_SPLIT)
        for file, begin in ranges:
            for first in range(begin, file.at, step):
                yield LineRange(file.path, file.node, file.mark, begin, file.at, first, min(first + step, file.at))

    def _follow(self, at: Position, head: TailHead) -> tuple[dict[str, FollowedFile], dict[str, FileState], int]:
        """The files to read now by number, how each looks, and the next number to give."""
        files: dict[str, FollowedFile] = {}
        looks: dict[str, FileState] = {}
        for key, state in at["files"].items():
            file = FollowedFile(**state)
            if (current := self._find(key, file, head)) is not None:
                files[key], looks[key] = file.moved(current), current
            else:
                self._lose(file)
        number = at["next"]
        listed = (FollowedFile(state.path, state.node) for state in head.files.values())
        for file in (*_rotated_away(files, looks, head), *listed):
            followed = {name for other in files.values() for name in (other.path, other.node)}
            if file.path in followed or file.node in followed:  # by inode: another name of a file is not another file
                continue
            if (current := self._find(str(number), file, head)) is not None:
                files[str(number)], looks[str(number)] = file.moved(current), current
                number += 1
        return files, looks, number

    def _find(self, key: str, file: FollowedFile, head: TailHead) -> FileState | None:
        """The file where it is now, and no longer than ``head`` shows it: a query that ends reads what was there."""
        current = look(file.path)
        if current is None or current.node != file.node or self._checked.get(key) != current:
            listed = head.nodes.get(file.node)
            current = locate(file, [listed] if listed else [])
            if current is None:
                return None
            self._checked[key] = current
        listed = head.nodes.get(current.node)
        return replace(current, size=min(current.size, listed.size)) if listed else current

    def _lose(self, file: FollowedFile) -> None:
        """Raises if unread lines of ``file`` are lost, or may be, and that is to be an error; says so otherwise."""
        current = look(file.path)
        if current is None or (file.home and current.node != file.node):  # rotation gave its name away and deleted it
            what = f"is gone; it was read up to byte {file.at}"
            lost = file.more
        else:
            how = "was truncated or rewritten" if current.node == file.node else "was replaced by another file"
            what, lost = f"{how}: it was read up to byte {file.at} and now has {current.size} bytes", True
        rest = ", and lines after it waited" if lost and file.more else ""
        loss = DataLoss(f"{file.path} {what}{rest}", connector="connectors.file_stream", way_out=_WAY_OUT)
        loss.report(_log, fails=lost and self.fail)


def _rotated_away(files: Mapping[str, FollowedFile], looks: Mapping[str, FileState], head: TailHead) -> Iterator[FollowedFile]:
    """Files that took the place of a followed one and were renamed like it before any listing showed them, oldest first.

    Their names have the form that the followed file got: where that is ``app.log.1``, ``app-2.log`` is another program's.
    """
    newest = {file.born: key for key, file in files.items()}
    for home, key in newest.items():
        if files[key].path == home:
            continue
        form = rotation_form(files[key].path, home)
        alike = [state for state in head.nodes.values() if form and rotation_form(state.path, home) == form]
        between = [state for state in alike if state.changed > looks[key].changed]
        for state in sorted(between, key=lambda state: state.changed):
            yield FollowedFile(state.path, state.node, home=home)
        if home in head.files:
            yield FollowedFile(home, head.files[home].node)


def _waits(key: str, files: Mapping[str, FollowedFile], backlog: Mapping[str, int]) -> bool:
    """True while a file that had the same path before is not read to its end."""
    return any(
        backlog[other] and int(other) < int(key) and file.born == files[key].born for other, file in files.items()
    )


def _unread(file: FollowedFile, state: FileState) -> int:
    """Bytes of complete lines that wait in a file."""
    if state.size <= file.at or (content := opened(file)) is None:
        return 0
    with content:
        return last_line_end(content, file.at, state.size, state.size) - file.at


def _advanced(file: FollowedFile, state: FileState, share: int, unread: int) -> FollowedFile:
    """``file`` read further by at most ``share`` bytes of whole lines, but by one line at least if it has a share."""
    if not share or (content := opened(file)) is None:
        return replace(file, more=unread > 0)
    with content:
        end = file.at + unread
        if share < unread:
            end = last_line_end(content, file.at, file.at + share, state.size)
        if end == file.at:
            end = first_line_end(content, file.at, state.size) or file.at
        return replace(file, at=end, mark=mark_of(content, end), more=end < file.at + unread)


def _is_over(file: FollowedFile, state: FileState, head: TailHead) -> bool:
    """True for a file that was renamed out of the pattern, has no line to read, and rests.

    Not for one that this batch reads: it is only found by its place in the batch's end.
    """
    if file.more or any(listed.node == file.node for listed in head.files.values()):
        return False
    is_quiet = machine.time() - state.changed / 1e9 > _QUIET_SECONDS
    if is_quiet and file.at < state.size:
        _log.warning("%s is let go: its last line, at byte %d, has no end", file.path, file.at)
    return is_quiet


class LineReader(SplitReader[LineRange]):
    """Reads lines in blocks. Raw records: ``filename``, ``position``, and ``value`` as bytes."""

    def __init__(self, fail: bool) -> None:
        super().__init__()
        self.fail = fail

    def read(self, split: LineRange) -> Iterator[pa.RecordBatch]:
        followed = FollowedFile(split.path, split.node, split.end, split.mark)
        current = locate(followed)
        file = opened(followed.moved(current)) if current else None
        if file is None:
            self._lose(split)
            return
        with file:
            try:
                yield from self._lines(file, split)
            except EOFError:
                self._lose(split)
                return
            if not holds(file, followed):  # it was rewritten during the read
                self._lose(split)

    def _lines(self, file: BinaryIO, split: LineRange) -> Iterator[pa.RecordBatch]:
        first: int | None = split.first
        if split.first > split.begin:  # the line that began before this split belongs to the one before
            first = first_line_end(file, split.first - 1, split.last)
        if first is None:
            return
        for positions, values in read_lines(file, first, split.last, split.end):
            names = pa.repeat(split.path, len(values))
            yield pa.RecordBatch.from_arrays([names, positions, values], ["filename", "position", "value"])

    def _lose(self, split: LineRange) -> None:
        what = f"{split.path} was truncated, replaced or deleted before bytes {split.begin} to {split.end} were read"
        DataLoss(what, way_out=_WAY_OUT).report(_log, fails=self.fail)

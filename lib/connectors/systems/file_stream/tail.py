"""The identity of files that grow, appear later, are renamed, truncated or replaced while they are followed.

A file is known by its inode and by a *mark*, a digest of what was read of it at its beginning and before its end, because
a path may be given to another file and an inode may be used again. The position of the source keeps both, under a number
that stays with the file when it is renamed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from ...storage.location import alternatives

_MARK_BYTES = 256
# What rotation adds to a name: app.log.1, app.log-20250131, app.2025-01-31.log, app-7.log. Letters are no part of it, so
# that app.log.1.gz is not taken for lines.
_ROTATION = re.compile(r"[.\-_]\d[\d.\-_T:]*(?=$|\.[A-Za-z]\w*$)")
_COUNTER = re.compile(r"(?<!\d)\d{1,5}(?!\d)")  # a number that gets more digits in time; longer ones are dates


@dataclass(frozen=True)
class FileState:
    """A file as a listing shows it; ``changed`` is in nanoseconds since 1970."""

    path: str
    node: str
    size: int
    changed: int


@dataclass(frozen=True)
class TailHead:
    """The files of one look: the ``files`` that the pattern names, and the rotated ones ``beside`` them, by path."""

    files: Mapping[str, FileState]
    beside: Mapping[str, FileState]
    nodes: Mapping[str, FileState] = field(init=False)
    """All of them by inode."""

    def __post_init__(self) -> None:
        both = (*self.beside.values(), *self.files.values())
        object.__setattr__(self, "nodes", {state.node: state for state in both})


@dataclass(frozen=True)
class FollowedFile:
    """A file that is being read: ``at`` is the position after the last line read; ``mark`` tells what was read."""

    path: str
    node: str
    at: int = 0
    mark: str = ""
    home: str = ""
    """The path that it had at first, if it has been renamed since."""
    more: bool = False
    """True if lines were there that no batch has read yet: should the file vanish now, they are lost."""

    @property
    def born(self) -> str:
        """The path that it had at first."""
        return self.home or self.path

    def state(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value not in ("", False) or key == "at"}

    def moved(self, state: FileState) -> FollowedFile:
        """The file under the path and inode at which it was found."""
        return replace(self, path=state.path, node=state.node, home="" if state.path == self.born else self.born)


def listing(pattern: str) -> TailHead:
    """The files that ``pattern`` (a path or a glob) names now, and those that were rotated away from it."""
    patterns = [pattern] if os.path.isfile(pattern) else alternatives(pattern)
    paths = sorted({path for each in patterns for path in (glob.glob(each) if glob.has_magic(each) else [each])})
    files = {state.path: state for state in map(look, paths) if state is not None}
    homes: dict[str, set[str]] = {}
    for path in {*patterns, *files}:
        homes.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
    beside = {}
    for folder, names in homes.items():
        for path in _paths(folder):
            if path not in files and _unrotated(os.path.basename(path)) & names and (state := look(path)):
                beside[path] = state
    return TailHead(files, beside)


def look(path: str) -> FileState | None:
    """The file at ``path``; ``None`` if there is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileState(os.path.abspath(path), _node(status), status.st_size, status.st_mtime_ns)


def rotation_form(path: str, home: str) -> str | None:
    """The name that rotation has given to a file at ``home``, with zeros for numbers; ``None`` if it has given none.

    All counters have one form, ``app.log.0`` for ``app.log.12``; dates keep their length, ``app-00000000.log``.
    """
    folder, name = os.path.split(path)
    for match in _ROTATION.finditer(name):
        before, added, after = name[: match.start()], match.group(), name[match.end() :]
        if os.path.join(folder, before + after) == home:
            return before + re.sub(r"\d", "0", _COUNTER.sub("0", added)) + after
    return None


def mark_of(file: BinaryIO, at: int) -> str:
    """The mark of a file that was read up to ``at``: a digest of the first bytes and of those before ``at``."""
    if not at:
        return ""
    length = min(at, _MARK_BYTES)
    file.seek(0)
    mark = hashlib.sha256(file.read(length))
    file.seek(at - length)
    mark.update(file.read(length))
    return mark.hexdigest()[:16]


def opened(file: FollowedFile) -> BinaryIO | None:
    """``file`` open for reading; ``None`` if by now its path belongs to none or to another file."""
    with contextlib.suppress(FileNotFoundError):
        content = open(file.path, "rb")  # noqa: SIM115 - the caller closes it
        if _node(os.fstat(content.fileno())) == file.node:
            return content
        content.close()
    return None


def holds(file: BinaryIO, followed: FollowedFile) -> bool:
    """True if the open file still has, byte for byte as far as its mark tells, what was read of it.

    A file that was moved to another byte has no mark.
    """
    return os.fstat(file.fileno()).st_size >= followed.at and followed.mark in ("", mark_of(file, followed.at))


def locate(followed: FollowedFile, elsewhere: Iterable[FileState] = ()) -> FileState | None:
    """The file as it is now: at its path, renamed in its folder or to one of ``elsewhere``.

    ``None`` if it is gone, truncated or replaced.
    """
    at_path = look(followed.path)
    if at_path is not None and at_path.node == followed.node:
        return at_path if _is_same(followed, at_path) else None
    for path in (*_paths(os.path.dirname(followed.path)), *(state.path for state in elsewhere)):
        state = look(path)
        if state is not None and state.node == followed.node and _is_same(followed, state):
            return state
    if at_path is not None and followed.mark and _is_same(followed, at_path):
        return at_path  # a copy in its place, or a file system whose inodes do not last
    return None


def _is_same(followed: FollowedFile, state: FileState) -> bool:
    file = opened(followed.moved(state))
    if file is None:
        return False
    with file:
        return holds(file, followed)


def _node(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def _unrotated(name: str) -> set[str]:
    """The names that a rotated file called ``name`` may have had before."""
    return {name[: match.start()] + name[match.end() :] for match in _ROTATION.finditer(name)}


def _paths(folder: str) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry.path

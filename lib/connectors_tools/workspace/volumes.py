"""Volumes of a workspace for a run on this machine: a copy here, brought up to date before and written back after.

Spark reads and writes files, which the Files API does not offer, so a run works on a copy of the folders that its parameters
name. Changes are written back in the order in which the run made them: a copy that is cut off leaves in the volume what a run
that died at that moment would have left, and the next one goes on. A file that has changed on both sides is an error, and
nothing is copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import Misconfigured, Problem
from connectors.workbench.settings import VOLUMES_VARIABLE

from ..bundle import Bundle
from ..bundle.checks import texts, with_jobs_run
from ..bundle.configuration import Findings
from ..bundle.model import Job
from .client import WorkspaceError, refusals

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

    from .target import Target

_PATH: Final = re.compile(r"/Volumes/[^/\s\"'$]+/[^/\s\"'$]+/[^\s\"'$]+")
_WHOLE: Final = re.compile(r"/Volumes/[^/]+/[^/]+/(?:(?!/Volumes/)[^\n\"'$])+")
"""A value that is one path, in which blanks are allowed."""
_AT_ONCE: Final = 8
_INDEX: Final = "index.json"
_RUNNING: Final = "Volumes/running.json"
"""The folders whose run has not written everything back: what is missing there, the run has removed.

The file is part of the copy: who removes the copy removes it, too.
"""


@dataclass(frozen=True)
class Copied:
    """A file as it was when both sides were the same: size and time in the volume, size and time here (nanoseconds)."""

    size: int
    modified: int
    local_size: int
    local_modified: int


@contextmanager
def mirrored(target: Target, job: Job, parameters: Mapping[str, str], say: Callable[[str], None]) -> Iterator[None]:
    """Inside, the volumes that ``job`` names are copies of those of the workspace; at the end they are written back."""
    name = hashlib.sha256(str(target.client.config.host).encode()).hexdigest()[:12]
    folders = folders_of(target.bundle, job, parameters)
    mirror = VolumeMirror(target.client, target.bundle.root / "runs" / f"volumes-{name}", folders, say)
    mirror.update()
    before = os.environ.get(VOLUMES_VARIABLE)
    os.environ[VOLUMES_VARIABLE] = str(mirror.folder)
    try:
        yield
    finally:
        os.environ.pop(VOLUMES_VARIABLE, None)
        if before is not None:
            os.environ[VOLUMES_VARIABLE] = before
        mirror.write_back()


def folders_of(bundle: Bundle, job: Job, parameters: Mapping[str, str]) -> list[str]:
    """The folders of volumes that a run of ``job`` names, and the jobs that it runs, none below another."""
    values: list[str] = []
    for part in with_jobs_run(bundle, job, Findings()):
        values += {**part.parameters, **job.parameters, **parameters}.values()
        values += [text for task in part.parts for _, text in texts(task)]
    folders = sorted({path.rstrip("/") for value in values for path in _paths_in(value)})
    return [path for path in folders if not any(path.startswith(other + "/") for other in folders)]


def _paths_in(value: str) -> list[str]:
    return [value] if _WHOLE.fullmatch(value) else _PATH.findall(value)


class VolumeMirror:
    """Copies of ``paths`` below ``folder``, as ``folder/Volumes/…``."""

    def __init__(self, client: WorkspaceClient, folder: Path, paths: list[str], say: Callable[[str], None]) -> None:
        self._client, self._paths, self._say = client, paths, say
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._index = {path: Copied(**entry) for path, entry in self._read(_INDEX, {}).items()}

    def update(self) -> None:
        """Writes back what an earlier run has left, then takes over what has changed in the volumes; a run begins."""
        self.write_back()
        remote = self._remote()
        changed = [path for path, (size, modified) in remote.items() if not self._is_known(path, size, modified)]
        gone = [path for path in self._index if self._is_ours(path) and path not in remote]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for path in pool.map(self._download, changed):
                self._know(path, *remote[path])
        for path in gone:
            self._local(path).unlink(missing_ok=True)
            del self._index[path]
        self._save()
        self._write(_RUNNING, [*self._read(_RUNNING, []), *self._paths])
        if changed or gone:
            self._say(f"volumes  {len(changed)} files copied from the workspace, {len(gone)} removed here")

    def write_back(self) -> None:
        """Copies what has changed here into the volumes, the oldest change first, and removes there what a run removed here.

        A file that is missing here for another reason, such as a copy that somebody removed, is copied again by the next
        :meth:`update`. Raises :class:`Misconfigured` where the volume's file has changed as well.
        """
        changed = sorted(self._changed(), key=lambda path: self._local(path).stat().st_mtime_ns)
        missing = [path for path in self._index if self._is_ours(path) and not self._local(path).exists()]
        running: list[str] = self._read(_RUNNING, [])
        removed = [path for path in missing if _is_below(path, running)]
        for path in set(missing).difference(removed):
            del self._index[path]
        if changed or removed:
            self._copy_back(changed, removed)
        self._write(_RUNNING, [folder for folder in running if not self._is_ours(folder)])

    def _copy_back(self, changed: list[str], removed: list[str]) -> None:
        self._check_conflicts([*changed, *removed])
        done: list[str] = []
        try:
            for path in changed:
                self._upload(path)
                done.append(path)
            for path in removed:
                self._remove(path)
        finally:
            with suppress(WorkspaceError):  # what is not remembered is compared by its content, the next time
                self._remember(done)
        self._say(f"volumes  {len(changed)} files copied to the workspace, {len(removed)} removed there")

    def _check_conflicts(self, paths: list[str]) -> None:
        remote = self._remote()
        known = {path: (copied.size, copied.modified) for path, copied in self._index.items()}
        both = [path for path in paths if path in remote and remote[path] != known.get(path)]
        both = [path for path in both if not self._is_same(path, remote[path][0])]
        if both:
            text = (
                f"{len(both)} files have changed in the workspace and here, such as {both[0]}. To go on from the workspace's, "
                f"remove the whole folder {self.folder}; its changes are lost then. A part of it that is missing counts as "
                "removed by the run."
            )
            raise Misconfigured("the run", [Problem("--volumes", text)])

    def _changed(self) -> Iterator[str]:
        for root in self._paths:
            for file in sorted(self._local(root).rglob("*")):
                path = "/" + str(file.relative_to(self.folder))
                if file.is_file() and self._stamp(path) != self._stamp_known(path):
                    yield path

    def _remote(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file of the volumes below the paths."""
        remote: dict[str, tuple[int, int]] = {}
        waiting = list(self._paths)
        while waiting:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                entries = [entry for listed in pool.map(self._list, waiting) for entry in listed]
            files = [entry for entry in entries if not entry.is_directory]
            remote |= {str(entry.path): (entry.file_size or 0, entry.last_modified or 0) for entry in files}
            waiting = [str(entry.path) for entry in entries if entry.is_directory]
        return remote

    def _list(self, folder: str) -> list[Any]:
        from databricks.sdk.errors import NotFound

        with refusals(folder):
            try:
                return list(self._client.files.list_directory_contents(folder))
            except NotFound:
                return []

    def _download(self, path: str) -> str:
        file = self._local(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{hashlib.sha256(path.encode()).hexdigest()}.part"  # in the copy, it would be written back
        with refusals(f"reading {path}"):
            contents = self._client.files.download(path).contents
            assert contents is not None
            with contents, part.open("wb") as target:
                shutil.copyfileobj(contents, target)
        part.replace(file)
        return path

    def _upload(self, path: str) -> None:
        with refusals(f"writing {path}"), self._local(path).open("rb") as content:
            self._client.files.upload(path, content, overwrite=True)

    def _remove(self, path: str) -> None:
        from databricks.sdk.errors import NotFound

        with refusals(f"removing {path}"), suppress(NotFound):
            self._client.files.delete(path)
        del self._index[path]

    def _remember(self, paths: list[str]) -> None:
        """Notes that both sides are the same in ``paths``, and what is in the index."""
        remote = self._remote() if paths else {}
        for path in paths:
            if path in remote:
                self._know(path, *remote[path])
        self._save()

    def _is_same(self, path: str, size: int) -> bool:
        """Whether the volume's file has the content of the one here: it was written by a run that died before noting it."""
        file = self._local(path)
        if not file.exists() or file.stat().st_size != size:
            return False
        with refusals(f"reading {path}"):
            contents = self._client.files.download(path).contents
            assert contents is not None
            with contents:
                return contents.read() == file.read_bytes()

    def _is_known(self, path: str, size: int, modified: int) -> bool:
        copied = self._index.get(path)
        return copied is not None and (copied.size, copied.modified) == (size, modified) and self._local(path).exists()

    def _know(self, path: str, size: int, modified: int) -> None:
        self._index[path] = Copied(size, modified, *self._stamp(path))

    def _stamp(self, path: str) -> tuple[int, int]:
        status = self._local(path).stat()
        return status.st_size, status.st_mtime_ns

    def _stamp_known(self, path: str) -> tuple[int, int] | None:
        copied = self._index.get(path)
        return (copied.local_size, copied.local_modified) if copied else None

    def _is_ours(self, path: str) -> bool:
        return _is_below(path, self._paths)

    def _local(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def _read(self, name: str, default: Any) -> Any:
        file = self.folder / name
        return json.loads(file.read_text()) if file.exists() else default

    def _save(self) -> None:
        self._write(_INDEX, {path: asdict(copied) for path, copied in self._index.items()})

    def _write(self, name: str, content: Any) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(content))
        part.replace(file)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)

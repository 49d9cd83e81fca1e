"""A disk that forgets: what was not synced when the power fails is undone, in part or whole.

POSIX promises of a crash: the content of a file that was synced is there, and a change of names (a new file, a link, a
rename, a removal) that a sync of its folder has followed. Everything else may have happened or not, in any combination.
:class:`ForgetfulDisk` notes each change that goes through :mod:`connectors.storage.local`; :meth:`ForgetfulDisk.fail`
chooses one of the states that a power failure may leave, and puts it there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ..storage import local

Change = dict[str, Any]


class ForgetfulDisk(local.Disk):
    """Notes the changes below ``folder``; ``notes`` is a folder for them, on the same file system and not below it.

    ``dies_at`` kills the process before the change of that number: a power failure ends it too.
    """

    def __init__(self, folder: Path, notes: Path, dies_at: int | None = None) -> None:
        self.folder = folder
        self.notes = notes
        self.dies_at = dies_at
        self._lock = threading.Lock()
        self._count = 0

    def start(self) -> None:
        """What is there now has been durable for long."""
        shutil.rmtree(self.notes, ignore_errors=True)
        (self.notes / "files").mkdir(parents=True)
        (self.notes / "changes").touch()
        for path in sorted(self.folder.rglob("*")):
            if path.is_dir():
                self._note(step="folder", path=self._name(path), durable=True)
            else:
                self._note(step="name", path=self._name(path), file=self._keep(path), durable=True, content=True)

    def run(self, work: Callable[[], object]) -> None:
        """Runs ``work`` with this disk in the place of the machine's own."""
        own, local.disk = local.disk, self
        try:
            work()
        finally:
            local.disk = own

    def fail(self, chance: random.Random) -> None:
        """The power fails: ``chance`` says which of the changes that were not synced are undone."""
        forgets = chance.choice((0.5, 1.0))
        changes = [json.loads(line) for line in (self.notes / "changes").read_text().splitlines()]
        left: dict[str, str | None] = {}
        for number, change in enumerate(changes):
            folder = os.path.dirname(change["path"])
            later = (after for after in changes[number:] if after["step"] == "sync" and after["path"] == folder)
            if change["step"] != "sync" and (change.get("durable") or next(later, None) or chance.random() >= forgets):
                _apply(change, left)
        synced = [change for change in changes if change["step"] == "sync" or change.get("content")]
        self._put_back(left, {change["file"] for change in synced if "file" in change}, chance)

    def create(self, path: Path) -> BinaryIO:
        self._step(path)
        file = super().create(path)
        if self._is_below(path):
            self._note(step="name", path=self._name(path), file=self._keep(path))
        return file

    def link(self, path: Path, to: Path) -> None:
        self._step(to)
        super().link(path, to)
        if self._is_below(to):
            self._note(step="name", path=self._name(to), file=str(to.stat().st_ino))

    def rename(self, path: Path, to: Path) -> None:
        self._step(to)
        super().rename(path, to)
        self._note_rename(path, to)

    def rename_if_absent(self, path: Path, to: Path) -> None:
        self._step(to)
        super().rename_if_absent(path, to)
        self._note_rename(path, to)

    def remove(self, path: Path) -> None:
        self._step(path)
        super().remove(path)
        if self._is_below(path):
            self._note(step="remove", path=self._name(path))

    def make_folder(self, path: Path) -> None:
        self._step(path)
        super().make_folder(path)
        if self._is_below(path):
            self._note(step="folder", path=self._name(path))

    def remove_folder(self, path: Path) -> None:
        self._step(path)
        super().remove_folder(path)
        if self._is_below(path):
            self._note(step="remove", path=self._name(path))

    def remove_tree(self, path: Path) -> None:
        self._step(path)
        for inner in sorted(path.rglob("*"), reverse=True) if path.is_dir() else ():
            self.remove_folder(inner) if inner.is_dir() else self.remove(inner)
        super().remove_tree(path)
        if self._is_below(path):
            self._note(step="remove", path=self._name(path))

    def sync(self, path: Path) -> None:
        self._step(path)
        super().sync(path)
        if path == self.folder or self._is_below(path):
            file = {} if path.is_dir() else {"file": str(path.stat().st_ino)}
            self._note(step="sync", path=self._name(path), **file)

    def _step(self, path: Path) -> None:
        with self._lock:
            self._count += self._is_below(path)
            if self.dies_at is not None and self._count > self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def _note_rename(self, path: Path, to: Path) -> None:
        if self._is_below(to):
            self._note(step="rename", path=self._name(to), source=self._name(path), file=str(to.stat().st_ino))

    def _is_below(self, path: Path) -> bool:
        return self.folder in path.parents

    def _name(self, path: Path) -> str:
        name = path.relative_to(self.folder).as_posix()
        return "" if name == "." else name

    def _keep(self, path: Path) -> str:
        """A second name of a file outside of the folder: its content stays when its own name is gone."""
        number = str(path.stat().st_ino)
        if not (self.notes / "files" / number).exists():
            os.link(path, self.notes / "files" / number)
        return number

    def _note(self, **change: Any) -> None:
        with self._lock, (self.notes / "changes").open("a") as changes:
            changes.write(json.dumps(change) + "\n")

    def _put_back(self, left: dict[str, str | None], whole: set[str], chance: random.Random) -> None:
        contents = {file: _content(self.notes / "files" / file, file in whole, chance) for file in left.values() if file}
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in sorted(left):
            path, file = self.folder / name, left[name]
            if not path.parent.is_dir():
                continue  # its folder is forgotten, and with it what was in there
            if file is None:
                path.mkdir()
            else:
                path.write_bytes(contents[file])


def _apply(change: Change, left: dict[str, str | None]) -> None:
    path, step = change["path"], change["step"]
    if step == "folder":
        left[path] = None
    elif step == "remove":
        for name in [name for name in left if name == path or name.startswith(f"{path}/")]:
            del left[name]
    else:
        left.pop(change.get("source", ""), None)
        left[path] = change["file"]


def _content(file: Path, whole: bool, chance: random.Random) -> bytes:
    content = file.read_bytes()
    return content if whole else content[: chance.choice((0, len(content) // 2, len(content)))]

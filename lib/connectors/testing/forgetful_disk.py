"""A disk that simulates power failures: it undoes some or all changes that were not synced.

After a crash POSIX promises only synced changes: the content of a synced file, and a change of names (a new file, a link,
a rename, a removal) followed by a sync of its folder. Any other change may be lost or not, in any combination.
:class:`ForgetfulDisk` records each change that goes through :mod:`connectors.storage.local`. :meth:`ForgetfulDisk.fail`
chooses one of the states that a power failure may leave, and restores it.
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
    """Records the changes below ``folder`` in the folder ``journal``, on the same file system and not below it.

    ``dies_at`` kills the process before the change of that number: a power failure ends it too.
    """

    def __init__(self, folder: Path, journal: Path, dies_at: int | None = None) -> None:
        self.folder = folder
        self.journal = journal
        self.dies_at = dies_at
        self._lock = threading.Lock()
        self._count = 0

    def start(self) -> None:
        """Starts the journal: all present files are durable."""
        shutil.rmtree(self.journal, ignore_errors=True)
        (self.journal / "files").mkdir(parents=True)
        (self.journal / "changes").touch()
        for path in sorted(self.folder.rglob("*")):
            if path.is_dir():
                self._record("folder", path, durable=True)
            else:
                self._record("name", path, file=self._link_content(path), durable=True, content=True)

    def run(self, work: Callable[[], object]) -> None:
        """Runs ``work`` with this disk instead of the machine's own."""
        own, local.disk = local.disk, self
        local.durable_folders().clear()  # a fork remembers its parent's synced folders, which had the same names
        try:
            work()
        finally:
            local.disk = own

    def fail(self, chance: random.Random) -> None:
        """Simulates a power failure: ``chance`` decides which unsynced changes are undone."""
        forgets = chance.choice((0.5, 1.0))
        changes = self._changes()
        names: dict[str, str | None] = {}
        for number, change in enumerate(changes):
            folder = os.path.dirname(change["path"])
            later = (after for after in changes[number:] if after["step"] == "sync" and after["path"] == folder)
            if change["step"] != "sync" and (change.get("durable") or next(later, None) or chance.random() >= forgets):
                _apply(change, names)
        synced = [change for change in changes if change["step"] == "sync" or change.get("content")]
        self._restore(names, {change["file"] for change in synced if "file" in change}, chance)

    def create(self, path: Path) -> BinaryIO:
        self._step(path)
        file = super().create(path)
        if self._is_below(path):
            self._record("name", path, file=self._link_content(path))
        return file

    def link(self, path: Path, to: Path) -> None:
        self._step(to)
        self._keep(path, to)
        super().link(path, to)
        self._record("name", to, file=_number(to))

    def rename(self, path: Path, to: Path) -> None:
        self._step(to)
        self._keep(path, to)
        super().rename(path, to)
        self._record("rename", to, source=self._name(path), file=_number(to))

    def rename_if_absent(self, path: Path, to: Path) -> None:
        self._step(to)
        self._keep(path, to)
        super().rename_if_absent(path, to)
        self._record("rename", to, source=self._name(path), file=_number(to))

    def remove(self, path: Path) -> None:
        self._step(path)
        super().remove(path)
        self._record("remove", path)

    def make_folder(self, path: Path) -> None:
        self._step(path)
        super().make_folder(path)
        self._record("folder", path)

    def remove_folder(self, path: Path) -> None:
        self._step(path)
        super().remove_folder(path)
        self._record("remove", path)

    def remove_tree(self, path: Path) -> None:
        self._step(path)
        for inner in sorted(path.rglob("*"), reverse=True) if path.is_dir() else ():
            self.remove_folder(inner) if inner.is_dir() else self.remove(inner)
        super().remove_tree(path)
        self._record("remove", path)

    def sync(self, path: Path) -> None:
        self._step(path)
        super().sync(path)
        self._record("sync", path, **({} if path.is_dir() else {"file": _number(path)}))

    def _step(self, path: Path) -> None:
        with self._lock:
            self._count += self._is_below(path)
            if self.dies_at is not None and self._count > self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def _is_below(self, path: Path) -> bool:
        return self.folder in path.parents

    def _name(self, path: Path) -> str:
        return str(path)[len(str(self.folder)) + 1 :]

    def _link_content(self, path: Path) -> str:
        """Links a file into the journal, so that its content outlives its own name; returns its name in the journal."""
        number = _number(path)
        if not (self.journal / "files" / number).exists():
            os.link(path, self.journal / "files" / number)
        return number

    def _keep(self, path: Path, to: Path) -> None:
        """Gives a file that was opened without this disk a name below the folder."""
        if self._is_below(to) and path.is_file():
            self._link_content(path)

    def _record(self, step: str, path: Path, **details: Any) -> None:
        """Writes a change below the folder, or a sync of the folder itself, into the journal."""
        if self._is_below(path) or (step == "sync" and path == self.folder):
            self._write({"step": step, "path": self._name(path), **details})

    def _write(self, change: Change) -> None:
        with self._lock, (self.journal / "changes").open("a") as changes:
            changes.write(json.dumps(change) + "\n")

    def _changes(self) -> list[Change]:
        return [json.loads(line) for line in (self.journal / "changes").read_text().splitlines()]

    def _restore(self, names: dict[str, str | None], synced: set[str], chance: random.Random) -> None:
        """Puts the folder into the state of ``names``, with the whole content of the files that are ``synced``."""
        contents = {
            file: _content(self.journal / "files" / file, file in synced, chance) for file in names.values() if file
        }
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, file in sorted(names.items()):
            path = self.folder / name
            if not path.parent.is_dir():
                continue  # its folder is undone, and with it its contents
            if file is None:
                path.mkdir()
            else:
                path.write_bytes(contents[file])


def _apply(change: Change, names: dict[str, str | None]) -> None:
    """Applies ``change`` to ``names``: the files in the journal by their names, ``None`` for folders."""
    path, step = change["path"], change["step"]
    if step == "folder":
        names[path] = None
    elif step == "remove":
        for name in [name for name in names if name == path or name.startswith(f"{path}/")]:
            del names[name]
    else:
        names.pop(change.get("source", ""), None)
        names[path] = change["file"]


def _content(file: Path, synced: bool, chance: random.Random) -> bytes:
    content = file.read_bytes()
    return content if synced else content[: chance.choice((0, len(content) // 2, len(content)))]


def _number(path: Path) -> str:
    """The name of a file in the journal: its inode, which a rename or a link keeps."""
    return str(path.stat().st_ino)

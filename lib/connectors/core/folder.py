"""A folder that others read while we write into it: staging, publication by rename, and the ledger, all out of sight.

::

    <target>/part-…                                     finished files, the only thing that a reader sees
    <target>/.connectors/<sink id>/ledger/<query>/…     which batches are committed
    <target>/.connectors/<sink id>/stage/<attempt>/…    what task attempts have written
    <target>/.connectors/<sink id>/parts/…              committed parts that grow into larger files (rolling)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from .errors import Fatal
from .ledger import FileLedger
from .store import LocalStore

HIDDEN = (".", "_")
"""First characters of names that readers of data folders pass over."""


def is_hidden(name: str) -> bool:
    """True for names that readers pass over. A folder of a partition column may begin with ``_``: ``_day=1``."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


class TargetFolder:
    """One sink's view of its target folder on a local or mounted file system."""

    def __init__(self, path: str, sink_id: str) -> None:
        self.root = Path(path.removeprefix("file://").removeprefix("file:"))
        self.own = self.root / ".connectors" / quote(sink_id, safe="").replace(".", "%2E")

    def ledger(self, name: str = "ledger") -> FileLedger:
        """A ledger beside the data: that of the batches, or another one by ``name``."""
        return FileLedger(LocalStore(self.own / name))

    def stage(self, attempt: str) -> Path:
        """The staging folder of an attempt (not made yet)."""
        return self.own / "stage" / attempt

    @classmethod
    def sink_ids(cls, path: str) -> list[str]:
        """The sinks that have written to the folder at ``path``."""
        hidden = cls(path, "").root / ".connectors"
        return sorted(unquote(entry.name) for entry in hidden.iterdir()) if hidden.is_dir() else []

    def begin(self, attempt: str) -> str:
        """Makes the staging folder of an attempt, and names it relative to the target."""
        self.stage(attempt).mkdir(parents=True)
        return self.relative(self.stage(attempt))

    def hidden(self, *names: str) -> str:
        """A path in the sink's hidden folder, relative to the target."""
        return self.own.joinpath(*names).relative_to(self.root).as_posix()

    def spark_url(self, name: str) -> str:
        """The file or folder ``name`` as Spark's writers take it."""
        return f"file:{(self.root / name).absolute()}"

    def spark_options(self) -> dict[str, str]:
        """What Spark's writers need beside the URL."""
        return {}

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        """The files below the folder ``under`` that are not hidden in it, and their sizes, in no order."""
        for name in self.listed(under):
            if (size := self.size(name)) is not None:
                yield name, size

    def listed(self, under: str) -> Iterator[str]:
        """The files below the folder ``under`` that are not hidden in it, in no order."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / under) as found:
            for entry in found:
                if is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    yield from self.listed(f"{under}/{entry.name}")
                else:
                    yield f"{under}/{entry.name}"

    def size(self, name: str) -> int | None:
        """The bytes of a file; ``None`` if it is not there."""
        try:
            return (self.root / name).stat().st_size
        except FileNotFoundError:
            return None

    def reading(self, name: str) -> BinaryIO:
        """The file ``name``, open for reading."""
        return (self.root / name).open("rb")

    def writing(self, name: str) -> BinaryIO:
        """A new file ``name``, open for writing; its folder is made."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("xb")

    def delete(self, name: str) -> None:
        """Removes a hidden file, if it is there, and those of its folders that are then empty."""
        file = self.root / name
        file.unlink(missing_ok=True)
        self._prune(file.parent)

    def relative(self, file: Path) -> str:
        """``file`` as a committable names it: relative to the target, so that a mount may move."""
        return file.relative_to(self.root).as_posix()

    def publish(self, staged: str, final: str) -> None:
        """Gives a complete staged file its final name, in one step. Never overwrites; called again, it does nothing.

        A staged file that is gone was published before, whatever has happened to it since. Nobody else gives a file
        the same name: it holds the digest of sink, query and batch.
        """
        source, target = self.root / staged, self.root / final
        if not source.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            if not source.exists():  # somebody else has published it in this very moment
                return
            raise Fatal(
                f"{final} exists in {self.root}, and it is not the file that is to be published",
                way_out="move that file away; nothing was overwritten, and the next start goes on from here",
            )
        try:
            source.rename(target)
        except FileNotFoundError:
            if source.exists():  # the folder was empty, and removed by who emptied it
                self.publish(staged, final)
        self._prune(source.parent)

    def _prune(self, folder: Path) -> None:
        """Removes empty folders of hidden parts, upwards."""
        parts = self.own / "parts"
        while parts in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def remove(self, attempt: str) -> None:
        """Removes the staging folder of an attempt, as far as it is there."""
        shutil.rmtree(self.stage(attempt), ignore_errors=True)

    def sweep(self, older_than: float, live: frozenset[str]) -> None:
        """Removes staging folders that were last touched ``older_than`` seconds ago, except those of ``live`` prefixes."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.own / "stage") as found:
            for entry in found:
                old = time.time() - entry.stat().st_mtime > older_than
                if old and entry.name.split("-")[0] not in live:
                    shutil.rmtree(entry.path, ignore_errors=True)

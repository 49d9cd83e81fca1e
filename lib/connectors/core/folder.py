"""A folder that others read while we write into it: staging, publication by rename, and the ledger, all out of sight.

::

    <target>/part-…                                     finished files, the only thing that a reader sees
    <target>/.connectors/<sink id>/ledger/<query>/…     which batches are committed
    <target>/.connectors/<sink id>/stage/<attempt>/…    what task attempts have written
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from urllib.parse import quote

from .errors import Fatal
from .ledger import FileLedger
from .store import LocalStore

HIDDEN = (".", "_")
"""First characters of names that readers of data folders pass over."""


class TargetFolder:
    """One sink's view of its target folder on a local or mounted file system."""

    def __init__(self, path: str, sink_id: str) -> None:
        self.root = Path(path.removeprefix("file://").removeprefix("file:"))
        self.own = self.root / ".connectors" / quote(sink_id, safe="").replace(".", "%2E")

    def ledger(self) -> FileLedger:
        return FileLedger(LocalStore(self.own / "ledger"))

    def stage(self, attempt: str) -> Path:
        """The staging folder of an attempt (not made yet)."""
        return self.own / "stage" / attempt

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
            raise Fatal(
                f"{final} exists in {self.root}, and it is not the file that is to be published",
                way_out="move that file away; nothing was overwritten, and the next start goes on from here",
            )
        source.rename(target)

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

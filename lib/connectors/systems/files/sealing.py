"""Sealing: hidden parts are joined into one file, which is decided and then published, like a batch.

The seals of a sink have a log of their own beside its ledger: seal number *n* says which parts go into which file. It is
put if absent, so of two processes that seal at the same time (a query and ``connectors files seal``, say) one decides, and
the other looks again. Whoever decides number *n + 1* has carried through number *n* first:

1. the parts are joined in the stage; 2. the seal is recorded; 3. the joined file gets its final name, by the same step
that publishes a batch; 4. the parts are deleted; 5. the seal is marked as done.

Where very many parts wait, they are merged in the same way into one part that goes on waiting.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from ...core.folder import SinkFolder
from ...core.ledger import Entry
from ...core.state import digest
from .joining import join, joinable
from .rolling import Part, RollingPolicy, crowded, due

_SEALS = "seals"


class Sealer:
    """Seals the hidden parts of one sink, when its policy says so. May be used by several threads and processes."""

    def __init__(self, folder: SinkFolder, policy: RollingPolicy, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.policy = policy
        self.clock = clock
        self.log = folder.ledger(_SEALS)
        self._parts_folder = folder.hidden("parts")
        self._lock = threading.Lock()
        self._unsure = True
        """True until it is known that no decided seal waits to be carried through."""

    def add(self, staged: str, bucket: str, name: str) -> str | None:
        """Takes a committed file over as a part, and names it. ``None`` for a file that was taken over before."""
        size = self.folder.size(staged)
        part = PurePosixPath(self._parts_folder, bucket, Part.name(self.clock(), size or 0, name)).as_posix()
        return part if size is not None and self.folder.publish(staged, part) else None

    def parts(self) -> list[Part]:
        """The parts that wait."""
        return [Part.of(path, self._parts_folder) for path, _ in self.folder.files(self._parts_folder)]

    def seal(self, *, ending: bool = False) -> int:
        """Seals what is due, everything if ``ending``. Returns how many files were published by this call."""
        with self._lock:
            published, parts = 0, self.parts()
            while self._unsure or self._work(parts, ending):
                number = self._carry_through()
                visible, merged = self._work(self.parts(), ending) or ([], [])
                if visible or merged:
                    published += self._decide(number + 1, visible, merged)
                parts = self.parts()
            return published

    def _work(self, parts: Sequence[Part], ending: bool) -> tuple[list[list[Part]], list[list[Part]]] | None:
        """The groups to be sealed, and those to be merged; ``None`` if all may wait."""
        if groups := due(parts, self.clock(), self.policy, ending=ending):
            return groups, []
        many = crowded(parts)
        return ([], many) if many else None

    def _decide(self, number: int, visible: Sequence[Sequence[Part]], merged: Sequence[Sequence[Part]]) -> int:
        attempt = f"{digest('seal')}-{uuid.uuid4().hex}"
        self._unsure = True
        try:
            files = [self._joined(parts, attempt) for group in visible for parts in joinable(self.folder, group)]
            more = [self._merged(parts, attempt) for group in merged for parts in joinable(self.folder, group)]
        except FileNotFoundError:  # another process has sealed them in the meantime
            self.folder.remove(attempt)
            return 0
        if self.log.record(Entry(_SEALS, number, committables=({"attempt": attempt, "files": [*files, *more]},))):
            return len(files)
        self.folder.remove(attempt)
        return 0

    def _joined(self, parts: Sequence[Part], attempt: str) -> dict[str, Any]:
        final, paths = parts[0].final, [part.path for part in parts]
        if len(paths) == 1:
            return {"ready": paths[0], "final": final, "parts": []}
        ready = self.folder.hidden("stage", attempt, final)
        join(self.folder, paths, ready)
        self.folder.sync([ready])
        return {"ready": ready, "final": final, "parts": paths}

    def _merged(self, parts: Sequence[Part], attempt: str) -> dict[str, Any]:
        """As a seal, but what comes of it is a part: as old as its first one, and of one level more."""
        whole, size = self._joined(parts, attempt), sum(part.size for part in parts)
        final = PurePosixPath(self._parts_folder, parts[0].final)
        name = Part.name(parts[0].at, size, final.name, parts[0].level + 1)
        return {**whole, "final": final.with_name(name).as_posix()}

    def _carry_through(self) -> int:
        """Publishes what is decided. Returns the number of the newest seal, which is then done."""
        last, pending = self._newest()
        for entry in pending:
            if last is not None and entry.batch >= last.batch:
                self._publish(entry)
            # else it was put by a process that had slept since before number n + 1: its parts went elsewhere
            for one in entry.committables:
                self.folder.remove(one["attempt"])
            self.log.mark_published(entry)
        self._unsure = False
        return last.batch if last is not None else -1

    def _newest(self) -> tuple[Entry | None, list[Entry]]:
        """The newest seal and those not known to be done, as of one moment: nothing was decided between the two looks."""
        while True:
            last, pending = self.log.last(_SEALS), self.log.unpublished()
            if self.log.last(_SEALS) == last:
                return last, pending

    def _publish(self, entry: Entry) -> None:
        for one in entry.committables:
            for file in one["files"]:
                self.folder.publish(file["ready"], file["final"])
            self.folder.sync_names(file["final"] for file in one["files"])
            self.folder.delete(part for file in one["files"] for part in file["parts"])

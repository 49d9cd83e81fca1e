"""Rolling: hidden parts grow into larger files, which are sealed when the policy says so.

The policy itself knows no clock and no disk. The seals of a sink have a log of their own beside its ledger: seal number *n*
says which parts go into which file. A seal is put if absent, so of two processes that seal at the same time (a query and
``connectors files seal``, say) one decides, and the other looks again. Whoever decides number *n + 1* has finished number *n*:

1. the parts are joined in the stage; 2. the seal is recorded; 3. the joined file gets its final name, by the same step that
publishes a batch; 4. the parts are deleted; 5. the seal is marked as done.

Where very many parts wait, they are merged in the same way into one part that goes on waiting.

A ``foreachBatch`` function hears of batches only, not of idle times nor of the end of its query. So the first batch starts a
thread that waits for the end of the query, and seals meanwhile what is due.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ...core import Misconfigured, Problem
from ...core.folder import SinkFolder
from ...core.ledger import Entry
from ...core.sink import QueryRun
from ...ground import machine
from ...ground.options import Values
from ...ground.secrets import filled
from ...ground.state import digest
from ...storage import checked_storage
from .join import join, joinable

MAX_PART_SIZE = 256 << 20
"""The default of ``rolling.maxPartSize``, in bytes."""
MERGED_PARTS = 32
"""So many parts of a bucket that were merged equally often are merged into one."""


@dataclass(frozen=True)
class RollingPolicy:
    """A bucket's parts are sealed when they are ``max_part_size`` bytes together, ``rollover`` seconds after the first of
    them, or ``inactivity`` seconds after the last one: whatever comes first."""

    rollover: float = 900.0
    inactivity: float = 300.0
    max_part_size: int = MAX_PART_SIZE

    @classmethod
    def of(cls, values: Values) -> RollingPolicy:
        names = ("rolloverInterval", "inactivityInterval", "maxPartSize")
        return cls(*(values[f"rolling.{name}"] for name in names))


class HiddenPart(NamedTuple):
    """A committed file that no reader sees yet: ``path`` below the target, its batch staged ``at`` (seconds), its ``size``.

    ``final`` is the name that it would have by itself, relative to the target. ``level`` counts how often it was merged:
    many parts are merged into one, still hidden, so that a look at them costs the same after any number of batches.
    """

    at: float
    final: str
    path: str
    size: int
    level: int = 0

    @classmethod
    def name(cls, at: float, size: int, final: str, level: int = 0) -> str:
        """The file name of a part: all that the policy asks is in it, so that a listing is enough.

        Its time is never later than ``at``: a part that may be sealed at once would else wait for the next batch.
        """
        return f"{int(at * 1000)}-{size}-{level}-{final}"

    @classmethod
    def of(cls, path: str, folder: str) -> HiddenPart:
        """The part at ``path``, somewhere below the hidden ``folder``; its folders are those of the target."""
        bucket, _, name = path[len(folder) + 1 :].rpartition("/")
        at, size, level, final = name.split("-", 3)
        return cls(int(at) / 1000, f"{bucket}/{final}" if bucket else final, path, int(size), int(level))

    @property
    def kind(self) -> tuple[str, str]:
        """The bucket, and the extension: only parts that have both in common can be joined."""
        bucket, _, name = self.final.rpartition("/")
        return bucket, name.rpartition("-")[2].partition(".")[2]  # partPrefix, at the begin of the name, may have a dot


def due(parts: Iterable[HiddenPart], now: float, policy: RollingPolicy, *, ending: bool = False) -> list[list[HiddenPart]]:
    """The groups of parts that are to be sealed now, each as one file; ``ending`` seals everything."""
    return [group for bucket in _by_kind(parts) for group in _due(bucket, now, policy, ending)]


def crowded(parts: Iterable[HiddenPart]) -> list[list[HiddenPart]]:
    """The groups of parts that are to be merged, each into one part that goes on waiting.

    The newest part of a bucket is never among them: its time says how long the bucket has been inactive.
    """
    groups = []
    for bucket in _by_kind(parts):
        levels: dict[int, list[HiddenPart]] = {}
        for part in bucket[:-1]:
            levels.setdefault(part.level, []).append(part)
        groups += [group for group in levels.values() if len(group) >= MERGED_PARTS]
    return groups


def _by_kind(parts: Iterable[HiddenPart]) -> Iterable[list[HiddenPart]]:
    buckets: dict[tuple[str, str], list[HiddenPart]] = {}
    for part in sorted(parts):
        buckets.setdefault(part.kind, []).append(part)
    return buckets.values()


def _due(parts: list[HiddenPart], now: float, policy: RollingPolicy, ending: bool) -> list[list[HiddenPart]]:
    groups: list[list[HiddenPart]] = [[]]
    size = 0
    for part in parts:
        if size and size + part.size > policy.max_part_size:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    growing = groups.pop() if size < policy.max_part_size else []
    if growing and (ending or _is_old(growing, now, policy)):
        groups.append(growing)
    return groups


def _is_old(parts: list[HiddenPart], now: float, policy: RollingPolicy) -> bool:
    first, last = abs(now - parts[0].at), abs(now - parts[-1].at)  # the clock of a task may be hours ahead of this one
    return first >= policy.rollover or last >= policy.inactivity


_SEALS = "seals"


class Sealer:
    """Seals the hidden parts of one sink, when its policy says so. May be used by several threads and processes."""

    def __init__(self, folder: SinkFolder, policy: RollingPolicy, clock: Callable[[], float] = machine.time) -> None:
        self.folder = folder
        self.policy = policy
        self.clock = clock
        self.log = folder.ledger(_SEALS)
        self._parts_folder = folder.hidden("parts")
        self._lock = threading.Lock()
        self._may_have_pending = True
        """True until it is known that no decided seal waits for its publication."""

    def part(self, bucket: str, name: str, at: float, size: int) -> str:
        """The path at which a committed file waits as a part.

        All of it is in the ledger: whoever publishes the file, gives it one name.
        """
        return PurePosixPath(self._parts_folder, bucket, HiddenPart.name(at, size, name)).as_posix()

    def parts(self) -> list[HiddenPart]:
        """The parts that wait."""
        return [HiddenPart.of(path, self._parts_folder) for path, _ in self.folder.files(self._parts_folder)]

    def seal(self, *, ending: bool = False) -> int:
        """Seals what is due, everything if ``ending``. Returns how many files were published by this call."""
        with self._lock:
            published, parts = 0, self.parts()
            while self._may_have_pending or self._work(parts, ending):
                number = self._finish_seals()
                visible, merged = self._work(self.parts(), ending) or ([], [])
                if visible or merged:
                    published += self._decide(number + 1, visible, merged)
                parts = self.parts()
            return published

    def _work(self, parts: Sequence[HiddenPart], ending: bool) -> tuple[list[list[HiddenPart]], list[list[HiddenPart]]] | None:
        """The groups to be sealed, and those to be merged; ``None`` if all may wait."""
        if groups := due(parts, self.clock(), self.policy, ending=ending):
            return groups, []
        many = crowded(parts)
        return ([], many) if many else None

    def _decide(self, number: int, visible: Sequence[Sequence[HiddenPart]], merged: Sequence[Sequence[HiddenPart]]) -> int:
        attempt = f"{digest('seal')}-{machine.token()}"
        self._may_have_pending = True
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

    def _joined(self, parts: Sequence[HiddenPart], attempt: str) -> dict[str, Any]:
        final, paths = parts[0].final, [part.path for part in parts]
        if len(paths) == 1:
            return {"ready": paths[0], "final": final, "parts": []}
        ready = self.folder.hidden("stage", attempt, final)
        join(self.folder, paths, ready)
        self.folder.sync([ready])
        return {"ready": ready, "final": final, "parts": paths}

    def _merged(self, parts: Sequence[HiddenPart], attempt: str) -> dict[str, Any]:
        """As a seal, but what comes of it is a part: as old as its first one, and of one level more."""
        whole, size = self._joined(parts, attempt), sum(part.size for part in parts)
        final = PurePosixPath(self._parts_folder, parts[0].final)
        name = HiddenPart.name(parts[0].at, size, final.name, parts[0].level + 1)
        return {**whole, "final": final.with_name(name).as_posix()}

    def _finish_seals(self) -> int:
        """Publishes what is decided. Returns the number of the newest seal, which is then done."""
        last, pending = self._newest()
        for entry in pending:
            if last is not None and entry.batch >= last.batch:
                self._publish(entry)
            # Else a process recorded it that slept while number n + 1 was decided: its parts went elsewhere.
            for seal in entry.committables:
                self.folder.remove(seal["attempt"])
            self.log.mark_published(entry)
        self._may_have_pending = False
        return last.batch if last is not None else -1

    def _newest(self) -> tuple[Entry | None, list[Entry]]:
        """The newest seal and those not known to be done, as of one moment: nothing was decided between the two looks."""
        while True:
            last, pending = self.log.last(_SEALS), self.log.unpublished()
            if self.log.last(_SEALS) == last:
                return last, pending

    def _publish(self, entry: Entry) -> None:
        for seal in entry.committables:
            self.folder.publish_all([(file["ready"], file["final"]) for file in seal["files"]])
            self.folder.sync_names(file["final"] for file in seal["files"])
            self.folder.delete(part for file in seal["files"] for part in file["parts"])


_log = logging.getLogger("connectors.files")
_EXIT_SECONDS = 60.0


_watched: dict[tuple[str, str], tuple[threading.Thread, QueryRun]] = {}
"""The threads, by run and sink."""


def watch(sealer: Sealer, run: QueryRun, seal_at_end: bool | None) -> None:
    """Lets the parts of ``run`` be sealed in time, and at its end."""
    key = (run.id, f"{sealer.folder.root}/{sealer.folder.hidden()}")
    if key not in _watched:
        ending = run.ends_by_itself if seal_at_end is None else seal_at_end
        work = (sealer, run, ending, key)
        thread = machine.thread(partial(_watch, *work), "connectors.files")
        _watched[key] = (thread, run)
        thread.start()


def pause(policy: RollingPolicy) -> float:
    """The seconds to wait between two looks at the policy."""
    return max(0.1, min(30.0, policy.inactivity / 4, policy.rollover / 4))


def _watch(sealer: Sealer, run: QueryRun, ending: bool, key: tuple[str, str]) -> None:
    with contextlib.suppress(Exception):  # the session is gone, and the query with it
        while (state := run.wait(pause(sealer.policy))) == "running":
            seal_due_parts(sealer)
        seal_due_parts(sealer, ending=ending and state == "ended")
    _watched.pop(key, None)


def seal_due_parts(sealer: Sealer, *, ending: bool = False) -> None:
    """Seals; a failure is only logged, since no commit depends on it."""
    try:
        sealer.seal(ending=ending)
    except Exception:  # the next commit or start tries again, and there it is an error
        _log.warning("the hidden parts in %s could not be sealed", sealer.folder.hidden(), exc_info=True)


@atexit.register
def _finish() -> None:
    """A script that ends right after its query lets the parts be sealed first."""
    for thread, run in list(_watched.values()):
        with contextlib.suppress(Exception):
            if run.wait(0.0) != "running":
                thread.join(_EXIT_SECONDS)


def seal_folder(path: str, storage: Mapping[str, Any] | None = None, max_part_size: int = MAX_PART_SIZE) -> int:
    """Seals all hidden parts in the folder ``path``, whichever sink wrote them. Returns how many files appeared.

    Harmless while a query writes there, and when it is called twice. ``storage`` is ``storageOptions``;
    ``max_part_size`` bounds the files, in bytes. Raises :class:`Misconfigured` where no sink has ever written.
    """
    policy = RollingPolicy(max_part_size=max_part_size)
    return sum(Sealer(folder, policy).seal(ending=True) for folder in _folders(path, storage))


def source_offsets(path: str, storage: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The offsets at which the files in the folder ``path`` end in their sources: any other consumer can go on from there.

    By the id of each streaming query: ``batch``, the newest one that has rows, and ``offsets``, one for each source, as
    Spark's checkpoint has them (of Kafka ``{"topic": {"0": 42}}``): a list, or by the names of sources that have one
    (``readStream.name(…)``). They are recorded in one step with the batch, so they
    say neither more nor less than the files; where ``rolling=policy`` is used, seal first, to see those files.

    Only ``foreach_batch`` on a classic session knows them, and not for avro; a query is missing here whose newest hundred
    batches have none. Raises :class:`Misconfigured` where no sink has ever written.
    """
    ledgers = [folder.ledger() for folder in _folders(path, storage)]
    entries = [ledger.newest(query, _offsets) for ledger in ledgers for query in ledger.queries()]
    return {entry.query: {"batch": entry.batch, "offsets": _offsets(entry)} for entry in entries if entry}


def _offsets(entry: Entry) -> Any:
    return next((part["data"]["offsets"] for part in entry.committables if "offsets" in part.get("data", {})), None)


def _folders(path: str, storage: Mapping[str, Any] | None) -> list[SinkFolder]:
    try:
        options = filled(dict(storage or {}))
    except ValueError as wrong:
        raise Misconfigured("connectors.files", [Problem("storageOptions", f"must be {wrong}.")]) from None
    target = checked_storage("connectors.files", "path", path, options)
    sink_ids = SinkFolder.sink_ids(target)
    if not sink_ids:
        raise Misconfigured("connectors.files", [Problem("path", f'no sink has written to "{path}".')])
    return [SinkFolder(target, sink_id) for sink_id in sink_ids]

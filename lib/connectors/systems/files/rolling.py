"""Rolling: hidden parts grow into larger files, which are sealed when the policy says so.

The policy itself knows no clock and no disk. The seals of a sink have their own log beside its ledger: seal number *n* says
which parts go into which file. A seal is put if absent, so if two processes seal at the same time (a query and
``connectors files seal``, say), one decides and the other looks again. A process finishes number *n* before it decides *n + 1*:

1. the parts are joined in the stage; 2. the seal is recorded; 3. the joined file gets its final name, by the same step that
publishes a batch; 4. the parts are deleted; 5. the seal is marked as done.

If very many parts wait, they are merged in the same way into one part that stays hidden.

A ``foreachBatch`` function is called for batches only, not at idle times nor at the end of its query. So the first batch
starts a thread that waits for the end of the query, and meanwhile seals the parts that are due.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
"""If so many parts of a bucket were merged equally often, they are merged into one."""


@dataclass(frozen=True)
class RollingPolicy:
    """When a bucket's parts are sealed: at ``max_part_size`` bytes together, ``rollover`` seconds after the first of them,
    or ``inactivity`` seconds after the last one, whichever comes first."""

    rollover: float = 900.0
    inactivity: float = 300.0
    max_part_size: int = MAX_PART_SIZE

    @classmethod
    def of(cls, values: Values) -> RollingPolicy:
        names = ("rolloverInterval", "inactivityInterval", "maxPartSize")
        return cls(*(values[f"rolling.{name}"] for name in names))


class HiddenPart(NamedTuple):
    """A committed file that no reader sees yet: its ``path`` below the target, when it was staged (``at``), its ``size``.

    ``final`` is the name that it would have alone, relative to the target. ``level`` counts how often it was merged: many
    parts are merged into one, still hidden, so that a look at them costs the same after any number of batches.
    """

    at: float
    final: str
    path: str
    size: int
    level: int = 0

    @classmethod
    def name(cls, at: float, size: int, final: str, level: int = 0) -> str:
        """The file name of a part. It contains everything that the policy needs, so that a listing is enough.

        Its time is never later than ``at``; otherwise a part that is due at once would wait for the next batch.
        """
        return f"{int(at * 1000)}-{size}-{level}-{final}"

    @classmethod
    def of(cls, path: str, folder: str) -> HiddenPart:
        """The part at ``path`` below the hidden ``folder``, which has the same folders as the target."""
        bucket, _, name = path[len(folder) + 1 :].rpartition("/")
        at, size, level, final = name.split("-", 3)
        return cls(int(at) / 1000, f"{bucket}/{final}" if bucket else final, path, int(size), int(level))

    @property
    def kind(self) -> tuple[str, str]:
        """The bucket and the extension: only parts with the same of both can be joined."""
        bucket, _, name = self.final.rpartition("/")
        return bucket, name.rpartition("-")[2].partition(".")[2]  # partPrefix, at the start of the name, may have a dot


def due(
    parts: Iterable[HiddenPart], now: float, policy: RollingPolicy, *, ending: bool = False, finished: Collection[str] = ()
) -> list[list[HiddenPart]]:
    """The groups of parts to seal now, each as one file: all parts of ``finished`` buckets, and with ``ending`` everything."""
    buckets = [(bucket, ending or bucket[0].kind[0] in finished) for bucket in _by_kind(parts)]
    return [group for bucket, is_over in buckets for group in _due(bucket, now, policy, is_over)]


def crowded(parts: Iterable[HiddenPart]) -> list[list[HiddenPart]]:
    """The groups of parts to merge, each into one part that stays hidden.

    The newest part of a bucket is never among them, since its time says how long the bucket has been inactive.
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
    first, last = abs(now - parts[0].at), abs(now - parts[-1].at)  # a task's clock may be hours ahead of this one
    return first >= policy.rollover or last >= policy.inactivity


_SEALS = "seals"


class Sealer:
    """Seals the hidden parts of one sink when its policy says so. Several threads and processes may use it."""

    def __init__(self, folder: SinkFolder, policy: RollingPolicy, clock: Callable[[], float] = machine.time) -> None:
        self.folder = folder
        self.policy = policy
        self.clock = clock
        self.log = folder.ledger(_SEALS)
        self._parts_folder = folder.hidden("parts")
        self._lock = threading.Lock()
        self._may_have_pending = True
        """True while a decided seal may still wait for its publication."""

    def part(self, bucket: str, name: str, at: float, size: int) -> str:
        """The path of a committed file while it waits as a part.

        The ledger has everything in it, so that every process that publishes the file gives it the same name.
        """
        return PurePosixPath(self._parts_folder, bucket, HiddenPart.name(at, size, name)).as_posix()

    def parts(self) -> list[HiddenPart]:
        """The hidden parts."""
        return [HiddenPart.of(path, self._parts_folder) for path, _ in self.folder.files(self._parts_folder)]

    def seal(self, *, ending: bool = False, finished: Collection[str] = ()) -> int:
        """Seals the parts that are due: all of ``finished`` buckets, all if ``ending``. Returns how many files it published."""
        with self._lock:
            published, parts = 0, self.parts()
            while self._may_have_pending or self._work(parts, ending, finished):
                number = self._finish_seals()
                visible, merged = self._work(self.parts(), ending, finished) or ([], [])
                if visible or merged:
                    published += self._decide(number + 1, visible, merged)
                parts = self.parts()
            return published

    def _work(
        self, parts: Sequence[HiddenPart], ending: bool, finished: Collection[str]
    ) -> tuple[list[list[HiddenPart]], list[list[HiddenPart]]] | None:
        """The groups to seal, and those to merge; ``None`` if all may wait."""
        if groups := due(parts, self.clock(), self.policy, ending=ending, finished=finished):
            return groups, []
        many = crowded(parts)
        return ([], many) if many else None

    def _decide(self, number: int, visible: Sequence[Sequence[HiddenPart]], merged: Sequence[Sequence[HiddenPart]]) -> int:
        attempt = f"{digest('seal')}-{machine.token()}"
        self._may_have_pending = True
        # whoever published a part may have died before its name was durable, and would publish it again behind a power failure
        self.folder.sync_names(part.path for group in (*visible, *merged) for part in group)
        try:
            files = [self._joined(parts, attempt) for group in visible for parts in joinable(self.folder, group)]
            more = [self._merged(parts, attempt) for group in merged for parts in joinable(self.folder, group)]
        except FileNotFoundError:  # another process has sealed them meanwhile
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
        """As a seal, but its result is a part: as old as the first of ``parts``, one level higher."""
        whole, size = self._joined(parts, attempt), sum(part.size for part in parts)
        final = PurePosixPath(self._parts_folder, parts[0].final)
        name = HiddenPart.name(parts[0].at, size, final.name, parts[0].level + 1)
        return {**whole, "final": final.with_name(name).as_posix()}

    def _finish_seals(self) -> int:
        """Publishes decided seals. Returns the number of the newest seal, which is then done."""
        last, pending = self._newest()
        for entry in pending:
            if last is not None and entry.batch >= last.batch:
                self._publish(entry)
            # Else a process that had slept recorded it after number n + 1 was decided: its parts went elsewhere.
            for seal in entry.committables:
                self.folder.remove(seal["attempt"])
            self.log.mark_published(entry)
        self._may_have_pending = False
        return last.batch if last is not None else -1

    def _newest(self) -> tuple[Entry | None, list[Entry]]:
        """The newest seal and those not known to be done, as of one moment: no seal was decided between the two looks."""
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
"""The watching threads, by run and sink."""


def watch(sealer: Sealer, run: QueryRun, seal_at_end: bool | None) -> None:
    """Starts a thread that seals the parts of ``run`` in time, and at its end."""
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
    """Seals parts. Only logs a failure, since no commit depends on it."""
    try:
        sealer.seal(ending=ending)
    except Exception:  # the next commit or start tries again, and raises the error
        _log.warning("the hidden parts in %s could not be sealed", sealer.folder.hidden(), exc_info=True)


@atexit.register
def _finish() -> None:
    """Delays the end of a script that ends right after its query, until the parts are sealed."""
    for thread, run in list(_watched.values()):
        with contextlib.suppress(Exception):
            if run.wait(0.0) != "running":
                thread.join(_EXIT_SECONDS)


def seal_folder(path: str, storage: Mapping[str, Any] | None = None, max_part_size: int = MAX_PART_SIZE) -> int:
    """Seals all hidden parts in the folder ``path``, of every sink. Returns the number of files that appeared.

    It is harmless while a query writes there, and may be called twice. ``storage`` is ``storageOptions``;
    ``max_part_size`` limits the files, in bytes. Raises :class:`Misconfigured` if no sink has ever written there.
    """
    policy = RollingPolicy(max_part_size=max_part_size)
    return sum(Sealer(folder, policy).seal(ending=True) for folder in _folders(path, storage))


def source_offsets(path: str, storage: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The source offsets at which the files in the folder ``path`` end: any other consumer can continue from there.

    By the id of each streaming query: ``batch``, the newest one with rows, and ``offsets``, one for each source, as in
    Spark's checkpoint (of Kafka ``{"topic": {"0": 42}}``): a list, or by name for sources that have one
    (``readStream.name(…)``). They are recorded in one step with the batch, so they match the files exactly. With
    ``rolling=policy``, seal first to see those files.

    Only ``foreach_batch`` on a classic session knows the offsets, and not for avro. A query whose newest hundred batches have
    none is missing. Raises :class:`Misconfigured` if no sink has ever written there.
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

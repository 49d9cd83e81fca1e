"""The queries of this machine, of all processes: what their files and the notes of their sessions tell."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ..core.metrics import counted_queries, folder, note_of
from ..ground import machine
from ..storage.location import storage_of
from .frame import Row, abouts_of, rows_of
from .history import RUNNING, lag_of, unit_of

DIED, UNKNOWN = "died", "unknown"
"""States beside those of a run: its process is gone without a word, or no session has noted anything."""
_AGES: Final = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


@dataclass(frozen=True)
class SinkStanding:
    """A sink of a query: its system, its id in ledgers, its target, its rows, and its last commit (seconds since 1970)."""

    system: str
    sink_id: str = ""
    target: str = ""
    rows: int | None = None
    last_commit: float | None = None


@dataclass(frozen=True)
class QueryStanding:
    """A query of this machine. ``at`` is the last sign of it.

    ``process``, ``machine`` and ``folder`` say where its session runs, ``folder`` is its working folder.
    """

    query: str
    name: str
    state: str
    at: float
    sinks: tuple[SinkStanding, ...] = ()
    lag: int | None = None
    unit: str = ""
    dead_letters: int = 0
    waiting_for: str = ""
    error: str = ""
    process: int = 0
    machine: str = ""
    folder: str = ""

    def is_elsewhere(self, root: Path) -> bool:
        """True unless its session works in ``root`` or below, or on another machine, whose folders are not known here."""
        own = self.machine == platform.node() or not self.machine
        return own and not (self.folder and Path(self.folder).is_relative_to(root))


def queries_of_machine() -> list[QueryStanding]:
    """Every query that has files below ``$CONNECTORS_METRICS``: those that run first, then the newest."""
    standings = [standing_of(query) for query in counted_queries()]
    return sorted(standings, key=lambda query: (query.state != RUNNING, -query.at))


def standing_of(query: str) -> QueryStanding:
    """What is known on this machine of one query, by its id; its state is :data:`UNKNOWN` if that is nothing."""
    note = note_of(query)
    progress = note.get("progress")
    rows = rows_of(query, progress)
    abouts = abouts_of(query)
    waiting = next((row["waiting_for"] for row in rows if row["waiting_for"]), "")
    commits = [row["last_commit"] for row in rows if row["last_commit"]]
    state = _state(note)
    return QueryStanding(
        query,
        str(note.get("name") or query[:8]),
        state,
        max([float(note.get("ended") or note.get("started") or 0.0), *commits]) or _last_change(query),
        tuple(_sink(row, abouts.get(row["component"], {})) for row in rows if row["component"].startswith("sink ")),
        lag_of(rows),
        unit_of(rows),
        sum(row["dead_letters"] or 0 for row in rows),
        waiting if state == RUNNING else "",
        str(note.get("error") or ""),
        int(note.get("process") or 0),
        str(note.get("machine") or ""),
        str(note.get("folder") or ""),
    )


def _last_change(query: str) -> float:
    """The time when the newest file of a query was written, in seconds since 1970; 0 if there is none."""
    root = folder()
    items = storage_of(root).items(quote(query, safe="").replace(".", "%2E")) if root else []
    return max((item.changed / 1e9 for item in items), default=0.0)


def _sink(row: Row, about: Mapping[str, str]) -> SinkStanding:
    system = row["component"].split()[1]
    return SinkStanding(system, about.get("id", ""), about.get("target", ""), row["rows"], row["last_commit"])


def _state(note: Mapping[str, Any]) -> str:
    state = str(note.get("state") or UNKNOWN)
    if state == RUNNING and note.get("machine") == platform.node():
        start = process_start(int(note["process"]))
        return state if start is not None and start == note.get("process_start") else DIED
    return state


def process_start(process: int) -> str | None:
    """The start of a process of this machine, in words of the system; ``None`` if it has ended.

    A number is given again: in a container each driver may be the process 7, or a thread of another program has the number.
    """
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        state, start = fields[0], f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    else:
        command, environment = ["ps", "-o", "stat=,lstart=", "-p", str(process)], {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        listing = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
        state, start = (listing.split()[:1] or [""])[0], " ".join(listing.split()[1:])
    return None if state[:1] in ("", "Z", "X") else start  # a zombie has ended, and its parent has not asked for it yet


def ago(moment: float, now: float | None = None) -> str:
    """The time since a moment, in words: ``5 minutes ago``, ``1 day ago``."""
    seconds = max(1.0, (now if now is not None else machine.time()) - moment)
    size, unit = next((size, unit) for size, unit in _AGES if seconds >= size)
    number = int(seconds // size)
    return f"{number} {unit}{'s' * (number != 1)} ago"

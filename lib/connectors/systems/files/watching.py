"""Seals the parts of a query between its batches and after its end: a thread of the driver that waits for the end.

A ``foreachBatch`` function is called with a batch, and only then; it is told neither that nothing comes nor that the query
is over. So the first batch starts a thread that waits for the end of the query, and looks at the policy meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from typing import Any, Protocol

from .rolling import RollingPolicy
from .sealing import Sealer

_log = logging.getLogger("connectors.files")
_EXIT_SECONDS = 60.0


class Run(Protocol):
    """One run of a streaming query."""

    id: str
    ends_by_itself: bool
    """True if it stops when it has read what was there (``availableNow``, ``once``)."""

    def offsets(self, batch: int) -> list[Any] | None:
        """Where each source will be after ``batch``, if that is known."""

    def wait(self, seconds: float) -> str:
        """Waits for the end, at most so long: ``"running"``, ``"ended"`` or ``"failed"``."""


_watched: dict[tuple[str, str], tuple[threading.Thread, Run]] = {}
"""The threads, by run and sink."""


def watch(sealer: Sealer, run: Run, seal_at_end: bool | None) -> None:
    """Lets the parts of ``run`` be sealed in time, and at its end."""
    key = (run.id, sealer.folder.hidden())
    if key not in _watched:
        ending = run.ends_by_itself if seal_at_end is None else seal_at_end
        work = (sealer, run, ending, key)
        thread = threading.Thread(target=_watch, args=work, name="connectors.files", daemon=True)
        _watched[key] = (thread, run)
        thread.start()


def pause(policy: RollingPolicy) -> float:
    """How many seconds to wait between two looks at the policy."""
    return max(0.1, min(30.0, policy.inactivity / 4, policy.rollover / 4))


def _watch(sealer: Sealer, run: Run, ending: bool, key: tuple[str, str]) -> None:
    with contextlib.suppress(Exception):  # the session is gone, and the query with it
        while (state := run.wait(pause(sealer.policy))) == "running":
            seal_what_is_due(sealer)
        seal_what_is_due(sealer, ending=ending and state == "ended")
    _watched.pop(key, None)


def seal_what_is_due(sealer: Sealer, *, ending: bool = False) -> None:
    """Seals; a failure is told in the log only, since no commit depends on it."""
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

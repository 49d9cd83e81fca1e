"""The folder of a run below ``runs/``, and the limit on runs of one job at the same time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from connectors.core.errors import Misconfigured, Problem

from .progress import Reporter

_POLL: Final = 0.5


def run_folder(job: Path) -> Path:
    """A new folder for a run, named by its time (UTC). Raises :class:`Misconfigured` when it cannot be made."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    for name in (stamp, *(f"{stamp}-{n}" for n in range(2, 1000))):
        try:
            (job / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as refused:
            raise _cannot_write(job, refused) from refused
        return job / name
    raise _cannot_write(job, OSError("a thousand runs in one second"))


@contextmanager
def one_of(places: int, job: Path, queued: bool, reporter: Reporter) -> Iterator[bool]:
    """Holds one of ``places`` of a job while it runs; False when none is free and the job is not ``queued``."""
    try:
        job.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise _cannot_write(job, refused) from refused
    with ExitStack() as stack:
        told = False
        while not (free := _take(max(1, places), job, stack)) and queued:
            if not told:
                reporter.note(f"{job.name}: waiting for another run of it to end (max_concurrent_runs: {places})")
            told = True
            time.sleep(_POLL)
        yield free


def _take(places: int, job: Path, stack: ExitStack) -> bool:
    for place in range(places):
        try:
            file = (job / f".running-{place}").open("w")
        except OSError as refused:
            raise _cannot_write(job, refused) from refused
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            stack.enter_context(file)
            return True
    return False


def _cannot_write(folder: Path, refused: OSError) -> Misconfigured:
    text = f"cannot be written: {refused.strerror or refused}. Name another folder by --runs."
    return Misconfigured("the run", [Problem(str(folder), text)])

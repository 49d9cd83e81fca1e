"""An SQLite file that many processes and threads change: the state of the doubles and services of this kit."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def transaction(path: str | Path) -> Iterator[sqlite3.Connection]:
    """One transaction; a kill undoes it. Others wait for its end."""
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        yield file
        file.execute("COMMIT")

"""Two attempts of a task at one epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from connectors.core.epochs import EpochLog


def two_attempts(
    reader: Callable[[], Any], split: Any, meanwhile: Callable[[], object] = lambda: None
) -> tuple[list[Any], list[Any]]:
    """The rows of a slow attempt, which reads before the other one begins and records after it; and those of the other one."""
    put, has_read, other_has_ended = EpochLog.put, threading.Event(), threading.Event()

    def slow_put(log: EpochLog, epoch: int, number: int, content: bytes) -> bool:
        has_read.set()
        other_has_ended.wait(10)
        return put(log, epoch, number, content)

    slow_rows: list[Any] = []
    slow_reader = reader()
    slow_reader.log.put = slow_put.__get__(slow_reader.log)
    thread = threading.Thread(target=lambda: slow_rows.extend(slow_reader.read(split)))
    thread.start()
    assert has_read.wait(10)
    meanwhile()
    rows = list(reader().read(split))
    other_has_ended.set()
    thread.join(10)
    return slow_rows, rows

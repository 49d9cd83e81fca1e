"""``taskTimeout``: a batch whose tasks give no sign is cancelled, so that it can be tried again.

A sign is a task that ends. On Spark Connect, where nobody can ask for that, it is the end of all of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..core.errors import Transient
from .session import ended_tasks, tagged_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOKS = 8
"""How often the tasks are looked at within the timeout."""


@contextlib.contextmanager
def watched_tasks(spark: SparkSession, timeout: float | None) -> Iterator[None]:
    """Cancels the jobs that are run inside when none of their tasks has ended for ``timeout`` seconds.

    Raises :class:`Transient` then: what a cancelled task answers later belongs to an attempt that is never committed.
    """
    if timeout is None:
        yield
        return
    over, expired, tasks = threading.Event(), threading.Event(), ended_tasks(spark)

    def watch(cancel: Callable[[], object]) -> None:
        last, since = tasks(), time.monotonic()
        while not over.wait(timeout / _LOOKS):
            if (ended := tasks()) != last:
                last, since = ended, time.monotonic()
            elif time.monotonic() - since >= timeout:
                expired.set()
                cancel()
                return

    with tagged_jobs(spark, f"connectors-{uuid.uuid4().hex}") as cancel:
        watcher = threading.Thread(target=watch, args=(cancel,), name="connectors.taskTimeout", daemon=True)
        watcher.start()
        try:
            yield
        except Exception:
            if expired.is_set():
                raise Transient(
                    f"no task of the batch has ended for {timeout:g} s (taskTimeout), so it was cancelled",
                    way_out="look at what the tasks wait for; raise taskTimeout if they only take long",
                ) from None
            raise
        finally:
            over.set()
            watcher.join()

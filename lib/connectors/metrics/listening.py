"""Hears of each batch of each query of a session, and looks at it in a thread of its own: Spark's is not to be held up."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .alerts import Observation
from .frame import as_dict, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("connectors.metrics")
_LATE_SECONDS: Final = 10.0
"""How long ``stop`` waits for what Spark still has to say about queries that have ended."""


class Listening:
    """A listener of ``spark`` and its thread. A subclass overrides :meth:`observed`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._open: set[str] = set()
        self._last: dict[str, Mapping[str, Any]] = {}
        self._stopped = threading.Event()
        self._listener = _listener(self)
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        spark.streams.addListener(self._listener)
        self._thread.start()

    def observed(self, seen: Observation, state: str) -> None:
        """A batch is done (``running``), or its query is over (``ended``, ``failed``): then the last batch once more."""

    def stop(self) -> None:
        """Takes in what queries that have ended still have to tell, and listens no more. May be called twice."""
        if self._stopped.is_set():
            return
        self._wait_for_the_late()
        self._spark.streams.removeListener(self._listener)
        self._stopped.set()
        self._events.put(("stop", None))
        self._thread.join(60)

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self, kind: str, event: Any) -> None:
        """Called by Spark, in order."""
        if kind == "started":
            self._open.add(str(event.runId))
        self._events.put((kind, as_dict(event.progress) if kind == "progress" else event))
        if kind == "over":
            self._open.discard(str(event.runId))

    def _wait_for_the_late(self) -> None:
        until = time.monotonic() + _LATE_SECONDS
        while time.monotonic() < until:
            running = {str(query.runId) for query in self._spark.streams.active}
            if not self._open - running:
                return
            time.sleep(0.02)

    def _work(self) -> None:
        kind = ""
        while kind != "stop":
            kind, event = self._events.get()
            try:
                self._handle(kind, event)
            except Exception:
                _log.warning("%s failed; the query goes on", type(self).__name__, exc_info=True)

    def _handle(self, kind: str, event: Any) -> None:
        if kind == "progress":
            self._last[str(event["id"])] = event
            self.observed(Observation(event, rows_of(str(event["id"]), event)), "running")
        elif kind == "over":
            query = str(event.id)
            progress = self._last.pop(query, None)
            seen = {"id": query, "runId": str(event.runId), "batchId": -1, "sources": [], **(progress or {})}
            self.observed(Observation(seen, rows_of(query, progress)), "failed" if event.exception else "ended")


def _listener(to: Listening) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
            to.take("started", event)

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            to.take("progress", event)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Nothing new."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            to.take("over", event)

    return Listener()

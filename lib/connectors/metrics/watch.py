"""Listeners of the queries of a session: the one that shows their progress while they run, and raises alerts.

A listener looks at each batch of each query in a thread of its own, so that Spark's thread goes on at once.
"""

from __future__ import annotations

import html
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from .alerts import Alert, LagGrows, NearTimeout, Observation, Rule, SlotGrows, Watchman, call_back, warn
from .frame import as_dict, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("connectors.metrics")
_LATE_SECONDS: Final = 10.0
"""The seconds that ``stop`` waits, at most, for Spark's last events of queries that have ended."""


class Listening:
    """A listener of ``spark`` and its thread. A subclass overrides :meth:`observed`."""

    between: float | None = None
    """The seconds between two calls of :meth:`between_batches`, about; ``None`` for none."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._open: set[str] = set()
        self._last: dict[str, Mapping[str, Any]] = {}
        self._stopped = machine.event()
        self._listener = _listener(self)
        self._thread = machine.thread(self._work, type(self).__name__)
        spark.streams.addListener(self._listener)
        self._thread.start()

    def observed(self, batch: Observation, state: str) -> None:
        """A batch is done (``running``), or its query is over (``ended``, ``failed``): then the last batch once more."""

    def between_batches(self) -> None:
        """Called again and again, whether a batch has ended or not."""

    def stop(self) -> None:
        """Waits for the last events of queries that have ended, and listens no more. May be called twice."""
        if self._stopped.is_set():
            return
        self.await_events()
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

    def await_events(self) -> None:
        """Waits, but not for ever, until Spark's events of queries that have ended have come and are handled."""
        until = machine.monotonic() + _LATE_SECONDS
        while machine.monotonic() < until:
            running = {str(query.runId) for query in self._spark.streams.active}
            if not self._open - running and not self._events.unfinished_tasks:
                return
            machine.sleep(0.02)

    def _work(self) -> None:
        kind, last = "", machine.monotonic()
        while kind != "stop":
            with suppress(queue.Empty):
                kind, event = self._events.get(timeout=self.between)
                self._safely(self.handle, kind, event)
                self._events.task_done()
            if self.between is not None and kind != "stop" and machine.monotonic() - last >= self.between:
                self._safely(self.between_batches)
                last = machine.monotonic()

    def _safely(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception:
            _log.warning("%s failed; the query goes on", type(self).__name__, exc_info=True)

    def handle(self, kind: str, event: Any) -> None:
        """Takes an event of Spark in the thread of its own: a query has ``started``, made ``progress``, or is ``over``."""
        if kind == "progress":
            self._last[str(event["id"])] = event
            self.observed(Observation(event, rows_of(str(event["id"]), event)), "running")
        elif kind == "over":
            query = str(event.id)
            progress = self._last.pop(query, None)
            last = {"id": query, "runId": str(event.runId), "batchId": -1, "sources": [], **(progress or {})}
            self.observed(Observation(last, rows_of(query, progress)), "failed" if event.exception else "ended")


def _listener(listening: Listening) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
            listening.take("started", event)

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            listening.take("progress", event)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Nothing new."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            listening.take("over", event)

    return Listener()


_HEADINGS: Final = ("query", "batch", "rows", "rows/s", "total", "lag", "last commit", "errors", "state")


def watch(
    spark: SparkSession,
    *,
    rules: Iterable[Rule] = (),
    on_alert: Callable[[Alert], None] = warn,
    show: bool = True,
) -> Watch:
    """From now on, shows each batch of every query of ``spark``, and asks ``rules``; ``stop()`` of the result ends that.

    In a notebook a table is kept up to date, in a terminal each batch is a line; ``show=False`` shows nothing.
    ``rules``: :class:`LagGrows`, :class:`LagAbove`, :class:`NearTimeout`, :class:`Stalled`, :class:`NoData`,
    :class:`ErrorsGrow`, :class:`SlotGrows`, or functions of your own; without any, ``LagGrows()``, ``NearTimeout()`` and
    ``SlotGrows()``. ``on_alert`` gets each :class:`Alert` once, in a thread of its own: a :func:`webhook`, or a function; by
    default it is a warning in the log ``connectors.metrics``. Raises :class:`~connectors.ground.errors.Misconfigured`.
    """
    active = tuple(rules) or (LagGrows(), NearTimeout(), SlotGrows())
    wrong = [repr(rule) for rule in active if isinstance(rule, type) or not callable(rule)]
    if wrong:
        raise Misconfigured("metrics.watch", [Problem("rules", f"must be such as LagGrows(5); got {', '.join(wrong)}")])
    return Watch(spark, Watchman(active, on_alert), screen() if show else None)


class Watch(Listening):
    """The watch that :func:`watch` returns; also a context manager. ``alerts`` are those that were raised."""

    def __init__(self, spark: SparkSession, watchman: Watchman, show: Callable[[str, tuple[str, ...]], None] | None) -> None:
        self.alerts: list[Alert] = []
        self._watchman, self._show = watchman, show
        self._on_alert, watchman.on_alert = watchman.on_alert, self._raised
        self._outbox: queue.SimpleQueue[Alert | None] = queue.SimpleQueue()
        self._sender = machine.thread(self._deliver, "connectors.alerts")
        self._sender.start()
        self._busy: dict[str, float] = {}
        self._fed: dict[str, float] = {}
        self.between = 1.0 if watchman.is_timed else None
        super().__init__(spark)

    def observed(self, batch: Observation, state: str) -> None:
        now = machine.monotonic()
        self._busy.pop(batch.query, None)
        if batch.input_rows or batch.query not in self._fed:
            self._fed[batch.query] = now
        batch = replace(batch, quiet=now - self._fed[batch.query])
        alerts = self._watchman.look(batch) if state == "running" else []
        if state != "running":
            del self._fed[batch.query]
        if self._show:
            self._show(batch.query, cells(batch, state, alerts))

    def between_batches(self) -> None:
        for query in self._spark.streams.active:
            self._safely(self._look_between, query)  # one that ends just now may not answer

    def _look_between(self, query: Any) -> None:
        key, now = str(query.id), machine.monotonic()
        status = query.status
        if status["isTriggerActive"] and status["isDataAvailable"]:
            self._busy.setdefault(key, now)
        else:
            self._busy.pop(key, None)
        last = self._last.get(key)
        progress = last or {"id": key, "runId": str(query.runId), "name": query.name, "batchId": -1, "sources": []}
        times = {"busy": now - self._busy.get(key, now), "quiet": now - self._fed.setdefault(key, now)}
        self._watchman.look(Observation(progress, rows_of(key, last), **times), between=True)

    def stop(self) -> None:
        """Also waits, but not for ever, until ``on_alert`` has had all alerts."""
        super().stop()
        self._outbox.put(None)
        if threading.current_thread() is not self._sender:
            self._sender.join(60)

    def _raised(self, alert: Alert) -> None:
        self.alerts.append(alert)
        self._outbox.put(alert)

    def _deliver(self) -> None:
        """Hands on alerts in a thread of its own: while a webhook hangs, the batches of others are still seen to end."""
        while (alert := self._outbox.get()) is not None:
            call_back(self._on_alert, alert)


def cells(batch: Observation, state: str, alerts: Iterable[Alert] = ()) -> tuple[str, ...]:
    """The cells that show a batch, in the order of the headings."""
    lags = batch.lags()
    commits = [row for row in batch.rows if row["last_commit"] is not None]
    newest = max(commits, key=lambda row: float(row["last_commit"]), default=None)
    read = sum(row["rows"] or 0 for row in batch.rows if row["component"].startswith("source"))
    messages = "; ".join(dict.fromkeys(alert.message for alert in alerts))
    return (
        batch.name,
        str(batch.batch) if batch.batch >= 0 else "-",
        f"{batch.input_rows:,}",
        f"{float(batch.progress.get('processedRowsPerSecond') or 0):,.0f}",
        f"{read:,}",
        f"{sum(lags.values()):,}" if lags else "-",
        _commit(newest["last_commit"], newest["commit_ms"]) if newest else "-",
        f"{sum(row['errors'] or 0 for row in batch.rows):,}",
        f"{state}: {messages}" if messages else state,
    )


def _commit(moment: float, milliseconds: int) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(moment))}, {milliseconds:,} ms"


def screen() -> Callable[[str, tuple[str, ...]], None]:
    """The function that shows progress: in a table of the notebook's running cell, or in lines of the terminal."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return _Table() if shell else _line


def _line(query: str, shown: tuple[str, ...]) -> None:
    name, batch, rows, rate, total, lag, commit, errors, state = shown
    parts = (f"{rows} rows", f"{rate} rows/s", f"{total} in all", f"lag {lag}", f"commit {commit}", f"{errors} errors", state)
    print(f"{name}: batch {batch}, {', '.join(parts)}", flush=True)


class _Table:
    """A table with a row per query, redrawn in place."""

    def __init__(self) -> None:
        from IPython import display

        shown: Any = display
        self._html = shown.HTML
        self._rows: dict[str, tuple[str, ...]] = {}
        self._handle = shown.display(self._html("<small>no batch yet</small>"), display_id=True)

    def __call__(self, query: str, shown: tuple[str, ...]) -> None:
        self._rows[query] = shown
        head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
        body = "".join(f"<tr>{_cells(row)}</tr>" for row in self._rows.values())
        self._handle.update(self._html(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"))


def _cells(row: tuple[str, ...]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in row)

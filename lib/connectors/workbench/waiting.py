"""``launch`` starts a streaming query until it runs; ``wait`` shows it until its rows are visible."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connectors.metrics.alerts import Observation
from connectors.metrics.frame import as_dict, rows_of
from connectors.metrics.history import ENDED, FAILED, RUNNING, QueryHistory
from connectors.metrics.log import QueryLog, known_log
from connectors.metrics.watch import cells, screen
from connectors.metrics.words import count, line, parts_of

from ..ground import machine
from ..ground.messages import message_in
from .card import Card
from .shim import in_notebook
from .start import running
from .task_record import record_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LAUNCHES: Final = 8
_LAUNCH_SECONDS: Final = 0.1
_SLOW_WORKER: Final = "to connect back"
_POLL_SECONDS: Final = 0.5
_SHOW_SECONDS: Final = 1.0
_SHOW_SHARE: Final = 20
"""Looking at the query takes at most 1/20 of the time."""


@dataclass(frozen=True)
class Summary:
    """The summary of one run of a streaming query: the ``rows`` that it read, the micro-batches with rows, and its duration.

    ``rows`` is ``None`` if Spark does not count them (``foreachBatch`` on Spark Connect). ``dead_letters`` counts since
    the query's first start.
    """

    query: str
    rows: int | None
    batches: int
    seconds: float
    dead_letters: int = 0

    def __str__(self) -> str:
        batches = "1 micro-batch" if self.batches == 1 else f"{self.batches:,} micro-batches"
        rows = "" if self.rows is None else f"{self.rows:,} rows in "
        letters = f", {count(self.dead_letters, 'dead letter')}" if self.dead_letters else ""
        return f"{self.query}: {rows}{batches}, {self.seconds:.1f} s{letters}"

    __repr__ = __str__


def launch(writer: DataStreamWriter) -> StreamingQuery:
    """Starts a query and returns it when it runs. Spark gives a Python process ten seconds to start, on any machine.

    If a start fails for that reason, it starts the query again. Raises any other error before the first batch.
    """
    for tries_left in reversed(range(_LAUNCHES)):
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            machine.sleep(_LAUNCH_SECONDS)
        error = query.exception()
        if error is None or not (tries_left and _SLOW_WORKER in str(error)):
            break
    if error is not None:
        raise error
    return query


def wait(query: StreamingQuery) -> Summary:
    """Shows ``query`` while it runs, and returns when it has ended and its rows are visible.

    In a notebook the cell shows rows, rows per second, batches, lag, dead letters, what the query waits for and, if
    known, the remaining time; it ends with a summary. In a terminal each batch is a line.
    After a plain ``awaitTermination`` the files of ``rolling=policy`` may still be hidden. On Spark Connect the same holds
    here for a sink by ``writeStream.format``: ``connectors files seal PATH`` shows them. Raises the query's error.
    """
    run = _Run(query)
    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
            run.show_progress()
        run.show_progress()
    except BaseException as error:
        run.show_end(FAILED if isinstance(error, Exception) else RUNNING, message_in(str(error)))
        raise
    _show_rows(query)
    run.show_end(ENDED)
    return run.summary()


def _show_rows(query: StreamingQuery) -> None:
    from connectors.spark.query_end import show_rows
    from connectors.systems import all_systems

    show_rows(query, {f"connectors.{name}": sink for name, (_, sink) in all_systems().items() if sink is not None})


class _Run:
    """The run of a query, as far as ``wait`` has seen it."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._log, self._history = _history_of(query)
        self._card = Card() if in_notebook() else None
        self._line = screen() if self._card is None else None
        self._began = machine.monotonic()
        self._rows: dict[int, int] = {}
        self._waits = False
        self._next_show = 0.0
        self._last: dict[str, Any] = {"id": str(query.id), "name": query.name, "batchId": -1, "sources": []}

    def show_progress(self) -> None:
        for event in self._query.recentProgress:
            progress = as_dict(event) or {}
            number = int(progress["batchId"])
            is_new = number not in self._rows
            self._rows[number] = max(self._rows.get(number, 0), int(progress.get("numInputRows") or 0))
            self._last = dict(progress)
            if is_new and self._log is None:
                self._history.add(progress)
            if is_new:
                self._print(RUNNING)
        if machine.monotonic() >= self._next_show:
            self._show()

    def show_end(self, state: str, error: str = "") -> None:
        if state != RUNNING and self._log is not None:
            with contextlib.suppress(Exception):  # the session may be stopped
                self._log.await_events()
        if state != RUNNING and self._history.ended is None:
            self._history.end(state, error)
        self._print(state)
        self._show()

    def _show(self) -> None:
        """Shows the card in a notebook. A terminal shows, between batches, only that the query waits for something."""
        began = machine.monotonic()
        standing = self._history.standing()
        self._next_show = began + max(_SHOW_SECONDS, _SHOW_SHARE * (machine.monotonic() - began))
        if self._card is not None:
            self._card.show(standing, list(self._history.batches))
        elif standing.waiting_for and not self._waits:
            print(f"{standing.name}: {line(parts_of(standing))}", flush=True)
        self._waits = bool(standing.waiting_for)
        record_query(self._history)

    def _print(self, state: str) -> None:
        """Prints the newest batch as a line in a terminal."""
        if self._line is not None:
            batch = Observation(self._last, rows_of(str(self._query.id), self._last))
            self._line(batch.query, cells(batch, state))

    def summary(self) -> Summary:
        batches = [rows for rows in self._rows.values() if rows]
        name, seconds = str(self._query.name or str(self._query.id)[:8]), machine.monotonic() - self._began
        letters = self._history.standing().dead_letters
        if not batches and hasattr(self._query, "_session"):  # Spark Connect
            return Summary(name, None, len(self._rows), seconds, letters)
        return Summary(name, sum(batches), len(batches), seconds, letters)


def _history_of(query: StreamingQuery) -> tuple[QueryLog | None, QueryHistory]:
    """The history of a run from the log of its session; empty if there is none."""
    session = getattr(query, "_jsq", None) and running()
    log = known_log(session) if session else None
    history = log.run(str(query.runId)) if log else None
    if history is not None:
        return log, history
    return None, QueryHistory(str(query.id), str(query.runId), query.name, from_start=False)

"""``wait``: a streaming query until its rows can be seen, shown while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from connectors.metrics.alerts import Observation
from connectors.metrics.frame import as_dict, rows_of
from connectors.metrics.watch import cells, screen

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Summary:
    """What one run of a streaming query did: the ``rows`` that it read, the micro-batches that had some, and its time.

    ``rows`` is ``None`` where Spark does not count them (``foreachBatch`` on Spark Connect).
    """

    query: str
    rows: int | None
    batches: int
    seconds: float

    def __str__(self) -> str:
        batches = "1 micro-batch" if self.batches == 1 else f"{self.batches:,} micro-batches"
        rows = "" if self.rows is None else f"{self.rows:,} rows in "
        return f"{self.query}: {rows}{batches}, {self.seconds:.1f} s"

    __repr__ = __str__


def wait(query: StreamingQuery) -> Summary:
    """Shows ``query`` while it runs, and returns when it has ended and its rows can be seen.

    After a plain ``awaitTermination`` the files of ``rolling=policy`` may still be hidden. On Spark Connect that is so here,
    too, for a sink by ``writeStream.format``: ``connectors files seal PATH`` shows them. Raises what the query died of.
    """
    run = _Run(query)
    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
            run.show_progress()
        run.show_progress()
    except BaseException as error:
        run.show_end("failed" if isinstance(error, Exception) else "running")
        raise
    _show_rows(query)
    run.show_end("ended")
    return run.summary()


def _show_rows(query: StreamingQuery) -> None:
    from connectors.spark.query_end import show_rows
    from connectors.systems import all_systems

    show_rows(query, {f"connectors.{name}": sink for name, (_, sink) in all_systems().items() if sink is not None})


class _Run:
    """What has been seen of the run of a query."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._show = screen()
        self._began = time.monotonic()
        self._rows: dict[int, int] = {}
        self._last: dict[str, Any] = {"id": str(query.id), "name": query.name, "batchId": -1, "sources": []}

    def show_progress(self) -> None:
        for event in self._query.recentProgress:
            progress = as_dict(event) or {}
            number = int(progress["batchId"])
            is_new = number not in self._rows
            self._rows[number] = max(self._rows.get(number, 0), int(progress.get("numInputRows") or 0))
            self._last = dict(progress)
            if is_new:
                self._show_last("running")

    def show_end(self, state: str) -> None:
        self._show_last(state)

    def _show_last(self, state: str) -> None:
        batch = Observation(self._last, rows_of(str(self._query.id), self._last))
        self._show(batch.query, cells(batch, state))

    def summary(self) -> Summary:
        batches = [rows for rows in self._rows.values() if rows]
        name, seconds = str(self._query.name or str(self._query.id)[:8]), time.monotonic() - self._began
        if not batches and hasattr(self._query, "_session"):  # Spark Connect
            return Summary(name, None, len(self._rows), seconds)
        return Summary(name, sum(batches), len(batches), seconds)

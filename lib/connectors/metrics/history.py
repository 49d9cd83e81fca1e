"""One run of a query: the batches that its progress has told of, and where it stands now."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.progress import behind
from ..ground import machine
from .alerts import Observation
from .frame import Row, offset_rows, rows_of

RUNNING, ENDED, FAILED = "running", "ended", "failed"
"""The states of a run."""
BATCHES: Final = 2000
"""A history keeps so many of the newest batches."""
_WINDOW_SECONDS: Final = 60.0
"""Rates are those of batches that have ended within so many seconds."""


@dataclass(frozen=True)
class BatchRecord:
    """A micro-batch that is done: ``at`` is its end in seconds since 1970, ``lag`` what it left unread, if that is known.

    ``lag`` is in records, or else in the unit of the source's positions.
    """

    number: int
    at: float
    rows: int
    seconds: float
    lag: int | None = None


@dataclass(frozen=True)
class Standing:
    """The standing of a query: what a person wants to know of it while it runs, and at its end.

    ``rows``, ``batches`` and ``seconds`` are those of this run, ``dead_letters`` and ``retries`` totals of the query.
    ``lag`` counts records, or bytes, as ``unit`` says. ``waiting_for`` is the error of a system that the query waits for
    ``waiting_seconds`` already. ``left`` are the seconds to the end, where that is known. While a snapshot runs,
    ``snapshot_rows`` are read, of about ``snapshot_total``. ``table`` is the query's table.
    """

    query: str
    name: str
    state: str = RUNNING
    rows: int = 0
    rate: float | None = None
    batches: int = 0
    lag: int | None = None
    unit: str = "records"
    dead_letters: int = 0
    retries: int = 0
    waiting_for: str = ""
    waiting_seconds: float = 0.0
    seconds: float = 0.0
    left: float | None = None
    snapshot_rows: int | None = None
    snapshot_total: int | None = None
    table: Sequence[Row] = field(default=(), repr=False)


class QueryHistory:
    """The run ``run`` of the query with the id ``query``, from its start.

    ``ends_by_itself`` is true where the run ends when it has read what there was at its start, so that its end is known.
    ``from_start`` is false where the run may have read something already: then rows are counted by batches alone.
    """

    def __init__(
        self, query: str, run: str = "", name: str | None = None, *, ends_by_itself: bool = False, from_start: bool = True
    ) -> None:
        self.query, self.run = query, run
        self.name = name or query[:8]
        self.ends_by_itself = ends_by_itself
        self.started = machine.time()
        self.ended: float | None = None
        self.state = RUNNING
        self.error = ""
        self.batches: deque[BatchRecord] = deque(maxlen=BATCHES)
        self.rows = self.count = 0
        self.progress: Mapping[str, Any] | None = None
        self._rows_before = _rows_read(rows_of(query, None)) or 0 if from_start else None

    def add(self, progress: Mapping[str, Any]) -> None:
        """Takes the progress of a batch. One without rows counts as a batch if it is new: Spark tells of idle times, too."""
        batch = Observation(progress, offset_rows(progress))
        self.progress = progress
        lag = lag_of(batch.rows)
        record = BatchRecord(batch.batch, batch.at.timestamp(), batch.input_rows, batch.seconds, lag)
        if self.batches and self.batches[-1].number == record.number:
            self.rows += record.rows - self.batches[-1].rows
            self.batches[-1] = record
        elif record.rows:
            self.rows += record.rows
            self.count += 1
            self.batches.append(record)

    def end(self, state: str, error: str = "") -> None:
        """The run is over: ``ended`` or ``failed``."""
        self.state, self.error, self.ended = state, error, machine.time()

    def standing(self) -> Standing:
        """The standing of the query now. Reads its files, so it also counts tasks of the batch that runs."""
        table = rows_of(self.query, self.progress)
        now = self.ended or machine.time()
        waiting = min((row for row in table if row["waiting_since"]), key=lambda row: float(row["waiting_since"]), default=None)
        read = _rows_read(table)
        snapshot: Row = next((row for row in table if row.get("snapshot_runs") and self.state == RUNNING), {})
        lag = self.batches[-1].lag if self.batches else None
        return Standing(
            self.query,
            self.name,
            self.state,
            rows=self.rows if read is None or self._rows_before is None else max(0, read - self._rows_before),
            rate=self._rate(now),
            batches=self.count,
            lag=lag,
            unit=unit_of(table),
            dead_letters=sum(row["dead_letters"] or 0 for row in table),
            retries=sum(row["retries"] or 0 for row in table),
            waiting_for=waiting["waiting_for"] if waiting and self.state == RUNNING else "",
            waiting_seconds=now - waiting["waiting_since"] if waiting else 0.0,
            seconds=now - self.started,
            left=self._left(now) if self.state == RUNNING else None,
            snapshot_rows=snapshot.get("snapshot_rows"),
            snapshot_total=snapshot.get("snapshot_total"),
            table=table,
        )

    def _newest(self, now: float) -> list[BatchRecord]:
        """The batches that tell how fast the query is: those of the last minute, or else the last two."""
        batches = list(self.batches)  # in one step: another thread adds to them
        recent = [batch for batch in batches if now - batch.at < _WINDOW_SECONDS]
        return recent if len(recent) > 1 else batches[-2:]

    def _rate(self, now: float) -> float | None:
        batches = self._newest(now) if self.state == RUNNING else list(self.batches)
        seconds = sum(batch.seconds for batch in batches)
        return sum(batch.rows for batch in batches) / seconds if seconds else None

    def _left(self, now: float) -> float | None:
        """The seconds to the end, by how fast the lag has become smaller."""
        batches = [batch for batch in self._newest(now) if batch.lag is not None]
        if not self.ends_by_itself or len(batches) < 2:
            return None
        first, last = batches[0], batches[-1]
        less = (first.lag or 0) - (last.lag or 0)
        if less <= 0 or not last.lag:
            return None
        return max(0.0, last.lag * (last.at - first.at) / less - (now - last.at))


def _rows_read(table: Sequence[Row]) -> int | None:
    """The rows that the query's sources have counted; ``None`` where none of them counts."""
    counts = [row["rows"] for row in table if row["component"].startswith("source ") and row["rows"] is not None]
    return sum(counts) if counts else None


def lag_of(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The lag: what is left to read, as far as it can be counted; ``None`` where it cannot."""
    known = [row for row in rows if row["lag_records"] is not None or isinstance(row["latest"], int)]
    lags = [behind(row["lag_records"], row["position"], row["latest"]) for row in known]
    return sum(lags) if lags else None


def unit_of(table: Sequence[Row]) -> str:
    """The unit of the lag: ``records``, ``bytes``, or empty where it has no name."""
    lags = [row for row in table if row["latest"] is not None or row["lag_records"] is not None]
    if all(row["lag_records"] is not None for row in lags):
        return "records"
    from ..systems import all_systems

    systems = all_systems()
    names = {row["component"].split()[1] for row in lags}
    units = {source.position_unit for name in names if name in systems and (source := systems[name][0]) is not None}
    return units.pop() if len(units) == 1 else ""

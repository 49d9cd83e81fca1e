"""Rules for alerts, which look at each batch of a query, and the alerts that they raise.

A rule is any function of an :class:`Observation` that yields alerts; those here are small classes. A rule is asked after
each batch, and one with the attribute ``timed`` each second, too: a batch that never ends is told by no batch. It says the
same thing once, and again only after it was over in between.
"""

from __future__ import annotations

import datetime
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ..core.progress import behind
from ..ground.errors import Misconfigured, Problem
from ..ground.options import Duration, Size

_log = logging.getLogger("connectors.metrics")


@dataclass(frozen=True)
class Observation:
    """One batch of a query: its progress as Spark tells it, and the ``rows`` of its table as plain values.

    ``busy`` are the seconds that the next batch has been under way, 0 while there is nothing to do; ``quiet`` those since the
    last batch that had rows, or since the watch began.
    """

    progress: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    busy: float = 0.0
    quiet: float = 0.0

    @property
    def query(self) -> str:
        return str(self.progress["id"])

    @property
    def name(self) -> str:
        """The query's name, or the beginning of its id."""
        return str(self.progress.get("name") or self.query[:8])

    @property
    def batch(self) -> int:
        return int(self.progress["batchId"])

    @property
    def at(self) -> datetime.datetime:
        """The time when the batch ended; now, where Spark does not tell."""
        timestamp = self.progress.get("timestamp")
        if not timestamp:
            return datetime.datetime.now(datetime.timezone.utc)
        start = datetime.datetime.fromisoformat(str(timestamp).replace("Z", "+00:00"))
        return start + datetime.timedelta(seconds=self.seconds)

    @property
    def seconds(self) -> float:
        """The seconds that the batch took, from planning to Spark's own commit; 0 where Spark does not tell."""
        return float(self.progress.get("batchDuration") or 0) / 1000

    @property
    def input_rows(self) -> int:
        return int(self.progress.get("numInputRows") or 0)

    def lags(self) -> dict[tuple[str, str], int]:
        """The lag of each partition whose lag is known, in records or else in the source's unit."""
        return {
            (row["component"], row["partition"]): behind(row["lag_records"], row["position"], row["latest"])
            for row in self.rows
            if row["latest"] is not None or row["lag_records"] is not None
        }


@dataclass(frozen=True)
class Alert:
    """Something that somebody should look at. ``partition`` is empty where it is about the whole component or query."""

    rule: str
    query: str
    batch: int
    message: str
    component: str = ""
    partition: str = ""


Rule = Callable[[Observation], Iterator[Alert]]
"""A function that looks at a batch and says what is wrong now; whoever calls it tells what is new."""


def _growths(before: dict[Any, tuple[int, int]], key: Any, number: int) -> int:
    """How often in a row ``number`` has grown, by what was seen of it ``before``. A number that stays changes nothing."""
    last, times = before.get(key, (number, 0))
    times = times + 1 if number > last else times if number == last else 0
    before[key] = (number, times)
    return times


@dataclass
class LagGrows:
    """The lag of a partition is larger than in the batch before, ``batches`` times in a row, and above ``floor``."""

    batches: int = 5
    floor: int = 0
    _before: dict[Any, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        for (component, partition), lag in batch.lags().items():
            key = (batch.query, component, partition)
            times = _growths(self._before, key, lag)
            if times >= self.batches and lag > self.floor:
                text = f"the lag has grown for {times} batches, to {lag:,}"
                yield Alert("lag_grows", batch.query, batch.batch, text, component, partition)


@dataclass
class SlotGrows:
    """The log that PostgreSQL keeps for a slot has grown ``batches`` times in a row, and is above ``floor`` ("1GB", or bytes).

    It alerts at once where ``wal_status`` is ``unreserved`` or ``lost``: the server is about to remove that log, or has removed
    it.
    """

    batches: int = 5
    floor: int | str = "1GB"
    _before: dict[Any, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.floor = _size("metrics.SlotGrows", "floor", self.floor)

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        for row in batch.rows:
            where, lag, status = (row["component"], row["partition"]), row["slot_lag_bytes"], row["wal_status"]
            if status in _ENDS:
                yield Alert(f"slot_{status}", batch.query, batch.batch, _ENDS[status], *where)
            if lag is None:
                continue
            times = _growths(self._before, (batch.query, *where), lag)
            if times >= self.batches and lag > int(self.floor):
                text = f"the log that the database keeps for the slot has grown {times} times, to {lag:,} bytes"
                yield Alert("slot_grows", batch.query, batch.batch, text, *where)


_ENDS: Final = {
    "unreserved": "the slot is behind by more than max_slot_wal_keep_size: a checkpoint of the database removes its log, "
    "unless the query catches up before",
    "lost": "the database has removed the log of the slot: the query needs a new snapshot",
}
"""The states of a slot that cannot last, and what they mean."""


@dataclass(frozen=True)
class LagAbove:
    """The lag of a partition is above ``records`` (or units of its position), or above ``seconds`` ("10 minutes")."""

    records: int | None = None
    seconds: float | str | None = None

    def __post_init__(self) -> None:
        if self.records is None and self.seconds is None:
            raise Misconfigured("metrics.LagAbove", [Problem("records", "missing; give records, seconds or both.")])
        if self.seconds is not None:
            object.__setattr__(self, "seconds", _duration("metrics.LagAbove", "seconds", self.seconds))

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        lags = batch.lags()
        for row in batch.rows:
            where, waited = (row["component"], row["partition"]), row["lag_seconds"]
            if self.records is not None and lags.get(where, 0) > self.records:
                text = f"the lag is {lags[where]:,}, above {self.records:,}"
                yield Alert("lag_above", batch.query, batch.batch, text, *where)
            elif self.seconds is not None and waited is not None and waited > float(self.seconds):
                text = f"records have waited for {waited:.1f} s, above {float(self.seconds):g} s"
                yield Alert("lag_above", batch.query, batch.batch, text, *where)


@dataclass(frozen=True)
class NearTimeout:
    """A transaction, commit or batch took more than ``share`` of a timeout, after which a target would give it up.

    Without ``timeout`` a sink's transactions are compared with the sink's own one, such as ``transactionTimeout`` of Kafka;
    a sink that tells none is left out. A ``timeout`` (of a lock or session, "15 minutes") is for each batch and commit.
    """

    timeout: float | str | None = None
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.timeout is not None:
            object.__setattr__(self, "timeout", _duration("metrics.NearTimeout", "timeout", self.timeout))

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        if self.timeout is None:
            yield from self._near_own(batch)
            return
        limit = float(self.timeout)
        times = {"": ("the batch", batch.seconds)}
        for row in batch.rows:
            if row["commit_ms"] is not None:
                times[row["component"]] = ("its commit", row["commit_ms"] / 1000)
        for component, (what, seconds) in times.items():
            if seconds > limit * self.share:
                text = f"{what} took {seconds:.1f} s; the timeout is {limit:g} s"
                yield Alert("near_timeout", batch.query, batch.batch, text, component)

    def _near_own(self, batch: Observation) -> Iterator[Alert]:
        for row in batch.rows:
            milliseconds, limit = row["transaction_ms"], row["timeout_ms"]
            if limit is not None and milliseconds > limit * self.share:
                text = f"its transaction took {milliseconds / 1000:.1f} s; the target ends one after {limit / 1000:g} s"
                yield Alert("near_timeout", batch.query, batch.batch, text, row["component"])


@dataclass(frozen=True)
class _Clock:
    """A rule about a time in which no batch ends."""

    seconds: float | str
    timed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", _duration(f"metrics.{type(self).__name__}", "seconds", self.seconds))


@dataclass(frozen=True)
class Stalled(_Clock):
    """Input is there, and its batch has not ended for ``seconds`` ("5 minutes"). A source without input is silent."""

    seconds: float | str = 300.0

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        if batch.busy > float(self.seconds):
            outages = dict.fromkeys(str(row["waiting_for"]) for row in batch.rows if row["waiting_for"])
            why = f"; it waits for: {'; '.join(outages)}" if outages else ""
            yield Alert("stalled", batch.query, batch.batch, f"a batch has been under way for {batch.busy:.0f} s{why}")


@dataclass(frozen=True)
class NoData(_Clock):
    """No batch has had a row for ``seconds`` ("1 hour"): for a source that is never quiet for so long.

    The time of a running batch does not count. A batch without a row, such as one of Kafka's commit markers, ends no silence.
    """

    seconds: float | str = 3600.0

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        if batch.quiet - batch.busy > float(self.seconds):
            yield Alert("no_data", batch.query, batch.batch, f"no row has come for {batch.quiet:.0f} s")


@dataclass
class ErrorsGrow:
    """The errors of a component have grown in each of ``batches`` batches in a row, by more than ``floor`` in each."""

    batches: int = 3
    floor: int = 0
    _before: dict[Any, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __call__(self, batch: Observation) -> Iterator[Alert]:
        totals: Counter[str] = Counter()
        for row in batch.rows:
            totals[row["component"]] += row["errors"] or 0
        for component, errors in totals.items():
            last, times = self._before.get((batch.query, component), (errors, 0))
            times = times + 1 if errors - last > self.floor else 0
            self._before[batch.query, component] = (errors, times)
            if times >= self.batches:
                text = f"its errors have grown for {times} batches, to {errors:,}"
                yield Alert("errors_grow", batch.query, batch.batch, text, component)


class Watchman:
    """Asks ``rules`` about each batch and tells ``on_alert`` what was not so in the batch before."""

    def __init__(self, rules: Sequence[Rule], on_alert: Callable[[Alert], None]) -> None:
        self.rules = tuple(rules)
        self.on_alert = on_alert
        self._standing: dict[tuple[str, int], set[Any]] = {}
        self._failing: set[tuple[str, int]] = set()

    @property
    def is_timed(self) -> bool:
        """True if a rule is asked also while no batch ends."""
        return any(map(_is_timed, self.rules))

    def look(self, batch: Observation, *, between: bool = False) -> list[Alert]:
        """The alerts of this batch, old and new; ``between`` batches, those of timed rules.

        A rule that fails is one warning until it works again, and what it has said stands until then. A callback that fails
        is a warning. Neither is the query's end.
        """
        alerts = []
        for number, rule in enumerate(self.rules):
            if between and not _is_timed(rule):
                continue
            key = (batch.query, number)
            now = self._alerts_of(rule, batch, key)
            if now is None:
                continue
            before = self._standing.pop(key, set())
            if now:
                self._standing[key] = {_what(alert) for alert in now}
            for alert in now:
                if _what(alert) not in before:
                    call_back(self.on_alert, alert)
            alerts += now
        return alerts

    def _alerts_of(self, rule: Rule, batch: Observation, key: tuple[str, int]) -> list[Alert] | None:
        try:
            alerts = list(rule(batch))
        except Exception:
            if key not in self._failing:
                _log.warning("the rule %r failed", rule, exc_info=True)
            self._failing.add(key)
            return None
        self._failing.discard(key)
        return alerts


def warn(alert: Alert) -> None:
    """The default: a warning in the log ``connectors.metrics``."""
    about = " ".join(filter(None, (alert.component, alert.partition)))
    _log.warning("%s: query %s, batch %d%s: %s", alert.rule, alert.query, alert.batch, about and f", {about}", alert.message)


def _is_timed(rule: Rule) -> bool:
    return bool(getattr(rule, "timed", False))


def _what(alert: Alert) -> tuple[str, str, str]:
    return alert.rule, alert.component, alert.partition


def call_back(on_alert: Callable[[Alert], None], alert: Alert) -> None:
    """Hands ``alert`` to ``on_alert``, whose failure is a warning."""
    try:
        on_alert(alert)
    except Exception:
        _log.warning("the callback for alerts failed at %r", alert, exc_info=True)


def _duration(rule: str, option: str, text: float | str) -> float:
    try:
        return float(Duration(None).parse(text if isinstance(text, str) else f"{text:f}s"))
    except ValueError as wrong:
        raise Misconfigured(rule, [Problem(option, f"must be {wrong}; got {text!r}")]) from None


def _size(rule: str, option: str, text: int | str) -> int:
    try:
        return Size(None).parse(str(text))
    except ValueError as wrong:
        raise Misconfigured(rule, [Problem(option, f"must be {wrong}; got {text!r}")]) from None

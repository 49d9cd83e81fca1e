"""``Checks``: several checks, applied to rows before they are written and to a table afterwards."""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem
from ..ground.state import digest
from ..spark.foreach_batch import ForeachBatch, Several
from ..spark.library import Carried
from .check import Check, RowCheck, literal, quoted
from .report import CheckOutcome, Report, announce
from .row_checks import Expression
from .set_checks import RowCount, Unique

FAILED_CHECKS = "failed_checks"
"""The column of quarantined rows with the names of the checks that each row failed."""

DELIVERED_AT = "delivered_at"
"""The column of delivered keys with the time when their batch was delivered."""

Sink = Callable[[DataFrame, int], Any]
"""A function of (DataFrame, batch id) that writes a batch, such as ``connectors.foreach_batch(...)`` returns."""

_log = logging.getLogger("connectors.quality")
_SAMPLES = 5


class SplitFrames(NamedTuple):
    """The two parts of a DataFrame. Every row of the input is in exactly one of them."""

    good: DataFrame
    quarantined: DataFrame


class Checks:
    """Checks that belong together, each with its own name.

    ``row_checks`` has the names of checks on single rows, ``set_checks`` of those on all rows together
    (``unique``, ``row_count``, ``fresh``). :meth:`split` and :meth:`foreach_batch` apply the row checks,
    :meth:`validate` applies all. Null passes every check except ``not_null``. ``unchecked`` has the statements of a data
    contract that no check judges.

    Raises :class:`~connectors.ground.errors.Misconfigured` with every problem: of the arguments here, of the
    columns at first use (unknown names, types, regular expressions).
    """

    def __init__(self, checks: Sequence[Check], *, unchecked: Sequence[str] = ()) -> None:
        self.checks = tuple(checks)
        self.unchecked = tuple(unchecked)
        _refuse(_problems(self.checks))
        self._fitting: set[str] = set()

    @property
    def row_checks(self) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.is_row_check)

    @property
    def set_checks(self) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if not check.is_row_check)

    def __repr__(self) -> str:
        lines = [f"  {check.name:<40} {'row' if check.is_row_check else 'set'}" for check in self.checks]
        more = [f"not checked: {', '.join(self.unchecked)}"] if self.unchecked else []
        return "\n".join([f"{len(self.checks)} checks; set checks are judged by validate() only:", *lines, *more])

    def mark(self, df: DataFrame) -> DataFrame:
        """``df`` with the column ``failed_checks`` (array of text): the names of the row checks that a row fails."""
        self._must_fit(df)
        if FAILED_CHECKS in df.columns:
            _refuse([Problem(FAILED_CHECKS, "is a column of the input already; drop it before checking again")])
        failed = [
            sf.when(sf.expr(check.failed), sf.lit(check.name)) for check in self.checks if isinstance(check, RowCheck)
        ]
        names = sf.array_compact(sf.array(*failed)) if failed else sf.array()
        return df.withColumn(FAILED_CHECKS, names.cast("array<string>"))

    def split(self, df: DataFrame) -> SplitFrames:
        """``(good, quarantined)``; the second has the column ``failed_checks``. For a batch or a stream.

        Lazy like any transformation: an action on both parts computes the input twice. To write both parts in one
        pass over a batch, call the function of :meth:`foreach_batch` directly.
        """
        self._log_set_checks()
        return _parts(self.mark(df))

    def foreach_batch(
        self, *, good: Sink, quarantined: Sink, keys: Sink | None = None, counts: Sink | None = None
    ) -> SplitBatch:
        """A function for ``writeStream.foreachBatch`` that passes each batch's rows to ``good`` or ``quarantined``.

        It calls both for every batch, even if their part is empty, ``quarantined`` first. The batch is computed once.
        If a sink fails, Spark replays the batch to both under the same id, so both should be idempotent. If
        ``quarantined`` is the sink ``delta``, or several sinks with it, it records the rules with its rows. A half-done batch
        then cannot be split by other rules. With another quarantine, change the rules only while no batch is half done: a sink
        that stages rows compares the rows of a replay, Kafka only their number.
        ``keys`` is called after ``good``, with the distinct values of the columns of the check ``unique`` in the good rows, and
        the time ``delivered_at``. ``counts`` is called last, with one row: the columns of :class:`BatchCounts`. These two
        record only delivered rows. You can also call the function for a single batch: ``checks.foreach_batch(...)(df, 0)``.
        """
        sinks = {"good": good, "quarantined": quarantined, "keys": keys, "counts": counts}
        optional = ("keys", "counts")
        problems = [
            Problem(key, f"must be a function of (DataFrame, batch id); got {type(sink).__name__}")
            for key, sink in sinks.items()
            if not (callable(sink) or (sink is None and key in optional))
        ]
        if keys is not None and not self.key:
            problems.append(Problem("keys", "needs a check unique(…), which says what the keys are."))
        _refuse(problems)
        self._log_set_checks()
        return SplitBatch(self, good, quarantined, keys, counts)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the first check ``unique``; none without one."""
        return next((tuple(check.columns) for check in self.checks if isinstance(check, Unique)), ())

    def validate(self, df: DataFrame, name: str = "output") -> Report:
        """Great Expectations' verdict of all checks on a written output, with a few failing rows of each check.

        The report and its error call the output ``name``. An output without rows fails, unless the checks include a
        ``row_count(min=0)``. Raises :class:`~connectors.ground.errors.ConnectorError` if a check cannot be computed
        at all, and :class:`~connectors.ground.errors.Misconfigured` if checks do not fit the columns or Great Expectations
        is not installed.
        """
        if df.isStreaming:
            _refuse([Problem("df", "is a stream; validate() judges what was written: read it with spark.read")])
        self._must_fit(df)
        client_library("great_expectations", "'great-expectations>=1.5'", connector="quality", option="validate")
        from .expectations import judge

        checks = self.checks
        if not any(isinstance(check, RowCount) for check in checks):
            checks = (RowCount("row_count(min=1)"), *checks)
            _refuse(_problems(checks))
        with _cached(df):
            result = judge(df, checks, name)
            return announce(Report(name, _outcomes(df, checks, result), result))

    def _must_fit(self, df: DataFrame) -> None:
        schema = df.schema.json()
        if schema not in self._fitting:
            with _spark_unlogged():
                problems = [Problem(check.name, text) for check in self.checks for text in _misfits(check, df)]
            _refuse(problems)
            self._fitting.add(schema)

    def _log_set_checks(self) -> None:
        if self.set_checks:
            _log.info("not applied to single rows, only by validate(): %s", ", ".join(self.set_checks))


def claims(spark: SparkSession, holds: Mapping[str, bool], name: str = "claims") -> Report:
    """The verdict on ``holds``, which maps a claim's text to its truth: one check for each, which fails if it is false."""
    rows = spark.createDataFrame([(text, bool(value)) for text, value in holds.items()], "claim string, holds boolean")
    checks = [Expression(text, (), f"holds OR claim <> {literal(text)}") for text in holds]
    return Checks(checks).validate(rows, name)


class BatchCounts(NamedTuple):
    """The rows of one batch; ``rows == good + quarantined``."""

    batch_id: int
    rows: int
    good: int
    quarantined: int


class SplitBatch(Carried):
    """The function that :meth:`Checks.foreach_batch` returns. ``last`` has the counts of the last finished batch.

    On Spark Connect a stream calls a copy of it on the server, so ``last`` stays None at the client. The counts are
    in the server's log ``connectors.quality``.
    """

    def __init__(
        self, checks: Checks, good: Sink, quarantined: Sink, keys: Sink | None = None, counts: Sink | None = None
    ) -> None:
        self._checks, self._good, self._quarantined, self._keys, self._counts = checks, good, quarantined, keys, counts
        self.last: BatchCounts | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        with _cached(self._checks.mark(df)) as marked:
            counts = _counted(marked, batch_id)
            parts = _parts(marked)
            if isinstance(self._quarantined, (ForeachBatch, Several)):
                self._quarantined(parts.quarantined, batch_id, self._recipe(df))
            else:
                self._quarantined(parts.quarantined, batch_id)
            self._good(parts.good, batch_id)
            if self._keys is not None:
                keys = parts.good.select(*map(quoted, self._checks.key)).distinct()
                self._keys(keys.withColumn(DELIVERED_AT, sf.current_timestamp()), batch_id)
        if self._counts is not None:
            self._counts(df.sparkSession.createDataFrame([counts]), batch_id)
        self.last = counts
        _log.info("batch %d: %d rows = %d good + %d quarantined", *counts)

    def _recipe(self, df: DataFrame) -> str:
        """A digest of everything that decides to which sink a row goes."""
        rows = (check for check in self._checks.checks if isinstance(check, RowCheck))
        predicates = {check.sql if isinstance(check, Expression) else check.predicate for check in rows}
        zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
        return digest(*sorted(predicates), zone, *(self._checks.key if self._keys is not None else ()))


@contextlib.contextmanager
def _cached(df: DataFrame) -> Iterator[DataFrame]:
    """``df``, cached in memory or on disk inside the ``with``; a frame that the user cached stays cached afterwards."""
    try:
        level = df.storageLevel
        is_new = not (level.useMemory or level.useDisk)
        if is_new:
            df.persist()
    except PySparkException as refused:  # Serverless compute has no cache; there the plan is computed again.
        _log.info("not cached, so read more than once: %s", refused)
        is_new = False
    try:
        yield df
    finally:
        if is_new:
            df.unpersist()


def _counted(marked: DataFrame, batch_id: int) -> BatchCounts:
    """The counts of a batch. Call it first: it computes the whole batch into the cache, whatever part a sink reads."""
    counted = marked.agg(sf.count("*"), sf.count_if(_passed()), sf.count_if(~_passed())).first()
    assert counted is not None, "an aggregate without groups has one row"
    return BatchCounts(batch_id, *counted)


def _parts(marked: DataFrame) -> SplitFrames:
    return SplitFrames(marked.where(_passed()).drop(FAILED_CHECKS), marked.where(~_passed()))


def _passed() -> Column:
    return sf.size(FAILED_CHECKS) == 0


def _problems(checks: Sequence[Check]) -> Iterator[Problem]:
    wrong = [check for check in checks if not isinstance(check, Check)]
    if not checks:
        yield Problem("checks", "is empty; give at least one, such as quality.not_null('id')")
    for other in wrong:
        yield Problem("checks", f"takes what quality.not_null(…) and the others return; got {other!r}")
    right = [check for check in checks if isinstance(check, Check)]
    for check in right:
        for text in check.problems():
            yield Problem(check.name, text)
    for name, times in Counter(check.name for check in right).items():
        if times > 1:
            yield Problem(name, f"is given {times} times; remove it or tell them apart by name=…")


def _misfits(check: Check, df: DataFrame) -> Iterator[str]:
    missing = [column for column in check.columns if column not in df.columns]
    for column in missing:
        yield f'"{column}" is no column{_hint(column, df.columns)}'
    if not missing:
        yield from check.misfits(df)


@contextlib.contextmanager
def _spark_unlogged() -> Iterator[None]:
    """Turns off PySpark's log of a failed analysis, a page of Java, for errors that are reported in one line."""
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _hint(name: str, existing: Sequence[str]) -> str:
    spelled = {column.lower(): column for column in existing}
    close = difflib.get_close_matches(name.lower(), list(spelled), n=1)
    return f'; did you mean "{spelled[close[0]]}"?' if close else f"; there are {', '.join(existing)}"


def _refuse(problems: Sequence[Problem] | Iterator[Problem]) -> None:
    listed = list(problems)
    if listed:
        raise Misconfigured("quality.Checks", listed)


def _outcomes(df: DataFrame, checks: Sequence[Check], result: Any) -> list[CheckOutcome]:
    """The outcomes in the order of the checks; Great Expectations' results have another order."""
    by_name = {outcome.expectation_config.meta["check"]: outcome for outcome in result.results}
    rows = next(o.result["observed_value"] for o in result.results if "observed_value" in o.result)
    return [_outcome(df, check, by_name[check.name], rows) for check in checks]


def _outcome(df: DataFrame, check: Check, judged: Any, rows: int) -> CheckOutcome:
    ok = bool(judged.success)
    sample = None if ok else check.sample(df, _SAMPLES)
    return CheckOutcome(
        check=check.name,
        meaning=check.meaning,
        expectation=judged.expectation_config.type,
        ok=ok,
        failing=_failing(check, judged, rows),
        rows=rows,
        sample=[] if sample is None else [row.asDict(recursive=True) for row in sample.collect()],
    )


def _failing(check: Check, judged: Any, rows: int) -> int:
    if isinstance(check, RowCount):
        return check.off_by(rows)
    return int(judged.result.get("unexpected_count") or 0)

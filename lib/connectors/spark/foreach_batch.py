"""The carrier of first choice: ``df.writeStream.foreachBatch(connectors.foreach_batch("files", {…}))``.

It lets a :class:`~connectors.core.sink.FrameSink` use Spark's own writers, and can feed several sinks from one batch that Spark
computes once.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..core.batch import Batch, Committable
from ..core.commit import Commit
from ..core.ledger import Verdict
from ..core.metrics import Meter
from ..core.sink import FrameCommitter, FrameSink, Sink
from ..core.writing import stage
from ..ground import machine
from ..ground.errors import ConnectorError, Fatal, Transient
from ..ground.messages import is_permanent, own_message
from ..ground.retry import Backoff, RetrySettings, waits_until
from ..ground.runtime import PLACED_ROWS
from .execution import is_deterministic, is_observed, is_stopped, running_query
from .library import Carried
from .measure import Measures, count_commit, counted, measured, sink_meter
from .query_end import remember
from .query_watch import run_of, watched_tasks
from .session import arrow_schema, connect_session, hadoop_client, leave_release_to_server, observes_writes, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("connectors")

def _is_foreign(record: logging.LogRecord) -> bool:
    """False for an error of this library: Py4J would show its stack beside the message that Spark shows."""
    return record.exc_info is None or not isinstance(record.exc_info[1], ConnectorError)


logging.getLogger("py4j.clientserver").addFilter(_is_foreign)

OnBatch = Callable[["DataFrame", int], None]


class ForeachBatch(Carried):
    """Commits each micro-batch to one sink; called by Spark with the batch and its number."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._commit: Commit | None = None
        """Of the run ``_run``: what it knows of the target may be untrue in the next one."""
        self._checked: pa.Schema | None = None
        self._run = machine.token()
        self._failures: list[float] = []
        """The monotonic times of failed tries within ``failureWindow``."""
        self.starter = connect_session()
        if isinstance(sink, FrameSink):
            if sink.places_rows():
                require(PLACED_ROWS, connector=f"connectors.{sink.name}")
            sink.use_hadoop(hadoop_client)
            sink.watch(None)
        remember(sink)

    def __call__(self, frame: DataFrame, number: int, recipe: str = "") -> None:
        """Commits ``frame`` as the batch ``number``. ``recipe`` is that of :class:`~connectors.core.ledger.Entry`."""
        leave_release_to_server(frame)
        try:
            query = running_query(frame, self.sink.values["queryName"], self.starter)
            run = run_of(frame, query)
            batch = Batch(self.sink.sink_id(), query, number, run=run.id if run else self._run, recipe=recipe)
            with waits_until(partial(is_stopped, frame.sparkSession, query)):
                while not self._writes(frame, batch):
                    self._commit = None  # as after a restart of the query: it looks at the target anew
        except ConnectorError as error:
            _log.debug("batch %d failed", number, exc_info=True)
            raise error.with_traceback(None) from None  # Spark shows the traceback to the user in front of the message

    def __getstate__(self) -> dict[str, Any]:
        return {"sink": self.sink}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["sink"])  # type: ignore[misc]

    def _writes(self, frame: DataFrame, batch: Batch) -> bool:
        """Writes the batch. False after a failure that ``maxFailures`` allows, and a pause; raises any other."""
        values = self.sink.values
        try:
            self.write(frame, batch)
        except Exception as error:
            now, retry = machine.monotonic(), RetrySettings.of(values)
            self._failures = [*(time for time in self._failures if time > now - values["failureWindow"]), now]
            count = len(self._failures)
            # The window forgets a failure that comes after outageTimeout before the next one.
            is_final = is_permanent(error) or (isinstance(error, Transient) and error.is_waited_for)
            if count > values["maxFailures"] or is_final or is_stopped(frame.sparkSession, batch.query):
                raise
            text = "connectors.%s has not taken batch %d, failure %d of the %d that maxFailures allows: %s"
            _log.warning(text, self.sink.name, batch.number, count, values["maxFailures"], own_message(error) or error)
            Backoff(retry).sleep(retry.pause(count, error))
            return False
        return True

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Stages, decides and publishes ``frame`` as ``batch``; a batch that is committed already is only compared."""
        if self._commit is None or self._run != batch.run:
            self._commit, self._checked, self._run = Commit(self.sink), None, batch.run
            _log.info("connectors.%s: %s, as %s", self.sink.name, self.sink.guarantee().value, batch.sink_id)
        if isinstance(self.sink, FrameSink):
            self.sink.watch(lambda: run_of(frame, batch.query))
        schema = None if _stages_frame(self.sink, frame) else arrow_schema(frame.schema)
        if schema is not None:
            self.sink.refuse_frame(schema, placed=True)
        with sink_meter(self.sink, batch).counting() as meter:
            self._write(self._commit, frame, schema, batch, meter)

    def _write(self, commit: Commit, frame: DataFrame, schema: pa.Schema | None, batch: Batch, meter: Meter) -> None:
        verdict, began = commit.begin(batch), machine.monotonic()
        if isinstance(self.sink, FrameSink):
            self.sink.check_replay(lambda: is_deterministic(frame, batch.query))
        if verdict is Verdict.WRITE and isinstance(commit.committer, FrameCommitter):
            counts = None
            if commit.committer.counts_rows:
                batch = replace(batch, is_observed=is_observed(frame, batch.query))
            else:
                frame, counts = counted(frame)
            commit.commit_frame(frame, batch)
            count_commit(meter, began, [], counts)
        elif verdict is Verdict.WRITE:
            self._stage_and_commit(commit, frame, schema, batch, meter)
        else:
            measures = Measures.of(frame)
            commit.finish(batch, [], measures.rows, measures.checksum)
            count_commit(meter, began, commit.recorded(batch), measures)

    def _stage_and_commit(
        self, commit: Commit, frame: DataFrame, schema: pa.Schema | None, batch: Batch, meter: Meter
    ) -> None:
        commit.drop_attempts(batch)
        if schema is not None and self._checked != schema:
            commit.contact.call(partial(self.sink.check_target, schema))
            self._checked = schema
        # Retries are made here, since Spark would try its tasks again at once.
        tries = RetrySettings(0) if self.sink.writers_retry else commit.contact.retry
        try:
            staged, measures = tries.call(lambda: self._watched(commit, frame, schema, batch))
        except BaseException:
            with contextlib.suppress(Exception):  # the first error goes on
                commit.drop_attempts(batch, failed=True)
            raise
        began = machine.monotonic()
        try:
            if measures.rows == 0:  # Spark's writers make an empty file of an empty frame
                if rows := sum(committable.rows + committable.rejected for committable in staged):
                    raise Fatal(f"the tasks of {batch} have staged {rows} rows, and Spark has counted none: nothing is written")
                commit.discard(staged)
                staged = []
            commit.finish(batch, staged, measures.rows, measures.checksum)
            count_commit(meter, began, staged, measures)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error goes on
                commit.abort(batch, staged)
            raise

    def _watched(
        self, commit: Commit, frame: DataFrame, schema: pa.Schema | None, batch: Batch
    ) -> tuple[list[Committable], Measures]:
        with watched_tasks(frame.sparkSession, self.sink.values["taskTimeout"]):
            if commit.committer is None:
                return _staged(self.sink, frame, schema, batch), Measures()
            # A checksum takes as long as a fifth of the work of Spark's own writers; of what goes through Python it is little.
            observed, measures = counted(frame) if schema is None else measured(frame)
            return _staged(self.sink, observed, schema, batch), measures


class Several(Carried):
    """Feeds several sinks from one batch, which Spark computes once and keeps until the last sink has it."""

    def __init__(self, sinks: Sequence[Callable[..., None]]) -> None:
        self.sinks = tuple(sinks)

    def __call__(self, frame: DataFrame, number: int, recipe: str = "") -> None:
        """Commits ``frame`` as the batch ``number`` to each sink. ``recipe`` is that of a :class:`ForeachBatch`."""
        persisted = frame.persist()
        try:
            for sink in self.sinks:
                sink(persisted, number, *([recipe] if recipe else []))
        finally:
            persisted.unpersist()


def _stages_frame(sink: Sink, frame: DataFrame) -> bool:
    return isinstance(sink, FrameSink) and sink.stages_frames and observes_writes(frame.sparkSession)


def _staged(sink: Sink, frame: DataFrame, schema: pa.Schema | None, batch: Batch) -> list[Committable]:
    """Stages ``frame``, by Spark's own writers where its rows need no ``schema`` of Arrow."""
    if isinstance(sink, FrameSink):
        if schema is None:
            if (staged := sink.stage_frame(frame, batch)) is not None:
                return staged
            schema = arrow_schema(frame.schema)
            sink.refuse_frame(schema, placed=True)
        sink, frame = sink.placed(frame, schema, batch)
    return _stage_in_tasks(sink, frame, batch)


def _stage_in_tasks(sink: Sink, frame: DataFrame, batch: Batch) -> list[Committable]:
    schema = arrow_schema(frame.schema)  # that of the rows as they were placed

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        index = context.partitionId()
        try:
            with sink_meter(sink, batch, index).counting() as meter:
                report = {"committable": asdict(stage(sink, batch, schema, index, meter.through(rows)))}
        except Transient as outage:
            report = {"outage": outage.state()}
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})

    reports = [json.loads(row.report) for row in frame.mapInArrow(task, "report string").collect()]
    staged = [Committable(**report["committable"]) for report in reports if "committable" in report]
    outages = [Transient.of(report["outage"]) for report in reports if "outage" in report]
    if outages:
        Commit(sink).discard(staged)
        raise outages[0]
    return staged

"""The execution of a streaming query: which one calls, its plan, its offsets, and its end. On Connect, most is not known."""

from __future__ import annotations

import contextlib
import io
import json
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ..core.sink import Offsets
from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from ..ground.runtime import version_of
from .session import QUERY_ID, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OBSERVED_OR_CUT: Final = re.compile(r"CollectMetrics|\d more characters$|^Truncated plan of")
_BATCH: Final = re.compile(r"LogicalRDD \[(.*?)\]")
"""The rows of a batch in the plan of its frame."""
_COLUMN: Final = re.compile(r"#\d+")
"""The id of a column, which no other column of the same server has."""
_proven = machine.PerProcess(set[str])
"""The ids of the queries whose name has been checked: on Connect, each query has a process of its own."""
_LAST_STEP_MILLISECONDS: Final = 1000
"""What a query's thread needs, at most, when it has told its end."""
_CLONES: Final = "spark.sql.connect.streaming.foreachBatch.useClonedSession"


def running_query(frame: DataFrame, query_name: str | None, starter: SparkSession | None = None) -> str:
    """The id of the streaming query whose ``foreachBatch`` is being called with ``frame``.

    ``query_name`` chooses among several where the session cannot tell (Spark Connect). ``starter`` is the session of Spark
    Connect that has started the query: since Spark 4.3 that of ``frame`` is a clone, which knows no queries but its own.
    """
    spark: Any = frame.sparkSession
    if is_connect(spark):
        if starter is not None and not _is_same(starter, spark):
            spark = starter
        elif _runs_in_clone(spark):
            text = "is made inside of the function that Spark calls with each batch, where no query is known; make it before."
            raise Misconfigured("connectors.foreach_batch", [Problem("the sink", text)])
    else:
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        if query_id:
            return str(query_id)
    queries = spark.streams.active
    active = [query for query in queries if query_name in (None, query.name)]
    if len(active) == 1:
        query_id = str(active[0].id)
        if len(queries) > 1 and query_id not in _proven():
            _check_name(frame, active[0], queries)
            _proven().add(query_id)
        return query_id
    raise Misconfigured(
        "connectors.foreach_batch",
        [Problem("queryName", f"{len(active)} queries could be the one that runs; give this one's .queryName(…) here too.")],
    )


def _check_name(frame: DataFrame, query: Any, queries: Iterable[Any]) -> None:
    """Raises :class:`Misconfigured` where ``frame`` is a batch of another one of ``queries``, by the columns of its plan.

    Two queries that take one function with a ``queryName`` would pass for one, and a batch of either for a replay.
    """
    columns = {column for leaf in _BATCH.findall(_plan_of(frame)) for column in _COLUMN.findall(leaf)}
    if columns and columns.isdisjoint(_COLUMN.findall(_plan_of(query))):
        for other in queries:
            if not columns.isdisjoint(_COLUMN.findall(_plan_of(other))):
                text = f'is "{query.name}", and the batch is of the query "{other.name}"; give each one a function of its own.'
                raise Misconfigured("connectors.foreach_batch", [Problem("queryName", text)])


def _plan_of(part: Any) -> str:
    """The plan of a frame, or of a query's newest batch, as Spark explains it; empty for a query that has ended."""
    from pyspark.errors import PySparkException

    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(PySparkException):
        part.explain(extended=True)
    return text.getvalue()


def _is_same(session: Any, other: Any) -> bool:
    return bool(session.session_id == other.session_id)


def _runs_in_clone(spark: SparkSession) -> bool:
    """True if Spark calls ``foreachBatch`` with frames of a clone of the session that has started the query."""
    import pyspark

    return version_of(pyspark.__version__) >= (4, 3) and spark.conf.get(_CLONES) == "true"


def execution_of(spark: SparkSession, query: str) -> Any:
    """The JVM's object of the running streaming query with this id; ``None`` if none runs, and on Connect."""
    if is_connect(spark):
        return None
    classic: Any = spark
    try:
        key = classic._jvm.java.util.UUID.fromString(str(uuid.UUID(query)))
    except ValueError:  # a batch write, which has a name in place of an id
        return None
    return classic._jsparkSession.sharedState().activeStreamingQueries().get(key)


def execution_behind(query: Any) -> Any:
    """The JVM's object of a streaming query, running or not; ``None`` on Connect."""
    inside = getattr(query, "_jsq", None)
    return inside.streamingQuery() if inside is not None else None


def format_of_query(execution: Any) -> tuple[str, dict[str, str]] | None:
    """The format that a query writes to by ``writeStream.format``, and its options; ``None`` for ``foreachBatch``."""
    plan = execution.logicalPlan()
    if not str(plan.getClass().getName()).endswith(".WriteToMicroBatchDataSource"):
        return None
    options = plan.writeOptions()
    keys = options.keys().toSeq()
    names = [str(keys.apply(number)) for number in range(keys.size())]
    return str(execution.sink().name()), {name: str(options.apply(name)) for name in names}


def is_stopped(spark: SparkSession, query: str) -> bool:
    """True if somebody has stopped the streaming query with this id, which still runs; never true on Connect."""
    execution = execution_of(spark, query)
    return execution is not None and not execution.isActive()


def is_deterministic(frame: DataFrame, query: str) -> bool:
    """False if the plan of ``frame``, or of the running ``query``, is known to give other rows when it is run again.

    True on Connect, where nobody can tell.
    """
    return is_connect(frame.sparkSession) or all(plan.deterministic() for plan in _plans(frame, query))


def is_observed(frame: DataFrame, query: str) -> bool:
    """True if an ``Observation`` counts rows of ``frame``, or of the running ``query``, while they are computed.

    True on Connect, and of a plan that Spark cuts (``spark.sql.maxPlanStringLength``), where nobody can tell.
    """
    if is_connect(frame.sparkSession):
        return True
    return any(_OBSERVED_OR_CUT.search(plan.toString()) for plan in _plans(frame, query))


def _plans(frame: DataFrame, query: str) -> list[Any]:
    """The plans, in the JVM, of ``frame`` and of the streaming query whose batch it is. Classic sessions only."""
    classic: Any = frame
    plans = [classic._jdf.queryExecution().analyzed()]
    execution = execution_of(frame.sparkSession, query)
    if execution is not None and execution.lastExecution() is not None:
        plans.append(execution.lastExecution().analyzed())
    return plans


def ended(execution: Any, seconds: float) -> str:
    """Waits for the end of :func:`execution_of`, at most so long: ``"running"``, ``"ended"`` or ``"failed"``.

    A query that somebody has stopped runs until its batch is over: a function of Python is not interrupted.
    """
    from pyspark.errors import StreamingQueryException

    try:
        over = execution.awaitTermination(max(1, round(seconds * 1000)))
    except StreamingQueryException:  # it throws what the query died of
        return "failed"
    return "ended" if over and _has_ended(execution.queryExecutionThread()) else "running"


def _has_ended(thread: Any) -> bool:
    """True for a thread of the JVM that has ended, or does so now."""
    thread.join(_LAST_STEP_MILLISECONDS)
    return not thread.isAlive()


def offsets_of(execution: Any, batch: int) -> Offsets | None:
    """The offset of each source of a query after ``batch``; ``None`` where Spark does not tell."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        entry = execution.offsetLog().get(batch)
        if not entry.isDefined():
            return None
        if str(entry.get().getClass().getSimpleName()) == "OffsetMap":
            return {str(source._1()): _json_of(source._2()) for source in _each(entry.get().offsetsMap().toSeq())}
        return [_json_of(offset) for offset in _each(entry.get().offsets())]
    except (PySparkException, Py4JError, TypeError, ValueError):  # inside Spark: another version may have it elsewhere
        return None


def _each(sequence: Any) -> list[Any]:
    """What a sequence of Scala's holds."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _json_of(offset: Any) -> Any:
    return json.loads(offset.get().json()) if offset.isDefined() else None

"""The one place that reaches through a DataFrame to the session behind it, classic or Connect.

What differs between the two is asked here, and of a streaming query in :mod:`.execution`, and nowhere else: how Spark's columns
look in Arrow, how jobs are ended. Whatever needs the JVM is in these modules, with its counterpart on Connect or a refusal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from inspect import signature
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..ground.errors import Misconfigured, MissingFeature, Problem
from ..ground.runtime import Feature, refusal, version_of
from .submit_file import submit_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
EXECUTION_ID = "spark.sql.execution.id"
_RUN_ID = "spark.jobGroup.id"  # of a streaming query's jobs it is the id of its run


def require(feature: Feature, spark: SparkSession | None = None, connector: str = "") -> None:
    """Raises :class:`MissingFeature` where PySpark, or the Connect server behind ``spark``, is too old for ``feature``."""
    import pyspark

    if version_of(pyspark.__version__) < feature.spark:
        raise MissingFeature(refusal(feature, pyspark.__version__), connector=connector)
    if spark is not None and is_connect(spark) and version_of(spark.version) < feature.spark:
        raise MissingFeature(refusal(feature, spark.version, on_server=True), connector=connector)


def is_connect(spark: SparkSession) -> bool:
    """True for a Spark Connect session, which has no JVM on this side."""
    return ".connect." in type(spark).__module__


def send_python(spark: SparkSession, zip_file: str) -> None:
    """Puts ``zip_file`` on the path of the Python processes that Spark starts for this session from now on."""
    if is_connect(spark):
        spark.addArtifact(zip_file, pyfile=True)
    else:
        spark.sparkContext.addPyFile(zip_file)


def worker_paths(spark: SparkSession) -> list[str]:
    """The paths where the Python workers of a classic session look for modules, as far as this side knows; none on Connect."""
    if is_connect(spark):
        return []
    context = spark.sparkContext
    if (context.master or "").startswith("local["):
        return [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sysconfig.get_paths().values()]
    return str(context.getConf().get("spark.executorEnv.PYTHONPATH") or "").split(os.pathsep)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of ``schema`` as Arrow has them on both sides of Spark's Python workers.

    Raises :class:`Misconfigured` for a column that Arrow has no type for, such as an interval of months.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}  # 4.2 asks for it
    try:
        return to_arrow_schema(schema, **zone)
    except PySparkTypeError:
        for field in schema:
            try:
                to_arrow_type(field.dataType, **zone)
            except PySparkTypeError:
                text = f'has "{field.name}" of type {field.dataType.simpleString()}, which cannot pass through Python; '
                way_out = "cast it, such as to a string, or write files by foreach_batch on a classic session, to s3:// with "
                way_out += "the jar hadoop-aws."
                raise Misconfigured("connectors", [Problem("schema", text + way_out)]) from None
        raise


def connect_session() -> SparkSession | None:
    """The Spark Connect session that is active in this thread; ``None`` without one.

    While Spark unpickles a function of ``foreachBatch`` it is the session that has started the query.
    """
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    session: SparkSession | None = module.SparkSession.getActiveSession() if module is not None else None
    return session


def pass_over_counts(spark: SparkSession) -> None:
    """Lets the command ``spark-pipelines`` end well after flows with Python in them.

    Behind a run's last event a Connect server sends what Python workers have counted for profilers, which PySpark 4.2 takes for
    an unknown answer: the run is complete, and the command fails.
    """
    client: Any = spark.client
    if "_execute_and_fetch_as_iterator" not in vars(client):
        answers = client._execute_and_fetch_as_iterator

        def events(*request: Any, **progress: Any) -> Iterator[Any]:
            for answer in answers(*request, **progress):
                if getattr(answer, "name", "") != "__python_accumulator__":
                    yield answer

        client._execute_and_fetch_as_iterator = events


def has_class(spark: SparkSession, name: str) -> bool:
    """True if Spark finds the Java class ``name``. For classic sessions."""
    classic: Any = spark
    return bool(classic._jvm.org.apache.spark.util.Utils.classIsLoadable(name))


def session_key(spark: SparkSession) -> tuple[str, int]:
    """The key that tells a classic session from others: its application, and itself in that."""
    classic: Any = spark
    return str(spark.sparkContext.applicationId), int(classic._jsparkSession.hashCode())


def observation_is_known(observation: Any) -> bool:
    """True when an ``Observation`` can be read without waiting; on Connect always, where it comes with the batch."""
    inside = getattr(observation, "_jo", None)
    return inside is None or bool(inside.future().isCompleted())


def observes_writes(spark: SparkSession) -> bool:
    """False on a Connect server with Spark 4.0: it loses what an ``Observation`` counts while Spark's own writers write."""
    return not is_connect(spark) or version_of(spark.version) >= (4, 1)


@contextlib.contextmanager
def tagged_jobs(spark: SparkSession, tag: str) -> Iterator[Callable[[], object]]:
    """Gives a call that cancels, from any thread, the jobs which this thread runs inside."""
    # A classic session finds its own tags only in the thread that has added them.
    target: Any = spark if is_connect(spark) else spark.sparkContext
    add, remove = (target.addTag, target.removeTag) if is_connect(spark) else (target.addJobTag, target.removeJobTag)
    cancel = target.interruptTag if is_connect(spark) else target.cancelJobsWithTag
    add(tag)
    try:
        yield lambda: cancel(tag)
    finally:
        remove(tag)


def ended_tasks(spark: SparkSession) -> Callable[[], int]:
    """A call that counts the tasks that have ended in the jobs of the query that is running in this thread.

    Always 0 on Connect.
    """
    if is_connect(spark):
        return lambda: 0
    tracker, group = spark.sparkContext.statusTracker(), spark.sparkContext.getLocalProperty(_RUN_ID)

    def count() -> int:
        jobs = (tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group))
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    return count


def leave_release_to_server(frame: DataFrame) -> None:
    """Stops a batch's frame from saying goodbye to a Connect server, which drops it itself when the batch ends.

    The goodbye is a call without a deadline that PySpark 4.2 makes when Python collects the frame; it has been seen to
    wait for ever, and the query with it.
    """
    plan: Any = getattr(frame, "_plan", None)
    if is_connect(frame.sparkSession) and hasattr(plan, "_relation_id"):
        plan._spark_session = None


def task_ids() -> tuple[str | None, int, int]:
    """In a task: the streaming query's id (``None`` in a batch write), the batch number, and the task's index."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID)
    return query, int(context.getLocalProperty(BATCH_ID) or 0), context.partitionId()


def action_ids() -> tuple[str, bool]:
    """In a task of a read: the id of the action that runs it (``""`` outside of a task), and whether it failed before."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    if context is None:
        return "", False
    return str(context.getLocalProperty(EXECUTION_ID) or ""), context.attemptNumber() > 0


def task_run() -> str:
    """In a task of a streaming query: the id of its run, which is another after each restart."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return str(context.getLocalProperty(_RUN_ID) or "")


@contextlib.contextmanager
def as_active(spark: SparkSession) -> Iterator[None]:
    """Makes ``spark`` the active session of this thread for a while, or for good where the thread has none.

    Registering a format in a second classic session fails where the active one has a format of that name.
    """
    if is_connect(spark):
        yield
        return
    jvm, session = _classic(spark)
    before = jvm.getActiveSession()
    jvm.setActiveSession(session)
    try:
        yield
    finally:
        if before.isDefined():
            jvm.setActiveSession(before.get())


def activate(spark: SparkSession) -> None:
    """Makes a classic session that runs the active one of this thread, if the thread has none.

    Spark looks for formats in the active session alone. A call that is interrupted ends the thread of the JVM that answers
    this one, and the next thread has no active session.
    """
    if is_connect(spark) or spark.sparkContext._jsc is None:
        return
    jvm, session = _classic(spark)
    if not jvm.getActiveSession().isDefined():
        jvm.setActiveSession(session)


def session_thread(spark: SparkSession, work: Callable[[], object], name: str) -> Thread:
    """A thread in which ``spark`` is active. Queries that it starts are in the pool ``name`` of Spark's scheduler."""
    from pyspark.util import InheritableThread

    kind: type[Thread] = InheritableThread
    if is_connect(spark):
        about: dict[str, Any] = {"session": spark}
        return kind(target=work, name=name, daemon=True, **about)

    def active() -> None:
        activate(spark)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        work()

    return kind(target=active, name=name, daemon=True)


def active_session(kind: type[SparkSession]) -> SparkSession | None:
    """The active session of this thread; ``None`` if there is none. ``kind`` is PySpark's class of sessions.

    PySpark's own answer is the session that created a DataFrame last, in any thread: after ``createDataFrame`` in
    ``foreachBatch`` it is the copy in which that batch ran, and a format that is registered there is not found here.
    """
    last = kind.getActiveSession()
    if last is None or is_connect(last):
        return last
    jvm, session = _classic(last)
    active = jvm.getActiveSession().get()
    if active == session:
        return last
    first: Any = getattr(kind, "_instantiatedSession", None)
    return first if first is not None and first._jsparkSession == active else kind(last.sparkContext, active)


def _classic(spark: Any) -> tuple[Any, Any]:
    """The JVM's class of sessions, and its object behind ``spark``."""
    return spark._jvm.org.apache.spark.sql.classic.SparkSession, spark._jsparkSession


def log_fatal_only(spark: SparkSession) -> None:
    """Keeps Spark's log off the console. A Connect server has a console of its own: nothing to do."""
    if not is_connect(spark):
        spark.sparkContext.setLogLevel("FATAL")


def classic_is_running() -> bool:
    """True while this process has a classic session; asks without starting one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


class HadoopClient:
    """Spark's own client of one Hadoop file system, with the user and the settings of the session."""

    def __init__(self, url: str) -> None:
        from pyspark import SparkContext

        context: Any = SparkContext._active_spark_context
        self._jvm = context._jvm
        self._address, self._conf = self._jvm.java.net.URI.create(url), context._jsc.hadoopConfiguration()

    @cached_property
    def files(self) -> Any:
        return self._jvm.org.apache.hadoop.fs.FileSystem.get(self._address, self._conf)

    def exists(self) -> bool:
        """False if no class is named for the scheme of the url, or its jar is not there."""
        from py4j.protocol import Py4JJavaError

        try:
            self._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(self._address.getScheme(), self._conf)
        except Py4JJavaError:
            return False
        return True

    def path(self, path: str) -> Any:
        """``path`` as the client takes it."""
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def listed(self, statuses: Any) -> list[str]:
        """The paths of what was listed, in one call: each call to the JVM costs."""
        paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(statuses)
        joined = str(self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(paths).mkString("\n"))
        return joined.split("\n") if joined else []

    @staticmethod
    def cause(error: Exception) -> tuple[str, str] | None:
        """Class and message of the Java exception behind ``error``; ``None`` if there is none."""
        java: Any = getattr(error, "java_exception", None)
        if java is None:
            return None
        kind = str(java.getClass().getName())
        return (str(java.getClassName()) if kind.endswith(".RemoteException") else kind), str(java.getMessage())


def hadoop_client(url: str) -> HadoopClient | None:
    """The client for ``url``; ``None`` in a process without a classic session."""
    return HadoopClient(url) if classic_is_running() else None


def driver_process(spark: SparkSession) -> int:
    """The id of the JVM that is the driver. Raises ``Misconfigured`` on Connect, where it may be another machine's."""
    if is_connect(spark):
        raise Misconfigured("the session", [Problem("master", "must be a classic one; a Connect server's process is its own.")])
    context: Any = spark.sparkContext
    return int(context._gateway.proc.pid)


def canceling(spark: SparkSession) -> Callable[[], Any]:
    """A call that ends every job of the session. Look it up beforehand, since that needs the driver's answer."""
    return spark.interruptAll if is_connect(spark) else spark.sparkContext.cancelAllJobs


_AT_START: Final = ("spark.driver.extraClassPath", "spark.driver.extraJavaOptions", "spark.driver.memory", "spark.jars")
"""The settings that a JVM cannot take later, where a ``--properties-file`` in ``$PYSPARK_SUBMIT_ARGS`` replaces ours."""


def launch_java(settings: Mapping[str, Any], log: Path) -> None:
    """Starts the JVM of this process unless there is one. What it prints, and what Spark's workers print, is in ``log``.

    Everybody on the machine can read its command line: settings are in a file of this user that is gone when it has started.
    Raises ``PySparkRuntimeError`` when it does not start.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False).setAll([(key, str(settings[key])) for key in settings if key in _AT_START])
    with log.open("ab") as output, submit_file(settings):
        gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def errors_of_spark() -> tuple[type[BaseException], ...]:
    """The exceptions by which Spark, and the connection to its JVM, tell an error."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def pages_of(spark: SparkSession) -> str | None:
    """The address of Spark's pages; ``None`` where they are off, and on Connect."""
    return None if is_connect(spark) else spark.sparkContext.uiWebUrl


def forget_connection() -> None:
    """Closes this thread's connection to the JVM, so that its next call does not read the answer to a broken one."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    client: Any = getattr(gateway, "_gateway_client", None)
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is not None:
        connection.close()

"""What Spark tells of a query, by doubles: its id on Spark Connect, in a session or in a clone of it, and its offsets."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import UnsupportedOperationException
from pyspark.sql.connect.session import SparkSession

import connectors
from connectors.core.batch import Batch
from connectors.ground.errors import Misconfigured
from connectors.spark.execution import execution_behind, offsets_of, running_query
from connectors.spark.foreach_batch import ForeachBatch
from connectors.spark.query_watch import SparkRun
from connectors.testing.sampling import wait_until

CLONES = "spark.sql.connect.streaming.foreachBatch.useClonedSession"


class Session(SimpleNamespace):
    """A session of Spark Connect with ``queries``, by their ids."""

    def __init__(self, session_id: str, clones: str | None = None, **queries: str | None) -> None:
        active = [
            SimpleNamespace(id=query, name=name, explain=plan(f"Project [v#1 AS {query}#{number}]"))
            for number, (query, name) in enumerate(queries.items(), 20)
        ]
        conf = {CLONES: clones} if clones else {}  # whoever asks an older Spark for it gets an error
        streams, get = SimpleNamespace(active=active), conf.__getitem__
        super().__init__(session_id=session_id, streams=streams, conf=SimpleNamespace(get=get))


Session.__module__ = "pyspark.sql.connect.session"


def plan(text: str) -> Any:
    return lambda extended: print(text)


def frame_of(session: Session, text: str = "") -> Any:
    return SimpleNamespace(sparkSession=session, _plan=None, explain=plan(text))


@pytest.fixture(params=["4.3.0", "5.0.0"])
def newer(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", request.param)


@pytest.mark.usefixtures("newer")
class TestFromSpark43:
    def test_a_clone_is_asked_for_nothing(self) -> None:
        root, clone = Session("root", orders=None), Session("clone", "true")
        assert running_query(frame_of(clone), None, root) == "orders"

    def test_a_query_that_the_users_function_has_started_is_not_taken_for_its_own(self) -> None:
        root, clone = Session("root", orders=None), Session("clone", "true", nested=None)
        assert running_query(frame_of(clone), None, root) == "orders"

    def test_the_name_chooses_among_the_queries_of_the_session_that_was_cloned(self) -> None:
        root, clone = Session("root", orders="a", bills="b"), Session("clone", "true", nested="b")
        assert running_query(frame_of(clone), "b", root) == "bills"
        with pytest.raises(Misconfigured, match=r"queryName +2 queries could be the one that runs"):
            running_query(frame_of(clone), None, root)
        with pytest.raises(Misconfigured, match=r"queryName +0 queries could be the one that runs"):
            running_query(frame_of(clone), "c", root)

    @pytest.mark.parametrize("starter", [None, Session("clone")], ids=["made in the batch", "unpickled in the batch"])
    def test_a_sink_that_cannot_know_the_session_stops(self, starter: Any) -> None:
        for queries in ({}, {"nested": None}):
            with pytest.raises(Misconfigured, match="is made inside of the function that Spark calls with each batch"):
                running_query(frame_of(Session("clone", "true", **queries)), None, starter)

    def test_without_clones_the_frame_has_the_session_of_its_query(self) -> None:
        root = Session("root", "false", orders=None)
        assert running_query(frame_of(root), None) == running_query(frame_of(root), None, root) == "orders"


def test_two_queries_do_not_pass_for_one_by_one_name() -> None:
    root = Session("root", invoices="a", receipts="b", letters="c")
    for text in ("LogicalRDD [receipts#21L, date#22], false", "Filter (x#9 > 1)\n+- LogicalRDD [receipts#21L], false"):
        with pytest.raises(Misconfigured, match=r'queryName +is "a", and the batch is of the query "b"; give each one'):
            running_query(frame_of(root, text), "a")
        assert running_query(frame_of(root, text), "b") == "receipts"
    assert running_query(frame_of(root, "LogicalRDD [x#210L], false"), "a") == "invoices", "a plan that tells nothing"
    assert running_query(frame_of(root, "another plan"), "c") == "letters"


@pytest.mark.parametrize("version", ["4.0.1", "4.2.0"])
def test_an_older_spark_clones_no_session_and_has_no_setting_for_it(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    root = Session("root", orders=None)
    assert running_query(frame_of(root), None) == running_query(frame_of(root), None, root) == "orders"


@pytest.mark.usefixtures("newer")
def test_a_sink_remembers_the_session_in_which_spark_unpickles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's worker does it: that of the query is active then, and the clone is when the first batch comes."""
    batches: list[Batch] = []
    monkeypatch.setattr(ForeachBatch, "write", lambda self, frame, batch: batches.append(batch))
    active: Session | None = Session("somebody else's", another=None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: active)
    sink = pickle.loads(cloudpickle.dumps(connectors.foreach_batch("buffered", {"path": "/out"})))
    pair = connectors.foreach_batch([("buffered", {"path": "/out"}), ("buffered", {"path": "/also"})])
    pickled = cloudpickle.dumps((lambda frame, number: sink(frame, number), pair))

    active = Session("root", orders=None)
    function, several = pickle.loads(pickled)
    active = clone = Session("clone", "true")
    function(frame_of(clone), 7)
    for each in several.sinks:
        each(frame_of(clone), 8)
    assert [(batch.query, batch.number) for batch in batches] == [("orders", 7), ("orders", 8), ("orders", 8)]


def test_a_sink_of_a_module_remembers_the_session_in_which_spark_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a module is pickled by its name: Spark's worker makes the sink, while the query's session is active."""
    batches: list[Batch] = []
    monkeypatch.setattr(ForeachBatch, "write", lambda self, frame, batch: batches.append(batch))
    active = Session("root", orders=None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: active)
    sink = connectors.foreach_batch("buffered", {"path": "/out"})
    active = clone = Session("clone", "true")
    sink(frame_of(clone), 7)
    assert [(batch.query, batch.number) for batch in batches] == [("orders", 7)]


def test_an_offset_log_of_a_form_that_is_not_known_does_not_stop_a_query() -> None:
    class Entry(SimpleNamespace):
        def offsets(self) -> Any:
            raise UnsupportedOperationException("OffsetTree does not support sequence-based offsets access")

    entry = Entry(getClass=lambda: SimpleNamespace(getSimpleName=lambda: "OffsetTree"))
    log = SimpleNamespace(get=lambda batch: SimpleNamespace(isDefined=lambda: True, get=lambda: entry))
    assert offsets_of(SimpleNamespace(offsetLog=lambda: log), 3) is None


@pytest.mark.spark
def test_a_run_that_ends_says_how(spark: Any, tmp_path: Path) -> None:
    def break_at_the_first(rows: Any, batch: int) -> None:
        raise ValueError("the batch is not wanted")

    states = []
    for number, write in enumerate((break_at_the_first, lambda rows, batch: rows.count())):
        rows = spark.readStream.format("connectors.sequence").option("end", 10).load()
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / str(number)))
        query = writer.trigger(availableNow=True).start()
        run = SparkRun(execution_behind(query))
        while (state := run.wait(1)) == "running":
            pass
        states.append(state)
    assert states == ["failed", "ended"]


@pytest.mark.spark
def test_a_run_that_is_stopped_has_not_ended_before_its_batch(spark: Any, tmp_path: Path) -> None:
    is_there, goes_on = threading.Event(), threading.Event()

    def wait(rows: Any, batch: int) -> None:
        is_there.set()
        goes_on.wait(120)

    rows = spark.readStream.format("connectors.sequence").option("end", 10).load()
    query = rows.writeStream.foreachBatch(wait).option("checkpointLocation", str(tmp_path)).start()
    execution = execution_behind(query)
    assert is_there.wait(120)
    stop = threading.Thread(target=query.stop)
    stop.start()
    try:
        wait_until(lambda: not execution.isActive(), 60)
        assert SparkRun(execution).wait(0.1) == "running"
    finally:
        goes_on.set()
        stop.join(60)
    assert SparkRun(execution).wait(0.0) == "ended"

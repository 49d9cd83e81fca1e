"""A sink of several that is not required: what it misses comes to it later, each row once and in order."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import connectors
from connectors.core import CommitRefused, Misconfigured
from connectors.spark.optional_sink import OptionalSink, _Missed
from connectors.storage.local import LocalStorage
from connectors.testing import forget_commit
from connectors.testing.forgetful_disk import ForgetfulDisk
from connectors.testing.servers import RedisServer
from tests.servers import required


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis of the test's own, which keeps what it has over its end."""
    required(RedisServer)
    server = RedisServer()
    server.append_only = True
    with server:
        yield server


def run(spark: Any, folder: Path, server: RedisServer, end: int, **more: str) -> None:
    """Copies the numbers up to ``end``, two a batch, into files and into a list of Redis."""
    key = {"url": server.url, "command": "rpush", "key": "numbers", "guarantee": "exactly-once"}
    optional = {"required": "false", "missedLocation": str(folder / "missed"), "missedInterval": "0s", **more}
    sinks = [("files", {"path": str(folder / "files")}), ("redis", {**key, **optional})]
    rows = spark.readStream.format("connectors.sequence").option("end", end).option("maxRowsPerTrigger", 2).load()
    writer = rows.selectExpr("CAST(value AS STRING) value").repartition(1).writeStream
    writer = writer.foreachBatch(connectors.foreach_batch(sinks)).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def numbers(server: RedisServer) -> list[int]:
    with redis.Redis.from_url(server.url) as client:
        return [int(json.loads(value)["value"]) for value in client.lrange("numbers", 0, -1)]


def files(spark: Any, folder: Path) -> list[int]:
    return sorted(int(row.value) for row in spark.read.parquet(str(folder / "files")).collect())


def die(*_: Any) -> None:
    raise RuntimeError("Death")


def missed(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "missed").glob("*/*/*"))


@pytest.mark.spark
class TestOnSpark:
    """A list of Redis, which shows the order and each row that comes twice."""

    def test_what_a_sink_has_missed_comes_to_it_in_order_before_what_is_new(
        self, spark: Any, tmp_path: Path, server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        run(spark, tmp_path, server, 4)
        server.kill()
        with caplog.at_level(logging.WARNING, "connectors"):
            run(spark, tmp_path, server, 8)
        assert files(spark, tmp_path) == list(range(1, 9))
        assert missed(tmp_path) == ["2.json", "2.parquet", "3.json", "3.parquet"]
        assert "connectors.redis is away and not required: 2 of its batches wait in" in caplog.text
        server.relaunch()
        run(spark, tmp_path, server, 10)
        assert numbers(server) == list(range(1, 11))
        assert missed(tmp_path) == []

    def test_a_sink_that_has_never_answered_is_waited_for_by_nobody(
        self, spark: Any, tmp_path: Path, server: RedisServer
    ) -> None:
        server.kill()
        run(spark, tmp_path, server, 4)
        assert files(spark, tmp_path) == [1, 2, 3, 4]
        server.relaunch()
        run(spark, tmp_path, server, 6)
        assert numbers(server) == [1, 2, 3, 4, 5, 6]

    def test_after_a_failure_the_sink_is_left_alone_for_a_while(
        self, spark: Any, tmp_path: Path, server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.kill()
        with caplog.at_level(logging.WARNING, "connectors"):
            run(spark, tmp_path, server, 10, missedInterval="10 minutes")
        assert caplog.text.count("has not taken batch") == 1

    @pytest.mark.parametrize("moment", ["keep", "drop", "commit"])
    def test_a_driver_that_dies_loses_and_doubles_nothing(
        self, spark: Any, tmp_path: Path, server: RedisServer, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(spark, tmp_path, server, 2)
        server.kill()
        with monkeypatch.context() as patch:
            if moment == "keep":  # the rows are there, and nothing says so yet
                patch.setattr("connectors.spark.optional_sink.dumps", die)
                with pytest.raises(Exception, match="Death"):
                    run(spark, tmp_path, server, 4)
            else:
                run(spark, tmp_path, server, 4)
        if moment == "commit":  # Spark has not noted the batch that was kept
            forget_commit(tmp_path / "checkpoint")
        server.relaunch()
        if moment == "drop":  # the target has the batch, and the folder too
            with monkeypatch.context() as patch:
                patch.setattr("connectors.spark.optional_sink._Missed.drop", die)
                with pytest.raises(Exception, match="Death"):
                    run(spark, tmp_path, server, 6)
            assert missed(tmp_path) != []
        run(spark, tmp_path, server, 8)
        assert numbers(server) == list(range(1, 9))
        assert files(spark, tmp_path) == list(range(1, 9))
        assert missed(tmp_path) == []

    def test_rows_of_any_kind_come_back_as_they_were(self, spark: Any, tmp_path: Path) -> None:
        rows = spark.sql(
            "SELECT 1.25BD AS d, timestamp'2026-01-01 00:00:00.000001' AS t, map('a', array(1, null)) AS m, X'00ff' AS b, "
            "timestamp_ntz'1969-12-31 23:59:59' AS n, named_struct('x', CAST(null AS string)) AS s, CAST(1 AS tinyint) AS y"
        )
        taken: list[Any] = []

        class Sink:
            """Fails once, then keeps the rows."""

            starter = None
            sink = SimpleNamespace(name="s", values={"queryName": None}, sink_id=lambda: "s")

            def __call__(self, frame: Any, number: int, recipe: str) -> None:
                if not taken:
                    taken.append(None)
                    raise OSError("away")
                taken.append((frame.collect(), frame.schema.simpleString(), number, recipe))

        values = {"missedLocation": str(tmp_path / "missed"), "missedInterval": 0.0}
        optional = OptionalSink(Sink(), values)  # type: ignore[arg-type]
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
        try:
            optional(rows, 7, "recipe")
        finally:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
        assert taken[1:] == [(rows.collect(), rows.schema.simpleString(), 7, "recipe")]


def test_a_wrong_configuration_is_an_error_at_once(tmp_path: Path) -> None:
    path = {"path": str(tmp_path)}
    with pytest.raises(Misconfigured, match=r"sink 2, connectors.foreach_batch: missedLocation +missing"):
        connectors.foreach_batch([("files", path), ("files", {**path, "required": "false"})])
    with pytest.raises(Misconfigured, match="required=false"):
        connectors.foreach_batch([("files", path), ("files", {**path, "missedLocation": str(tmp_path / "m")})])
    with pytest.raises(Misconfigured, match="required"):
        connectors.foreach_batch("files", {**path, "required": "false", "missedLocation": str(tmp_path / "m")})


def test_an_optional_sink_has_little_patience_unless_it_is_given(tmp_path: Path) -> None:
    path = {"path": str(tmp_path), "required": False, "missedLocation": str(tmp_path / "m")}
    for more, expected in (({}, (0, 0.0)), ({"outagetimeout": "5s"}, (0, 5.0)), ({"retry.maxRetries": 2}, (2, 0.0))):
        both: Any = connectors.foreach_batch([("files", {**path, **more}), ("files", {"path": str(tmp_path / "b")})])
        values = both.sinks[0].sink.sink.values
        assert (values["retry.maxRetries"], values["outageTimeout"]) == expected
    assert json.dumps(both.sinks[1].sink.values["outageTimeout"]) == "600.0"


class Target:
    """A sink with the id ``name``, which is away while it has an ``error``, and keeps its ``batches``."""

    starter = None

    def __init__(self, name: str = "s", **values: str) -> None:
        policy = dict.fromkeys(("onNewQuery", "onReplayMismatch", "onLostLedger", "onMissingBatches"), "stop")
        self.sink = SimpleNamespace(name="s", values={"queryName": None, **policy, **values}, sink_id=lambda: name)
        self.error: Exception | None = None
        self.batches: list[tuple[int, list[int]]] = []

    def __call__(self, frame: Any, number: int, recipe: str = "") -> None:
        if self.error is not None:
            raise self.error
        self.batches.append((number, sorted(row.id for row in frame.collect())))

    def optional(self, folder: Path) -> OptionalSink:
        return OptionalSink(self, {"missedLocation": str(folder / "missed"), "missedInterval": 0.0})  # type: ignore[arg-type]


@pytest.mark.spark
class TestOfATarget:
    """What Redis would not show."""

    @pytest.fixture(autouse=True)
    def query(self, spark: Any) -> Iterator[None]:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
        yield
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)

    def test_two_sinks_with_one_folder_each_get_what_they_have_missed(self, spark: Any, tmp_path: Path) -> None:
        targets = [Target("a"), Target("b")]
        both = [target.optional(tmp_path) for target in targets]
        for number in range(2):
            for target, optional in zip(targets, both, strict=True):
                target.error = OSError("away") if number == 0 else None
                optional(spark.range(number, number + 1), number)
        assert [target.batches for target in targets] == [[(0, [0]), (1, [1])]] * 2

    def test_what_one_sink_has_missed_does_not_come_to_another_one(self, spark: Any, tmp_path: Path) -> None:
        target, other = Target("a"), Target("b")
        target.error = OSError("away")
        target.optional(tmp_path)(spark.range(1), 0)
        other.optional(tmp_path)(spark.range(1, 2), 1)
        assert other.batches == [(1, [1])]

    def test_a_ledger_that_contradicts_a_batch_stops_the_query(self, spark: Any, tmp_path: Path) -> None:
        target = Target()
        target.error = CommitRefused("batch 5 is older than batch 10")
        with pytest.raises(CommitRefused, match="older than batch 10"):
            target.optional(tmp_path)(spark.range(1), 5)
        assert missed(tmp_path) == []

    def test_an_older_checkpoint_is_refused_while_later_batches_wait(self, spark: Any, tmp_path: Path) -> None:
        target = Target()
        target.error = OSError("away")
        for number in (5, 6, 7):
            target.optional(tmp_path)(spark.range(number, number + 1), number)
        target.error = None
        with pytest.raises(CommitRefused, match="batch 5 is older than batch 7, which waits in"):
            target.optional(tmp_path)(spark.range(5, 15), 5)
        assert target.batches == []

    def test_a_replay_with_other_rows_than_those_that_wait_is_refused(self, spark: Any, tmp_path: Path) -> None:
        for target in (Target("a"), Target("b", onReplayMismatch="skip")):
            target.error = OSError("away")
            target.optional(tmp_path)(spark.range(2), 5)
            target.error = None
            optional = target.optional(tmp_path)
            if target.sink.values["onReplayMismatch"] == "stop":
                with pytest.raises(CommitRefused, match="not deterministic"):
                    optional(spark.range(1, 3), 5)
                assert target.batches == []
                optional(spark.range(2), 5)
            else:
                optional(spark.range(1, 3), 5)
            assert target.batches == [(5, [0, 1])]

    def test_a_replay_by_other_rules_than_those_of_the_rows_that_wait_is_refused(self, spark: Any, tmp_path: Path) -> None:
        target = Target()
        target.error = OSError("away")
        target.optional(tmp_path)(spark.range(2), 5, "old rules")
        target.error = None
        with pytest.raises(CommitRefused, match="split by other rules"):
            target.optional(tmp_path)(spark.range(2), 5, "new rules")

    def test_the_folder_is_looked_at_anew_in_each_run(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = SimpleNamespace(id="first")
        monkeypatch.setattr("connectors.spark.optional_sink.run_of", lambda *_: run, raising=False)
        target = Target()
        target.error = OSError("away")
        optional = target.optional(tmp_path)
        optional(spark.range(1), 0)
        target.error = None
        target.optional(tmp_path)(spark.range(1, 2), 1)  # another process, to which the sink has answered
        run.id = "second"
        optional(spark.range(2, 3), 2)
        assert target.batches == [(0, [0]), (1, [1]), (2, [2])]

    def test_a_folder_whose_name_has_the_signs_of_a_pattern(self, spark: Any, tmp_path: Path) -> None:
        target = Target()
        target.error = OSError("away")
        target.optional(tmp_path / "[1]{x}")(spark.range(1), 0)
        target.error = None
        target.optional(tmp_path / "[1]{x}")(spark.range(1, 2), 1)
        assert target.batches == [(0, [0]), (1, [1])]


def test_a_power_failure_leaves_no_note_without_rows(tmp_path: Path) -> None:
    folder, schema = tmp_path / "missed", SimpleNamespace(json=lambda: "{}")
    storage = LocalStorage(folder)
    frame: Any = SimpleNamespace(schema=schema, write=SimpleNamespace(mode=lambda _: SimpleNamespace(parquet=write)))

    def write(url: str) -> None:
        with storage.create(f"{Path(url).name}/part") as file:
            file.write(b"rows")

    for seed in range(20):
        disk = ForgetfulDisk(folder, tmp_path / "journal")
        for name, expected in (("keep", [True]), ("drop", [True, False])):
            folder.mkdir(exist_ok=True)
            missed = _Missed(str(folder))
            if name == "drop":
                missed.keep(frame, 1, "")
            disk.start()
            disk.run(lambda: missed.keep(frame, 1, "") if name == "keep" else missed.drop(1))  # noqa: B023
            disk.fail(random.Random(seed))
            has_note, has_rows = (folder / "1.json").exists(), (folder / "1.parquet" / "part").exists()
            assert has_note in expected
            assert has_rows or not has_note
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()


def test_spark_gets_the_address_of_its_own_client_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = SimpleNamespace(names=list, folders=list, spark_url=lambda name: f"s3a://bucket/missed/{name}")
    monkeypatch.setattr("connectors.spark.optional_sink.storage_of", lambda *_, **__: bucket)
    assert _Missed("s3://bucket/missed")._url("1.parquet") == "s3a://bucket/missed/1.parquet"


def test_two_optional_sinks_with_one_ledger_and_one_folder_are_refused(tmp_path: Path) -> None:
    one = {"path": str(tmp_path), "required": "false", "missedLocation": str(tmp_path / "m")}
    with pytest.raises(Misconfigured, match=r"sink 2: sinkId +is that of another sink here"):
        connectors.foreach_batch([("files", one), ("files", one)])
    connectors.foreach_batch([("files", one), ("files", {**one, "sinkId": "other"})])


DRIVER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from connectors import workbench
from tests.environments.test_optional_sink import run

run(workbench.session(), Path(sys.argv[1]), SimpleNamespace(url=sys.argv[2]), int(sys.argv[3]))
"""


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.spark
def test_killed_drivers_lose_and_double_nothing_while_the_sink_comes_and_goes(
    spark: Any, tmp_path: Path, server: RedisServer
) -> None:
    chance, end = random.Random(5), 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for is_away in (False, True, False, True):
        if is_away:
            server.kill()
        end += 40
        command = [sys.executable, "-c", DRIVER, str(tmp_path), server.url, str(end)]
        driver = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
        until, before = time.monotonic() + 120, len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
        while len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) < before + 3 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1.5))
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver.wait(60) == -signal.SIGKILL
        if is_away:
            server.relaunch()
    run(spark, tmp_path, server, end + 2)
    assert numbers(server) == list(range(1, end + 3))
    assert files(spark, tmp_path) == list(range(1, end + 3))
    assert missed(tmp_path) == []

"""Runs that end by themselves over sources that never rest, and connectors that are stopped at the end of a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.connect import SourceConnector, SourceRecord, SourceTask
from connectors.connect.host import SOURCE_COLUMNS
from connectors.connect.java.jars import plugin_class_path
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.connect import ConnectSource
from connectors.testing.servers import MariaDbServer, PostgresServer
from tests.connect.database import Database
from tests.connect.java_connectors import use_connector, without_validation
from tests.connect.java_sources import DEBEZIUM, DEBEZIUM_MARIADB, FILES, file_properties, mariadb_properties
from tests.servers import optional, required
from tests.systems.cdc.shop import Shop
from tests.systems.connect.test_source import Query

SECONDS = 60.0


@contextmanager
def repeated(work: Callable[[], None], pause: float) -> Iterator[None]:
    """Does ``work`` in a thread, again and again."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(pause):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def available_now(folder: Path, config: dict[str, str], package: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a run. Raises ``AssertionError`` if it does not end."""
    values = {
        "config": json.dumps(config),
        "pluginPackages": package,
        "stateLocation": str(folder / "state"),
        **options,
    }
    source = ConnectSource.of(values, streaming=True)
    planner, offset, rows = Planner(source), INITIAL, []
    until = time.monotonic() + SECONDS
    try:
        planner.freeze()
        while (end := planner.latest(offset)) != offset:
            for part in planner.slices(offset, end):
                rows += [row for batch in read_slice(source, part, SOURCE_COLUMNS) for row in batch.to_pylist()]
            offset = end
            assert time.monotonic() < until
    finally:
        planner.close()
    return rows


def test_a_run_over_a_python_source_that_trickles_ends(tmp_path: Path) -> None:
    database = Database("a")
    database.insert(500)
    query = Query(tmp_path, database, {"drainTimeout": "1s"})
    with repeated(lambda: database.insert(1), 0.2):
        began = time.monotonic()
        assert len(query.run()) >= 500
        assert time.monotonic() - began < SECONDS


def test_a_run_over_a_java_source_that_trickles_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_validation(monkeypatch)
    poll = "if (at > 0) { Thread.sleep(200L); } return records(at == 0 ? 1000 : 1);"
    config = use_connector(monkeypatch, "Trickling", poll)
    assert len(available_now(tmp_path, config, FILES, drainTimeout="1s")) >= 1000


@pytest.mark.soak
@pytest.mark.server
def test_a_run_over_a_database_that_is_written_to_ends_at_its_position_at_the_start(tmp_path: Path) -> None:
    """Heartbeats and a writer: Debezium never rests."""
    shop = Shop(required(PostgresServer), tmp_path)
    try:
        with shop.connect() as connection:
            number = iter(range(1000, 1 << 30))
            insert = "INSERT INTO orders (id, name) VALUES (%s, 'new')"
            with repeated(lambda: connection.execute(insert, (next(number),)) and None, 0.001):
                config = shop.config(heartbeat__interval__ms="50")
                rows = available_now(tmp_path, config, DEBEZIUM, drainTimeout="30s")
        ids = [json.loads(row["value"])["payload"]["after"]["id"] for row in rows if "heartbeat" not in row["topic"]]
        assert set(range(1, 201)) <= set(ids)
    finally:
        shop.drop()


@pytest.mark.server
def test_a_run_over_a_binary_log_that_is_written_to_ends_with_the_first_change_after_its_start(tmp_path: Path) -> None:
    import pymysql

    server = optional(MariaDbServer)
    with pymysql.connect(host="127.0.0.1", port=server.port, user="app", password="app", autocommit=True) as admin:
        cursor = admin.cursor()
        for statement in (
            "DROP DATABASE IF EXISTS busy",
            "CREATE DATABASE busy",
            "CREATE TABLE busy.orders (id int PRIMARY KEY)",
        ):
            cursor.execute(statement)
        number = iter(range(1 << 30))
        with repeated(lambda: cursor.execute(f"INSERT INTO busy.orders VALUES ({next(number)})") and None, 0.01):
            config = mariadb_properties(server.port, "busy", 5402, tmp_path / "history.dat")
            assert available_now(tmp_path, config, DEBEZIUM_MARIADB, drainTimeout="30s")


def test_connector_and_task_are_stopped_when_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_validation(monkeypatch)
    notes = tmp_path / "notes"
    note = 'StoppedTask.note(settings, "{}");'.format
    config = use_connector(
        monkeypatch, "Stopped", "return at == 0 ? records(3) : null;", note("connector"), note("task")
    )
    assert len(available_now(tmp_path, {**config, "notes": str(notes)}, FILES, drainTimeout="1s")) == 3
    assert notes.read_text().split() == ["task", "connector"]


def test_a_python_connector_and_its_tasks_are_stopped_when_a_run_ends(tmp_path: Path) -> None:
    database = Database("a")
    database.insert(3)
    Query(tmp_path, database).run()
    assert {"connector stopped", "task stopped"} <= set(database.events)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["python", "java"])
@pytest.mark.parametrize("way", ["availableNow", "stop"])
def test_spark_lets_connector_and_tasks_stop(spark: Any, tmp_path: Path, kind: str, way: str) -> None:
    """At the end of a run, and when a query is stopped."""
    notes = tmp_path / "notes"
    options = {"stateLocation": str(tmp_path / "state"), "pollInterval": "200ms", "drainTimeout": "1s"}
    if kind == "java":
        source = tmp_path / "lines"
        source.write_text("line\n")
        config = {**file_properties(source), "connector.class": NOTING, "notes": str(notes)}
        options["pluginPath"] = str(noting_jars(tmp_path / "jars"))
    else:
        config = {"connector.class": f"{__name__}.NotingConnector", "notes": str(notes)}
    connectors.register(spark, ConnectSource)
    rows = spark.readStream.format("connectors.connect").options(config=json.dumps(config), **options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    if way == "availableNow":
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
    else:
        query = writer.trigger(processingTime="100 milliseconds").start()
        until = time.monotonic() + SECONDS
        while not any(progress["numInputRows"] for progress in query.recentProgress):
            assert time.monotonic() < until
            time.sleep(0.1)
        query.stop()
    until = time.monotonic() + 20
    while not notes.exists() or len(notes.read_text().split()) < 2:
        assert time.monotonic() < until, notes.read_text() if notes.exists() else "nothing is noted"
        time.sleep(0.1)
    assert notes.read_text().split() == ["task", "connector"]


class NotingTask(SourceTask):
    """Gives one record."""

    def start(self, props: Mapping[str, str]) -> None:
        self._notes, self._given = Path(props["notes"]), False

    def poll(self) -> list[SourceRecord] | None:
        if self._given:
            time.sleep(0.05)
            return None
        self._given = True
        return [SourceRecord({"a": 1}, {"n": 1}, "t", "value")]

    def stop(self) -> None:
        note(self._notes, "task")


class NotingConnector(SourceConnector):
    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)

    def task_class(self) -> type[SourceTask]:
        return NotingTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self._props]

    def stop(self) -> None:
        note(Path(self._props["notes"]), "connector")


def note(path: Path, word: str) -> None:
    """Notes ``word`` once: a task is stopped by its thread and, to wake its poll, by the host's, perhaps at one time."""
    with NOTE, path.open("a+") as file:
        file.seek(0)
        if word not in file.read():
            file.write(f"{word}\n")


NOTE = threading.Lock()
NOTING = "noting.NotingConnector"
NOTING_JAVA = """
package noting;

import java.io.FileWriter;
import java.util.Map;
import org.apache.kafka.connect.file.FileStreamSourceConnector;
import org.apache.kafka.connect.file.FileStreamSourceTask;

public class NotingConnector extends FileStreamSourceConnector {
    private String notes;

    public void start(Map<String, String> settings) {
        notes = settings.get("notes");
        super.start(settings);
    }

    public Class taskClass() {
        return NotingTask.class;
    }

    public void stop() {
        note(notes, "connector");
        super.stop();
    }

    static void note(String notes, String word) {
        try (FileWriter file = new FileWriter(notes, true)) {
            file.write(word + "\\n");
        } catch (java.io.IOException error) {
            throw new RuntimeException(error);
        }
    }

    public static class NotingTask extends FileStreamSourceTask {
        private String notes;

        public void start(Map<String, String> settings) {
            notes = settings.get("notes");
            super.start(settings);
        }

        public void stop() {
            NotingConnector.note(notes, "task");
            super.stop();
        }
    }
}
"""


def noting_jars(folder: Path) -> Path:
    """A folder with the jars of a connector of Java that notes its stop, which the JDK compiles here."""
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("no javac")
    folder.mkdir()
    jars = plugin_class_path(None, [FILES])
    for jar in jars:
        (folder / Path(jar).name).symlink_to(jar)
    source = folder.parent / "java" / "noting" / "NotingConnector.java"
    source.parent.mkdir(parents=True)
    source.write_text(NOTING_JAVA)
    classes = folder.parent / "classes"
    subprocess.run([compiler, "-nowarn", "-cp", ":".join(jars), "-d", str(classes), str(source)], check=True)
    with zipfile.ZipFile(folder / "noting.jar", "w") as jar_file:
        for file in classes.rglob("*.class"):
            jar_file.write(file, file.relative_to(classes))
    return folder

"""A Java sink in its child JVM: the file sink of Connect, and Debezium's JDBC sink against a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import connectors
from connectors.connect.errors import ConnectException
from connectors.connect.host import HEADERS, SINK_COLUMNS, ConnectorSettings
from connectors.connect.java.sink_host import JavaSinkHost, _JavaTask
from connectors.connect.java.validation import _without_secret
from connectors.ground.errors import Transient
from connectors.ground.options import secrets_in
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM_JDBC, FILES, exists, probe, probe_lines, probe_properties, settings
from tests.servers import required

FILE_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


def rows(values: Any, key: Any = None, first: int = 0) -> pa.Table:
    """Rows of one partition of the topic ``t``."""
    value = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    count = len(value)
    columns = {
        "topic": pa.repeat("t", count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "key": key if key is not None else pa.nulls(count),
        "value": value,
        "headers": pa.nulls(count, HEADERS),
        "timestamp": pa.nulls(count, pa.timestamp("us", tz="UTC")),
    }
    return pa.table(columns).select(list(SINK_COLUMNS))


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the probe's jar."""
    return probe(tmp_path_factory.mktemp("probe"))


@contextmanager
def probing(plugins: Path, properties: dict[str, str], **more: Any) -> Iterator[JavaSinkHost]:
    host = JavaSinkHost(ConnectorSettings(properties, str(plugins), **more))
    try:
        yield host
    finally:
        host.close()


@contextmanager
def started(properties: dict[str, str], package: str = FILES, **more: Any) -> Iterator[JavaSinkHost]:
    host = JavaSinkHost(settings(properties, package, **more))
    try:
        yield host
    finally:
        host.close()


def file_sink(path: Path, **more: str) -> dict[str, str]:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return {"connector.class": FILE_SINK, "name": "out", "topics": "t", "file": str(path), **named}


def test_records_are_written_when_the_task_flushes_and_the_jvm_stays_for_the_next_batch(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with started(file_sink(path, value__converter="StringConverter")) as host:
        for number in range(2):
            task = host.task(0, ["t"])
            assert task.put(rows([f"line {number}".encode(), b"x"], first=2 * number)) == []
            assert task.flush() == []
            task.close()
        jvm = host.pid
        assert path.read_text() == "line 0\nx\nline 1\nx\n"
    assert not exists(jvm)


def test_a_row_that_no_converter_reads_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with started(file_sink(path, errors__tolerance="all")) as host:
        task = host.task(0, ["t"])
        letters = [*task.put(rows([b'"good"', b"{bad", b'"better"', b"{", b'"best"'])), *task.flush()]
    assert path.read_text() == "good\nbetter\nbest\n"
    assert [(letter.offset, letter.value, letter.stage) for letter in letters] == [
        (1, b"{bad", "VALUE_CONVERTER"),
        (3, b"{", "VALUE_CONVERTER"),
    ]
    assert letters[0].error_class == "org.apache.kafka.connect.errors.DataException"
    with started(file_sink(path)) as host, pytest.raises(ConnectException, match="DataException"):
        host.task(0, ["t"]).put(rows([b"{bad"]))


def test_a_number_that_json_lacks_makes_a_bad_row_that_names_its_column(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    inner = pa.StructArray.from_arrays([pa.array([0.5, 0.5, None, float("-inf")])], ["y"])
    values = pa.StructArray.from_arrays([pa.array([1.5, float("nan"), None, 2.5]), inner], ["x", "inner"])
    with started(file_sink(path, errors__tolerance="all")) as host:
        task = host.task(0, ["t"])
        letters = [*task.put(rows(values)), *task.flush()]
    assert path.read_text() == "Struct{x=1.5,inner=Struct{y=0.5}}\nStruct{inner=Struct{}}\n"
    assert [(letter.offset, letter.stage, letter.message.split(" which")[0]) for letter in letters] == [
        (1, "VALUE_CONVERTER", "value.x is NaN or infinite,"),
        (3, "VALUE_CONVERTER", "value.inner.y is NaN or infinite,"),
    ]
    with started(file_sink(path)) as host, pytest.raises(ConnectException, match=r"value\.x is NaN or infinite"):
        host.task(0, ["t"]).put(rows(values))


def test_times_with_microseconds_reach_java_in_milliseconds(tmp_path: Path) -> None:
    path, moment = tmp_path / "out.txt", 1_704_067_200_123_456
    kind = pa.timestamp("us", tz="UTC")
    values = pa.StructArray.from_arrays([pa.array([moment, -1], kind)], ["at"])
    table = rows(values).set_column(6, "timestamp", pa.array([moment, -1], kind))
    with started(file_sink(path)) as host:
        task = host.task(0, ["t"])
        task.put(table)
        task.flush()
    lines = path.read_text().splitlines()
    assert lines == ["Struct{at=Mon Jan 01 00:00:00 UTC 2024}", "Struct{at=Wed Dec 31 23:59:59 UTC 1969}"]


def test_secrets_inside_a_url_are_in_no_message() -> None:
    properties = {
        "connection.uri": "mongodb://bob:hunter22@db/x",
        "camel.sink.url": "aws2-sqs:q?accessKey=AKIA&secretKey=s3cr3t&region=eu",
        "db.password": "swordfish",
        "name": "x",
    }
    secrets = [text for key, value in properties.items() for text in secrets_in(key, value)]
    assert secrets == ["hunter22", "AKIA", "s3cr3t", "swordfish"]
    message = "Invalid value mongodb://bob:hunter22@db/x for configuration connection.uri: no such host"
    assert _without_secret("connection.uri", message, properties) == (
        "Invalid value mongodb://***@db/x for configuration connection.uri: no such host"
    )


class _Answers:
    """A ``preCommit`` in Java: its offsets by partition, or nothing."""

    def __init__(self, **ends: int) -> None:
        self._ends = ends

    def get(self, place: str) -> Any:
        end = self._ends.get(place)
        return None if end is None else SimpleNamespace(offset=lambda: end)


def test_a_partition_that_pre_commit_does_not_name_is_not_acknowledged() -> None:
    task = object.__new__(_JavaTask)
    task._partitions = {("t", 0): "a", ("t", 1): "b"}
    task._unacknowledged = {("t", 0): 3, ("t", 1): 5}
    task._acknowledged = {}
    behind = []
    for answers in (None, _Answers(a=3), _Answers(b=4), _Answers(b=5)):
        task._note_acknowledged(answers)
        behind.append(task._behind(task._unacknowledged))
    assert behind == [("t", 0), ("t", 1), ("t", 1), None]


KILLED = """
import json, os, signal, sys
import pyarrow as pa
from connectors.connect.host import ConnectorSettings
from connectors.connect.java.sink_host import JavaSinkHost
from tests.connect.test_java_sink import rows

properties, plugins, is_done = json.loads(sys.argv[1])
host = JavaSinkHost(ConnectorSettings(properties, plugins))
for _ in range(2):
    task = host.task(0, ["t"])
    task.put(rows([b"a"]))
    task.flush()
    if is_done:
        task.close()
print(host.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.soak
@pytest.mark.parametrize("is_done", [True, False])
def test_task_and_connector_are_stopped_when_their_worker_is_killed_unless_a_batch_is_under_way(
    tmp_path: Path, plugins: Path, is_done: bool
) -> None:
    arguments = json.dumps([probe_properties(tmp_path), str(plugins), is_done])
    folders = os.pathsep.join([str(Path(connectors.__file__).parents[1]), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": folders}
    program = subprocess.run([sys.executable, "-c", KILLED, arguments], env=environment, stdout=subprocess.PIPE, text=True)
    assert program.returncode == -signal.SIGKILL
    until = time.monotonic() + 15
    while exists(int(program.stdout)):
        assert time.monotonic() < until
        time.sleep(0.05)
    stopped = [line for line in probe_lines(tmp_path) if line.endswith("stopped")]
    assert stopped == (["task stopped", "connector stopped"] if is_done else [])


def test_task_and_connector_are_stopped_once_when_their_host_is_closed(tmp_path: Path, plugins: Path) -> None:
    with probing(plugins, probe_properties(tmp_path)) as host:
        task = host.task(0, ["t"])
        task.put(rows([b"a"]))
        task.flush()
        task.close()
    assert [line for line in probe_lines(tmp_path) if line.endswith("stopped")] == ["task stopped", "connector stopped"]


def test_a_sink_that_keeps_offsets_itself_and_never_names_them_is_waited_for_unless_that_is_said(
    tmp_path: Path, plugins: Path
) -> None:
    properties = probe_properties(tmp_path, acknowledges="false")
    with probing(plugins, properties, outage_timeout=0.2) as host:
        task = host.task(0, ["t"])
        task.put(rows([b"a"]))
        with pytest.raises(Transient, match=r"(?s)not acknowledged t-0.*set offsets=sink"):
            task.flush()
    with probing(plugins, properties, outage_timeout=600.0, awaits_offsets=False) as host:
        task = host.task(0, ["t"])
        task.put(rows([b"b"]))
        assert task.flush() == []
    assert {"value a", "value b"} <= set(probe_lines(tmp_path))


def test_a_task_that_asks_for_rows_again_that_it_could_not_write_fails_its_batch(tmp_path: Path, plugins: Path) -> None:
    with probing(plugins, probe_properties(tmp_path, rewinds="b"), awaits_offsets=False) as host:
        task = host.task(0, ["t"])
        with pytest.raises(Transient, match=r"(?s)asks for t-0 from offset 11 on again.*its last batch comes again"):
            task.put(rows([b"a", b"b", b"c"], first=10))


@pytest.mark.soak
def test_transforms_run_in_the_jvm(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    transform = {
        "transforms": "only",
        "transforms.only.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
        "transforms.only.field": "name",
    }
    values = pa.array([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], pa.struct([("id", pa.int32()), ("name", pa.string())]))
    with started({**file_sink(path), **transform}) as host:
        task = host.task(0, ["t"])
        task.put(rows(values))
        task.flush()
    assert path.read_text() == "a\nb\n"


def test_a_jvm_that_dies_before_the_flush_is_replaced_no_row_is_lost_and_each_bad_one_is_one_letter(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with started(file_sink(path, errors__tolerance="all")) as host:
        task = host.task(0, ["t"])
        letters = task.put(rows([b'"one"', b"{"]))
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        letters += task.put(rows([b'"two"', b"{"], first=2))
        letters += task.flush()
    assert {"one", "two"} <= set(path.read_text().split())
    assert [letter.offset for letter in letters] == [1, 3]


def test_a_record_that_a_task_reports_again_since_its_put_is_tried_again_is_one_letter(tmp_path: Path, plugins: Path) -> None:
    properties = probe_properties(tmp_path, refuses="b", outages="2", errors__tolerance="all")
    with probing(plugins, properties) as host:
        task = host.task(0, ["t"])
        letters = [*task.put(rows([b"a", b"b", b"c"])), *task.flush()]
    assert [(letter.offset, letter.message) for letter in letters] == [(1, "refused")]
    assert [line for line in probe_lines(tmp_path) if line.startswith("value")] == ["value a", "value c"]


@pytest.mark.soak
@pytest.mark.server
def test_debezium_upserts_typed_rows_into_a_database() -> None:
    import psycopg

    server = required(PostgresServer)
    properties = {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "name": "table",
        "topics": "t",
        "connection.url": server.jdbc,
        "connection.username": "postgres",
        "connection.password": "sesame",
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "id",
        "schema.evolution": "basic",
        "collection.name.format": "java_sink",
    }
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("price", pa.decimal128(10, 2))])
    values = [{"id": number, "name": f"n{number}", "price": number} for number in range(50)]
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres", autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS java_sink")
        with started(properties, DEBEZIUM_JDBC) as host:
            task = host.task(0, ["t"])
            for _ in range(2):  # a replay
                task.put(rows(pa.array(values, kind)))
                task.flush()
        content = database.execute("SELECT id, name, price::int FROM java_sink ORDER BY id").fetchall()
    assert content == [(row["id"], row["name"], row["price"]) for row in values]


@pytest.mark.soak
def test_wrong_settings_of_a_sink_are_told_at_once(tmp_path: Path) -> None:
    wrong = {**file_sink(tmp_path / "x"), "tasks.max": "none", "value.converter": "no.such.Converter"}
    assert {problem.option for problem in JavaSinkHost(settings(wrong)).validate()} == {"tasks.max", "value.converter"}
    source = {**wrong, "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector"}
    problems = [problem.text for problem in JavaSinkHost(settings(source)).validate() if problem.option == "connector.class"]
    assert len(problems) == 1
    assert "is no sink connector" in problems[0]
    assert json.dumps(wrong)

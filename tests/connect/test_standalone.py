"""``python -m connectors connect``: the files of a standalone worker, run on Spark (CON-18)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from connectors.connect.properties import parse_properties
from connectors.testing.servers import KafkaServer
from connectors_tools.cli import main
from tests.servers import required

from . import file_connectors

STRING = "org.apache.kafka.connect.storage.StringConverter"


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# comment\n! another\n a = 1 \nb:two words\nc\\ d three\nlong = x,\\\n    y\nempty\nu = \\u00fc\\tz\n"
    assert parse_properties(text) == {
        "a": "1 ",
        "b": "two words",
        "c d": "three",
        "long": "x,y",
        "empty": "",
        "u": "ü\tz",
    }
    assert parse_properties("back=C:\\\\dir") == {"back": "C:\\dir"}


def write(folder: Path, file_name: str, /, **properties: str) -> str:
    lines = [f"{key.replace('__', '.')}={value}" for key, value in properties.items()]
    (folder / file_name).write_text("\n".join(lines) + "\n")
    return str(folder / file_name)


def test_what_cannot_start_is_listed_with_exit_code_2(tmp_path: Path) -> None:
    worker = write(tmp_path, "worker.properties", key__converter=STRING)
    source = write(tmp_path, "source.properties", name="a", connector__class=file_connectors.SOURCE, tasks__max="none")
    sink = write(tmp_path, "sink.properties", name="a", connector__class=file_connectors.SINK, file="x")
    java = write(tmp_path, "java.properties", name="b", connector__class="FileStreamSource", file="x", topic="t")
    result = CliRunner().invoke(main, ["connect", worker, source, sink, java, str(tmp_path / "no.properties")])
    assert result.exit_code == 2
    for text in (
        "worker.properties: bootstrap.servers",
        "worker.properties: offset.storage.file.filename",
        "source.properties: tasks.max",
        "source.properties: topic ",
        '"a" is the name of another connector here',
        "sink.properties: topics",
        "java.properties: connector.class",
        "of a worker plugin.path",
        "no.properties",
    ):
        assert text in result.output, result.output


def test_a_converter_of_the_worker_that_is_not_here_is_told_once_with_the_workers_file(tmp_path: Path) -> None:
    state = {"bootstrap__servers": "x:1", "offset__storage__file__filename": str(tmp_path / "offsets")}
    worker = write(tmp_path, "worker.properties", **state, value__converter="io.confluent.connect.avro.AvroConverter")
    files = [
        write(tmp_path, f"{name}.properties", name=name, connector__class=file_connectors.SINK, topics="t") for name in "ab"
    ]
    result = CliRunner().invoke(main, ["connect", worker, *files])
    assert result.exit_code == 2
    assert result.output.count("AvroConverter") == result.output.count("worker.properties: value.converter") == 1


def test_references_to_config_providers_and_wrong_resets_are_refused_in_each_file(tmp_path: Path) -> None:
    state = {"bootstrap__servers": "x:1", "offset__storage__file__filename": str(tmp_path / "offsets")}
    providers = {"config__providers": "file", "consumer__sasl__jaas__config": "${file:/run/jaas:config}"}
    worker = write(tmp_path, "worker.properties", **state, **providers, consumer__auto__offset__reset="newest")
    sink = write(
        tmp_path, "sink.properties", name="a", connector__class=file_connectors.SINK, topics="t", file="${file:/x:path}",
    )  # fmt: skip
    result = CliRunner().invoke(main, ["connect", worker, sink])
    assert result.exit_code == 2
    for option in ("worker.properties: consumer.sasl.jaas.config", "sink.properties: file", "sink.properties: auto.offset"):
        assert option in result.output, result.output
    assert "write {{secrets/scope/key}} in its place" in result.output


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.parametrize("reset", ["", pytest.param("none", marks=pytest.mark.soak)])
def test_a_topic_that_goes_away_does_not_end_a_sink_unless_that_is_asked_for(tmp_path: Path, reset: str) -> None:
    server = required(KafkaServer)
    topics = [server.create_topic(f"{name}-{uuid.uuid4().hex[:8]}") for name in ("gone", "stays")]
    override = {"consumer__override__auto__offset__reset": reset} if reset else {}
    worker = write(
        tmp_path, "worker.properties", bootstrap__servers=server.bootstrap, key__converter=STRING, value__converter=STRING,
        offset__storage__file__filename=str(tmp_path / "offsets"), offset__flush__interval__ms="200",
    )  # fmt: skip
    sink = write(
        tmp_path, "sink.properties", name="lines", connector__class=file_connectors.SINK, file=str(tmp_path / "out.txt"),
        topics=",".join(topics), **override,
    )  # fmt: skip
    produce(server, topics[0], "a")
    process = _run(worker, sink)
    try:
        _eventually(lambda: _lines(tmp_path / "out.txt") == ["a"], process)
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.delete_topics([topics[0]])[topics[0]].result(60)
        produce(server, topics[1], "b")
        if reset:
            assert process.wait(timeout=240) == 1
        else:
            _eventually(lambda: _lines(tmp_path / "out.txt") == ["a", "b"], process)
            server.create_topic(topics[0])
            produce(server, topics[0], "c")
            _eventually(lambda: _lines(tmp_path / "out.txt") == ["a", "b", "c"], process)
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=120)
    assert ("FAILED" in output) == bool(reset), output


def produce(server: KafkaServer, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, value.encode())
    assert producer.flush(60) == 0


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
def test_con_18_the_file_pair_of_the_guide_runs_from_its_files(tmp_path: Path) -> None:
    server = required(KafkaServer)
    topic = server.create_topic("standalone")
    (tmp_path / "test.txt").write_text("foo\nbar\n")
    worker = write(
        tmp_path,
        "connect-standalone.properties",
        bootstrap__servers=server.bootstrap,
        key__converter=STRING,
        value__converter=STRING,
        offset__storage__file__filename=str(tmp_path / "offsets"),
        offset__flush__interval__ms="500",
        listeners="http://localhost:8083",
        made__up="x",
    )
    source = write(
        tmp_path, "source.properties", name="local-file-source", connector__class=file_connectors.SOURCE, tasks__max="1",
        file=str(tmp_path / "test.txt"), topic=topic,
    )  # fmt: skip
    sink = write(
        tmp_path, "sink.properties", name="local-file-sink", connector__class=file_connectors.SINK, tasks__max="1",
        file=str(tmp_path / "sink.txt"), topics=topic,
    )  # fmt: skip
    process = _run(worker, source, sink)
    try:
        _eventually(lambda: _lines(tmp_path / "sink.txt") == ["foo", "bar"], process)
        with (tmp_path / "test.txt").open("a") as file:
            file.write("baz\n")
        _eventually(lambda: _lines(tmp_path / "sink.txt") == ["foo", "bar", "baz"], process)
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "listeners - there is no REST interface" in output
    assert "made.up - is no property of a worker" in output
    with_once = _run("--once", worker, source)
    assert with_once.wait(timeout=300) == 0
    assert _values(server, topic) == [b"foo", b"bar", b"baz"]


def _run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "connectors", "connect", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ))


def _eventually(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.2)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _values(server: KafkaServer, topic: str) -> list[bytes | None]:
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "end",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    end = time.monotonic() + 20
    while len(values) < 3 and time.monotonic() < end:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
    more = consumer.poll(2.0)
    consumer.close()
    assert more is None or more.error() is not None
    return values

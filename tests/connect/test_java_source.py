"""A Java source in its child JVM: the file source of Connect, as it comes from Maven Central."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.connect.host import ConnectorSettings
from connectors.connect.java import source_engine
from connectors.connect.java.jvm import Jvm
from connectors.connect.java.source_host import JavaSourceHost
from connectors.connect.java.validation import _exactly_once_problem
from connectors.core import Fatal, ReadLimit
from tests.connect.java_sources import (
    FILES,
    exists,
    file_properties,
    poll,
    rows_of,
    settings,
    started,
    values_of,
)

TWICE_AWAY = """
public class TwiceAway extends org.apache.kafka.connect.file.FileStreamSourceTask {
    private int polls = 0;
    public java.util.List poll() throws InterruptedException {
        if (polls++ < 2) {
            throw new org.apache.kafka.connect.errors.RetriableException("the system is away");
        }
        return super.poll();
    }
}
"""


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(3)))
    return path


def test_records_come_as_rows_with_the_place_to_go_on_from(lines: Path) -> None:
    with started(file_properties(lines)) as host:
        records = poll(host, 3)
        assert [row["value"] for row in rows_of(records)] == [b'"line 0"', b'"line 1"', b'"line 2"']
        partition = json.dumps({"filename": str(lines)}, separators=(",", ":"))
        assert records[-1].offsets == {partition: {"position": 21}}
        offsets, jvm = records[-1].offsets, host.pid
    assert not exists(jvm)
    lines.write_text(lines.read_text() + "more\n")
    with started(file_properties(lines, value__converter="StringConverter"), offsets=offsets) as host:
        assert values_of(poll(host, 1)) == [b"more"]


def test_epochs_keep_to_their_limits_and_rows_are_collected_between_them(lines: Path) -> None:
    texts = [f"line {number}".ljust(99) for number in range(400)]  # the connector keeps a part of shorter ones for later
    lines.write_text("".join(f"{text}\n" for text in texts))
    with started(file_properties(lines, batch__size="20", value__converter="StringConverter")) as host:
        of_rows = values_of(host.poll(1, ReadLimit(rows=25), 30.0))
        time.sleep(2.0)  # as Spark computes a batch
        of_bytes = values_of(host.poll(2, ReadLimit(bytes=1), 0.0))
        collected = values_of(host.poll(3, ReadLimit(), 0.0))
        last = values_of(poll(host, 400 - len(of_rows) - len(of_bytes) - len(collected)))
    assert 10 <= len(of_rows) <= 25
    assert 10 <= len(of_bytes) <= 25
    assert len(collected) > 25
    assert [*of_rows, *of_bytes, *collected, *last] == [text.encode() for text in texts]


def test_transforms_predicates_and_headers_run_in_the_jvm(lines: Path) -> None:
    transforms = {
        "transforms": "hoist,label,drop",
        "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        "transforms.hoist.field": "line",
        "transforms.label.type": "org.apache.kafka.connect.transforms.InsertHeader",
        "transforms.label.header": "from",
        "transforms.label.value.literal": "file",
        "transforms.label.predicate": "ours",
        "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.drop.predicate": "ours",
        "transforms.drop.negate": "true",
        "predicates": "ours",
        "predicates.ours.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.ours.pattern": "lines",
    }
    with started({**file_properties(lines), **transforms}) as host:
        rows = rows_of(poll(host, 3))
    assert [json.loads(row["value"]) for row in rows] == [{"line": f"line {number}"} for number in range(3)]
    assert [row["headers"] for row in rows] == [[{"key": "from", "value": b"file"}]] * 3


@pytest.mark.soak
def test_offsets_advance_over_records_that_a_transform_drops(lines: Path) -> None:
    filtered = {
        "transforms": "drop",
        "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    }
    with started({**file_properties(lines), **filtered}) as host:
        records = host.poll(1, ReadLimit(), 30.0)
    assert sum(part.rows.num_rows for part in records) == 0
    assert list(records[-1].offsets.values()) == [{"position": 21}]


def test_a_bad_record_is_a_dead_letter_and_the_others_go_on(lines: Path) -> None:
    """A cast fails for words. The record is set aside as it was, with what failed."""
    lines.write_text("1\ntwo\n3\nfour\n5\n")
    cast = {
        "transforms": "cast",
        "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
        "transforms.cast.spec": "int32",
        "errors.tolerance": "all",
    }
    with started({**file_properties(lines), **cast}) as host:
        records = poll(host, 3)
    assert values_of(records) == [b"1", b"3", b"5"]
    letters = [letter for part in records for letter in part.letters]
    assert [letter.value for letter in letters] == [b'"two"', b'"four"']
    assert {letter.stage for letter in letters} == {"TRANSFORMATION"}
    assert {letter.executing_class for letter in letters} == {"org.apache.kafka.connect.transforms.Cast$Value"}
    assert "DataException" in letters[0].error_class or "NumberFormat" in letters[0].error_class
    assert "at org.apache.kafka.connect.transforms" in letters[0].stacktrace


@pytest.mark.soak
def test_a_bad_record_fails_the_task_with_its_trace_where_errors_are_not_tolerated(lines: Path) -> None:
    cast = {
        "transforms": "cast",
        "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
        "transforms.cast.spec": "int32",
    }
    with started({**file_properties(lines), **cast}, restarts=1) as host:
        with pytest.raises(Fatal, match="Tolerance exceeded in error handler: TRANSFORMATION"):
            poll(host, 1)
        status = host.statuses()[0]
    assert (status.state, status.final) == ("FAILED", True)
    assert "transforms.Cast" in status.trace


@pytest.mark.parametrize("how", ["killed", pytest.param("hung", marks=pytest.mark.soak)])
def test_a_jvm_that_dies_or_hangs_is_replaced_and_nothing_comes_twice(
    lines: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(file_properties(lines)) as host:
        first = poll(host, 3)
        dead = host.pid
        assert dead is not None
        monkeypatch.setattr(source_engine, "CALL_SECONDS", 2.0 if how == "hung" else 60.0)
        time.sleep(1.0)  # the call that is under way has the old limit
        os.kill(dead, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        with lines.open("a") as file:
            file.write("line 3\n")
        records = poll_through_restart(host, monkeypatch)
        assert values_of(records) == [b'"line 3"']
        assert sum(part.counts.get("restarts", 0) for part in records) >= 1
        assert not exists(dead)
        assert host.pid != dead
    assert len(values_of(first)) == 3


def poll_through_restart(host: JavaSourceHost, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The first call notices the death; the JVM that follows gets its time to start."""
    original = host._start_engine

    def with_time() -> None:
        monkeypatch.setattr(source_engine, "CALL_SECONDS", 60.0)
        original()

    monkeypatch.setattr(host, "_start_engine", with_time)
    return poll(host, 1)  # type: ignore[return-value]


def test_what_is_handed_over_leaves_the_jvm_before_python_collects_its_garbage(lines: Path) -> None:
    """All records take twice this heap, those that may wait in the queue a fifth of it."""
    lines.write_text("".join(f"line {number}\n" for number in range(300_000)))
    small = file_properties(lines, java__options="-Xmx48m", batch__size="2000", value__converter="StringConverter")
    gc.disable()
    try:
        with started(small, restarts=0) as host:
            poll(host, 300_000)
    finally:
        gc.enable()


@pytest.mark.soak
def test_a_jvm_that_runs_out_of_memory_says_so_and_gives_up_after_its_restarts(lines: Path) -> None:
    lines.write_text("x" * 40_000_000 + "\n")
    small = file_properties(lines, java__options="-Xmx24m")
    with started(small, restarts=1) as host, pytest.raises(Fatal, match=r"ran out of memory.*2 times"):
        poll(host, 1)


@pytest.mark.soak
def test_a_retriable_exception_is_tried_again_with_the_same_task_and_offsets(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's ``poll`` throws Connect's RetriableException twice, inside the JVM."""
    original = Jvm.instance

    def twice_away(jvm: Jvm, name: str) -> Any:
        if not name.endswith("FileStreamSourceTask"):
            return original(jvm, name)
        compiler = jvm.java.org.codehaus.janino.SimpleCompiler()
        compiler.cook(TWICE_AWAY)
        return compiler.getClassLoader().loadClass("TwiceAway").newInstance()

    monkeypatch.setattr(Jvm, "instance", twice_away)
    with started(file_properties(lines)) as host:
        records = poll(host, 3)
        assert host.statuses()[0].state == "RUNNING"
    assert len(values_of(records)) == 3
    assert sum(part.counts.get("retries", 0) for part in records) == 2
    assert not any(part.counts.get("restarts") for part in records)


def test_no_java_is_one_clear_problem(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    (problem,) = JavaSourceHost(settings(file_properties(lines, name="without-java"))).validate()
    assert problem.option == "JAVA_HOME"
    assert "holds no bin/java" in problem.text


def test_every_wrong_setting_is_told_at_once_in_the_connectors_words(lines: Path) -> None:
    wrong = {
        **file_properties(lines),
        "topic": "",
        "tasks.max": "0",
        "errors.tolerance": "some",
        "value.converter": "no.such.Converter",
        "transforms": "hoist, hoist",
        "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
    }
    told = JavaSourceHost(settings(wrong)).validate()
    problems = {problem.option: problem.text for problem in told}
    assert len(problems) == len(told), "each is told once"
    assert problems.pop("transforms") == 'has "hoist" twice; give each alias once.'
    assert problems["value.converter"].startswith("no.such.Converter is in none of the jars; name one that has it in pluginP")
    assert set(problems) == {"topic", "tasks.max", "errors.tolerance", "value.converter", "transforms.hoist.field"}


def test_exactly_once_that_is_required_is_refused_unless_the_connector_says_that_it_supports_it(lines: Path) -> None:
    """The file source answers by whether it has a file; a connector that does not know the question answers null."""
    supported = {**file_properties(lines), "exactly.once.support": "required"}
    unsupported = {name: value for name, value in supported.items() if name != "file"}
    for properties, refused in ((supported, []), (unsupported, ["exactly.once.support"])):
        assert [problem.option for problem in JavaSourceHost(settings(properties)).validate()] == refused
    unknown = SimpleNamespace(exactlyOnceSupport=lambda properties: None)
    assert [problem.option for problem in _exactly_once_problem(unknown, supported)] == ["exactly.once.support"]


@pytest.mark.soak
def test_a_class_that_is_not_there_is_told_with_those_that_are(lines: Path) -> None:
    host = JavaSourceHost(settings({**file_properties(lines), "connector.class": "com.example.Nothing"}))
    (problem,) = host.validate()
    assert problem.option == "connector.class"
    assert "org.apache.kafka.connect.file.FileStreamSourceConnector" in problem.text


@pytest.mark.parametrize(
    ("plugin", "option", "text"),
    [
        ({"plugin_packages": ("org.example:nothing:1.0",)}, "pluginPackages", "org.example:nothing:1.0"),
        ({"plugin_packages": ("nothing",)}, "pluginPackages", "must be Maven coordinates"),
        ({"plugin_path": "/no/such/folder"}, "pluginPath", "a folder with the jars"),
    ],
)
def test_jars_that_cannot_be_had_are_one_clear_problem(lines: Path, plugin: dict, option: str, text: str) -> None:
    (problem,) = JavaSourceHost(ConnectorSettings(file_properties(lines), **plugin)).validate()
    assert problem.option == option
    assert text in problem.text


@pytest.mark.soak
def test_jars_of_a_folder_are_as_good_as_packages(lines: Path, tmp_path: Path) -> None:
    from connectors.jvm.maven import class_path

    folder = tmp_path / "plugins"
    folder.mkdir()
    for jar in class_path("connect-file-in-tests", [FILES]):
        (folder / Path(jar).name).symlink_to(jar)
    host = JavaSourceHost(ConnectorSettings(file_properties(lines), plugin_path=str(folder)))
    try:
        host.start({})
        assert len(values_of(poll(host, 3))) == 3
    finally:
        host.close()


def test_secrets_are_in_no_log_and_no_message(
    lines: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "s3same-open"
    options = "-Dorg.slf4j.simpleLogger.defaultLogLevel=debug -Xlog:gc"  # the latter writes where the port is written
    loud = file_properties(lines, java__options=options, api__password=secret)
    with caplog.at_level(logging.DEBUG), started(loud) as host:
        poll(host, 3)
    captured = capfd.readouterr()
    assert "FileStreamSource" in captured.err
    assert secret not in captured.err + captured.out + caplog.text
    assert secret not in repr(host.settings)


def test_the_connector_is_asked_about_offsets_and_says_what_is_wrong_with_them(lines: Path) -> None:
    partition = json.dumps({"filename": str(lines)})
    with contextlib.closing(JavaSourceHost(settings(file_properties(lines)))) as host:
        assert host.alter_offsets({partition: {"position": 7}})
        assert host.alter_offsets({partition: None})
        for offset in ({"position": -1}, {"position": "7"}, {"line": 7}):
            with pytest.raises(Fatal, match=r"refuses these offsets .*ConnectException: .*osition"):
                host.alter_offsets({partition: offset})

"""Short names of Java classes, as Connect's workers take them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from connectors.connect.host import ConnectorSettings
from connectors.connect.java.jars import named_classes, plugin_class_path
from connectors.connect.java.sink_host import JavaSinkHost
from tests.connect.java_sources import (
    FILES,
    file_properties,
    poll,
    probe,
    probe_lines,
    probe_properties,
    started,
    values_of,
)
from tests.connect.test_java_sink import rows

KAFKA = "org.apache.kafka.connect"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plugins of one name."""
    folder = tmp_path_factory.mktemp("probes")
    probe(folder)
    return probe(folder, "other")


def test_an_alias_is_the_last_part_of_a_name_with_or_without_its_kind(plugins: Path) -> None:
    jars = plugin_class_path(str(plugins), [FILES])
    for alias, name in {
        "FileStreamSource": f"{KAFKA}.file.FileStreamSourceConnector",
        "FileStreamSourceConnector": f"{KAFKA}.file.FileStreamSourceConnector",
        "Json": f"{KAFKA}.json.JsonConverter",
        "StringConverter": f"{KAFKA}.storage.StringConverter",
        "Simple": f"{KAFKA}.storage.SimpleHeaderConverter",
        "HoistField$Value": f"{KAFKA}.transforms.HoistField$Value",
        "Filter": f"{KAFKA}.transforms.Filter",
        "TopicNameMatches": f"{KAFKA}.transforms.predicates.TopicNameMatches",
        "PolledList": "",
    }.items():
        assert named_classes(jars, alias) == ([name] if name else [])
    assert named_classes(jars, "ProbeSink") == ["other.ProbeSinkConnector", "probe.ProbeSinkConnector"]
    sides = [f"{KAFKA}.transforms.HoistField$Key", f"{KAFKA}.transforms.HoistField$Value"]
    assert named_classes(jars, "HoistField") == sides


def test_connector_converters_transforms_and_predicates_may_have_their_short_names(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\n")
    properties = {
        **file_properties(tmp_path / "lines.txt"),
        "connector.class": "FileStreamSource",
        "value.converter": "Json",
        "value.converter.schemas.enable": "false",
        "header.converter": "Simple",
        "transforms": "hoist",
        "transforms.hoist.type": "HoistField$Value",
        "transforms.hoist.field": "line",
        "transforms.hoist.predicate": "lines",
        "predicates": "lines",
        "predicates.lines.type": "TopicNameMatches",
        "predicates.lines.pattern": "lines",
    }
    with started(properties) as host:
        assert host.validate() == []
        assert values_of(poll(host, 2)) == [b'{"line":"a"}', b'{"line":"b"}']


def test_what_is_refused_of_a_java_connector_is_told_at_once_and_what_has_no_effect_too(
    plugins: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    letters = {"errors__deadletterqueue__topic__name": "t", "errors__tolerance": "all"}
    letters |= {"name": uuid.uuid4().hex}  # what was told of another run a moment ago is not told again
    more = {"config__providers": "file", "password": "${file:/x:y}", "offsets__storage__topic": "o", "predicates": "p,p"}
    types = {"predicates__p__type": "RecordIsTombstone", "connector__class": "ProbeSink"}
    host = JavaSinkHost(ConnectorSettings(probe_properties(tmp_path, **letters, **more, **types), str(plugins)))
    problems = {problem.option: problem.text for problem in host.validate()}
    expected = "ProbeSink may be other.ProbeSinkConnector or probe.ProbeSinkConnector; give the full name."
    assert problems.pop("connector.class") == expected
    assert set(problems) == {"errors.deadletterqueue.topic.name", "password", "predicates"}
    assert "without effect: config.providers (secrets are" in caplog.text
    assert "offsets.storage.topic (offsets are in Spark" in caplog.text


def test_more_tasks_than_allowed_are_an_error_or_with_enforce_false_a_warning(
    plugins: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    properties = probe_properties(tmp_path, tasks="3", tasks__max="2")
    host = JavaSinkHost(ConnectorSettings(properties, str(plugins)))
    with pytest.raises(Exception, match=r"(?s)gives 3 task configurations, and tasks.max is 2.*tasks.max.enforce=false"):
        host.task(0, ["t"]).put(rows([b"a"]))
    host.close()
    host = JavaSinkHost(ConnectorSettings({**properties, "tasks.max.enforce": "false"}, str(plugins)))
    task = host.task(2, ["t"])
    task.put(rows([b"a"]))
    task.flush()
    host.close()
    assert "gives 3 task configurations, and tasks.max is 2" in caplog.text
    assert "value a" in probe_lines(tmp_path)

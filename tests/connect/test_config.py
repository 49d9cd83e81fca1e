"""Settings of connectors: every problem in one answer, and no secret in it."""

from __future__ import annotations

import uuid

import pytest

from connectors.connect import ConfigDef, ConfigException, between, group_partitions, valid_string
from connectors.connect.common_settings import without_effect
from connectors.connect.host import ConnectorSettings
from connectors.connect.hosts import sink_host, source_host
from connectors.connect.python_host import PythonSourceHost

from . import file_connectors

DEFINITION = (
    ConfigDef()
    .define("url", "STRING", importance="HIGH")
    .define("db.password", "PASSWORD", importance="HIGH", validator=valid_string("s3cret"))
    .define("batch", "INT", "100", validator=between(1, 1000))
    .define("mode", "STRING", "bulk", validator=valid_string("bulk", "incrementing"))
    .define("tables", "LIST", [])
    .define("quick", "BOOLEAN", False)
)


def test_con_02_ten_in_four_are_3_3_2_2() -> None:
    groups = group_partitions(list(range(10)), 4)
    assert [len(group) for group in groups] == [3, 3, 2, 2]
    assert [element for group in groups for element in group] == list(range(10))
    assert group_partitions(["a"], 3) == [["a"], [], []]
    with pytest.raises(ValueError, match="at least one group"):
        group_partitions([1], 0)


def test_values_are_parsed_with_their_defaults() -> None:
    values = DEFINITION.parse({"url": "db", "db.password": "s3cret", "tables": "a, b,c", "quick": "TRUE"})
    assert values == {
        "url": "db",
        "db.password": "s3cret",
        "batch": 100,
        "mode": "bulk",
        "tables": ["a", "b", "c"],
        "quick": True,
    }


def test_all_problems_come_at_once_and_secrets_stay_hidden() -> None:
    problems = list(DEFINITION.problems({"db.password": "letmein", "batch": "0", "mode": "all", "quick": "perhaps"}))
    texts = {problem.option: problem.text for problem in problems}
    assert set(texts) == {"url", "db.password", "batch", "mode", "quick"}
    assert "letmein" not in str(problems)
    assert texts["batch"] == "must be at least 1 and at most 1000; got '0'."
    with pytest.raises(ConfigException, match=r"url: missing.*batch: must be"):
        DEFINITION.parse({"batch": "x"})


def problems_of(**properties: str) -> dict[str, str]:
    """What is wrong with the properties of a file sink."""
    named = {key.replace("__", "."): value for key, value in properties.items()}
    host = sink_host(ConnectorSettings({"connector.class": file_connectors.SINK, "topics": "t", "file": "x", **named}))
    return {problem.option: problem.text for problem in host.validate()}


def test_transforms_and_predicates_of_a_python_connector_are_refused_with_the_way_out() -> None:
    steps = {"transforms": "t", "transforms__t__type": "Filter", "transforms__t__predicate": "p", "predicates__p__type": "x.P"}
    problems = problems_of(**steps)
    assert set(problems) == {"transforms", "predicates.p.type"}
    for text in problems.values():
        assert "df.select(…)" in text
        assert "Java connector (pluginPath or pluginPackages)" in text
        assert text.endswith(("got 't'.", "got 'x.P'."))
    assert set(problems_of(transforms="", transforms__t__type="Filter")) == {"transforms.t.type"}
    assert problems_of(transforms="", predicates=" ") == {}


def test_dead_letters_do_not_go_to_a_topic_that_the_sink_reads() -> None:
    letters = {"errors__tolerance": "all", "errors__deadletterqueue__topic__name": "dlq"}
    assert problems_of(**letters) == {}
    for topics in ({"topics": "t, dlq"}, {"topics__regex": "d.*", "topics": ""}):
        assert "is among the topics that the sink reads" in problems_of(**{**letters, **topics})[
            "errors.deadletterqueue.topic.name"
        ]


def test_a_reference_to_a_config_provider_is_refused_with_the_way_out() -> None:
    properties = {"a__password": "${file:/run/secrets:db}", "b": "${env:HOME} ${file:/x:y}", "c": "${topic}"}
    assert problems_of(**properties) == {}  # without a provider of that name, Connect takes the text as it is
    problems = problems_of(config__providers="file,vault", **properties)
    assert set(problems) == {"a.password", "b"}
    assert problems["a.password"] == (
        'refers to the config provider "file", and there are none here; write {{secrets/scope/key}} in its place.'
    )


def test_properties_without_effect_are_told_once_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    ignored = {
        "consumer.override.auto.offset.reset": "latest",
        "consumer.override.isolation.level": "read_committed",
        "producer.override.linger.ms": "5",
        "admin.override.client.id": "x",
        "topic.creation.default.partitions": "3",
        "offsets.storage.topic": "o",
        "config.action.reload": "none",
        "config.providers": "file",
        "connector.plugin.version": "1",
        "value.converter.plugin.version": "1",
    }
    used = {"consumer.override.max.poll.records": "7"}
    common = {"connector.class": file_connectors.SINK, "topics": "t", "file": "x"}
    settings = ConnectorSettings({"name": uuid.uuid4().hex, **ignored, **used, **common})
    for _ in range(2):
        assert sink_host(settings).validate() == []
    (message,) = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert all(name in message for name in ignored)
    assert set(without_effect(settings.properties, sink=True)) == set(ignored)
    assert "consumer.override.isolation.level (the rows come from Spark" in message
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "d"}
    assert "producer.override.linger.ms" not in without_effect({**ignored, **letters}, sink=True)
    assert {"consumer.override.max.poll.records", "producer.override.linger.ms"} < set(
        without_effect({**ignored, **used}, sink=False)
    )


def test_a_connectors_problems_are_one_list() -> None:
    host = source_host(
        ConnectorSettings(
            {
                "connector.class": file_connectors.SOURCE,
                "fil": "x",
                "tasks.max": "0",
                "errors.tolerance": "some",
                "value.converter": "nobody.Knows",
                "transforms": "a,b",
                "transaction.boundary": "connector",
            }
        )
    )
    assert isinstance(host, PythonSourceHost)
    problems = {problem.option: problem.text for problem in host.validate()}
    assert set(problems) == {
        "errors.tolerance",
        "fil",
        "tasks.max",
        "topic",
        "transaction.boundary",
        "transforms",
        "value.converter",
    }
    assert 'did you mean "file"' in problems["fil"]


def test_a_class_that_is_none_is_told() -> None:
    for name, text in (("", "missing"), ("no.such.Class", "no Python class"), (file_connectors.SINK, "no SourceConnector")):
        problems = source_host(ConnectorSettings({"connector.class": name})).validate()
        assert any(problem.option == "connector.class" and text in problem.text for problem in problems)


def test_the_file_source_does_not_claim_to_be_exactly_once() -> None:
    properties = {"connector.class": file_connectors.SOURCE, "file": "x", "topic": "t", "exactly.once.support": "required"}
    (problem,) = source_host(ConnectorSettings(properties)).validate()
    assert problem.option == "exactly.once.support"
    assert problem.text == "is required, and the connector does not support it with these settings."

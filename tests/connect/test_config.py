"""Settings of connectors: every problem in one answer, and no secret in it."""

from __future__ import annotations

import pytest

from connectors.connect import ConfigDef, ConfigException, between, group_partitions, valid_string
from connectors.connect.host import ConnectorSettings, source_host
from connectors.connect.python_host import PythonSourceHost

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


def test_a_connectors_problems_are_one_list() -> None:
    host = source_host(
        ConnectorSettings(
            {
                "connector.class": "FileStreamSource",
                "fil": "x",
                "tasks.max": "0",
                "errors.tolerance": "some",
                "value.converter": "nobody.Knows",
                "transforms": "a,b",
                "transforms.a.type": "org.apache.kafka.connect.transforms.InsertField$Value",
                "transforms.b.type": "org.apache.kafka.connect.transforms.RegexRouter",
                "transforms.b.regex": "(",
                "transforms.b.replacment": "x",
                "transforms.c.type": "Filter",
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
        "transforms.a",
        "transforms.b.regex",
        "transforms.b.replacement",
        "transforms.b.replacment",
        "transforms.c.type",
        "value.converter",
    }
    assert 'did you mean "file"' in problems["fil"]
    assert 'did you mean "replacement"' in problems["transforms.b.replacment"]
    assert problems["transforms.a"] == "no field insertion configured."


def test_a_class_that_is_none_is_told() -> None:
    for name, text in (("", "missing"), ("no.such.Class", "no Python class"), ("FileStreamSink", "no SourceConnector")):
        problems = source_host(ConnectorSettings({"connector.class": name})).validate()
        assert any(problem.option == "connector.class" and text in problem.text for problem in problems)


def test_the_file_source_does_not_claim_to_be_exactly_once() -> None:
    properties = {"connector.class": "FileStreamSource", "file": "x", "topic": "t", "exactly.once.support": "required"}
    (problem,) = source_host(ConnectorSettings(properties)).validate()
    assert problem.option == "exactly.once.support"
    assert problem.text == "is required, and the connector does not support it with these settings."

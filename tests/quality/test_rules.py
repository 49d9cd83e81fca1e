"""Rules as data give the checks that the functions give, and what is wrong with them is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors import quality
from connectors.ground.errors import Misconfigured

RULES = [
    {"not_null": "id"},
    {"between": ["cents", 0, 100]},
    {"in_set": ["city", ["Bern", "Zürich"]]},
    {"matches": {"column": "code", "pattern": "[A-Z]{2}"}},
    {"expression": "paid <= due"},
    {"unique": ["shop", "id"]},
    {"row_count": {"min": 0}},
    {"fresh": ["at", "1 day"]},
]
CHECKS = (
    quality.not_null("id"),
    quality.between("cents", 0, 100),
    quality.in_set("city", ["Bern", "Zürich"]),
    quality.matches("code", "[A-Z]{2}"),
    quality.expression("paid <= due"),
    quality.unique("shop", "id"),
    quality.row_count(min=0),
    quality.fresh("at", "1 day"),
)


def test_rules_of_a_text_and_of_a_file_are_the_checks_of_the_functions(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(RULES))
    assert quality.rules(json.dumps(RULES)).checks == CHECKS
    assert quality.rules(str(file)).checks == CHECKS


def test_rules_of_several_tables_are_the_checks_of_each(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"orders": RULES, "*": [{"not_null": "id"}]}))
    for source in (str(file), file.read_text()):
        checks = quality.rules_by_table(source)
        assert {table: of_table.checks for table, of_table in checks.items()} == {"orders": CHECKS, "*": CHECKS[:1]}
    assert quality.rules_by_table("{}") == {}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("rules/missing.json", 'the file .* cannot be read.*Give rules by table as JSON'),
        ('[{"not_null": "id"}]', "must be an object with a list of rules for each table"),
        ('{"orders": {"not_null": "id"}}', "must be an object with a list of rules for each table"),
        ('{"orders": [{"not_nul": "id"}], "*": [1]}', r'orders: rule 1, .*"not_nul" is no rule(.|\n)*\*: rule 1, 1: must be'),
        ('{"orders": []}', "checks +orders: is empty"),
        ("{", "is no JSON"),
        ('{"a": [{"not_null": "id"}], "a": [{"unique": "id"}]}', 'an object has "a" more than once'),
        (
            '{"a": [{"not_null": "id"}, {"not_null": "id"}], "b": []}',
            r"not_null\(id\) +a: is given 2 times(.|\n)*checks +b: is empty",
        ),
    ],
)
def test_what_is_wrong_with_rules_of_tables_is_told(source: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        quality.rules_by_table(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("rules/missing.json", 'the file "rules/missing.json" cannot be read'),
        ('[{"not_null": "id"}', "is no JSON"),
        ('[{"not_null": "id", "not_null": "n"}]', 'an object has "not_null" more than once'),
        ('[{"between": {"column": "n", "low": 0, "low": 5}}]', 'an object has "low" more than once'),
        (
            '[{"expression": {"sql": "a > 0", "name": "x"}}, {"expression": {"sql": "b > 0", "name": "x"}}]',
            "x +is given 2 times",
        ),
        ("[]", "must be a list of at least one rule"),
        ('[{"not_nul": "id"}]', 'rule 1, {"not_nul": "id"}: "not_nul" is no rule; there are between'),
        ('[{"not_null": "id"}, "id"]', 'rule 2, "id": must be an object with one name'),
        ('[{"not_null": ["id", 1, 2]}]', "rule 1, .*takes 1 positional argument"),
        ('[{"between": ["id", 5, 1]}]', "between"),
        ('[{"fresh": {"column": "at", "within": "1 day", "as_of": "2026-01-01T00:00:00Z"}}]', "as_of needs a time zone"),
    ],
)
def test_what_is_wrong_with_rules_is_told(source: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        quality.rules(source)

"""The reference of options: complete, as the code has it, and readable in a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from connectors.ground.options import REQUIRED, Choice, Duration, Int, Options, Size, Text
from connectors.systems import SYSTEMS, all_systems
from connectors_tools.cli import main
from connectors_tools.reference import Row, connectors_of, markdown, rows_of

README = Path(__file__).parents[2] / "lib" / "README.md"
REMAKE = "put the output of `python -m connectors options --markdown` between the marks of lib/README.md"
CONNECTORS = [(system, kind, connector) for system in SYSTEMS for kind, connector in connectors_of(system)]


def test_the_readme_of_the_library_has_the_reference() -> None:
    section = re.search(r"<!-- options -->\n(.*?)\n<!-- /options -->", README.read_text(), re.DOTALL)
    assert section is not None
    assert section[1].strip() == markdown().strip(), REMAKE


@pytest.mark.parametrize(("system", "kind", "connector"), CONNECTORS, ids=[f"{name}-{kind}" for name, kind, _ in CONNECTORS])
def test_every_option_has_a_meaning(system: str, kind: str, connector: type) -> None:
    assert [row.option for row in rows_of(connector.known_options()) if not row.meaning] == []  # type: ignore[attr-defined]


def test_a_row_shows_values_default_and_meaning_as_a_user_types_them() -> None:
    options = Options(
        {
            "batch.maxRecords": Int(1000, at_least=1, meaning="rows of a request"),
            "mode": Choice("a", among=("a", "b"), meaning="which; default: as the target has it"),
            "path": Text(REQUIRED, meaning="a folder"),
            "pause": Duration(0.2, carrier="foreach_batch", meaning="a pause"),
            "retention": Duration(7 * 86400.0, meaning="how long"),
            "memory": Size(64 << 20, meaning="how much"),
        },
        alias={"batchSize": "batch.maxRecords"},
        through={"kafka.": "the client's"},
    )
    assert rows_of(options) == [
        Row("batch.maxRecords, batchSize", "1 or more", "1000", "rows of a request"),
        Row("mode", "a, b", "as the target has it", "which"),
        Row("path", "text", "required", "a folder"),
        Row("pause", "duration", "200ms", "foreach_batch only: a pause"),
        Row("retention", "duration", "7 days", "how long"),
        Row("memory", "size", "64MB", "how much"),
        Row("kafka.*", "text", "", "the client's"),
    ]


@pytest.mark.parametrize(
    ("system", "alias"), [("dynamodb", "versionColumn"), ("elasticsearch", "versionColumn"), ("cassandra", "timestampColumn")]
)
def test_the_column_of_the_order_has_the_systems_own_name_as_well(system: str, alias: str) -> None:
    _, sink = all_systems()[system]
    assert sink is not None
    needed = {"table": "t", "hosts": "http://127.0.0.1:1", "index": "i", "idColumn": "id", "region": "eu-west-1"}
    needed |= {"keyspace": "k", "contactPoints": "127.0.0.1", "localDatacenter": "dc"}
    options = {name: value for name, value in needed.items() if name in sink.options.declared}
    assert sink.of({**options, alias: "at"}).values["orderColumn"] == "at"


def test_the_terminal_shows_a_systems_options() -> None:
    shown = CliRunner().invoke(main, ["options", "connectors.files"])
    assert shown.exit_code == 0
    assert "  rolling.maxPartSize  size; default: 256MB\n" in shown.output
    assert "connectors.files, source" in shown.output
    assert "connectors.files, sink" in shown.output


def test_a_system_that_is_not_known_gets_a_suggestion() -> None:
    shown = CliRunner().invoke(main, ["options", "kafak"])
    assert shown.exit_code == 2
    assert '"kafak" is no system; did you mean "kafka"?' in shown.output


def test_the_guarantees_fit_a_terminal() -> None:
    shown = CliRunner().invoke(main, ["guarantees"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80


def test_the_version_is_that_of_the_package() -> None:
    version = re.search(r'^version = "(.*)"', (Path(__file__).parents[2] / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert CliRunner().invoke(main, ["--version"]).output == f"connectors {version[1]}\n"

"""The reference of options: complete, as the code has it, and readable in a terminal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from connectors import systems
from connectors.ground.options import REQUIRED, Choice, Duration, Int, Options, Size, Text
from connectors.systems import SYSTEMS, all_systems
from connectors.systems.http.api import WORDS
from connectors.systems.sequence import SequenceSource
from connectors_tools.cli import main
from connectors_tools.reference import (
    Row,
    connectors_of,
    example,
    needed_options,
    option_groups,
    rows_of,
    word_groups,
    write_pages,
)

ROOT = Path(__file__).parents[2]
CONNECTORS = [(system, kind, connector) for system in SYSTEMS for kind, connector in connectors_of(system)]


def test_the_pages_and_the_readme_have_the_reference(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "lib" / "docs", tmp_path / "lib" / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    assert write_pages(tmp_path / "lib" / "docs") == [], "python -m connectors options --pages lib/docs"


def test_the_pages_of_another_folder_leave_its_readme_alone_and_out_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(systems._ADDED, "inbox_of_own", (SequenceSource, None))
    (tmp_path / "README.md").write_text("# Ours\n")
    written = {file.name: file.read_text() for file in write_pages(tmp_path / "our" / "docs")}
    assert (tmp_path / "README.md").read_text() == "# Ours\n"
    assert {"guarantees.md", "options.md", "kafka.md"} < written.keys()
    assert "inbox_of_own" not in "".join(written.values())


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_option_of_a_system_is_on_its_page_or_on_that_of_many(system: str) -> None:
    page, shared = ((ROOT / "lib" / "docs" / name).read_text() for name in (f"systems/{system}.md", "options.md"))
    other = (ROOT / "lib" / "docs" / "systems" / "kafka.md").read_text() if system == "event_hubs" else ""
    for _, connector in connectors_of(system):
        for row in rows_of(connector.known_options()):
            name = row.option.partition(",")[0].replace("*", "\\*")
            assert f"`{name}`".replace("\\*", "*") in page + shared + other


class Example:
    """A session, a reader and a writer that remember how they are used, for the example of a page."""

    def __init__(self) -> None:
        self.read = self.readStream = self.writeStream = self
        self.uses: list[tuple[str, str, dict[str, str]]] = []

    def format(self, name: str) -> Example:
        self.uses.append(("source", name.removeprefix("connectors."), {}))
        return self

    def option(self, name: str, value: str) -> Example:
        return self.options(**{name: value})

    def options(self, **options: str) -> Example:
        self.uses[-1][2].update(options)
        return self

    def schema(self, _: str) -> Example:
        return self

    def load(self) -> Example:
        return self

    def foreach_batch(self, name: str, options: Mapping[str, str] | None = None) -> Example:
        self.uses.append(("sink", name, dict(options or {})))
        return self

    def foreachBatch(self, _: Example) -> Example:  # noqa: N802 - Spark's name
        return self


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_example_of_a_page_has_the_options_that_the_system_wants(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_EVENT_HUBS", "SHOP_ETL", "LAKE_KEY", "LAKE_SECRET"):
        monkeypatch.setenv(f"SECRET_{name}", "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a2V5")
    page = (ROOT / "lib" / "docs" / "systems" / f"{system}.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    example = Example()
    exec(code, {"spark": example, "rows": example, "connectors": example})
    known = dict(connectors_of(system))
    assert {kind for kind, *_ in example.uses} == set(known)
    for kind, name, options in example.uses:
        assert name == system
        connector = known[kind]
        is_stream = "readStream" in code and kind == "source"
        more = {"streaming": is_stream} if kind == "source" else {}
        assert connector.of(options, **more)  # type: ignore[attr-defined]


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


@pytest.mark.parametrize(
    ("system", "kind", "line"),
    [
        ("kinesis", "source",
         'spark.readStream.format("connectors.kinesis").option("streamName", "…").option("stateLocation", "…").load()'),
        ("sequence", "source", 'spark.readStream.format("connectors.sequence").option("end", "…").load()'),
        ("dynamodb", "source", 'spark.read.format("connectors.dynamodb").option("table", "…").load()'),
        ("http", "sink", 'rows.writeStream.foreachBatch(connectors.foreach_batch("http", {"url": "…"}))'),
        ("print", "sink", 'rows.writeStream.foreachBatch(connectors.foreach_batch("print"))'),
    ],
)  # fmt: skip
def test_the_terminal_shows_how_a_system_is_used(system: str, kind: str, line: str) -> None:
    shown = CliRunner().invoke(main, ["options", system]).output
    assert f"connectors.{system}, {kind}\n\n  {line}\n" in shown


@pytest.mark.parametrize(("system", "kind", "connector"), CONNECTORS, ids=[f"{name}-{kind}" for name, kind, _ in CONNECTORS])
def test_the_line_that_uses_a_system_has_every_option_that_is_required(system: str, kind: str, connector: type) -> None:
    uses = Example()
    eval(example(connector), {"spark": uses, "rows": uses, "connectors": uses})
    [(used_kind, name, options)] = uses.uses
    required = {name for name, option in connector.known_options().declared.items() if option.default is REQUIRED}  # type: ignore[attr-defined]
    assert (used_kind, name) == (kind, system)
    assert required <= options.keys()
    assert list(options) == needed_options(connector)
    (_, first), *_ = option_groups(connector)
    own = [row.option.partition(",")[0] for row in first]
    assert set(own[: len(options)]) >= options.keys() & set(own)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_the_schema_of_a_system_takes_the_options_that_it_takes_and_no_others(system: str) -> None:
    shown = CliRunner().invoke(main, ["options", system, "--json"])
    schemas = json.loads(shown.output)
    for kind, connector in connectors_of(system):
        schema, known = schemas[kind], connector.known_options()
        jsonschema.Draft202012Validator.check_schema(schema)
        options = dict.fromkeys([*known.declared, *known.other_names, *(f"{prefix}x" for prefix in known.through)], "x")
        jsonschema.validate(options, schema)
        for name in (name for name, option in known.declared.items() if option.default is REQUIRED):
            names = [name, *(alias for alias, other in known.other_names.items() if other == name)]
            others = {other: "x" for other in options if other not in names}
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(others, schema)
            for given in names:
                jsonschema.validate({**others, given: "x"}, schema)


def test_the_words_of_a_declaration_are_shown_with_the_option_that_has_it() -> None:
    shown = CliRunner().invoke(main, ["options", "http"], terminal_width=100).output
    words = shown.partition("In config: each of resources")[2].partition("\nIn config: ")[0]
    assert re.findall(r"^  (\S+)  ", words, re.MULTILINE) == list(WORDS["each of resources"].declared)
    assert "  records  text; default: the answer is a list\n" in words
    for group in (group for _, connector in connectors_of("http") for _, group in word_groups(connector)):
        assert all(row.meaning for row in group)


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

"""What the README says is what the code says."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest

import connectors
from connectors import workbench
from connectors.testing import QueueSuite, SimulationSuite, SinkSuite, SourceSuite
from connectors.testing.spark_suites import SparkSourceSuite
from connectors_tools.bundle import load
from connectors_tools.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FOLDERS = (".", "lib", "lib/docs", "lib/docs/systems", "notebooks", "notebooks/stories", "notebooks/templates")
PAGES = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_and_heading_that_a_page_names_is_there(page: Path) -> None:
    file = ROOT / page
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", file.read_text()):
        named = file.parent / target if target else file
        assert named.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", named.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings], heading


def test_every_case_that_the_checklist_names_is_in_its_suite() -> None:
    suites = {suite.__name__: suite for suite in (SinkSuite, SourceSuite, QueueSuite, SimulationSuite, SparkSourceSuite)}
    page = (ROOT / "notebooks" / "templates" / "README.md").read_text()
    named = re.findall(r"`(\w+)\.(test_\w+)`", page)
    assert len(named) > 20
    assert [f"{suite}.{case}" for suite, case in named if not callable(getattr(suites[suite], case, None))] == []


def test_the_gallery_has_every_notebook() -> None:
    linked = set(re.findall(r"\]\(([^)#]+\.ipynb)\)", (ROOT / "notebooks" / "README.md").read_text()))
    notebooks = [path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts]
    assert {path.relative_to(ROOT / "notebooks").as_posix() for path in notebooks} == linked


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_plain_foreach_batch_doubles_rows_and_ours_does_not(capsys: Any) -> None:
    example = re.search(r"<!-- doubling -->\n```python\n(.*?)```\n\n(.*?)<!-- /doubling -->", README, re.DOTALL)
    assert example is not None
    exec(example[1], {})
    assert capsys.readouterr().out == textwrap.dedent(example[2])


@pytest.mark.spark
def test_the_block_of_a_project_of_ones_own_runs_as_it_stands_there(spark: Any, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(connectors\.register.*?)```", README, re.DOTALL)
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.log").write_text("one\ntwo\n")
    names = {"spark": spark, "connectors": connectors, "workbench": workbench}
    exec(block.replace('"/data', f'"{tmp_path}'), names)
    assert spark.read.parquet(f"{tmp_path}/out").count() == 2


def test_the_output_of_the_quickstart_is_that_of_its_job() -> None:
    output = README.partition("<!-- output of make run -->")[2].partition("\n\n")[0]
    tasks = load(ROOT).jobs["quickstart"].tasks
    assert re.findall(r"^    (\w+)  SUCCESS  [\d.]+ s", output, re.MULTILINE) == [*tasks, "quickstart"]
    numbers = {name: int(text.replace(",", "")) for text, name in re.findall(r"([\d,]+) ([a-z]+)", output)}
    arrived, delivered = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) = ([\d,]+) delivered", output)[0])
    assert arrived == numbers["lines"] + numbers["dead"] == delivered + numbers["dead"] + numbers["quarantined"]
    assert f"{delivered:,} new flights delivered" in output


def test_each_command_is_one_of_the_command_line() -> None:
    commands = [*re.findall(r"`\.venv/bin/connectors\s+([^`]+)`", README), "status", "ledger show TARGET", "doctor"]
    assert len(commands) > 6
    for words in map(shlex.split, commands):
        command: click.Command = main
        while words and isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words


def test_the_extras_of_the_wheel_are_declared() -> None:
    (extras,) = re.findall(r"\.whl\[([\w,]+)\]", README)
    declared = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {*extras.split(","), "spark"} <= {*declared}

"""What the README says is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from connectors.testing import QueueSuite, SinkSuite, SourceSuite
from connectors.testing.spark_suites import SparkSourceSuite

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "lib/README.md", "notebooks/README.md", "notebooks/templates/README.md")


def test_the_table_of_guarantees_is_the_codes() -> None:
    command = [sys.executable, "-m", "connectors", "guarantees", "--markdown"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    section = re.search(r"<!-- guarantees -->\n(.*?)<!-- /guarantees -->", README, re.DOTALL)
    assert section is not None
    assert section[1].strip() == table, f"put this into the README:\n{table}"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    file = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text()):
        assert (file.parent / target).exists(), target


def test_every_case_that_the_checklist_names_is_in_its_suite() -> None:
    suites = {suite.__name__: suite for suite in (SinkSuite, SourceSuite, QueueSuite, SparkSourceSuite)}
    page = (ROOT / "notebooks" / "templates" / "README.md").read_text()
    named = re.findall(r"`(\w+)\.(test_\w+)`", page)
    assert len(named) > 20
    assert [f"{suite}.{case}" for suite, case in named if not callable(getattr(suites[suite], case, None))] == []


def test_the_gallery_has_every_notebook() -> None:
    linked = set(re.findall(r"\]\(([^)#]+\.ipynb)\)", (ROOT / "notebooks" / "README.md").read_text()))
    notebooks = [path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts]
    assert {path.relative_to(ROOT / "notebooks").as_posix() for path in notebooks} == linked


@pytest.mark.spark
def test_plain_foreach_batch_doubles_rows_and_ours_does_not(spark: Any, tmp_path: Path, capsys: Any) -> None:
    example = re.search(r"<!-- doubling -->\n```python\n(.*?)```\n\n(.*?)<!-- /doubling -->", README, re.DOTALL)
    assert example is not None
    exec(example[1], {"spark": spark, "folder": str(tmp_path)})
    assert capsys.readouterr().out == textwrap.dedent(example[2])

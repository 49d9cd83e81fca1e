"""What the README says is what the code says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from connectors.testing import QueueSuite, SimulationSuite, SinkSuite, SourceSuite
from connectors.testing.spark_suites import SparkSourceSuite

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

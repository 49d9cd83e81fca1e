"""The table of what passed where: made from a run, shown in lib/docs/tested.md as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.testing.environments import ENVIRONMENTS, LOCAL

from .environment_table import EnvironmentTable

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("environments.md")
MARKS = ("<!-- environments -->\n", "<!-- /environments -->")
REMAKE = (
    'pytest -m "" -k "onspark or on_spark or environments" tests/systems tests/environments '
    "--environment all --environment-table tests/environments/environments.md"
)


def rows() -> dict[str, list[str]]:
    lines = [line.strip("| \n").split(" | ") for line in TABLE.read_text().splitlines()[2:]]
    return {first: rest for first, *rest in lines}


def test_the_page_shows_the_table() -> None:
    _, _, after = (ROOT / "lib" / "docs" / "tested.md").read_text().partition(MARKS[0])
    assert after.partition(MARKS[1])[0] == TABLE.read_text(), REMAKE


def test_nothing_in_the_table_has_failed() -> None:
    assert "failed" not in TABLE.read_text()


@pytest.mark.parametrize("system", ["sequence, source", "file_stream, source", "buffered, sink, foreach_batch"])
def test_every_environment_is_in_the_table(system: str) -> None:
    assert all("passed" in cell for cell in rows()[system]), REMAKE


class Report:
    when, passed = "call", True

    def __init__(self, subject: str, environment: str, outcome: str) -> None:
        self.user_properties = [("environment", environment), ("subject", subject)]
        self.outcome = outcome


def test_the_table_counts_outcomes_and_shows_what_did_not_run(tmp_path: Path) -> None:
    table = EnvironmentTable(tmp_path / "table.md")
    for outcome in ("passed", "passed", "failed", "skipped"):
        table.pytest_runtest_logreport(Report("files, sink, format", LOCAL, outcome))  # type: ignore[arg-type]
    table.pytest_sessionfinish()
    last = (tmp_path / "table.md").read_text().splitlines()[-1]
    assert last == "| files, sink, format | 2 passed, 1 failed | - | - |"
    assert len(ENVIRONMENTS) == 3

"""``connectors status``: the queries of this checkout, and of all."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from connectors.core import metrics
from connectors.core.metrics import Component, Meter, Place
from connectors_tools.cli import main


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle in whose folder ``jobs`` we are; the queries ``own`` and ``foreign`` are of it and of another one."""
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "metrics"))
    root = tmp_path / "checkout"
    (root / "jobs").mkdir(parents=True)
    (root / "databricks.yml").touch()
    monkeypatch.chdir(root / "jobs")
    note("own", str(root / "notebooks"))
    note("foreign", str(tmp_path / "checkout2"))
    return root


def note(name: str, folder: str, machine: str = "") -> None:
    facts = {"name": name, "state": "ended", "ended": time.time(), "folder": folder, "machine": machine or platform.node()}
    metrics.write_note(f"{name}-id", facts)


def status(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, ["status", *arguments])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_the_queries_of_this_checkout_are_listed_and_how_many_there_are_of_others() -> None:
    own, rest = status()
    assert own.startswith("own  ended")
    assert rest == "and 1 of other or unknown checkouts: python -m connectors status --all"


def test_all_lists_the_queries_of_all_checkouts() -> None:
    assert {line.split()[0] for line in status("--all")} == {"own", "foreign"}


def test_a_checkout_without_queries_says_so_and_that_others_have_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "metrics")
    first, rest = status()
    assert first == f"no query of {tmp_path / 'metrics'} has written metrics in the last 7 days"
    assert rest.startswith("and 2 of other or unknown checkouts: ")


def test_a_query_of_another_machine_is_listed_wherever_its_folder_is() -> None:
    note("far", "/opt/app", machine="cluster-1")
    assert {line.split()[0] for line in status()} == {"own", "far", "and"}


def test_where_the_folder_is_deleted_all_are_listed(checkout: Path) -> None:
    (checkout / "jobs").rmdir()
    assert {line.split()[0] for line in status()} == {"own", "foreign"}


def test_a_query_that_no_session_tells_of_is_listed_among_all() -> None:
    with Meter(Place("other", Component("sink", "files", "files-0123"), 0)) as meter:
        meter.count(rows=1)
    assert "and 2 of other or unknown checkouts: " in status()[-1]
    assert "    files-0123  1 row" in status("--all")


@pytest.mark.parametrize(
    ("system", "sink_id", "line"),
    [("files", "files-0123", "files-0123  /data/out  1 row"), ("files", "orders", "files  orders  /data/out  1 row")],
)
def test_a_sink_has_the_name_that_its_ledger_has(system: str, sink_id: str, line: str) -> None:
    with Meter(Place("own-id", Component("sink", system, sink_id, {"target": "/data/out"}), 0, -1)) as meter:
        meter.count(rows=1)
    assert f"    {line}" in status()

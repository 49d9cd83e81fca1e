"""The record of what has shown each guarantee."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

import connectors
from connectors.testing import SimulationSuite, SinkContext
from connectors.testing.sink_cases import KillSuite

from .evidence import DRIVERS, HISTORIES, KINDS, MARKS, PAGE, RECORD, EvidenceRecord, evidence, table
from .systems.reference_contexts import FilesContext, QueueContext, SequenceContext

RECORDED: dict[str, Any] = json.loads(RECORD.read_text())


def test_the_page_shows_the_record_and_nothing_has_failed() -> None:
    _, _, after = PAGE.read_text().partition(MARKS[0])
    assert after.partition(MARKS[1])[0] == table(RECORDED), "make soak writes both"
    assert "failed" not in table(RECORDED)


def test_each_claim_is_one_of_the_guarantee_table() -> None:
    rows = connectors.guarantees().itertuples()
    claims = {f"{row.system} {side}" for row in rows for side in ("source", "sink") if getattr(row, side)}
    assert RECORDED.keys() <= claims
    assert {kind for kinds in RECORDED.values() for kind in kinds} <= {*KINDS}


def report(outcome: str, *properties: tuple[str, object]) -> Any:
    flags = {flag: outcome == flag for flag in ("passed", "failed", "skipped")}
    return SimpleNamespace(when="call", nodeid=uuid4().hex, user_properties=properties, **flags)


def test_a_run_replaces_what_it_has_shown_and_nothing_else(tmp_path: Path) -> None:
    file, page = tmp_path / "evidence.json", tmp_path / "tested.md"
    old = {"passed": 7, "failed": 0, "on": "2026-01-01"}
    file.write_text(json.dumps({"files sink": {HISTORIES: old, DRIVERS: old}}))
    page.write_text(f"before\n{MARKS[0]}nothing\n{MARKS[1]}\nafter\n")
    run = EvidenceRecord(file, page)
    for outcome in ("passed", "passed", "failed", "skipped"):
        run.pytest_runtest_logreport(report(outcome, ("evidence", evidence([FilesContext], HISTORIES, 1))))
    run.pytest_runtest_logreport(report("passed", ("other", 1), ("evidence", evidence([SequenceContext], DRIVERS, 80))))
    run.pytest_runtest_logreport(report("passed", ("evidence", [("buffered sink", DRIVERS, 1)])))
    run.pytest_sessionfinish(SimpleNamespace(config=None))
    record = json.loads(file.read_text())
    assert (record["files sink"][HISTORIES]["passed"], record["files sink"][HISTORIES]["failed"]) == (2, 1)
    assert record["files sink"][DRIVERS] == old
    lines = page.read_text().splitlines()
    assert page.read_text() == f"before\n{MARKS[0]}{table(record)}{MARKS[1]}\nafter\n", "in the order of the record"
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| files sink | - | 2, 1 failed | 7 | - | 2026-01-01 |" in lines
    assert f"| sequence source | - | - | 80 | - | {record['sequence source'][DRIVERS]['on']} |" in lines


def test_toys_of_the_kit_are_no_claims() -> None:
    assert [claim for claim, _, _ in evidence([QueueContext, FilesContext], HISTORIES, 1)] == ["files sink"]


@pytest.mark.parametrize(("passed", "failed", "recorded"), [(3, 0, (4, 2)), (6, 0, (6, 0)), (1, 1, (1, 1))])
def test_a_part_of_a_run_clears_no_failure(tmp_path: Path, passed: int, failed: int, recorded: tuple[int, int]) -> None:
    file, page = tmp_path / "evidence.json", tmp_path / "tested.md"
    file.write_text(json.dumps({"files sink": {HISTORIES: {"passed": 4, "failed": 2, "on": "2026-01-01"}}}))
    page.write_text("".join(MARKS))
    run = EvidenceRecord(file, page)
    for outcome in ["passed"] * passed + ["failed"] * failed:
        run.pytest_runtest_logreport(report(outcome, ("evidence", evidence([FilesContext], HISTORIES, 1))))
    run.pytest_sessionfinish(SimpleNamespace(config=None))
    counts = json.loads(file.read_text())["files sink"][HISTORIES]
    assert (counts["passed"], counts["failed"]) == recorded


def test_the_seeds_of_suites_count_by_themselves() -> None:
    class Kills(KillSuite):
        context: type[SinkContext] = FilesContext

    class Histories(SimulationSuite):
        context = SequenceContext
        histories = 9

    def item(suite: type | None, *fixtures: str) -> Any:
        return SimpleNamespace(
            cls=suite, fixturenames=fixtures, user_properties=[], get_closest_marker=lambda name: None
        )

    items = [item(Kills, "query", "seed"), item(Kills, "query"), item(Histories), item(None, "seed")]
    EvidenceRecord().pytest_collection_modifyitems(items)
    found = [value for item in items for _, value in item.user_properties]
    assert found == [[("files sink", "schedules of kills", 1)], [], [("sequence source", HISTORIES, 9)], []]


RUN = """
import os
from pathlib import Path

import pytest

from tests.evidence import EvidenceRecord


def pytest_configure(config):
    record, page = (Path(__file__).with_name(name) for name in ("evidence.json", "tested.md"))
    config.pluginmanager.register(EvidenceRecord(record, page))


@pytest.fixture
def server(what):
    if what == "no server":
        raise OSError


@pytest.mark.evidence(of=lambda what: [("files sink", what, 3)])
@pytest.mark.parametrize("what", ["good", "bad", "no server", "no process", "skipped"])
def test_it(server, what):
    if what == "no process":
        os._exit(1)
    if what == "skipped":
        pytest.skip()
    assert what == "good"
"""


@pytest.mark.parametrize("processes", ["2", "1"])
def test_whatever_does_not_pass_has_failed_or_was_skipped(tmp_path: Path, processes: str) -> None:
    (tmp_path / "conftest.py").write_text(RUN)
    (tmp_path / "test_run.py").write_text("from conftest import *")
    (tmp_path / "tested.md").write_text("".join(MARKS))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
        "-n",
        processes,
        str(tmp_path),
    ]
    subprocess.run(command, capture_output=True, check=False)
    kinds = json.loads((tmp_path / "evidence.json").read_text())["files sink"]
    assert {kind: (counts["passed"], counts["failed"]) for kind, counts in kinds.items()} == {
        "good": (3, 0), "bad": (0, 3), "no server": (0, 3), "no process": (0, 3),
    }  # fmt: skip

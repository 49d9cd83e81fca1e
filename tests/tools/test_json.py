"""``--json``: what a command shows, for programs."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from connectors.core import metrics
from connectors.core.folder import SinkFolder
from connectors.core.ledger import Entry, LedgerContent, app_query
from connectors.storage.local import LocalStorage
from connectors_tools.cli import main
from connectors_tools.cli_systems import echo_json

ROOT = Path(__file__).parents[2]


def strict(text: str) -> Any:
    """What a reader takes that knows no NaN."""
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def shown(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return strict(result.stdout)


@dataclass(frozen=True, slots=True)
class Fact:
    value: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([float("nan"), float("inf"), 0.5, True, None], [None, None, 0.5, True, None]),
        (datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.timezone.utc), "2024-01-02T03:00:00+00:00"),
        (Decimal("1.10"), "1.10"),
        ({("a", 1): {Path("b"), "a"}}, {"('a', 1)": ["a", "b"]}),
        (frozenset({1, "a"}), [1, "a"]),
        ("\ud800", "\ud800"),
    ],
)
def test_every_value_is_json(value: Any, expected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    echo_json(Fact([value]))
    assert strict(capsys.readouterr().out) == {"value": [expected]}


def test_a_time_without_a_zone_is_one_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    time = datetime.datetime(2024, 1, 2, 3)
    echo_json(time)
    assert datetime.datetime.fromisoformat(strict(capsys.readouterr().out)) == time.astimezone()


def test_guarantees_are_objects_by_system() -> None:
    (kafka,) = (row for row in shown("guarantees") if row["system"] == "kafka")
    assert kafka["sink"] == "exactly-once"


def test_jobs_have_their_tasks_and_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (job,) = (job for job in shown("jobs") if job["job"] == "quickstart")
    assert {"ingest", "quality"} < set(job["tasks"])
    assert job["parameters"].keys() >= {"rows"}


BUNDLE = """
bundle: {name: shop}
variables: {token: {default: none}}
targets: {local: {default: true}}
resources: {jobs: {load: {
  name: load, tasks: [],
  parameters: [{name: password, default: "${var.token}"}, {name: url, default: "postgresql://me:${var.token}@host/shop"}]}}}
"""


def test_secrets_of_jobs_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "databricks.yml").write_text(BUNDLE)
    monkeypatch.chdir(tmp_path)
    (job,) = shown("jobs", "--var", "token=hush")
    assert job["parameters"] == {"password": "***", "url": "postgresql://***@host/shop"}
    assert "hush" not in CliRunner().invoke(main, ["jobs", "--var", "token=hush"]).output


def test_queries_have_their_state_and_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path))
    metrics.write_note("own-id", {"name": "own", "state": "ended", "ended": 1.0, "folder": str(tmp_path)})
    (query,) = shown("status", "--all")
    assert (query["query"], query["name"], query["state"], query["sinks"]) == ("own-id", "own", "ended", [])


def test_a_ledger_has_its_queries_and_their_newest_batches(tmp_path: Path) -> None:
    ledger = SinkFolder(LocalStorage(tmp_path), "orders").ledger()
    for batch in range(3):
        ledger.record(Entry("q", batch, rows=10 * batch, at=1.0))
    ledger.record(Entry(app_query("nightly"), 7, at=2.0))
    (sink,) = shown("ledger", "show", str(tmp_path), "--batches", "2")
    assert sink["sink_id"] == "orders"
    assert {query["txnAppId"]: [batch["batch"] for batch in query["batches"]] for query in sink["queries"]} == {
        None: [2, 1], "nightly": [7],
    }  # fmt: skip


def test_a_ledger_tells_names_of_its_own_queries_and_looks_at_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> list[str]:
        raise AssertionError("all queries of the machine are listed")

    nightly = app_query("nightly" * 50)
    content = LedgerContent("orders", (Entry("own-id", 1, at=1.0), Entry(nightly, 7, at=2.0)))
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path))
    metrics.write_note("own-id", {"name": "own", "state": "ended", "ended": 1.0})
    monkeypatch.setattr("connectors.systems.ledgers_in", lambda target, options: [content])
    monkeypatch.setattr("connectors.metrics.queries.counted_queries", refuse)
    (sink,) = shown("ledger", "show", "anywhere")
    assert [query["name"] for query in sink["queries"]] == ["own", nightly]


def test_findings_of_the_doctor_keep_its_exit_code(tmp_path: Path) -> None:
    (finding,) = shown("doctor", "--folder", str(tmp_path))
    assert finding["ok"] is True
    (finding,) = shown("doctor", "--folder", "memory://bucket", code=1)
    assert finding["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status", "--watch"], 2),
        (["guarantees", "--markdown"], 2),
        (["options"], 2),
        (["jobs"], 2),
        (["runs"], 2),
        (["runs", "show", "1"], 2),
        (["ledger", "show", "nowhere"], 1),
        (["offsets", "show", "nowhere"], 2),
        (["letters", "list", "nosuch://x"], 2),
    ],
)
def test_what_goes_wrong_is_told_beside_the_output(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr


def test_a_command_that_is_stopped_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("connectors.metrics.queries.queries_of_machine", stop)
    result = CliRunner().invoke(main, ["status", "--json"])
    assert (result.exit_code, result.stdout) == (1, "")

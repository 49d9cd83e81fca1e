"""``connectors backfill``: the slices of a span of time, their parameters and their record."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connectors.workbench.settings import library
from connectors_tools import cli_backfill
from connectors_tools.cli import main
from connectors_tools.cli_backfill import slices_of

DAYS = ("--from", "2026-02-27", "--to", "2026-03-02")


class Runs:
    """Takes the place of the runs of jobs; those of slices in ``failing`` fail."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.empty: set[str] = set()
        """The slices whose runs find nothing to read."""
        self.calls: list[tuple[str, dict[str, str]]] = []

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        parameters = dict(text.split("=", 1) for option, text in itertools.pairwise(command) if option == "--param")
        self.calls.append((command[command.index("--only") + 1], parameters))
        name, _, piece = parameters.get("name", "").partition("@")
        is_failing = piece in self.failing
        if piece and not is_failing and piece not in self.empty:
            for part in ("checkpoint", "counts"):
                Path(parameters["workdir"], name, "slices", piece, part).mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, int(is_failing))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    stand_in = Runs()
    monkeypatch.setattr(cli_backfill.subprocess, "run", stand_in.run)
    monkeypatch.chdir(library().parent)
    return stand_in


def call(folder: Path, *more: str, job: str = "lines_to_delta") -> Result:
    places = ("--runs", str(folder / "runs"), "--param", f"workdir={folder}/state", "--param", "name=orders")
    return CliRunner().invoke(main, ["backfill", job, *DAYS, *places, *more])


@pytest.mark.parametrize(
    ("by", "begin", "end", "names"),
    [
        ("day", "2024-02-28", "2024-03-02", ["2024-02-28", "2024-02-29", "2024-03-01"]),
        ("hour", "2026-03-28T23", "2026-03-29T02", ["2026-03-28T23", "2026-03-29T00", "2026-03-29T01"]),
        ("month", "2025-11", "2026-02", ["2025-11", "2025-12", "2026-01"]),
    ],
)
def test_slices_are_one_behind_the_other_without_a_gap(by: str, begin: str, end: str, names: list[str]) -> None:
    slices = list(slices_of(by, begin, end))
    assert [piece.name for piece in slices] == names
    assert [piece.end for piece in slices[:-1]] == [piece.begin for piece in slices[1:]]
    assert slices[-1].end == list(slices_of(by, begin, "2027-01-01T00"[: len(begin)]))[len(slices)].begin


def test_the_marks_of_a_parameter_are_the_times_of_the_slice() -> None:
    (piece,) = slices_of("day", "2026-03-01", "2026-03-02")
    text = '{"path": "/in/{slice}", "query": "at >= \'{from}\' AND at < \'{to}\'", "start": {from_ms}, "end": {to_ms}}'
    assert json.loads(piece.fill(text)) == {
        "path": "/in/2026-03-01",
        "query": "at >= '2026-03-01T00:00:00Z' AND at < '2026-03-02T00:00:00Z'",
        "start": 1772323200000,
        "end": 1772409600000,
    }


def test_slices_that_are_done_are_passed_over_and_the_gate_comes_when_all_are(runs: Runs, tmp_path: Path) -> None:
    source = ("--param", "source=/in/{slice}/*.log", "--parallel", "2", "--var", "schema=shop")
    runs.failing = {"2026-02-28"}
    first = call(tmp_path, *source)
    assert first.exit_code == 1
    assert "1 of 3 slices failed. The same call runs these again." in first.output
    assert sorted(parameters["name"] for task, parameters in runs.calls) == [
        "orders@2026-02-27", "orders@2026-02-28", "orders@2026-03-01",
    ]  # fmt: skip
    assert {task for task, _ in runs.calls} == {"pipeline"}
    runs.calls, runs.failing = [], set()
    again = call(tmp_path, *source)
    assert again.exit_code == 0, again.output
    assert again.output.count("done before") == 2
    workdir = f"{tmp_path}/state"
    assert runs.calls == [
        ("pipeline", {"name": "orders@2026-02-28", "workdir": workdir, "source": "/in/2026-02-28/*.log"}),
        ("quality", {"name": "orders", "workdir": workdir}),
    ]


def test_a_slice_that_failed_may_get_other_parameters_and_one_that_is_done_says_that_it_had_others(
    runs: Runs, tmp_path: Path
) -> None:
    runs.failing = {"2026-02-28"}
    assert call(tmp_path, "--param", "source=/in/{slice}").exit_code == 1
    runs.calls, runs.failing = [], set()
    other = call(tmp_path, "--param", "source=/other/{slice}")
    assert other.exit_code == 0
    assert other.output.count("done before, by other parameters\n") == 2
    assert [parameters["source"] for task, parameters in runs.calls if task == "pipeline"] == ["/other/2026-02-28"]


def test_a_slice_that_found_nothing_to_read_is_looked_at_again(runs: Runs, tmp_path: Path) -> None:
    runs.empty = {"2026-02-28"}
    first = call(tmp_path, "--param", "source=/in/{slice}")
    assert first.exit_code == 0, first.output
    assert "2026-02-28  SUCCESS, but there was nothing to read: the same call looks again" in first.output
    runs.calls, runs.empty = [], set()
    again = call(tmp_path, "--param", "source=/in/{slice}")
    assert again.output.count("done before") == 2
    assert [parameters.get("name") for _, parameters in runs.calls] == ["orders@2026-02-28", "orders"]


def test_slices_of_another_length_do_not_read_the_same_time_again(runs: Runs, tmp_path: Path) -> None:
    source = ("--param", "source=/in/{slice}")
    assert call(tmp_path, *source).exit_code == 0
    runs.calls = []
    for by, begin, end, name in (
        ("month", "2026-02", "2026-03", "2026-02-27"),
        ("hour", "2026-03-01T23", "2026-03-02T00", "2026-03-01"),
    ):
        refused = call(tmp_path, *source, "--by", by, "--from", begin, "--to", end)
        assert refused.exit_code == 2
        text = f"--by {by} would read again what the slice {name} has read. Go on with --by day, or leave its span out"
        assert text in " ".join(refused.output.split())
    assert not runs.calls
    assert call(tmp_path, *source, "--by", "hour", "--from", "2026-03-02T00", "--to", "2026-03-02T01").exit_code == 0


def test_slices_of_a_job_that_goes_on_end(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = "kafka_to_delta_continuous"
    refused = call(tmp_path, "--param", "source={slice}", job=job)
    assert refused.exit_code == 2
    assert "tasks" in refused.output
    assert "must have quality, as the job of a pipeline with its gate" in refused.output
    root = tmp_path / "bundle"
    (root / "jobs").mkdir(parents=True)
    text = (library().parent / "jobs/lines_to_delta.yml").read_text()
    (root / "databricks.yml").write_text((library().parent / "databricks.yml").read_text())
    (root / "bundles.yml").write_text((library().parent / "bundles.yml").read_text())
    (root / "jobs/lines_to_delta.yml").write_text(text.replace('"availableNow"', '"10 seconds"'))
    monkeypatch.chdir(root)
    assert call(tmp_path, "--param", "source={slice}").exit_code == 0
    assert {parameters.get("trigger") for task, parameters in runs.calls if task == "pipeline"} == {"availableNow"}


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        ("name=orders@x", 'name +must have no "@", which comes before the name of a slice; got orders@x'),
        ("target=/t/{slice}", "target +must be one for all slices, without marks such as {slice}; got /t/{slice}"),
        ("workdir=s3://bucket/state", "workdir +must be a folder or a volume, no URL: the state of slices is there"),
        ("workdir=state", "workdir +must be an absolute path: for the notebook it begins elsewhere; got state"),
        ("path=/in/{slice}", "path +has a mark, and is no parameter of the job; it has name, workdir, .*source"),
    ],
)
def test_what_slices_share_is_refused_before_anything_runs(
    runs: Runs, tmp_path: Path, parameter: str, text: str
) -> None:
    refused = call(tmp_path, "--param", "source={slice}", "--param", parameter)
    assert refused.exit_code == 2
    assert re.search(text, refused.output), refused.output
    assert not runs.calls
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--param", "source=/in"), "--param must have {slice}, or both ends, {from} or {from_ms} and {to} or {to_ms}: else"),
        (("--param", "source={from_ms}"), "or both ends, {from} or {from_ms} and {to} or {to_ms}: else several"),
        (("--param", "source=/in/{slice}", "--from", "1.3."), "--from must be the begin of a slice by day, such as 2026-03-01"),
        (("--param", "source=/in/{slice}", "--to", "2026-02-27"), "--to must be later than --from 2026-02-27; got 2026-02-27"),
        (("--param", "source=/in/{slice}", "--by", "month"), "--from must be the begin of a slice by month, such as 2026-03;"),
        (("--param", "source={slice}", "--to", "2999-01-02"), "--to must not be later than now: the slice 2999-01-01 has not"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    runs: Runs, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    refused = call(tmp_path, *arguments)
    assert refused.exit_code == 2
    assert text in " ".join(refused.output.split())
    assert not runs.calls

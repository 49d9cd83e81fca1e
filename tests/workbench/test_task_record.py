"""The record of a job's notebook: nothing fails, grows without end, or is deleted for it."""

from __future__ import annotations

import datetime
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.ground import machine
from connectors.metrics.history import FAILED, QueryHistory
from connectors.quality.report import CheckOutcome, Report, announce
from connectors.workbench import fresh_folder, task_record
from connectors.workbench.bootstrap import _begin_record
from connectors.workbench.shim import DbUtils


@pytest.fixture(autouse=True)
def _no_record_remains() -> Iterator[None]:
    yield
    task_record.begin({})


def report(row: Mapping[str, Any] | None = None, name: str = "orders") -> Report:
    return announce(Report(name, [CheckOutcome("check", "meaning", "expectation", False, 1, 2, [dict(row or {"id": 1})])]))


def records(workdir: Path) -> list[Path]:
    return [file for file in (workdir / "record").iterdir() if len(file.name) > 40]


def content(workdir: Path) -> dict[str, Any]:
    (file,) = records(workdir)
    return dict(json.loads(file.read_text()))


def test_only_old_records_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    names = [f"order-{n:03}.json" for n in range(300)] + [f"{n}.json" for n in range(300)]
    for name in names:
        (folder / name).write_text("{}")
    for n in range(205):
        (folder / f"{1_000_000_000_000 + n}.{n:032x}.json").write_text("{}")
    task_record.begin({"workdir": str(tmp_path)})
    report()
    assert [name for name in names if not (folder / name).exists()] == []
    assert len(records(tmp_path)) == 200


def test_values_that_json_has_not_are_text_and_long_ones_are_cut(tmp_path: Path) -> None:
    task_record.begin({"workdir": str(tmp_path)})
    report({"id": 1, "map": {datetime.date(2020, 1, 2): 3}, "text": "x" * 1_000_000, "bytes": b"\xff", "none": None})
    (check,) = content(tmp_path)["reports"][0]["checks"]
    expected = {"id": 1, "map": "{datetime.date(2020, 1, 2): 3}", "text": "x" * 200, "bytes": r"b'\xff'", "none": None}
    assert check["sample"] == [expected]


@pytest.mark.soak
def test_a_job_that_runs_for_weeks_has_its_newest_queries_and_reports(tmp_path: Path) -> None:
    task_record.begin({"workdir": str(tmp_path)})
    for n in range(120):
        report({"id": n})
    for n in range(60):
        task_record.record_query(QueryHistory("q", f"r{n}", f"query {n}"))
    written = content(tmp_path)
    assert [checks["checks"][0]["sample"][0]["id"] for checks in written["reports"]] == list(range(20, 120))
    assert [query["standing"]["name"] for query in written["queries"]] == [f"query {n}" for n in range(10, 60)]


def test_a_query_that_begins_while_another_thread_writes_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_record.begin({"workdir": str(tmp_path)})
    record = task_record._current
    assert record is not None
    first, second = QueryHistory("q", "r1", "first"), QueryHistory("q", "r2", "second")
    original = first.standing

    def standing() -> Any:
        record._queries["r2"] = second
        return original()

    monkeypatch.setattr(first, "standing", standing)
    task_record.record_query(first)
    second.end(FAILED)
    task_record.record_query(second)
    assert [query["standing"]["name"] for query in content(tmp_path)["queries"]] == ["first", "second"]


def test_a_folder_that_is_away_for_a_while_has_the_record_again_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, tries = machine.monotonic(), []
    monkeypatch.setattr(task_record.machine, "monotonic", lambda: now)

    def away(location: str) -> Any:
        tries.append(location)
        raise OSError("the volume is away")

    task_record.begin({"workdir": str(tmp_path)})
    report(name="before")
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(task_record, "storage_of", away)
        for _ in range(3):
            report(name="meanwhile")
        now += 61
        report(name="meanwhile")
    assert (len(tries), caplog.text.count("the volume is away")) == (2, 1)
    now += 61
    report(name="after")
    assert [checks["name"] for checks in content(tmp_path)["reports"]] == ["before", *["meanwhile"] * 4, "after"]


def test_the_record_makes_no_folder_before_there_is_something_to_record(tmp_path: Path) -> None:
    workdir = tmp_path / "workdir"
    _begin_record(DbUtils({"workdir": str(workdir)}))
    assert not workdir.exists()
    fresh_folder(workdir)
    report()
    assert len(records(workdir)) == 1
    shutil.rmtree(workdir)
    report()
    assert len(records(workdir)) == 1


@pytest.mark.parametrize(
    ("workdir", "name", "folder"),
    [
        ("/Volumes/a/b/c", "", "/Volumes/a/b/c/record"),
        (" /Volumes/a/b/c// ", " orders ", "/Volumes/a/b/c/orders/record"),
        ("/", "", "/record"),
        (" ", "orders", ""),
    ],
)
def test_the_folder_of_records_is_that_of_the_parameters(workdir: str, name: str, folder: str) -> None:
    assert task_record.folder_of({"workdir": workdir, "name": name}) == folder


def test_the_error_of_a_query_has_no_password(tmp_path: Path) -> None:
    task_record.begin({"workdir": str(tmp_path)})
    history = QueryHistory("q", "r", "orders")
    history.end(FAILED, "no connection to jdbc:postgresql://shop:hunter2@db/orders")
    task_record.record_query(history)
    assert "hunter2" not in json.dumps(content(tmp_path))

"""Whose a record of a notebook is, and that nobody waits for one or fails for it."""

from __future__ import annotations

import datetime
import io
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.core.letter_files import LetterFile
from connectors.metrics.history import Standing
from connectors_tools.bundle import live
from connectors_tools.bundle.live import Activity, RepeatedLine, in_time
from connectors_tools.workspace import open_target, runs, task_records
from connectors_tools.workspace.page import record_of, tasks_of
from connectors_tools.workspace.runs import RunStatus, TaskStatus
from connectors_tools.workspace.task_records import TaskRecords

from .conftest import Place
from .test_runs import RUNNING_QUERY

DAY = 1_790_000_000.0
VOLUME = "/Volumes/main/default/data"


def task(key: str, *attempts: tuple[float, float], kind: str = "notebook_task") -> TaskStatus:
    times = tuple((DAY + begin, DAY + end) for begin, end in attempts)
    return TaskStatus(key, "SUCCESS", 1, 1.0, "", started=times[-1][0], kind=kind, attempts=times)


@pytest.fixture
def place(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(runs, "_POLL", 0.05)
    monkeypatch.setattr(task_records, "_PATIENCE_SECONDS", 1)
    place.workspace.catalog.make_volume("main.default.data")
    return place


@pytest.mark.parametrize(
    ("at", "keys"),
    [
        (5, ["a"]), (-10, ["a"]), (-40, []), (12, ["b"]), (15, ["b"]), (45, ["b"]), (250, ["b"]), (110, ["c", "d"]),
        (160, ["c"]), (301, []), (86_400, []),
    ],
)  # fmt: skip
def test_a_record_belongs_to_a_task_that_ran_when_it_began(at: float, keys: list[str]) -> None:
    tasks = [
        task("a", (0, 10)), task("b", (14, 20), (40, 50), (200, 300)), task("c", (100, 170)), task("d", (105, 120)),
        task("condition", (14, 300), kind="condition_task"),
    ]  # fmt: skip
    assert [task.key for task in tasks_of(DAY + at, tasks)] == keys


def test_the_attempts_of_a_task_are_known() -> None:
    state = SimpleNamespace(life_cycle_state=SimpleNamespace(value="TERMINATED"), result_state=None, state_message="")
    times = {"end_time": 2000, "state": state, "run_page_url": "", "depends_on": None}
    attempts = [
        SimpleNamespace(task_key="a", attempt_number=number, start_time=1000 * (number + 1), run_id=number, **times)
        for number in (0, 1)
    ]
    run: Any = SimpleNamespace(tasks=attempts, job_parameters=None, start_time=1000, run_name="", run_id=1, job_id=1, **times)
    (status,) = runs._status(run).tasks
    assert (status.started, status.attempts) == (2.0, ((1.0, 2.0), (2.0, 2.0)))


def write_record(place: Place, started: float, letters: str = "") -> None:
    standing = {"query": "q", "name": f"query of {started - DAY:.0f}", "state": "ended"}
    query = {"standing": standing, "started": started, "batches": [], "error": "", "targets": {}}
    queries = [{**query, "letters": [letters] if letters else []}]
    content = {"v": 1, "started": started, "versions": {"day": str(started)}, "queries": queries, "reports": []}
    client = open_target(place.root, None, {}).client
    client.files.upload(f"{VOLUME}/record/{started * 1000:.0f}.x.json", io.BytesIO(json.dumps(content).encode()))


def run_of(*tasks: TaskStatus, seconds: float) -> RunStatus:
    started = datetime.datetime.fromtimestamp(DAY, datetime.timezone.utc)
    return RunStatus(1, 1, "job", "SUCCESS", started, seconds, "", "", tasks, (("workdir", VOLUME),))


def test_the_page_of_an_earlier_run_has_nothing_of_the_runs_after_it(place: Place) -> None:
    for started in (DAY - 86_400, DAY + 5, DAY + 86_400):
        write_record(place, started)
    record = record_of(open_target(place.root, None, {}), run_of(task("a", (0, 10)), seconds=10), place.root)
    ((_, attempt),) = record.attempts()
    assert ([query.standing.name for query in attempt.queries], record.note) == (["query of 5"], "")
    assert record.versions == {"day": str(DAY + 5)}


def test_the_page_says_that_tasks_ran_side_by_side(place: Place) -> None:
    write_record(place, DAY + 5)
    tasks = task("a", (0, 10)), task("b", (1, 10))
    record = record_of(open_target(place.root, None, {}), run_of(*tasks, seconds=10), place.root)
    assert record.note.startswith("Tasks ran side by side:")


def test_a_dead_letter_is_counted_once_and_in_its_own_run(place: Place) -> None:
    now = time.time()
    letters = LetterFile()
    for seconds in (-50, -1, 2, 3, 12, 13, 14, 100, 101):
        at = datetime.datetime.fromtimestamp(now + seconds, datetime.timezone.utc)
        letters.add({"source": "s", "position": "1", "error_class": "E", "error": "e", "record": b"x", "at": at})
    client = open_target(place.root, None, {}).client
    client.files.upload(f"{VOLUME}/letters/a.parquet", letters.content())
    first, second = (
        task_records.TaskRecord(now + seconds, {}, (), (), (f"{VOLUME}/letters",)) for seconds in (0, 10)
    )
    records = TaskRecords(client, {"workdir": VOLUME}, now, now + 20)
    assert [letters.count for letters in records.letters(first, [second])] == [2]
    assert [letters.count for letters in records.letters(second)] == [3]


def test_a_page_that_cannot_be_written_is_a_note_and_no_failure_of_the_run(place: Place) -> None:
    place.job("job", place.task("a", "1"))
    place.deploy()
    (place.root / "runs").write_text("no folder")
    result = place.call("run", "job", "--on", "workspace")
    assert (result.exit_code, "note: the page of the run cannot be written: " in result.stdout) == (0, True)


def test_a_run_does_not_wait_for_the_files_of_a_workspace(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RepeatedLine, "seconds", 0.05)
    place.job("job", place.task("a", "import time; time.sleep(1)"), parameters=[{"name": "workdir", "default": VOLUME}])
    place.deploy()
    place.workspace.faults.refuse("GET .*/fs/directories", 503, times=1_000_000)
    ended: list[int] = []

    def run() -> None:
        ended.append(place.call("run", "job", "--on", "workspace").exit_code)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert ended == [0]


def test_a_query_that_died_with_its_notebook_does_not_run_in_the_next_task(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RepeatedLine, "seconds", 0.05)
    monkeypatch.setattr(task_records, "CLOCKS_SECONDS", 0.0)
    monkeypatch.setattr(live, "_SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr(live, "_SAMPLE_SHARE", 0.0)
    died, goes_on = place.task("died", RUNNING_QUERY), place.task("goes_on", "import time; time.sleep(2)", after="died")
    place.job("job", died, goes_on, parameters=[{"name": "workdir", "default": f"{VOLUME}/numbers"}])
    place.deploy()
    lines = place.call("run", "job", "--on", "workspace").stdout.splitlines()
    assert any(line.startswith("job  died  1,000 rows") for line in lines)
    *_, last = (line for line in lines if line.startswith("job  goes_on  "))
    assert "rows" not in last


def test_a_line_about_queries_does_not_wait_for_a_service() -> None:
    answer, asked = threading.Event(), threading.Event()

    def standings() -> list[Standing]:
        asked.set()
        answer.wait()
        return [Standing("q", "orders")]

    activity = Activity("job", in_time(standings, 0.01))
    assert activity.queries() == ()
    assert asked.is_set()
    answer.set()
    activity._next_sample = 0.0
    while not activity.queries():
        activity._next_sample = 0.0
    assert [query.name for query in activity.queries()] == ["orders"]

"""``run --volumes workspace``: a local run on the workspace's volumes, through the Files API of the real SDK."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import databricks.sdk  # noqa: F401 - loaded once, for the times of the tests
import pytest

from connectors_tools.workspace.volumes import folders_of
from tests.bundle.conftest import Workbench

from .conftest import Place

APPEND = """
from pathlib import Path
from connectors import workbench
folder = Path(workbench.workdir(dbutils.widgets.get("workdir")))
names = sorted(file.name for file in folder.rglob("*") if file.is_file())
(folder / "part").mkdir(exist_ok=True)
(folder / "part" / f"{len(names)}.txt").write_text(f"after {len(names)}")
(folder / "old.txt").unlink(missing_ok=True)
dbutils.notebook.exit(",".join(names))
"""
PUT = "PUT .*/fs/files/"


@pytest.fixture
def place(place: Place) -> Place:
    place.workspace.catalog.make_volume("main.sales.data")
    parameters = [{"name": "workdir", "default": "/Volumes/main/sales/data/x"}]
    place.job("job", place.task("a", APPEND), parameters=parameters)
    return place


def volume(place: Place) -> Path:
    return place.workspace.volumes.folder / "Volumes" / "main" / "sales" / "data" / "x"


def run(place: Place, *more: str) -> Any:
    return place.call("run", "job", "--volumes", "workspace", *more)


def files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_run_here_sees_and_changes_the_volume_of_the_workspace(place: Place) -> None:
    volume(place).mkdir()
    (volume(place) / "old.txt").write_text("from the workspace")
    result = run(place)
    assert (result.exit_code, "old.txt" in result.stdout) == (0, True)
    assert files(volume(place)) == {"part/1.txt": "after 1"}
    assert "volumes  1 files copied to the workspace, 1 removed there" in result.stdout


def test_what_others_changed_meanwhile_is_there_in_the_next_run(place: Place) -> None:
    run(place)
    (volume(place) / "new.txt").write_text("by somebody else")
    (volume(place) / "part" / "0.txt").unlink()
    result = run(place)
    assert " new.txt" in result.stdout
    assert files(volume(place)) == {"new.txt": "by somebody else", "part/1.txt": "after 1"}


def test_by_default_a_run_stays_on_this_machine(place: Place) -> None:
    volume(place).mkdir()
    assert place.call("run", "job").exit_code == 0
    assert (files(volume(place)), place.workspace.faults.calls) == ({}, [])


def test_a_copy_that_is_cut_off_leaves_the_oldest_changes_and_the_next_run_finishes_it(place: Place) -> None:
    run(place)
    mirror = next((place.root / "runs").glob("volumes-*")) / "Volumes" / "main" / "sales" / "data" / "x"
    for number, name in enumerate(("b", "a", "c")):
        (mirror / name).write_text(name)
        os.utime(mirror / name, (1_000_000 + number, 1_000_000 + number))
    place.workspace.faults.refuse(PUT, 403, after=2)
    result = run(place)
    assert (result.exit_code, "PERMISSION_DENIED" in result.stderr) == (1, True)
    assert set(files(volume(place))) == {"part/0.txt", "a", "b"}
    assert run(place).exit_code == 0
    assert set(files(volume(place))) == {"part/0.txt", "a", "b", "c", "part/4.txt"}


def test_a_file_that_changed_on_both_sides_stops_the_run_with_everything_as_it_was(place: Place) -> None:
    run(place)
    mirror = next((place.root / "runs").glob("volumes-*"))
    (mirror / "Volumes/main/sales/data/x/part/0.txt").write_text("changed here")
    (volume(place) / "part" / "0.txt").write_text("changed there as well")
    result = run(place)
    assert (result.exit_code, "have changed in the workspace and here, such as /Volumes/main/sales/data/x/part/0.txt"
            in result.stderr) == (2, True)  # fmt: skip
    assert files(volume(place)) == {"part/0.txt": "changed there as well"}
    shutil.rmtree(mirror)
    assert run(place).exit_code == 0


@pytest.mark.parametrize("removed", ["Volumes", "Volumes/main/sales/data/x/keep"])
def test_a_copy_that_somebody_removes_here_is_copied_again(place: Place, removed: str) -> None:
    (volume(place) / "keep").mkdir(parents=True)
    (volume(place) / "keep" / "in.txt").write_text("input")
    run(place)
    shutil.rmtree(next((place.root / "runs").glob("volumes-*")) / removed)
    assert run(place).exit_code == 0
    assert files(volume(place))["keep/in.txt"] == "input"


def test_what_a_run_removed_that_died_is_removed_by_the_next_run(place: Place) -> None:
    volume(place).mkdir()
    (volume(place) / "old.txt").write_text("from the workspace")
    place.workspace.faults.refuse("DELETE .*/fs/files/.*", 403)
    assert run(place).exit_code == 1
    assert run(place).exit_code == 0
    assert "old.txt" not in files(volume(place))


def test_a_download_that_broke_off_leaves_nothing_to_write_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(source: Any, target: Any) -> None:
        target.write(b"hal")
        raise KeyboardInterrupt

    volume(place).mkdir()
    (volume(place) / "new.bin").write_text("whole")
    with monkeypatch.context() as patched:
        patched.setattr("connectors_tools.workspace.volumes.shutil.copyfileobj", break_off)
        run(place)
    assert run(place).exit_code == 0
    assert set(files(volume(place))) == {"new.bin", "part/1.txt"}
    assert ".part" not in str(place.workspace.faults.calls)


def test_a_job_that_the_job_runs_has_its_volumes_too(place: Place) -> None:
    place.job("outer", {"task_key": "t", "run_job_task": {"job_id": "${resources.jobs.job.id}"}})
    assert place.call("run", "outer", "--volumes", "workspace").exit_code == 0
    assert files(volume(place)) == {"part/0.txt": "after 0"}


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("/Volumes/main/sales/data/my orders/", ["/Volumes/main/sales/data/my orders"]),
        ("from /Volumes/a/b/c to /Volumes/d/e/f", ["/Volumes/a/b/c", "/Volumes/d/e/f"]),
        ("/Volumes/a/b/c /Volumes/d/e/f", ["/Volumes/a/b/c", "/Volumes/d/e/f"]),
        ('["/Volumes/a/b/c"]', ["/Volumes/a/b/c"]),
    ],
)
def test_a_value_that_is_one_path_may_hold_blanks(tmp_path: Path, value: str, paths: list[str]) -> None:
    bench = Workbench(tmp_path)
    bench.job("job", bench.task("a", "1"))
    bundle = bench.load()
    assert folders_of(bundle, bundle.job("job"), {"workdir": value}) == paths


def test_a_copy_whose_end_was_not_noted_is_no_conflict(place: Place) -> None:
    run(place)
    index = next((place.root / "runs").glob("volumes-*")) / "index.json"
    index.write_text("{}")  # as a process leaves it that dies between the last copy and its note
    assert run(place).exit_code == 0
    assert files(volume(place)) == {"part/0.txt": "after 0", "part/1.txt": "after 1"}


def test_a_busy_workspace_and_lost_answers_change_nothing(place: Place) -> None:
    place.workspace.faults.lose_answer(PUT)
    place.workspace.faults.refuse("GET .*/fs/directories/.*", 503, retry_after=0)
    assert run(place).exit_code == 0
    assert files(volume(place)) == {"part/0.txt": "after 0"}


def test_a_volume_that_does_not_exist_is_named(place: Place) -> None:
    result = run(place, "--param", "workdir=/Volumes/main/nothing/here/x")
    assert (result.exit_code, "/Volumes/main/nothing/here" in result.stderr) == (1, True)

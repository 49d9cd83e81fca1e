"""A deployment by the real SDK client to a workspace that keeps it."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from .conftest import ROOT, Place

CREATE = "POST /api/2.2/jobs/create"


def two_jobs(place: Place) -> None:
    place.job("first", place.task("a", "1"), place.task("b", "2", after="a"))
    place.job("second", place.task("c", "3"))


def test_jobs_and_files_are_there_after_a_deployment(place: Place) -> None:
    two_jobs(place)
    lines = place.deploy()
    assert lines[-1] == "target dev: 2 jobs to create, 0 to change, 0 to delete; 6 files to upload, 0 to delete"
    assert f"{ROOT}/files/notebooks/a" in place.workspace.tree.paths()
    tasks: Any = place.jobs["first"]["tasks"]
    assert [task["notebook_task"]["notebook_path"] for task in tasks] == [
        f"{ROOT}/files/notebooks/a", f"{ROOT}/files/notebooks/b"
    ]  # fmt: skip


def test_a_second_deployment_changes_nothing(place: Place) -> None:
    two_jobs(place)
    place.deploy()
    place.workspace.faults.clear()
    assert place.deploy() == ["target dev: nothing to change"]
    changes = [call for call in place.workspace.faults.calls if not call.startswith("GET")]
    assert {call.split()[1].rpartition("/")[2] for call in changes} == {"import", "delete"}  # the lock
    assert place.workspace.faults.count(".*(create|reset|permissions)") == 0


def test_a_plan_lists_what_would_change_and_changes_nothing(place: Place) -> None:
    two_jobs(place)
    lines = place.deploy("--plan")
    assert "create  job first" in "\n".join(lines)
    assert (place.jobs, place.workspace.tree.paths()) == ({}, [])
    place.deploy()
    place.task("b", "22")
    assert place.deploy("--plan") == [
        "upload  notebooks/b.ipynb",
        "target dev: 0 jobs to create, 0 to change, 0 to delete; 1 files to upload, 0 to delete",
    ]


def test_a_job_and_a_file_that_left_the_bundle_leave_the_workspace(place: Place) -> None:
    two_jobs(place)
    place.deploy()
    (place.root / "jobs" / "second.yml").unlink()
    (place.root / "notebooks" / "c.ipynb").unlink()
    place.deploy()
    assert list(place.jobs) == ["first"]
    assert f"{ROOT}/files/notebooks/c" not in place.workspace.tree.paths()
    assert f"{ROOT}/files/notebooks/b" in place.workspace.tree.paths()


def test_a_changed_job_keeps_its_id(place: Place) -> None:
    two_jobs(place)
    place.deploy()
    before = list(place.workspace.jobs.settings)
    place.job("second", place.task("c", "3", max_retries=7))
    place.deploy()
    assert list(place.workspace.jobs.settings) == before
    tasks: Any = place.jobs["second"]["tasks"]
    assert tasks[0]["max_retries"] == 7


def test_what_somebody_changed_or_deleted_in_the_workspace_is_put_right(place: Place) -> None:
    two_jobs(place)
    place.deploy()
    first, second = place.workspace.jobs.settings
    place.workspace.jobs.settings[first]["max_concurrent_runs"] = 99
    del place.workspace.jobs.settings[second]
    plan = "\n".join(place.deploy("--plan"))
    assert "change  job first  (somebody has changed it in the workspace)" in plan
    assert f"create  job second  (job {second} is gone)" in plan
    place.deploy()
    assert place.jobs["first"]["max_concurrent_runs"] == 4
    assert "second" in place.jobs
    assert place.deploy() == ["target dev: nothing to change"]


def test_settings_are_those_of_the_target(place: Place) -> None:
    schedule = {"quartz_cron_expression": "0 0 6 * * ?", "timezone_id": "UTC"}
    second_id = "${resources.jobs.second.id}"
    inner = {"task_key": "run", "run_job_task": {"job_id": second_id, "job_parameters": {"n": 1}}}
    place.job(
        "first",
        place.task("a", "1", base_parameters={"flag": True, "n": 3, "job_id": second_id}),
        inner,
        schedule=schedule,
        tags={"x": "y"},
    )
    place.job("second", place.task("c", "3"), parameters=[{"name": "n", "default": "0"}])
    place.deploy()
    job: Any = place.jobs["first"]
    (second,) = (n for n, settings in place.workspace.jobs.settings.items() if settings["name"].endswith("second"))
    assert (job["name"], job["edit_mode"], job["max_concurrent_runs"]) == ("[dev dev_user] first", "UI_LOCKED", 4)
    assert job["schedule"]["pause_status"] == "PAUSED"
    assert (job["tags"]["dev"], job["tags"]["x"]) == ("dev_user", "y")
    tasks = {task["task_key"]: task for task in job["tasks"]}
    assert tasks["a"]["notebook_task"]["base_parameters"] == {"flag": "true", "n": "3", "job_id": str(second)}
    assert tasks["run"]["run_job_task"] == {"job_id": second, "job_parameters": {"n": "1"}}
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_production_target_has_its_permissions_and_schedules(place: Place) -> None:
    user = "${workspace.current_user.userName}"
    permissions = [{"group_name": "users", "level": "CAN_VIEW"}, {"user_name": user, "level": "CAN_MANAGE"}]
    place.write("databricks.yml", {
        "bundle": {"name": "test"}, "include": ["jobs/*.yml"],
        "targets": {"dev": {"mode": "production", "permissions": permissions, "run_as": {"user_name": user}}},
    })  # fmt: skip
    schedule = {"quartz_cron_expression": "0 0 6 * * ?", "timezone_id": "UTC"}
    place.job("first", place.task("a", "1"), schedule=schedule, permissions=[{"group_name": "ops", "level": "CAN_RUN"}])
    place.deploy()
    ((number, job),) = place.workspace.jobs.settings.items()
    assert (job["name"], job["schedule"]["pause_status"]) == ("first", "UNPAUSED")
    assert job["run_as"] == {"user_name": "dev.user@example.com"}
    assert place.workspace.jobs.permissions[f"jobs/{number}"] == [
        {"group_name": "ops", "permission_level": "CAN_MANAGE_RUN"},
        {"group_name": "users", "permission_level": "CAN_VIEW"},
        {"user_name": "dev.user@example.com", "permission_level": "IS_OWNER"},
    ]
    (folder,) = (
        entries for name, entries in place.workspace.jobs.permissions.items() if name.startswith("directories")
    )
    assert {entry["permission_level"] for entry in folder} == {"CAN_READ", "CAN_MANAGE"}
    assert place.deploy() == ["target dev: nothing to change"]


def test_permissions_that_left_the_bundle_leave_the_owner_alone(place: Place) -> None:
    def write_permissions(**permissions: Any) -> None:
        targets = {"dev": {"mode": "production", **permissions}}
        place.write("databricks.yml", {"bundle": {"name": "test"}, "include": ["jobs/*.yml"], "targets": targets})

    place.job("first", place.task("a", "1"))
    write_permissions(permissions=[{"group_name": "users", "level": "CAN_MANAGE"}])
    place.deploy()
    write_permissions()
    place.deploy()
    job, folder = (
        place.workspace.jobs.permissions[name] for name in sorted(place.workspace.jobs.permissions, reverse=True)
    )
    user = {"user_name": "dev.user@example.com"}
    assert job == [{**user, "permission_level": "IS_OWNER"}]
    assert folder == [{**user, "permission_level": "CAN_MANAGE"}]
    assert place.deploy() == ["target dev: nothing to change"]


def write_notebook(place: Place, name: str, *others: str) -> None:
    """The bundle's only job, of this notebook; ``others`` are more notebooks."""
    shutil.rmtree(place.root / "notebooks", ignore_errors=True)
    for other in others:
        place.notebook(other, "1")
    place.job("first", {"task_key": "load", "notebook_task": {"notebook_path": place.notebook(name, "1")}})


@pytest.mark.parametrize(
    ("before", "after"), [("load", "load/part"), ("load/part", "load"), ("load/deep/part", "load")]
)
def test_a_notebook_may_become_a_folder_and_a_folder_a_notebook(place: Place, before: str, after: str) -> None:
    write_notebook(place, before, "other")
    place.deploy()
    write_notebook(place, after, "other")
    place.deploy()
    folder = f"{ROOT}/files/notebooks/"
    notebooks = [path.removeprefix(folder) for path in place.workspace.tree.paths() if path.startswith(folder)]
    assert notebooks == sorted([after, "other"])
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_deployment_that_died_after_a_notebook_became_a_folder_goes_on(place: Place) -> None:
    write_notebook(place, "load")
    place.deploy()
    state = place.workspace.tree.content(f"{ROOT}/state/connectors.json")
    write_notebook(place, "load/part")
    place.deploy()
    place.workspace.tree.put(f"{ROOT}/state/connectors.json", state)
    place.deploy()
    assert f"{ROOT}/files/notebooks/load/part" in place.workspace.tree.paths()


def test_destroy_leaves_nothing(place: Place) -> None:
    two_jobs(place)
    place.deploy()
    result = place.call("destroy", "--by", "sdk", "--auto-approve")
    assert (result.exit_code, place.jobs, place.workspace.tree.paths()) == (0, {}, [])
    again = place.call("destroy", "--by", "sdk", "--auto-approve")
    assert (again.exit_code, "is not deployed" in again.stderr) == (2, True)
    assert place.workspace.tree.paths() == []


def test_destroy_asks_first_and_its_plan_only_lists(place: Place) -> None:
    two_jobs(place)
    place.deploy()
    assert "delete  job first" in place.call("destroy", "--by", "sdk", "--plan").output
    unanswered = place.call("destroy", "--by", "sdk")
    assert (unanswered.exit_code, "--auto-approve says yes" in unanswered.output) == (1, True)
    assert set(place.jobs) == {"first", "second"}


def test_a_job_of_a_task_that_only_the_service_runs_is_deployed(place: Place) -> None:
    query = {"query": {"query_id": "1"}, "warehouse_id": "w"}
    place.job("first", place.task("a", "1"), {"task_key": "q", "sql_task": query})
    place.deploy()
    tasks: Any = place.jobs["first"]["tasks"]
    assert tasks[1]["sql_task"] == query


def test_a_file_that_only_the_cli_finds_is_refused(place: Place) -> None:
    place.job("first", {"task_key": "q", "sql_task": {"file": {"path": "../q.sql"}, "warehouse_id": "w"}})
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "names a file relative to the bundle, ../q.sql" in result.stderr) == (2, True)


def test_a_job_without_tasks_is_refused(place: Place) -> None:
    place.job("first")
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "first   has no tasks" in result.stderr) == (2, True)


def test_what_only_the_cli_deploys_is_refused_by_name(place: Place) -> None:
    two_jobs(place)
    place.write("jobs/more.yml", {"resources": {"schemas": {"s": {}}}, "artifacts": {"w": {"type": "whl"}}})
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, place.jobs) == (2, {})
    assert "resources.schemas   only jobs and pipelines are deployed" in result.stderr
    assert "artifacts " in result.stderr


def test_without_a_way_to_log_in_the_error_says_how(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    two_jobs(place)
    monkeypatch.delenv("DATABRICKS_HOST")
    monkeypatch.delenv("DATABRICKS_TOKEN")
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "databricks auth login" in result.stderr, "Traceback" in result.output) == (
        2,
        True,
        False,
    )


@pytest.mark.parametrize("name", ["terraform.tfstate", "resources.json", "deployment.json"])
def test_a_target_of_the_cli_is_refused(place: Place, name: str) -> None:
    two_jobs(place)
    tree = place.workspace.tree
    tree.put(f"{ROOT}/state/{name}", json.dumps({"version": 1}).encode())
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "was deployed by the Databricks CLI" in result.stderr, place.jobs) == (2, True, {})


def test_the_cli_finds_a_state_that_it_cannot_read(place: Place) -> None:
    """Since CLI 1.13 state_version 3 with a feature that it does not know is refused; older ones refuse version 3."""
    two_jobs(place)
    place.deploy()
    state = json.loads(place.workspace.tree.content(f"{ROOT}/state/resources.json"))
    assert state["state_version"] == 3
    assert "python -m connectors deploy" in next(iter(state["features"]))

"""Declarative pipelines, deployed by the real SDK client to a workspace that keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from connectors_tools.workspace import runs

from .conftest import ROOT, Place
from .test_deploy_failures import killed_at

CREATE = "POST /api/2.0/pipelines$"
UPDATE = "PUT /api/2.0/pipelines/"
TABLE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

@dp.materialized_view
def numbers():
    return SparkSession.active().range(3)
"""
USER = {"user_name": "dev.user@example.com"}


def in_production(place: Place, **more: Any) -> None:
    targets = {"dev": {"mode": "production", **more}}
    place.write("databricks.yml", {"bundle": {"name": "test"}, "include": ["jobs/*.yml"], "targets": targets})


def ids(place: Place) -> dict[str, str]:
    return {entry["name"]: number for number, entry in place.workspace.pipelines.pipelines.items()}


def test_a_pipeline_is_there_before_the_job_that_runs_it(place: Place) -> None:
    place.pipeline("orders")
    lines = place.deploy()
    assert [line.partition("  http")[0] for line in lines[1:]] == [
        "create  pipeline orders", "create  job run_orders",
        "target dev: 2 jobs and pipelines to create, 0 to change, 0 to delete; 3 files to upload, 0 to delete",
    ]  # fmt: skip
    (task,) = place.jobs["run_orders"]["tasks"]  # type: ignore[misc, attr-defined]
    assert task["pipeline_task"] == {"pipeline_id": ids(place)["[dev dev_user] orders"]}
    assert place.deploy() == ["target dev: nothing to change"]


def test_settings_are_those_that_the_cli_sends(place: Place) -> None:
    libraries = [
        {"glob": {"include": "../tables/**"}}, {"file": {"path": "../tables/orders.py"}},
        {"notebook": {"path": place.notebook("more", "1")}}, {"file": {"path": "/Workspace/Shared/common.py"}},
    ]  # fmt: skip
    place.write("requirements.txt", "")
    lines = ["-r ../requirements.txt", "-r ${workspace.file_path}/requirements.txt", "../tables", "pandas==2"]
    place.pipeline(
        "orders", libraries=libraries, root_path="../tables", environment={"dependencies": lines}, continuous=True,
        tags={"team": "x"}, configuration={"limit": 3, "first": True}, permissions=[{"group_name": "ops", "level": "CAN_RUN"}],
    )  # fmt: skip
    place.deploy()
    spec = place.pipelines["orders"]
    files = f"{ROOT}/files"
    assert spec["libraries"] == [
        {"glob": {"include": f"{files}/tables/**"}}, {"file": {"path": f"{files}/tables/orders.py"}},
        {"notebook": {"path": f"{files}/notebooks/more"}}, {"file": {"path": "/Workspace/Shared/common.py"}},
    ]  # fmt: skip
    assert spec["root_path"] == f"{files}/tables"
    uploaded = f"-r {files}/requirements.txt"
    assert spec["environment"]["dependencies"] == [uploaded, uploaded, f"{files}/tables", "pandas==2"]
    assert spec["configuration"] == {"limit": "3", "first": "true"}
    assert (spec["development"], "continuous" in spec, spec["channel"], spec["edition"]) == (
        True,
        False,
        "CURRENT",
        "ADVANCED",
    )
    assert spec["deployment"] == {"kind": "BUNDLE", "metadata_file_path": f"{ROOT}/state/connectors.json"}
    assert (spec["tags"]["dev"], spec["tags"]["team"]) == ("dev_user", "x")
    (number,) = place.workspace.pipelines.pipelines
    assert place.workspace.jobs.permissions[f"pipelines/{number}"] == [
        {"group_name": "ops", "permission_level": "CAN_RUN"}, {**USER, "permission_level": "IS_OWNER"}
    ]  # fmt: skip
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_production_target_has_its_name_its_user_and_its_permissions(place: Place) -> None:
    in_production(place, run_as=USER, permissions=[{"group_name": "users", "level": "CAN_RUN"}])
    place.pipeline("orders", continuous=True)
    place.deploy()
    ((number, entry),) = place.workspace.pipelines.pipelines.items()
    assert (entry["name"], entry["run_as"], entry["spec"]["continuous"]) == ("orders", USER, True)
    assert "development" not in entry["spec"]
    granted = place.workspace.jobs.permissions
    assert granted[f"pipelines/{number}"] == [
        {"group_name": "users", "permission_level": "CAN_RUN"}, {**USER, "permission_level": "IS_OWNER"}
    ]  # fmt: skip
    in_production(place, run_as=USER)
    place.deploy()
    assert granted[f"pipelines/{number}"] == [{**USER, "permission_level": "IS_OWNER"}]
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_pipeline_may_name_a_job_which_is_there_before(place: Place) -> None:
    place.job("first", place.task("a", "1"))
    place.pipeline("orders", configuration={"after": "${resources.jobs.first.id}"})
    place.deploy()
    (number,) = (number for number, job in place.workspace.jobs.settings.items() if job["name"].endswith("first"))
    assert place.pipelines["orders"]["configuration"] == {"after": str(number)}
    assert place.workspace.faults.count(UPDATE) == 0


def test_an_entry_of_permissions_that_names_nobody_is_refused(place: Place) -> None:
    place.pipeline("orders", permissions=[{"level": "CAN_VIEW"}])
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "pipeline orders   each entry of permissions needs" in result.stderr) == (2, True)


def test_a_target_names_the_files_of_its_pipelines_relative_to_its_own_file(place: Place) -> None:
    place.pipeline("orders")
    more = {"root_path": "tables", "libraries": [{"file": {"path": "tables/more.py"}}]}
    in_production(place, resources={"pipelines": {"orders": more}})
    place.deploy()
    spec, files = place.pipelines["orders"], f"{ROOT}/files/tables"
    assert (spec["root_path"], spec["libraries"][1]) == (files, {"file": {"path": f"{files}/more.py"}})


def test_a_pipeline_for_development_is_refused_in_production(place: Place) -> None:
    in_production(place)
    place.pipeline("orders", development=True)
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "orders.development   is true" in result.stderr, place.pipelines) == (2, True, {})


@pytest.mark.parametrize("path", ["../../elsewhere.py", "../extra/file.py"])
def test_a_file_that_is_not_uploaded_is_missed_before_anything_is_deployed(place: Place, path: str) -> None:
    targets = {"dev": {"default": True, "mode": "development"}}
    bundle = {"bundle": {"name": "test"}, "include": ["jobs/*.yml"], "targets": targets}
    place.write("databricks.yml", {**bundle, "sync": {"paths": ["tables"]}})
    place.pipeline("orders", libraries=[{"file": {"path": path}}])
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "lies outside of sync.paths" in result.stderr, place.pipelines) == (2, True, {})


def test_requirements_and_wheels_of_a_pipeline_are_missed_like_those_of_a_job(place: Place) -> None:
    lines = ["-r ../requirements.txt", "../dist/library.whl"]
    place.pipeline("orders", environment={"dependencies": lines})
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "requirements.txt does not exist" in result.stderr) == (2, True)
    assert "dist/library.whl is not there, or is not uploaded" in result.stderr


def test_a_changed_pipeline_keeps_its_id_and_the_change_of_somebody_is_put_right(place: Place) -> None:
    place.pipeline("orders")
    place.deploy()
    before = ids(place)
    place.pipeline("orders", schema="eu")
    assert "change  pipeline orders  (its settings have changed)" in place.deploy("--plan")
    place.deploy()
    assert (ids(place), place.pipelines["orders"]["schema"]) == (before, "eu")
    place.pipelines["orders"]["schema"] = "us"
    assert "change  pipeline orders  (somebody has changed it in the workspace)" in place.deploy("--plan")
    place.deploy()
    assert place.pipelines["orders"]["schema"] == "eu"


def test_a_run_of_a_pipeline_is_no_change_of_it(place: Place) -> None:
    place.pipeline("orders")
    place.deploy()
    (entry,) = place.workspace.pipelines.pipelines.values()
    entry |= {"state": "RUNNING", "last_modified": 1, "latest_updates": [{"update_id": "1"}]}
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_job_follows_a_pipeline_that_was_made_anew(place: Place) -> None:
    place.pipeline("orders")
    place.deploy()
    (old,) = place.workspace.pipelines.pipelines
    place.workspace.pipelines.pipelines.clear()
    assert f"create  pipeline orders  (pipeline {old} is gone)" in place.deploy("--plan")
    place.deploy()
    (task,) = place.jobs["run_orders"]["tasks"]  # type: ignore[misc, attr-defined]
    assert task["pipeline_task"] == {"pipeline_id": ids(place)["[dev dev_user] orders"]} != {"pipeline_id": old}


def test_a_pipeline_that_left_the_bundle_goes_and_its_tables_stay(place: Place) -> None:
    place.pipeline("orders")
    place.pipeline("visits")
    place.deploy()
    gone = ids(place)["[dev dev_user] visits"]
    (place.root / "jobs" / "visits.yml").unlink()
    assert f"delete  pipeline visits  (pipeline {gone}, [dev dev_user] visits)" in place.deploy("--plan")
    lines = place.deploy()
    assert lines[:2] == [
        "delete  job run_visits, [dev dev_user] run_visits",
        "delete  pipeline visits, [dev dev_user] visits",
    ]
    assert (list(place.pipelines), list(place.jobs)) == (["orders"], ["run_orders"])
    assert place.workspace.pipelines.tables == [gone]


def test_a_pipeline_whose_key_changes_is_the_same_one(place: Place) -> None:
    place.pipeline("orders", name="sales")
    place.deploy()
    before = ids(place)
    (place.root / "jobs" / "orders.yml").unlink()
    place.pipeline("shop", name="sales")
    place.deploy()
    assert (ids(place), list(place.jobs)) == (before, ["run_shop"])
    assert place.deploy() == ["target dev: nothing to change"]


@pytest.mark.parametrize("cascade", [True, False])
def test_destroy_removes_pipelines_and_says_whether_their_tables_go(place: Place, *, cascade: bool) -> None:
    place.pipeline("orders", cascade_on_destroy=cascade)
    place.deploy()
    (number,) = place.workspace.pipelines.pipelines
    line = "delete  pipeline orders, [dev dev_user] orders" + " and its tables" * cascade
    assert line in place.call("destroy", "--by", "sdk", "--plan").output.splitlines()
    assert place.call("destroy", "--by", "sdk", "--auto-approve").exit_code == 0
    assert (place.pipelines, place.jobs, place.workspace.tree.paths()) == ({}, {}, [])
    assert place.workspace.pipelines.tables == ([] if cascade else [number])


@pytest.mark.parametrize("way", ["a text", "another key", "out of the bundle"])
def test_destroy_keeps_tables_that_were_not_to_go(place: Place, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    cascade = "${var.cascade}" if way == "a text" else False
    if way == "a text":
        monkeypatch.setenv("BUNDLE_VAR_cascade", "false")
        bundle = yaml.safe_load((place.root / "databricks.yml").read_text())
        place.write("databricks.yml", {**bundle, "variables": {"cascade": {"default": True}}})
    place.job("first", place.task("a", "1"))
    place.pipeline("orders", name="orders", cascade_on_destroy=cascade)
    place.deploy()
    (number,) = place.workspace.pipelines.pipelines
    if way != "a text":
        (place.root / "jobs" / "orders.yml").unlink()
    if way == "another key":
        place.pipeline("sales", name="orders", cascade_on_destroy=False)
    assert "tables" not in place.call("destroy", "--by", "sdk", "--plan").output
    assert place.call("destroy", "--by", "sdk", "--auto-approve").exit_code == 0
    assert (place.pipelines, place.workspace.pipelines.tables) == ({}, [number])


def test_a_name_that_another_pipeline_has_is_refused_in_the_words_of_the_service(place: Place) -> None:
    place.pipeline("orders")
    place.pipeline("visits", name="orders")
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, len(ids(place))) == (1, 1)
    assert "is already used by another pipeline" in result.stderr


def test_a_lost_answer_to_create_makes_no_second_pipeline(place: Place) -> None:
    place.pipeline("orders", name="it's 100% [new]_ \\", allow_duplicate_names=True)
    place.workspace.faults.lose_answer(CREATE)
    place.deploy()
    assert (len(ids(place)), place.workspace.faults.count(CREATE)) == (1, 1)
    assert place.deploy() == ["target dev: nothing to change"]


@pytest.mark.parametrize(
    "call",
    [CREATE, UPDATE, "DELETE /api/2.0/pipelines/", "PUT .*/permissions/pipelines/", "POST .*/jobs/create", ".*/import"],
)
def test_a_deployment_that_dies_leaves_no_second_pipeline(place: Place, call: str) -> None:
    """It dies at each of the first such calls in turn, each time with other pipelines and settings."""
    for after in range(3):
        for key in ("one", "two"):
            more = {"permissions": [{"group_name": f"team{after}", "level": "CAN_VIEW"}], "allow_duplicate_names": True}
            place.pipeline(key, schema=f"v{after}", **more)
        place.pipeline(f"only{after}")
        (place.root / "jobs" / f"only{after - 1}.yml").unlink(missing_ok=True)
        killed_at(place, call, after)
    place.deploy("--force-lock")
    assert sorted(entry["name"] for entry in place.workspace.pipelines.pipelines.values()) == [
        f"[dev dev_user] {key}" for key in ("one", "only2", "two")
    ]
    assert {spec["schema"] for key, spec in place.pipelines.items() if key != "only2"} == {"v2"}
    assert sorted(place.jobs) == ["run_one", "run_only2", "run_two"]
    assert place.deploy() == ["target dev: nothing to change"]
    place.call("destroy", "--by", "sdk", "--auto-approve")
    assert (place.pipelines, place.jobs) == ({}, {})


def test_a_state_that_is_lost_is_found_again_by_the_tags_of_the_pipelines(place: Place) -> None:
    place.pipeline("orders")
    place.pipeline("visits", allow_duplicate_names=True)
    place.deploy()
    before = ids(place)
    for name in ("connectors.json", "resources.json"):
        place.workspace.tree.remove(f"{ROOT}/state/{name}")
    place.deploy()
    assert ids(place) == before


def test_a_pipeline_of_somebody_else_under_the_same_name_is_left_alone(place: Place) -> None:
    place.pipeline("orders", allow_duplicate_names=True)
    place.deploy()
    (number,) = place.workspace.pipelines.pipelines
    place.workspace.pipelines.pipelines["0"] = json.loads(json.dumps(place.workspace.pipelines.pipelines[number]))
    place.workspace.pipelines.pipelines["0"] |= {"pipeline_id": "0"}
    place.workspace.pipelines.pipelines["0"]["spec"]["tags"] = {}
    for name in ("connectors.json", "resources.json"):
        place.workspace.tree.remove(f"{ROOT}/state/{name}")
    place.deploy()
    assert place.call("destroy", "--by", "sdk", "--auto-approve").exit_code == 0
    assert list(place.workspace.pipelines.pipelines) == ["0"]


def test_the_doctor_and_the_lists_of_jobs_know_pipelines(place: Place) -> None:
    place.pipeline("orders", configuration={"in": "/Volumes/main/sales/data/in", "password": "{{secrets/kv/orders}}"})
    assert place.call("validate").exit_code == 0
    assert "run_orders" in place.call("jobs").output
    lines = [" ".join(line.split()) for line in place.call("doctor", "-t", "dev").stdout.splitlines()]
    assert any(line.startswith("MISSING schema main.sales does not exist") for line in lines)
    assert any(line.startswith("MISSING secret kv/orders") for line in lines)


@pytest.mark.soak
@pytest.mark.spark
def test_a_job_runs_its_pipeline_in_the_workspace(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_POLL", 0.2)
    place.pipeline("orders")
    place.write("tables/orders.py", TABLE)
    place.deploy()
    result = place.call("run", "run_orders", "--on", "workspace")
    assert (result.exit_code, "flows complete: numbers" in result.stdout) == (0, True)
    assert list((place.workspace.volumes.folder / "Volumes/main/sales").rglob("numbers/_delta_log"))

"""What a deployment makes of a workspace that is busy, away, forbids, or whose answers are lost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import databricks.sdk  # noqa: F401 - so that the processes which are forked have it loaded
import pytest

from .conftest import ROOT, Place

CREATE = "POST /api/2.2/jobs/create"


@pytest.fixture
def place(place: Place) -> Place:
    for key in ("one", "two", "three"):
        place.job(key, place.task(key, "1"))
    return place


def names(place: Place) -> list[str]:
    return sorted(str(job["name"]) for job in place.workspace.jobs.settings.values())


def test_a_lost_answer_to_create_makes_no_second_job(place: Place) -> None:
    place.workspace.faults.lose_answer(CREATE, after=1)
    place.deploy()
    assert names(place) == [f"[dev dev_user] {key}" for key in ("one", "three", "two")]
    assert place.workspace.faults.count(CREATE) == 3
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_request_to_create_that_never_arrived_is_sent_again(place: Place) -> None:
    place.workspace.faults.refuse(CREATE, 503, times=2, retry_after=0)
    place.deploy()
    assert (len(names(place)), place.workspace.faults.count(CREATE)) == (3, 5)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("call", ["POST .*/workspace/import", "GET .*/jobs/get", "GET .*/scim/v2/Me", CREATE])
def test_a_busy_workspace_is_waited_for_as_long_as_it_asks(place: Place, call: str, status: int) -> None:
    place.workspace.faults.refuse(call, status, times=1, retry_after=1)
    began = time.monotonic()
    place.deploy()
    assert time.monotonic() - began > 1
    assert len(names(place)) == 3


def test_an_answer_that_is_lost_anywhere_else_is_asked_for_again(place: Place) -> None:
    for call in ("POST .*/workspace/import", "POST .*/mkdirs"):
        place.workspace.faults.lose_answer(call)
    place.deploy()
    assert len(names(place)) == 3
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_permission_that_is_missing_stops_it_and_the_next_one_goes_on(place: Place) -> None:
    place.workspace.faults.refuse(CREATE, 403, after=1, times=9)
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, len(names(place))) == (1, 1)
    assert "PERMISSION_DENIED" in result.stderr
    assert "Way out: ask an administrator" in result.stderr
    assert place.workspace.tokens.personal not in result.output
    place.workspace.faults.clear()
    lines = place.deploy()
    assert lines[-1] == "target dev: 2 jobs to create, 0 to change, 0 to delete; 0 files to upload, 0 to delete"
    assert len(names(place)) == 3


def test_a_token_that_is_revoked_in_the_middle_leaves_a_deployment_that_goes_on(place: Place) -> None:
    place.workspace.faults.refuse(".*", 401, after=25, times=10_000)
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, "log in by `databricks auth login`" in result.stderr) == (1, True)
    before = len(names(place))
    assert 0 < before < 3, "the token ends between two jobs; mend the number of calls above"
    place.workspace.faults.clear()
    place.deploy("--force-lock")
    assert len(names(place)) == 3
    assert place.deploy() == ["target dev: nothing to change"]


def test_a_token_by_oauth_that_ends_in_the_middle_is_renewed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_TOKEN")
    monkeypatch.setenv("DATABRICKS_CLIENT_ID", place.workspace.tokens.client[0])
    monkeypatch.setenv("DATABRICKS_CLIENT_SECRET", place.workspace.tokens.client[1])
    place.workspace.tokens.seconds = 1
    place.workspace.faults.refuse("POST .*/jobs/create", 503, times=2, retry_after=1)
    place.deploy()
    assert len(names(place)) == 3
    assert place.workspace.tokens.issued > 2


def test_two_deployments_do_not_mix(place: Place) -> None:
    lock = {
        "ID": "somebody-else",
        "AcquisitionTime": "2026-01-01T00:00:00Z",
        "IsForced": False,
        "User": "ann@example.com",
    }
    place.workspace.tree.put(f"{ROOT}/state/deploy.lock", json.dumps(lock).encode())
    result = place.call("deploy", "--by", "sdk")
    assert (result.exit_code, names(place)) == (2, [])
    assert "is held by ann@example.com since 2026-01-01" in result.stderr
    place.deploy("--force-lock")
    assert len(names(place)) == 3
    assert f"{ROOT}/state/deploy.lock" not in place.workspace.tree.paths()


@pytest.mark.parametrize("call", [CREATE, "POST .*/workspace/import", "POST .*/jobs/reset"])
def test_a_deployment_that_is_killed_is_finished_by_the_next_one(place: Place, call: str) -> None:
    """The process dies at a call whose answer it never sees, at each of the first such calls in turn."""
    for after in range(3):
        killed_at(place, call, after)
    place.deploy("--force-lock")
    assert names(place) == [f"[dev dev_user] {key}" for key in ("one", "three", "two")]
    assert place.deploy() == ["target dev: nothing to change"]
    place.call("destroy", "--by", "sdk", "--auto-approve")
    assert names(place) == []


def killed_at(place: Place, call: str, after: int) -> None:
    """Kills a deployment while the call number ``after`` of this kind is under way: carried out, but not answered."""
    place.workspace.faults.clear()
    place.workspace.faults.lose_answer(call, times=1000, after=after)
    child = os.fork()
    if child == 0:
        place.call("deploy", "--by", "sdk", "--force-lock")
        os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if place.workspace.faults.count(call) > after:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    place.workspace.faults.clear()


def test_a_job_created_by_a_deployment_that_died_goes_when_it_left_the_bundle_meanwhile(
    place: Place, tmp_path: Path
) -> None:
    killed_at(place, CREATE, 0)
    (created,) = names(place)
    (tmp_path / "jobs" / f"{created.removeprefix('[dev dev_user] ')}.yml").unlink()
    place.deploy("--force-lock")
    assert (len(names(place)), created in names(place)) == (2, False)


def test_a_state_that_is_lost_is_found_again_by_the_tags_of_the_jobs(place: Place) -> None:
    place.deploy()
    before: Any = dict(place.workspace.jobs.settings)
    for name in ("connectors.json", "resources.json"):
        place.workspace.tree.remove(f"{ROOT}/state/{name}")
    place.deploy()
    assert list(place.workspace.jobs.settings) == list(before)

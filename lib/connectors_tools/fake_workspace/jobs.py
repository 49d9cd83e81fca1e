"""The Jobs service of the fake workspace, version 2.2: jobs, their runs, and who may do what with them."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from .calls import Refusal, Request, invalid, missing
from .pipelines import Pipelines
from .runs import JobRun, Runner, TaskRun, error_of

_MOST_RUNS: Final = 25
_MOST_JOBS: Final = 100
_OWNED: Final = ("jobs", "pipelines")


class Jobs:
    """Jobs by id. ``url`` is the address of the workspace, for links; ``pipelines`` are those that its jobs may run."""

    def __init__(self, runner: Runner, url: str, pipelines: Pipelines) -> None:
        self._runner, self._url, self._pipelines = runner, url, pipelines
        self._lock = threading.RLock()
        self._ids = count(int(time.time()))
        self._idempotent: dict[str, int] = {}
        self._created: dict[int, dict[str, Any]] = {}
        self.settings: dict[int, dict[str, Any]] = {}
        self.permissions: dict[str, list[dict[str, Any]]] = {}

    @property
    def runs(self) -> dict[int, JobRun]:
        return self._runner.runs

    def create(self, request: Request) -> dict[str, Any]:
        settings = request.json
        _check(settings)
        permissions = settings.pop("access_control_list", [])
        with self._lock:
            number = next(self._ids)
            self.settings[number] = _completed(settings)
            self._created[number] = {"creator_user_name": request.user, "created_time": int(time.time() * 1000)}
            self.permissions[f"jobs/{number}"] = permissions or [_owner(request.user)]
        return {"job_id": number}

    def reset(self, request: Request) -> dict[str, Any]:
        body = request.json
        number = self._existing(int(body["job_id"]))
        _check(body["new_settings"])
        with self._lock:
            self.settings[number] = _completed(body["new_settings"])
        return {}

    def delete(self, request: Request) -> dict[str, Any]:
        with self._lock:
            number = self._existing(int(request.json["job_id"]))
            del self.settings[number]
        return {}

    def get(self, request: Request) -> dict[str, Any]:
        return self._job(self._existing(request.number("job_id")))

    def list_jobs(self, request: Request) -> dict[str, Any]:
        """The newest jobs first, a page at a time, perhaps only those of a name."""
        limit = int(request.query.get("limit", 20))
        if not 0 < limit <= _MOST_JOBS:
            raise invalid(f"limit must be from 1 to {_MOST_JOBS}.")
        name = request.query.get("name", "").lower()
        with self._lock:
            numbers = [
                n for n, s in reversed(self.settings.items()) if not name or str(s.get("name", "")).lower() == name
            ]
        return self._page(request, [self._job(n) for n in numbers], "jobs", limit)

    def run_now(self, request: Request) -> dict[str, Any]:
        body = request.json
        number = self._existing(int(body["job_id"]))
        settings = self.settings[number]
        declared = {item["name"]: item["default"] for item in settings.get("parameters", [])}
        if declared and body.get("notebook_params"):
            raise invalid("Job parameters and notebook_params cannot both be given.")
        values = {**body.get("notebook_params", {}), **body.get("job_parameters", {})}
        with self._lock:
            token = str(body.get("idempotency_token") or "")
            if token in self._idempotent:
                return {"run_id": self._idempotent[token]}
            shown = [{"name": n, "default": declared.get(n, ""), "value": v} for n, v in {**declared, **values}.items()]
            run = self._new_run(number, settings, request.user, shown, body.get("only", []))
            if token:
                self._idempotent[token] = run.run_id
            self._runner.start(run, copy.deepcopy(self.settings), values)
        return {"run_id": run.run_id, "number_in_job": run.run_id}

    def submit(self, request: Request) -> dict[str, Any]:
        """A run of tasks that belong to no job."""
        body = request.json
        _check(body)
        with self._lock:
            run = self._new_run(0, {"name": body.get("run_name", "Untitled"), **body}, request.user, [], [])
            known = ("tasks", "environments", "timeout_seconds", "job_clusters")
            settings = {name: body[name] for name in known if name in body}
            self._runner.start(run, {0: {"name": "submitted", **settings}}, {})
        return {"run_id": run.run_id}

    def run(self, request: Request) -> dict[str, Any]:
        number = request.number("run_id")
        if run := self.runs.get(number):
            return run.document(self._url, with_tasks=True)
        run, task = self._task(number)
        return {**task.document(run.page(self._url)), "job_id": run.job_id}

    def list_runs(self, request: Request) -> dict[str, Any]:
        limit = int(request.query.get("limit", 20)) or _MOST_RUNS
        if not 0 < limit <= _MOST_RUNS:
            raise invalid(f"limit must be from 1 to {_MOST_RUNS}.")
        job, active = request.query.get("job_id"), request.query.get("active_only") == "true"
        expand = request.query.get("expand_tasks") == "true"
        runs = [
            run
            for run in reversed(list(self.runs.values()))
            if job in (None, str(run.job_id)) and (run.is_active or not active)
        ]
        return self._page(request, [run.document(self._url, with_tasks=expand) for run in runs], "runs", limit)

    def output(self, request: Request) -> dict[str, Any]:
        run, task = self._task(request.number("run_id"))
        document: dict[str, Any] = {"metadata": {**task.document(run.page(self._url)), "job_id": run.job_id}}
        if task.report:
            document |= {"error": error_of(task.report), "error_trace": task.report}
        return {**document, "notebook_output": {"result": task.said, "truncated": False}}

    def export(self, request: Request) -> dict[str, Any]:
        """The executed notebook as a page, which is what the service exports."""
        run, task = self._task(request.number("run_id"))
        executed = self._runner.executed(task, run)
        if executed is None:
            raise Refusal(400, "INVALID_STATE", "The run has no notebook to export yet.")
        return {"views": [{"type": "NOTEBOOK", "name": task.key, "content": _page_of(executed.read_text())}]}

    def cancel(self, request: Request) -> dict[str, Any]:
        run = self.runs.get(int(request.json["run_id"]))
        if run is None:
            raise missing(f"Run {request.json['run_id']} does not exist.")
        if run.is_active:
            self._runner.cancel(run)
        return {}

    def read_permissions(self, request: Request) -> dict[str, Any]:
        kind, number = request.names
        return {"object_id": f"/{kind}/{number}", "object_type": kind.rstrip("s"),
                "access_control_list": [_granted(entry) for entry in self._acl(kind, number, request.user)]}  # fmt: skip

    def set_permissions(self, request: Request) -> dict[str, Any]:
        kind, number = request.names
        entries = request.json.get("access_control_list", [])
        if kind in _OWNED and sum(entry["permission_level"] == "IS_OWNER" for entry in entries) != 1:
            raise invalid(f"The {kind.rstrip('s')} must have exactly one owner.")
        self.permissions[f"{kind}/{number}"] = entries
        return self.read_permissions(request)

    def _acl(self, kind: str, number: str, user: str) -> list[dict[str, Any]]:
        if kind == "jobs":
            self._existing(int(number))
        if kind == "pipelines":
            self._pipelines.existing(number)
        manager = {"user_name": user, "permission_level": "CAN_MANAGE"}
        return self.permissions.get(
            f"{kind}/{number}", [manager, {"group_name": "users", "permission_level": "CAN_VIEW"}]
        )

    def _new_run(
        self, job: int, settings: Mapping[str, Any], user: str, parameters: list[dict[str, str]], only: list[str]
    ) -> JobRun:
        run_id = next(self._ids)
        chosen = [task for task in settings["tasks"] if not only or task["task_key"] in only]
        tasks = {task["task_key"]: TaskRun(next(self._ids), task["task_key"], task) for task in chosen}
        return JobRun(run_id, job, str(settings["name"]), tasks, parameters, user, only)

    def _task(self, number: int) -> tuple[JobRun, TaskRun]:
        for run in self.runs.values():
            for task in run.tasks.values():
                if task.run_id == number:
                    return run, task
        if number in self.runs:
            text = "Retrieving the output of runs with multiple tasks is not supported. Please retrieve that of a task."
            raise invalid(text)
        raise missing(f"Run {number} does not exist.")

    def _job(self, number: int) -> dict[str, Any]:
        return {"job_id": number, **self._created[number], "settings": copy.deepcopy(self.settings[number])}

    def _existing(self, number: int) -> int:
        if number not in self.settings:
            raise missing(f"Job {number} does not exist.")
        return number

    def _page(self, request: Request, entries: list[dict[str, Any]], name: str, limit: int) -> dict[str, Any]:
        start = int(request.query.get("page_token") or request.query.get("offset") or 0)
        more = start + limit < len(entries)
        following = {"next_page_token": str(start + limit)} if more else {}
        return {name: entries[start : start + limit], "has_more": more, **following}


def _owner(user: str) -> dict[str, Any]:
    return {"user_name": user, "permission_level": "IS_OWNER"}


def _granted(entry: Mapping[str, Any]) -> dict[str, Any]:
    who = {name: value for name, value in entry.items() if name != "permission_level"}
    return {**who, "all_permissions": [{"permission_level": entry["permission_level"], "inherited": False}]}


def _check(settings: Mapping[str, Any]) -> None:
    """Refuses what the service refuses: tasks without a key or a kind, environments that nobody declares."""
    declared = {entry.get("environment_key") for entry in settings.get("environments", [])}
    for task in settings.get("tasks", []):
        if not task.get("task_key") or not any(name.endswith("_task") for name in task):
            raise invalid(f"Task {task.get('task_key')} must have a key and one kind of task.")
        if task.get("environment_key") and task["environment_key"] not in declared:
            key = task["environment_key"]
            raise invalid(f"environment_key {key} of task {task['task_key']} is not declared.")
        path = (task.get("notebook_task") or {}).get("notebook_path", "/")
        if not str(path).startswith("/"):
            raise invalid(f"Only absolute paths (starting with '/') are supported; got {path}.")


def _completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what the service adds by itself, so that what is read differs from what was sent."""
    result = copy.deepcopy(dict(settings))
    result.setdefault("email_notifications", {})
    result.setdefault("webhook_notifications", {})
    result.setdefault("timeout_seconds", 0)
    result.setdefault("format", "MULTI_TASK")
    for task in result.get("tasks", []):
        task.setdefault("run_if", "ALL_SUCCESS")
        task.setdefault("email_notifications", {})
        task.setdefault("timeout_seconds", 0)
        task.get("depends_on", []).sort(key=lambda dependency: dependency["task_key"])
        if "notebook_task" in task:
            task["notebook_task"].setdefault("source", "WORKSPACE")
    return result


def _page_of(notebook: str) -> str:
    """A notebook's file as HTML: code and outputs as they stand there."""
    from nbconvert import HTMLExporter
    from nbformat import reads

    exporter: Any = HTMLExporter
    return str(exporter().from_notebook_node(reads(notebook, as_version=4))[0])

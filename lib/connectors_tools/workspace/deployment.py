"""Deploys a bundle to a workspace, and takes it away again: what is to be there against what is remembered.

A deployment is made of steps that can be repeated. Before anything changes, the state says what is about to be done. So the
next deployment after one that died finds the job that was created and not yet remembered, by its tag: it makes no second one.
"""

from __future__ import annotations

import copy
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connectors.ground.errors import Misconfigured, Problem

from ..bundle import Bundle, validate
from ..bundle.configuration import Config
from .client import WorkspaceError, once, refusals
from .files import local_files, make_way, remove, upload
from .settings import (
    MARK,
    check_support,
    fingerprint,
    folder_permissions,
    in_creation_order,
    job_permissions,
    job_settings,
    mark,
    owner_alone,
    with_ids,
)
from .state import JobMemory, State, StateStore

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

_AT_ONCE: Final = 8
_CREATE_SECONDS: Final = 300.0
"""The seconds of tries to create a job while the service does not answer; the SDK's own limit for other calls."""


@dataclass(frozen=True)
class Step:
    """One thing that a deployment does: ``create``, ``change``, ``delete`` or ``upload``, to what, and why."""

    action: str
    what: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.action}  {self.what}" + (f"  ({self.why})" if self.why else "")


@dataclass
class Plan:
    """The changes that a deployment would make. Files by path, jobs by key with the reason."""

    uploads: list[str] = field(default_factory=list)
    removals: list[str] = field(default_factory=list)
    creations: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    deletions: dict[str, str] = field(default_factory=dict)
    folder: bool = False

    def steps(self) -> Iterator[Step]:
        """The steps, files first."""
        yield from (Step("upload", path) for path in self.uploads)
        yield from (Step("create", f"job {key}", why) for key, why in self.creations.items())
        yield from (Step("change", f"job {key}", why) for key, why in self.changes.items())
        yield from (Step("change", "permissions of the files") for _ in range(self.folder))
        yield from (Step("delete", f"job {key}", why) for key, why in self.deletions.items())
        yield from (Step("delete", path) for path in self.removals)

    @property
    def is_empty(self) -> bool:
        return next(self.steps(), None) is None

    def __str__(self) -> str:
        jobs = f"{len(self.creations)} jobs to create, {len(self.changes)} to change, {len(self.deletions)} to delete"
        return f"{jobs}; {len(self.uploads)} files to upload, {len(self.removals)} to delete"


class Deployment:
    """The deployment of one bundle, in one target, by one user. ``say`` is told of each step as it is done."""

    def __init__(self, client: WorkspaceClient, bundle: Bundle, user: str, say: Callable[[str], None]) -> None:
        self._client, self._bundle, self._user, self._say = client, bundle, user, say
        workspace = bundle.config["workspace"]
        self._files, self._root = str(workspace["file_path"]), str(workspace["root_path"])
        self.store = StateStore(client, str(workspace["state_path"]), user)
        self._settings = {key: job_settings(bundle, job, self.store.path) for key, job in bundle.jobs.items()}
        self._permissions = {key: job_permissions(bundle, job, user) for key, job in bundle.jobs.items()}
        self._hashes = local_files(bundle)
        self._single = once(client)

    def check(self) -> None:
        """Raises :class:`Misconfigured` with all that is wrong with the bundle, or that this command cannot deploy."""
        findings = validate(self._bundle)
        findings.add(check_support(self._bundle, self._hashes))
        findings.enforce(f"target {self._bundle.target} of the bundle")

    def plan(self) -> Plan:
        """The changes that :meth:`deploy` would make now."""
        return self._plan(self.store.read())

    def deploy(self, *, force_lock: bool = False) -> Plan:
        """Makes the workspace what the bundle says; returns what was changed."""
        with self.store.locked(force=force_lock):
            state = self.store.read()
            self._adopt_pending(state)
            plan = self._plan(state)
            if not plan.is_empty:
                self._apply(plan, state)
        return plan

    def destroy(self, *, force_lock: bool = False) -> None:
        """Deletes the jobs and all files of the target. Raises :class:`Misconfigured` where nothing is deployed."""
        if not self.store.read().exists:
            text = f"is not deployed: {self.store.path} does not exist."
            raise Misconfigured("the deployment", [Problem(f"target {self._bundle.target}", text)])
        with self.store.locked(force=force_lock):
            state = self.store.read()
            self._adopt_pending(state)
            for key in list(state.jobs):
                self._delete_job(state, key)
            outside = [self._files, posixpath.dirname(self.store.path)]
            for folder in [*(path for path in outside if not path.startswith(self._root + "/")), self._root]:
                self._delete_folder(folder)
            self._say(f"delete  {self._root}")

    def _plan(self, state: State) -> Plan:
        known = self._hashes if self._has_files(state) else {}
        uploaded = state.files if known else {}
        plan = Plan(
            uploads=[path for path, text in self._hashes.items() if uploaded.get(path) != text],
            removals=[path for path in uploaded if path not in self._hashes],
            folder=state.folder != self._folder_fingerprint(),
        )
        documents = self._documents(state)
        ids = {key: job.id for key, job in state.jobs.items() if documents.get(key) is not None}
        for key, settings in self._settings.items():
            job = state.jobs.get(key)
            if job is None:
                plan.creations[key] = settings["name"]
            elif documents[key] is None:
                plan.creations[key] = f"job {job.id} is gone"
            elif reason := self._reason(key, with_ids(settings, ids), job, documents[key] or {}):
                plan.changes[key] = reason
        plan.deletions = {
            key: f"job {job.id}, {job.name}" for key, job in state.jobs.items() if key not in self._settings
        }
        return plan

    def _reason(self, key: str, settings: Config, job: JobMemory, document: Mapping[str, Any]) -> str:
        """Why a job is to be changed; empty where it is as it should be."""
        if job.sent != fingerprint(settings):
            return "its settings have changed"
        if job.seen != fingerprint(document):
            return "somebody has changed it in the workspace"
        return "its permissions have changed" if job.permissions != _mark_of(self._permissions[key]) else ""

    def _documents(self, state: State) -> dict[str, Mapping[str, Any] | None]:
        """The settings that the service has of each remembered job, by key; ``None`` for one that is gone."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(state.jobs, pool.map(self._document, state.jobs.values()), strict=True))

    def _document(self, job: JobMemory) -> Mapping[str, Any] | None:
        from databricks.sdk.errors import NotFound

        with refusals(f"job {job.id}"):
            try:
                settings = self._client.jobs.get(job.id).settings
            except NotFound:
                return None
        return settings.as_dict() if settings else {}

    def _has_files(self, state: State) -> bool:
        from databricks.sdk.errors import NotFound

        if not state.files:
            return False
        with refusals(self._files):
            try:
                self._client.workspace.get_status(self._files)
            except NotFound:
                return False
        return True

    def _apply(self, plan: Plan, state: State) -> None:
        """Carries the plan out. The state is written before, and also after a failure: what was done is not done again."""
        self._announce(plan, state)
        try:
            self._carry_out(plan, state)
        except BaseException:
            with suppress(Exception):
                self.store.write(state)
            raise
        self.store.write(state)

    def _announce(self, plan: Plan, state: State) -> None:
        state.pending = {key: self._settings[key]["name"] for key in plan.creations}
        state.files |= dict.fromkeys(plan.uploads, "")
        for key in plan.creations:
            state.jobs.pop(key, None)
        self.store.write(state)

    def _carry_out(self, plan: Plan, state: State) -> None:
        self._upload(plan, state)
        for key in in_creation_order(self._settings):
            if key in plan.creations:
                self._create(state, key)
            elif key in plan.changes:
                self._change(state, key)
        self._change_references(plan, state)
        for key in plan.deletions:
            self._delete_job(state, key)
        if plan.removals:
            remove(self._client, self._files, [path for path in plan.removals if path in state.files])
            state.files = {path: text for path, text in state.files.items() if path not in plan.removals}
            self._say(f"delete  {len(plan.removals)} files")
        if plan.folder:
            permissions = folder_permissions(self._bundle, self._user) or owner_alone(self._user, "CAN_MANAGE")
            self._grant("directories", self._folder_id(), permissions)
            state.folder = self._folder_fingerprint()

    def _upload(self, plan: Plan, state: State) -> None:
        if not plan.uploads:
            return

        def done(path: str) -> None:
            state.files[path] = self._hashes[path]

        for path in make_way(self._client, self._files, plan.removals, plan.uploads):
            del state.files[path]
        upload(self._client, self._bundle.root, self._files, plan.uploads, done)
        self._say(f"upload  {len(plan.uploads)} files to {self._files}")

    def _change_references(self, plan: Plan, state: State) -> None:
        """Jobs that name the id of a job which has just got a new one."""
        ids = {key: job.id for key, job in state.jobs.items()}
        for key, settings in self._settings.items():
            is_new = key in plan.creations or key in plan.changes
            if not is_new and state.jobs[key].sent != fingerprint(with_ids(settings, ids)):
                self._change(state, key)

    def _create(self, state: State, key: str) -> None:
        settings = self._with_ids(state, key)
        number = self._created(key, settings)
        state.jobs[key] = JobMemory(number, settings["name"])
        state.pending.pop(key, None)
        self._say(f"create  job {key}  {self.link(number)}")
        self._finish(state, key, settings)

    def _change(self, state: State, key: str) -> None:
        settings, job = self._with_ids(state, key), state.jobs[key]
        with refusals(f"job {key}"):
            self._client.api_client.do("POST", "/api/2.2/jobs/reset", body={"job_id": job.id, "new_settings": settings})
        job.name = settings["name"]
        self._say(f"change  job {key}  {self.link(job.id)}")
        self._finish(state, key, settings)

    def _finish(self, state: State, key: str, settings: Config) -> None:
        """Permissions, and what the service has made of the settings: a later difference is somebody else's."""
        job, permissions = state.jobs[key], self._permissions[key]
        if job.permissions != _mark_of(permissions):
            self._grant("jobs", str(job.id), permissions or owner_alone(self._user, "IS_OWNER"))
        job.permissions = _mark_of(permissions)
        job.seen, job.sent = fingerprint(self._document(job)), fingerprint(settings)

    def _created(self, key: str, settings: Config) -> int:
        """The id of the new job. An answer that is lost is no second job: the job is looked for by its tag first."""
        from databricks.sdk.errors import InternalError

        end = time.monotonic() + _CREATE_SECONDS
        while True:
            with refusals(f"job {key}"):
                try:
                    answer: Any = self._single.api_client.do("POST", "/api/2.2/jobs/create", body=settings)
                    return int(answer["job_id"])
                except (TimeoutError, InternalError) as unanswered:
                    failure = unanswered.__cause__ or unanswered
            if (number := self._lookup(key, settings["name"])) is not None:
                return number
            if isinstance(failure, InternalError) or time.monotonic() > end:
                text = f"the service has not created the job: {failure}"
                raise WorkspaceError(text, connector="the workspace", where=f"job {key}")

    def _lookup(self, key: str, name: str) -> int | None:
        """The job of this name that an earlier call has created for this target and key."""
        tag = mark(self._bundle, key)
        with refusals(f"job {key}"):
            jobs = [job for job in self._client.jobs.list(name=name) if job.settings and job.job_id]
        return next(
            (job.job_id for job in jobs if job.settings and (job.settings.tags or {}).get(MARK) == tag), None
        )

    def _adopt_pending(self, state: State) -> None:
        """Takes over jobs that a deployment which died has created without remembering them."""
        every = {key: str(settings["name"]) for key, settings in self._settings.items()}
        names = state.pending if state.exists else every
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            numbers = pool.map(lambda pair: self._lookup(*pair), names.items())
        for (key, name), number in zip(names.items(), numbers, strict=True):
            if number is not None and key not in state.jobs:
                state.jobs[key] = JobMemory(number, name)
                self._say(f"found   job {key}  {self.link(number)}, which an earlier deployment has created")
        state.pending = {}

    def _delete_job(self, state: State, key: str) -> None:
        from databricks.sdk.errors import NotFound

        with refusals(f"job {key}"), suppress(NotFound):
            self._client.jobs.delete(state.jobs[key].id)
        self._say(f"delete  job {key}, {state.jobs[key].name}")
        del state.jobs[key]

    def _delete_folder(self, folder: str) -> None:
        from databricks.sdk.errors import NotFound

        with refusals(folder), suppress(NotFound):
            self._client.workspace.delete(folder, recursive=True)

    def _grant(self, kind: str, number: str, entries: list[dict[str, Any]]) -> None:
        with refusals(f"the permissions of {kind}/{number}"):
            path = f"/api/2.0/permissions/{kind}/{number}"
            self._client.api_client.do("PUT", path, body={"access_control_list": entries})

    def _folder_id(self) -> str:
        with refusals(self._root):
            return str(self._client.workspace.get_status(self._root).object_id)

    def _folder_fingerprint(self) -> str:
        return _mark_of(folder_permissions(self._bundle, self._user))

    def _with_ids(self, state: State, key: str) -> Config:
        ids = {other: job.id for other, job in state.jobs.items()}
        settings: Config = with_ids(copy.deepcopy(self._settings[key]), ids)
        return settings

    def link(self, number: int) -> str:
        """The page of a job."""
        return f"{self._client.config.host}/jobs/{number}"


def _mark_of(permissions: list[dict[str, Any]]) -> str:
    """The fingerprint of permissions that the state remembers; empty where the bundle says none."""
    return fingerprint(permissions) if permissions else ""

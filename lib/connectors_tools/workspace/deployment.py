"""Deploys a bundle to a workspace, and takes it away again: what is to be there against what is remembered.

A deployment is made of steps that can be repeated. Before anything changes, the state says what is about to be done. So the
next deployment after one that died finds the job or pipeline that was created and not yet remembered, by its tag: it makes no
second one.
"""

from __future__ import annotations

import copy
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import InternalError, NotFound

from connectors.ground.errors import Misconfigured, Problem

from ..bundle import Bundle, validate
from ..bundle.configuration import Config, as_text
from .client import WorkspaceError, once, refusals
from .files import local_files, make_way, remove, upload
from .services import Jobs, Pipelines, Service
from .settings import (
    MARK,
    check_support,
    fingerprint,
    folder_permissions,
    in_creation_order,
    job_settings,
    mark,
    owner_alone,
    permissions,
    pipeline_settings,
    with_ids,
)
from .state import Memory, State, StateStore

_AT_ONCE: Final = 8
_CREATE_SECONDS: Final = 300.0
"""The seconds of tries to create a resource while the service does not answer; the SDK's own limit for other calls."""
_SERVICES: Final[Mapping[str, Service]] = {"job": Jobs(), "pipeline": Pipelines()}


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
    """The changes that a deployment would make. Files by path; ``job k`` and ``pipeline k`` with the reason."""

    uploads: list[str] = field(default_factory=list)
    removals: list[str] = field(default_factory=list)
    creations: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    deletions: dict[str, str] = field(default_factory=dict)
    folder: bool = False

    def steps(self) -> Iterator[Step]:
        """The steps, files first."""
        yield from (Step("upload", path) for path in self.uploads)
        yield from (Step("create", what, why) for what, why in self.creations.items())
        yield from (Step("change", what, why) for what, why in self.changes.items())
        yield from (Step("change", "permissions of the files") for _ in range(self.folder))
        yield from (Step("delete", what, why) for what, why in self.deletions.items())
        yield from (Step("delete", path) for path in self.removals)

    @property
    def is_empty(self) -> bool:
        return next(self.steps(), None) is None

    def __str__(self) -> str:
        kinds = {_kind(what) for what in (*self.creations, *self.changes, *self.deletions)} or {"job"}
        creations = f"{len(self.creations)} {' and '.join(f'{kind}s' for kind in sorted(kinds))} to create"
        resources = f"{creations}, {len(self.changes)} to change, {len(self.deletions)} to delete"
        return f"{resources}; {len(self.uploads)} files to upload, {len(self.removals)} to delete"


class Deployment:
    """The deployment of one bundle, in one target, by one user. ``say`` is told of each step as it is done."""

    def __init__(self, client: WorkspaceClient, bundle: Bundle, user: str, say: Callable[[str], None]) -> None:
        self._client, self._bundle, self._user, self._say = client, bundle, user, say
        workspace = bundle.config["workspace"]
        self._files, self._root = str(workspace["file_path"]), str(workspace["root_path"])
        self.store = StateStore(client, str(workspace["state_path"]), user)
        metadata, jobs, pipelines = self.store.path, bundle.jobs, bundle.pipelines
        self._settings = {f"pipeline {key}": pipeline_settings(bundle, key, metadata) for key in pipelines}
        self._settings |= {f"job {key}": job_settings(bundle, job, metadata) for key, job in jobs.items()}
        configs = {f"pipeline {key}": config for key, config in pipelines.items()}
        configs |= {f"job {key}": job.config for key, job in jobs.items()}
        self._permissions = {what: permissions(bundle, _kind(what), config, user) for what, config in configs.items()}
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
        """Deletes the jobs, pipelines and all files of the target. Raises :class:`Misconfigured` where nothing is deployed.

        The tables of a pipeline go with it, as :meth:`cascades` says.
        """
        if not self.store.read().exists:
            text = f"is not deployed: {self.store.path} does not exist."
            raise Misconfigured("the deployment", [Problem(f"target {self._bundle.target}", text)])
        with self.store.locked(force=force_lock):
            state = self.store.read()
            self._adopt_pending(state)
            for what in sorted(state.resources):  # jobs before the pipelines that they run
                self._delete(state, what, cascade=self.cascades(what))
            outside = [self._files, posixpath.dirname(self.store.path)]
            for folder in [*(path for path in outside if not path.startswith(self._root + "/")), self._root]:
                self._delete_folder(folder)
            self._say(f"delete  {self._root}")

    def cascades(self, what: str) -> bool:
        """True for a pipeline whose tables go by :meth:`destroy`: one of the bundle, without ``cascade_on_destroy: false``."""
        kind, _, key = what.partition(" ")
        config = self._bundle.pipelines.get(key) if kind == "pipeline" else None
        return config is not None and as_text(config.get("cascade_on_destroy")) != "false"

    def _follow_keys(self, state: State) -> None:
        """Keeps a pipeline, with its tables, whose key alone has changed: the service has no second one of its name."""
        new, old = (self._settings.keys() - state.resources, state.resources.keys() - self._settings)
        names = {self._settings[what]["name"]: what for what in new if _kind(what) == "pipeline"}
        for what in filter(lambda what: _kind(what) == "pipeline", old):
            if successor := names.pop(state.resources[what].name, None):
                state.resources[successor] = state.resources.pop(what)

    def _plan(self, state: State) -> Plan:
        self._follow_keys(state)
        known = self._hashes if self._has_files(state) else {}
        uploaded = state.files if known else {}
        plan = Plan(
            uploads=[path for path, text in self._hashes.items() if uploaded.get(path) != text],
            removals=[path for path in uploaded if path not in self._hashes],
            folder=state.folder != self._folder_fingerprint(),
        )
        documents = self._documents(state)
        ids = {what: memory.id for what, memory in state.resources.items() if documents.get(what) is not None}
        for what, settings in self._settings.items():
            memory = state.resources.get(what)
            if memory is None:
                plan.creations[what] = settings["name"]
            elif documents[what] is None:
                plan.creations[what] = f"{_kind(what)} {memory.id} is gone"
            elif reason := self._reason(what, with_ids(settings, ids), memory, documents[what] or {}):
                plan.changes[what] = reason
        gone = {what: memory for what, memory in state.resources.items() if what not in self._settings}
        plan.deletions = {what: f"{_kind(what)} {memory.id}, {memory.name}" for what, memory in gone.items()}
        return plan

    def _reason(self, what: str, settings: Config, memory: Memory, document: Mapping[str, Any]) -> str:
        """Why a resource is to be changed; empty where it is as it should be."""
        if memory.sent != fingerprint(settings):
            return "its settings have changed"
        if memory.seen != fingerprint(document):
            return "somebody has changed it in the workspace"
        return "its permissions have changed" if memory.permissions != _mark_of(self._permissions[what]) else ""

    def _documents(self, state: State) -> dict[str, Mapping[str, Any] | None]:
        """The settings that its service has of each remembered resource; ``None`` for one that is gone."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            documents = pool.map(self._document, state.resources, state.resources.values())
            return dict(zip(state.resources, documents, strict=True))

    def _document(self, what: str, memory: Memory) -> Mapping[str, Any] | None:
        with refusals(what):
            try:
                return self._service(what).settings(self._client, memory.id)
            except NotFound:
                return None

    def _has_files(self, state: State) -> bool:
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
        state.pending = {what: self._settings[what]["name"] for what in plan.creations}
        state.files |= dict.fromkeys(plan.uploads, "")
        for what in plan.creations:
            state.resources.pop(what, None)
        self.store.write(state)

    def _carry_out(self, plan: Plan, state: State) -> None:
        self._upload(plan, state)
        for what in in_creation_order(self._settings):
            if what in plan.creations:
                self._create(state, what)
            elif what in plan.changes:
                self._change(state, what)
        self._change_references(plan, state)
        for what in sorted(plan.deletions):
            self._delete(state, what)
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
        """Resources that name the id of one which has just got a new one."""
        ids = {what: memory.id for what, memory in state.resources.items()}
        for what, settings in self._settings.items():
            is_new = what in plan.creations or what in plan.changes
            if not is_new and state.resources[what].sent != fingerprint(with_ids(settings, ids)):
                self._change(state, what)

    def _create(self, state: State, what: str) -> None:
        settings = self._with_ids(state, what)
        number = self._created(what, settings)
        state.resources[what] = Memory(number, settings["name"])
        state.pending.pop(what, None)
        self._say(f"create  {what}  {self._link(what, number)}")
        self._finish(state, what, settings)

    def _change(self, state: State, what: str) -> None:
        settings, memory = self._with_ids(state, what), state.resources[what]
        with refusals(what):
            self._service(what).change(self._client, memory.id, settings)
        memory.name = settings["name"]
        self._say(f"change  {what}  {self._link(what, memory.id)}")
        self._finish(state, what, settings)

    def _finish(self, state: State, what: str, settings: Config) -> None:
        """Permissions, and what the service has made of the settings: a later difference is somebody else's."""
        memory, entries = state.resources[what], self._permissions[what]
        if memory.permissions != _mark_of(entries):
            self._grant(f"{_kind(what)}s", str(memory.id), entries or owner_alone(self._user, "IS_OWNER"))
        memory.permissions = _mark_of(entries)
        memory.seen, memory.sent = fingerprint(self._document(what, memory)), fingerprint(settings)

    def _created(self, what: str, settings: Config) -> int | str:
        """The id of the new resource. An answer that is lost makes no second one: it is looked for by its tag first."""
        end = time.monotonic() + _CREATE_SECONDS
        while True:
            with refusals(what):
                try:
                    return self._service(what).create(self._single, settings)
                except (TimeoutError, InternalError) as unanswered:
                    failure = unanswered.__cause__ or unanswered
            if (number := self._lookup(what, settings["name"])) is not None:
                return number
            if isinstance(failure, InternalError) or time.monotonic() > end:
                text = f"the service has not created the {_kind(what)}: {failure}"
                raise WorkspaceError(text, connector="the workspace", where=what)

    def _lookup(self, what: str, name: str) -> int | str | None:
        """The resource of this name that an earlier call has created for this target and key."""
        tag = mark(self._bundle, what.partition(" ")[2])
        with refusals(what):
            resources: list[tuple[int | str, Config]] = [*self._service(what).named(self._client, name)]
        return next((number for number, settings in resources if (settings.get("tags") or {}).get(MARK) == tag), None)

    def _adopt_pending(self, state: State) -> None:
        """Takes over what a deployment which died has created without remembering it."""
        every = {what: str(settings["name"]) for what, settings in self._settings.items()}
        names = state.pending if state.exists else every
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            numbers = pool.map(lambda pair: self._lookup(*pair), names.items())
        for (what, name), number in zip(names.items(), numbers, strict=True):
            if number is not None and what not in state.resources:
                state.resources[what] = Memory(number, name)
                self._say(f"found   {what}  {self._link(what, number)}, which an earlier deployment has created")
        state.pending = {}

    def _delete(self, state: State, what: str, *, cascade: bool = False) -> None:
        """Deletes a resource; with ``cascade`` also the tables of a pipeline, of which nobody was asked otherwise."""
        memory = state.resources[what]
        with refusals(what), suppress(NotFound):
            self._service(what).delete(self._client, memory.id, cascade=cascade)
        self._say(f"delete  {what}, {memory.name}")
        del state.resources[what]

    def _delete_folder(self, folder: str) -> None:
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

    def _with_ids(self, state: State, what: str) -> Config:
        ids = {other: memory.id for other, memory in state.resources.items()}
        settings: Config = with_ids(copy.deepcopy(self._settings[what]), ids)
        return settings

    def _link(self, what: str, number: int | str) -> str:
        """The page of a resource."""
        return f"{self._client.config.host}/{_kind(what)}s/{number}"

    def _service(self, what: str) -> Service:
        return _SERVICES[_kind(what)]


def _kind(what: str) -> str:
    """The kind of a resource, ``job`` or ``pipeline``."""
    return what.partition(" ")[0]


def _mark_of(permissions: list[dict[str, Any]]) -> str:
    """The fingerprint of permissions that the state remembers; empty where the bundle says none."""
    return fingerprint(permissions) if permissions else ""

"""The memory of a deployment in the workspace, and the lock that lets one deployment at a time change it.

All of it lies in ``state_path``, where the Databricks CLI keeps its own: ``connectors.json`` is the memory, ``deploy.lock`` the
lock, in the CLI's form, so that it holds for both. Each of the two refuses a target that the other one deployed: this
module by the CLI's files, the CLI by ``resources.json``, which says that it needs a feature that no CLI has.
"""

from __future__ import annotations

import json
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import AlreadyExists, BadRequest, NotFound, ResourceAlreadyExists

from connectors.ground.errors import Misconfigured, Problem, StateError

from .client import refusals, write_file

_STATE: Final = "connectors.json"
_GUARD: Final = "resources.json"
_LOCK: Final = "deploy.lock"
_OF_CLI: Final = (_GUARD, "terraform.tfstate", "deployment.json")
_VERSION: Final = 1
_FEATURE: Final = "deployed by `python -m connectors deploy`, which alone can change or destroy this target"


@dataclass
class Memory:
    """What was deployed: hashes of what was ``sent``, what the service made of it (``seen``), and ``permissions``."""

    id: int | str
    name: str
    sent: str = ""
    seen: str = ""
    permissions: str = ""


@dataclass
class State:
    """What is in the workspace. ``files`` are hashes by path below ``file_path``; an empty one was being uploaded.

    ``resources`` are jobs and pipelines by kind and key, ``job k`` and ``pipeline k``; ``pending`` are the names of those that
    were about to be created.
    """

    deployment: str = ""
    sequence: int = 0
    by: str = ""
    at: str = ""
    files: dict[str, str] = field(default_factory=dict)
    resources: dict[str, Memory] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    folder: str = ""

    @property
    def exists(self) -> bool:
        """True where something was deployed, or was about to be."""
        return self.sequence > 0

    @property
    def jobs(self) -> dict[str, int]:
        """The ids of the jobs by key."""
        jobs = {what: memory for what, memory in self.resources.items() if what.startswith("job ")}
        return {what.removeprefix("job "): int(memory.id) for what, memory in jobs.items()}


class StateStore:
    """The state of one target, in ``folder`` of the workspace; ``user`` is named in the lock."""

    def __init__(self, client: WorkspaceClient, folder: str, user: str) -> None:
        self._client, self._folder, self._user = client, folder, user

    @property
    def path(self) -> str:
        """The file that holds the state."""
        return posixpath.join(self._folder, _STATE)

    def read(self) -> State:
        """The state, an empty one where nothing was deployed. Raises :class:`Misconfigured` where the CLI has deployed."""
        state = self.peek()
        if not state.exists:
            self._refuse_other_deployer()
        return state

    def peek(self) -> State:
        """The state without a look at who else has deployed: empty where this library has not."""
        content = self._read(_STATE)
        if content is None:
            return State()
        try:
            document = json.loads(content)
            version = document.pop("version")
        except (ValueError, KeyError):
            raise StateError(f"{self.path} cannot be read: it is damaged.", connector="the workspace") from None
        if version != _VERSION:
            text = f"{self.path} has version {version}, which this library does not know."
            raise StateError(
                text, connector="the workspace", way_out="take the newer version of the library that wrote it."
            )
        resources = {what: Memory(**memory) for what, memory in document.pop("resources").items()}
        return State(**document, resources=resources)

    def write(self, state: State) -> None:
        """Keeps ``state``; the first time also the file by which the CLI refuses this target."""
        if not state.exists:
            guard = {
                "state_version": 3,
                "features": {_FEATURE: {}},
                "lineage": str(uuid.uuid4()),
                "serial": 1,
                "state": {},
            }
            self._write(_GUARD, guard)
        state.sequence += 1
        state.by, state.at = self._user, datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._write(_STATE, {"version": _VERSION, **asdict(state)})

    @contextmanager
    def locked(self, *, force: bool = False) -> Iterator[None]:
        """Holds the lock; ``force`` takes it from whoever has it. Raises :class:`Misconfigured` where somebody has it."""
        number = str(uuid.uuid4())
        now = datetime.now(timezone.utc).isoformat()
        lock = {"ID": number, "AcquisitionTime": now, "IsForced": force, "User": self._user}
        self._take(lock, force=force)
        try:
            yield
        finally:
            with suppress(Exception):
                holder = self._lock()
                if holder is not None and holder.get("ID") == number:
                    self._client.workspace.delete(posixpath.join(self._folder, _LOCK))

    def _take(self, lock: dict[str, Any], *, force: bool) -> None:
        with refusals(f"the lock in {self._folder}"):
            with suppress(AlreadyExists, BadRequest, ResourceAlreadyExists):  # whose it is, is read below
                self._write(_LOCK, lock, overwrite=force)
            holder = self._lock()
        if holder is None or holder.get("ID") != lock["ID"]:
            who, since = (holder or {}).get("User", "somebody"), (holder or {}).get("AcquisitionTime", "now")
            text = f"is held by {who} since {since}. Wait for that deployment; has it died? Then call this with --force-lock."
            raise Misconfigured("the deployment", [Problem("lock", text)])

    def _lock(self) -> dict[str, Any] | None:
        content = self._read(_LOCK)
        try:
            lock = json.loads(content or b"null")
        except ValueError:
            lock = None
        return lock if isinstance(lock, dict) else None

    def _refuse_other_deployer(self) -> None:
        for name in _OF_CLI:
            content = self._read(name)
            if content is not None and _FEATURE.encode() not in content:
                text = (
                    f"was deployed by the Databricks CLI: {posixpath.join(self._folder, name)} is its state. "
                    "Deploy it by the CLI, or remove it by `databricks bundle destroy` first."
                )
                raise Misconfigured("the deployment", [Problem("target", text)])

    def _read(self, name: str) -> bytes | None:
        path = posixpath.join(self._folder, name)
        with refusals(f"reading {path}"):
            try:
                with self._client.workspace.download(path) as file:
                    return file.read()
            except NotFound:
                return None

    def _write(self, name: str, content: dict[str, Any], *, overwrite: bool = True) -> None:
        path, text = posixpath.join(self._folder, name), json.dumps(content, indent=1, sort_keys=True).encode()
        try:
            write_file(self._client, path, text, overwrite=overwrite)
        except NotFound:  # the folder
            self._client.workspace.mkdirs(self._folder)
            write_file(self._client, path, text, overwrite=overwrite)

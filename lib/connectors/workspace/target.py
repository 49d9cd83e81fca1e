"""One target of the bundle in its workspace: the client that is logged in, and the bundle as that user sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..bundle import Bundle, load
from ..core.errors import Misconfigured, Problem
from .client import connect, refusals, user_of
from .state import StateStore

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient


@dataclass(frozen=True)
class Target:
    """A ``bundle`` resolved for ``user``, and the ``client`` of the workspace where that user is logged in."""

    client: WorkspaceClient
    bundle: Bundle
    user: str

    def job_id(self, key: str) -> int:
        """The id of a deployed job, whoever has deployed it. Raises :class:`Misconfigured` where it is not deployed."""
        job = self.bundle.job(key)
        folder = str(self.bundle.config["workspace"]["state_path"])
        remembered = StateStore(self.client, folder, self.user).peek().jobs
        if key in remembered:
            return remembered[key].id
        with refusals(f"job {key}"):
            for other in self.client.jobs.list(name=job.name):
                deployment = other.settings.deployment if other.settings else None
                if deployment and (deployment.metadata_file_path or "").startswith(folder + "/") and other.job_id:
                    return other.job_id
        text = f"is not deployed to target {self.bundle.target}; python -m connectors deploy -t {self.bundle.target}"
        raise Misconfigured("the run", [Problem(f"job {key}", text)])


def open_target(folder: Path, name: str | None, variables: Mapping[str, str]) -> Target:
    """Logs in to the workspace of a target. Raises :class:`Misconfigured` where that cannot be done."""
    local = load(folder, name, variables)
    local.findings.enforce("the bundle")
    client = connect(local)
    user = user_of(client)
    bundle = load(folder, name, variables, user)
    return Target(client, bundle, user)

"""One target of the bundle in its workspace: the client that is logged in, and the bundle as that user sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from databricks.sdk import WorkspaceClient

from connectors.ground.errors import Misconfigured, Problem

from ..bundle import Bundle, Findings, load
from .client import connect, refusals, user_of
from .state import State, StateStore


@dataclass(frozen=True)
class Target:
    """A ``bundle`` resolved for ``user``, and the ``client`` of the workspace where that user is logged in."""

    client: WorkspaceClient
    bundle: Bundle
    user: str

    @property
    def state_folder(self) -> str:
        """The folder where a deployment, by whomever, keeps its state."""
        return str(self.bundle.config["workspace"]["state_path"])

    def state(self) -> State:
        """The state of what this library has deployed; empty where it has deployed nothing."""
        return StateStore(self.client, self.state_folder, self.user).peek()

    def job_id(self, key: str) -> int:
        """The id of a deployed job, whoever has deployed it. Raises :class:`Misconfigured` where it is not deployed."""
        self.bundle.job(key)
        numbers = self.job_ids([key])
        if key not in numbers:
            text = f"is not deployed to target {self.bundle.target}; python -m connectors deploy -t {self.bundle.target}"
            raise Misconfigured("the run", [Problem(f"job {key}", text)])
        return numbers[key]

    def job_ids(self, keys: Iterable[str]) -> dict[str, int]:
        """The ids of those jobs that are deployed: from the state, else those of that name which the CLI has deployed here."""
        state = self.state()
        if state.exists:
            return {key: state.jobs[key] for key in keys if key in state.jobs}
        numbers = {key: self._named(self.bundle.jobs[key].name) for key in keys}
        return {key: number for key, number in numbers.items() if number is not None}

    def _named(self, name: str) -> int | None:
        with refusals(f"job {name}"):
            for job in self.client.jobs.list(name=name):
                deployment = job.settings.deployment if job.settings else None
                if deployment and (deployment.metadata_file_path or "").startswith(self.state_folder + "/"):
                    return job.job_id
        return None


def open_target(folder: Path, name: str | None, variables: Mapping[str, str], *, every_job: bool = False) -> Target:
    """Logs in to the workspace of a target. Raises :class:`Misconfigured` where that cannot be done.

    With ``every_job`` it also raises for a job whose configuration is wrong.
    """
    local = load(folder, name, variables)
    findings = Findings(list(local.findings.problems))
    for job in local.jobs.values() if every_job else ():
        findings.add(job.findings)
    findings.enforce("the bundle")
    client = connect(local)
    user = user_of(client)
    bundle = load(folder, name, variables, user)
    return Target(client, bundle, user)

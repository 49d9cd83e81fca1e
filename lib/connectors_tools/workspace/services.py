"""The services that hold what a bundle defines, jobs and pipelines, as a deployment calls them.

Settings go as they are: what a service knows and this SDK does not arrives all the same. The calls raise the SDK's errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from databricks.sdk import WorkspaceClient

from ..bundle.configuration import Config


class Jobs:
    """The Jobs service, version 2.2."""

    def create(self, client: WorkspaceClient, settings: Config) -> int:
        """Creates a job and returns its id."""
        answer: Any = client.api_client.do("POST", "/api/2.2/jobs/create", body=settings)
        return int(answer["job_id"])

    def change(self, client: WorkspaceClient, number: int | str, settings: Config) -> None:
        """Gives a job other settings, in place of all that it has."""
        client.api_client.do("POST", "/api/2.2/jobs/reset", body={"job_id": number, "new_settings": settings})

    def settings(self, client: WorkspaceClient, number: int | str) -> Config:
        """The settings that the service has of a job; they differ from those that were sent."""
        settings = client.jobs.get(int(number)).settings
        return settings.as_dict() if settings else {}

    def named(self, client: WorkspaceClient, name: str) -> Iterator[tuple[int, Config]]:
        """The jobs of that name, each with its settings."""
        for job in client.jobs.list(name=name):
            if job.settings and job.job_id:
                yield job.job_id, job.settings.as_dict()

    def delete(self, client: WorkspaceClient, number: int | str, *, cascade: bool) -> None:
        """Deletes a job. ``cascade`` is for pipelines: whether their tables go, too."""
        client.jobs.delete(int(number))


class Pipelines:
    """The service of declarative pipelines, called in the same way. It refuses a second pipeline of one name."""

    def create(self, client: WorkspaceClient, settings: Config) -> str:
        answer: Any = client.api_client.do("POST", "/api/2.0/pipelines", body=settings)
        return str(answer["pipeline_id"])

    def change(self, client: WorkspaceClient, number: int | str, settings: Config) -> None:
        client.api_client.do("PUT", f"/api/2.0/pipelines/{number}", body=settings)

    def settings(self, client: WorkspaceClient, number: int | str) -> Config:
        answer: Any = client.api_client.do("GET", f"/api/2.0/pipelines/{number}")
        beside = {name: answer[name] for name in ("parameters", "run_as") if name in answer}  # the rest is its state
        return {**(answer.get("spec") or {}), **beside}

    def named(self, client: WorkspaceClient, name: str) -> Iterator[tuple[str, Config]]:
        pattern = re.sub(r"\W", "_", name)  # any character each: the service does not say how to escape one
        for pipeline in client.pipelines.list_pipelines(filter=f"name LIKE '{pattern}'", max_results=100):
            if pipeline.name == name and pipeline.pipeline_id:
                yield pipeline.pipeline_id, self.settings(client, pipeline.pipeline_id)

    def delete(self, client: WorkspaceClient, number: int | str, *, cascade: bool) -> None:
        client.api_client.do("DELETE", f"/api/2.0/pipelines/{number}", query={"cascade": cascade})


Service = Jobs | Pipelines

"""A bundle: its jobs in one target, loaded and checked as far as its files alone allow, and listed as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from connectors.ground.errors import Misconfigured, Problem
from connectors.ground.options import masked

from . import model
from .configuration import Config, Findings, choose_target, configuration, did_you_mean, find_root, read
from .model import check_permissions, in_order
from .resources import jobs_in, pipelines_in

TOGETHER: Final = "together"
"""The job that runs several pipelines in one session."""


@dataclass(frozen=True)
class Bundle:
    """The bundle in folder ``root`` for one ``target``; ``findings`` hold what is wrong with its files.

    What is wrong with one job is in the findings of that job.
    """

    root: Path
    target: str
    config: Config
    jobs: dict[str, model.Job]
    job_files: dict[str, Path]
    findings: Findings

    @property
    def development(self) -> bool:
        """True for a target of ``mode: development``."""
        return bool(self.config["bundle"].get("mode") == "development")

    @property
    def pipelines(self) -> dict[str, Config]:
        """The configurations of the declarative pipelines, by key."""
        return pipelines_in(self.config)

    @property
    def name_prefix(self) -> str:
        """The prefix of the names of jobs and pipelines: the target's preset, else the user's mark in a development target."""
        return _prefix(self.config)

    def job(self, key: str) -> model.Job:
        """The job of that key. Raises :class:`Misconfigured` with the known ones."""
        if key not in self.jobs:
            known = ", ".join(sorted(self.jobs)) or "none"
            text = f"is no job of this bundle{did_you_mean(key, self.jobs)} Known: {known}."
            raise Misconfigured("the bundle", [Problem(key, text)])
        return self.jobs[key]


def load(
    folder: Path, target: str | None = None, variables: Mapping[str, str] | None = None, user: str | None = None
) -> Bundle:
    """The bundle that ``folder`` lies in.

    ``target``: by default the bundle's default target. ``variables``: values that win over all others. ``user``: the
    user name for ``${workspace.current_user.userName}``, by default this machine's. Raises :class:`Misconfigured` when
    there is no bundle or no such target; everything else that is wrong is in ``findings``, of the bundle or of a job.
    """
    root = find_root(folder.resolve())
    if root is None:
        text = f"is missing: neither {folder.resolve()} nor a folder above it holds one."
        raise Misconfigured("the bundle", [Problem("databricks.yml", text)])
    source = read(root)
    findings = source.findings
    if not source.config.get("targets"):
        findings.enforce("the bundle")
    chosen = choose_target(source.config, target)
    config = configuration(source, chosen, variables or {}, user, findings)
    check_permissions("the bundle", config, findings)
    for key, pipeline in pipelines_in(config).items():
        check_permissions(f"pipeline {key}", pipeline, findings)
    prefix = _prefix(config)
    jobs = {key: model.job(key, job, prefix) for key, job in jobs_in(config).items()}
    return Bundle(root, chosen, config, jobs, source.job_files, findings)


def pipelines_of(bundle: Bundle, names: Sequence[str], parameters: Mapping[str, str] | None = None) -> str:
    """The parameter ``pipelines`` of the job ``together``: the pipelines of these jobs, with the parameters of each.

    ``parameters`` win over those of the jobs that have them. Raises :class:`Misconfigured` for a job that has no pipeline.
    """
    folder = next(task.notebook.parent for task in bundle.job(TOGETHER).tasks.values() if task.notebook)
    entries = []
    for name in names:
        job = bundle.job(name)
        notebook = next((task.notebook for task in job.tasks.values() if task.notebook), None)
        if notebook is None or notebook.parent != folder or name == TOGETHER:
            text = f'names the job "{name}", whose first notebook is no pipeline in {folder.relative_to(bundle.root)}.'
            raise Misconfigured("the run", [Problem("--together", text)])
        own = {parameter: text for parameter, text in (parameters or {}).items() if parameter in job.parameters}
        entries.append({"notebook": notebook.stem, **job.parameters, **own})
    return json.dumps(entries)


def _prefix(config: Config) -> str:
    preset = (config.get("presets") or {}).get("name_prefix")
    marked = f"[dev {config['workspace']['current_user']['short_name']}] "
    return str(preset) if preset is not None else marked if config["bundle"]["mode"] == "development" else ""


def job_facts(bundle: Bundle) -> list[dict[str, Any]]:
    """Each job with its tasks in the order of a run, its parameters with their defaults, and when it is started.

    Secrets are hidden, as on the page of a run: a variable of the command line may be one.
    """
    return [
        {
            "job": job.key,
            "name": job.name,
            "tasks": [task.key for task in (job.tasks.values() if job.findings.problems else in_order(job.tasks))],
            "parameters": {name: masked(name, default) for name, default in job.parameters.items()},
            "schedule": _schedule(bundle, job.config),
        }
        for job in bundle.jobs.values()
    ]


def job_list(bundle: Bundle) -> str:
    """What :func:`job_facts` gives, as a text."""
    return "\n\n".join("\n".join(_job(facts)) for facts in job_facts(bundle)) or "no jobs"


def _job(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{facts['job']}  ({facts['name']})"
    yield f"  tasks       {', '.join(facts['tasks'])}"
    parameters = ", ".join(f"{name}={default}" for name, default in facts["parameters"].items())
    yield f"  parameters  {parameters or 'none'}"
    yield f"  schedule    {facts['schedule'] or 'none'}"


def _schedule(bundle: Bundle, config: dict[str, Any]) -> str | None:
    schedule, trigger, continuous = (config.get(name) or {} for name in ("schedule", "trigger", "continuous"))
    if schedule:
        when = f"{schedule.get('quartz_cron_expression')} {schedule.get('timezone_id', '')}".strip()
    elif continuous:
        when = "continuous"
    elif trigger:
        when = "when triggered by " + ", ".join(key for key in trigger if key != "pause_status")
    else:
        return None
    status = (schedule or continuous or trigger).get("pause_status")
    paused = status == "PAUSED" or (status is None and bundle.development)
    return f"{when}, paused in target {bundle.target}" if paused else when

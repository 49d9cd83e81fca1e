"""``validate``: every job of a bundle, and what the CLI's own ``bundle validate --strict`` does not see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .checks import check_job
from .findings import Findings, did_you_mean
from .loading import Bundle
from .model import Job


def validate(bundle: Bundle) -> Findings:
    """All problems and notes of the bundle."""
    found = Findings(list(bundle.findings.problems), list(bundle.findings.notes))
    if not bundle.jobs:
        found.problem("resources.jobs", "there is no job in this bundle.")
    _check_workspace(bundle, found)
    _check_sync(bundle, found)
    for job in bundle.jobs.values():
        found.add(check_job(bundle, job))
        _check_pause(bundle, job, found)
        _check_environments(bundle, job, found)
    found.problems = list(dict.fromkeys(found.problems))
    found.notes = list(dict.fromkeys(found.notes))
    return found


def _check_workspace(bundle: Bundle, found: Findings) -> None:
    if bundle.config["workspace"].get("host"):
        found.problem("workspace.host", "stands in the bundle and beats DATABRICKS_HOST of the environment; remove it.")


def _check_pause(bundle: Bundle, job: Job, found: Findings) -> None:
    for trigger in ("schedule", "trigger", "continuous"):
        status = (job.config.get(trigger) or {}).get("pause_status")
        if status == "UNPAUSED" and bundle.development:
            found.problem(
                f"{job.key}.{trigger}",
                "pause_status UNPAUSED stays so in a development target; write none: the target's mode sets it.",
            )


def _check_sync(bundle: Bundle, found: Findings) -> None:
    library = bundle.root / "lib" / "connectors"
    if library.is_dir() and not _synced(bundle, library):
        found.problem("sync.paths", "leaves lib/connectors out, so that notebooks in a workspace do not find it.")
    for job in bundle.jobs.values():
        for task in job.parts:
            if task.notebook is not None and not _synced(bundle, task.notebook):
                found.problem(f"{job.key}.{task.key}", f"{task.notebook.name} lies outside of sync.paths.")


def _synced(bundle: Bundle, path: Path) -> bool:
    paths: list[Any] = (bundle.config.get("sync") or {}).get("paths") or ["."]
    return any(path.resolve().is_relative_to((bundle.root / str(folder)).resolve()) for folder in paths)


def _check_environments(bundle: Bundle, job: Job, found: Findings) -> None:
    declared = [entry for entry in job.config.get("environments") or [] if isinstance(entry, dict)]
    environments = {str(entry.get("environment_key")): entry for entry in declared}
    for task in job.config.get("tasks") or []:
        key = task.get("environment_key") if isinstance(task, dict) else None
        if key is not None and key not in environments:
            where = f"{job.key}.{task.get('task_key')}"
            found.problem(where, f'environment "{key}" is not declared by this job{did_you_mean(key, environments)}')
    folder = bundle.job_files.get(job.key, bundle.root / "x").parent
    for requirements in _requirement_files(environments, folder):
        if not requirements.is_file():
            found.problem(job.key, f"{requirements} does not exist.")
        elif not _synced(bundle, requirements):
            found.problem(job.key, f"{requirements.name} is not uploaded by itself; add it to sync.paths.")


def _requirement_files(environments: dict[str, Any], folder: Path) -> Iterator[Path]:
    for environment in environments.values():
        for line in (environment.get("spec") or {}).get("dependencies") or []:
            match = re.fullmatch(r"-r\s+(\S+)", str(line).strip())
            if match and not match[1].startswith("/"):
                yield (folder / match[1]).resolve()

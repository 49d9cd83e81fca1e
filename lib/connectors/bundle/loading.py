"""A bundle: its jobs in one target, loaded and checked as far as its files alone allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from connectors.core.errors import Misconfigured, Problem

from . import model
from .findings import Findings, did_you_mean
from .graph import check_graph
from .reading import Config, find_root, jobs_in, read
from .target import choose_target, configuration


@dataclass(frozen=True)
class Bundle:
    """The bundle in folder ``root`` for one ``target``; ``findings`` hold what was wrong when it was loaded."""

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
    there is no bundle or no such target; everything else that is wrong is in ``findings``.
    """
    root = find_root(folder.resolve())
    if root is None:
        text = f"is missing: neither {folder.resolve()} nor a folder above it holds one."
        raise Misconfigured("the bundle", [Problem("databricks.yml", text)])
    source = read(root)
    found = source.findings
    if not source.config.get("targets"):
        found.enforce("the bundle")
    chosen = choose_target(source.config, target)
    config = configuration(source, chosen, variables or {}, user, found)
    prefix = _prefix(config)
    jobs = {key: model.job(key, job, prefix, found) for key, job in jobs_in(config).items()}
    for job in jobs.values():
        check_graph(job.key, job.tasks, found)
    return Bundle(root, chosen, config, jobs, source.job_files, found)


def _prefix(config: Config) -> str:
    """What goes before the names of jobs: the target's preset, else the user's mark in a development target."""
    preset = (config.get("presets") or {}).get("name_prefix")
    marked = f"[dev {config['workspace']['current_user']['short_name']}] "
    return str(preset) if preset is not None else marked if config["bundle"]["mode"] == "development" else ""

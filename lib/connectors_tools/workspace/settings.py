"""The jobs and pipelines of a bundle as their services take them: what the Databricks CLI would send for the same files.

Names with their prefix, tags, a paused or unpaused schedule, absolute paths of files, values as text. What the CLI
deploys and this does not is refused by name.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from ..bundle import Bundle, Findings
from ..bundle.configuration import Config, as_text, resource_references
from ..bundle.model import PRINCIPALS, Job
from ..bundle.resources import every_task, library_paths

MARK: Final = "deployment_id"
"""The tag by which a deployment knows a job or a pipeline again that it created without hearing of it."""

_LEVELS: Final = {"job": {"CAN_RUN": "CAN_MANAGE_RUN"}, "pipeline": {}}
_FOLDER_LEVELS: Final = {"CAN_VIEW": "CAN_READ"}
_PATHS_OF_LIBRARIES: Final = ("requirements", "whl", "jar")
_ID: Final = re.compile(r"\$\{resources\.(job|pipeline)s\.([\w-]+)\.id\}")
_BUNDLE_ALONE: Final = ("permissions", "lifecycle", "cascade_on_destroy", "dry_run")
"""Fields of a bundle's resource that its service does not take."""


def check_support(bundle: Bundle, files: Collection[str]) -> Findings:
    """The findings on what a deployment by the SDK cannot do of this bundle, of which it uploads ``files``."""
    findings = Findings()
    for kind in bundle.config.get("resources") or {}:
        if kind not in ("jobs", "pipelines"):
            text = "only jobs and pipelines are deployed by this command; deploy by the Databricks CLI."
            findings.problem(f"resources.{kind}", text)
    if bundle.config.get("artifacts"):
        text = "nothing is built by this command: jobs import lib/ from beside their notebooks. Deploy by the Databricks CLI."
        findings.problem("artifacts", text)
    for key, pipeline in bundle.pipelines.items():
        _check_wheels(bundle, f"{key}.environment", [pipeline.get("environment") or {}], files, findings)
        if pipeline.get("development") and bundle.config["bundle"].get("mode") == "production":
            findings.problem(f"{key}.development", "is true, which a target of mode production cannot have.")
    for job in bundle.jobs.values():
        specs = [environment.get("spec") or {} for environment in job.config.get("environments") or []]
        _check_wheels(bundle, f"{job.key}.environments", specs, files, findings)
        for entry in every_task(job.config):
            where = f"{job.key}.{entry.get('task_key')}"
            for library in entry.get("libraries") or []:
                if isinstance(library, dict) and "*" in str(library.get("whl", "")):
                    text = f"names a file that is built, {library['whl']}; deploy by the Databricks CLI."
                    findings.problem(where, text)
            for path in _files_of(entry):
                if not path.startswith("/") and "://" not in path:
                    text = f"names a file relative to the bundle, {path}; deploy by the Databricks CLI."
                    findings.problem(where, text)
    return findings


def _check_wheels(bundle: Bundle, where: str, specs: list[Any], files: Collection[str], findings: Findings) -> None:
    """Reports the wheels of the bundle that an environment installs and that are not uploaded."""
    lines = [str(line) for spec in specs for line in spec.get("dependencies") or []]
    folder = f"{bundle.config['workspace']['file_path']}/"
    wheels = {line.removeprefix(folder) for line in lines if line.startswith(folder) and line.endswith(".whl")}
    for wheel in sorted(wheels - {*files}):
        text = f"{wheel} is not there, or is not uploaded: build it, and name its folder in sync.include."
        findings.problem(where, text)


def _files_of(entry: Config) -> list[str]:
    """The files of tasks that only the service runs."""
    sql, script, dbt = (entry.get(kind) or {} for kind in ("sql_task", "spark_python_task", "dbt_task"))
    files = [(sql.get("file") or {}).get("path"), script.get("python_file"), dbt.get("project_directory")]
    return [str(path) for path in files if path]


def job_settings(bundle: Bundle, job: Job, metadata: str) -> Config:
    """The settings of a job; ``${resources.jobs.k.id}`` in them stays. ``metadata`` is the file with the deployment's state."""
    settings, presets = _settings(bundle, job.key, job.config, metadata), bundle.config.get("presets") or {}
    settings["name"] = job.name
    settings["max_concurrent_runs"] = _concurrent_runs(bundle, job, presets)
    settings["format"], settings["edit_mode"] = "MULTI_TASK", "UI_LOCKED"
    settings.setdefault("queue", {"enabled": True})
    for name in ("schedule", "trigger", "continuous"):
        if isinstance(settings.get(name), dict):
            settings[name].setdefault("pause_status", _pause_status(bundle, presets))
    folder = bundle.job_files.get(job.key, bundle.root / "x").parent
    for environment in settings.get("environments") or []:
        spec = environment.get("spec") or {}
        if spec.get("dependencies"):
            spec["dependencies"] = [_dependency(bundle, folder, str(line)) for line in spec["dependencies"]]
    settings["tasks"] = sorted(
        (_task(bundle, folder, task) for task in settings["tasks"]), key=lambda task: task["task_key"]
    )
    return settings


def pipeline_settings(bundle: Bundle, key: str, metadata: str) -> Config:
    """The settings of a pipeline, as :func:`job_settings` has those of a job."""
    settings, presets = _settings(bundle, key, bundle.pipelines[key], metadata), bundle.config.get("presets") or {}
    settings["name"] = bundle.name_prefix + str(settings.get("name") or key)
    settings.setdefault("channel", "CURRENT")
    settings.setdefault("edition", "ADVANCED")
    if presets.get("pipelines_development", bundle.development):
        settings["development"] = True
    if _pause_status(bundle, presets) == "PAUSED":
        settings.pop("continuous", None)
    if settings.get("configuration"):
        settings["configuration"] = {name: as_text(value) for name, value in settings["configuration"].items()}
    for entry, name in [*library_paths(settings), (settings, "root_path")]:
        if Path(entry.get(name) or "").is_relative_to(bundle.root):
            entry[name] = uploaded_path(bundle, entry[name])
    for library in settings.get("libraries") or []:
        if path := (library.get("notebook") or {}).get("path"):
            library["notebook"]["path"] = re.sub(r"\.(ipynb|py|sql)$", "", path)
    return settings


def _settings(bundle: Bundle, key: str, config: Config, metadata: str) -> Config:
    """What the settings of jobs and of pipelines have in common."""
    settings: Config = {name: copy.deepcopy(value) for name, value in config.items() if name not in _BUNDLE_ALONE}
    tags = _tags(bundle, bundle.config.get("presets") or {})
    settings["tags"] = {**tags, **(settings.get("tags") or {}), MARK: mark(bundle, key)}
    settings["deployment"] = {"kind": "BUNDLE", "metadata_file_path": metadata}
    if "run_as" in bundle.config:
        settings.setdefault("run_as", bundle.config["run_as"])
    return settings


def permissions(bundle: Bundle, kind: str, config: Config, user: str) -> list[dict[str, Any]]:
    """The permissions of a job or a pipeline, with its owner; empty where the bundle does not say."""
    declared = [*(config.get("permissions") or []), *(bundle.config.get("permissions") or [])]
    if not declared:
        return []
    entries = _access(declared, _LEVELS[kind])
    owners = [entry for entry in entries if entry["permission_level"] == "IS_OWNER"]
    others = [entry for entry in entries if entry.get(_kind_of(user)) != user]
    return others if owners else [*others, *owner_alone(user, "IS_OWNER")]


def folder_permissions(bundle: Bundle, user: str) -> list[dict[str, Any]]:
    """The permissions of the deployed files; empty where the bundle does not say."""
    entries = _access(bundle.config.get("permissions") or [], _FOLDER_LEVELS)
    if entries and not any(entry.get(_kind_of(user)) == user for entry in entries):
        entries += owner_alone(user, "CAN_MANAGE")
    return entries


def owner_alone(user: str, level: str) -> list[dict[str, Any]]:
    """The permissions that nobody but ``user`` has, at this level."""
    return [{_kind_of(user): user, "permission_level": level}]


def mark(bundle: Bundle, key: str) -> str:
    """The mark that names a resource of a target for ever: the same for the same folder of the workspace and the same key."""
    return hashlib.sha256(f"{bundle.config['workspace']['root_path']}\n{key}".encode()).hexdigest()[:20]


def with_ids(value: Any, ids: Mapping[str, int | str], field: str = "") -> Any:
    """``value`` with the id of ``job k`` in place of ``${resources.jobs.k.id}``; that of ``pipeline k`` likewise.

    It is a number where a task runs a job, which the service wants so, and text elsewhere.
    """
    if isinstance(value, dict):
        return {name: with_ids(item, ids, f"{field}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [with_ids(item, ids) for item in value]
    if not isinstance(value, str):
        return value
    text = _ID.sub(lambda match: str(ids.get(f"{match[1]} {match[2]}", match[0])), value)
    return int(text) if field.endswith("run_job_task.job_id") and text.isdigit() else text


def in_creation_order(settings: Mapping[str, Config]) -> list[str]:
    """The resources, each after those whose ids it names."""
    done: dict[str, None] = {}

    def visit(what: str, above: tuple[str, ...]) -> None:
        if what in done or what in above or what not in settings:
            return
        for kind, key in resource_references(json.dumps(settings[what])):
            visit(f"{kind.removesuffix('s')} {key}", (*above, what))
        done[what] = None

    for what in settings:
        visit(what, ())
    return list(done)


def fingerprint(value: Any) -> str:
    """A short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:20]


def uploaded_path(bundle: Bundle, path: str | Path) -> str:
    """The path of a file of this bundle in the workspace."""
    relative = os.path.relpath(path, bundle.root).replace(os.sep, "/")
    return posixpath.normpath(posixpath.join(bundle.config["workspace"]["file_path"], relative))


def _task(bundle: Bundle, folder: Path, task: Config) -> Config:
    for kind in ("notebook_task", "run_job_task"):
        for name in ("base_parameters", "job_parameters"):
            if isinstance((task.get(kind) or {}).get(name), dict):
                task[kind][name] = {key: as_text(value) for key, value in task[kind][name].items()}
    if "notebook_task" in task:
        path = uploaded_path(bundle, task["notebook_task"]["notebook_path"])
        task["notebook_task"]["notebook_path"] = path.removesuffix(Path(path).suffix)
    if isinstance((task.get("for_each_task") or {}).get("task"), dict):
        task["for_each_task"]["task"] = _task(bundle, folder, task["for_each_task"]["task"])
    for name in ("left", "right"):
        if name in (task.get("condition_task") or {}):
            task["condition_task"][name] = as_text(task["condition_task"][name])
    for library in task.get("libraries") or []:
        for name in _PATHS_OF_LIBRARIES:
            if isinstance(library, dict) and str(library.get(name, "")).startswith("."):
                library[name] = uploaded_path(bundle, folder / library[name])
    return task


def _dependency(bundle: Bundle, folder: Path, line: str) -> str:
    match = re.fullmatch(r"-r\s+(\S+)", line.strip())
    if match and not match[1].startswith("/"):
        return f"-r {uploaded_path(bundle, folder / match[1])}"
    return uploaded_path(bundle, folder / line) if line.startswith(("./", "../")) else line


def _concurrent_runs(bundle: Bundle, job: Job, presets: Mapping[str, Any]) -> int:
    declared = job.config.get("max_concurrent_runs") or presets.get("jobs_max_concurrent_runs")
    return int(declared) if declared else 4 if bundle.development else 1


def _tags(bundle: Bundle, presets: Mapping[str, Any]) -> dict[str, str]:
    own = {"dev": bundle.config["workspace"]["current_user"]["short_name"]} if bundle.development else {}
    return {**own, **{name: as_text(value) for name, value in (presets.get("tags") or {}).items()}}


def _pause_status(bundle: Bundle, presets: Mapping[str, Any]) -> str:
    return str(presets.get("trigger_pause_status") or ("PAUSED" if bundle.development else "UNPAUSED"))


def _access(declared: list[Any], levels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Entries of the permissions service; of two for one principal the first counts."""
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in declared:
        name = next(name for name in PRINCIPALS if entry.get(name))
        level = levels.get(entry["level"], entry["level"])
        entries.setdefault((name, entry[name]), {name: entry[name], "permission_level": level})
    return list(entries.values())


def _kind_of(user: str) -> str:
    return "user_name" if "@" in user else "service_principal_name"

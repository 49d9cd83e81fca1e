"""One target of a bundle: its overrides, variables, and workspace paths laid over the configuration."""

from __future__ import annotations

import getpass
import json
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from connectors.core.errors import Misconfigured, Problem

from .findings import Findings, did_you_mean
from .interpolation import Interpolation
from .reading import Config, Source, merge

_MERGED: Final = ("bundle", "workspace", "artifacts", "resources", "sync", "permissions", "presets")
_ITEM_KEYS: Final = {
    "tasks": "task_key",
    "job_clusters": "job_cluster_key",
    "parameters": "name",
    "environments": "environment_key",
}
_IN_ROOT: Final = {"file": "files", "resource": "resources", "artifact": "artifacts", "state": "state"}


def choose_target(config: Config, asked: str | None) -> str:
    """The target's name: ``asked``, else the default one, else the only one. Raises :class:`Misconfigured`."""
    targets: dict[str, Any] = config.get("targets") or {}
    if asked is not None:
        if asked not in targets:
            known = ", ".join(targets) or "none"
            raise _wrong(f'there is no target "{asked}"{did_you_mean(asked, targets)} Known: {known}.')
        return asked
    defaults = [name for name, target in targets.items() if (target or {}).get("default") is True]
    names = list(targets) if len(targets) == 1 else defaults
    if len(names) != 1:
        raise _wrong(f"please name one by -t; known: {', '.join(targets) or 'none'}.")
    return names[0]


def configuration(source: Source, target: str, given: Mapping[str, str], user: str | None, found: Findings) -> Config:
    """The whole configuration of ``target``, every ``${...}`` resolved.

    ``given`` are variables of the command line. ``user`` stands for the workspace's user, by default this machine's.
    """
    config = _overridden(source.config, target)
    config["variables"] = _variables(source, target, given, found)
    config["workspace"] = _workspace(config, user or getpass.getuser())
    resolve = Interpolation(config, found)
    wanted = {key: value for key, value in config.items() if key not in ("targets", "include")}
    return {key: resolve.resolved(value, key) for key, value in wanted.items()}


def _overridden(config: Config, target: str) -> Config:
    chosen: Config = config["targets"][target] or {}
    result = {**config}
    for key in _MERGED:
        if key in chosen:
            result[key] = merge(config.get(key), chosen[key])
    if "run_as" in chosen:
        result["run_as"] = chosen["run_as"]
    result["bundle"] = {**(result.get("bundle") or {}), "target": target, "mode": chosen.get("mode") or ""}
    resources = result.get("resources") or {}
    jobs = {key: _by_key(job) if isinstance(job, dict) else job for key, job in (resources.get("jobs") or {}).items()}
    return {**result, "resources": {**resources, "jobs": jobs}}


def _by_key(job: Config) -> Config:
    """A job whose tasks, parameters … of one key are merged: that is how a target overrides one of them."""
    merged = dict(job)
    for field, name in _ITEM_KEYS.items():
        if isinstance(job.get(field), list):
            items: dict[Any, Any] = {}
            for item in job[field]:
                key = item.get(name) if isinstance(item, dict) else None
                items[key] = merge(items.get(key), item)
            merged[field] = list(items.values())
    return merged


def _variables(source: Source, target: str, given: Mapping[str, str], found: Findings) -> Config:
    declared: Config = source.config.get("variables") or {}
    overrides: Config = (source.config["targets"][target] or {}).get("variables") or {}
    for name in [*given, *overrides]:
        if name not in declared:
            found.problem(f"variable {name}", f"is not declared{did_you_mean(name, declared)}")
    on_file = _override_file(source.root, target, found)
    return {name: _variable(name, spec, given, on_file, overrides, found) for name, spec in declared.items()}


def _variable(
    name: str, spec: Any, given: Mapping[str, str], on_file: Config, overrides: Config, found: Findings
) -> Config:
    declared = spec if isinstance(spec, dict) else {}
    override = overrides.get(name)
    full = isinstance(override, dict) and set(override) <= {"default", "lookup", "type", "description"}
    here: Config = dict(override or {}) if full else {"default": override} if name in overrides else {}
    for values in (given, {name: os.environ.get(f"BUNDLE_VAR_{name}")}, on_file):
        if values.get(name) is not None:
            return {**declared, "value": values[name]}
    if here.get("default", declared.get("default")) is not None:
        return {**declared, **here, "value": here.get("default", declared.get("default"))}
    looked_up = "lookup" in declared or "lookup" in here
    why = "is looked up in a workspace, which a local run has not" if looked_up else "has no value and no default"
    found.problem(f"variable {name}", f"{why}; give one by --var {name}=… or BUNDLE_VAR_{name}.")
    return {**declared, "value": ""}


def _override_file(root: Path, target: str, found: Findings) -> Config:
    file = root / ".databricks" / "bundle" / target / "variable-overrides.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as wrong:
        found.problem(str(file.relative_to(root)), f"cannot be read: {wrong}")
        return {}
    return content if isinstance(content, dict) else {}


def _workspace(config: Config, user: str) -> Config:
    given: Config = config.get("workspace") or {}
    bundle = config["bundle"]
    home = f"/Workspace/Users/{user}"
    root = str(given.get("root_path") or f"~/.bundle/{bundle.get('name')}/{bundle['target']}")
    root = home + root[1:] if root == "~" or root.startswith("~/") else root
    if root.startswith("/") and not root.startswith(("/Workspace/", "/Volumes/")):
        root = "/Workspace" + root
    paths = {f"{name}_path": given.get(f"{name}_path") or posixpath.join(root, _IN_ROOT[name]) for name in _IN_ROOT}
    who = {"userName": user, "short_name": short_name(user)}
    return {**given, "root_path": root, **paths, "current_user": who}


def short_name(user: str) -> str:
    """The part of a user name before the @, in lower case, with ``_`` for whatever is neither letter nor digit."""
    return re.sub(r"[\W_]+", "_", user.partition("@")[0].lower()).strip("_")


def _wrong(text: str) -> Misconfigured:
    return Misconfigured("the bundle", [Problem("target", text)])

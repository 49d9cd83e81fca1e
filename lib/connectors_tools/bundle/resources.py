"""The jobs and pipelines that a configuration defines, and the files that they name.

Such a file is named relative to the file of the configuration. Its path becomes absolute when that file is read, because a
merged value has no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

WORKSPACE: Final = ("/Workspace/", "/Volumes/", "/Repos/", "/Users/", "/Shared/")
"""The beginnings of paths of files that a workspace has, whoever has put them there."""

_LINE: Final = re.compile(r"(-r\s+(?![/$])|(?=\.\.?/))(\S+)")
"""A line for pip that names a file relative to its own: of requirements, or a package."""


def maps(value: Any) -> dict[str, Any]:
    """``value``, or an empty map in place of anything else."""
    return value if isinstance(value, dict) else {}


def jobs_in(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The jobs that a configuration (or a target's part of one) defines, by key."""
    return _resources(config, "jobs")


def pipelines_in(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The declarative pipelines that a configuration (or a target's part of one) defines, by key."""
    return _resources(config, "pipelines")


def _resources(config: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    resources = maps(maps(config.get("resources")).get(kind))
    return {key: resource for key, resource in resources.items() if isinstance(resource, dict)}


def tasks_in(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tasks of a job as written."""
    tasks = job.get("tasks")
    return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []


def every_task(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tasks of a job as written, those inside loops too."""
    for task in tasks_in(job):
        yield task
        if nested := maps(maps(task.get("for_each_task")).get("task")):
            yield nested


def library_paths(pipeline: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """What names the files of a pipeline: each a map and the name of its field that holds the path."""
    libraries = [maps(library) for library in pipeline.get("libraries") or []]
    fields = (("glob", "include"), ("file", "path"), ("notebook", "path"))
    entries = ((maps(library.get(kind)), name) for library in libraries for kind, name in fields)
    return [(entry, name) for entry, name in entries if isinstance(entry.get(name), str)]


def anchor(config: Mapping[str, Any], folder: Path, root: Path) -> None:
    """Makes the paths absolute that the jobs and pipelines of ``config``, a file in ``folder``, name relative to it.

    Notebooks and the files of pipelines are files of this machine then; lines for pip name files below ``workspace.file_path``.
    """
    for job in jobs_in(config).values():
        for task in every_task(job):
            _anchor_path(maps(task.get("notebook_task")), "notebook_path", folder, root)
    for pipeline in pipelines_in(config).values():
        for entry, name in [*library_paths(pipeline), (pipeline, "root_path")]:
            _anchor_path(entry, name, folder, root)
        environment = maps(pipeline.get("environment"))
        if lines := environment.get("dependencies"):
            environment["dependencies"] = [_anchored_line(str(line).strip(), folder, root) for line in lines]


def _anchor_path(config: dict[str, Any], name: str, folder: Path, root: Path) -> None:
    path = str(config.get(name) or "").replace("${workspace.file_path}", str(root))
    if path and not path.startswith("${workspace."):
        config[name] = os.path.normpath(folder / path)


def _anchored_line(line: str, folder: Path, root: Path) -> str:
    if not (match := _LINE.fullmatch(line)):
        return line
    return f"{match[1]}${{workspace.file_path}}/{os.path.relpath(folder / match[2], root)}"

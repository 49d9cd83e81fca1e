"""Reads ``databricks.yml`` and what it includes into one configuration, as the Databricks CLI does.

Maps merge, lists concatenate, later values win. A job's notebook paths are relative to the file that defines them;
here they become absolute, because after the merge nobody knows the file any more.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from .findings import Findings

ROOT_FILES: Final = ("databricks.yml", "databricks.yaml", "bundle.yml", "bundle.yaml")
Config = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML as the CLI reads it: ``yes`` and ``on`` are text, so are dates, and a key given twice is an error."""


_PLAIN_TEXT = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _PLAIN_TEXT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def _map(loader: _Loader, node: yaml.MappingNode) -> Config:
    keys = Counter(loader.construct_object(key) for key, _ in node.value)
    for key, times in keys.items():
        if times > 1:
            raise yaml.constructor.ConstructorError(None, None, f'the key "{key}" stands here twice', node.start_mark)
    return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}


_Loader.add_constructor("tag:yaml.org,2002:map", _map)


@dataclass
class Source:
    """The configuration as written: merged over all files, nothing resolved; ``job_files`` says where a job stands."""

    root: Path
    config: Config
    job_files: dict[str, Path]
    findings: Findings = field(default_factory=Findings)


def find_root(folder: Path) -> Path | None:
    """The nearest folder, ``folder`` or above, that holds a ``databricks.yml``."""
    for place in (folder, *folder.parents):
        if any((place / name).is_file() for name in ROOT_FILES):
            return place
    return None


def read(root: Path) -> Source:
    """The configuration of the bundle in ``root``; what is wrong with its files is in ``findings``."""
    found = Findings()
    main = next(root / name for name in ROOT_FILES if (root / name).is_file())
    config = _read_file(main, root, found)
    source = Source(root, {}, {}, found)
    _take(source, main, config)
    for file in _included(root, config.get("include") or [], found):
        _take(source, file, _read_file(file, root, found))
    return source


def merge(first: Any, second: Any) -> Any:
    """``second`` over ``first``: maps merge, lists concatenate, other values are replaced; null gives way."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: merge(first.get(key), second.get(key)) for key in [*first, *(k for k in second if k not in first)]}
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return second


def jobs_in(config: Mapping[str, Any]) -> dict[str, Config]:
    """The jobs that a configuration (or a target's part of one) defines, by key."""
    jobs = _maps(_maps(config.get("resources")).get("jobs"))
    return {key: job for key, job in jobs.items() if isinstance(job, dict)}


def tasks_in(job: Mapping[str, Any]) -> list[Config]:
    """The tasks of a job as written."""
    tasks = job.get("tasks")
    return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []


def _maps(value: Any) -> Config:
    return value if isinstance(value, dict) else {}


def _read_file(file: Path, root: Path, found: Findings) -> Config:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as wrong:
        found.problem(_name(file, root), "cannot be read: " + " ".join(str(wrong).split()))
        return {}
    if content is not None and not isinstance(content, dict):
        found.problem(_name(file, root), "must be a map with keys such as bundle, targets, resources.")
    return _maps(content)


def _included(root: Path, patterns: list[str], found: Findings) -> Iterator[Path]:
    seen = {root / name for name in ROOT_FILES}
    for pattern in patterns:
        matches = sorted(path for path in root.glob(str(pattern)) if path.is_file())
        if not matches and not re.search(r"[*?\[]", str(pattern)):
            found.problem("include", f'"{pattern}" names no file.')
        for file in matches:
            if file not in seen:
                seen.add(file)
                yield file


def _take(source: Source, file: Path, config: Config) -> None:
    for key, job in jobs_in(config).items():
        if key in source.job_files:
            files = f"{_name(source.job_files[key], source.root)} and {_name(file, source.root)}"
            source.findings.problem(key, f"is defined in two files, {files}. Keep one of them.")
        source.job_files.setdefault(key, file)
        _anchor(job, file.parent, source.root)
    for target in _maps(config.get("targets")).values():
        for job in jobs_in(_maps(target)).values():
            _anchor(job, file.parent, source.root)
    source.config = merge(source.config, config)
    _check_task_keys(source)


def _check_task_keys(source: Source) -> None:
    for key, job in jobs_in(source.config).items():
        for task, times in Counter(str(task.get("task_key")) for task in tasks_in(job)).items():
            if times > 1:
                text = f'{times} tasks have the key "{task}". The CLI would merge them silently; give each its own.'
                source.findings.problem(key, text)


def _anchor(job: Config, folder: Path, root: Path) -> None:
    for task in tasks_in(job):
        nested = _maps(_maps(task.get("for_each_task")).get("task"))
        for notebook in (_maps(task.get("notebook_task")), _maps(nested.get("notebook_task"))):
            path = notebook.get("notebook_path")
            if isinstance(path, str):
                uploaded = path.replace("${workspace.file_path}", str(root))
                notebook["notebook_path"] = os.path.normpath(folder / uploaded)


def _name(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)

"""The configuration of a bundle: its files merged, one target laid over them, and every ``${...}`` resolved.

Files are read as the Databricks CLI reads them: maps merge, lists concatenate, later values win.
"""

from __future__ import annotations

import difflib
import getpass
import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from connectors.ground.errors import Misconfigured, Problem

from .resources import anchor, jobs_in, maps, tasks_in


@dataclass
class Findings:
    """``problems`` keep a job from starting, ``local_problems`` from starting on this machine; ``notes`` do not."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    local_problems: list[Problem] = field(default_factory=list)

    def problem(self, where: str, text: str) -> None:
        self.problems.append(Problem(where, text))

    def note(self, where: str, text: str) -> None:
        self.notes.append(Problem(where, text))

    def local_problem(self, where: str, text: str) -> None:
        self.local_problems.append(Problem(where, text))

    def add(self, other: Findings) -> None:
        self.problems += other.problems
        self.notes += other.notes
        self.local_problems += other.local_problems

    def enforce(self, what: str, *, local: bool = False) -> None:
        """Raises :class:`Misconfigured` with every problem, ``local`` ones on demand, if there is one."""
        problems = [*self.problems, *(self.local_problems if local else ())]
        if problems:
            raise Misconfigured(what, list(dict.fromkeys(problems)))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``; did you mean "…"?`` with the known name nearest to ``name``, else a full stop."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f'; did you mean "{close[0]}"?' if close else "."


def one_letter_apart(name: str, other: str) -> bool:
    """True when one letter added, dropped, changed, or two neighbours swapped, turn one name into the other."""
    if name == other or abs(len(name) - len(other)) > 1:
        return False
    differ = (i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b)
    start = next(differ, min(len(name), len(other)))
    left, right = name[start:], other[start:]
    same_after = left[1:] == right[1:] or left[1:] == right or left == right[1:]
    return same_after or (left[:2] == right[1::-1] and left[2:] == right[2:])


_NAME: Final = r"[^\W\d_](?:[-\w]*[^\W_])?"
_REFERENCE: Final = re.compile(rf"\$\{{({_NAME}(?:\.{_NAME})*)\}}")
_LATER: Final = "resources"
"""References known only after the deployment (``${resources.jobs.k.id}``); they stay as they are."""


class Unresolved(Exception):
    """A reference without a value; the message says why."""


class Interpolation:
    """Resolves ``${var.x}``, ``${bundle.…}`` and ``${workspace.…}`` in ``config``, nested ones too.

    Variables are looked up as ``variables.x.value``. Problems are added to ``findings``.
    """

    def __init__(self, config: Mapping[str, Any], findings: Findings) -> None:
        self._config = config
        self._findings = findings

    def resolved(self, value: Any, where: str, under: tuple[str, ...] = ()) -> Any:
        """``value`` with every reference in it replaced; ``where`` names it in messages."""
        if isinstance(value, dict):
            return {key: self.resolved(item, f"{where}.{key}" if where else key, under) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, f"{where}[{n}]", under) for n, item in enumerate(value)]
        return self._text(value, where, under) if isinstance(value, str) else value

    def _text(self, text: str, where: str, under: tuple[str, ...]) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole:  # alone, a reference keeps the type of what it names
            return self._looked_up(whole, where, under)
        return _REFERENCE.sub(lambda match: as_text(self._looked_up(match, where, under)), text)

    def _looked_up(self, match: re.Match[str], where: str, under: tuple[str, ...]) -> Any:
        path = match[1]
        if path.startswith(_LATER + "."):
            return match[0]
        try:
            if path in under:
                raise Unresolved("refers to itself: " + " -> ".join([*under[under.index(path) :], path]))
            return self.resolved(self._value(path), where, (*under, path))
        except Unresolved as why:
            self._findings.problem(where, f"{match[0]} {why}")
            return match[0]

    def _value(self, path: str) -> Any:
        head, *rest = path.split(".")
        if head not in ("var", "variables", "bundle", "workspace"):
            raise Unresolved("is no reference; known are var, bundle, workspace and resources.")
        if head == "var":
            if rest and rest[0] not in self._config["variables"]:
                raise Unresolved(f"names no variable{did_you_mean(rest[0], self._config['variables'])}")
            head, rest = "variables", [*rest[:1], "value", *rest[1:]]
        return _walk(self._config[head], rest)


def resource_references(text: str) -> Iterator[tuple[str, str]]:
    """Kind and key of each resource that ``text`` refers to, such as ``("jobs", "k")`` for ``${resources.jobs.k.id}``."""
    for match in _REFERENCE.finditer(text):
        head, *rest = match[1].split(".")
        if head == _LATER and len(rest) > 1:
            yield rest[0], rest[1]


def as_text(value: Any) -> str:
    """A YAML value inside a text: ``true``, ``12``; null is empty."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _walk(value: Any, path: list[str]) -> Any:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            known = list(value) if isinstance(value, Mapping) else []
            raise Unresolved(f'has no value: there is no "{key}"{did_you_mean(key, known)}')
        value = value[key]
    return value


ROOT_FILES: Final = ("databricks.yml", "databricks.yaml", "bundle.yml", "bundle.yaml")
Config = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML as the CLI reads it: ``yes`` and ``on`` are text, so are dates and times, and a key given twice is an error."""


_OWN_PATTERNS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "timestamp", "int", "float")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OWN_PATTERNS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
# Numbers are those of PyYAML without base 60, where 12:30 is 750.
_FLOAT: Final = (
    r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_INT: Final = r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(_FLOAT), "-+0123456789.")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(_INT), "-+0123456789")


def _map(loader: _Loader, node: yaml.MappingNode) -> Config:
    keys = Counter(loader.construct_object(key) for key, _ in node.value)
    for key, times in keys.items():
        if times > 1:
            raise yaml.constructor.ConstructorError(None, None, f'the key "{key}" stands here twice', node.start_mark)
    return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}


_Loader.add_constructor("tag:yaml.org,2002:map", _map)


@dataclass
class ConfigurationFile:
    """The configuration as written: merged over all files, nothing resolved; ``job_files`` says where a job stands."""

    root: Path
    config: Config
    job_files: dict[str, Path]
    findings: Findings = field(default_factory=Findings)


def find_root(folder: Path) -> Path | None:
    """The nearest folder, ``folder`` or above, that holds a ``databricks.yml``."""
    for candidate in (folder, *folder.parents):
        if any((candidate / name).is_file() for name in ROOT_FILES):
            return candidate
    return None


def read(root: Path) -> ConfigurationFile:
    """The configuration of the bundle in ``root``; what is wrong with its files is in ``findings``."""
    findings = Findings()
    main = next(root / name for name in ROOT_FILES if (root / name).is_file())
    config = _read_file(main, root, findings)
    source = ConfigurationFile(root, {}, {}, findings)
    _take(source, main, config)
    for file in _included(root, config.get("include") or [], findings):
        _take(source, file, _read_file(file, root, findings))
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


def _read_file(file: Path, root: Path, findings: Findings) -> Config:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as wrong:
        findings.problem(_name(file, root), "cannot be read: " + " ".join(str(wrong).split()))
        return {}
    if content is not None and not isinstance(content, dict):
        findings.problem(_name(file, root), "must be a map with keys such as bundle, targets, resources.")
    return maps(content)


def _included(root: Path, patterns: list[str], findings: Findings) -> Iterator[Path]:
    read_files = {root / name for name in ROOT_FILES}
    for pattern in patterns:
        if Path(str(pattern)).is_absolute():
            findings.problem("include", f'"{pattern}" is an absolute path; give one relative to databricks.yml.')
            continue
        matches = sorted(path for path in root.glob(str(pattern)) if path.is_file())
        if not matches and not re.search(r"[*?\[]", str(pattern)):
            findings.problem("include", f'"{pattern}" names no file.')
        for file in matches:
            if file not in read_files:
                read_files.add(file)
                yield file


def _take(source: ConfigurationFile, file: Path, config: Config) -> None:
    for key in jobs_in(config):
        if key in source.job_files:
            files = f"{_name(source.job_files[key], source.root)} and {_name(file, source.root)}"
            source.findings.problem(key, f"is defined in two files, {files}. Keep one of them.")
        source.job_files.setdefault(key, file)
    for part in (config, *maps(config.get("targets")).values()):
        anchor(maps(part), file.parent, source.root)
    source.config = merge(source.config, config)
    _check_task_keys(source)


def _check_task_keys(source: ConfigurationFile) -> None:
    for key, job in jobs_in(source.config).items():
        for task, times in Counter(str(task.get("task_key")) for task in tasks_in(job)).items():
            if times > 1:
                text = f'{times} tasks have the key "{task}". The CLI would merge them silently; give each its own.'
                source.findings.problem(key, text)


def _name(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


_MERGED: Final = ("bundle", "workspace", "artifacts", "resources", "sync", "permissions", "presets")
_ITEM_KEYS: Final = {
    "tasks": "task_key",
    "job_clusters": "job_cluster_key",
    "parameters": "name",
    "environments": "environment_key",
}
_IN_ROOT: Final = {"file": "files", "resource": "resources", "artifact": "artifacts", "state": "state"}


def choose_target(config: Config, name: str | None) -> str:
    """The target's name: ``name``, else the default one, else the only one. Raises :class:`Misconfigured`."""
    targets: dict[str, Any] = config.get("targets") or {}
    if name is not None:
        if name not in targets:
            known = ", ".join(targets) or "none"
            raise _wrong(f'there is no target "{name}"{did_you_mean(name, targets)} Known: {known}.')
        return name
    defaults = [key for key, target in targets.items() if (target or {}).get("default") is True]
    names = list(targets) if len(targets) == 1 else defaults
    if len(names) != 1:
        raise _wrong(f"please name one by -t; known: {', '.join(targets) or 'none'}.")
    return names[0]


def configuration(
    source: ConfigurationFile, target: str, command_line: Mapping[str, str], user: str | None, findings: Findings
) -> Config:
    """The whole configuration of ``target``, every ``${...}`` resolved.

    ``command_line`` has the variables that are set there. ``user`` stands for the workspace's user, by default this machine's.
    """
    config = _overridden(source.config, target)
    config["variables"] = _variables(source, target, command_line, findings)
    config["workspace"] = _workspace(config, user or _machine_user())
    resolve = Interpolation(config, findings)
    sections = {key: value for key, value in config.items() if key not in ("targets", "include")}
    return {key: resolve.resolved(value, key) for key, value in sections.items()}


def _machine_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container runs as any number, which has no name
        return f"user_{os.getuid()}"


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
    for section, name in _ITEM_KEYS.items():
        if isinstance(job.get(section), list):
            items: dict[Any, Any] = {}
            for item in job[section]:
                key = item.get(name) if isinstance(item, dict) else None
                items[key] = merge(items.get(key), item)
            merged[section] = list(items.values())
    return merged


def _variables(source: ConfigurationFile, target: str, command_line: Mapping[str, str], findings: Findings) -> Config:
    declared: Config = source.config.get("variables") or {}
    overrides: Config = (source.config["targets"][target] or {}).get("variables") or {}
    for name in [*command_line, *overrides]:
        if name not in declared:
            findings.problem(f"variable {name}", f"is not declared{did_you_mean(name, declared)}")
    on_file = _override_file(source.root, target, findings)
    return {name: _variable(name, spec, command_line, on_file, overrides, findings) for name, spec in declared.items()}


def _variable(
    name: str, spec: Any, command_line: Mapping[str, str], on_file: Config, overrides: Config, findings: Findings
) -> Config:
    declared = spec if isinstance(spec, dict) else {}
    override = overrides.get(name)
    full = isinstance(override, dict) and set(override) <= {"default", "lookup", "type", "description"}
    own: Config = dict(override or {}) if full else {"default": override} if name in overrides else {}
    for values in (command_line, {name: os.environ.get(f"BUNDLE_VAR_{name}")}, on_file):
        if values.get(name) is not None:
            return {**declared, "value": values[name]}
    if own.get("default", declared.get("default")) is not None:
        return {**declared, **own, "value": own.get("default", declared.get("default"))}
    looked_up = "lookup" in declared or "lookup" in own
    why = "is looked up in a workspace, which a local run has not" if looked_up else "has no value and no default"
    findings.problem(f"variable {name}", f"{why}; give one by --var {name}=… or BUNDLE_VAR_{name}.")
    return {**declared, "value": ""}


def _override_file(root: Path, target: str, findings: Findings) -> Config:
    file = root / ".databricks" / "bundle" / target / "variable-overrides.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as wrong:
        findings.problem(str(file.relative_to(root)), f"cannot be read: {wrong}")
        return {}
    return content if isinstance(content, dict) else {}


def _workspace(config: Config, user: str) -> Config:
    declared: Config = config.get("workspace") or {}
    bundle = config["bundle"]
    home = f"/Workspace/Users/{user}"
    root = str(declared.get("root_path") or f"~/.bundle/{bundle.get('name')}/{bundle['target']}")
    root = home + root[1:] if root == "~" or root.startswith("~/") else root
    if root.startswith("/") and not root.startswith(("/Workspace/", "/Volumes/")):
        root = "/Workspace" + root
    paths = {f"{name}_path": declared.get(f"{name}_path") or posixpath.join(root, _IN_ROOT[name]) for name in _IN_ROOT}
    who = {"userName": user, "short_name": short_name(user)}
    return {**declared, "root_path": root, **paths, "current_user": who}


def short_name(user: str) -> str:
    """The part of a user name before the @, in lower case, with ``_`` for whatever is neither letter nor digit."""
    return re.sub(r"[\W_]+", "_", user.partition("@")[0].lower()).strip("_")


def _wrong(text: str) -> Misconfigured:
    return Misconfigured("the bundle", [Problem("target", text)])

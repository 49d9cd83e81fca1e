"""The class path of a connector: Connect's API, and the jars of ``pluginPath`` (a folder) or ``pluginPackages`` (coordinates).

A jar of the plugin whose artifact belongs to Connect's API itself is left out, so that both sides have the same classes.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...ground.errors import Misconfigured, Problem
from ...jvm.maven import Unresolved, class_path

CONNECT: Final = "4.3.1"
CORE: Final = (
    *(f"org.apache.kafka:{artifact}:{CONNECT}" for artifact in ("connect-api", "connect-json", "connect-transforms")),
    "org.slf4j:slf4j-simple:1.7.36",
    "org.codehaus.janino:janino:3.1.12",
)
"""Connect's API, its JSON converter and its transforms; a log that goes to the standard error; and a compiler of Java."""
ALONE: Final = (f"org.apache.kafka:connect-runtime:{CONNECT}",)
"""For its converters and what some connectors take from it, without the jars of a Connect cluster."""

_COORDINATE: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.+-]+")
_API: Final = "org.apache.kafka.connect"
_CONNECTORS: Final = (f"{_API}.source.SourceConnector", f"{_API}.sink.SinkConnector")
_KINDS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(_CONNECTORS, ("Connector",)),
    f"{_API}.storage.Converter": ("Converter",),
    f"{_API}.storage.HeaderConverter": ("HeaderConverter", "Converter"),
    f"{_API}.transforms.Transformation": ("Transformation",),
    f"{_API}.transforms.predicates.Predicate": ("Predicate",),
}
"""The kinds of plugins, and the ends of their names that an alias may leave out."""


def plugin_class_path(plugin_path: str | None, plugin_packages: Sequence[str]) -> list[str]:
    """The jars of Connect and of the plugin, in their order. Raises :class:`Misconfigured` where they cannot be had."""
    problems = [
        Problem("pluginPackages", f'must be Maven coordinates such as group:artifact:version; got "{package}"')
        for package in plugin_packages
        if not _COORDINATE.fullmatch(package)
    ]
    folder = _jars_in(plugin_path) if plugin_path else []
    if plugin_path and not folder:
        problems.append(Problem("pluginPath", f"must be a folder with the jars of a connector; got {plugin_path}"))
    if problems:
        raise Misconfigured("connectors.connect", problems)
    try:
        core = class_path("connect", CORE, alone=ALONE)
        packages = class_path(_cache_name(plugin_packages), [*plugin_packages]) if plugin_packages else []
    except Unresolved as missing:
        texts = [Problem("pluginPackages", f"{problem.option} {problem.text}") for problem in missing.problems]
        raise Misconfigured("connectors.connect", texts) from None
    return _joined(core, [*folder, *packages])


def connector_classes(jars: Iterable[str]) -> list[str]:
    """The connectors that the jars offer, for messages."""
    services, _ = _contents(tuple(jars))
    return sorted({name for kind, name in services if kind in _CONNECTORS})


def named_classes(jars: Iterable[str], alias: str) -> list[str]:
    """The plugin classes of the jars that Connect's workers know by ``alias``: ``FileStreamSource``, ``Json``, ``Filter``.

    Jars that do not list their plugins are searched for a class with the name.
    """
    services, classes = _contents(tuple(jars))
    listed = {name for kind, name in services if alias in _aliases(name, _KINDS[kind])}
    ends = ("", *(end for kind_ends in _KINDS.values() for end in kind_ends))
    return sorted(listed or {name for end in ends for name in classes.get(alias + end, ())})


def _aliases(name: str, ends: Sequence[str]) -> set[str]:
    """``a.b.HoistField$Value`` is known by all parts of its last name, ``a.b.JsonConverter`` also by ``Json``."""
    last = name.rpartition(".")[2]
    simple = last.rpartition("$")[2]
    return {last, *last.split("$"), *(simple[:cut] for end in ends if (cut := simple.rfind(end)) > 0)}


@lru_cache(maxsize=8)
def _contents(jars: tuple[str, ...]) -> tuple[frozenset[tuple[str, str]], Mapping[str, Sequence[str]]]:
    """The plugins that jars list, each with its kind; and all of their classes by the name without the package."""
    services, classes = set[tuple[str, str]](), dict[str, list[str]]()
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            entries = set(archive.namelist())
            for kind in _KINDS:
                if (file := f"META-INF/services/{kind}") in entries:
                    lines = archive.read(file).decode().splitlines()
                    services.update((kind, name) for line in lines if (name := line.partition("#")[0].strip()))
            for entry in entries:
                if entry.endswith(".class") and not entry.startswith("META-INF/"):
                    name = entry.removesuffix(".class").replace("/", ".")
                    classes.setdefault(name.rpartition(".")[2], []).append(name)
    return frozenset(services), classes


def _jars_in(folder: str) -> list[str]:
    root = Path(folder).expanduser()
    return sorted(map(str, root.glob("**/*.jar"))) if root.is_dir() else []


def _cache_name(packages: Sequence[str]) -> str:
    first = packages[0].split(":")[1]
    return f"connect-{first}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:10]}"


def _joined(core: Sequence[str], plugin: Sequence[str]) -> list[str]:
    artifacts = {_artifact(jar) for jar in core}
    return [*core, *(jar for jar in plugin if _artifact(jar) not in artifacts)]


def _artifact(jar: str) -> str:
    return re.split(r"-(?=\d)", Path(jar).name.removesuffix(".jar"), maxsplit=1)[0]

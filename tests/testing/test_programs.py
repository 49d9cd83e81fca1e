"""What servers are run and built by comes from PyPI where this machine does not have it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from connectors.testing.servers.base import find_program, go_program, npm_package


@pytest.fixture
def cached_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A program of a wheel, in a cache that has nothing else. The PATH is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = Path(find_program(request.param)).parents[2]
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / wheel.name).symlink_to(wheel)
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path))
    program = Path(find_program(request.param))
    assert program.is_relative_to(tmp_path)
    return program


@pytest.mark.parametrize("cached_program", ["node"], indirect=True)
def test_npm_installs_a_package_by_the_node_of_a_wheel(cached_program: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "answer", "version": "1.0.0", "main": "main.js"}')
    (package / "main.js").write_text("console.log(process.argv[0])")
    main = npm_package("answer", str(package)) / "node_modules" / "answer" / "main.js"
    assert Path(subprocess.check_output([cached_program, main], text=True).strip()) == cached_program.resolve()


@pytest.mark.soak  # it compiles what of Go's library the program uses
@pytest.mark.parametrize("cached_program", ["go"], indirect=True)
@pytest.mark.usefixtures("cached_program")
def test_a_program_is_built_by_the_go_of_a_wheel_and_nothing_else_is_left() -> None:
    main = 'package main\n\nimport (\n\t"fmt"\n\t"github.com/google/uuid"\n)\n\nfunc main() { fmt.Println(uuid.Nil) }\n'
    program = go_program("nil", "github.com/google/uuid@v1.6.0", main)
    assert subprocess.check_output([program], text=True) == "00000000-0000-0000-0000-000000000000\n"
    assert sorted(file.name for file in program.parent.iterdir()) == [".complete", "go.mod", "go.sum", "main.go", "server"]

"""What ``python -m connectors doctor`` says of a machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from connectors.storage import local
from connectors.workbench import doctor
from connectors_tools.cli import main
from tests.storage.test_local import Mount


def diagnose() -> Result:
    return CliRunner().invoke(main, ["doctor"])


def line_of(name: str) -> str:
    (line,) = [line for line in diagnose().output.splitlines() if line[8:].split("  ")[1:2] == [name]]
    return line


def test_a_machine_with_all_that_is_needed_is_fit() -> None:
    result = diagnose()
    assert result.exit_code == 0, result.output
    assert "MISSING" not in result.output
    assert line_of("pyspark").startswith("ok")


def test_a_folder_that_can_have_no_ledger_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["doctor", "--folder", str(tmp_path / "a"), "--folder", "memory://b"]
    result = CliRunner().invoke(main, arguments)
    assert [line.split()[:2] for line in result.output.splitlines()] == [["ok", "folder"], ["MISSING", "folder"]]
    assert result.exit_code == 1
    monkeypatch.setattr(local, "disk", Mount(renames=False))
    result = CliRunner().invoke(main, ["doctor", "--folder", str(tmp_path / "b")])
    assert "cannot create a file only where there is none" in result.output


def test_a_package_that_is_missing_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", (*doctor._PACKAGES, "no-such-package"))
    assert diagnose().exit_code == 1
    assert line_of("no-such-package").startswith("MISSING")
    assert "make setup" in line_of("no-such-package")


@pytest.mark.parametrize(("caching", "mark"), [(True, "ok"), (False, "optional")])
def test_a_python_that_keeps_nothing_it_compiles_is_told_of(monkeypatch: pytest.MonkeyPatch, caching: bool, mark: str) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not caching)
    assert line_of("compiled python").startswith(mark)
    assert ("PYTHONDONTWRITEBYTECODE" in line_of("compiled python")) is not caching
    assert diagnose().exit_code == 0


def test_jars_that_are_not_fetched_are_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "remembered", lambda: None)
    assert line_of("delta jars").startswith("optional")
    assert "doctor --fetch" in line_of("delta jars")


def test_what_lies_beside_the_running_python_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert line_of("jupyter").startswith("ok")


def test_the_jars_of_servers_are_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "cache", lambda name: tmp_path)
    assert line_of("Kafka broker jars").startswith("optional")

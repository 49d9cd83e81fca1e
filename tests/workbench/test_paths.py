"""Where the workbench keeps things."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.ground.errors import Misconfigured
from connectors.workbench import settings
from connectors.workbench.settings import fresh_folder, workdir


def test_a_folder_is_made_and_named_in_full(tmp_path: Path) -> None:
    assert workdir(str(tmp_path / "a" / "b")) == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_volume_has_its_place_below_runs_when_run_locally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "library", lambda: tmp_path / "lib")
    assert workdir("/Volumes/main/s/v") == str(tmp_path / "runs" / "Volumes/main/s/v")


def test_a_machine_whose_disks_are_below_volumes_has_no_catalog_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/Volumes" or exists(path))  # as on macOS
    monkeypatch.setattr(settings, "library", lambda: tmp_path / "lib")
    assert workdir("/Volumes/main/s/v") == str(tmp_path / "runs" / "Volumes/main/s/v")


def test_the_variable_for_volumes_wins_over_a_catalog_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) in ("/Volumes", "/Volumes/main") or exists(path))
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path))
    assert workdir("/Volumes/main/s/v") == str(tmp_path / "Volumes/main/s/v")


def test_in_a_workspace_a_volume_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.1")
    monkeypatch.setattr(settings, "VOLUMES", f"{tmp_path}/")
    assert workdir(f"{tmp_path}/s/v") == f"{tmp_path}/s/v"


def test_an_address_of_a_store_stays_as_it_is() -> None:
    assert workdir("s3://bucket/folder") == "s3://bucket/folder"


def test_no_folder_is_an_error() -> None:
    with pytest.raises(Misconfigured, match="workdir   missing; give a folder or a volume"):
        workdir("")


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_parameter(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for value in (f"{tmp_path}/file/below", f"{tmp_path}/file", "/proc/nothing/x"):
        with pytest.raises(Misconfigured, match=f"workdir   {value} cannot be made: .*Give a folder"):
            workdir(value)


def test_a_fresh_folder_is_emptied_if_a_notebook_made_it(tmp_path: Path) -> None:
    folder = fresh_folder(tmp_path / "data")
    (folder / "old").write_text("of the run before")
    assert [file.name for file in fresh_folder(tmp_path / "data").iterdir()] == [".made-by-a-notebook"]


def test_a_folder_with_files_of_others_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("42")
    with pytest.raises(Misconfigured, match=r"has a folder data that no notebook made: .*It is left as it is"):
        fresh_folder(tmp_path / "data")
    assert (tmp_path / "data" / "mine").read_text() == "42"

"""Where files that grow may be: on a local or mounted file system, since they are followed by their inodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.core import Misconfigured
from connectors.core.planning import INITIAL, Planner
from connectors.systems.file_stream import FileStreamSink, FileStreamSource
from connectors.systems.file_stream.tail import listing

from .following import append

ELSEWHERE = ["s3://bucket/logs/*.log", "hdfs://host/logs", "abfss://container@account/logs", "dbfs:/logs/a.log"]


@pytest.mark.parametrize("kind", [FileStreamSource, FileStreamSink])
@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_location_without_a_local_path_is_one_problem(
    kind: type[FileStreamSource] | type[FileStreamSink], path: str
) -> None:
    with pytest.raises(Misconfigured, match="must be a local or mounted") as caught:
        kind.of({"path": path})
    assert [problem.option for problem in caught.value.problems] == ["path"]


def test_a_password_in_a_location_is_not_shown() -> None:
    with pytest.raises(Misconfigured) as caught:
        FileStreamSource.of({"path": "sftp://me:geheim@host/a.log"})
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("spelling", ["{}/*.log", "file:{}/*.log", "file://{}/*.log", "{}//a.log"])
def test_each_spelling_of_a_local_path_finds_the_same_files(tmp_path: Path, spelling: str) -> None:
    append(tmp_path / "a.log", "line\n")
    planner = Planner(FileStreamSource.of({"path": spelling.format(tmp_path)}, streaming=True))
    files = planner.latest(INITIAL)["at"]["files"]
    assert [file["path"] for file in files.values()] == [str(tmp_path / "a.log")]


@pytest.mark.parametrize("spelling", ["{}", "{}/", "file:{}"])
def test_a_folder_is_refused_since_none_of_its_files_would_be_read(tmp_path: Path, spelling: str) -> None:
    append(tmp_path / "a.log", "line\n")
    with pytest.raises(Misconfigured, match=r"path +is a folder, .* give a glob, such as \"[^\"]*[^/]/\*\.log\"") as caught:
        FileStreamSource.of({"path": spelling.format(tmp_path)})
    assert [problem.option for problem in caught.value.problems] == ["path"]


@pytest.mark.parametrize(
    ("glob", "names"),
    [("{a,c}.log", "a"), ("{a,b}.l*", "ab"), ("[^b].log", "a"), ("[!b].log", "a"), ("{x,[b]}{.txt,.log}", "b")],
)
def test_a_glob_means_what_it_means_to_spark(tmp_path: Path, glob: str, names: str) -> None:
    for name in "ab":
        append(tmp_path / f"{name}.log", "line\n")
    assert sorted(listing(str(tmp_path / glob)).files) == [str(tmp_path / f"{name}.log") for name in names]


def test_a_file_may_have_braces_in_its_name(tmp_path: Path) -> None:
    append(tmp_path / "{a,b}.log", "line\n")
    append(tmp_path / "a.log", "line\n")
    assert [*listing(str(tmp_path / "{a,b}.log")).files] == [str(tmp_path / "{a,b}.log")]


@pytest.mark.parametrize("name", ["typo.log", "typo/*.log", "{typo,other}.log"])
def test_a_batch_does_not_wait_for_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    append(tmp_path / "a.log", "line\n")
    with pytest.raises(Misconfigured, match=r"names no file"):
        Planner(FileStreamSource.of({"path": str(tmp_path / name)})).whole()

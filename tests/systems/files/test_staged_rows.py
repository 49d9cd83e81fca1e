"""What Spark's own writers leave in the stage: what no task has reported is never published, whatever the file format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Batch, Fatal
from connectors.spark.foreach_batch import ForeachBatch
from connectors.storage import local
from connectors.systems.files import FilesSink, spark_writer

from ..reference_contexts import FilesContext
from .test_sink import sink

pytestmark = pytest.mark.spark

KINDS = ["parquet", "orc", "json", "csv", "text"]
AWKWARD = "CASE id % 3 WHEN 0 THEN 'a\\nb' WHEN 1 THEN 'say \"no\", twice' END AS value"
"""Values with line ends, quotes and commas, and nulls."""


def write(frame: Any, files_sink: FilesSink, number: int = 0) -> None:
    ForeachBatch(files_sink).write(frame, Batch(files_sink.sink_id(), "q", number))


def meddling(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[Path], None]) -> None:
    """Lets ``meddle`` change the stage between Spark's writer and what looks at it."""
    whole = spark_writer.committed_files

    def look(folder: Any, stage: str) -> dict[str, int]:
        meddle(Path(folder.root) / stage)
        return whole(folder, stage)

    monkeypatch.setattr(spark_writer, "committed_files", look)


@pytest.mark.parametrize("bytes_of_the_driver", [0, spark_writer._LOCAL_BYTES], ids=["counted by a job", "by the driver"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_every_format_are_counted(
    spark: Any, tmp_path: Path, kind: str, bytes_of_the_driver: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_writer, "_LOCAL_BYTES", bytes_of_the_driver)
    columns = [AWKWARD] if kind == "text" else ["id", AWKWARD, "CAST(NULL AS string) AS nothing"]
    codec = {} if kind in ("parquet", "orc") else {"compression": "gzip"}
    write(spark.range(0, 90, 1, 3).selectExpr(*columns), sink(tmp_path, fileFormat=kind, **codec))
    assert len(FilesContext(tmp_path).files()) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_stray_file_in_the_stage_stops_the_batch_and_the_next_start_writes_it(
    spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a failed attempt leaves it where the commit protocol does not take it away."""
    texts = spark.range(10).selectExpr("CAST(id AS string) AS value")
    frame = texts if kind == "text" else texts.selectExpr("value", "1 AS one")  # csv of one column has a writer of ours

    def stray(stage: Path) -> None:
        file = next(file for file in stage.iterdir() if file.name.startswith("part-") and file.stat().st_size)
        file.with_name(file.name.replace("part-", "part-9")).write_bytes(file.read_bytes())

    with monkeypatch.context() as meddled:
        meddling(meddled, stray)
        with pytest.raises(Fatal, match=r"staged files hold \d+ rows, and the batch has 10"):
            write(frame, sink(tmp_path, fileFormat=kind))
    assert FilesContext(tmp_path).files() == []
    write(frame, sink(tmp_path, fileFormat=kind))
    assert FilesContext(tmp_path).files() != []


def test_a_file_that_executors_have_and_the_driver_has_not_stops_the_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a path that is local to each machine."""
    meddling(monkeypatch, lambda stage: [file.unlink() for file in stage.glob("part-*")])  # type: ignore[func-returns-value]
    with pytest.raises(Fatal, match="not the same folder for the driver and for all executors"):
        write(spark.range(10), sink(tmp_path))


def test_of_the_files_of_databricks_commit_protocol_only_those_count_that_it_lists(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def protocol(stage: Path) -> None:
        for folder in {file.parent for file in stage.rglob("part-*")}:
            files = sorted(file.name for file in folder.glob("part-*"))
            (folder / "_started_1").touch()
            (folder / "_committed_1").write_text(json.dumps({"added": files, "removed": []}))
            (folder / "part-99-of-a-failed-attempt.parquet").write_bytes((folder / files[0]).read_bytes())

    meddling(monkeypatch, protocol)
    write(spark.range(10).selectExpr("id", "id % 2 AS half"), sink(tmp_path, partitionBy="half"))
    files = FilesContext(tmp_path).files()
    assert {file.parent.name for file in files} == {"half=0", "half=1"}
    assert sorted(row["id"] for row in FilesContext(tmp_path).rows()) == list(range(10))


def test_everything_that_is_staged_is_durable_before_the_batch_is_recorded(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(local.Disk):
        synced: list[str] = []  # noqa: RUF012
        recorded = 0

        def sync(self, path: Path) -> None:
            self.synced.append(os.path.relpath(path, tmp_path))
            super().sync(path)

        def link(self, path: Path, to: Path) -> None:
            self.recorded = len(self.synced)
            super().link(path, to)

    disk = Watched()
    monkeypatch.setattr(local, "disk", disk)
    write(spark.range(10).selectExpr("id", "id % 2 AS half"), sink(tmp_path, partitionBy="half"))
    before, after = disk.synced[: disk.recorded], disk.synced[disk.recorded :]
    staged = [path for path in before if "/stage/" in path]
    assert {path.split("/")[4] for path in staged if path.count("/") == 4} == {"half=0", "half=1"}
    assert sum(path.endswith(".parquet") for path in staged) == len(FilesContext(tmp_path).files())
    assert {"half=0", "half=1"} <= set(after), "and so are the names, before the ledger says that they are published"

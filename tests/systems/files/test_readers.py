"""What readers see while a run of many batches is killed again and again: complete files, no row twice, nothing gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pytest

from connectors.systems.files.rolling import seal_folder
from connectors.testing.engine import in_a_child
from connectors.testing.sink_cases import SinkQuery

from ..reference_contexts import FilesContext
from .contexts import S3Context

ROWS = 4


class Rolled(FilesContext):
    """Files of a few batches each."""

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "rolling": "policy", "rolling.maxPartSize": "5000"}


class Watcher(threading.Thread):
    """Reads the ids in a target until ``over``, and checks each read against those before."""

    def __init__(self, read: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self.read = read
        self.over = threading.Event()
        self.problems: list[str] = []
        self.reads = 0
        self.changes = 0

    def run(self) -> None:
        before: set[int] = set()
        while not self.over.is_set() and not self.problems:
            try:
                rows = self.read()
            except Exception as error:
                self.problems.append(f"read {self.reads}: {error!r}")
                return
            ids = set(rows)
            if len(rows) > len(ids):
                self.problems.append(f"read {self.reads}: {len(rows) - len(ids)} rows twice")
            if before - ids:
                self.problems.append(f"read {self.reads}: {len(before - ids)} rows gone")
            self.changes += ids != before
            before, self.reads = ids, self.reads + 1


def by_pyarrow(folder: Path) -> list[int]:
    """Without recursion: Arrow looks into hidden folders too when it is told to look into all of them."""
    listed = fs.LocalFileSystem().get_file_info(fs.FileSelector(str(folder)))
    files = [info.path for info in listed if info.type == fs.FileType.File and info.base_name[0] not in "._"]
    if not files:
        return []
    return ds.dataset(files, format="parquet").to_table(columns=["id"]).column("id").to_pylist()  # type: ignore[no-any-return]


def by_duckdb(folder: Path) -> list[int]:
    if not any(folder.glob("*.parquet")):
        return []
    with duckdb.connect() as connection:
        return [number for (number,) in connection.sql(f"SELECT id FROM '{folder}/*.parquet'").fetchall()]


def by_s3_client(context: S3Context) -> list[int]:
    return [row["id"] for row in context.rows()]


def readers(target: Any) -> list[Callable[[], list[int]]]:
    if isinstance(target, S3Context):
        return [partial(by_s3_client, target)]
    return [partial(by_pyarrow, target.folder), partial(by_duckdb, target.folder)]


@pytest.mark.parametrize(
    ("kind", "batches"), [(FilesContext, 100), (Rolled, 100), pytest.param(S3Context, 20, marks=pytest.mark.soak)]
)
def test_every_read_during_a_run_with_faults_is_of_complete_files(tmp_path: Path, kind: Any, batches: int) -> None:
    target = kind(tmp_path / "target")
    target.folder.mkdir()
    writing = SinkQuery(target, tmp_path, "foreach_batch")
    watchers = [Watcher(read) for read in readers(target)]
    for watcher in watchers:
        watcher.start()
    chance = random.Random(kind.__name__)
    step = batches * ROWS // 10
    for last in range(step, batches * ROWS + 1, step):  # a kill in each tenth of the batches
        writing.injector.arm_one_of(chance.randrange(1 << 30), writing.target.points(), rows=2)
        in_a_child(writing.engine(last=last, rows=ROWS, tasks=chance.randint(1, 3)).run)
    writing.injector.disarm()
    in_a_child(writing.engine(last=batches * ROWS, rows=ROWS).run)
    if kind is Rolled:
        seal_folder(str(target.folder))
    for watcher in watchers:
        watcher.over.set()
        watcher.join(30)
    assert [problem for watcher in watchers for problem in watcher.problems] == []
    assert all(watcher.changes >= 5 for watcher in watchers), [(watcher.reads, watcher.changes) for watcher in watchers]
    assert writing.injector.struck() >= 5
    writing.expect(last=batches * ROWS)

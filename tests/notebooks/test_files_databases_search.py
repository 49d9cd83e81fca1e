"""The notebooks of files, databases and search: what they deliver, and that they leave alone what they have not made."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from connectors.testing.servers import OpenSearchServer, PostgresServer
from connectors.workbench import DbUtils, display
from connectors_tools.bundle.execution import CellFailure, RunLimits, execute
from connectors_tools.bundle.notebooks import read_notebook
from tests.delta_log import delta
from tests.servers import required

from .quickstart import REPOSITORY, run

FOLDERS = {
    "connect_sources": "weather",
    "file_sink": "files",
    "file_stream": "lines",
    "first_source": "rows",
    "jdbc_sink": "checkpoints",
    "jdbc_source": "shop",
    "search_sink": "flights",
}
JOBS = {
    "files": {"rows_per_batch": "500"},
    "jdbc_sink": {"rows": "2000"},
    "jdbc_source": {"days": "3", "orders": "40"},
    "search_sink": {"rows": "4000"},
}


class Execution:
    """A notebook run in the tests' session, a story unless its name has a folder.

    ``result`` is what it exited with, or the cell that failed.
    """

    def __init__(self, name: str, spark: Any, folder: Path, parameters: Mapping[str, str]) -> None:
        self.workdir, executed = folder / "workdir", folder / f"{name}.ipynb"
        names = {"spark": spark, "dbutils": DbUtils({"workdir": str(self.workdir), **parameters}), "display": display}
        place = name if "/" in name else f"stories/{name}"
        notebook = read_notebook(REPOSITORY / "notebooks" / f"{place}.ipynb")
        self.result = execute(notebook, names, executed, RunLimits(), lambda number, total, source: None)
        cells = nbformat.read(executed, as_version=4).cells
        self.outputs = [output for cell in cells for output in cell.get("outputs", [])]

    def exit(self) -> str:
        """What the notebook exited with; fails the test where a cell failed."""
        if isinstance(self.result, CellFailure):
            raise AssertionError(f"cell {self.result.number}, line {self.result.line}") from self.result.error
        return self.result

    def pictures(self) -> int:
        return sum("image/png" in output.get("data", {}) for output in self.outputs)


@pytest.fixture
def foreign_files(tmp_path: Path) -> Iterator[None]:
    """Files of somebody else in the workdir, which are there as they were after the test."""
    names = ("notes.txt", "files.csv", "archive/part-0.parquet", "checkpoint/metadata")
    files = {tmp_path / "workdir" / name: name for name in names}
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    yield
    assert {file: file.read_text() for file in files} == files


@pytest.mark.spark
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_not_the_notebooks_own_is_refused_and_left_as_it_is(name: str, spark: Any, tmp_path: Path) -> None:
    foreign = tmp_path / "workdir" / FOLDERS[name] / "orders.csv"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("42")
    failure = Execution(name, spark, tmp_path, {}).result
    assert isinstance(failure, CellFailure)
    assert f"has a folder {FOLDERS[name]} that no notebook made" in str(failure.error)
    assert [file.name for file in foreign.parent.iterdir()] == ["orders.csv"]
    assert foreign.read_text() == "42"


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
def test_a_killed_program_has_written_each_row_once(spark: Any, tmp_path: Path) -> None:
    execution = Execution("file_sink", spark, tmp_path, {"batches": "4", "rows_per_batch": "500"})
    assert execution.exit().startswith("2,000 rows in ")
    assert execution.pictures() == 1
    for sink in ("files", "rolling"):
        ids = ds.dataset(_visible_files(execution.workdir / "files" / sink)).to_table(columns=["id"])["id"].to_pylist()
        assert sorted(ids) == list(range(2000))
    by_spark = [file for file in _visible_files(execution.workdir / "files" / "spark") if _is_readable(file)]
    assert ds.dataset(by_spark).count_rows() > 2000  # the problem that the notebook shows


def _visible_files(folder: Path) -> list[str]:
    files = folder.rglob("*.parquet")
    return [str(file) for file in files if not any(part[0] in "._" for part in file.relative_to(folder).parts)]


def _is_readable(file: str) -> bool:
    try:
        return pq.read_metadata(file).num_rows > 0
    except (OSError, ValueError):
        return False


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
def test_the_lines_of_a_log_that_grows_and_is_rotated_are_copied_once(spark: Any, tmp_path: Path) -> None:
    execution = Execution("file_stream", spark, tmp_path, {"lines": "200"})
    assert execution.exit().endswith("Spark's source lost 201 of 601")
    assert execution.pictures() == 1
    files = (execution.workdir / "lines" / "copy").glob("part-*.txt")
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(1001))


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_events_and_counts_are_in_the_database_once_and_other_tables_stay(spark: Any, tmp_path: Path) -> None:
    import psycopg

    server = required(PostgresServer)
    foreign = ("events", "user_stats", "connectors_inserted")
    with psycopg.connect(server.url, user=server.user, autocommit=True) as connection:
        for table in foreign:
            connection.execute(f"CREATE TABLE {table} AS SELECT 42 AS answer")
        try:
            parameters = {"url": server.jdbc, "user": server.user, "password": server.password, "rows": "800", "users": "50"}
            execution = Execution("jdbc_sink", spark, tmp_path, parameters)
            assert execution.exit().startswith("800 events of ")
            assert execution.pictures() == 1
            for table in foreign:
                assert connection.execute(f"SELECT answer FROM {table}").fetchall() == [(42,)]  # type: ignore[arg-type]
            tables = "SELECT table_name FROM information_schema.tables WHERE table_name ~ '^connectors_.*_[0-9a-f]{8}$'"
            assert connection.execute(tables).fetchall() == []
        finally:
            for table in foreign:
                connection.execute(f"DROP TABLE {table}")  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_the_copy_of_a_shop_equals_the_database_row_by_row(spark: Any, tmp_path: Path) -> None:
    execution = Execution("jdbc_source", spark, tmp_path, {"days": "2", "orders": "40"})
    assert "rows in 3 tables are equal to the database" in execution.exit()
    assert execution.pictures() == 1
    root = execution.workdir / "shop"
    with closing(sqlite3.connect(root / "shop.db")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        assert names == ["customers", "orders", "reviews"]
        for name in names:
            assert _copied_rows(root / "copy" / name) == _database_rows(database, name)
    assert len(_copied_rows(root / "copy" / "vouchers")) == 3


def _copied_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of the copy, with times as the database writes them."""
    rows = sorted(delta(table).to_pylist(), key=lambda row: row["id"])
    for row in rows:
        row["updated_at"] = row["updated_at"].strftime("%Y-%m-%d %H:%M:%S.%f")
    return rows


def _database_rows(database: sqlite3.Connection, name: str) -> list[dict[str, Any]]:
    cursor = database.execute(f"SELECT * FROM {name} ORDER BY id")
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_every_document_of_the_index_is_as_computed_and_other_indices_stay(spark: Any, tmp_path: Path) -> None:
    hosts = required(OpenSearchServer).url
    foreign = ("delays", "connectors-flight-delays-of-2013")
    for index in foreign:
        request(hosts, "PUT", f"/{index}/_doc/1?refresh=true", {"answer": 42})
    try:
        execution = Execution("search_sink", spark, tmp_path, {"rows": "3000"})
        assert "documents, each as computed" in execution.exit()
        assert execution.pictures() == 1
        for index in foreign:
            assert request(hosts, "GET", f"/{index}/_doc/1")["_source"] == {"answer": 42}
    finally:
        for index in foreign:
            request(hosts, "DELETE", f"/{index}")


def request(hosts: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(hosts + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_well_twice_in_a_row_in_the_same_workdir(job: str, tmp_path: Path) -> None:
    for _ in range(2):
        code, output = run(job, {"workdir": str(tmp_path), **JOBS[job]})
        assert code == 0, output


@pytest.mark.soak
@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_well_on_its_defaults(job: str, tmp_path: Path) -> None:
    code, output = run(job, {"workdir": str(tmp_path)})
    assert code == 0, output


@pytest.mark.soak
def test_the_copy_of_a_shop_begins_anew_after_a_kill(tmp_path: Path) -> None:
    parameters = {"workdir": str(tmp_path), **JOBS["jdbc_source"]}
    commits = (tmp_path / "shop" / "copy" / "orders").glob
    code, output = run("jdbc_source", parameters, lambda: any(commits("_delta_log/*1.json")))
    assert code == -9, output
    code, output = run("jdbc_source", parameters)
    assert code == 0, output
    assert "rows in 3 tables are equal to the database" in output

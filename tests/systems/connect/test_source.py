"""What the source does beside the cases of the kit: dead letters, unpacked values, a task that has failed at the end."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.connect import RecordConverter, Schema
from connectors.connect.python_host import PythonSourceHost
from connectors.core.epochs import HISTORY, EpochLog
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.ground.errors import Fatal, Misconfigured, Poison, StateError
from connectors.storage import storage_of
from connectors.systems.connect import ConnectSource
from tests.connect.database import DATABASES, Database, TablesConnector
from tests.dying_disk import DyingDisk

JSON = "org.apache.kafka.connect.json.JsonConverter"
TIMES = {"pollInterval": "100ms", "drainTimeout": "200ms", "restart.initialBackoff": "10ms", "restart.maxRetries": "1"}


class Query:
    """A query over the tables of a database in this process, batch by batch."""

    def __init__(
        self, folder: Path, database: Database, options: dict[str, str] | None = None, **properties: str
    ) -> None:
        self.folder = folder
        DATABASES.setdefault(str(folder), database)
        kind = f"{TablesConnector.__module__}.TablesConnector"
        dotted = {name.replace("_", "."): value for name, value in properties.items()}
        config = {"name": "shop", "connector.class": kind, "database": str(folder), **dotted}
        self.options = {"config": json.dumps(config), "stateLocation": str(folder / "log"), **TIMES, **(options or {})}
        self.offset = INITIAL

    def run(self) -> list[dict[str, Any]]:
        """The rows of a run that ends by itself."""
        source = ConnectSource.of(self.options, streaming=True)
        planner, rows = Planner(source), []
        table = pa.int64() if source.values["schema"] == "n long, table long" else pa.string()
        names = {"topic": pa.string(), "value": pa.binary(), "n": pa.int64(), "table": table}
        columns = ("n", "table") if source.values["value.unpack"] else ("topic", "value")
        schema = pa.schema([(name, names[name]) for name in columns])
        try:
            planner.freeze()
            while (end := planner.latest(self.offset)) != self.offset:
                for part in planner.slices(self.offset, end):
                    rows += [row for batch in read_slice(source, part, schema) for row in batch.to_pylist()]
                self.offset = end
        finally:
            planner.close()
        return rows


class Refusing(RecordConverter):
    """Refuses one row."""

    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value["n"] == 5:
            raise ValueError("row 5 is refused")
        return json.dumps(value.to_dict()).encode()

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        raise NotImplementedError


@pytest.fixture
def database() -> Database:
    system = Database("a")
    system.insert(10)
    return system


def test_a_record_that_fails_is_a_dead_letter_once_also_when_a_crash_came_before_its_publication(
    database: Database, tmp_path: Path
) -> None:
    letters = tmp_path / "letters"
    refusing = {"errors_tolerance": "all", "value_converter": f"{__name__}.Refusing"}
    query = Query(tmp_path, database, {"deadLetterPath": str(letters)}, **refusing)
    assert len(query.run()) == 9
    (file,) = letters.glob("*.parquet")
    file.unlink()  # as if the process had died between the manifest and the publication
    log = json.loads((tmp_path / "log" / "log.json").read_text())["id"]
    query.offset = {"v": 1, "source": "connect", "at": {"epoch": 0, "log": log}, "parts": 2}
    assert len(query.run()) == 9
    (letter,) = pq.read_table(letters).to_pylist()
    headers = {header["key"]: header["value"] for header in letter["headers"]}
    assert headers["__connect.errors.topic"] == b"db.a"
    assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert headers["__connect.errors.exception.class.name"] == b"ValueError"
    assert headers["__connect.errors.exception.message"] == b"row 5 is refused"
    assert letter["error"] == "row 5 is refused"


def test_a_driver_that_dies_before_the_first_offset_is_noted_starts_again(database: Database, tmp_path: Path) -> None:
    first = Query(tmp_path, database)
    source = ConnectSource.of(first.options, streaming=True)
    planner = Planner(source)
    planner.latest(INITIAL)  # records the first epoch, and dies
    planner.close()
    again = Query(tmp_path, database)
    assert len(again.run()) == 10
    with pytest.raises(Misconfigured, match="another query"):
        Query(tmp_path, database).run()


def test_a_driver_that_stood_still_before_it_recorded_an_epoch_records_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks have polled, and have what another run has recorded and gone on from meanwhile."""
    late, successor = Query(tmp_path, database), Query(tmp_path, database)
    put, rows = EpochLog.put_manifest, list[dict[str, Any]]()

    def put_behind_another_run(log: EpochLog, epoch: int, manifest: Any) -> bool:
        monkeypatch.undo()
        rows.extend(successor.run())
        database.insert(3)
        rows.extend(successor.run())
        return put(log, epoch, manifest)

    monkeypatch.setattr(EpochLog, "put_manifest", put_behind_another_run)
    with pytest.raises(StateError, match="another run of this query has recorded epoch 1"):
        late.run()
    database.insert(2)
    rows.extend(successor.run())
    assert sorted(json.loads(row["value"])["n"] for row in rows) == list(range(1, 16))


def test_what_the_first_start_of_a_query_finds_is_checked_until_one_has_begun(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def check(host: PythonSourceHost) -> None:
        starts.append("checked")
        if len(starts) == 1:
            raise Fatal("the slot is another's")

    monkeypatch.setattr(PythonSourceHost, "check_first_start", check)
    with pytest.raises(Fatal, match="another's"):
        Query(tmp_path, database).run()
    with monkeypatch.context() as patch:
        patch.setattr(PythonSourceHost, "start", lambda *_: _died())
        with pytest.raises(Fatal, match="died"):
            Query(tmp_path, database).run()
    query = Query(tmp_path, database)
    assert len(query.run()) == 10
    database.insert(1)
    assert (len(query.run()), starts) == (1, ["checked"] * 2)


def _died() -> None:
    raise Fatal("the connector died")


def test_unpacked_values_are_the_columns(database: Database, tmp_path: Path) -> None:
    for enable in ("true", "false"):
        folder = tmp_path / enable
        folder.mkdir()
        options = {"value.unpack": "true", "schema": "n long, table string"}
        query = Query(folder, database, options, value_converter=JSON, value_converter_schemas_enable=enable)
        assert query.run() == [{"n": n, "table": "a"} for n in range(1, 11)]


def test_a_value_that_does_not_fit_the_unpacked_schema_is_told(database: Database, tmp_path: Path) -> None:
    options = {"value.unpack": "true", "schema": "n long, table long"}
    query = Query(tmp_path, database, options)
    with pytest.raises(Poison, match="does not fit the schema"):
        query.run()


def test_options_that_do_not_go_together_are_told(database: Database, tmp_path: Path) -> None:
    options = {"value.unpack": "true", "deadLetterPath": str(tmp_path / "letters")}
    query = Query(tmp_path, database, options, value_converter="StringConverter")
    with pytest.raises(Misconfigured) as refused:
        query.run()
    assert {problem.option for problem in refused.value.problems} == {"deadLetterPath", "schema", "value.unpack"}


def test_a_run_that_ends_with_a_failed_task_fails_and_shows_its_trace(tmp_path: Path) -> None:
    database = Database("a", "b")
    database.insert(5, "b")
    database.broken["a"] = [RuntimeError("no such disk") for _ in range(100)]
    query = Query(tmp_path, database, tasks_max="2")
    with pytest.raises(Fatal, match=r"(?s)task 0 has failed.*no such disk"):
        query.run()
    status = json.loads((tmp_path / "log" / "status.json").read_text())
    assert status["tasks"][0]["state"] == "FAILED"
    database.broken.clear()
    database.insert(3, "a")
    assert len(query.run()) == 3  # what b had was recorded before the failure


def test_a_letter_of_a_driver_that_died_before_the_engine_knew_its_epoch_is_one_letter(
    tmp_path: Path, database: Database
) -> None:
    letters = tmp_path / "letters"
    refusing = {"errors_tolerance": "all", "value_converter": f"{__name__}.Refusing"}
    query = Query(tmp_path, database, {"deadLetterPath": str(letters)}, **refusing)
    planner = Planner(ConnectSource.of(query.options, streaming=True))
    planner.latest(INITIAL)
    planner.close()
    assert len(query.run()) == 9
    assert pq.read_table(letters).num_rows == 1


def test_a_query_whose_folder_another_one_has_taken_starts_no_connector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database("a")
    first, second = Query(tmp_path, database), Query(tmp_path, database)
    assert first.run() == []
    for _ in range(HISTORY + 2):  # its first epochs are deleted
        database.insert(1)
        assert len(second.run()) == 1
    starts: list[Any] = []
    monkeypatch.setattr(PythonSourceHost, "start", lambda *arguments: starts.append(arguments))
    with pytest.raises(StateError, match="another query's epoch log"):
        first.run()
    assert starts == []


@pytest.mark.parametrize("seed", range(4))
def test_an_epoch_of_a_driver_that_died_is_durable_before_its_rows_go_on(
    tmp_path: Path, database: Database, seed: int
) -> None:
    source = ConnectSource.of(Query(tmp_path, database).options, streaming=True)
    disk = DyingDisk(tmp_path / "log", tmp_path / "journal")
    disk.folder.mkdir()
    disk.start()

    def work() -> None:
        disk.dies_before = "plan.json"
        dead, planner = Planner(source), Planner(source)
        with pytest.raises(KeyboardInterrupt):
            dead.latest(INITIAL)
        assert planner.slices(INITIAL, planner.latest(INITIAL))
        for one in (dead, planner):
            one.close()

    disk.run(work)
    disk.fail(random.Random(seed))
    assert EpochLog(storage_of(str(disk.folder)), "connect").plan(1) is not None

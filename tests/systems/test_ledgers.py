"""``ledger show``: what sinks have recorded in a folder, a table's log or a file of a database, found by its path or URL."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from connectors.core import Batch, Sink
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, LedgerContent
from connectors.core.writing import stage
from connectors.systems import ledgers_in, sink_class
from connectors_tools.cli import main
from connectors_tools.listing import ledger_facts, ledger_lines

ROWS = pa.RecordBatch.from_pylist([{"id": 1}, {"id": 2}])


def write(sink: Sink, number: int = 0, query: str = "q") -> str:
    batch = Batch(sink.sink_id(), query, number)
    Commit(sink).finish(batch, [stage(sink, batch, ROWS.schema, 0, iter([ROWS]))])
    return sink.sink_id()


def folder_sink(name: str, path: Path, **options: str) -> Sink:
    return sink_class(name).of({"path": str(path), **({"fileFormat": "json"} if name == "files" else {}), **options})


def recorded(target: object, **options: str) -> dict[str, list[tuple[str, int, int | None]]]:
    """Query, batch and rows of the entries, by sink id."""
    ledgers = ledgers_in(str(target), options)
    return {sink.sink_id: [(entry.query, entry.batch, entry.rows) for entry in sink.entries] for sink in ledgers or ()}


def show(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ledger", "show", *arguments])


def test_all_sinks_of_a_folder_are_found_with_their_newest_batches_first(tmp_path: Path) -> None:
    files, buffered = folder_sink("files", tmp_path), folder_sink("buffered", tmp_path)
    for number in range(3):
        write(files, number)
    write(buffered)
    assert recorded(tmp_path) == {
        files.sink_id(): [("q", 2, 2), ("q", 1, 2), ("q", 0, 2)],
        buffered.sink_id(): [("q", 0, 2)],
    }
    assert recorded(f"file:{tmp_path}").keys() == recorded(tmp_path).keys()


def test_a_batch_that_is_decided_and_not_published_is_pending(tmp_path: Path) -> None:
    sink = folder_sink("files", tmp_path)
    write(sink)
    ledger = sink.ledger()
    assert ledger is not None
    ledger.record(Entry("q", 1, 5))
    [content] = ledgers_in(str(tmp_path)) or []
    assert content.pending == {("q", 1)}
    lines = show(str(tmp_path)).stdout.splitlines()
    assert lines[0] == sink.sink_id()
    assert lines[1].strip() == "query q"
    assert lines[2].strip().startswith("batch 1, 5 rows, 20")
    assert lines[2].endswith(": decided, not all of it published yet")
    assert re.fullmatch(r"batch 0, 2 rows, 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d [A-Z0-9+-]+", lines[3].strip()), "with its zone"


def test_a_query_that_has_run_on_this_machine_is_named(tmp_path: Path) -> None:
    [content] = ledgers_in(str(tmp_path)) if write(folder_sink("files", tmp_path)) else []
    assert list(ledger_lines(ledger_facts(content, 1, {"q": "orders"})))[1].strip() == "query orders (q)"


def test_so_many_batches_are_shown_as_are_asked_for(tmp_path: Path) -> None:
    for number in range(9):
        write(folder_sink("files", tmp_path), number)
    assert show(str(tmp_path)).stdout.count("batch ") == 3
    assert show(str(tmp_path), "--batches", "5").stdout.count("batch ") == 5


def test_batch_writes_with_an_id_of_their_own_are_told_by_it(tmp_path: Path) -> None:
    write(folder_sink("files", tmp_path, txnAppId="nightly", txnVersion="7"), 7, "app-nightly")
    shown = show(str(tmp_path)).stdout
    assert "txnAppId nightly" in shown
    assert "txnVersion 7, 2 rows" in shown


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_database_is_found_by_its_file_and_by_its_urls(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "store.db"
    options = {"url": f"jdbc:{kind}:{file}", "dbtable": "items", "createTable": "true", "onNewQuery": "continue"}
    sink = sink_class("jdbc").of(options)
    write(sink)
    write(sink, 4, "other")
    expected = {sink.sink_id(): {("q", 0, 2), ("other", 4, 2)}}
    for target in (str(file), options["url"], f"{kind}:///{file}"):
        assert {name: set(entries) for name, entries in recorded(target, dbtable="others").items()} == expected


def commit_of_delta(folder: Path, version: int, **info: Any) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    action = json.dumps({"commitInfo": {"timestamp": 1_790_000_000_000 + version, **info}})
    (log / f"{version:020d}.json").write_text(f'{action}\n{{"add": {{"path": "x"}}}}\n')


def test_a_delta_table_is_read_by_its_log_without_spark(tmp_path: Path) -> None:
    for number in range(2):
        mark = json.dumps({"connectors": {"sink": "delta-1", "query": "q", "batch": number}})
        commit_of_delta(tmp_path, number, userMetadata=mark, operationMetrics={"numOutputRows": "30"})
    commit_of_delta(tmp_path, 2, operation="OPTIMIZE")
    assert recorded(tmp_path) == {"delta-1": [("q", 1, 30), ("q", 0, 30)]}


def test_a_sink_of_ones_own_joins_by_one_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoreSink(Sink):
        name = "store"

        @classmethod
        def ledgers_in(cls, target: str, options: Any) -> list[LedgerContent] | None:
            return [LedgerContent("store-1", (Entry("q", 8),))] if target.startswith("store://") else None

    monkeypatch.setattr("connectors.systems._ADDED", {"store": (None, StoreSink)})
    assert recorded("store://host") == {"store-1": [("q", 8, None)]}
    assert recorded(tmp_path) == {}


@pytest.mark.parametrize("target", ["/nothing/is/here", "gopher://x", "."])
def test_a_target_without_a_ledger_is_an_error(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = show(target)
    assert result.exit_code == 1
    assert f"no sink has recorded anything in {target}" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_server_that_is_away_is_an_error_of_one_line() -> None:
    result = show("redis://127.0.0.1:9")
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert "127.0.0.1:9" in result.stderr


def test_a_cluster_of_kafka_is_asked_with_the_options_of_kafka() -> None:
    result = show("kafka://127.0.0.1:9", "--option", "ledgerTopik=x")
    assert (result.exit_code, "connectionString" in result.stderr) == (2, False)
    problem = 'ledgerTopik   is no option of this connector; did you mean "ledgerTopic"?'
    assert f"connectors.kafka cannot start; 1 problem:\n  {problem}" in result.stderr


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    result = show("redis://127.0.0.1:9", "--option", "pasword=x")
    assert result.exit_code == 2
    assert "pasword" in result.stderr

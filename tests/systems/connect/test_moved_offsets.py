"""``connectors offsets`` and a connector of Connect's model: it is asked by ``alterOffsets``, and begins at the new place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.connect import ConnectException
from connectors.connect.java.debezium import groups_of
from tests.connect.database import DATABASES, Database, TablesConnector
from tests.tools.checkpoints import checkpoint, offsets

from .test_source import JSON, Query

POSTGRESQL = "io.debezium.connector.postgresql"
A, B = '{"table":"a"}', '{"table":"b"}'
Offsets = Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """A query that has read ten rows of each of two tables."""
    database = Database("a", "b")
    database.insert(10)
    query = Query(tmp_path / "query", database, value_converter=JSON, value_converter_schemas_enable="false")
    assert len(query.run()) == 20
    return query


def moved(query: Query, folder: Path, *arguments: str, code: int = 0, options: Mapping[str, str] | None = None) -> str:
    """What the command says; the query goes on from where it has put it."""
    place = checkpoint(folder, query.offset)
    known = ("--state-location", query.options["stateLocation"], "--options", json.dumps(options or query.options), "--yes")
    output = offsets(arguments[0], place, *arguments[1:], *known, code=code).output
    query.offset = json.loads((place / "offsets" / "3").read_text().splitlines()[-1])
    return output


def numbers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(f"{row['topic'][-1]}{json.loads(row['value'])['n']}" for row in rows)


def test_a_partition_goes_on_at_its_new_offset_and_the_other_where_it_was(query: Query, tmp_path: Path) -> None:
    output = moved(query, tmp_path / "back", "set", "--to-offset", json.dumps({A: {"n": 7}}))
    assert "note: the connector has not looked" in output
    assert numbers(query.run()) == ["a10", "a8", "a9"]
    assert query.run() == []
    moved(query, tmp_path / "begin", "set", "--to-offset", json.dumps({B: None}))
    assert numbers(query.run()) == sorted(f"b{n}" for n in range(1, 11))


def test_a_run_that_reads_nothing_keeps_the_new_place(query: Query, tmp_path: Path) -> None:
    moved(query, tmp_path / "ahead", "set", "--to-offset", json.dumps({A: {"n": 12}, B: {"n": 12}}))
    assert query.run() == []
    shown = json.loads(offsets("show", tmp_path / "ahead", "--state-location", query.options["stateLocation"], "--json").output)
    assert shown["sources"][0]["position"] == {A: {"n": 12}, B: {"n": 12}}
    DATABASES[str(query.folder)].insert(3)
    assert numbers(query.run()) == ["a13", "b13"]


def test_a_reset_begins_each_partition_anew(query: Query, tmp_path: Path) -> None:
    moved(query, tmp_path / "reset", "reset")
    assert len(query.run()) == 20
    assert query.run() == []


def test_a_connector_that_refuses_leaves_the_query_where_it_was(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Offsets] = []

    def alter(_: TablesConnector, props: Mapping[str, str], offsets: Offsets) -> bool:
        assert props["database"] == str(query.folder)
        asked.append(offsets)
        if any(offset and offset["n"] > 10 for _, offset in offsets):
            raise ConnectException(f"{props['name']} has 10 rows")
        return True

    monkeypatch.setattr(TablesConnector, "alter_offsets", alter)
    before = query.offset
    output = moved(query, tmp_path / "far", "set", "--to-offset", json.dumps({A: {"n": 99}}), code=1)
    assert "refuses these offsets (alterOffsets): " in output
    assert "shop has 10 rows" in output
    assert query.offset == before
    assert "note:" not in moved(query, tmp_path / "reset", "reset")
    assert asked == [[({"table": "a"}, {"n": 99})], [({"table": "a"}, None), ({"table": "b"}, None)]]


def test_a_move_of_debezium_goes_on_from_the_beginning_of_a_transaction_and_not_of_a_snapshot() -> None:
    offsets, group = {A: {"lsn": 7}, B: {"lsn": 7, "snapshot": "INITIAL"}}, {"moved": True}
    groups = groups_of({"connector.class": f"{POSTGRESQL}.PostgresConnector"}, offsets, {A: group, B: group})
    assert groups[A]["records"] == {}
    assert groups[B] == group
    assert groups_of({"connector.class": "Own"}, offsets, {A: group}) == {A: group}


@pytest.mark.parametrize(
    ("to", "message"),
    [({'{"table":"c"}': {"n": 1}}, "which the source does not have"), ({A: 7}, 'gives "{.*" 7; an offset is an object')],
)
def test_an_offset_that_cannot_be_is_refused(query: Query, tmp_path: Path, to: Any, message: str) -> None:
    before = query.offset
    assert re.search(message, moved(query, tmp_path / "wrong", "set", "--to-offset", json.dumps(to), code=2))
    assert query.offset == before


def test_the_options_of_the_source_are_needed(query: Query, tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "place", query.offset)
    log = query.options["stateLocation"]
    output = offsets("reset", place, "--state-location", log, "--yes", code=2).output
    assert "source 0 has a connector, which is asked about the move: give --options of the source." in output
    assert "from  {" not in output

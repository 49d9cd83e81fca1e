"""What a hybrid source refuses, and which option is whose."""

from __future__ import annotations

import json
import pickle
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from connectors import systems
from connectors.core import Misconfigured
from connectors.systems.hybrid import HybridSource
from connectors.systems.hybrid.source import OwnSources
from connectors.testing.source_suite import SourceQuery

from .contexts import BEGIN, SCHEMA, ClockSource, Parts

FILES = {"format": "files", "options": {"path": "/nowhere"}}
CLOCK = {"format": "clock", "options": {"path": "/nowhere"}}
QUEUE = {"format": "pubsub", "options": {"projectId": "p", "subscriptionId": "s", "stateLocation": "/nowhere"}}
STATE = {"stateLocation": "/nowhere"}
WRONG: list[tuple[Any, dict[str, str], str]] = [
    ([], {}, "sources .*must name a source"),
    ({}, {}, "sources .*must be a JSON list"),
    (["files"], {}, "number 1: format missing"),
    ([{"format": "files", "path": "/x"}], {}, "number 1: path is no option of this part"),
    ([{"format": "fils"}], {}, 'number 1: source "fils" is no source; did you mean "files"'),
    ([{"format": "cassandra"}], {}, "number 1: format cannot be cassandra"),
    ([{"format": "hybrid"}], {}, "number 1: format cannot be hybrid"),
    ([{"format": "files", "options": []}], {}, "number 1: options must be a JSON object"),
    ([{"format": "files", "columns": {"a": 1}}], {}, "number 1: columns must be names; got 1"),
    ([FILES, CLOCK], {"maxAge": "3"}, "maxage .*is no option of this source, which has .*, and of none of its parts"),
    ([{"format": "files", "options": {"Retry.maxRetries": 9}}], {}, "number 1: Retry.maxRetries holds for all parts"),
    ([QUEUE, FILES], {}, "has pubsub before another part, and a queue has no end"),
    ([FILES, FILES], {}, "two parts with the name files"),
    ([{"format": "files", "options": {"pth": "/x"}}], {}, 'files: pth .*did you mean "path"'),
    ([CLOCK, FILES], {"startFrom": "2023-01-01"}, "cannot be a time for connectors.files"),
    ([FILES, CLOCK], {"startFrom": "?!"}, "a time, or a column of times, less an overlap"),
    ([FILES, CLOCK], {"startFrom": "ts - soon"}, "a time, or a column of times, less an overlap"),
    ([FILES, CLOCK], {"startFrom": "ts"}, "stateLocation .*missing; startFrom=ts"),
    ([FILES, CLOCK], {"deduplicateBy": "id"}, "deduplicateBy .*startFrom"),
    ([FILES, CLOCK], {"deduplicateBy": "id", "startFrom": "2023-01-01"}, "needs a column in startFrom"),
    (
        [FILES, CLOCK],
        {"startFrom": "2023-01-01", "startingTime": "3"},
        "says where clock starts, and so does its startingTime",
    ),
    (
        [FILES, {"format": "clock", "options": {"path": "/x", "startingTime": 3}}],
        {"startFrom": "2023-01-01"},
        "says where clock starts, and so does its startingTime",
    ),
]


@pytest.mark.parametrize(("sources", "more", "error"), WRONG)
def test_what_cannot_work_is_refused(sources: Any, more: dict[str, str], error: str) -> None:
    with pytest.raises(Misconfigured, match=f"(?s){error}"):
        HybridSource.of({"sources": json.dumps(sources), **more}, streaming=True)


@pytest.mark.parametrize(
    ("more", "error"),
    [({"startFrom": "id"}, "names id, and the rows have no such column of type timestamp"),
     ({"startFrom": "ts", "deduplicateBy": "x"}, "names x, which the rows do not have: id, ts"),
     ({"startFrom": "ts", "deduplicateBy": "tags"}, "must name plain columns; tags is list")],
)  # fmt: skip
def test_columns_of_options_must_be_there(more: dict[str, str], error: str) -> None:
    source = HybridSource.of({"sources": json.dumps([FILES, CLOCK]), **more, **STATE}, streaming=True)
    with pytest.raises(Misconfigured, match=error):
        source.reader(SCHEMA if "tags" not in error else SCHEMA.append(pa.field("tags", pa.list_(pa.string()))))


def test_a_dot_in_the_name_of_a_column_is_no_field(parts: Parts) -> None:
    schema = pa.schema([("order.id", pa.int64())])
    (parts.folder / "a").mkdir()
    pq.write_table(pa.table([[1, 2]], schema=schema), parts.folder / "a" / "1.parquet")
    parts.parts = [{"format": "files", "options": {"path": str(parts.folder / "a")}}]
    parts.schema = schema
    assert SourceQuery(parts).rest([]) == [{"order.id": 1}, {"order.id": 2}]


@pytest.mark.parametrize("name", ["idd", "ID"])
def test_names_that_the_rows_do_not_have_are_refused(name: str) -> None:
    part = {**FILES, "columns": {name: "number"}}
    source = HybridSource.of({"sources": json.dumps([CLOCK, part])}, streaming=True)
    with pytest.raises(Misconfigured, match=f"files: columns names {name}, which the rows do not have: id, ts"):
        source.reader(SCHEMA)


def test_a_schema_is_needed_where_names_are_mapped() -> None:
    source = HybridSource.of({"sources": json.dumps([{**FILES, "columns": {"id": "number"}}])}, streaming=True)
    with pytest.raises(Misconfigured, match=r"give the types of the rows by \.schema"):
        source.schema  # noqa: B018


def test_secrets_of_parts_are_not_shown() -> None:
    parts = [{"format": "jdbc", "options": {"url": "jdbc:postgresql://h/d", "password": "hidden", "dbtable": 3}}]
    with pytest.raises(Misconfigured) as refused:
        HybridSource.of({"sources": json.dumps(parts), "startFrom": "?"}, streaming=True)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "MAXROWSPERTRIGGER", "maxOffsetsPerTrigger"])
def test_an_option_of_a_part_comes_before_that_of_all(name: str) -> None:
    clock = {"format": "clock", "options": {"path": "/x", name: 5}}
    source: Any = HybridSource.of({"sources": json.dumps([FILES, clock]), "maxRowsPerTrigger": "10"}, streaming=True)
    assert source.member(source.parts[1], None).limit().rows == 5


def test_a_time_is_in_milliseconds() -> None:
    source: Any = HybridSource.of({"sources": json.dumps([FILES, CLOCK]), "startFrom": "2023-01-01"}, streaming=True)
    assert source.member(source.parts[1], 0).values["startingTime"] == BEGIN.timestamp() * 1000


def test_a_source_of_ones_own_that_cannot_be_imported_elsewhere_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere: Any = ModuleType("elsewhere")
    elsewhere.Lost = type("Lost", (ClockSource,), {"name": "lost", "__module__": "elsewhere"})
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "elsewhere", elsewhere)
        patched.setitem(systems._ADDED, "lost", (elsewhere.Lost, None))
        pickled = cloudpickle.dumps(OwnSources())
    monkeypatch.setattr(systems, "_ADDED", {})
    pickle.loads(pickled)
    assert "lost" not in systems._ADDED
    assert systems.source_class("clock") is ClockSource


def test_an_option_above_the_parts_is_that_of_all_that_know_it() -> None:
    parts = [{**FILES, "options": {}}, {"format": "files", "name": "b", "options": {"path": "/b", "maxFilesPerTrigger": 3}}]
    options = {"path": "/a", "MAXFILESPERTRIGGER": "5", "retry.maxRetries": "7", "startingTime": "1"}
    source: Any = HybridSource.of({"sources": json.dumps([*parts, CLOCK]), **options}, streaming=True)
    first, second, clock = (source.member(part, None).values for part in source.parts)
    assert (first["path"], second["path"]) == ("/a", "/b")
    assert (first["maxFilesPerTrigger"], second["maxFilesPerTrigger"]) == (5, 3)
    assert (first["retry.maxRetries"], clock["retry.maxRetries"], clock["startingTime"]) == (7, 7, 1)

"""A history in files, then a topic on a real broker; and one topic after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors.core import Misconfigured, Poison
from connectors.core.planning import INITIAL
from connectors.systems.hybrid import HybridSource
from connectors.testing import SourceSuite, same_records
from connectors.testing.contexts import open_context
from connectors.testing.source_suite import SourceQuery

from ..kafka.source_contexts import Topic
from .contexts import BEGIN, SCHEMA, HybridContext, row, rows, write_history

MILLISECONDS = int(BEGIN.timestamp() * 1000)
COLUMNS = {"id": "value.id", "ts": "value.ts"}


def send(topic: Topic, first: int, end: int) -> None:
    """Rows as JSON, each with its own time as that of the record."""
    for number in range(first, end):
        value = {name: cell.isoformat() if isinstance(cell, datetime) else cell for name, cell in row(number).items()}
        topic.send([json.dumps(value).encode()], number % topic.partitions, at=MILLISECONDS + number * 1000)


def kafka(topic: Topic, **more: str) -> dict[str, Any]:
    """The topic as a part, from its first record where nothing else is said."""
    options = {"value.format": "json", "schema": "id bigint, ts timestamp", **topic.options(), **more}
    del options["startingOffsets"]
    return {"format": "kafka", "name": topic.name, "options": options, "columns": COLUMNS}


class FilesToKafkaContext(HybridContext):
    """The topic has half of the history, too, and all that comes."""

    unordered = "files and topic may be read side by side"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.topic = Topic(3)

    def options(self) -> dict[str, str]:
        history = {"format": "files", "options": {"path": str(self.folder / "history")}}
        state = {"stateLocation": str(self.folder / "state")}
        return {
            "sources": json.dumps([history, kafka(self.topic)]), "startFrom": "ts - 5 seconds", "deduplicateBy": "id", **state
        }

    def write(self, count: int) -> list[dict[str, Any]]:
        first, self.count = self.count, self.count + count
        half = first or -(-count // 2)
        for begin in range(first, half, 5):
            write_history(self.folder / "history", begin, min(begin + 5, half))
        send(self.topic, first or half // 2, self.count)
        return rows(first, self.count)


class TestFilesToKafka(SourceSuite):
    context = FilesToKafkaContext


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A system whose options are those of each test."""
    monkeypatch.setattr(FilesToKafkaContext, "options", lambda _: {})
    with open_context(FilesToKafkaContext, tmp_path / "system") as system:
        yield system
        for planner in system.planners:
            planner.close()


def query(system: FilesToKafkaContext, *parts: Mapping[str, Any], **options: str) -> SourceQuery:
    return SourceQuery(system, **{"sources": json.dumps(parts), **options})


@pytest.mark.parametrize("column", ["value.idd", "valeu", "value.ID"])
def test_columns_that_a_part_does_not_have_are_refused(column: str) -> None:
    topic = Topic(1)
    part = {**kafka(topic), "columns": {**COLUMNS, "id": column}}
    source = HybridSource.of({"sources": json.dumps([part])}, streaming=True)
    with pytest.raises(Misconfigured, match=f"has no {column} for the column id"):
        source.reader(SCHEMA)


def test_one_topic_after_the_other_from_their_first_records(system: Any) -> None:
    before, after = Topic(2), Topic(2)
    send(before, 0, 10)
    send(after, 8, 12)
    log: list[Any] = []
    same_records(query(system, kafka(before), kafka(after)).rest(log), [*rows(0, 10), *rows(8, 12)])
    send(before, 20, 25)
    send(after, 12, 13)
    same_records(query(system, kafka(before), kafka(after)).rest(log), rows(12, 13))


def test_each_part_has_the_parallelism_that_it_has_alone(system: Any) -> None:
    topic = Topic(5)
    send(topic, 0, 10)
    reading = query(system, kafka(topic))
    log: list[Any] = []
    reading.plan(log)
    assert len(reading.planner.slices(INITIAL, log[0])) == 5


def test_a_topic_starts_at_a_time_which_some_partitions_have_not_reached(system: Any) -> None:
    before, after = Topic(1), Topic(3)
    send(before, 0, 10)
    send(after, 0, 11)
    log: list[Any] = []
    start = {"startFrom": "2023-01-01T00:00:10Z"}
    same_records(query(system, kafka(before), kafka(after), **start).rest(log), rows(0, 11))
    send(after, 11, 15)
    same_records(query(system, kafka(before), kafka(after), **start).rest(log), rows(11, 15))


def test_bad_records_of_two_parts_are_letters_of_their_own(system: Any, tmp_path: Path) -> None:
    topic = Topic(1)
    topic.send([b"?"], 0, at=MILLISECONDS)
    send(topic, 0, 2)
    twice = [kafka(topic), {**kafka(topic), "name": "again"}]
    with pytest.raises(Poison, match=f"connectors.hybrid, part {topic.name}, .*offset"):
        query(system, *twice).rest([])
    for part in twice:
        part["options"] |= {"errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    same_records(query(system, *twice).rest([]), [*rows(0, 2), *rows(0, 2)])
    assert sum(pq.read_metadata(file).num_rows for file in (tmp_path / "letters").rglob("*.parquet")) == 2

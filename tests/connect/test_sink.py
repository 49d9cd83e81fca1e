"""Sink connectors: put and flush, offsets in the target, schemas, topics that come and go, dead letters."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.connect import SchemaException
from connectors.connect.errors import ConnectException
from connectors.core import Batch, Guarantee, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.connect import ConnectSink

from . import sinks
from .sinks import TARGETS, Target

STRING = "org.apache.kafka.connect.storage.StringConverter"


class Write:
    """A sink over a target of its own, and what its batches do."""

    def __init__(self, kind: type, options: Mapping[str, str] | None = None, **properties: str) -> None:
        self.target = Target()
        name = f"target-{len(TARGETS)}"
        TARGETS[name] = self.target
        dotted = {key.replace("_", "."): value for key, value in properties.items()}
        config = {
            "name": "test",
            "connector.class": f"{kind.__module__}.{kind.__qualname__}",
            "target": name,
            "value.converter": STRING,
            **dotted,
        }
        self.sink = ConnectSink.of({"config": json.dumps(config), **(options or {})})

    def batch(self, rows: list[dict[str, Any]] | pa.Table, number: int = 0, subtask: int = 0) -> None:
        """Stages rows and commits them, as a batch."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        batch = Batch(self.sink.sink_id(), "query", number, run="run")
        staged = stage(self.sink, batch, table.schema, subtask, iter(table.to_batches()))
        Commit(self.sink).finish(batch, [staged])


def rows(count: int, topic: str = "t") -> list[dict[str, Any]]:
    return [{"topic": topic, "value": f"v{number}"} for number in range(count)]


def test_con_08_flush_comes_before_the_commit_and_everything_is_there_then() -> None:
    write = Write(sinks.BufferingConnector)
    write.batch(rows(1200))
    assert write.target.tables == {"t": [f"v{number}" for number in range(1200)]}
    assert write.target.events == ["start", "open t-0", "flushed", "close", "stop"]


def test_con_08_a_task_that_acknowledges_late_is_waited_for() -> None:
    write = Write(sinks.SlowConnector)
    write.batch(rows(9))
    assert write.target.tables == {"t": [f"v{number}" for number in range(9)]}


def test_con_09_a_sink_that_keeps_offsets_in_its_target_writes_a_replay_once() -> None:
    write = Write(sinks.OffsetConnector)
    assert write.sink.guarantee() is Guarantee.EXACTLY_ONCE
    table = pa.table(
        {
            "topic": ["t"] * 10,
            "partition": pa.array([number % 2 for number in range(10)], pa.int32()),
            "offset": pa.array([number // 2 for number in range(10)], pa.int64()),
            "value": [f"v{number}" for number in range(10)],
        }
    )
    write.batch(table.slice(0, 6))
    write.batch(table)  # the batch before was written and not committed: it comes again, with more
    write.batch(table)
    write.batch(table.slice(0, 4))  # a new checkpoint begins where the target has been long ago
    write.batch(table.slice(4))
    assert sorted(write.target.tables["t"]) == [f"v{number}" for number in range(10)]


def test_con_09_exactly_once_needs_offsets_in_the_rows() -> None:
    sink = Write(sinks.OffsetConnector).sink
    with pytest.raises(Misconfigured, match="partition and offset"):
        sink.refuse_frame(pa.schema([("value", pa.string()), ("topic", pa.string())]), placed=True)
    with pytest.raises(Misconfigured, match=r"exactly-once.*is not possible, only.*at-least-once"):
        Write(sinks.BufferingConnector, {"guarantee": "exactly-once"})


def test_con_12_new_topics_are_opened_as_they_come_and_tasks_create_one_table_once() -> None:
    write = Write(sinks.BufferingConnector, tasks_max="4")
    start = threading.Barrier(4)

    def task(subtask: int) -> None:
        start.wait()
        write.batch([*rows(5, "new"), *rows(5, f"own-{subtask}")], subtask=subtask)

    threads = [threading.Thread(target=task, args=(subtask,)) for subtask in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(write.target.tables["new"]) == 20
    assert sorted(write.target.created) == ["new", "own-0", "own-1", "own-2", "own-3"]


def test_con_13_topics_by_a_pattern_come_and_go() -> None:
    write = Write(sinks.BufferingConnector, topics_regex="db-.*")
    write.batch([*rows(2, "db-a"), *rows(2, "other")], 0)
    write.batch([*rows(1, "db-b"), *rows(1, "db-a")], 1)
    write.batch(rows(1, "db-c"), 2)
    assert {topic: len(values) for topic, values in write.target.tables.items()} == {"db-a": 3, "db-b": 1, "db-c": 1}
    named = Write(sinks.BufferingConnector, topics="a,b")
    named.batch([*rows(1, "a"), *rows(1, "b"), *rows(1, "c")])
    assert set(named.target.tables) == {"a", "b"}


def test_con_17_a_schema_that_does_not_fit_is_an_error_that_names_both() -> None:
    write = Write(sinks.StrictConnector, topics="people")
    write.batch(pa.table({"name": ["Barbara Liskov"], "age": pa.array([75], pa.int32())}))
    assert write.target.tables["people"][0].to_dict() == {"name": "Barbara Liskov", "age": 75}
    with pytest.raises(
        SchemaException,
        match=r"(?s)topic people must have .*age: INT32.*and has .*age: STRING.*age is STRING, not INT32",
    ):
        write.batch(pa.table({"name": ["x"], "age": ["seventy-five"]}), 1)


def test_an_outage_is_waited_for_with_the_same_records() -> None:
    write = Write(sinks.BufferingConnector, {"restart.initialBackoff": "10ms"})
    write.target.outages = 3
    write.batch(rows(4))
    assert write.target.tables == {"t": ["v0", "v1", "v2", "v3"]}
    short = Write(sinks.BufferingConnector, {"restart.initialBackoff": "10ms", "outageTimeout": "50ms"})
    short.target.outages = 1000
    with pytest.raises(Transient, match="the target is away"):
        short.batch(rows(1))


def test_transforms_stand_between_converters_and_the_task() -> None:
    write = Write(
        sinks.BufferingConnector,
        transforms="route,hoist",
        transforms_route_type="org.apache.kafka.connect.transforms.RegexRouter",
        transforms_route_regex="(.*)",
        transforms_route_replacement="new-$1",
        transforms_hoist_type="org.apache.kafka.connect.transforms.HoistField$Value",
        transforms_hoist_field="line",
    )
    write.batch(rows(2))
    assert [value.to_dict() for value in write.target.tables["new-t"]] == [{"line": "v0"}, {"line": "v1"}]


def test_of_a_thousand_records_two_fail_and_998_are_written(tmp_path: Path) -> None:
    write = Write(
        sinks.BufferingConnector,
        {"deadLetterPath": str(tmp_path / "letters")},
        value_converter="org.apache.kafka.connect.json.JsonConverter",
        value_converter_schemas_enable="false",
        key_converter=STRING,
        errors_tolerance="all",
    )
    write.target.refuses = {700}
    values = [b"{no json" if number == 500 else str(number).encode() for number in range(1000)]
    table = pa.table({"topic": ["t"] * 1000, "key": [b"k"] * 1000, "value": values})
    write.batch(table)
    write.batch(table)  # a replay
    assert len(write.target.tables["t"]) == 2 * 998
    letters = pq.read_table(tmp_path / "letters").to_pylist()
    assert len(letters) == 2  # once, also after the replay
    by_record = {letter["record"]: letter for letter in letters}
    headers = {header["key"]: header["value"] for header in by_record[b"{no json"]["headers"]}
    assert headers["__connect.errors.topic"] == b"t"
    assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert headers["__connect.errors.exception.class.name"] == b"org.apache.kafka.connect.errors.DataException"
    assert b"serialization error" in headers["__connect.errors.exception.message"]
    assert headers["__connect.errors.connector.name"] == b"test"
    assert by_record[b"{no json"]["key"] == b"k"
    refused = {h["key"]: h["value"] for h in by_record[b"700"]["headers"]}
    assert refused["__connect.errors.stage"] == b"TASK_PUT"
    assert refused["__connect.errors.exception.message"] == b"the target refuses 700"


def test_without_tolerance_the_first_bad_record_fails_the_batch() -> None:
    write = Write(sinks.BufferingConnector, value_converter="org.apache.kafka.connect.json.JsonConverter")
    with pytest.raises(ConnectException, match="Tolerance exceeded in error handler: VALUE_CONVERTER"):
        write.batch([{"topic": "t", "value": "{"}])
    assert write.target.tables == {}


def test_wrong_options_are_told_together() -> None:
    config = {
        "connector.class": "FileStreamSource",
        "topics": "a",
        "topics.regex": "(",
        "errors.deadletterqueue.topic.name": "dlq",
    }
    with pytest.raises(Misconfigured) as refused:
        ConnectSink.of({"config": json.dumps(config), "deadLetterPath": "/tmp/x"})
    options = {problem.option for problem in refused.value.problems}
    assert options >= {"connector.class", "topics.regex", "errors.deadletterqueue.topic.name", "deadLetterPath"}

"""Sink connectors: put and flush, offsets in the target, schemas, topics that come and go, dead letters."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.connect import RecordConverter, RetriableException, Schema, SchemaException
from connectors.connect.connector import TopicPartition
from connectors.connect.errors import ConnectException
from connectors.connect.host import DeadLetter
from connectors.core import Batch, Committable, Guarantee, Misconfigured, Transient
from connectors.core.commit import Commit
from connectors.core.metrics import Meter
from connectors.core.writing import stage
from connectors.ground.errors import Fatal
from connectors.spark.measure import count_commit
from connectors.systems.connect import ConnectSink
from connectors.systems.connect.sink import sink_rows
from connectors_tools.letters import Filter, Letters

from . import file_connectors, sinks
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
        staged = self.stage(rows, number, subtask)
        Commit(self.sink).finish(self._batch(number), [staged])

    def stage(self, rows: list[dict[str, Any]] | pa.Table, number: int = 0, subtask: int = 0) -> Committable:
        """Stages rows: what a driver does that dies before the commit."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        return stage(self.sink, self._batch(number), table.schema, subtask, iter(table.to_batches()))

    def _batch(self, number: int) -> Batch:
        return Batch(self.sink.sink_id(), "query", number, run="run")


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


def test_con_09_a_task_that_stood_still_writes_nothing_behind_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    write, flush = Write(sinks.OffsetConnector), sinks.OffsetTask.flush

    def flush_behind_another(task: sinks.OffsetTask, offsets: Any) -> None:
        monkeypatch.undo()
        write.batch(placed_rows("t", 0, 6))
        write.batch(placed_rows("t", 6, 9), 1)
        flush(task, offsets)

    monkeypatch.setattr(sinks.OffsetTask, "flush", flush_behind_another)
    with pytest.raises(RuntimeError, match="another task has gone on"):
        write.stage(placed_rows("t", 0, 6))
    write.batch(placed_rows("t", 9, 12), 2)
    assert len(write.target.tables["t"]) == len(set(write.target.tables["t"])) == 12


def test_con_09_exactly_once_needs_offsets_in_the_rows() -> None:
    sink = Write(sinks.OffsetConnector).sink
    with pytest.raises(Misconfigured, match="partition and offset"):
        sink.refuse_frame(pa.schema([("value", pa.string()), ("topic", pa.string())]), placed=True)
    with pytest.raises(Misconfigured, match=r"exactly-once.*is not possible, only.*at-least-once"):
        Write(sinks.BufferingConnector, {"guarantee": "exactly-once"})


class PlacedWrite(Write):
    """Twenty rows into a target that keeps offsets and refuses two of them; a third one is no JSON."""

    def __init__(self, folder: Path) -> None:
        json_values = {"value_converter": "org.apache.kafka.connect.json.JsonConverter"}
        schemaless = {"value_converter_schemas_enable": "false", "errors_tolerance": "all"}
        super().__init__(sinks.RefusingConnector, {"deadLetterPath": str(folder)}, **json_values, **schemaless)
        self.folder = folder
        self.target.refuses = {3, 18}

    def placed(self, first: int = 0, end: int = 20) -> pa.Table:
        values = [b"{" if number == 7 else b"%d" % number for number in range(first, end)]
        rows = placed_rows("t", first, end)
        return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values))

    def letters(self) -> list[int]:
        """The offsets of the dead letters."""
        return sorted(json.loads(letter["position"])["offset"] for letter in pq.read_table(self.folder).to_pylist())

    def counts(self, rows: pa.Table) -> tuple[float, ...]:
        """What the metrics say of an attempt: rows, errors, dead letters."""
        meter = Meter()
        count_commit(meter, 0.0, [self.stage(rows)])
        return tuple(meter.rows[""].get(name, 0) for name in ("rows", "errors", "dead_letters"))

    def expect(self, *letters: int) -> None:
        """Each of the rows is in the target or a dead letter, once."""
        assert self.letters() == list(letters)
        assert sorted(self.target.tables["t"]) == [number for number in range(20) if number not in letters]


def test_a_driver_that_dies_before_the_commit_leaves_its_letters_to_the_replay(tmp_path: Path) -> None:
    write = PlacedWrite(tmp_path)
    write.stage(write.placed())
    write.batch(write.placed())
    write.expect(3, 7, 18)
    write.batch(write.placed())  # the driver has died behind the commit
    write.expect(3, 7, 18)


@pytest.mark.parametrize("moment", ["refused", "committed"])
def test_a_task_that_dies_between_a_letter_and_the_targets_commit_or_behind_it_loses_no_row(
    tmp_path: Path, moment: str
) -> None:
    write = PlacedWrite(tmp_path)
    write.target.deaths = [moment]
    with pytest.raises(RuntimeError, match="dead where"):
        write.stage(write.placed())
    assert write.counts(write.placed()) == (17, 3, 3)
    write.batch(write.placed(0, 9))  # Spark has made other tasks, and other pieces, of the same rows
    write.batch(write.placed(9, 20))
    write.expect(3, 7, 18)


def test_a_row_that_is_a_dead_letter_stays_one_when_the_target_would_take_it_later(tmp_path: Path) -> None:
    write = PlacedWrite(tmp_path)
    write.target.deaths = ["refused"]
    with pytest.raises(RuntimeError, match="dead where"):
        write.stage(write.placed())
    write.target.refuses = {11}
    write.batch(write.placed())
    write.expect(3, 7, 11, 18)


def test_two_attempts_at_once_set_a_row_aside_once(tmp_path: Path) -> None:
    write = PlacedWrite(tmp_path)
    batch = Batch(write.sink.sink_id(), "query", 0)
    boxes = [write.sink.placed_letters(batch), write.sink.placed_letters(batch)]
    for box, offsets in zip([*boxes, boxes[0]], [(1, 2), (2, 3), (3, 4)], strict=True):
        assert box is not None
        box.put([DeadLetter("t", 0, offset, None, None, [], None, "TASK_PUT", "", "", "") for offset in offsets])
    assert write.letters() == [1, 2, 3, 4]


def test_a_letter_that_was_removed_stays_the_letter_of_its_row(tmp_path: Path) -> None:
    write = PlacedWrite(tmp_path)
    write.target.refuses = {3}
    batch = Batch(write.sink.sink_id(), "query", 0)
    box = write.sink.placed_letters(batch)
    assert box is not None
    box.put([DeadLetter("t", 0, offset, None, None, [], None, "TASK_PUT", "", "", "") for offset in (1, 2)])
    Letters(str(tmp_path)).drop(Filter())
    replay = write.sink.placed_letters(batch)
    assert replay is not None
    assert replay.offsets(TopicPartition("t", 0)) == {1, 2}


def test_a_row_that_a_task_reports_again_since_its_call_is_tried_again_is_one_letter(tmp_path: Path) -> None:
    write = Write(
        sinks.ReportingConnector, {"deadLetterPath": str(tmp_path), "restart.initialBackoff": "10ms"}, errors_tolerance="all"
    )
    write.target.refuses, write.target.outages = {"v1"}, 2
    write.batch(rows(3))
    assert pq.read_table(tmp_path).num_rows == 1
    assert write.target.tables == {"t": ["v0", "v2"]}


def test_what_a_task_refuses_when_it_is_closed_is_a_letter(tmp_path: Path) -> None:
    options = {"deadLetterPath": str(tmp_path), "offsets": "sink"}
    write = Write(sinks.ClosingConnector, options, size="3", errors_tolerance="all")
    write.target.refuses = {"v3"}
    write.batch(rows(5))
    assert write.target.tables == {"t": ["v0", "v1", "v2", "v4"]}
    assert [letter["record"] for letter in pq.read_table(tmp_path).to_pylist()] == [b"v3"]


def test_without_exactly_once_the_offsets_of_a_target_leave_no_row_out() -> None:
    write = Write(sinks.OffsetConnector, {"guarantee": "at-least-once"}, topics="t")
    write.batch(pa.table({"value": ["a", "b", "c"]}), 0)
    write.batch(pa.table({"value": ["d"]}), -1)  # df.write
    write.batch(pa.table({"value": ["e"]}), -1)
    write.batch(pa.table({"value": ["f"]}), 0)  # a new checkpoint
    write.batch(placed_rows("t", 100, 102), 1)
    write.batch(placed_rows("t", 0, 2), 1)  # of another Spark task, which comes later
    assert write.target.tables == {"t": [*"abcdef", "t-100", "t-101", "t-0", "t-1"]}


def placed_rows(topic: str, first: int, end: int) -> pa.Table:
    """Rows of partition 0 of a topic."""
    count = end - first
    return pa.table(
        {
            "topic": [topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first, end), pa.int64()),
            "value": [f"{topic}-{number}" for number in range(first, end)],
        }
    )


def test_con_09_a_task_that_changes_its_records_leaves_exactly_once_as_it_is() -> None:
    write = Write(sinks.RoutingConnector, {"outageTimeout": "1s"})
    write.batch(placed_rows("x", 0, 4), 0)
    write.batch(placed_rows("x", 0, 5), 0)  # a replay, with more
    write.batch(placed_rows("y", 0, 3), 1)
    assert write.target.tables == {"all": [*(f"x-{number}" for number in range(5)), *(f"y-{number}" for number in range(3))]}


def test_exactly_once_refuses_a_row_without_a_place_and_other_sinks_fill_it() -> None:
    table = pa.table(
        {
            "topic": ["t"] * 3,
            "partition": pa.array([1, None, 1], pa.int32()),
            "offset": pa.array([5, 6, None], pa.int64()),
            "value": ["a", "b", "c"],
        }
    )
    with pytest.raises(Fatal, match=r"(?s)null in partition or offset.*guarantee=at-least-once"):
        Write(sinks.OffsetConnector).batch(table)
    places = [(row["partition"], row["offset"]) for row in sink_rows(table.to_batches()[0], None, 7, 40).to_pylist()]
    assert places == [(1, 5), (7, 6), (1, 42)]
    write = Write(sinks.BufferingConnector)
    write.batch(table, subtask=7)
    assert write.target.tables == {"t": ["a", "b", "c"]}


def test_con_08_an_offset_that_a_task_names_once_counts_and_a_partition_that_it_never_names_is_an_error() -> None:
    write = Write(sinks.RotatingConnector, {"outageTimeout": "1s"}, size="2", consumer_override_max_poll_records="2")
    write.batch(rows(4))
    assert write.target.tables == {"t": ["v0", "v1", "v2", "v3"]}
    short = Write(sinks.RotatingConnector, {"outageTimeout": "100ms"}, size="3")
    with pytest.raises(Transient, match=r"(?s)not acknowledged t-0 for outageTimeout=0.1s.*shorter than a batch"):
        short.batch(rows(4))


def test_with_offsets_of_the_sink_only_what_an_answer_names_is_waited_for() -> None:
    write = Write(sinks.RotatingConnector, {"outageTimeout": "10 minutes", "offsets": "sink"}, size="3")
    write.batch(rows(4))
    assert write.target.tables == {"t": ["v0", "v1", "v2"]}  # the fourth is the connector's own to keep
    slow = Write(sinks.SlowConnector, {"offsets": "sink"})
    slow.batch(rows(9))
    assert len(slow.target.tables["t"]) == 9
    offsets = Write(sinks.OffsetConnector, {"offsets": "sink"})
    assert offsets.sink.guarantee() is Guarantee.AT_LEAST_ONCE
    with pytest.raises(Misconfigured, match=r"exactly-once.*is not possible.*offsets=sink"):
        Write(sinks.OffsetConnector, {"offsets": "sink", "guarantee": "exactly-once"})


@pytest.mark.parametrize("offsets", ["spark", "sink"])
def test_a_task_that_asks_for_rows_again_that_it_could_not_write_fails_its_batch(offsets: str) -> None:
    write = Write(sinks.RewindingConnector, {"offsets": offsets}, size="2", consumer_override_max_poll_records="2")
    write.target.outages = 1
    with pytest.raises(Transient, match=r"(?s)asks for t-0 from offset 100 on again.*its last batch comes again"):
        write.batch(placed_rows("t", 100, 106))
    write.batch(placed_rows("t", 100, 106))
    assert write.target.tables == {"t": [f"t-{number}" for number in range(100, 106)]}


def test_dead_letters_behind_the_last_record_need_no_acknowledgement(tmp_path: Path) -> None:
    write = Write(
        sinks.RotatingConnector,
        {"outageTimeout": "1s", "deadLetterPath": str(tmp_path)},
        size="2",
        errors_tolerance="all",
    )
    write.batch(pa.table({"topic": ["t"] * 4, "value": [b"a", b"b", b"\xff", b"\xff"]}))
    assert write.target.tables == {"t": ["a", "b"]}
    assert pq.read_table(tmp_path).num_rows == 2


def test_a_connector_that_has_failed_is_started_anew_for_the_next_batch() -> None:
    write = Write(sinks.RevokedConnector)
    with pytest.raises(ConnectException, match="the token has expired"):
        write.batch(rows(1))
    write.batch(rows(1))
    assert write.target.tables == {"t": ["v0"]}


def test_times_with_microseconds_are_milliseconds_in_connect_rounded_down() -> None:
    after = datetime.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=datetime.timezone.utc)
    before = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=datetime.timezone.utc)
    time = pa.timestamp("us", tz="UTC")
    times = pa.array([after, before], time)
    table = pa.table(
        {
            "topic": ["t"] * 2,
            "timestamp": times,
            "at": times,
            "inner": pa.StructArray.from_arrays([times], ["at"], mask=pa.array([False, True])),
            "list": pa.array([None, [after]], pa.list_(time)),
            "map": pa.array([[("a", after), ("b", before)], None], pa.map_(pa.string(), time)),
        }
    )
    write = Write(sinks.BufferingConnector)
    write.batch(pa.concat_tables([table.slice(1), table.slice(0, 1)]))
    earlier, later = (value.to_dict() for value in write.target.tables["t"])
    floored = after.replace(microsecond=123_000), before.replace(microsecond=999_000)
    assert earlier == {"at": floored[1], "inner": None, "list": [floored[0]], "map": None}
    expected = {"a": floored[0], "b": floored[1]}
    assert later == {"at": floored[0], "inner": {"at": floored[0]}, "list": None, "map": expected}


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


@pytest.mark.parametrize("kind", [sinks.BufferingConnector, sinks.PoppingConnector])
def test_an_outage_is_waited_for_with_the_same_records(kind: type) -> None:
    write = Write(kind, {"restart.initialBackoff": "10ms"})
    write.target.outages = 3
    write.batch(rows(4))
    assert write.target.tables == {"t": ["v0", "v1", "v2", "v3"]}
    short = Write(kind, {"restart.initialBackoff": "10ms", "outageTimeout": "50ms"})
    short.target.outages = 1000
    with pytest.raises(Transient, match="the target is away"):
        short.batch(rows(1))


class AwayConverter(RecordConverter):
    """Its system is away twice, and it refuses one value."""

    outages = 2

    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        raise NotImplementedError

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        if value == b"v1":
            raise ValueError("refused")
        if AwayConverter.outages and value == b"v3":
            AwayConverter.outages -= 1
            raise RetriableException("the registry is away")
        return None, None if value is None else value.decode()


def test_an_outage_of_a_converter_is_waited_for_and_makes_no_dead_letters(tmp_path: Path) -> None:
    options = {"deadLetterPath": str(tmp_path), "restart.initialBackoff": "10ms"}
    converter = f"{__name__}.AwayConverter"
    write = Write(sinks.BufferingConnector, options, errors_tolerance="all", value_converter=converter)
    write.batch(rows(5))
    assert write.target.tables == {"t": ["v0", "v2", "v3", "v4"]}
    assert [letter["error"] for letter in pq.read_table(tmp_path).to_pylist()] == ["refused"]


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
        "connector.class": file_connectors.SOURCE,
        "topics": "a",
        "topics.regex": "(",
        "errors.deadletterqueue.topic.name": "dlq",
    }
    with pytest.raises(Misconfigured) as refused:
        ConnectSink.of({"config": json.dumps(config), "deadLetterPath": "/tmp/x"})
    options = {problem.option for problem in refused.value.problems}
    assert options >= {"connector.class", "topics.regex", "errors.deadletterqueue.topic.name", "deadLetterPath"}
    assert "bootstrap.servers" in options
    assert "has no use beside errors.deadletterqueue.topic.name" in str(refused.value)

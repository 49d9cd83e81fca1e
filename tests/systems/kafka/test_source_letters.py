"""Dead letters of the source: each can be sent again as it was, and is there once, whatever a replay finds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from connectors.core.planning import INITIAL
from connectors.ground.retry import RetryObserver, observed_retries

from .reading import Query
from .source_contexts import SCHEMA, Topic

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
STRICT = pa.struct([("id", pa.int64())])


class LetterQuery(Query):
    """A query over one topic that sets JSON aside which does not fit ``value``; made again, it may have another type."""

    def __init__(self, topic: Topic, folder: Path, value: pa.StructType = STRICT, **more: Any) -> None:
        columns = {field.name: field.type for field in SCHEMA} | {"value": value}
        if more.get("includeHeaders") == "true":
            columns["headers"] = HEADERS
        kinds = {pa.int64(): "long", pa.string(): "string"}
        fields = ", ".join(f"{field.name} {kinds[field.type]}" for field in value)
        options = {"value.format": "json", "schema": fields, "errors": "deadLetter", "deadLetterPath": str(folder)}
        log = more.pop("log", None)
        super().__init__(topic.options(**options, **more), log, schema=pa.schema(columns))

    def replay(self) -> list[Any]:
        """The values of the batches in the log, from the first one on."""
        log, self.log = self.log, []
        return [row["value"] for start, end in zip([INITIAL, *log], log, strict=False) for row in self.run(start, end)]


def letters(folder: Path) -> list[dict[str, Any]]:
    """All letters, by offset and record."""
    rows = [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: (offset(row), row["record"]))


def offset(letter: dict[str, Any]) -> int:
    return int(json.loads(letter["position"])["offset"])


def records(folder: Path) -> list[tuple[int, bytes]]:
    return [(offset(letter), letter["record"]) for letter in letters(folder)]


def as_sent(headers: Sequence[tuple[str, bytes | None]] | None) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None


SEVERAL = [("trace", b"a-1"), ("origin", b"\xff\x00"), ("empty", b"")]
NULL = [("trace", None), ("origin", b"shop")]
REPEATED = [("via", b"first"), ("via", b"second"), ("trace", b"a"), ("via", b"first")]


@pytest.mark.parametrize("include", ["false", "true"])
@pytest.mark.parametrize("key", [b"order-7", b"\xff\x00", None], ids=["text", "bytes", "none"])
@pytest.mark.parametrize("headers", [SEVERAL, NULL, REPEATED, None], ids=["several", "null value", "repeated", "none"])
def test_a_letter_has_the_key_headers_and_time_of_its_record(
    tmp_path: Path, headers: list[tuple[str, bytes]] | None, key: bytes | None, include: str
) -> None:
    topic = Topic(1)
    other = [("trace", b"of another record")]
    topic.send([b'{"id": 0}'], headers=other)
    (sent,) = topic.send([b"{broken}"], at=1_600_000_000_123, key=key, headers=headers)
    topic.send([b'{"id": 2}'], headers=other)
    assert LetterQuery(topic, tmp_path, includeHeaders=include).values() == [{"id": 0}, {"id": 2}]
    (letter,) = letters(tmp_path)
    assert (offset(letter), letter["record"]) == (1, b"{broken}")
    assert (letter["key"], letter["headers"]) == (key, as_sent(headers))
    assert letter["timestamp"] == sent["timestamp"]


@pytest.mark.parametrize(
    ("at", "microseconds"),
    [(1_600_000_000_123_000, 1_600_000_000_123_000_000), (1_600_000_000_123_000_000, (2**63 - 1) // 1000 * 1000)],
)
def test_a_letter_of_a_year_that_no_datetime_has_is_read_and_is_there_once(
    tmp_path: Path, at: int, microseconds: int
) -> None:
    topic = Topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    topic.send([b'{"id": 0}'])
    producer = Producer({"bootstrap.servers": topic.server.bootstrap})
    producer.produce(topic.name, b"{broken}", timestamp=at)
    assert producer.flush(30) == 0
    for _ in range(2):
        assert LetterQuery(topic, tmp_path).values() == [{"id": 0}]
    (file,) = tmp_path.glob("*.parquet")
    assert pq.read_table(file)["timestamp"].cast(pa.int64()).to_pylist() == [microseconds]


@pytest.mark.parametrize("include", ["false", "true"])
def test_each_of_many_letters_has_the_headers_of_its_own_record(tmp_path: Path, include: str) -> None:
    topic = Topic(2)
    for number in range(40):
        value = b"{broken}" if number % 3 == 0 else b'{"id": %d}' % number
        headers = [("number", b"%d" % number)] if number % 4 else None
        topic.send([value], number % 2, key=b"%d" % number, headers=headers)
    LetterQuery(topic, tmp_path, includeHeaders=include, minPartitions="7").values()
    by_key = {letter["key"]: letter["headers"] for letter in letters(tmp_path)}
    numbers = [(b"%d" % number, [("number", b"%d" % number)] if number % 4 else None) for number in range(0, 40, 3)]
    assert by_key == {key: as_sent(headers) for key, headers in numbers}


def test_headers_are_waited_for_when_the_broker_is_away_while_they_are_read(tmp_path: Path) -> None:
    topic = Topic(1)
    topic.send([b"{broken}"], headers=SEVERAL)
    query = LetterQuery(topic, tmp_path, **{"kafkaConsumer.pollTimeoutMs": "1000", "retry.initialBackoff": "100ms"})
    (part,) = query.planner.slices(INITIAL, query.planner.latest(INITIAL))
    (split,) = query.planner.enumerator.splits_of(part)
    with contextlib.closing(query.source.reader(query.schema)) as reader:
        (batch,) = reader.read(split)

    class BringBack(RetryObserver):
        retries = 0

        def retried(self) -> None:
            self.retries += 1
            signal_broker(topic, signal.SIGCONT)

    observer = BringBack()
    emitter = query.source.emitter(query.schema)
    assert emitter is not None
    signal_broker(topic, signal.SIGSTOP)
    try:
        with observed_retries(observer):
            emitter.emit(batch, split)
    finally:
        signal_broker(topic, signal.SIGCONT)
    emitter.finish(split)
    assert observer.retries
    assert [letter["headers"] for letter in letters(tmp_path)] == [as_sent(SEVERAL)]


def signal_broker(topic: Topic, number: signal.Signals) -> None:
    for child in topic.server.children:
        os.killpg(child.pid, number)
        while number is signal.SIGSTOP and not _stands_still(child.pid):
            time.sleep(0.01)


def _stands_still(process: int) -> bool:
    """A busy machine takes a moment to stop all threads of a process."""
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(state == "T" for state in states)


def test_a_letter_has_what_the_rows_leave_out(tmp_path: Path) -> None:
    topic = Topic(1)
    (sent,) = topic.send([b"{broken}"], key=b"order-7", headers=SEVERAL)
    topic.send([b'{"id": 1}'])
    query = LetterQuery(topic, tmp_path)
    query.schema = pa.schema([query.schema.field("value")])
    assert query.next() == [{"value": {"id": 1}}]
    (letter,) = letters(tmp_path)
    assert (letter["key"], letter["headers"]) == (b"order-7", as_sent(SEVERAL))
    assert letter["timestamp"] == sent["timestamp"]
    assert json.loads(letter["position"]) == {"topic": topic.name, "partition": 0, "offset": 0}


def test_rows_beside_letters_keep_their_headers(tmp_path: Path) -> None:
    topic = Topic(1)
    topic.send([b"{broken}"], headers=SEVERAL)
    topic.send([b'{"id": 1}'], headers=REPEATED)
    rows = LetterQuery(topic, tmp_path, includeHeaders="true").next()
    assert rows is not None
    assert [row["headers"] for row in rows] == [as_sent(REPEATED)]
    assert [letter["headers"] for letter in letters(tmp_path)] == [as_sent(SEVERAL)]


@pytest.mark.parametrize(
    ("record", "error_class"),
    [
        (b"broken", "JSONDecodeError"),
        (b'{"id": 1', "JSONDecodeError"),
        (b'{"id": 1,}', "JSONDecodeError"),
        (b"", "JSONDecodeError"),
        (b"[1]", "ValueError"),
        (b'{"id": "x"}', "ValueError"),
        (b'{"id": 1, "city": "Z\xfcrich"}', "ValueError"),
    ],
)
def test_a_letter_names_the_class_of_its_error(tmp_path: Path, record: bytes, error_class: str) -> None:
    topic = Topic(1)
    topic.send([b'{"id": 1}', record])
    LetterQuery(topic, tmp_path).values()
    (letter,) = letters(tmp_path)
    assert (letter["record"], letter["error_class"]) == (record, error_class)
    assert letter["error"]


def test_a_letter_without_a_value_keeps_its_key_and_headers(tmp_path: Path) -> None:
    """A tombstone is a null value and no bad record, unless its key is bad."""
    topic = Topic(1)
    topic.send([None], key=b"\xff", headers=SEVERAL)
    topic.send([None], key=b"good", headers=NULL)
    query = LetterQuery(topic, tmp_path, **{"key.format": "string"})
    query.schema = query.schema.set(0, pa.field("key", pa.string()))
    assert query.values() == [None]
    (letter,) = letters(tmp_path)
    assert (letter["record"], letter["key"], letter["headers"]) == (None, b"\xff", as_sent(SEVERAL))


@pytest.mark.parametrize("second", [b"{other}", b"{broken}"], ids=["other", "equal"])
def test_letters_of_a_topic_that_was_made_anew_are_beside_those_of_the_first(tmp_path: Path, second: bytes) -> None:
    """The splits are the same offsets of the same name; only the topic's id differs, not even the record must."""
    topic = Topic(1)
    topic.send([b"{broken}", b'{"id": 1}'], key=b"first", headers=SEVERAL)
    query = LetterQuery(topic, tmp_path)
    assert query.values() == [{"id": 1}]
    topic.delete()
    topic.create()
    topic.send([second, b'{"id": 2}'], key=b"second", headers=NULL)
    assert LetterQuery(topic, tmp_path, log=query.log, failOnDataLoss="false").values() == [{"id": 2}]
    by_key = {letter["key"]: (offset(letter), letter["record"], letter["headers"]) for letter in letters(tmp_path)}
    assert by_key == {b"first": (0, b"{broken}", as_sent(SEVERAL)), b"second": (0, second, as_sent(NULL))}


def test_a_replay_adds_no_letter(tmp_path: Path) -> None:
    topic = Topic(2)
    topic.send([b"{broken}", b'{"id": 1}', b"{lost}", b'{"id": 3}'], headers=SEVERAL)
    query = LetterQuery(topic, tmp_path)
    values = query.values()
    files, before = {file.name: file.read_bytes() for file in tmp_path.glob("*.parquet")}, letters(tmp_path)
    for _ in range(2):
        assert LetterQuery(topic, tmp_path, log=query.log).replay() == values
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.parquet")} == files
    assert letters(tmp_path) == before
    assert len(before) == 2


def test_a_replay_with_another_schema_adds_only_the_letters_that_are_new(tmp_path: Path) -> None:
    """What both schemas refuse is one letter; one that a later schema takes stays, for a row of it is not taken back."""
    texts = pa.struct([("id", pa.string())])
    both = pa.struct([("id", pa.string()), ("n", pa.int64())])
    topic = Topic(1)
    topic.send([b"{broken}", b'{"id": "a"}', b'{"id": 2}', b'{"n": "x"}'], headers=SEVERAL)
    query = LetterQuery(topic, tmp_path)
    assert query.values() == [{"id": 2}, {"id": None}]
    assert records(tmp_path) == [(0, b"{broken}"), (1, b'{"id": "a"}')]
    by_schema = [
        (texts, [{"id": "a"}, {"id": None}], [2]),
        (both, [{"id": "a", "n": None}], [3]),
        (STRICT, [{"id": 2}, {"id": None}], []),
    ]
    everything = records(tmp_path)
    for schema, values, new in by_schema:
        for _ in range(2):
            assert LetterQuery(topic, tmp_path, schema, log=list(query.log)).replay() == values
        everything += [(number, topic.rows[number]["value"]) for number in new]
        assert records(tmp_path) == sorted(everything)
    assert [letter["headers"] for letter in letters(tmp_path)] == [as_sent(SEVERAL)] * 4

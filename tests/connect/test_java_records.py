"""Records inside the JVM: the queue of what is polled, rows of a source and of a sink, and what fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from connectors.connect.errors import ConnectException
from connectors.connect.host import HEADERS, SINK_COLUMNS
from connectors.connect.java.debezium import offset_store
from connectors.connect.java.jvm import Jvm
from connectors.connect.java.sink_records import RecordReader
from connectors.connect.java.source_records import RecordFailure, RecordWriter, Rows
from connectors.connect.java.steps import Steps
from connectors.connect.java.validation import connector_jvm, plugin_class_path
from connectors.ground.errors import Transient
from tests.connect.java_sources import FILES, settings

STRINGS = {f"{part}.converter": "StringConverter" for part in ("key", "value", "header")}
TIME = 1_700_000_000_123
FLAKY = """
public class Flaky implements org.apache.kafka.connect.transforms.Transformation {
    int calls = 0;
    public org.apache.kafka.connect.connector.ConnectRecord apply(org.apache.kafka.connect.connector.ConnectRecord record) {
        if ("flaky".equals(record.value()) && calls++ < 2) {
            throw new org.apache.kafka.connect.errors.RetriableException("away");
        }
        return record;
    }
    public org.apache.kafka.common.config.ConfigDef config() { return null; }
    public void configure(java.util.Map settings) {}
    public void close() {}
}
"""
READING = """
public class Reading {
    public java.util.Map start(org.apache.kafka.connect.storage.OffsetStorageReader reader, java.util.Map partition) {
        return commit(reader, partition);
    }
    public java.util.Map commit(org.apache.kafka.connect.storage.OffsetStorageReader reader, java.util.Map partition) {
        return reader.offset(partition);
    }
}
"""


@pytest.fixture(scope="module")
def jvm() -> Iterator[Jvm]:
    running = connector_jvm(settings({}), plugin_class_path(None, [FILES]))
    yield running
    running.close()


def record(jvm: Jvm, value: Any, place: int = 0, partition: str = "p", **more: Any) -> Any:
    """A record of the source partition ``partition``, with ``headers`` as pairs of text."""
    connect = jvm.java.org.apache.kafka.connect
    headers = connect.header.ConnectHeaders()
    for name, text in more.get("headers", ()):
        headers.addString(name, text)
    text = connect.data.Schema.STRING_SCHEMA
    return connect.source.SourceRecord(
        {"file": partition}, {"at": place}, more.get("topic", "t"), more.get("number"), text, more.get("key"), text, value,
        more.get("time"), headers,
    )  # fmt: skip


def written(jvm: Jvm, folder: Path, records: list[Any], properties: dict[str, str] = STRINGS) -> Rows:
    store = offset_store(jvm, {})
    writer = RecordWriter(jvm, Steps(jvm, properties), store, folder)
    try:
        return writer.rows(entered(jvm, store, array_list(jvm, records)), 0)
    finally:
        writer.close()


def entered(jvm: Jvm, store: Any, records: Any, reader: Any = None) -> Any:
    """A ``PolledList`` that the store has let pass."""
    polled = jvm.compiled("PolledList", 0, reader or store.reader(0), records, 1)
    assert store.enter(polled)
    return polled


def array_list(jvm: Jvm, records: list[Any]) -> Any:
    java = jvm.java.java.util.ArrayList()
    for each in records:
        java.add(each)
    return java


def test_a_row_has_all_parts_of_its_record(jvm: Jvm, tmp_path: Path) -> None:
    records = [
        record(jvm, "one", 1, headers=[("a", "1"), ("b", "ü")]),
        record(jvm, None, 2, "größe", key="k", number=7, time=TIME, topic="thème"),
        record(jvm, "x" * 200_000, 3, headers=[("c", None)]),
    ]
    rows = written(jvm, tmp_path, records)
    rows.table.validate(full=True)
    moment = datetime.fromtimestamp(TIME // 1000, timezone.utc).replace(microsecond=123_000)
    assert [tuple(row.values()) for row in rows.table.to_pylist()] == [
        ("t", None, None, b"one", [{"key": "a", "value": b"1"}, {"key": "b", "value": "ü".encode()}], None, *place("p", 1)),
        ("thème", 7, b"k", None, None, moment, *place("größe", 2)),
        ("t", None, None, b"x" * 200_000, [{"key": "c", "value": None}], None, *place("p", 3)),
    ]
    assert rows.offsets == {'{"file":"p"}': {"at": 3}, '{"file":"größe"}': {"at": 2}}


def place(partition: str, at: int) -> tuple[str, str]:
    return f'{{"file":"{partition}"}}', f'{{"at":{at}}}'


def test_long_lists_come_whole_and_in_their_order(jvm: Jvm, tmp_path: Path) -> None:
    values = ["short", "x" * 5_000_000, "y" * 70_000] * 3
    many = jvm.java.java.util.Collections.nCopies(40_000, record(jvm, "again"))
    records = array_list(jvm, [record(jvm, value) for value in values])
    records.addAll(many)
    store = offset_store(jvm, {})
    writer = RecordWriter(jvm, Steps(jvm, STRINGS), store, tmp_path)
    for _ in range(2):
        rows = writer.rows(entered(jvm, store, records), 0)
        rows.table.validate(full=True)
        assert rows.table["value"].to_pylist() == [value.encode() for value in values] + [b"again"] * 40_000
    other = writer.rows(entered(jvm, store, array_list(jvm, [record(jvm, "new", 1, "q")])), 0)
    assert other.offsets == {'{"file":"q"}': {"at": 1}}
    writer.close()


@pytest.mark.parametrize("part", ["key", "value", "header"])
def test_a_part_that_its_converter_refuses_is_named_with_the_class(jvm: Jvm, tmp_path: Path, part: str) -> None:
    properties = {**STRINGS, f"{part}.converter": "LongConverter", "errors.tolerance": "all"}
    parts: dict[str, Any] = {"key": {"key": "k"}, "value": {}, "header": {"headers": [("h", "x")]}}
    bad = record(jvm, "two" if part == "value" else None, 2, "q", **parts[part])
    rows = written(jvm, tmp_path, [record(jvm, None, 1), bad, record(jvm, None, 3)], properties)
    assert rows.table["sourceOffset"].to_pylist() == ['{"at":1}', '{"at":3}']
    (letter,) = rows.letters
    assert (letter.stage, letter.executing_class) == (
        f"{part.upper()}_CONVERTER",
        "org.apache.kafka.connect.converters.LongConverter",
    )
    assert letter.error_class == "org.apache.kafka.connect.errors.DataException"
    assert rows.offsets == {'{"file":"p"}': {"at": 3}, '{"file":"q"}': {"at": 2}}
    text = f"{part.upper()}_CONVERTER by org.apache.kafka.connect.converters.LongConverter failed"
    with pytest.raises(RecordFailure, match=text):
        written(jvm, tmp_path, [bad], {**properties, "errors.tolerance": "none"})


def test_the_headers_of_a_record_that_fails_belong_to_no_row(jvm: Jvm, tmp_path: Path) -> None:
    properties = {**STRINGS, "header.converter": "LongConverter", "errors.tolerance": "all"}
    records = [record(jvm, value) for value in ("a", "b", "c")]
    for each in records:
        each.headers().addLong("good", 2**40)
    records[1].headers().addString("bad", "x")
    rows = written(jvm, tmp_path, records, properties)
    assert rows.table["value"].to_pylist() == [b"a", b"c"]
    assert rows.table["headers"].to_pylist() == [[{"key": "good", "value": (2**40).to_bytes(8, "big")}]] * 2


def test_an_error_that_passes_is_tried_again_from_the_record_that_failed(jvm: Jvm, tmp_path: Path) -> None:
    records = [record(jvm, value, at) for at, value in enumerate(["a", "flaky", "b"])]
    steps = Steps(jvm, {**STRINGS, "errors.retry.timeout": "30000"})
    steps.transforms.append((compiled(jvm, "Flaky", FLAKY), None, False))
    store = offset_store(jvm, {})
    writer = RecordWriter(jvm, steps, store, tmp_path)
    rows = writer.rows(entered(jvm, store, array_list(jvm, records)), 0)
    assert rows.table["value"].to_pylist() == [b"a", b"flaky", b"b"]
    assert (rows.retries, rows.letters) == (2, [])
    writer.close()


def test_an_outage_makes_no_dead_letters(jvm: Jvm, tmp_path: Path) -> None:
    properties, outage = {**STRINGS, "errors.tolerance": "all"}, compiled(jvm, "Outage", FLAKY.replace("Flaky", "Outage"))
    steps, store = Steps(jvm, properties), offset_store(jvm, {})
    steps.transforms.append((outage, None, False))
    writer = RecordWriter(jvm, steps, store, tmp_path)
    with pytest.raises(RecordFailure, match="RetriableException: away"):
        writer.rows(entered(jvm, store, array_list(jvm, [record(jvm, "flaky", 1)])), 0)
    writer.close()
    reader = RecordReader(jvm, properties, tmp_path)
    reader.steps.transforms.append((outage, None, False))
    with pytest.raises(Transient, match=r"TRANSFORMATION by .*Outage failed: .*RetriableException: away"):
        reader.records(sink_rows(1, value=[b"flaky"]))


def test_the_queue_gives_neighbours_of_one_task_as_one_list(jvm: Jvm) -> None:
    queue, readers = jvm.compiled("PolledQueue", 100), readers_of(jvm)
    for task, records in [(0, "ab"), (0, "c"), (0, "d"), (1, "e"), (0, "f"), (0, "ghijk")]:
        queue.put(jvm.compiled("PolledList", task, readers[task], array_list(jvm, list(records)), 1))
    lists = []
    while (taken := queue.take(0, 3)) is not None:
        lists.append((taken.task(), "".join(taken.records())))
    assert lists == [(0, "abc"), (0, "d"), (1, "e"), (0, "f"), (0, "ghijk")]


def readers_of(jvm: Jvm) -> list[Any]:
    store = offset_store(jvm, {})
    return [store.reader(task) for task in (0, 1)]


@pytest.mark.parametrize("way", ["take", "discard", "clear"])
def test_a_task_that_waits_for_room_goes_on_when_there_is_some(jvm: Jvm, way: str) -> None:
    queue, readers = jvm.compiled("PolledQueue", 3), readers_of(jvm)

    def put(task: int, *records: str) -> None:
        queue.put(jvm.compiled("PolledList", task, readers[task], array_list(jvm, list(records)), 1))

    put(0, "longer", "than", "the", "queue")
    waiting = threading.Thread(target=lambda: put(1, "next"))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    assert (queue.holds(0), queue.holds(1)) == (True, False)
    {"take": lambda: queue.take(0, 1), "discard": lambda: queue.discard(0), "clear": queue.clear}[way]()
    waiting.join(30)
    assert (queue.holds(0), queue.holds(1)) == (False, True)
    put(1, "of", "three")  # all the room is there again


def test_offsets_are_read_by_the_partition_that_a_connector_asks_for(jvm: Jvm) -> None:
    store = offset_store(jvm, {})
    reader = store.reader(0)
    store.commit('[[{"a":1,"b":"x"},{"at":7,"deep":[1.5,{"n":null}]}],[{"a":2},{"at":1}],[{"a":2},null]]')
    integer = jvm.java.java.util.LinkedHashMap()  # another order, and an Integer where JSON gives a Long
    integer.put("b", "x")
    integer.put("a", 1)
    assert reader.offset(integer).toString() == "{deep=[1.5, {n=null}], at=7}"
    offsets = reader.offsets(array_list(jvm, [integer, {"a": 2}]))
    assert (offsets.get(integer).get("at"), offsets.get({"a": 2}), offsets.size()) == (7, None, 2)
    store.reset("[]")
    assert reader.offset(integer) is None


def test_only_a_task_that_starts_sees_offsets_that_are_not_committed(jvm: Jvm) -> None:
    store = offset_store(jvm, {})
    store.reset('[[{"a":1},{"at":7},null]]')
    store.commit('[[{"a":1},{"at":5}]]')
    reader, task = store.reader(0), compiled(jvm, "Reading", READING)
    assert dict(task.start(reader, {"a": 1})) == {"at": 7}
    assert dict(task.commit(reader, {"a": 1})) == {"at": 5}


def compiled(jvm: Jvm, name: str, source: str) -> Any:
    compiler = jvm.java.org.codehaus.janino.SimpleCompiler()
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name).newInstance()


def test_a_context_answers_notes_its_calls_and_is_an_object_like_others(jvm: Jvm) -> None:
    calls = jvm.java.java.util.concurrent.ConcurrentLinkedQueue()
    kind = "org.apache.kafka.connect.source.SourceTaskContext"
    context = jvm.context(kind, {"configs": {"a": "b"}}, calls)
    assert dict(context.configs()) == {"a": "b"}
    assert context.offsetStorageReader() is None
    assert [str(call.getKey()) for call in calls.toArray()] == ["offsetStorageReader"], "the other one is a mere question"
    assert context.equals(context)
    assert not context.equals("else")
    assert context.hashCode() == context.hashCode()
    assert context.toString() == kind


def sink_rows(count: int = 3, **columns: Any) -> pa.Table:
    """Rows of a sink; what is not named is the same for all."""
    kinds = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS, "timestamp": pa.timestamp("us", tz="UTC")}
    same = {"topic": "t", "partition": 1, "key": None, "value": b"v", "headers": None, "timestamp": None}
    cells = {"offset": list(range(count)), **{name: [cell] * count for name, cell in same.items()}, **columns}
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), **kinds}
    return pa.table({name: pa.array(cells[name], types[name]) for name in SINK_COLUMNS})


def shown(record: Any) -> tuple[Any, ...]:
    headers = [(str(header.key()), header.value()) for header in record.headers().iterator()]
    place = record.topic(), record.kafkaPartition(), record.kafkaOffset(), record.timestamp()
    return *place, record.key(), record.value(), headers


def test_a_record_of_a_sink_has_all_cells_of_its_row(jvm: Jvm, tmp_path: Path) -> None:
    rows = sink_rows(
        topic=["a", "thème", "c"],
        key=[b"k", None, b""],
        value=[b"one", "ü".encode(), None],
        headers=[None, [{"key": "x", "value": b"1"}, {"key": "y", "value": None}], [{"key": "z", "value": b"2"}]],
        timestamp=[datetime.fromtimestamp(TIME // 1000, timezone.utc), None, None],
    )
    reader = RecordReader(jvm, STRINGS, tmp_path)
    records, bad, _ = reader.records(pa.concat_tables([rows.slice(1, 1), rows.slice(2), rows.slice(0, 1)]))
    assert bad == []
    assert [shown(record) for record in records] == [
        ("thème", 1, 1, None, None, "ü", [("x", "1"), ("y", None)]),
        ("c", 1, 2, None, "", None, [("z", "2")]),
        ("a", 1, 0, TIME // 1000 * 1000, "k", "one", []),
    ]
    assert list(tmp_path.iterdir()) == []
    assert list(reader.records(rows.slice(3))[0]) == []


def test_bytes_that_lie_behind_a_null_are_no_cell(jvm: Jvm, tmp_path: Path) -> None:
    buffers = [pa.py_buffer(b"\x05"), pa.array([0, 1, 7, 8], pa.int32()).buffers()[1], pa.py_buffer(b"ahiddenc")]
    values = pa.Array.from_buffers(pa.binary(), 3, buffers)
    assert values.to_pylist() == [b"a", None, b"c"]
    rows = sink_rows().set_column(SINK_COLUMNS.index("value"), "value", values)
    records, _, _ = RecordReader(jvm, STRINGS, tmp_path).records(rows)
    assert [record.value() for record in records] == ["a", None, "c"]


def test_headers_are_text_that_has_its_types_again_unless_their_converter_is_named(jvm: Jvm, tmp_path: Path) -> None:
    data = jvm.java.org.apache.kafka.connect.data
    schema = data.SchemaBuilder.struct().field("id", data.Schema.INT32_SCHEMA).build()
    source = record(jvm, "v")
    source.headers().addStruct("struct", data.Struct(schema).put("id", 3)).addBytes("bytes", b"\x00\xff").addInt("int", 7)
    plain = {name: value for name, value in STRINGS.items() if not name.startswith("header.")}
    headers = written(jvm, tmp_path, [source], plain).table["headers"].to_pylist()[0]
    assert [header["value"] for header in headers] == [b'{"id":3}', b"AP8=", b"7"]
    more = [*headers, {"key": "bool", "value": b"true"}, {"key": "none", "value": None}]
    sink, *_ = RecordReader(jvm, plain, tmp_path).records(sink_rows(headers=[more, None, None]))[0]
    values = [header.value() for header in sink.headers().iterator()]
    assert [dict(values[0]), *values[1:]] == [{"id": 3}, "AP8=", 7, True, None]


@pytest.mark.parametrize("part", ["key", "value", "header"])
def test_a_row_that_its_converter_refuses_is_named_and_those_behind_it_are_read(
    jvm: Jvm, tmp_path: Path, part: str
) -> None:
    properties = {**STRINGS, f"{part}.converter": "LongConverter", "errors.tolerance": "all"}
    good, wrong = (2**40).to_bytes(8, "big"), b"short"
    cells: list[Any] = [good, wrong, good]
    if part == "header":
        cells = [[{"key": "h", "value": value}] for value in cells]
    rows = sink_rows(**{"headers" if part == "header" else part: cells})
    records, (bad,), _ = RecordReader(jvm, properties, tmp_path).records(rows)
    assert [record.kafkaOffset() for record in records] == [0, 2]
    assert (bad.place, bad.stage) == (1, f"{part.upper()}_CONVERTER")
    assert bad.executing_class == "org.apache.kafka.connect.converters.LongConverter"
    with pytest.raises(ConnectException, match="DataException"):
        RecordReader(jvm, {**properties, "errors.tolerance": "none"}, tmp_path).records(rows)


def test_a_sinks_row_that_a_transform_drops_is_no_record(jvm: Jvm, tmp_path: Path) -> None:
    transforms = {
        "transforms": "drop",
        "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.drop.predicate": "tombstone",
        "predicates": "tombstone",
        "predicates.tombstone.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
    }
    rows = sink_rows(value=[b"a", None, b"c"])
    for negate, values in (("false", ["a", "c"]), ("true", [None])):
        properties = {**STRINGS, **transforms, "transforms.drop.negate": negate}
        records, bad, ends = RecordReader(jvm, properties, tmp_path).records(rows)
        assert ([record.value() for record in records], bad) == (values, [])
        assert ends == {("t", 1): 3 if negate == "false" else 2}


@pytest.mark.soak
@pytest.mark.spark
def test_an_exception_is_not_taken_for_one_of_sparks_own_jvm(spark: Any, jvm: Jvm) -> None:
    """PySpark looks for exceptions of all JVMs in its own one, where the id of this one may be that of another object."""
    def number(java_object: Any) -> int:
        return int(java_object._target_id.removeprefix("o"))

    kept, others = [jvm.java.java.lang.Object()], []
    while len(others) < 50 or number(others[-1]) < number(kept[0]) + 50:
        others.append(spark._jvm.java.lang.ArithmeticException("of Spark"))
    while number(kept[-1]) < number(others[-50]):
        kept.append(jvm.java.java.lang.Object())
    with pytest.raises(Py4JJavaError, match="NumberFormatException") as thrown:
        jvm.java.java.lang.Integer.parseInt("x")
    assert number(thrown.value.java_exception) in map(number, others)

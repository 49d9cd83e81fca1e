"""What each writer makes of the values that systems have no common form for: see lib/docs/values.md.

Parquet, Cassandra, PostgreSQL, MySQL and MariaDB are in ``files/test_same_content.py``, ``cassandra/test_types.py``,
``jdbc/test_operations.py`` and ``jdbc/test_bad_rows.py``, which need Spark or a server.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Misconfigured, Poison, Sink
from connectors.formats import JsonFormat
from connectors.systems.buffered import BufferedSink
from connectors.systems.dynamodb.items import items_of
from connectors.systems.elasticsearch import ElasticsearchSink
from connectors.systems.files import FilesSink
from connectors.systems.firehose import FirehoseSink
from connectors.systems.http import HttpSink
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.column_types import with_json_text
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.records import Serializer
from connectors.systems.kinesis import KinesisSink
from connectors.systems.redis import RedisSink

from .batches import write
from .files.helpers import visible

NOON = datetime.datetime(2025, 1, 31, 12, 0, 0, 123456)
ZONED, NAIVE, EXACT = pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us"), pa.decimal128(5, 2)
PLAIN: dict[str, tuple[Any, pa.DataType]] = {
    "price": (Decimal("1.50"), EXACT),
    "day": (NOON.date(), pa.date32()),
    "at": (NOON, ZONED),
    "wall": (NOON, NAIVE),
    "none": (None, pa.string()),
    "raw": (b"\0\xff", pa.binary()),
}
NUMBERS = {"nan": (math.nan, pa.float64()), "low": (-math.inf, pa.float64())}
NESTED = {
    "pair": ({"n": None, "d": Decimal("1.50")}, pa.struct([("n", pa.int32()), ("d", EXACT)])),
    "times": ([NOON, None], pa.list_(ZONED)),
    "map": ([("k", NOON), ("none", None)], pa.map_(pa.string(), NAIVE)),
}


def row(*columns: dict[str, tuple[Any, pa.DataType]]) -> pa.RecordBatch:
    values = {name: value for part in columns for name, value in part.items()}
    return pa.record_batch({name: pa.array([value], kind) for name, (value, kind) in values.items()})


def only(entries: Any) -> Any:
    (entry,) = entries
    return entry


def assert_shown(first_cell: str, written: str, words: str) -> None:
    """The table's row of a sink has the code of what is ``written``, and ``words`` for what has no text."""
    page = (Path(__file__).parents[2] / "lib" / "docs" / "values.md").read_text()
    cells = re.search(rf"^\| {re.escape(first_cell)} +\|(.*)$", page, re.MULTILINE)
    assert cells is not None, first_cell
    for code in re.findall(r"`([^`]+)`", cells[1]):
        assert code.replace("…", "2025-01-31") in written
    assert re.sub(r"`[^`]+`|[|,]", " ", cells[1]).split() == words.split()


def entry_of(sink: Sink, rows: pa.RecordBatch) -> Any:
    """What the writer of a sink sends for a row."""
    writer: Any = sink.writer(Batch(sink.sink_id(), "q", 0), rows.schema, 0)
    with contextlib.closing(writer):
        return only(writer.entries(rows))


LINE = (
    '{"price":1.50,"day":"2025-01-31","at":"2025-01-31T12:00:00.123456Z","wall":"2025-01-31T12:00:00.123456",'
    '"raw":"AP8=","nan":"NaN","low":"-Infinity","pair":{"d":1.50},'
    '"times":["2025-01-31T12:00:00.123456Z",null],"map":{"k":"2025-01-31T12:00:00.123456","none":null}}'
)


def test_json_of_rows(tmp_path: Path) -> None:
    rows = row(PLAIN, NUMBERS, NESTED)
    kafka = KafkaSink.of({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "value.format": "json"})
    values = pa.record_batch({"value": rows.to_struct_array()})
    written = Serializer(kafka.values, values.schema).records(values, kafka.rejects(Batch("s", "q", 0))).column("value")
    folders = [tmp_path / name for name in ("files", "buffered")]
    for sink in (FilesSink.of({"path": str(folders[0]), "fileFormat": "json"}), BufferedSink.of({"path": str(folders[1])})):
        write(sink, rows)
    files, buffered = (only(visible(folder)).read_text() for folder in folders)
    assert only(written).as_py().decode() == LINE
    assert files == buffered == f"{LINE}\n"
    assert_shown("JSON of rows", LINE, "left out")


def test_files_as_csv(tmp_path: Path) -> None:
    sink = FilesSink.of({"path": str(tmp_path / "csv"), "fileFormat": "csv"})
    write(sink, row(PLAIN, NUMBERS))
    text = only(visible(tmp_path / "csv")).read_text()
    assert text == "1.50,2025-01-31,2025-01-31T12:00:00.123456Z,2025-01-31T12:00:00.123456,,[00 FF],NaN,-Infinity\n"
    assert_shown("`files` csv", text, "empty refused")
    with pytest.raises(Misconfigured, match="csv has no nested columns"):
        write(sink, row(NESTED), number=1)


DOCUMENT = (
    '{"price":1.50,"day":"2025-01-31","at":"2025-01-31T12:00:00.123456Z","wall":"2025-01-31T12:00:00.123456",'
    '"none":null,"raw":"AP8=","pair":{"n":null,"d":1.50},'
    '"times":["2025-01-31T12:00:00.123456Z",null],"map":{"k":"2025-01-31T12:00:00.123456","none":null}}'
)
AWS = {"region": "eu-west-1", "endpoint": "http://127.0.0.1:1", "accessKeyId": "x", "secretAccessKey": "x"}
DOCUMENTS: dict[type[Sink], dict[str, str]] = {
    ElasticsearchSink: {"hosts": "http://127.0.0.1:1", "index": "i"},
    HttpSink: {"url": "http://127.0.0.1:1/x"},
    KinesisSink: {"streamName": "s", **AWS},
    FirehoseSink: {"deliveryStream": "s", **AWS},
    RedisSink: {"url": "redis://127.0.0.1:1", "key": "k:{price}", "command": "set"},
}


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.name)
def test_documents(kind: type[Sink]) -> None:
    sink = kind.of(DOCUMENTS[kind])
    assert DOCUMENT.encode() in pieces(entry_of(sink, row(PLAIN, NESTED)))
    assert_shown("documents", DOCUMENT, "bad row")
    for name, value in NUMBERS.items():
        assert isinstance(entry_of(sink, row(PLAIN, {name: value})), Poison)


def pieces(entry: Any) -> list[bytes]:
    """The parts of an entry: those of a command, the values of a request, or the lines of a body."""
    parts = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, tuple) else vars(entry).values()
    return [line for part in parts if isinstance(part, bytes) for line in part.split(b"\n")]


def test_fields_of_redis() -> None:
    sink = RedisSink.of({"url": "redis://127.0.0.1:1", "key": "k", "command": "hset"})
    command = entry_of(sink, row(PLAIN, NUMBERS, NESTED))
    fields = dict(zip(command[2::2], command[3::2], strict=True))
    assert fields == {
        b"price": b"1.50",
        b"day": b"2025-01-31",
        b"at": b"2025-01-31T12:00:00.123456Z",
        b"wall": b"2025-01-31T12:00:00.123456",
        b"raw": b"\0\xff",
        b"nan": b"NaN",
        b"low": b"-Infinity",
        b"pair": b'{"n":null,"d":1.50}',
        b"times": b'["2025-01-31T12:00:00.123456Z",null]',
        b"map": b'{"k":"2025-01-31T12:00:00.123456","none":null}',
    }
    assert_shown("fields of `redis`", b" ".join(fields.values()).decode(errors="replace"), "left out bytes")


def test_items_of_dynamodb() -> None:
    written = only(items_of(row(PLAIN, NESTED)))
    assert written == {
        "price": {"N": "1.50"},
        "day": {"S": "2025-01-31"},
        "at": {"S": "2025-01-31T12:00:00.123456Z"},
        "wall": {"S": "2025-01-31T12:00:00.123456"},
        "raw": {"B": b"\0\xff"},
        "pair": {"M": {"d": {"N": "1.50"}}},
        "times": {"L": [{"S": "2025-01-31T12:00:00.123456Z"}, {"NULL": True}]},
        "map": {"M": {"k": {"S": "2025-01-31T12:00:00.123456"}, "none": {"NULL": True}}},
    }
    assert_shown("`dynamodb`", str(written).replace("'", '"'), "N S bad row left out B M")
    assert all(isinstance(only(items_of(row({name: value}))), Poison) for name, value in NUMBERS.items())


JSON_OF_JDBC = {
    "pair": '{"n":null,"d":1.50}',
    "times": '["2025-01-31T12:00:00.123456Z",null]',
    "map": '{"k":"2025-01-31T12:00:00.123456","none":null}',
}


def test_json_of_every_database() -> None:
    numbers = {"numbers": ([math.nan, -math.inf], pa.list_(pa.float64()))}
    days = with_json_text(row({"days": ([(datetime.date(2025, 1, 31), 1)], pa.map_(pa.date32(), pa.int64()))}))
    assert days.to_pylist() == [{"days": '{"2025-01-31":1}'}]
    assert with_json_text(row(NESTED, numbers)).to_pylist() == [{**JSON_OF_JDBC, "numbers": '["NaN","-Infinity"]'}]
    assert_shown(
        "`jdbc`, PostgreSQL", JSON_OF_JDBC["pair"], "numeric timestamptz microseconds as they are NULL bytea jsonb"
    )
    assert_shown("`jdbc`, MySQL, MariaDB", JSON_OF_JDBC["pair"], "DECIMAL DATETIME(6) UTC bad row NULL LONGBLOB text")


def test_rows_of_sqlite(tmp_path: Path) -> None:
    sink = JdbcSink.of({"url": f"jdbc:sqlite:{tmp_path}/x.db", "dbtable": "t", "createTable": "true"})
    with pytest.raises(Poison, match="NaN, which SQLite would make NULL"):
        write(sink, row(PLAIN, NUMBERS, NESTED))
    infinite = {name: column for name, column in NUMBERS.items() if name != "nan"}
    write(sink, row(PLAIN, infinite, NESTED))
    with contextlib.closing(sink.dialect().connect()) as connection:
        written = only(connection.rows("SELECT * FROM t"))
    assert written == (
        *("1.50", "2025-01-31", "2025-01-31 12:00:00.123456", "2025-01-31 12:00:00.123456", None, b"\0\xff"),
        *(-math.inf, *JSON_OF_JDBC.values()),
    )
    assert_shown("`jdbc`, SQLite", str(written), "text text UTC bad row NULL BLOB text")


REFUSED: dict[str, pa.DataType] = {
    '{"v":1}': pa.string(),
    '{"v":{"a":1}}': pa.string(),
    '{"v":1.234}': EXACT,
    '{"v":"2025-1-31"}': pa.date32(),
    '{"v":"2025-01-31T12:00:00Z"}': pa.date32(),
    "{'v':'x'}": pa.string(),
    '{"v":"x"} y': pa.string(),
    '{"v":"x","v":"y"}': pa.string(),
}


@pytest.mark.parametrize("record", REFUSED)
def test_what_from_json_takes_and_value_format_json_refuses(record: str) -> None:
    kind = pa.struct([("v", REFUSED[record])])
    assert len(JsonFormat(kind).decode(pa.array([record.encode()], pa.binary())).bad) == 1


def test_a_time_without_a_zone_is_read_in_utc_in_any_session() -> None:
    decoded = JsonFormat(pa.struct([("at", ZONED)])).decode(pa.array([b'{"at":"2025-01-31T12:00:00.123456"}']))
    assert decoded.values.field("at").equals(pa.array([NOON], ZONED))

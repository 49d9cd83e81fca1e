"""Headers as text: what Python writes and reads, beside what Java's ``Values`` does with the same."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.connect import Headers, Schema, SchemaBuilder, Struct
from connectors.connect.converters import SimpleHeaderConverter
from connectors.connect.data import Type
from connectors.connect.host import HEADERS
from connectors.connect.java.validation import connector_jvm, plugin_class_path
from connectors.connect.pipeline import header_column
from connectors.connect.sink_pipeline import SinkPipeline
from tests.connect.java_sources import FILES, settings
from tests.connect.test_java_sink import rows

JAVA = """
import java.nio.charset.StandardCharsets;
import java.util.Date;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

public class Headers {
    private final SimpleHeaderConverter converter = new SimpleHeaderConverter();

    /** What a text is read as: its schema, the value with its class, and the text that is written of it. */
    public String read(String text) {
        SchemaAndValue read = converter.toConnectHeader("t", "h", text.getBytes(StandardCharsets.UTF_8));
        if (read == null) {
            return "null";
        }
        byte[] written = converter.fromConnectHeader("t", "h", read.schema(), read.value());
        return schema(read.schema()) + " " + value(read.value()) + " " + new String(written, StandardCharsets.UTF_8);
    }

    public String write(Object value) {
        return new String(converter.fromConnectHeader("t", "h", null, value), StandardCharsets.UTF_8);
    }

    public String writeFloat(double number) {
        return write(Float.valueOf((float) number));
    }

    public String writeDate(long milliseconds) {
        return write(new Date(milliseconds));
    }

    public String writeStruct(byte[] bytes) {
        Schema inner = SchemaBuilder.struct().field("single", Schema.FLOAT32_SCHEMA).build();
        Schema schema = SchemaBuilder.struct().field("id", Schema.INT32_SCHEMA).field("na\\"me", Schema.OPTIONAL_STRING_SCHEMA)
            .field("bytes", Schema.BYTES_SCHEMA).field("inner", inner).field("none", Schema.OPTIONAL_STRING_SCHEMA).build();
        Struct struct = new Struct(schema).put("id", Integer.valueOf(3)).put("na\\"me", "a\\\\b\\"c").put("bytes", bytes)
            .put("inner", new Struct(inner).put("single", Float.valueOf(0.1f)));
        return write(struct);
    }

    private static String schema(Schema schema) {
        if (schema == null) {
            return "none";
        }
        String text = schema.type().getName() + (schema.name() == null ? "" : ":" + schema.name() + schema.parameters());
        if (schema.type() == Schema.Type.ARRAY) {
            text += "[" + schema(schema.valueSchema()) + "]";
        } else if (schema.type() == Schema.Type.MAP) {
            text += "{" + schema(schema.keySchema()) + "," + schema(schema.valueSchema()) + "}";
        }
        return text;
    }

    private static String value(Object value) {
        if (value instanceof Date) {
            return "Date(" + ((Date) value).getTime() + ")";
        }
        StringBuilder text = new StringBuilder();
        if (value instanceof List) {
            for (Iterator each = ((List) value).iterator(); each.hasNext();) {
                text.append(value(each.next())).append(";");
            }
            return "[" + text + "]";
        }
        if (value instanceof Map) {
            for (Iterator each = ((Map) value).entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                text.append(value(entry.getKey())).append("=").append(value(entry.getValue())).append(";");
            }
            return "{" + text + "}";
        }
        return value instanceof byte[] ? "bytes" + ((byte[]) value).length : String.valueOf(value);
    }
}
"""
TEXTS = [
    "", " ", "  ", "a", "hello, world", "a:b", "null", " null ", "nullx", "null,", "NULL", "true", "false", " true",
    "true}", "TRUE", "0", "-0", "+5", "007", "127", "128", "-128", "-129", "32767", "32768", "2147483647",
    "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "99999999999999999999", "1e3", "1E+3", "1.0", "1.", "-.5", "0.1", "-0.5", "3.14159265358979", "1e-50", "1e39",
    "1e38", "3.4028235e38", "3.4028236e38", "1e308", "1e309", "1e400", "1e-400", ".5", "5.5.5", "1_000", "0x10", "1e",
    "+", "-", "--1", "NaN", "Infinity", "1 2", " 42 ", "42\n", "\t7", "٣", "1e99999999999", '"quoted"', '"', '""',
    "'x'", "a\\", "a\\,b", "\\", "\\\\", "ü€𝄞", "\x01", "\x01,", "\xa0", "\u2003", " ,x", "5,", "5:6", "{}x",
    "2024-01-31", "2024-02-30", "2024-13-01", "2024-1-31", "2024-01-3x", "1969-12-31", "9999-12-31", "12:34:56.789Z",
    "00:00:00.000Z", "12:34:56.7Zab", "12:34:56.789", "12\\:34\\:56.789Z", "12:34:56,789Z", "2024-01-31T12:34:56.789Z",
    "2024-01-31T00:00:00.000Z", "1969-12-31T23:59:59.999Z", "2024-01-31 12:34:56.789Z", "2024-01-31T12:34:56.789Zx",
    "1970-01-01T00:00:00.000Z", "1970-01-02T00:00:00.000Z", "2024-01-31T12\\:34\\:56.789Z", "[]", "[ ]", "[1]",
    "[1,2,300]", "[1, 70000, 5000000000]", "[1,0.5]", "[1,2.5,1e300]", "[1,1e300]", "[true,false]", "[true,1]",
    '["a","b"]', '["a", 1]', "[a,b]", "[1,null]", "[null]", "[null,null]", "[1,]", "[,1]", "[1 2]", "[1", "[1]]",
    "[1] tail", "[[1],[2,300]]", "[[],[1]]", "[[", '["2024-01-31"]', "[2024-01-31]", "[2024-01-31,2024-02-01]",
    "[2024-01-31T12:34:56.789Z]", "[12:34:56.789Z]", "[2024-01-31,1]", "[100000,2024-01-31]", "[1,2024-01-31]",
    "[12:34:56.789Z,86400001]", "[5000000000,2024-01-31T12:34:56.789Z]", "[99999999999999999999]",
    "[99999999999999999999,1e400]", '["a\\"b"]', '["a\\\\"]', '["a : "]', '[" a"]', '["a,b]"]', '["]', "{}", "{ }",
    '{"a":1}', '{"a":1,"b":2}', '{"a":1 "b":2}', '{"a":1,"b":70000}', '{"a":1,"b":"c"}', '{"a":null}',
    '{"a":null,"b":1}', "{1:2}", "{1:2,300:4}", "{a:1}", '{"a"}', '{"a":}', '{,"a":1}', '{"a":1,}', "{null:1}",
    '{"a":{"b":[1,2]}}', '{"a":1', '{"a":1}}', '{"id":3,"name":"x"}', '{ "a" : 1 }', '{"2024-01-31":true}',
    "Struct{id=3}", '{"a":1.5,"b":2}', "[{}]", "{1.5:1,2:1}", '{"id":3,"price":1.1,"name":"x"}', '[0.1,"a",1e30]', "[1.1,2]",
    "12345678e1234567", "1e-2000000", "1e1999999999", "0e400", "0e1234567890",
]  # fmt: skip
STRUCT = SchemaBuilder.struct().field("single", Schema.FLOAT32_SCHEMA).build()


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    jvm = connector_jvm(settings({}), plugin_class_path(None, [FILES]))
    compiler = jvm.java.org.codehaus.janino.SimpleCompiler()
    compiler.cook(JAVA)
    yield compiler.getClassLoader().loadClass("Headers").getConstructors()[0].newInstance(jvm._array("Object"))
    jvm.close()


def python_read(text: str) -> str:
    """As the Java class above."""
    converter = SimpleHeaderConverter()
    schema, value = converter.to_connect_data("t", text.encode())
    if schema is None:
        return "null"
    written = converter.from_connect_data("t", schema, value) or b""
    return f"{_schema(schema)} {_value(value, schema)} {written.decode()}"


def _schema(schema: Schema | None) -> str:
    if schema is None:
        return "none"
    names = {Type.FLOAT32: "float32", Type.FLOAT64: "float64"}
    text = names.get(schema.type, schema.type.value)
    if schema.name:
        parameters = ", ".join(f"{name}={value}" for name, value in schema.parameters)
        text += f":{schema.name}{{{parameters}}}" if parameters else f":{schema.name}null"
    if schema.type is Type.ARRAY:
        text += f"[{_schema(schema.value_schema)}]"
    elif schema.type is Type.MAP:
        text += f"{{{_schema(schema.key_schema)},{_schema(schema.value_schema)}}}"
    return text


def _value(value: Any, schema: Schema | None) -> str:
    if isinstance(value, (datetime.date, datetime.time)):
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        if isinstance(value, datetime.time):
            value = datetime.datetime.combine(epoch, value, datetime.timezone.utc)
        elif not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time(), datetime.timezone.utc)
        return f"Date({(value - epoch) // datetime.timedelta(milliseconds=1)})"
    if isinstance(value, list):
        return "[" + "".join(f"{_value(item, schema and schema.value_schema)};" for item in value) + "]"
    if isinstance(value, dict):
        kinds = (schema.key_schema, schema.value_schema) if schema else (None, None)
        return "{" + "".join(f"{_value(key, kinds[0])}={_value(item, kinds[1])};" for key, item in value.items()) + "}"
    if isinstance(value, bytes):
        return f"bytes{len(value)}"
    if isinstance(value, str):
        return value
    return "null" if value is None else (SimpleHeaderConverter().from_connect_data("t", schema, value) or b"").decode()


def test_python_reads_a_header_as_java_does_and_writes_it_as_java_does(java: Any) -> None:
    wrong = [(text, expected, got) for text in TEXTS if (got := python_read(text)) != (expected := str(java.read(text)))]
    assert wrong == []
    assert python_read("25:00:00.000Z") == "string 25:00:00.000Z 25:00:00.000Z"
    assert SimpleHeaderConverter().to_connect_data("t", b"[" * 100_000)[0] == Schema.BYTES_SCHEMA


def test_python_writes_values_as_java_does(java: Any) -> None:
    convert = SimpleHeaderConverter().from_connect_data
    values: list[Any] = [True, 1, -(2**31), 2**40, 'a"b\\c', [1, 'a"b\\', None, [True]], {"k": [1, 2]}, []]
    values += [b"\x00\xff", [b"\x01"]]
    values += [0.1, -0.0, 1e7, 9999999.0, 0.001, 0.00099, 123456.789, 1e300, 1.5e-10, float("inf"), float("nan"), 100.0]
    assert [(value, (convert("t", None, value) or b"").decode()) for value in values] == [
        (value, str(java.write(value))) for value in values
    ]
    singles = [0.1, 3.4028235e38, 16777216.0, 1e7, 0.001, 3.1415927]
    assert [convert("t", Schema.FLOAT32_SCHEMA, value) for value in singles] == [
        str(java.writeFloat(value)).encode() for value in singles
    ]
    utc = datetime.timezone.utc
    moments = {
        datetime.date(2024, 1, 31): 1_706_659_200_000,
        datetime.time(12, 34, 56, 789_000): 45_296_789,
        datetime.datetime(2024, 1, 31, 12, 34, 56, 789_123, utc): 1_706_704_496_789,
        datetime.datetime(2024, 1, 31, tzinfo=utc): 1_706_659_200_000,
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, utc): -1,
        datetime.datetime(1970, 1, 1, 12, tzinfo=utc): 43_200_000,
    }
    for moment, milliseconds in moments.items():
        assert convert("t", None, moment) == str(java.writeDate(milliseconds)).encode()
    assert convert("t", None, Decimal("-12.50")) == b"-12.50"
    schema = (
        SchemaBuilder.struct().field("id", Schema.INT32_SCHEMA).field('na"me', Schema.OPTIONAL_STRING_SCHEMA)
        .field("bytes", Schema.BYTES_SCHEMA).field("inner", STRUCT).field("none", Schema.OPTIONAL_STRING_SCHEMA).build()
    )  # fmt: skip
    struct = Struct.of(schema, {"id": 3, 'na"me': 'a\\b"c', "bytes": b"\x00\xff", "inner": Struct.of(STRUCT, {"single": 0.1})})
    assert convert("t", schema, struct) == str(java.writeStruct(b"\x00\xff")).encode()


def test_headers_of_a_sink_have_their_types_again_and_those_of_a_source_are_text() -> None:
    cells = [{"key": "n", "value": b"42"}, {"key": "list", "value": b"[1,2]"}, {"key": "none", "value": None}]
    headers = pa.array([[*cells, {"key": "s", "value": b"x"}], None], HEADERS)
    table = rows([b"1", b"2"])
    table = table.set_column(table.schema.get_field_index("headers"), "headers", headers)
    first, second = SinkPipeline({"name": "x"}, lambda _: False).run(table)
    assert [(header.key, header.value) for header in first.headers] == [("n", 42), ("list", [1, 2]), ("none", None), ("s", "x")]
    assert next(header.schema for header in first.headers) == Schema.INT8_SCHEMA
    assert len(second.headers) == 0
    struct = Struct.of(STRUCT, {"single": 0.5})
    of_source = Headers().add("s", struct, STRUCT).add("b", b"\x00\xff").add("none", None)
    written = header_column([of_source], 1, SimpleHeaderConverter())
    assert written.to_pylist() == [
        [{"key": "s", "value": b'{"single":0.5}'}, {"key": "b", "value": b"AP8="}, {"key": "none", "value": None}]
    ]


def test_a_header_that_its_converter_does_not_read_makes_a_dead_letter() -> None:
    properties = {"header.converter": "LongConverter", "errors.tolerance": "all"}
    table = rows([b"1", b"2"])
    headers = pa.array([[{"key": "h", "value": b"short"}], [{"key": "h", "value": (5).to_bytes(8, "big")}]], HEADERS)
    pipeline = SinkPipeline(properties, lambda _: False)
    (record,) = pipeline.run(table.set_column(table.schema.get_field_index("headers"), "headers", headers))
    assert [(header.key, header.value) for header in record.headers] == [("h", 5)]
    (letter,) = pipeline.letters()
    assert (letter.offset, letter.stage) == (0, "HEADER_CONVERTER")

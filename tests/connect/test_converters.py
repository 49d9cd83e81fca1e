"""Converters: keys and values as bytes, and back."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.connect import DataException, RecordConverter, Schema, SchemaBuilder, Struct
from connectors.connect.columns import Column
from connectors.connect.converters import converter_of, converter_problems
from connectors.connect.json_data import JsonReader, schema_json

from .test_data import NESTED, PERSON, _nested

KAFKA = "org.apache.kafka.connect."


def make_converter(name: str, **settings: str) -> Any:
    dotted = {f"value.converter.{key.replace('_', '.')}": value for key, value in settings.items()}
    return converter_of({"value.converter": name, **dotted}, "value")


def there_and_back(converter: Any, schema: Schema | None, values: list[Any]) -> list[Any]:
    data = converter.from_connect("t", Column.of(schema, values))
    return [value for _, _, column in converter.to_connect("t", data) for value in column.values()]


def test_json_with_schemas_carries_every_type() -> None:
    rows = [_nested(), _nested(flag=None, price=None, tags=None)]
    converter = make_converter(KAFKA + "json.JsonConverter")
    assert there_and_back(converter, NESTED, rows) == rows


def test_json_of_the_guides_struct_is_connects_envelope() -> None:
    person = Struct(PERSON).put("name", "Barbara Liskov").put("age", 75)
    (body,) = make_converter("JsonConverter").from_connect("t", Column.of(PERSON, [person])).to_pylist()
    envelope = json.loads(body)
    assert envelope["payload"] == {"name": "Barbara Liskov", "age": 75, "admin": False}
    assert envelope["schema"]["type"] == "struct"
    assert envelope["schema"]["name"] == "com.example.Person"


def test_json_without_schemas_is_plain() -> None:
    converter = make_converter("JsonConverter", schemas_enable="false")
    values = [{"a": [1, None], "b": {"c": "ü\n"}}, None, 5]
    assert there_and_back(converter, None, values) == values
    assert converter.from_connect(
        "t", Column.of(PERSON, [Struct(PERSON).put("name", "n").put("age", 1)])
    ).to_pylist() == [b'{"name":"n","age":1,"admin":false}']
    quoted = converter.from_connect("t", Column.of(Schema.STRING_SCHEMA, ['say "x"', "plain", "tab\t"])).to_pylist()
    assert quoted == [b'"say \\"x\\""', b'"plain"', b'"tab\\t"']


def test_json_decimals_as_numbers() -> None:
    body = make_converter("JsonConverter", schemas_enable="false", decimal_format="NUMERIC").from_connect(
        "t", Column.of(NESTED, [_nested()])
    )
    value = json.loads(body[0].as_py())
    assert value["price"] == 12.34
    assert value["day"] == (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days
    plain = make_converter("JsonConverter", schemas_enable="false").from_connect(
        "t", Column.of(NESTED, [_nested(price=Decimal("-0.01"))])
    )
    assert json.loads(plain[0].as_py())["price"] == "/w=="


@pytest.mark.parametrize("format", ["BASE64", "NUMERIC"])
@pytest.mark.parametrize("envelope", ["true", "false"])
def test_json_decimals_keep_all_their_digits(format: str, envelope: str) -> None:
    decimal = SchemaBuilder.decimal(2).optional().build()
    schema = SchemaBuilder.struct().field("d", decimal).field("f", Schema.OPTIONAL_FLOAT64_SCHEMA).build()
    row = Struct(schema).put("d", Decimal("123456789012345678901234567890123456.78")).put("f", 0.1)
    converter = make_converter("JsonConverter", schemas_enable=envelope, decimal_format=format)
    (body,) = converter.from_connect("t", Column.of(schema, [row])).to_pylist()
    reader = JsonReader(True) if envelope == "true" else JsonReader(False, json.dumps(schema_json(schema)))
    assert reader.read(body) == (schema, row)


def test_json_that_is_none_or_no_envelope_is_refused() -> None:
    for body, text in ((b"{", "serialization error"), (b'{"a":1}', "set schemas.enable=false")):
        with pytest.raises(DataException, match=text):
            list(make_converter("JsonConverter").to_connect("t", pa.array([body])))


def test_a_json_schema_for_all_values() -> None:
    content = json.dumps(
        {"type": "struct", "optional": True, "fields": [{"field": "id", "type": "int32", "optional": False}]}
    )
    converter = make_converter("JsonConverter", schema_content=content)
    ((_, count, column),) = converter.to_connect("t", pa.array([b'{"id":1}', None]))
    assert count == 2
    assert [None if value is None else value.to_dict() for value in column.values()] == [{"id": 1}, None]


@pytest.mark.parametrize(
    ("name", "schema", "values", "first"),
    [
        ("storage.StringConverter", Schema.OPTIONAL_STRING_SCHEMA, ["a", None, "ü"], b"a"),
        ("converters.ByteArrayConverter", Schema.OPTIONAL_BYTES_SCHEMA, [b"\x00\xff", None], b"\x00\xff"),
        ("converters.ShortConverter", Schema.OPTIONAL_INT16_SCHEMA, [-2, None], b"\xff\xfe"),
        ("converters.IntegerConverter", Schema.OPTIONAL_INT32_SCHEMA, [1, None], b"\x00\x00\x00\x01"),
        ("converters.LongConverter", Schema.OPTIONAL_INT64_SCHEMA, [1, None], b"\x00\x00\x00\x00\x00\x00\x00\x01"),
        ("converters.FloatConverter", Schema.OPTIONAL_FLOAT32_SCHEMA, [0.5, None], b"\x3f\x00\x00\x00"),
        (
            "converters.DoubleConverter",
            Schema.OPTIONAL_FLOAT64_SCHEMA,
            [0.5, None],
            b"\x3f\xe0\x00\x00\x00\x00\x00\x00",
        ),
        ("converters.BooleanConverter", Schema.OPTIONAL_BOOLEAN_SCHEMA, [True, None], b"\x01"),
    ],
)
def test_plain_converters_write_what_kafkas_serializers_write(
    name: str, schema: Schema, values: list[Any], first: bytes
) -> None:
    converter = make_converter(KAFKA + name)
    assert converter.from_connect("t", Column.of(schema, values))[0].as_py() == first
    assert there_and_back(converter, schema, values) == values


def test_text_of_other_types_is_that_of_java() -> None:
    converter = make_converter("StringConverter")
    person = Struct(PERSON).put("name", "n").put("age", 1)
    assert converter.from_connect("t", Column.of(PERSON, [person])).to_pylist() == [b"Struct{name=n,age=1,admin=false}"]
    assert converter.from_connect("t", Column.of(None, [{"a": True, "b": None}, 1])).to_pylist() == [
        b"{a=true, b=null}",
        b"1",
    ]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(DataException, match="no UTF-8"):
        list(make_converter("StringConverter").to_connect("t", pa.array([b"\xff"])))
    with pytest.raises(DataException, match="takes bytes"):
        make_converter("ByteArrayConverter").from_connect("t", Column.of(Schema.STRING_SCHEMA, ["a"]))


class Reversed(RecordConverter):
    """A converter of one's own."""

    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else str(value)[::-1].encode()

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        return Schema.OPTIONAL_STRING_SCHEMA, None if value is None else value.decode()[::-1]


def test_a_converter_of_ones_own() -> None:
    assert there_and_back(make_converter(f"{__name__}.Reversed"), Schema.STRING_SCHEMA, ["abc"]) == ["abc"]


def test_settings_of_converters_are_checked() -> None:
    properties = {
        "key.converter": "Nothing",
        "value.converter": "JsonConverter",
        "value.converter.schemas.enable": "perhaps",
    }
    problems = {problem.option: problem.text for problem in converter_problems(properties)}
    assert set(problems) == {"key.converter", "value.converter.schemas.enable"}


@pytest.mark.parametrize("name", ["io.confluent.connect.avro.AvroConverter", "JsonSchemaConverter", "Protobuf"])
def test_a_converter_with_a_schema_registry_is_refused_with_the_way_out(name: str) -> None:
    properties = {"value.converter": name, "value.converter.schema.registry.url": "http://registry"}
    (problem,) = converter_problems(properties)
    assert problem.option == "value.converter"
    assert f'"{name}" is no converter that is here' in problem.text
    assert "connectors.kafka (value.format=avro, json or protobuf and schemaRegistry.url)" in problem.text
    assert "Java connector (pluginPath or pluginPackages)" in problem.text
    (other,) = converter_problems({"value.converter": "Nothing"})
    assert "registry" not in other.text

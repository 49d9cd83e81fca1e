"""Converters with a schema registry: Avro, JSON Schema, Protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.connect import DataException, RetriableException, Schema, Struct
from connectors.connect.columns import Column
from connectors.connect.converters import converter_of, converter_problems
from connectors.connect.data import plain
from connectors.testing.servers import SchemaRegistry

from .test_converters import there_and_back
from .test_data import NESTED, PERSON, _nested

pytestmark = pytest.mark.server
AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "io.confluent.connect.json.JsonSchemaConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def make_converter(name: str, registry: SchemaRegistry, side: str = "value", **settings: str) -> Any:
    dotted = {f"{side}.converter.{key.replace('_', '.')}": value for key, value in settings.items()}
    return converter_of(
        {f"{side}.converter": name, f"{side}.converter.schema.registry.url": registry.url, **dotted}, side
    )


@pytest.mark.parametrize("name", [AVRO, JSON])
def test_a_struct_goes_there_and_back(registry: SchemaRegistry, name: str) -> None:
    people = [
        Struct(PERSON).put("name", "Barbara Liskov").put("age", 75),
        Struct(PERSON).put("name", "Ada").put("age", 36),
    ]
    back = there_and_back(make_converter(name, registry), PERSON, people)
    assert [plain(person) for person in back] == [person.to_dict() for person in people]
    assert back[0].schema.name == "com.example.Person"


@pytest.mark.parametrize("name", [AVRO, JSON])
def test_nested_and_logical_types_go_there_and_back(registry: SchemaRegistry, name: str) -> None:
    row = _nested(clock=None)
    (back,) = there_and_back(make_converter(name, registry), NESTED, [row])
    expected, actual = row.to_dict(), plain(back)
    assert {key: value for key, value in actual.items() if key != "small"} == {
        k: v for k, v in expected.items() if k != "small"
    }
    assert actual["small"] == -128


@pytest.mark.parametrize("name", [AVRO, JSON])
def test_a_key_that_is_plain_text(registry: SchemaRegistry, name: str) -> None:
    converter = make_converter(name, registry, "key")
    assert there_and_back(converter, Schema.STRING_SCHEMA, ["a", "ü"]) == ["a", "ü"]


def test_records_of_two_schemas_are_two_runs(registry: SchemaRegistry) -> None:
    converter = make_converter(AVRO, registry)
    first = converter.from_connect("t", Column.of(PERSON, [Struct(PERSON).put("name", "n").put("age", 1)]))
    second = converter.from_connect("t", Column.of(NESTED, [_nested(clock=None)]))
    both = pa.concat_arrays([first, second, pa.nulls(1, pa.binary())])
    runs = [(place, count) for place, count, _ in converter.to_connect("t", both)]
    assert runs == [(0, 1), (1, 2)]


def test_protobuf_by_a_descriptor_set(registry: SchemaRegistry, tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="person.proto", package="demo", syntax="proto3")
    message = file.message_type.add(name="Person")
    message.field.add(name="name", number=1, type=9, label=1)
    message.field.add(name="age", number=2, type=5, label=1)
    message.field.add(name="admin", number=3, type=8, label=1)
    path = tmp_path / "person.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    converter = make_converter(PROTOBUF, registry, descriptor_file=str(path), message_name="demo.Person")
    people = [Struct(PERSON).put("name", "Barbara Liskov").put("age", 75)]
    back = there_and_back(converter, PERSON, people)
    assert [plain(person) for person in back] == [people[0].to_dict()]


def test_what_has_no_frame_or_no_schema_is_refused(registry: SchemaRegistry) -> None:
    converter = make_converter(AVRO, registry)
    with pytest.raises(DataException, match="magic byte"):
        list(converter.to_connect("t", pa.array([b"x"])))
    with pytest.raises(DataException, match="needs a schema"):
        converter.from_connect("t", Column.of(None, [{"a": 1}]))
    with pytest.raises(DataException, match="knows no schema 4711"):
        list(converter.to_connect("t", pa.array([b"\0" + (4711).to_bytes(4, "big") + b"x"])))


def test_a_registry_that_is_away_is_an_outage() -> None:
    with SchemaRegistry() as away:
        converter = make_converter(AVRO, away)
    with pytest.raises(RetriableException, match="cannot be reached"):
        converter.from_connect("t", Column.of(PERSON, [Struct(PERSON).put("name", "n").put("age", 1)]))


def test_a_registry_is_needed() -> None:
    problems = {problem.option for problem in converter_problems({"value.converter": AVRO})}
    assert problems == {"value.converter.schema.registry.url"}

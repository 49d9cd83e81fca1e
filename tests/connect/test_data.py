"""Schemas, structs and what they are in Arrow (CON-15, CON-16, CON-17)."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.connect import DataException, Schema, SchemaBuilder, SchemaException, Struct, require_schema
from connectors.connect.arrow_data import from_arrow, schema_of, to_arrow
from connectors.connect.errors import SchemaBuilderException
from connectors.connect.json_data import schema_from, schema_json

PERSON = (
    SchemaBuilder.struct()
    .name("com.example.Person")
    .field("name", Schema.STRING_SCHEMA)
    .field("age", Schema.INT_SCHEMA)
    .field("admin", SchemaBuilder.bool().default_value(False).build())
    .build()
)


def test_con_15_a_struct_of_the_guide_has_its_default() -> None:
    struct = Struct(PERSON).put("name", "Barbara Liskov").put("age", 75)
    struct.validate()
    assert struct.get("admin") is False
    assert struct.to_dict() == {"name": "Barbara Liskov", "age": 75, "admin": False}
    assert to_arrow([struct], PERSON).to_pylist() == [{"name": "Barbara Liskov", "age": 75, "admin": False}]


def test_con_15_a_struct_refuses_what_its_schema_does_not_have() -> None:
    struct = Struct(PERSON)
    with pytest.raises(DataException, match=r'field "age": .*75.* is no value of Schema\{INT32\}'):
        struct.put("age", "75")
    with pytest.raises(DataException, match='has no field "agee"; it has name, age, admin'):
        struct.put("agee", 75)
    with pytest.raises(DataException, match='"age": 3000000000 is out of the range'):
        struct.put("age", 3_000_000_000)
    with pytest.raises(DataException, match='"age": True'):
        struct.put("age", True)
    with pytest.raises(DataException, match='field "name": null is no value'):
        struct.validate()


def test_con_15_a_builder_refuses_what_cannot_be() -> None:
    with pytest.raises(SchemaBuilderException, match="invalid default"):
        SchemaBuilder.bool().default_value("no")
    with pytest.raises(SchemaBuilderException, match="name is set already"):
        SchemaBuilder.struct().name("a").name("b")
    with pytest.raises(SchemaBuilderException, match='"a" is there already'):
        SchemaBuilder.struct().field("a", Schema.STRING_SCHEMA).field("a", Schema.STRING_SCHEMA)
    with pytest.raises(SchemaBuilderException, match="only a struct has fields"):
        SchemaBuilder.string().field("a", Schema.STRING_SCHEMA)


def test_con_16_a_static_schema_is_one_object_with_one_arrow_type() -> None:
    assert PERSON.arrow() is PERSON.arrow()
    again = SchemaBuilder.struct().name("com.example.Person")
    for field in PERSON.fields:
        again.field(field.name, field.schema)
    assert again.build() == PERSON
    assert hash(again.build()) == hash(PERSON)


def test_con_17_a_mismatch_names_both_schemas() -> None:
    other = (
        SchemaBuilder.struct()
        .name("com.example.Person")
        .field("name", Schema.STRING_SCHEMA)
        .field("age", Schema.STRING_SCHEMA)
        .build()
    )
    with pytest.raises(SchemaException) as refused:
        require_schema(PERSON, other, "the record of topic people")
    text = str(refused.value)
    assert "Schema{com.example.Person:STRUCT}(name: STRING, age: INT32, admin: BOOLEAN)" in text
    assert "Schema{com.example.Person:STRUCT}(name: STRING, age: STRING)" in text
    assert "age is STRING, not INT32" in text
    require_schema(PERSON, PERSON)
    with pytest.raises(SchemaException, match="no schema"):
        require_schema(PERSON, None)


NESTED = (
    SchemaBuilder.struct()
    .name("nested")
    .version(3)
    .doc("all types")
    .field("flag", Schema.OPTIONAL_BOOLEAN_SCHEMA)
    .field("small", Schema.INT8_SCHEMA)
    .field("price", SchemaBuilder.decimal(2).optional().build())
    .field("day", SchemaBuilder.date().optional().build())
    .field("at", SchemaBuilder.timestamp().optional().build())
    .field("clock", SchemaBuilder.time().optional().build())
    .field("tags", SchemaBuilder.array(Schema.STRING_SCHEMA).optional().build())
    .field("counts", SchemaBuilder.map(Schema.STRING_SCHEMA, Schema.INT64_SCHEMA).optional().build())
    .field("inner", SchemaBuilder.struct().optional().field("x", Schema.FLOAT64_SCHEMA).build())
    .build()
)


def _nested(**more: Any) -> Struct:
    values: dict[str, Any] = {
        "flag": True,
        "small": -128,
        "price": Decimal("12.34"),
        "day": datetime.date(2024, 2, 29),
        "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=datetime.timezone.utc),
        "clock": datetime.time(23, 59, 59, 999000),
        "tags": ["a", ""],
        "counts": {"a": 1 << 62},
        "inner": Struct(NESTED.field("inner").schema).put("x", 0.5),
    }
    return Struct.of(NESTED, {**values, **more})


def test_values_of_every_type_go_to_arrow_and_back() -> None:
    rows = [_nested(), _nested(flag=None, price=None, tags=None, inner=None, counts=None), None]
    optional = SchemaBuilder.struct().optional().name("nested").version(3).doc("all types")
    for field in NESTED.fields:
        optional.field(field.name, field.schema)
    schema = optional.build()
    moved = [
        None if row is None else Struct.of(schema, {f.name: row.get(f.name) for f in NESTED.fields}) for row in rows
    ]
    assert from_arrow(to_arrow(moved, schema), schema) == moved


def test_a_null_among_structs_with_a_required_struct() -> None:
    inner = SchemaBuilder.struct().field("x", Schema.INT32_SCHEMA).build()
    outer = SchemaBuilder.struct().optional().field("inner", inner).build()
    rows = [None, Struct(outer).put("inner", Struct(inner).put("x", 1)), None]
    assert from_arrow(to_arrow(rows, outer), outer) == rows


def test_a_schema_goes_to_json_and_back() -> None:
    assert schema_from(schema_json(NESTED)) == NESTED
    assert schema_from(schema_json(PERSON)) == PERSON
    assert schema_json(PERSON)["fields"][2] == {
        "type": "boolean",
        "optional": False,
        "default": False,
        "field": "admin",
    }


@given(st.lists(st.one_of(st.none(), st.integers(-(1 << 31), (1 << 31) - 1))))
def test_numbers_keep_their_values(values: list[int | None]) -> None:
    schema = Schema.OPTIONAL_INT32_SCHEMA
    assert from_arrow(to_arrow(values, schema), schema) == values


def test_types_of_arrow_have_schemas() -> None:
    kind = pa.struct([("id", pa.int64()), ("price", pa.decimal128(10, 2)), ("at", pa.timestamp("us", tz="UTC"))])
    schema = schema_of(kind)
    assert [field.schema.name for field in schema.fields] == [
        None,
        "org.apache.kafka.connect.data.Decimal",
        "org.apache.kafka.connect.data.Timestamp",
    ]
    with pytest.raises(DataException, match="no type for duration"):
        schema_of(pa.duration("s"))

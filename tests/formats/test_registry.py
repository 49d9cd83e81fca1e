"""Records in the frame of a schema registry: ids are looked up once, and an outage is no bad record."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from connectors.core import Misconfigured, Transient
from connectors.formats import AvroFormat, FormatSettings, JsonFormat, check_format, format_options, value_type
from connectors.testing.servers import SchemaRegistry

pytestmark = pytest.mark.server
KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


FIRST = record(("id", "int"), ("name", "string"))


def framed(number: int, schema: Any, row: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def avro(server: SchemaRegistry, kind: pa.DataType = KIND, **more: Any) -> AvroFormat:
    return AvroFormat(kind, FormatSettings(registry_url=server.url, **more))


def column(*records: bytes | None) -> pa.Array:
    return pa.array(records, pa.binary())


def test_records_of_several_schemas_are_read_in_their_order(server: SchemaRegistry) -> None:
    second = record(("name", ["null", "string"]), ("more", "double"), ("id", "long"))
    first_id, second_id = (server.register("orders-value", json.dumps(each)) for each in (FIRST, second))
    records = [
        framed(second_id, second, {"id": 2**40, "name": None, "more": 0.5}),
        framed(first_id, FIRST, {"id": 1, "name": "x"}),
        None,
        framed(second_id, second, {"id": 3, "name": "z", "more": 1.0}),
    ]
    decoded = avro(server).decode(column(*records))
    assert decoded.values.to_pylist() == [
        {"id": 2**40, "name": None},
        {"id": 1, "name": "x"},
        None,
        {"id": 3, "name": "z"},
    ]
    assert list(decoded.bad) == []


def test_a_part_of_a_column_is_read_like_a_whole_one(server: SchemaRegistry) -> None:
    number = server.register("orders-value", json.dumps(FIRST))
    good = [framed(number, FIRST, {"id": n, "name": "x" * n}) for n in range(6)]
    decoded = avro(server).decode(column(*good)[2:5])
    assert [row["id"] for row in decoded.values.to_pylist()] == [2, 3, 4]
    mixed = avro(server).decode(column(b"x", *good, b"")[0:4])
    assert [row and row["id"] for row in mixed.values.to_pylist()] == [None, 0, 1, 2]


HOSTILE = {
    "nothing": (b"", "shorter than the 5 bytes"),
    "four bytes": (b"\0\0\0\0", "shorter than the 5 bytes"),
    "another magic byte": (b"\x01\0\0\0\x01\x02\x02x", "begins with the byte 1"),
    "JSON": (b'{"id":1,"name":"x"}', "begins with the byte 123"),
    "an unknown id": (b"\0\x7f\xff\xff\xff\x02\x02x", "knows no schema 2147483647"),
    "no body": (b"\0\0\0\0\x01", "ends within id"),
}


@pytest.mark.parametrize(("hostile", "error"), HOSTILE.values(), ids=HOSTILE)
def test_a_record_without_a_right_frame_is_bad(server: SchemaRegistry, hostile: bytes, error: str) -> None:
    number = server.register("orders-value", json.dumps(FIRST))
    assert number == 1
    good = framed(number, FIRST, {"id": 1, "name": "x"})
    decoded = avro(server).decode(column(good, hostile, good))
    assert [row and row["id"] for row in decoded.values.to_pylist()] == [1, None, 1]
    (bad,) = decoded.bad
    assert bad.index == 1
    assert error in bad.error


def test_a_schema_that_does_not_fit_the_columns_makes_bad_records_that_say_why(server: SchemaRegistry) -> None:
    other = record(("id", "string"), ("name", "string"))
    wrong, right = server.register("x", json.dumps(other)), server.register("x", json.dumps(FIRST))
    text = server.register("x", '{"type": "object"}', "JSON")
    good = framed(right, FIRST, {"id": 1, "name": "x"})
    bad = [framed(wrong, other, {"id": "1", "name": "x"}), b"\0" + text.to_bytes(4, "big") + b"{}"]
    decoded = avro(server).decode(column(bad[0], good, bad[1]))
    assert [failure.index for failure in decoded.bad] == [0, 2]
    assert "id was written as string and cannot be read as int64" in decoded.bad[0].error
    assert "is of JSON" in decoded.bad[1].error
    assert decoded.values[1].as_py() == {"id": 1, "name": "x"}


def test_an_id_is_looked_up_once_in_a_process_also_one_that_is_unknown() -> None:
    with SchemaRegistry() as server:
        number = server.register("orders-value", json.dumps(FIRST))
        records = column(*[framed(number, FIRST, {"id": n, "name": ""}) for n in range(9)], b"\0\0\0\x09\x09x")
        for _ in range(3):
            avro(server).decode(records)
        requests = server.seen()
    assert requests[f"/schemas/ids/{number}"] == 1
    assert requests[f"/schemas/ids/{0x909}"] == 1


@pytest.mark.parametrize("status", [500, 503, 429])
def test_an_outage_is_transient_and_no_record_is_bad(status: int) -> None:
    with SchemaRegistry() as server:
        number = server.register("orders-value", json.dumps(FIRST))
        good = column(framed(number, FIRST, {"id": 1, "name": "x"}))
        server.behave(fail=100, status=status)
        with pytest.raises(Transient):
            avro(server).decode(good)
        server.behave()
        assert avro(server).decode(good).values.to_pylist() == [{"id": 1, "name": "x"}]


def test_a_registry_that_is_gone_and_comes_back_loses_no_record() -> None:
    with SchemaRegistry() as server:
        number = server.register("orders-value", json.dumps(FIRST))
        good = column(framed(number, FIRST, {"id": 1, "name": "x"}))
        server.kill()
        codec = avro(server)
        with pytest.raises(Transient, match="cannot be reached"):
            codec.decode(good)
        server.relaunch()
        assert codec.decode(good).values.to_pylist() == [{"id": 1, "name": "x"}]
        server.kill()
        assert list(codec.decode(good).bad) == []  # it is known by now


def test_a_wrong_password_is_said_and_is_no_bad_record() -> None:
    with SchemaRegistry("reader", "right") as server:
        number = server.register("orders-value", json.dumps(FIRST))
        good = column(framed(number, FIRST, {"id": 1, "name": "x"}))
        with pytest.raises(Misconfigured, match=r"schemaRegistry\.user") as caught:
            avro(server, registry_user="reader", registry_password="wr0ng").decode(good)
        assert "wr0ng" not in str(caught.value)
        codec = avro(server, registry_user="reader", registry_password="right")
        assert "right" not in repr(codec.settings)
        assert codec.decode(good).values.to_pylist() == [{"id": 1, "name": "x"}]


def test_a_written_column_is_registered_and_read_again(server: SchemaRegistry) -> None:
    for codec in (
        avro(server, subject="out-value"),
        JsonFormat(KIND, FormatSettings(registry_url=server.url, subject="j-value")),
    ):
        rows = pa.array([{"id": 1, "name": "é"}, None, {"id": None, "name": None}], KIND)
        written = codec.encode(rows)
        assert written[0].as_py()[:1] == b"\0"
        assert written[1].as_py() is None
        decoded = codec.decode(written)
        assert decoded.values.equals(rows)
        assert list(decoded.bad) == []
    requests = server.seen()
    assert requests["/subjects/out-value/versions"] == requests["/subjects/j-value/versions"] == 1


def test_a_column_that_was_added_to_what_we_write_is_a_new_version_that_both_can_read(server: SchemaRegistry) -> None:
    wide = pa.struct([*KIND, ("city", pa.string())])
    old = avro(server, subject="v").encode(pa.array([{"id": 1, "name": "x"}], KIND))
    new = avro(server, wide, subject="v").encode(pa.array([{"id": 2, "name": "y", "city": "z"}], wide))
    both = pa.concat_arrays([old, new])
    assert avro(server).decode(both).values.to_pylist() == [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]
    assert [row["city"] for row in avro(server, wide).decode(both).values.to_pylist()] == [None, "z"]


def test_named_types_of_other_subjects_are_looked_up(server: SchemaRegistry) -> None:
    server.register("place", json.dumps(record(("city", "string"), name="Place")))
    references = [{"name": "Place", "subject": "place", "version": 1}]
    text = json.dumps(record(("id", "long"), ("at", "Place")))
    number = server.register("with-place", text, references=references)
    whole = record(("id", "long"), ("at", record(("city", "string"), name="Place")))
    kind = pa.struct([("at", pa.struct([("city", pa.string())]))])
    decoded = avro(server, kind).decode(column(framed(number, whole, {"id": 1, "at": {"city": "x"}})))
    assert decoded.values.to_pylist() == [{"at": {"city": "x"}}]


def test_the_columns_of_a_subject_are_those_of_its_newest_schema(server: SchemaRegistry) -> None:
    server.register("typed", json.dumps(FIRST))
    typed = {"value.format": "avro", "schemaRegistry.url": server.url, "value.subject": "typed"}
    values = format_options("bytes").parse("connectors.toy", typed, check_format)
    assert value_type(values) == "struct<`id`: int, `name`: string>"
    missing = format_options("bytes").parse("connectors.toy", {**typed, "value.subject": "none"}, check_format)
    with pytest.raises(Misconfigured, match='no subject "none"'):
        value_type(missing)

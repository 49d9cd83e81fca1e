"""Protobuf: messages of a descriptor set, what absent fields are, and what a registry's frame adds."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core import Misconfigured, Transient
from connectors.formats import FormatSettings, ProtobufFormat, check_format, format_options, value_type
from connectors.formats.protobuf import without_indexes, written_indexes
from connectors.testing.servers import SchemaRegistry
from connectors.testing.servers.base import free_ports

from ..machine_bucket import MachineBucket, machine_bucket  # noqa: F401 - a fixture
from .columns import same, values

Proto = descriptor_pb2.FieldDescriptorProto
REPEATED, OPTIONAL = Proto.LABEL_REPEATED, Proto.LABEL_OPTIONAL


def field(
    name: str, number: int, kind: int, label: int = OPTIONAL, of: str = ""
) -> descriptor_pb2.FieldDescriptorProto:
    return Proto(name=name, number=number, type=kind, label=label, type_name=of or None)


def described() -> bytes:
    """syntax = "proto3"; package shop; message Order with fields of many types, a nested message, a map, and Other."""
    item = descriptor_pb2.DescriptorProto(
        name="Item", field=[field("sku", 1, Proto.TYPE_STRING), field("n", 2, Proto.TYPE_SINT64)]
    )
    entry = descriptor_pb2.DescriptorProto(
        name="TagsEntry",
        field=[field("key", 1, Proto.TYPE_STRING), field("value", 2, Proto.TYPE_MESSAGE, of=".shop.Order.Item")],
    )
    entry.options.map_entry = True
    maybe = field("maybe", 3, Proto.TYPE_INT32)
    maybe.proto3_optional, maybe.oneof_index = True, 0
    order = descriptor_pb2.DescriptorProto(
        name="Order",
        nested_type=[item, entry],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_maybe")],
        field=[
            field("id", 1, Proto.TYPE_INT64),
            field("name", 2, Proto.TYPE_STRING),
            maybe,
            field("raw", 4, Proto.TYPE_BYTES),
            field("at", 5, Proto.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
            field("items", 6, Proto.TYPE_MESSAGE, REPEATED, ".shop.Order.Item"),
            field("tags", 7, Proto.TYPE_MESSAGE, REPEATED, ".shop.Order.TagsEntry"),
            field("sizes", 8, Proto.TYPE_DOUBLE, REPEATED),
            field("state", 9, Proto.TYPE_ENUM, of=".shop.State"),
            field("big", 10, Proto.TYPE_UINT64),
            field("first", 11, Proto.TYPE_MESSAGE, of=".shop.Order.Item"),
            field("took", 12, Proto.TYPE_MESSAGE, of=".google.protobuf.Duration"),
        ],
    )
    other = descriptor_pb2.DescriptorProto(
        name="Other", field=[field("id", 1, Proto.TYPE_INT64), field("self", 2, Proto.TYPE_MESSAGE, of=".shop.Other")]
    )
    state = descriptor_pb2.EnumDescriptorProto(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", message_type=[other, order], enum_type=[state]
    )
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    durations = descriptor_pb2.FileDescriptorProto()
    duration_pb2.DESCRIPTOR.CopyToProto(durations)
    return descriptor_pb2.FileDescriptorSet(file=[times, durations, file]).SerializeToString()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("protobuf") / "shop.desc"
    path.write_bytes(described())
    return {"value.format": "protobuf", "value.descriptorFile": str(path), "value.messageName": "shop.Order"}


def format_of(options: dict[str, str], kind: pa.DataType | None = None, **more: Any) -> ProtobufFormat:
    settings = FormatSettings(
        descriptor_file=options["value.descriptorFile"], message_name=options["value.messageName"], **more
    )
    if kind is None:
        from connectors.formats.protobuf import protobuf_message

        kind = protobuf_message(settings).type
    return ProtobufFormat(kind, settings)


def column(*records: bytes | None) -> pa.Array:
    return pa.array(records, pa.binary())


EMPTY = {
    "id": 0,
    "name": "",
    "maybe": None,
    "raw": b"",
    "at": None,
    "items": [],
    "tags": [],
    "sizes": [],
    "state": "NEW",
    "big": 0,
    "first": None,
    "took": None,
}


def test_the_columns_are_the_fields(options: dict[str, str]) -> None:
    assert value_type(format_options("bytes").parse("connectors.toy", options, check_format)) == (
        "struct<`id`: bigint, `name`: string, `maybe`: int, `raw`: binary, `at`: timestamp, "
        "`items`: array<struct<`sku`: string, `n`: bigint>>, `tags`: map<string, struct<`sku`: string, `n`: bigint>>, "
        "`sizes`: array<double>, `state`: string, `big`: decimal(20,0), `first`: struct<`sku`: string, `n`: bigint>, "
        "`took`: interval day to second>"
    )


def test_an_absent_field_is_its_default_or_null_if_it_can_tell(options: dict[str, str]) -> None:
    assert format_of(options).decode(column(b"", None)).values.to_pylist() == [EMPTY, None]


FILLED = {
    **EMPTY,
    "id": -1,
    "name": "é",
    "maybe": 0,
    "raw": b"\xff",
    "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc),
    "items": [{"sku": "a", "n": -5}, {"sku": "", "n": 0}],
    "tags": [("k", {"sku": "t", "n": 1})],
    "sizes": [0.5, 1.0],
    "state": "PAID",
    "big": 2**64 - 1,
    "first": {"sku": "", "n": 0},
    "took": datetime.timedelta(microseconds=-1),
}


def test_what_protobuf_has_written_it_reads(options: dict[str, str]) -> None:
    each = format_of(options)
    rows = pa.array([FILLED, None, EMPTY], each.kind)
    written = each.encode(rows)
    assert each.decode(written).values.equals(rows)
    assert written[1].as_py() is None
    took = each._message.message_class.FromString(written[0].as_py()).took
    assert (took.seconds, took.nanos) == (0, -1000)  # both parts of a duration have its sign


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_values_come_back(options: dict[str, str], data: Any) -> None:
    kind = pa.struct(
        [("maybe", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("first", pa.struct([("sku", pa.string())]))]
    )
    rows = data.draw(st.lists(values(kind)))
    rows = [row and {**row, "first": row["first"] and {"sku": row["first"]["sku"] or ""}} for row in rows]
    each = format_of(options, kind)
    expected = pa.array(rows, kind)
    assert same(each.decode(each.encode(expected)).values, expected)


def test_a_field_that_the_columns_lack_is_passed_over_and_one_that_the_message_lacks_is_null(
    options: dict[str, str],
) -> None:
    written = format_of(options).encode(pa.array([FILLED], format_of(options).kind))
    kind = pa.struct([("id", pa.int64()), ("items", pa.list_(pa.struct([("n", pa.int64())]))), ("none", pa.string())])
    assert format_of(options, kind).decode(written).values.to_pylist() == [
        {"id": -1, "items": [{"n": -5}, {"n": 0}], "none": None}
    ]


def test_a_field_of_another_type_is_said_before_anything_is_read(options: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match="name is string, and cannot be read as int64"):
        format_of(options, pa.struct([("name", pa.int64())]))


ITEM = pa.struct([("sku", pa.string()), ("color", pa.string())])
UNKNOWN = {
    "nam": ("nam", pa.string()),
    "first.color": ("first", ITEM),
    "items.color": ("items", pa.list_(ITEM)),
    "tags.color": ("tags", pa.map_(pa.string(), ITEM)),
}


@pytest.mark.parametrize(("place", "extra"), UNKNOWN.items(), ids=UNKNOWN)
def test_a_column_that_the_message_lacks_is_refused_and_not_left_out(
    options: dict[str, str], place: str, extra: tuple[str, pa.DataType]
) -> None:
    with pytest.raises(ValueError, match=f"^{place} is no field of the message"):
        format_of(options, pa.struct([("id", pa.int64()), extra])).check_encode()
    format_of(options, pa.struct([("id", pa.int64())])).check_encode()


def test_a_double_is_not_written_as_a_float(tmp_path: Path) -> None:
    message = descriptor_pb2.DescriptorProto(name="F", field=[field("f", 1, Proto.TYPE_FLOAT)])
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax="proto3", message_type=[message])
    path = tmp_path / "f.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    options = {"value.descriptorFile": str(path), "value.messageName": "F"}
    format_of(options).check_encode()
    with pytest.raises(ValueError, match="f is a double, and the message has a float"):
        format_of(options, pa.struct([("f", pa.float64())])).check_encode()


@settings(max_examples=300, deadline=None)
@given(hostile=st.lists(st.binary(max_size=30), max_size=4))
def test_hostile_bytes_hide_no_good_record(options: dict[str, str], hostile: list[bytes]) -> None:
    each = format_of(options)
    good = each.encode(pa.array([FILLED], each.kind))[0].as_py()
    records = [record for bad in hostile for record in (bad, good)]
    decoded = each.decode(column(*records))
    decoded.values.validate(full=True)
    assert decoded.values.to_pylist()[1::2] == [FILLED] * len(hostile)
    assert all(failure.index % 2 == 0 for failure in decoded.bad)


def test_a_broken_message_is_bad(options: dict[str, str]) -> None:
    each = format_of(options)
    decoded = each.decode(column(b"\x12\xff\xff\xff\xff\x07x", b"\x08\x01", b"\x12\x01\xff", b"\x08"))
    assert [failure.index for failure in decoded.bad] == [0, 2, 3]
    assert all(failure.error for failure in decoded.bad)


@pytest.mark.parametrize("indexes", [[0], [1], [2, 0, 300]])
def test_message_indexes_come_off_as_they_went_on(indexes: list[int]) -> None:
    assert without_indexes(written_indexes(indexes) + b"body") == b"body"


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x80", b"\x80" * 20, b"\x01", b"\xfe\xff\xff\xff\x0f"])
def test_broken_message_indexes_are_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="message index"):
        without_indexes(body)


@pytest.mark.server
def test_messages_in_the_frame_of_a_registry(options: dict[str, str]) -> None:
    with SchemaRegistry() as server:
        each = format_of(options, registry_url=server.url, subject="orders-value")
        rows = pa.array([FILLED, None, EMPTY], each.kind)
        written = each.encode(rows)
        assert written[0].as_py()[:7] == b"\0\0\0\0\x01\x02\x02"  # id 1, one index: the second message of its file
        decoded = each.decode(pa.concat_arrays([written, column(b"\0\0\0\0\x07\0", b"\0\0\0\0\x01", b"\x08\x01")]))
    assert decoded.values[:3].equals(rows)
    assert [failure.index for failure in decoded.bad] == [3, 4, 5]


WRONG = {
    "no file": ({"value.descriptorFile": "/nowhere"}, "descriptorFile.*cannot be read"),
    "another message": ({"value.messageName": "shop.Ordr"}, r'no message "shop.Ordr"; there are .*shop\.Order'),
    "recursive": ({"value.messageName": "shop.Other"}, "contains itself"),
    "no descriptor set": ({"value.descriptorFile": __file__}, "no descriptor set"),
}


@pytest.mark.parametrize(("wrong", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_descriptor_is_said(options: dict[str, str], wrong: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        value_type(format_options("bytes").parse("connectors.toy", {**options, **wrong}, check_format))


def test_a_descriptor_may_be_in_an_object_store(machine_bucket: MachineBucket, options: dict[str, str]) -> None:  # noqa: F811
    columns = format_of(options).kind
    for key in ("shop.desc", "deep/in/shop.desc"):
        machine_bucket.client.put_object(Bucket=machine_bucket.name, Key=key, Body=described())
        assert format_of({**options, "value.descriptorFile": f"{machine_bucket.url}/{key}"}).kind == columns


@pytest.mark.parametrize(
    ("location", "text"),
    [("{}/shop.desc", "no such object"), ("{}-else/shop.desc", "names a bucket that is not there")],
)
def test_a_descriptor_that_an_object_store_lacks_is_said(
    machine_bucket: MachineBucket,  # noqa: F811
    options: dict[str, str],
    location: str,
    text: str,
) -> None:
    with pytest.raises(Misconfigured, match=text) as caught:
        format_of({**options, "value.descriptorFile": location.format(machine_bucket.url)})
    assert [problem.option for problem in caught.value.problems] == ["value.descriptorFile"]


def test_an_outage_of_the_store_of_a_descriptor_is_no_mistake_of_the_user(
    machine_bucket: MachineBucket,  # noqa: F811
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(Transient):
        format_of({**options, "value.descriptorFile": f"{machine_bucket.url}/shop.desc"})


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}", "{name}", "./{name}"])
def test_a_local_descriptor_is_spelled_as_any_location(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    path = Path(options["value.descriptorFile"])
    monkeypatch.chdir(path.parent)
    columns = format_of(options).kind
    assert format_of({**options, "value.descriptorFile": spelling.format(path, name=path.name)}).kind == columns


def test_protobuf_without_a_descriptor_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as caught:
        format_options("bytes").parse("connectors.toy", {"value.format": "protobuf"}, check_format)
    assert {problem.option for problem in caught.value.problems} == {"value.descriptorFile", "value.messageName"}


def test_a_row_without_a_required_field_is_a_value_error(tmp_path: Path) -> None:
    fields = [field("id", 1, Proto.TYPE_INT32, Proto.LABEL_REQUIRED), field("x", 2, Proto.TYPE_INT32)]
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    file.message_type.add(name="M", field=fields)
    path = tmp_path / "old.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    kind = pa.struct([("id", pa.int32()), ("x", pa.int32())])
    codec = ProtobufFormat(kind, FormatSettings(descriptor_file=str(path), message_name="old.M"))
    with pytest.raises(ValueError, match=r"old\.M.*missing required fields: id"):
        codec.encode(pa.array([{"id": None, "x": 1}], kind))

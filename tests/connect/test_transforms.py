"""The sixteen transforms of Connect, under its names and options, over structs (Arrow) and over maps without schema."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from connectors.connect import (
    Headers,
    RetriableException,
    Schema,
    SchemaBuilder,
    SourceRecord,
    Struct,
)
from connectors.connect.columns import Records, of_source_records
from connectors.connect.data import plain
from connectors.connect.errors import ConnectException
from connectors.connect.tolerance import Tolerance
from connectors.connect.transforms import TRANSFORMS, Chain, RecordPredicate, RecordTransform
from connectors.connect.transforms.times import DatePattern

PACKAGE = "org.apache.kafka.connect.transforms."
INNER = SchemaBuilder.struct().optional().field("x", Schema.INT32_SCHEMA).build()
SCHEMA = (
    SchemaBuilder.struct()
    .name("order")
    .field("id", Schema.INT64_SCHEMA)
    .field("name", Schema.OPTIONAL_STRING_SCHEMA)
    .field("price", Schema.FLOAT64_SCHEMA)
    .field("inner", INNER)
    .build()
)
VALUE: dict[str, Any] = {"id": 7, "name": "seven", "price": 2.5, "inner": {"x": 1}}


def struct(**more: Any) -> Struct:
    values = {**VALUE, **more}
    inner = values.pop("inner")
    return Struct.of(SCHEMA, {**values, "inner": None if inner is None else Struct.of(INNER, inner)})


def record(value: Any = None, **more: Any) -> SourceRecord:
    schema = more.pop("value_schema", value.schema if isinstance(value, Struct) else None)
    return SourceRecord(
        {"p": 1}, {"o": 1}, more.pop("topic", "orders"), value, value_schema=schema, timestamp=1_700_000_000_123, **more
    )


def tolerance(**properties: str) -> Tolerance:
    return Tolerance(
        {key.replace("_", "."): value for key, value in properties.items()}, lambda seconds: bool(time.sleep(seconds))
    )


def run(
    records: list[SourceRecord],
    *steps: tuple[str, Mapping[str, str]],
    errors: Tolerance | None = None,
    **predicates: str,
) -> list[SourceRecord]:
    """``records`` through transforms; the class ``X`` stands for Connect's own."""
    properties = {"transforms": ",".join(f"t{number}" for number in range(len(steps))), **predicates}
    for number, (name, settings) in enumerate(steps):
        properties[f"transforms.t{number}.type"] = name if "." in name else PACKAGE + name
        properties |= {f"transforms.t{number}.{key}": value for key, value in settings.items()}
    assert list(Chain.problems(properties)) == []
    chain = Chain.of(properties)
    out: list[Records] = []
    for part in of_source_records(records):
        out += chain.apply(part, errors or tolerance())
    return [after for part in out for after in part.to_source_records()]


def both(settings: Mapping[str, str], name: str, expected: Any, value: Mapping[str, Any] | None = None) -> Struct:
    """The transform gives ``expected`` for a struct and for a map; the struct is returned."""
    value = {**VALUE, **(value or {})}
    (typed,) = run([record(struct(**value))], (f"{name}$Value", settings))
    (free,) = run([record(dict(value))], (f"{name}$Value", settings))
    assert plain(typed.value) == expected
    assert free.value == expected
    (key,) = run([record(None, key=struct(**value), key_schema=SCHEMA)], (f"{name}$Key", settings))
    assert plain(key.key) == expected
    (tombstone,) = run([record(None)], (f"{name}$Value", settings)) if name != "HoistField" else (record(None),)
    assert tombstone.value is None
    return typed.value  # type: ignore[no-any-return]


def test_there_are_sixteen() -> None:
    assert len(TRANSFORMS) == 16


def test_insert_field() -> None:
    settings = {"topic.field": "t", "timestamp.field": "at!", "static.field": "s?", "static.value": "x"}
    (typed,) = run([record(struct())], ("InsertField$Value", settings))
    moment = datetime.datetime.fromtimestamp(1_700_000_000.123, datetime.timezone.utc)
    assert typed.value.to_dict() == {**VALUE, "t": "orders", "at": moment, "s": "x"}
    fields = {field.name: field.schema.optional for field in typed.value.schema.fields}
    assert (fields["t"], fields["at"], fields["s"]) == (True, False, True)
    (free,) = run([record(dict(VALUE))], ("InsertField$Value", settings))
    assert free.value == {**VALUE, "t": "orders", "at": 1_700_000_000_123, "s": "x"}


def test_replace_field() -> None:
    both({"exclude": "price,inner"}, "ReplaceField", {"id": 7, "name": "seven"})
    both({"include": "id,name", "renames": "name:title"}, "ReplaceField", {"id": 7, "title": "seven"})
    both({"blacklist": "price"}, "ReplaceField", {"id": 7, "name": "seven", "inner": {"x": 1}})


def test_mask_field() -> None:
    both({"fields": "id,name,price"}, "MaskField", {"id": 0, "name": "", "price": 0.0, "inner": {"x": 1}})
    both({"fields": "id", "replacement": "9"}, "MaskField", {**VALUE, "id": 9})


def test_extract_field() -> None:
    both({"field": "name"}, "ExtractField", "seven")
    both({"field": "inner.x", "field.syntax.version": "V2"}, "ExtractField", 1)


def test_hoist_field() -> None:
    both({"field": "order"}, "HoistField", {"order": VALUE})


def test_value_to_key() -> None:
    (typed,) = run([record(struct())], ("ValueToKey", {"fields": "id,name"}))
    assert typed.key.to_dict() == {"id": 7, "name": "seven"}
    (free,) = run([record(dict(VALUE))], ("ValueToKey", {"fields": "id"}))
    assert free.key == {"id": 7}


def test_set_schema_metadata() -> None:
    (typed,) = run([record(struct())], ("SetSchemaMetadata$Value", {"schema.name": "other", "schema.version": "4"}))
    assert (typed.value.schema.name, typed.value.schema.version) == ("other", 4)


def test_cast() -> None:
    typed = both({"spec": "id:string,price:int32,name:string"}, "Cast", {**VALUE, "id": "7", "price": 2})
    assert typed.schema.field("id").schema.type.name == "STRING"
    (whole,) = run([record("12", value_schema=Schema.STRING_SCHEMA)], ("Cast$Value", {"spec": "int8"}))
    assert (whole.value, whole.value_schema) == (12, Schema.INT8_SCHEMA)
    both({"spec": "id:int8"}, "Cast", {**VALUE, "id": 44}, {"id": 300})  # as Java narrows
    with pytest.raises(ConnectException, match="out of range"):
        run([record("300", value_schema=Schema.STRING_SCHEMA)], ("Cast$Value", {"spec": "int8"}))


def test_flatten() -> None:
    typed = both({"delimiter": "_"}, "Flatten", {"id": 7, "name": "seven", "price": 2.5, "inner_x": 1})
    assert typed.schema.field("inner_x").schema.optional  # since inner is
    (empty,) = run([record(struct(inner=None))], ("Flatten$Value", {}))
    assert empty.value.to_dict()["inner.x"] is None


def test_timestamp_converter() -> None:
    number = SchemaBuilder.struct().field("at", Schema.INT64_SCHEMA).build()
    value = Struct.of(number, {"at": 1_700_000_000_123})
    forms = {
        "string": "2023-11-14 22:13:20.123",
        "Timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.timezone.utc),
        "Date": datetime.date(2023, 11, 14),
        "Time": datetime.time(22, 13, 20, 123000),
        "unix": 1_700_000_000_123,
    }
    for target, expected in forms.items():
        settings = {"field": "at", "target.type": target, "format": "yyyy-MM-dd HH:mm:ss.SSS"}
        (typed,) = run([record(value)], ("TimestampConverter$Value", settings))
        (free,) = run([record({"at": 1_700_000_000_123})], ("TimestampConverter$Value", settings))
        assert typed.value.get("at") == free.value["at"] == expected, target
        back = {"field": "at", "target.type": "unix", "format": "yyyy-MM-dd HH:mm:ss.SSS"}
        if target in ("string", "Timestamp"):
            assert run([typed], ("TimestampConverter$Value", back))[0].value.get("at") == 1_700_000_000_123
    (seconds,) = run(
        [record(5, value_schema=Schema.INT64_SCHEMA)],
        ("TimestampConverter$Value", {"target.type": "Timestamp", "unix.precision": "seconds"}),
    )
    assert seconds.value == datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2024-01-05T03:04:05.678Z"),
        ("yyyy-MM-dd'T'HH:mm:ssX", "2024-01-05T03:04:05Z"),
        ("d/M/yyyy H:m:s", "5/1/2024 3:4:5"),
        ("dd.MM.yy HH Z", "05.01.24 03 +0000"),
    ],
)
def test_date_patterns_write_what_java_writes_and_read_it(pattern: str, text: str) -> None:
    moment = datetime.datetime(2024, 1, 5, 3, 4, 5, 678000, tzinfo=datetime.timezone.utc)
    dates = DatePattern(pattern)
    assert dates.text(moment) == text
    assert dates.texts(pa.array([moment, None])).to_pylist() == [text, None]
    assert dates.text(dates.moment(text)) == text


def test_timestamp_router() -> None:
    (routed,) = run(
        [record("x")], ("TimestampRouter", {"topic.format": "${topic}.${timestamp}", "timestamp.format": "yyyy-MM"})
    )
    assert routed.topic == "orders.2023-11"


def test_regex_router() -> None:
    records = [record("x", topic="db.orders"), record("y", topic="other")]
    routed = run(records, ("RegexRouter", {"regex": r"db\.(.*)", "replacement": "lake-$1"}))
    assert [after.topic for after in routed] == ["lake-orders", "other"]


def test_headers() -> None:
    start = Headers().add("keep", "k").add("drop", "d")
    steps = [
        ("InsertHeader", {"header": "n", "value.literal": "42"}),
        ("DropHeaders", {"headers": "drop"}),
        ("HeaderFrom$Value", {"fields": "id,name", "headers": "h.id,h.name", "operation": "move"}),
    ]
    (typed,) = run([record(struct(), headers=start)], *steps)
    assert [(header.key, header.value) for header in typed.headers] == [
        ("keep", "k"),
        ("n", 42),
        ("h.id", 7),
        ("h.name", "seven"),
    ]
    assert typed.headers.last_with_name("n").schema == Schema.INT8_SCHEMA  # type: ignore[union-attr]
    assert typed.value.to_dict() == {"price": 2.5, "inner": {"x": 1}}
    (copied,) = run([record(dict(VALUE))], ("HeaderFrom$Value", {"fields": "id", "headers": "h", "operation": "copy"}))
    assert copied.value == VALUE
    assert len(start) == 2


def test_filter_with_predicates_and_negate() -> None:
    records = [
        record("a", topic="keep"),
        record("b", topic="drop"),
        record(None, topic="keep"),
        record("c", topic="keep", headers={"h": 1}),
    ]
    predicates = {
        "predicates": "topic,tombstone,header",
        "predicates.topic.type": PACKAGE + "predicates.TopicNameMatches",
        "predicates.topic.pattern": "dr.p",
        "predicates.tombstone.type": PACKAGE + "predicates.RecordIsTombstone",
        "predicates.header.type": "HasHeaderKey",
        "predicates.header.name": "h",
    }
    left = run(records, ("Filter", {"predicate": "topic"}), ("Filter", {"predicate": "tombstone"}), **predicates)
    assert [after.value for after in left] == ["a", "c"]
    left = run(records, ("Filter", {"predicate": "header", "negate": "true"}), **predicates)
    assert [after.value for after in left] == ["c"]


def test_the_order_of_records_stays_when_a_predicate_takes_some() -> None:
    records = [record(f"v{number}", topic="odd" if number % 2 else "even") for number in range(10)]
    settings = {"predicates": "odd", "predicates.odd.type": "TopicNameMatches", "predicates.odd.pattern": "odd"}
    routed = run(records, ("RegexRouter", {"regex": ".*", "replacement": "x", "predicate": "odd"}), **settings)
    assert [(after.value, after.topic) for after in routed] == [(f"v{n}", "x" if n % 2 else "even") for n in range(10)]


class Upper(RecordTransform):
    """One record at a time; it fails for a while, or for ever."""

    outages: list[str]

    def configure(self, configs: Mapping[str, Any]) -> None:
        Upper.outages = configs.get("outages", "").split(",")

    def apply(self, record: Any) -> Any:
        if record.value == "bad":
            raise ValueError("no letters")
        if record.value in self.outages:
            Upper.outages.remove(record.value)
            raise RetriableException("later")
        return None if record.value == "none" else record.replaced(value=record.value.upper())


class IsShort(RecordPredicate):
    def test(self, record: Any) -> bool:
        return len(record.value) < 3


OWN = f"{__name__}.Upper"


def test_a_transform_and_a_predicate_of_ones_own() -> None:
    settings = {"predicates": "short", "predicates.short.type": f"{__name__}.IsShort"}
    records = [record(value) for value in ("ab", "abc", "none")]
    assert [after.value for after in run(records, (OWN, {}))] == ["AB", "ABC"]
    assert [after.value for after in run(records, (OWN, {"predicate": "short"}), **settings)] == ["AB", "abc", "none"]


def test_of_a_thousand_one_fails_once_one_for_ever_and_998_pass() -> None:
    records = [record("bad" if number == 500 else "once" if number == 300 else f"v{number}") for number in range(1000)]
    errors = tolerance(errors_tolerance="all", errors_retry_timeout="2000")
    passed = run(records, (OWN, {"outages": "once"}), errors=errors)
    assert len(passed) == 999
    assert passed[300].value == "ONCE"
    (failure,) = errors.take()
    assert (failure.stage, failure.executing_class, str(failure.error)) == ("TRANSFORMATION", OWN, "no letters")
    assert failure.record.value.values() == ["bad"]
    assert errors.retries == 1


def test_without_tolerance_the_first_failure_ends_the_task() -> None:
    with pytest.raises(
        ConnectException, match=r"Tolerance exceeded in error handler: TRANSFORMATION by .*Upper.*no letters"
    ):
        run([record("bad")], (OWN, {}))
    with pytest.raises(ConnectException, match="later"):
        run([record("once")], (OWN, {"outages": "once"}))  # errors.retry.timeout is 0


def test_an_outage_makes_no_dead_letters() -> None:
    errors = tolerance(errors_tolerance="all")
    with pytest.raises(RetriableException, match=r"TRANSFORMATION by .*Upper failed: later"):
        run([record("bad"), record("once"), record("v")], (OWN, {"outages": "once"}), errors=errors)
    assert [failure.record.value.values() for failure in errors.take()] in ([], [["bad"]])


def test_one_record_that_a_transform_of_columns_refuses_is_found_in_its_batch() -> None:
    records = [record({"id": number}) if number != 77 else record("no map") for number in range(100)]
    errors = tolerance(errors_tolerance="all")
    passed = run(records, ("InsertField$Value", {"static.field": "s", "static.value": "x"}), errors=errors)
    assert [after.value["id"] for after in passed] == [number for number in range(100) if number != 77]
    (failure,) = errors.take()
    assert "Only Map objects supported in absence of schema for [field insertion], found: str" in str(failure.error)

"""What no row can be written with is an error of the configuration: ``errors=skip`` leaves out bad rows, not all of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Misconfigured
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.records import Serializer

BROKER = {"kafka.bootstrap.servers": "h:1", "errors": "skip"}
REGISTRY = {"schemaRegistry.url": "http://localhost:1"}
ROWS = pa.struct([("a", pa.int32())])


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": fields})


A, B = ({"name": name, "type": "int"} for name in "ab")


@pytest.mark.parametrize("side", ["value", "key"])
@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_registry_needs_a_subject_where_rows_name_their_topics(side: str, form: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        KafkaSink.of({**BROKER, **REGISTRY, f"{side}.format": form})
    assert [problem.option for problem in refused.value.problems] == [f"{side}.subject"]
    KafkaSink.of({**BROKER, **REGISTRY, f"{side}.format": form, f"{side}.subject": "orders"})
    KafkaSink.of({**BROKER, **REGISTRY, f"{side}.format": form, "topic": "orders"})


UNFIT: dict[str, tuple[str | None, pa.DataType, str, str]] = {
    "a field without a column": (schema(A, B), ROWS, "value.avroSchema", "field b"),
    "a nested field without a column": (
        schema({"name": "x", "type": ["null", {"type": "record", "name": "i", "fields": [A, B]}]}),
        pa.struct([("x", ROWS)]),
        "value.avroSchema",
        "field x.b",
    ),
    "another type": (schema(A), pa.struct([("a", pa.string())]), "value.avroSchema", "a is string"),
    "no list": (
        schema({"name": "a", "type": {"type": "array", "items": "int"}}),
        ROWS,
        "value.avroSchema",
        "a is int32",
    ),
    "a type that Avro lacks": (None, pa.struct([("d", pa.duration("us"))]), "value", "d: Avro has no type"),
}


@pytest.mark.parametrize(("text", "kind", "option", "why"), UNFIT.values(), ids=UNFIT)
def test_a_column_of_which_no_row_can_be_written_is_refused(
    text: str | None, kind: pa.DataType, option: str, why: str
) -> None:
    given = {} if text is None else {"value.avroSchema": text}
    values = KafkaSink.of({**BROKER, "topic": "t", "value.format": "avro", **given}).values
    with pytest.raises(Misconfigured, match=why) as refused:
        Serializer(values, pa.schema([("value", kind)]))
    assert [problem.option for problem in refused.value.problems] == [option]


def test_a_row_that_does_not_fit_is_left_out_alone() -> None:
    sink = KafkaSink.of({**BROKER, "topic": "t", "value.format": "avro", "value.avroSchema": schema(A)})
    rows = pa.RecordBatch.from_pydict({"value": pa.array([{"a": 1}, {"a": None}], ROWS)})
    rejects = sink.rejects(Batch("s", "q", 0))
    assert Serializer(sink.values, rows.schema).records(rows, rejects).to_pylist() == [{"value": b"\x02"}]
    assert rejects.count == 1

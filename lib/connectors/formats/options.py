"""The options of formats: those for the bytes of keys and values, their checks, and the formats and types that follow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Final, Literal

import pyarrow as pa

from ..core.dead_letters import ERROR_OPTIONS
from ..ground.errors import Misconfigured, Problem
from ..ground.options import Flag, Int, Option, Options, Text, Values
from .avro import AvroFormat, AvroSchema, avro_schema
from .base import BytesFormat, Format, FormatSettings, StringFormat, sql_type
from .csv import CsvFormat
from .infer import inferred
from .json import JsonFormat
from .protobuf import ProtobufFormat, protobuf_message
from .registry import registry_of
from .schema_text import wrong_columns

Side = Literal["key", "value"]

FORMATS: Final[dict[str, type[Format]]] = {
    kind.name: kind for kind in (BytesFormat, StringFormat, JsonFormat, CsvFormat, AvroFormat, ProtobufFormat)
}
"""Formats by name. A format of your own is a subclass, put in here before it is used."""


class FormatChoice(Option):
    """A name in :data:`FORMATS`, in any case; or ``module:Class``, a format that every process can import."""

    def parse(self, text: str) -> str:
        known = {name.lower(): name for name in FORMATS}
        if text.strip().lower() in known:
            return known[text.strip().lower()]
        if ":" in text:
            try:
                _class(text.strip())
            except (ImportError, AttributeError, TypeError) as wrong:
                raise ValueError(f"a format as module:Class ({wrong})") from None
            return text.strip()
        raise ValueError(f"one of {', '.join(FORMATS)}, or module:Class of your own")

    def accepts(self) -> str:
        return f"{', '.join(FORMATS)}, module:Class"


def _class(name: str) -> type[Format]:
    if name in FORMATS:
        return FORMATS[name]
    module, _, inner = name.partition(":")
    kind = getattr(importlib.import_module(module), inner)
    if not (isinstance(kind, type) and issubclass(kind, Format)):
        raise TypeError(f"{inner} is no Format")
    return kind


_INFERENCE: Final = {
    "inferSchema": Flag(
        False, only_with="value.format=json|csv", excludes="schema", meaning="the columns come from a sample of the records"
    ),
    "inferSchema.records": Int(1000, at_least=1, meaning="records of the sample"),
}


def format_options(default: str, *, key: str | None = None, infers: bool = False) -> Options:
    """The options of a source that hands out bytes, whose ``value.format`` is ``default`` unless given.

    ``key`` is the format of its keys unless given; a system whose records have no keys leaves it out. A source that
    ``infers`` can give a sample of its records to :func:`value_type`.
    """
    more = _INFERENCE if infers else {}
    sides: list[tuple[Side, str]] = [("value", default)] if key is None else [("value", default), ("key", key)]
    declared = {name: option for side, format in sides for name, option in _side_options(side, format).items()}
    return Options(
        {
            **declared,
            **more,
            "schemaRegistry.url": Text(None, meaning="the schema registry of avro, protobuf and json"),
            "schemaRegistry.user": Text(None, only_with="schemaRegistry.url", meaning="its login"),
            "schemaRegistry.password": Text(None, only_with="schemaRegistry.url", meaning="its password"),
        },
        alias={"value.schema": "schema"},
    ) | ERROR_OPTIONS


def _side_options(side: Side, default: str) -> dict[str, Option]:
    protobuf = f"{side}.format=protobuf"
    return {
        f"{side}.format": FormatChoice(default, meaning=f"how the bytes of a {side} become columns, or columns bytes"),
        _columns(side): Text(None, meaning=f"the columns of the {side}, as SQL text"),
        f"{side}.avroSchema": Text(None, only_with=f"{side}.format=avro", meaning="the writer's schema, JSON"),
        f"{side}.descriptorFile": Text(
            None, only_with=protobuf, needed_by=f"{protobuf}: a descriptor set", meaning="the file with the descriptors"
        ),
        f"{side}.messageName": Text(
            None, only_with=protobuf, needed_by=f"{protobuf}: a message of the set", meaning="the message's full name"
        ),
        f"{side}.subject": Text(None, meaning=f"the {side}'s subject in the schema registry"),
    }


def _columns(side: Side) -> str:
    return "schema" if side == "value" else "key.schema"


def sides(values: Values) -> tuple[Side, ...]:
    """The sides of a record that have a format: its value, and its key where the system has keys."""
    return ("value", "key") if "key.format" in values else ("value",)


def check_format(values: Values) -> Iterator[Problem]:
    """The problems of format options taken together."""
    for side in sides(values):
        yield from _check_side(values, side)


def _check_side(values: Values, side: Side) -> Iterator[Problem]:
    name = values[f"{side}.format"]
    if values[_columns(side)] and name not in ("bytes", "string"):
        yield from (Problem(_columns(side), f"{wrong}.") for wrong in wrong_columns(values[_columns(side)]))
    infers = side == "value" and "inferSchema" in values and values["inferSchema"]
    other = infers or (name == "avro" and (values[f"{side}.avroSchema"] or _subject(values, side)))
    if _class(name).needs_schema and not values[_columns(side)] and not other:
        needs = f'{side}.format "{name}" needs the columns'
        ways = f", {side}.avroSchema, or a registry with {side}.subject" if name == "avro" else ""
        yield Problem(_columns(side), f'missing; {needs}, such as "id long, name string"{ways}.')


def _subject(values: Values, side: Side) -> str | None:
    return values[f"{side}.subject"] if values["schemaRegistry.url"] else None


def value_type(values: Values, side: Side = "value", sample: Callable[[int], pa.Array] | None = None) -> str:
    """The SQL type of the column ``value`` (or ``key``).

    With ``inferSchema`` the columns are those of the first ``inferSchema.records`` records, which ``sample`` gives. They are
    inferred again whenever a query is made: give the inferred ``schema`` to a stream that is to start again later.

    Raises :class:`Misconfigured` when a schema is none, and :class:`Transient` when only a registry knows the schema and
    is away.
    """
    name = values[f"{side}.format"]
    if values[_columns(side)]:
        return f"struct<{values[_columns(side)]}>" if name not in ("bytes", "string") else _class(name).column
    if side == "value" and sample is not None and values["inferSchema"]:
        return f"struct<{inferred(name, sample(values['inferSchema.records']))}>"
    if name in ("avro", "protobuf"):
        return _derived(values, side)
    return _class(name).column


def _derived(values: Values, side: Side) -> str:
    """The type that the format's own schema has."""
    settings = settings_of(values, side)
    try:
        return sql_type(_schema_type(values[f"{side}.format"], settings, side))
    except ValueError as wrong:
        raise Misconfigured("connectors", [Problem(f"{side}.format", f"{wrong}.")]) from None


def _schema_type(name: str, settings: FormatSettings, side: Side) -> pa.DataType:
    if name == "protobuf":
        return protobuf_message(settings, side).type
    if settings.avro_schema is not None:
        return avro_schema(settings.avro_schema, f"{side}.avroSchema").type
    newest = registry_of(settings).latest(settings.subject or "")
    return AvroSchema(newest.text, newest.references).type


def settings_of(values: Values, side: Side = "value", topic: str | None = None) -> FormatSettings:
    """The format settings of the options. ``topic`` names the subject of what is written, unless ``value.subject`` does."""
    return FormatSettings(
        values[f"{side}.avroSchema"],
        values[f"{side}.descriptorFile"],
        values[f"{side}.messageName"],
        values["schemaRegistry.url"] if values[f"{side}.format"] not in ("bytes", "string", "csv") else None,
        values["schemaRegistry.user"],
        values["schemaRegistry.password"],
        values[f"{side}.subject"] or (f"{topic}-{side}" if topic is not None else None),
    )


def format_of(values: Values, kind: pa.DataType, side: Side = "value", topic: str | None = None) -> Format:
    """The format of values (or keys) of the Arrow type ``kind``, for a source or a sink."""
    return _class(values[f"{side}.format"])(kind, settings_of(values, side, topic))

"""The transforms of times, TimestampConverter and TimestampRouter, and Java's date patterns."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..columns import Column, Records
from ..config import ConfigDef, valid_string
from ..data import Schema, SchemaBuilder, Type
from ..errors import ConfigException, DataException
from ..json_data import milliseconds
from .base import SideTransform, Transform, children, replaces_null, struct_column

_UTC: Final = datetime.timezone.utc
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_LETTERS: Final = {
    "yyyy": "%Y",
    "y": "%Y",
    "yy": "%y",
    "MMMM": "%B",
    "MMM": "%b",
    "MM": "%m",
    "M": "%m",
    "dd": "%d",
    "d": "%d",
    "DDD": "%j",
    "HH": "%H",
    "H": "%H",
    "hh": "%I",
    "mm": "%M",
    "m": "%M",
    "ss": "%S",
    "s": "%S",
    "a": "%p",
    "EEEE": "%A",
    "EEE": "%a",
    "E": "%a",
    "Z": "%z",
    "X": "%z",
    "XX": "%z",
    "XXX": "%z",
    "z": "%Z",
    "SSS": "\1",
}
_WRITTEN: Final = {"M": "%-m", "d": "%-d", "H": "%-H", "m": "%-M", "s": "%-S", "X": "Z", "XX": "Z", "XXX": "Z"}
"""What is written in another form than Python reads: numbers without leading zeros, and Z for UTC."""
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


class DatePattern:
    """A pattern of Java's ``SimpleDateFormat``, in UTC. Raises :class:`ConfigException` for letters that are not known."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        parts, written = [], []
        for match in _TOKEN.finditer(pattern):
            token = match[0]
            if token.startswith("'"):
                parts.append((match[1].replace("''", "'") or "'").replace("%", "%%"))
                written.append(parts[-1])
            elif token[0].isalpha():
                if token not in _LETTERS:
                    raise ConfigException(f'"{token}" in the pattern "{pattern}" is not supported')
                parts.append(_LETTERS[token])
                written.append(_WRITTEN.get(token, parts[-1]))
            else:
                parts.append(token.replace("%", "%%"))
                written.append(parts[-1])
        self._read_format, self._format = "".join(parts), "".join(written)
        self._has_milliseconds = "\1" in self._format
        self._is_plain = not self._has_milliseconds and not re.search(r"%[pzZAaBb-]", self._format)

    def text(self, moment: datetime.datetime) -> str:
        """The text of ``moment``."""
        text = moment.astimezone(_UTC).strftime(self._format)
        return text.replace("\1", f"{moment.microsecond // 1000:03}")

    def texts(self, moments: pa.Array) -> pa.Array:
        """The texts of a column of times."""
        if self._is_plain:
            return pc.strftime(moments.cast(pa.timestamp("s", tz="UTC"), safe=False), format=self._format)
        return pa.array([None if moment is None else self.text(moment) for moment in moments.to_pylist()], pa.string())

    def moment(self, text: str) -> datetime.datetime:
        """The time of ``text``. Raises :class:`DataException`."""
        try:
            parsed = datetime.datetime.strptime(text, self._read_format.replace("\1", "%f"))
        except ValueError:
            message = f"Could not parse timestamp: value ({text}) does not match pattern ({self.pattern})"
            raise DataException(message) from None
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=_UTC)


_UNITS: Final = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1, "nanoseconds": 1}
_TARGETS: Final = ("string", "unix", "Date", "Time", "Timestamp")


class TimestampConverter(SideTransform):
    """Makes a time of one form one of another: text, a number since 1970, or Connect's Date, Time, Timestamp."""

    needs = "converting timestamp formats"

    def config(self) -> ConfigDef:
        definition = (
            ConfigDef()
            .define("field", "STRING", "", "HIGH", "the field; without it the whole key or value")
            .define(
                "target.type",
                "STRING",
                importance="HIGH",
                documentation="string, unix, Date, Time or Timestamp",
                validator=valid_string(*_TARGETS),
            )
            .define("format", "STRING", "", "MEDIUM", "the pattern of text, as SimpleDateFormat has it")
            .define(
                "unix.precision",
                "STRING",
                "milliseconds",
                "LOW",
                "the unit of numbers",
                validator=valid_string(*_UNITS),
            )
        )
        return replaces_null(definition)

    def configure(self, values: Mapping[str, Any]) -> None:
        self._field: str = values["field"]
        self._target: str = values["target.type"]
        self._unit: str = values["unix.precision"]
        self._pattern = DatePattern(values["format"]) if values["format"] else None
        if self._target == "string" and self._pattern is None:
            raise ConfigException("format is missing; target.type=string needs it")

    def column(self, records: Records, column: Column) -> Column:
        if self._field:
            return super().column(records, column)
        if column.schema is None:
            return Column(None, [None if value is None else self._converted(value) for value in column.data])
        return self._typed(column.schema, column.data)

    def map(self, records: Records, place: int, value: dict[str, Any]) -> Any:
        if value.get(self._field) is None:
            return value
        return {**value, self._field: self._converted(value[self._field])}

    def struct(self, records: Records, schema: Schema, data: pa.Array) -> Column:
        fields = []
        for field, array in children(schema, data):
            if field.name == self._field:
                column = self._typed(field.schema, array)
                assert column.schema is not None
                fields.append((field.name, column.schema, column.data))
            else:
                fields.append((field.name, field.schema, array))
        return struct_column(schema, fields, data)

    def _typed(self, schema: Schema, data: pa.Array) -> Column:
        after = replace(self._schema(), optional=schema.optional)
        return Column(after, self._written(self._read(schema, data), after))

    def _schema(self) -> Schema:
        builders: dict[str, Callable[[], SchemaBuilder]] = {
            "string": SchemaBuilder.string,
            "unix": SchemaBuilder.int64,
            "Date": SchemaBuilder.date,
            "Time": SchemaBuilder.time,
            "Timestamp": SchemaBuilder.timestamp,
        }
        return builders[self._target]().build()

    def _read(self, schema: Schema, data: pa.Array) -> pa.Array:
        """A column of any form as times of microseconds."""
        micros = pa.timestamp("us", tz="UTC")
        if pa.types.is_timestamp(data.type):
            return data.cast(micros)
        if pa.types.is_date(data.type):
            return data.cast(pa.timestamp("us")).cast(pa.int64()).cast(micros)
        if pa.types.is_time(data.type):
            return pc.multiply(data.cast(pa.int32()).cast(pa.int64()), 1000).cast(micros)
        if schema.type is Type.INT64:
            if self._unit == "nanoseconds":
                return pc.floor(pc.divide(data, 1000)).cast(pa.int64()).cast(micros)
            return pc.multiply(data, _UNITS[self._unit]).cast(micros)
        if schema.type is Type.STRING:
            return pa.array([None if text is None else self._parsed(text) for text in data.to_pylist()], micros)
        raise DataException(f"Schema {schema.title()} does not correspond to a known timestamp type format")

    def _written(self, moments: pa.Array, after: Schema) -> pa.Array:
        if self._target == "string":
            assert self._pattern is not None
            return self._pattern.texts(moments)
        if self._target == "unix":
            numbers = moments.cast(pa.int64())
            if self._unit == "nanoseconds":
                return pc.multiply(numbers, 1000)
            return (
                pc.floor(pc.divide(numbers.cast(pa.float64()), _UNITS[self._unit])).cast(pa.int64())
                if _UNITS[self._unit] > 1
                else numbers
            )
        if self._target == "Date":
            return pc.floor_temporal(moments, unit="day").cast(pa.timestamp("us")).cast(pa.date32())
        if self._target == "Time":
            day = pc.floor_temporal(moments, unit="day").cast(pa.int64())
            within = pc.subtract(moments.cast(pa.int64()), day)
            return pc.divide(within, 1000).cast(pa.int32()).cast(pa.time32("ms"))
        return moments.cast(after.arrow(), safe=False)

    def _parsed(self, text: str) -> datetime.datetime:
        if self._pattern is None:
            raise DataException("format is missing; text is read by it")
        return self._pattern.moment(text)

    def _converted(self, value: Any) -> Any:
        """One value without schema."""
        if isinstance(value, datetime.datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=_UTC)
        elif isinstance(value, datetime.date):
            moment = datetime.datetime(value.year, value.month, value.day, tzinfo=_UTC)
        elif isinstance(value, int) and not isinstance(value, bool):
            micro = value // 1000 if self._unit == "nanoseconds" else value * _UNITS[self._unit]
            moment = _EPOCH + datetime.timedelta(microseconds=micro)
        elif isinstance(value, str):
            moment = self._parsed(value)
        else:
            raise DataException(f"TimestampConverter does not support {type(value).__name__} objects as timestamps")
        if self._target == "string":
            assert self._pattern is not None
            return self._pattern.text(moment)
        if self._target == "unix":
            micro = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
            return micro * 1000 if self._unit == "nanoseconds" else micro // _UNITS[self._unit]
        if self._target == "Date":
            return moment.date()
        if self._target == "Time":
            return moment.time()
        return _EPOCH + datetime.timedelta(milliseconds=milliseconds(moment))


class TimestampRouter(Transform):
    """Makes the topic of the record's topic and time: ``topic.format`` ``${topic}-${timestamp}``."""

    def config(self) -> ConfigDef:
        return (
            ConfigDef()
            .define("topic.format", "STRING", "${topic}-${timestamp}", "HIGH", "the new topic")
            .define(
                "timestamp.format", "STRING", "yyyyMMdd", "HIGH", "the pattern of the time, as SimpleDateFormat has it"
            )
        )

    def configure(self, values: Mapping[str, Any]) -> None:
        self._format: str = values["topic.format"]
        self._pattern = DatePattern(values["timestamp.format"])

    def apply(self, records: Records) -> Records:
        if records.timestamp.null_count:
            raise DataException("Timestamp missing on record")
        times = self._pattern.texts(records.timestamp.cast(pa.timestamp("ms", tz="UTC")))
        pieces = []
        for piece in re.split(r"(\$\{topic\}|\$\{timestamp\})", self._format):
            pieces.append({"${topic}": records.topic, "${timestamp}": times}.get(piece, pa.repeat(piece, len(records))))
        return replace(records, topic=pc.binary_join_element_wise(*pieces, ""))

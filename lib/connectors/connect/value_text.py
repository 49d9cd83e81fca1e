"""The text of a value, and the value of a text, as ``org.apache.kafka.connect.data.Values`` has them: the form of headers.

Where Java uses the time zone of its machine, this is UTC, which the text itself claims (``Z``). Days before 1582 are those of
today's calendar. A time that is not within a day, and keys that are lists or maps, are left as text.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from .data import DATE, TIME, TIMESTAMP, Schema, SchemaBuilder, Struct, Type
from .errors import DataException

Typed = tuple[Schema | None, Any]
_DAY: Final = 86_400_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_CONTROLS: Final = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` takes off."""


def text_of(value: Any, schema: Schema | None = None) -> str:
    """The text of a value that is not null. Raises :class:`DataException` for one that Connect has no type for."""
    return value if isinstance(value, str) else _inner_text(value, schema, quoted=False)


def _inner_text(value: Any, schema: Schema | None, *, quoted: bool = True) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Decimal)):
        return str(value)
    if isinstance(value, float):
        return float_text(value, single=schema is not None and schema.type is Type.FLOAT32)
    if isinstance(value, (bytes, bytearray, memoryview)):
        text = base64.b64encode(value).decode()
        return f'"{text}"' if quoted else text
    if isinstance(value, (list, tuple)):
        element = schema.value_schema if schema else None
        return f"[{','.join(_inner_text(item, element) for item in value)}]"
    if isinstance(value, Struct):
        fields = (f"{_inner_text(f.name, None)}:{_inner_text(value.get(f.name), f.schema)}" for f in value.schema.fields)
        return f"{{{','.join(fields)}}}"
    if isinstance(value, dict):
        kinds = (schema.key_schema, schema.value_schema) if schema else (None, None)
        entries = (f"{_inner_text(key, kinds[0])}:{_inner_text(item, kinds[1])}" for key, item in value.items())
        return f"{{{','.join(entries)}}}"
    if isinstance(value, (datetime.date, datetime.time)):
        return _moment_text(_milliseconds(value))
    raise DataException(f"Failed to serialize unexpected value type {type(value).__name__}: {value}")


def float_text(value: float, *, single: bool = False) -> str:
    """A floating-point number as Java's ``toString`` has it: ``0.1``, ``1.0E10``."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(str(np.float32(value)) if single else repr(value)).as_tuple()
    shown, minus = "".join(map(str, digits)).rstrip("0") or "0", "-" if sign else ""
    places = len(digits) + int(exponent)  # of the digits, so many are before the point
    if value == 0:
        return f"{minus}0.0"
    if 1e-3 <= abs(value) < 1e7:
        padded = "0" * (1 - places) + shown
        point = max(places, 1)
        return f"{minus}{padded[:point].ljust(point, '0')}.{padded[point:] or '0'}"
    return f"{minus}{shown[0]}.{shown[1:] or '0'}E{places - 1}"


def _milliseconds(value: datetime.date | datetime.time) -> int:
    """A date, time or timestamp as Java has all of them: milliseconds since 1970."""
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(_EPOCH, value)
    elif not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    moment = value.replace(tzinfo=value.tzinfo or datetime.timezone.utc)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def _moment_text(milliseconds: int) -> str:
    """Java sees no type here: what is before the second day is a time, and midnight is a date."""
    moment = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    clock = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    if milliseconds < _DAY:
        return clock
    day = f"{moment.year:04d}-{moment:%m-%d}"
    return day if milliseconds % _DAY == 0 else f"{day}T{clock}"


def value_of(text: str) -> Typed:
    """Schema and value of a text: null, a boolean, a number, a time, a list, a map; else the text itself."""
    return (_Reader(text).value(embedded=False) or (None, None)) if text else (Schema.STRING_SCHEMA, text)


_TOKEN: Final = re.compile(r'[:,{}\[\]"]|(?:\\.|\\\Z|[^\\:,{}\[\]"])+', re.DOTALL)
_LITERALS: Final[dict[str, Typed | None]] = {
    "null": None,
    "true": (Schema.BOOLEAN_SCHEMA, True),
    "false": (Schema.BOOLEAN_SCHEMA, False),
}


def _is_blank(token: str) -> bool:
    return not token.strip(_CONTROLS)


class _Reader:
    """Reads one value. ``None`` stands for null."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0

    def value(self, *, embedded: bool) -> Typed | None:
        """The next value; ``embedded`` in a list or map, where texts are quoted."""
        if not self._has_next():
            return None
        if embedded and self._takes('"'):
            return self._quoted()
        for literal, typed in _LITERALS.items():
            if self._takes_literal(literal, embedded):
                return typed
        start = self._at
        try:
            if self._takes("["):
                return self._list()
            if self._takes("{"):
                return self._map()
        except DataException:
            self._at = start
        token = self._tokens[self._at]
        self._at += 1
        if _is_blank(token):
            return Schema.STRING_SCHEMA, token
        if typed := self._moment(token.strip(_CONTROLS)) or _number(token.strip(_CONTROLS)):
            return typed
        if embedded:
            raise DataException("Failed to parse embedded value")
        return Schema.STRING_SCHEMA, self._text

    def _has_next(self) -> bool:
        return self._at < len(self._tokens)

    def _takes(self, token: str) -> bool:
        """Passes ``token``, if it is the next one that is not blank."""
        if not self._has_next():
            return False
        while _is_blank(self._tokens[self._at]) and self._at + 1 < len(self._tokens):
            self._at += 1
        if self._tokens[self._at].strip(_CONTROLS) != token:
            return False
        self._at += 1
        return True

    def _takes_literal(self, literal: str, embedded: bool) -> bool:
        start = self._at
        if self._takes(literal) and (embedded or not self._has_next()):
            return True
        self._at = start
        return False

    def _quoted(self) -> Typed:
        parts: list[str] = []
        while self._has_next() and not self._takes('"'):
            parts.append(self._tokens[self._at])
            self._at += 1
        text = "".join(parts)
        return _moment(text) or (Schema.STRING_SCHEMA, text)

    def _list(self) -> Typed:
        items: list[Any] = []
        kind = _CommonSchema()
        while self._has_next():
            if self._takes("]"):
                if kind.schema is None:
                    return Schema(Type.ARRAY), items
                return SchemaBuilder.array(kind.schema).build(), [_as(kind.schema, item) for item in items]
            if self._takes(","):
                raise DataException(f"Unable to parse an empty array element: {self._text}")
            items.append(kind.add(self.value(embedded=True)))
            end = self._at
            if self._takes("]"):
                self._at = end
            elif not self._takes(","):
                raise DataException("Array elements missing ',' delimiter")
        raise DataException(f"Array is missing terminating ']': {self._text}")

    def _map(self) -> Typed:
        entries: dict[Any, Any] = {}
        keys, values = _CommonSchema(), _CommonSchema()
        while self._has_next():
            if self._takes("}"):
                return _typed_map(entries, keys.schema, values.schema)
            if self._takes(","):
                raise DataException(f"Unable to parse a map entry with no key or value: {self._text}")
            key = keys.add(self.value(embedded=True))
            if key is None or isinstance(key, (list, dict)) or not self._takes(":"):
                raise DataException(f"Map entry has no key, or no value: {self._text}")
            entries[key] = values.add(self.value(embedded=True))
            self._takes(",")
        raise DataException(f"Map is missing terminating '}}': {self._text}")

    def _moment(self, token: str) -> Typed | None:
        """A date or time, whose colons make several tokens."""
        if not token[0].isdecimal():
            return None
        rest = self._tokens[self._at : self._at + 4]
        if len(rest) == 4 and (typed := _moment(token + "".join(rest))):
            self._at += 4
            return typed
        return _moment(token)


def _typed_map(entries: dict[Any, Any], key: Schema | None, value: Schema | None) -> Typed:
    if key is None:
        return Schema(Type.MAP), entries
    typed = {_as(key, name): item if value is None else _as(value, item) for name, item in entries.items()}
    return Schema(Type.MAP, key_schema=key, value_schema=value), typed


_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE: Final[Sequence[tuple[int, Schema]]] = (
    (8, Schema.INT8_SCHEMA),
    (16, Schema.INT16_SCHEMA),
    (32, Schema.INT32_SCHEMA),
    (64, Schema.INT64_SCHEMA),
)


def _number(token: str) -> Typed | None:
    """The smallest type that has a number: whole ones also of ``1e3`` and ``1.0``, the others FLOAT32 as far as that goes."""
    if not (token[0].isdecimal() or token[0] in "+-") or not _NUMBER.fullmatch(token):
        return None
    number = Decimal(token)
    scale = -int(number.as_tuple().exponent)
    if abs(scale) >= 1 << 31:
        return None
    if (not number or number.adjusted() < 20) and (whole := int(number)) == number:
        for bits, schema in _WHOLE:
            if -(1 << bits - 1) <= whole < 1 << bits - 1:
                return schema, whole
    if scale:
        if not math.isinf(single := _single(number)):
            return Schema.FLOAT32_SCHEMA, _shortest(single)
        if not math.isinf(double := float(number)):
            return Schema.FLOAT64_SCHEMA, double
    return SchemaBuilder.decimal(scale).build(), number


def _single(number: Decimal | float) -> float:
    """The nearest number of 32 bits."""
    if abs(float(number)) >= 2.0**128:
        return math.copysign(math.inf, number)
    return float(pa.scalar(str(number)).cast(pa.float32()).as_py())


def _shortest(single: float) -> float:
    """The shortest number that stands for one of 32 bits: beside values of other types it has no schema that says so."""
    return float(str(np.float32(single)))


_DATE_TEXT: Final = r"[ \t]*(-?\d+)-[ \t]*(-?\d+)-[ \t]*(-?\d+)"
_TIME_TEXT: Final = r"[ \t]*(-?\d+):[ \t]*(-?\d+):[ \t]*(-?\d+)\.[ \t]*(-?\d+)Z"
_MOMENTS: Final = {
    10: (SchemaBuilder.date().build(), re.compile(_DATE_TEXT)),
    13: (SchemaBuilder.time().build(), re.compile(_TIME_TEXT)),
    24: (SchemaBuilder.timestamp().build(), re.compile(f"{_DATE_TEXT}T{_TIME_TEXT}")),
}
"""The kind and form of a text by its length."""


def _moment(text: str) -> Typed | None:
    """A date, time or timestamp. Java's calendar is lenient: the 32nd of a month is the first of the next one."""
    text = text.replace("\\:", ":")
    schema, form = _MOMENTS.get(len(text), (None, None))
    match = form.match(text) if form else None
    if schema is None or match is None:
        return None
    numbers = [int(group) for group in match.groups()]
    year, month, day = numbers[:3] if schema.name != TIME else (1970, 1, 1)
    hours, minutes, seconds, milliseconds = numbers[-4:] if schema.name != DATE else (0, 0, 0, 0)
    clock = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    try:
        first = datetime.datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=datetime.timezone.utc)
        moment = first + datetime.timedelta(days=day - 1) + clock
    except (ValueError, OverflowError):  # a year that Python lacks
        return Schema.STRING_SCHEMA, text
    if schema.name == TIME and moment.date() != _EPOCH.date():
        return Schema.STRING_SCHEMA, text
    return schema, _logical(schema, (moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def _logical(schema: Schema, milliseconds: int) -> Any:
    moment = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    if schema.name == TIMESTAMP:
        return moment
    return moment.date() if schema.name == DATE else moment.time()


class _CommonSchema:
    """The schema of the elements of a list, or of the keys or values of a map; ``None`` where they have none in common."""

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._has_none = False

    def add(self, typed: Typed | None) -> Any:
        """Takes an element into account, and gives its value."""
        if typed is None:
            return None
        if not self._has_none and typed[0] is not None:
            self.schema = typed[0] if self.schema is None else _common(self.schema, typed[0])
            self._has_none = self.schema is None
        return typed[1]


_WIDTHS: Final = (Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64)


def _common(earlier: Schema, later: Schema) -> Schema | None:
    if earlier.type is later.type:
        return later
    if earlier.type not in _WIDTHS or later.type not in _WIDTHS:
        return None
    return max(earlier, later, key=lambda schema: _WIDTHS.index(schema.type))


def _as(schema: Schema, value: Any) -> Any:
    """A value as an element of ``schema``. Raises :class:`DataException` where it has no such form."""
    if value is None:
        raise DataException("Unable to convert a null value to a schema that requires a value")
    is_moment = isinstance(value, (datetime.date, datetime.time))
    if schema.name in (DATE, TIME, TIMESTAMP):
        return value if is_moment else _moment_of(schema, value)
    if is_moment and schema.type in _WIDTHS:
        raise DataException(f"Unable to convert {value} to a number")
    if schema.type is Type.FLOAT32:
        return _shortest(_single(value))
    if schema.type is not Type.FLOAT64:
        return value
    return float(value) if isinstance(value, int) or math.isinf(single := _single(value)) else single


def _moment_of(schema: Schema, number: int) -> Any:
    if schema.name == TIME and not 0 <= number <= _DAY:
        raise DataException("Time values must be those of one day")
    try:
        return _logical(schema, number * _DAY if schema.name == DATE else number)
    except OverflowError:
        raise DataException(f"{number} is no {schema.name}") from None

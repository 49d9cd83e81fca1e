"""The folder of each row, for rows in Arrow record batches: the same folder that Spark's own writers choose."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from string import Formatter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...core import Fatal, Misconfigured, Problem
from ...ground.options import Values
from ...ground.time_zones import UTC, zone_problem

FORMATS: Final = ("parquet", "json", "csv", "text", "avro", "orc")
LONGEST_NAME: Final = 255
"""The most bytes of the name of a folder or file: the limit of local file systems and HDFS."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
NO_BUCKET: Final = f"bucket={NULL}"
"""The folder of rows without a time, or without a value of a column in ``bucket``."""
_VALUE: Final = 0xE000
"""The character that stands for the first column in a date-time pattern; neither Spark nor a file name gives it a meaning."""
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z'\[\]{}#])")
_UNITS: Final = {"y": "year", "u": "year", "M": "month", "d": "day", "D": "day", "H": "hour", "m": "minute", "s": "second"}
_ORDER: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond")


def checked_bucket(connector: str, bucket: str) -> str:
    """``bucket`` as a folder below the target. Raises :class:`Misconfigured` if readers would not see it."""
    if bucket.startswith("/") or any(part.startswith((".", "_")) for part in bucket.split("/")):
        text = f'makes the folder "{bucket}": a folder must lie below path, and readers pass over those with . or _ first.'
        raise Misconfigured(connector, [Problem("bucket", text)])
    return bucket


class Bucket:
    """The option ``bucket``: a date-time pattern with columns in braces, ``{region}/yyyy-MM-dd``."""

    def __init__(self, connector: str, bucket: str) -> None:
        self._connector = connector
        parts = [(text, name) for text, name, _, _ in Formatter().parse(bucket)]
        self.columns = [name for _, name in parts if name]
        values = map(chr, count(_VALUE))
        self.pattern = "".join(text + (next(values) if name else "") for text, name in parts)
        """The date-time pattern, with a character in place of each column."""
        self.has_time = re.search("[A-Za-z]", re.sub("'[^']*'", "", self.pattern)) is not None

    def folder(self, names: Sequence[str | None]) -> str:
        """The folder below the target for the time by the pattern, if it has one, and for the escaped value of each column."""
        if None in names:
            return NO_BUCKET
        texts = names if self.has_time else [DatePattern(self._connector, self.pattern).shown(datetime.datetime.min), *names]
        values = {_VALUE + number: _visible(str(text)) for number, text in enumerate(texts[1:])}
        folder = checked_bucket(self._connector, str(texts[0]).translate(values))
        for part in folder.split("/"):
            _checked_name('" or "'.join(self.columns), part, "bucket")
        return folder


def _visible(folder: str) -> str:
    """``folder`` with its first character escaped where readers would pass over it."""
    return f"%{ord(folder[0]):02X}{folder[1:]}" if folder[0] in "._" else folder


@dataclass(frozen=True)
class FolderColumn:
    """A column that decides on the folder: the part of its values that matters, and the text of each."""

    name: str
    of: Callable[[pa.Array], pa.Array]
    shown: Callable[[Any], str | None]


class Folders:
    """Splits record batches by ``partitionBy`` or ``bucket``. Raises :class:`Misconfigured` for unsuitable columns."""

    def __init__(self, connector: str, values: Values, schema: pa.Schema) -> None:
        self.columns = list(_columns(connector, values, schema))
        self._folder = Bucket(connector, values["bucket"]).folder if values["bucket"] else "/".join
        left = [field for field in schema if field.name not in values["partitionBy"]]
        if not left:
            text = "names every column, so that nothing is left for the files; leave one out."
            raise Misconfigured(connector, [Problem("partitionBy", text)])
        self.schema = pa.schema(left)
        """The columns in the files."""

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each folder, in order."""
        data = rows.select(self.schema.names) if len(self.schema) < rows.num_columns else rows
        codes, names = np.zeros(rows.num_rows, np.int64), [()]
        for column in self.columns:
            values = column.of(rows.column(column.name)).dictionary_encode("encode")
            shown = [column.shown(value) for value in values.dictionary.to_pylist()]
            codes = codes * len(shown) + values.indices.to_numpy(zero_copy_only=False)
            unique_codes, codes = np.unique(codes, return_inverse=True)
            names = [(*names[code // len(shown)], shown[code % len(shown)]) for code in unique_codes]
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], range(len(names)), side="right")
        for name, first, end in zip(names, [0, *ends], ends, strict=False):
            yield self._folder(name), data.take(pa.array(order[first:end])) if len(names) > 1 else data


def _columns(connector: str, values: Values, schema: pa.Schema) -> Iterator[FolderColumn]:
    if values["bucket"]:
        yield from _bucket_columns(connector, values, schema)
        return
    check_names(connector, "partitionBy", values["partitionBy"], schema.names)
    for name in values["partitionBy"]:
        kind = schema.field(name).type
        if not _can_name(kind):
            text = f'has "{name}" of type {kind}, which only Spark can name; cast it, or write by foreach_batch, to s3:// with '
            text += "the jar hadoop-aws."
            raise Misconfigured(connector, [Problem("partitionBy", text)])
        yield FolderColumn(name, lambda column: column, partial(_partition, name))


def _bucket_columns(connector: str, values: Values, schema: pa.Schema) -> Iterator[FolderColumn]:
    bucket, time = Bucket(connector, values["bucket"]), values["bucket.timeColumn"]
    check_bucket_columns(connector, time, bucket, {field.name: _can_name(field.type) for field in schema})
    if bucket.has_time:
        yield _time_column(connector, values, time, schema.field(time).type, DatePattern(connector, bucket.pattern))
    for name in bucket.columns:
        yield FolderColumn(name, lambda column: column, lambda value: _text(value) or None)


def check_bucket_columns(connector: str, time: str, bucket: Bucket, columns: Mapping[str, bool]) -> None:
    """Raises :class:`Misconfigured` for columns of ``bucket`` that are not among ``columns``, or cannot name a folder."""
    if bucket.has_time:
        check_names(connector, "bucket.timeColumn", [time], list(columns))
    check_names(connector, "bucket", bucket.columns, list(columns))
    for name in bucket.columns:
        if not columns[name]:
            text = f'names "{name}", which must be a column of text, whole numbers, dates or boolean. Cast it.'
            raise Misconfigured(connector, [Problem("bucket", text)])


def check_names(connector: str, option: str, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raises :class:`Misconfigured` with those of ``names`` that are not among ``columns``."""
    listing = ", ".join(columns)
    missing = [Problem(option, f'names "{name}", but the columns are {listing}.') for name in names if name not in columns]
    if missing:
        raise Misconfigured(connector, missing)


def _can_name(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
    return any(test(kind) for test in tests)


def _partition(name: str, value: Any) -> str:
    return _checked_name(name, f"{escaped(name)}={_text(value) or NULL}", "partitionBy")


def _text(value: Any) -> str:
    """The escaped text of a value that names a folder; empty if there is none, or the name of none."""
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return "" if text == NULL else escaped(text)


def _checked_name(column: str, folder: str, option: str) -> str:
    if "\0" in folder or (length := len(folder.encode())) > LONGEST_NAME:
        text = "has a NUL" if "\0" in folder else f"makes a folder's name of {length} bytes; there is room for {LONGEST_NAME}"
        way_out = f"nothing of this batch is recorded; cut its values, or leave it out of {option}"
        raise Fatal(f'a value of the column "{column}" {text}: {folder[:40]!r}', way_out=way_out)
    return folder


def escaped(text: str) -> str:
    """``text`` as the name of a folder, with ``%`` escapes for characters that have a meaning in a path."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _time_column(connector: str, values: Values, name: str, kind: pa.DataType, pattern: DatePattern) -> FolderColumn:
    import pyarrow.compute as pc

    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        text = f'names "{name}" of type {kind}; it must be a timestamp or a date.'
        raise Misconfigured(connector, [Problem("bucket.timeColumn", text)])
    zone = values["bucket.timeZone"]
    has_zone = pa.types.is_timestamp(kind) and kind.tz
    if has_zone and (problem := zone_problem(zone)):
        raise Misconfigured(connector, [Problem("bucket.timeZone", problem)])

    def of(column: pa.Array) -> pa.Array:
        if has_zone and zone not in UTC:
            column = pc.local_timestamp(column.cast(pa.timestamp("us", zone)))
        wall = column.cast(pa.timestamp("us"))
        return wall if pattern.unit == "microsecond" else pc.floor_temporal(wall, unit=pattern.unit)

    return FolderColumn(name, of, lambda time: None if time is None else pattern.shown(time))


class DatePattern:
    """The part of Spark's date-time patterns for folders: years to fractions of seconds, and text."""

    def __init__(self, connector: str, pattern: str) -> None:
        self._parts: list[str | tuple[str, int]] = []
        self.unit = "year"
        """The smallest unit of time that matters: times that differ by less go to one folder."""
        at = 0
        while at < len(pattern):
            token = _TOKEN.match(pattern, at)
            letter = token[3] if token else None
            if token is None or (letter and (letter not in (*_UNITS, "S") or token[2].startswith("MMM"))):  # a month's name
                part = token[2] if token else pattern[at]
                text = f'has "{part}", which only Spark itself knows; write without it, or by foreach_batch, to s3:// '
                text += "with the jar hadoop-aws."
                raise Misconfigured(connector, [Problem("bucket", text)])
            at = token.end()
            if letter:
                self._parts.append((letter, len(token[2])))
                self.unit = max(self.unit, _UNITS.get(letter, "microsecond"), key=_ORDER.index)
            else:
                self._parts.append(token[4] or (token[1] or "'").replace("''", "'"))

    def span(self, folder: str) -> tuple[datetime.datetime, datetime.datetime] | None:
        """The begin and the end of the bucket in ``folder``, without a zone, as far as its name tells them."""
        units = [_UNITS.get(part[0], "microsecond") for part in self._parts if not isinstance(part, str)]
        form = "".join(re.escape(part) if isinstance(part, str) else f"([0-9]{{{part[1]},}})" for part in self._parts)
        if (match := re.fullmatch(form, folder)) is None:
            return None
        try:
            numbers: dict[str, Any] = dict(zip(units, map(int, match.groups()), strict=True))
            begin = datetime.datetime(1, 1, 1).replace(**numbers)
            if self.unit == "year":
                return begin, begin.replace(year=begin.year + 1)
            if self.unit == "month":
                return begin, (begin + datetime.timedelta(days=31)).replace(day=1)
            return begin, begin + datetime.timedelta(**{f"{self.unit}s": 1})
        except (ValueError, OverflowError):
            return None

    def shown(self, time: datetime.datetime) -> str:
        return "".join(part if isinstance(part, str) else _shown(time, *part) for part in self._parts)


def _shown(time: datetime.datetime, letter: str, width: int) -> str:
    if letter == "S":
        return f"{time.microsecond:06d}".ljust(width, "0")[:width]
    if letter == "D":
        return f"{time.timetuple().tm_yday:0{width}d}"
    number = {"y": time.year, "u": time.year, "M": time.month, "d": time.day}.get(letter)
    number = {"H": time.hour, "m": time.minute, "s": time.second}[letter] if number is None else number
    return f"{number % 100:02d}" if letter in "yu" and width == 2 else f"{number:0{width}d}"

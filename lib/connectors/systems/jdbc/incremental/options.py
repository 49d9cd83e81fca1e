"""The options of a stream, and their problems."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

from ....core import Choice, Duration, Flag, Names, Options, Text
from ....ground.options import Option, Values
from .positions import BOTH, BULK, INCREMENTING, MODES, TIMESTAMP

_NAMES: Final = re.compile(r"[\w$ .-]+(,[\w$ .-]+)+")


@dataclass(frozen=True)
class TableChoice:
    """The tables to read: those in ``names``, or those whose whole name ``pattern`` matches."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    def unknown(self, tables: Collection[str]) -> list[str]:
        """The names that none of ``tables`` has; the ``pattern`` if none matches it."""
        if self.pattern:
            return [] if any(table in self for table in tables) else [self.pattern]
        return [name for name in self.names if name not in tables]

    def __contains__(self, name: object) -> bool:
        return re.fullmatch(self.pattern, str(name)) is not None if self.pattern else name in self.names


class Tables(Option):
    """Names of tables (comma-separated, JSON, or a Python list), or an expression that a whole name matches."""

    def parse(self, text: str) -> TableChoice:
        if (listed := listed_texts(text)) is not None:
            return TableChoice(listed)
        if _NAMES.fullmatch(text):
            return TableChoice(tuple(name.strip() for name in text.split(",")))
        try:
            re.compile(text)
        except re.error as wrong:
            raise ValueError(f"a list of names, or a regular expression ({wrong})") from None
        if not text.strip():
            raise ValueError("a list of names, or a regular expression")
        return TableChoice(pattern=text)

    def accepts(self) -> str:
        return "names, or a regular expression"


def listed_texts(text: str) -> tuple[str, ...] | None:
    """The texts of a list, as JSON or as Python writes it; ``None`` for anything else."""
    try:
        names = json.loads(text)
    except ValueError:
        try:
            names = ast.literal_eval(text)  # Spark makes such a text of a Python list
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return tuple(names) if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None


INCREMENTAL: Final = Options(
    incremental=Choice(
        None,
        among=MODES,
        meaning="how a stream sees new rows: by a growing id, by a time of change, by both, or bulk: the whole table again",
    ),
    incrementingColumn=Text(
        None, excludes=f"incremental={TIMESTAMP}|{BULK}: take incrementing, or timestamp+incrementing",
        meaning="the growing id; default: the key of one column",
    ),
    timestampColumns=Names(
        (), needed_by=f"incremental={TIMESTAMP}|{BOTH}: the columns that tell when a row was changed",
        excludes=f"incremental={INCREMENTING}|{BULK}: take timestamp, or timestamp+incrementing",
        meaning="when a row was changed; the first that is not null counts",
    ),
    timestampDelay=Duration(
        0.0, only_with=f"incremental={TIMESTAMP}|{BOTH}", meaning="how long a transaction may keep a time back"
    ),
    singleWriter=Flag(
        False, excludes=f"incremental={TIMESTAMP}|{BOTH}|{BULK}: it says that ids become visible in their order",
        meaning="ids become visible in their order, so MySQL and MariaDB need no privilege PROCESS",
    ),
    tables=Tables(None, meaning="one stream of many tables: their names, or an expression that a whole name matches"),
    onTypeChange=Choice(
        "fail",
        among=("fail", "cast"),
        meaning="a column's new type ends the stream, or its values are cast to the old type",
    ),
    includeSchema=Flag(False, only_with="tables", meaning="columns with the schema and the primary key of each row's table"),
    discoveryInterval=Duration(30.0, meaning="how often new tables are looked for"),
    alias={"timestampColumn": "timestampColumns"},
)
"""The options of a stream, in addition to those of a batch."""


def is_stream_of_tables(values: Values) -> bool:
    return values["tables"] is not None


def mode_wanted(values: Values) -> str:
    """The mode; by ids if the option is not set and the stream reads many tables."""
    return str(values["incremental"] or INCREMENTING)


def zone_of(values: Values) -> ZoneInfo:
    """The zone for times without zone."""
    return ZoneInfo(str(_value(values, "timeZone") or "UTC"))


def _value(values: Values, name: str) -> Any:
    return values[name] if name.lower() in values else None

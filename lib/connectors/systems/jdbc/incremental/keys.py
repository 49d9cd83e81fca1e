"""The columns that tell new rows of a table, the conditions for rows between two states, and the form of times in positions.

From now on rows may come with any later time, so the stream reads nothing past the database's clock minus ``timestampDelay``.
A time of whole seconds or minutes is read when these are over, since until then other rows may get the same time.
A time without a zone is a wall clock, which in autumn shows an hour twice: rows of that hour wait until it is over for good.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

from ..column_types import unix_scale
from ..dialects import Dialect
from ..selection import Clause, Value, clause, join_clauses
from .positions import BOTH, BULK, INCREMENTING, Interval, State

UTC: Final = datetime.timezone.utc
_FOLD: Final = datetime.timedelta(hours=26)
"""The most by which a clock is put back: from one day to the previous."""
_STEP: Final = datetime.timedelta(minutes=15)
_SECOND: Final = datetime.timedelta(seconds=1)

AWARE, INSTANT, WALL, DAY, PLAIN = "aware", "instant", "wall", "day", "plain"
"""Kinds of times: with a zone, in UTC, without a zone, dates, and the values of a database without types for times."""
_IN_UTC: Final = ("Z", "+00:00")
_OF_MYSQL: Final = ("mariadb", "mysql")
_DIGITS: Final = {"timestamp_s": 0, "timestamp_ms": 3}


def kind_of(sql: str, system: str) -> str:
    """The kind of times in a column of the database's type ``sql``; ``""`` for a type that is no time."""
    name = sql.lower()
    if system in _OF_MYSQL and name.startswith("timestamp"):
        return INSTANT
    if name.startswith(("timestamptz", "timestamp with time zone")) or re.fullmatch(r"timestamp(\(\d\))? with time zone", name):
        return AWARE
    if name.startswith(("timestamp", "datetime")):
        return WALL
    return DAY if name == "date" else ""


def tick_of(sql: str, system: str) -> float:
    """The seconds between two times of a column of the type ``sql``. During them several rows get the same time."""
    name = sql.lower()
    if shown := re.search(r"\((\d)\)", name):
        return 10.0 ** -int(shown[1])
    return 10.0 ** -_DIGITS.get(name, 0 if system in _OF_MYSQL else 6)


def limit(now: datetime.datetime, delay: float, kind: str, zone: ZoneInfo) -> str:
    """The last time that may be read at ``now`` (with a zone), as text for a column of ``kind``."""
    until = now - datetime.timedelta(seconds=delay)
    if kind == AWARE:
        return until.astimezone(UTC).isoformat(" ", "microseconds")
    wall = safe_wall(until, UTC if kind == INSTANT else zone)
    if kind == DAY:
        return (wall.date() - datetime.timedelta(days=1)).isoformat()
    return wall.isoformat(" ", "microseconds")


def safe_wall(now: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    """The latest wall clock time in ``zone`` that the clock will not show again at ``now`` or later."""
    wall = now.astimezone(zone).replace(tzinfo=None)
    moment = now.astimezone(UTC)
    while (moment := moment + _STEP) < now + _FOLD:
        before, after = (instant.astimezone(zone) for instant in (moment - _STEP, moment))
        if after.utcoffset() < before.utcoffset():  # type: ignore[operator]
            again = _put_back(moment - _STEP, moment, zone)
            wall = min(wall, again - datetime.timedelta(microseconds=1))
    return wall


def _put_back(before: datetime.datetime, after: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    """The time that the clock shows when it is put back between two moments."""
    old = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) / 2
        before, after = (middle, after) if middle.astimezone(zone).utcoffset() == old else (before, middle)
    return after.replace(microsecond=0).astimezone(zone).replace(tzinfo=None)


# ---- databases without a type for times


def moment_of(plain: Any, zone: ZoneInfo) -> datetime.datetime | None:
    """The latest moment that ``plain``, a text or a number, can mean in ``zone``; ``None`` if it is no time."""
    if isinstance(plain, (int, float)):
        return datetime.datetime.fromtimestamp(plain / unix_scale(plain), UTC)
    try:
        text = re.sub(r"\.(\d{1,6})\d*", lambda match: "." + match[1].ljust(6, "0"), str(plain).strip())
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=zone, fold=1)


def has_other_offset(plain: Any, moment: datetime.datetime, zone: ZoneInfo) -> bool:
    """Whether ``plain``, which means ``moment``, is a text with the offset of a zone that is neither ``zone`` nor UTC."""
    if isinstance(plain, (int, float)) or str(plain).strip().endswith(_IN_UTC) or moment.tzinfo is zone:
        return False
    return moment.utcoffset() not in {moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)}


def tick_like(sample: Any) -> float:
    """As :func:`tick_of`, for times in the form of ``sample``."""
    if isinstance(sample, (int, float)):
        return 1 / unix_scale(sample) if sample == int(sample) else 0.0
    if fraction := re.search(r"\.(\d{1,6})", str(sample)):
        return 10.0 ** -len(fraction[1])
    return 60.0 if re.search(r"^[^:]*\d\d:\d\d(?!:?\d)", str(sample)) else 1.0


def like(sample: Any, until: datetime.datetime, zone: ZoneInfo) -> Any:
    """The last time that may be read, ``until``, in the form of ``sample``, so that it compares in the same way."""
    if isinstance(sample, (int, float)):
        return type(sample)(until.timestamp() * unix_scale(sample))
    text = str(sample).strip()
    if len(text) == 10:
        return limit(until, 0, DAY, zone)
    between = "T" if "T" in text else " "
    if text.endswith(_IN_UTC):
        end = "Z" if text.endswith("Z") else "+00:00"
        return until.astimezone(UTC).replace(tzinfo=None).isoformat(between, "microseconds") + end
    return safe_wall(until, zone).isoformat(between, "microseconds")


_EPOCH: Final = 1 << 32
_SMALL: Final = ("tinyint", "smallint", "integer", "int2", "int4")
"""Types of PostgreSQL and DuckDB that compare with ``bigint`` by their indexes."""
NOW_X: Final = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"


@dataclass(frozen=True)
class Keys:
    """The keys that tell new rows of one table. The first of ``timestamps`` that is not null counts.

    ``time_type`` is the first one's type in the database, ``id_type`` the type of the ids. ``by_transaction``: rows tell which
    transaction wrote them (tables of PostgreSQL).
    """

    mode: str
    incrementing: str = ""
    timestamps: tuple[str, ...] = ()
    time_type: str = ""
    id_type: str = ""
    by_transaction: bool = False

    def number(self, value: int) -> Value:
        """A number to compare with ids. It may be below all numbers of a small type."""
        if self.id_type.startswith("numeric("):  # of PostgreSQL
            return Value(value, "numeric")
        return Value(value, "bigint" if self.id_type.lower() in _SMALL else self.id_type)

    def columns(self) -> tuple[str, ...]:
        return (*self.timestamps, *([self.incrementing] if self.incrementing else []))

    def time(self, dialect: Dialect) -> str:
        """The time of a row, as SQL."""
        names = [dialect.quote(name) for name in self.timestamps]
        return names[0] if len(names) == 1 else f"COALESCE({', '.join(names)})"

    def id(self, dialect: Dialect) -> str:
        return dialect.quote(self.incrementing)

    def order(self, dialect: Dialect) -> str:
        """The reading order of rows, as SQL."""
        if self.mode == BULK:
            return ""
        if self.mode == INCREMENTING:
            return self.id(dialect)
        return self.time(dialect) + (f", {self.id(dialect)}" if self.mode == BOTH else "")

    def absent(self, dialect: Dialect) -> str:
        """A condition for rows left out because their key is null, as SQL; ``""`` if there can be none."""
        if self.mode == BULK:
            return ""
        if self.mode == INCREMENTING:
            return f"{self.id(dialect)} IS NULL"
        return f"{self.time(dialect)} IS NULL" + (f" OR {self.id(dialect)} IS NULL" if self.mode == BOTH else "")


def between(keys: Keys, dialect: Dialect, after: State, upto: State, ids: Sequence[Interval] = ()) -> Clause:
    """The condition for rows of ``upto`` that are not in ``after``; ``ids`` is a share of them by id."""
    if keys.mode == BULK:
        return ()
    if keys.mode == INCREMENTING:
        return _in_any(keys, dialect, ids)
    times = _Times(keys, dialect)
    if "at" not in after:
        return times.until(upto) + times.ended(upto)
    new: Clause = ("(", *times.past(after), " AND ", *times.until(upto), *times.ended(upto), ")")
    late = times.late(after, upto)
    return ("(", *new, " OR ", *late, ")") if late else new


def late_rows(keys: Keys, dialect: Dialect, after: State, upto: State) -> Clause:
    """The condition for rows of :func:`between` before the key of ``after``; empty if there can be none."""
    return _Times(keys, dialect).late(after, upto)


def _in_any(keys: Keys, dialect: Dialect, ids: Sequence[Interval]) -> Clause:
    conditions = [_within(keys, keys.id(dialect), interval) for interval in ids]
    return ("(", *join_clauses(conditions, " OR "), ")") if ids else ("1 = 0",)


def _within(keys: Keys, column: str, interval: Interval) -> Clause:
    first, last = interval
    if first is None:
        return clause(f"{column} <= ", keys.number(last))
    # half open: a column that may have fractions leaves none between two intervals
    return clause(f"{column} > ", keys.number(first - 1), f" AND {column} <= ", keys.number(last))


@dataclass(frozen=True)
class _Times:
    keys: Keys
    dialect: Dialect

    def value(self, moment: Any) -> Value:
        return Value(moment, self.keys.time_type)

    def until(self, state: State) -> Clause:
        """Up to the key of ``state``."""
        time, at = self.keys.time(self.dialect), self.value(state["at"])
        if self.keys.mode != BOTH:
            return clause(f"{time} <= ", at)
        number = self.keys.id(self.dialect)
        return clause(f"({time} < ", at, f" OR ({time} = ", at, f" AND {number} <= ", self.keys.number(state["id"]), "))")

    def past(self, state: State) -> Clause:
        """Past the key of ``state``. The first condition allows the use of an index."""
        time, at = self.keys.time(self.dialect), self.value(state["at"])
        if self.keys.mode != BOTH:
            return clause(f"{time} > ", at)
        number = self.keys.id(self.dialect)
        beyond = clause(f"({time} > ", at, f" OR {number} > ", self.keys.number(state["id"]), ")")
        return clause(f"{time} >= ", at, " AND ") + beyond

    def ended(self, state: State) -> Clause:
        """Written by a transaction that had ended when ``state`` was made."""
        return clause(" AND ") + _ended(state) if "x" in state else ()

    def late(self, after: State, upto: State) -> Clause:
        """Rows before the key of ``after`` whose transactions have ended since."""
        if "x" not in after or "x" not in upto or _same_transactions(after, upto):
            return ()
        low = after.get("low", after["at"])
        begin = clause() if low is None else clause(f"{self.keys.time(self.dialect)} >= ", self.value(low), " AND ")
        return clause("(") + begin + self.until(after) + self.ended(upto) + clause(" AND NOT ") + _ended(after) + clause(")")


def _same_transactions(after: State, upto: State) -> bool:
    return bool(after["x"] == upto["x"] and after.get("open", []) == upto.get("open", []))


def _ended(state: State) -> Clause:
    """The condition that the transaction that wrote a row had ended.

    ``xmin`` has 32 bits. Only a row 4 billion transactions old could be taken for a newer one; it would also have to come
    after ``low``. Numbers below 3 mark rows that are older than any transaction.
    """
    number = f"({NOW_X} - (({NOW_X} - xmin::text::bigint) % {_EPOCH}))"
    closed = clause(f"{number} < ", Value(state["x"], "bigint"))
    for first, last in state.get("open", ()):
        closed += clause(f" AND {number} NOT BETWEEN ", Value(first, "bigint"), " AND ", Value(last, "bigint"))
    return clause("(xmin::text::bigint < 3 OR (") + closed + clause("))")

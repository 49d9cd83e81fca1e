"""How the values of a column are cut into ranges. Nothing here asks a database.

The first range has no lower end and the last one no upper end, so whatever the cuts are, and whatever is written while they
are found or afterwards, each value is in exactly one range; NULL is in the first. Cuts decide about nothing but the sizes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ...core.source import Split
from .selecting import Clause, Value

_UTC: Final = datetime.timezone.utc
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class Range(Split):
    """The rows with ``low`` <= ``column`` < ``high``; ``None`` is no end. ``sql`` is the column's type in the database.

    Without a low end, NULL belongs to it. Without a ``column`` it is everything.
    """

    column: str = ""
    sql: str = ""
    low: str | int | float | None = None
    high: str | int | float | None = None

    def where(self, quoted: str) -> Clause:
        """The condition for the rows of this range; ``()`` for all rows. ``quoted`` is the column, as SQL."""
        if self.low is None and self.high is None:
            return ()
        if self.low is None:
            return ("(", quoted, " < ", Value(self.high, self.sql), " OR ", quoted, " IS NULL)")
        above: Clause = (quoted, " >= ", Value(self.low, self.sql))
        return above if self.high is None else (*above, " AND ", quoted, " < ", Value(self.high, self.sql))


def ranges(column: str, sql: str, cuts: Sequence[str | int | float]) -> list[Range]:
    """The ranges between ``cuts``, which ascend and are distinct: one more than there are cuts."""
    return [Range(column, sql, low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]


def distinct(found: Iterable[Any]) -> list[Any]:
    """Values in their order, without those that equal the first one or the one before: each range then has a value."""
    kept: list[Any] = []
    for value in found:
        if not kept or value != kept[-1]:
            kept.append(value)
    return kept[1:]


def positions(count: int, parts: int) -> list[int]:
    """The numbers (from 1) of the rows at which ``count`` ordered rows are cut into ``parts``; first that of the first row."""
    parts = max(1, min(parts, count))
    return sorted({count * part // parts + 1 for part in range(parts)}) if count else []


def even_cuts(lower: str, upper: str, parts: int, family: str) -> list[str | int | float]:
    """Cuts in equal steps from ``lower`` to ``upper``, as Spark makes them of its bounds; exact whatever their size.

    ``family`` is ``number``, ``date`` or ``time``. Raises ``ValueError`` with a phrase after "must be".
    """
    low, high = number_of(lower, family), number_of(upper, family)
    if low >= high:
        raise ValueError("below upperBound")
    whole = family != "number" or (low == int(low) and high == int(high))
    steps = min(parts, int(high - low)) if whole else parts
    found: list[Any] = []
    for part in range(1, steps):
        cut = low + (high - low) * part / steps if not whole else int(low) + (int(high) - int(low)) * part // steps
        found.append(_text(cut, family))
    return found


def number_of(text: str, family: str) -> Decimal:
    """A bound as a number: itself, days, or microseconds since 1970."""
    try:
        if family == "date":
            return Decimal((datetime.date.fromisoformat(text.strip()[:10]) - _EPOCH.date()).days)
        if family == "time":
            return Decimal((_moment(text) - _EPOCH) // _MICROSECOND)
        number = Decimal(text.strip())
    except (ValueError, InvalidOperation):
        example = {"date": "a date such as 2024-01-31", "time": "a time such as 2024-01-31 12:00:00"}
        raise ValueError(example.get(family, "a number")) from None
    if not number.is_finite():
        raise ValueError("a finite number")
    return number


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    return moment.astimezone(_UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _text(cut: Any, family: str) -> str | int:
    if family == "date":
        return (_EPOCH.date() + datetime.timedelta(days=int(cut))).isoformat()
    if family == "time":
        return (_EPOCH + _MICROSECOND * int(cut)).isoformat(" ", "microseconds")
    return cut if isinstance(cut, int) else format(cut, "f")

"""The columns that say what is new in a table, and the conditions that select what lies between two states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..dialects import Dialect
from ..selecting import Clause, Value, clause, joined
from .positions import BOTH, BULK, INCREMENTING, Interval, State

_EPOCH: Final = 1 << 32
NOW_X: Final = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"


@dataclass(frozen=True)
class Keys:
    """How new rows of one table are found. ``timestamps`` are taken as the first of them that is not null.

    ``time_type`` is the type of the first of them in the database, ``id_type`` that of the ids, and ``by_transaction`` says
    whether rows tell which transaction wrote them (tables of PostgreSQL).
    """

    mode: str
    incrementing: str = ""
    timestamps: tuple[str, ...] = ()
    time_type: str = ""
    id_type: str = ""
    by_transaction: bool = False

    def number(self, value: int) -> Value:
        """An id that is compared with ids."""
        return Value(value, self.id_type)

    def columns(self) -> tuple[str, ...]:
        return (*self.timestamps, *([self.incrementing] if self.incrementing else []))

    def time(self, dialect: Dialect) -> str:
        """The time of a row, as SQL."""
        names = [dialect.quote(name) for name in self.timestamps]
        return names[0] if len(names) == 1 else f"COALESCE({', '.join(names)})"

    def id(self, dialect: Dialect) -> str:
        return dialect.quote(self.incrementing)

    def order(self, dialect: Dialect) -> str:
        """The order in which rows are read, as SQL."""
        if self.mode == BULK:
            return ""
        if self.mode == INCREMENTING:
            return self.id(dialect)
        return self.time(dialect) + (f", {self.id(dialect)}" if self.mode == BOTH else "")

    def absent(self, dialect: Dialect) -> str:
        """The rows that are left out since their key is null, as SQL; ``""`` where there can be none."""
        if self.mode == BULK:
            return ""
        if self.mode == INCREMENTING:
            return f"{self.id(dialect)} IS NULL"
        return f"{self.time(dialect)} IS NULL" + (f" OR {self.id(dialect)} IS NULL" if self.mode == BOTH else "")


def between(keys: Keys, dialect: Dialect, after: State, upto: State, ids: Sequence[Interval] = ()) -> Clause:
    """The rows of ``upto`` that are not in ``after``, as a condition; ``ids`` is a share of them by id."""
    if keys.mode == BULK:
        return ()
    if keys.mode == INCREMENTING:
        return _in_any(keys, dialect, ids)
    times = _Times(keys, dialect)
    if "at" not in after:
        return times.until(upto) + times.over(upto)
    new: Clause = ("(", *times.past(after), " AND ", *times.until(upto), *times.over(upto), ")")
    late = times.late(after, upto)
    return ("(", *new, " OR ", *late, ")") if late else new


def late_rows(keys: Keys, dialect: Dialect, after: State, upto: State) -> Clause:
    """Those rows of :func:`between` that lie before the key of ``after``; empty if there can be none."""
    return _Times(keys, dialect).late(after, upto)


def _in_any(keys: Keys, dialect: Dialect, ids: Sequence[Interval]) -> Clause:
    return ("(", *joined([_within(keys, keys.id(dialect), one) for one in ids], " OR "), ")") if ids else ("1 = 0",)


def _within(keys: Keys, column: str, one: Interval) -> Clause:
    first, last = one
    if first is None:
        return clause(f"{column} <= ", keys.number(last))
    return clause(f"{column} BETWEEN ", keys.number(first), " AND ", keys.number(last))


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
        """Past the key of ``state``. The first condition is there for an index."""
        time, at = self.keys.time(self.dialect), self.value(state["at"])
        if self.keys.mode != BOTH:
            return clause(f"{time} > ", at)
        number = self.keys.id(self.dialect)
        beyond = clause(f"({time} > ", at, f" OR {number} > ", self.keys.number(state["id"]), ")")
        return clause(f"{time} >= ", at, " AND ") + beyond

    def over(self, state: State) -> Clause:
        """Written by a transaction that was over when ``state`` was made."""
        return clause(" AND ") + _over(state) if "x" in state else ()

    def late(self, after: State, upto: State) -> Clause:
        """Rows that lie before the key of ``after``, and whose transactions have ended since."""
        if "x" not in after or "x" not in upto or _same_transactions(after, upto):
            return ()
        low = after.get("low", after["at"])
        begin = clause() if low is None else clause(f"{self.keys.time(self.dialect)} >= ", self.value(low), " AND ")
        return clause("(") + begin + self.until(after) + self.over(upto) + clause(" AND NOT ") + _over(after) + clause(")")


def _same_transactions(after: State, upto: State) -> bool:
    return bool(after["x"] == upto["x"] and after.get("open", []) == upto.get("open", []))


def _over(state: State) -> Clause:
    """Whether the transaction that wrote a row is among those that were over.

    ``xmin`` has 32 bits. Only a row of another table's age, 4 billion transactions, could be taken for a newer one; it would
    have to lie after ``low`` as well. Numbers below 3 are of rows that are older than any transaction.
    """
    number = f"({NOW_X} - (({NOW_X} - xmin::text::bigint) % {_EPOCH}))"
    closed = clause(f"{number} < ", Value(state["x"], "bigint"))
    for first, last in state.get("open", ()):
        closed += clause(f" AND {number} NOT BETWEEN ", Value(first, "bigint"), " AND ", Value(last, "bigint"))
    return clause("(xmin::text::bigint < 3 OR (") + closed + clause("))")

"""Small queries to a database: the largest keys of tables, the number of rows between two states, missing ids, and the time
from which on rows may still come late.

A transaction that did not exist at the last look has begun after it, and by its clock it writes later times. So late rows can
only come after the last look without the oldest transaction that is still running. This memory may be lost: an unknown
transaction is taken to be as old as the position says.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from ....ground.errors import Misconfigured, Problem
from ..connection import Connection
from ..dialects import Dialect
from ..selection import NAME, Clause, Value, clause, join_clauses, rows_of
from .keys import between, limit
from .positions import BOTH, BULK, INCREMENTING, Interval, State
from .tables import StreamTable
from .writers import PREPARED, EndedTransactions, Transactions, running

UTC: Final = datetime.timezone.utc
_AT_ONCE: Final = 100
_GAPS: Final = 1000


@dataclass(frozen=True)
class Newest:
    """The largest key of a table: an id, or a time as text (unchanged if the database has no times) and its largest id."""

    at: Any = None
    id: int | None = None


class Probe:
    """Queries over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect = connection.dialect

    def now(self) -> datetime.datetime:
        """The database's clock, with a zone."""
        if not self.dialect.clock:
            return datetime.datetime.now(UTC)
        ((now,),) = self.connection.rows(self.dialect.clock)
        return now if now.tzinfo else now.replace(tzinfo=UTC)  # type: ignore[no-any-return]

    def newest(self, tables: Iterable[StreamTable], limits: Mapping[str, Any]) -> dict[str, Newest]:
        """The largest key of each table, times not past ``limits`` (by table); tables without rows are left out."""
        newest: dict[str, Newest] = {}
        by_id = [table for table in tables if table.keys.mode == INCREMENTING]
        by_time = [table for table in tables if table.keys.mode not in (INCREMENTING, BULK)]
        for table, (number,) in self._of_each(by_id, self._largest_id):
            newest[table.name] = Newest(None, _whole(table, number))
        for table, (at,) in self._of_each(by_time, lambda table: self._largest_time(table, limits.get(table.name))):
            newest[table.name] = Newest(at)
        both = [table for table in by_time if table.keys.mode == BOTH and table.name in newest]
        for table, (number,) in self._of_each(both, lambda table: self._largest_id_at(table, newest[table.name].at)):
            newest[table.name] = Newest(newest[table.name].at, _whole(table, number))
        return newest

    def any(self, table: StreamTable, rows: Clause) -> bool:
        """Whether there is a row."""
        return bool(rows_of(self.connection, (f"SELECT 1 FROM {table.source} WHERE ", *rows, " LIMIT 1")))

    def count(self, table: StreamTable, rows: Clause, most: int) -> int:
        """The number of rows of a table that ``rows`` selects, counted up to ``most``."""
        inner = (f"SELECT 1 AS one FROM {table.source} WHERE ", *rows, f" LIMIT {most}")
        ((number,),) = rows_of(self.connection, ("SELECT count(*) FROM (", *inner, ") counted"))
        return int(number)

    def nth_id(self, table: StreamTable, rows: Clause, number: int) -> Any:
        """The id with ``number`` ids before it, in order; ``None`` if there are fewer."""
        return self._nth(table, rows, table.keys.id(self.dialect), number)

    def nth_time(self, table: StreamTable, rows: Clause, number: int) -> Any:
        """As :meth:`nth_id`, a time as text: Python has no time before the year 1."""
        return self._nth(table, rows, table.keys.time(self.dialect), number, self.text("v"))

    def _nth(self, table: StreamTable, rows: Clause, expression: str, number: int, shown: str = "v") -> Any:
        ordered = (f"SELECT {expression} AS v FROM {table.source} WHERE ", *rows, f" ORDER BY 1 LIMIT 1 OFFSET {number}")
        answer = rows_of(self.connection, (f"SELECT {shown} FROM (", *ordered, ") q"))
        return answer[0][0] if answer else None

    def smallest_value(self, table: StreamTable, rows: Clause, expression: str) -> Any:
        return rows_of(self.connection, (f"SELECT min({expression}) FROM {table.source} WHERE ", *rows))[0][0]

    def largest_below(self, table: StreamTable, rows: Clause, moment: Any) -> Any:
        """The largest time of ``rows`` before ``moment``, as text."""
        time, before = table.keys.time(self.dialect), Value(moment, table.keys.time_type)
        statement = (f"SELECT {self.text(f'max({time})')} FROM {table.source} WHERE ", *rows, f" AND {time} < ", before)
        return rows_of(self.connection, statement)[0][0]

    def smallest_time(self, table: StreamTable, rows: Clause) -> Any:
        """The smallest time of ``rows``, as text."""
        time = table.keys.time(self.dialect)
        return rows_of(self.connection, (f"SELECT {self.text(f'min({time})')} FROM {table.source} WHERE ", *rows))[0][0]

    def largest_id(self, table: StreamTable, at: Any) -> int:
        """The largest id of the rows with the time ``at``."""
        return int(rows_of(self.connection, self._largest_id_at(table, at))[0][0])

    def missing(self, table: StreamTable, ids: Sequence[Interval], most: int) -> list[Interval]:
        """The intervals of ids without a row, within ``ids``. If there are too many, the last one covers the rest."""
        number, (first, last) = table.keys.id(self.dialect), (ids[0][0] or 0, ids[-1][1])
        inside = between(table.keys, self.dialect, {}, {"id": last}, ids)
        following = f"lead({number}) OVER (ORDER BY {number}) AS next"
        follow = (f"SELECT {number} AS here, {following} FROM {table.source} WHERE ", *inside)
        order = f"ORDER BY here LIMIT {_GAPS + most}"  # by an expression, every gap would be sorted first
        gaps = ("SELECT here + 1, next - 1 FROM (", *follow, f") pairs WHERE next - 1 > here {order}")
        middle: list[Interval] = [(int(low), int(high)) for low, high in rows_of(self.connection, gaps)]
        ends = (f"SELECT min({number}), max({number}) FROM {table.source} WHERE ", *inside)
        ((lowest, highest),) = rows_of(self.connection, ends)
        if lowest is None:
            return [(first, last)]
        if len(middle) >= _GAPS + most:
            middle[-1] = (middle[-1][0], last)
            highest = last
        begin: list[Interval] = [(first, int(lowest) - 1)] if first < int(lowest) else []
        end: list[Interval] = [(int(highest) + 1, last)] if int(highest) < last else []
        return [*begin, *middle, *end]

    def rows_without_key(self, table: StreamTable) -> int:
        """The number of rows of a table that have no key."""
        condition = table.keys.absent(self.dialect)
        return int(self.connection.rows(f"SELECT count(*) FROM {table.source} WHERE {condition}")[0][0]) if condition else 0

    def text(self, expression: str) -> str:
        """SQL for a time as text from which the same time can be read again; unchanged if the database has no times."""
        return self.dialect.text_of(expression)

    def _of_each(
        self, tables: Sequence[StreamTable], question: Callable[[StreamTable], Clause]
    ) -> Iterator[tuple[StreamTable, tuple[Any, ...]]]:
        """The answers that are not null; one statement asks for many tables."""
        rest = iter(tables)
        while some := list(islice(rest, _AT_ONCE)):
            questions = [(f"SELECT {n} AS n, v FROM (", *question(table), f") q{n}") for n, table in enumerate(some)]
            for n, value in rows_of(self.connection, join_clauses(questions, " UNION ALL ")):
                if value is not None:
                    yield some[n], (value,)

    def _largest_id(self, table: StreamTable) -> Clause:
        return clause(f"SELECT max({table.keys.id(self.dialect)}) AS v FROM {table.source}")

    def _largest_time(self, table: StreamTable, limit: Any) -> Clause:
        time = table.keys.time(self.dialect)
        present = clause() if table.keys.mode != BOTH else clause(f" AND {table.keys.id(self.dialect)} IS NOT NULL")
        until = clause(f"{time} IS NOT NULL") if limit is None else clause(f"{time} <= ", Value(limit, table.keys.time_type))
        return clause(f"SELECT {self.text(f'max({time})')} AS v FROM {table.source} WHERE ") + until + present

    def _largest_id_at(self, table: StreamTable, at: Any) -> Clause:
        time, number = table.keys.time(self.dialect), table.keys.id(self.dialect)
        same = Value(at, table.keys.time_type)
        return clause(f"SELECT max({number}) AS v FROM {table.source} WHERE {time} = ", same)


def _whole(table: StreamTable, number: Any) -> int:
    """An id. Raises :class:`Misconfigured` for a fraction or a value that is no number, which a position would skip."""
    if isinstance(number, (int, Decimal)) and number == int(number):
        return int(number)
    text = f'names "{table.keys.incrementing}" of {table.name}, whose largest value is {number!r}, no whole number.'
    raise Misconfigured(NAME, [Problem("incrementingColumn", f"{text} Give a column of whole numbers, or take timestamps.")])


class LateTransactions:
    """The transactions whose rows may come late, for a table's position. Only tables of PostgreSQL tell them."""

    def __init__(self, dialect: Dialect, zone: ZoneInfo, delay: float) -> None:
        self.dialect = dialect
        self.zone = zone
        self.delay = delay
        self._transactions = Transactions()
        self._ended: EndedTransactions | None = None
        self._begin_times: dict[str, datetime.datetime | None] = {}
        self._last_look: datetime.datetime | None = None

    def look(self, probe: Probe, tables: Iterable[StreamTable]) -> None:
        """Queries which transactions are running, and then which have ended. Call it after reading the largest keys."""
        if not any(table.keys.by_transaction for table in tables):
            return
        now = probe.now()
        names = running(probe.connection)
        self._begin_times = {name: self._begin_times.get(name, self._first_seen(name)) for name in names}
        self._last_look = now
        self._ended = self._transactions.ended(probe.connection)

    def _first_seen(self, name: str) -> datetime.datetime | None:
        """The earliest time when a new transaction may have begun: the time of the previous look.

        ``None`` (unknown) for a prepared transaction, which has a new name.
        """
        return None if name.startswith(PREPARED) else self._last_look

    def state_fields(self, table: StreamTable, state: State, at: Any) -> dict[str, Any]:
        """The transaction fields of a state up to the time ``at`` that follows ``state``."""
        if not table.keys.by_transaction or self._ended is None:
            return {}
        fields: dict[str, Any] = {"x": self._ended.x}
        if self._ended.open:
            fields["open"] = [list(pair) for pair in self._ended.open]
        if self._begin_times and (low := self._low(table, state, at)) != at:
            fields["low"] = low
        return fields

    def _low(self, table: StreamTable, state: State, at: Any) -> Any:
        """The time from which on rows may come late; ``None`` for anywhere."""
        begin_times = [moment for moment in self._begin_times.values() if moment is not None]
        texts = [at, *([limit(min(begin_times), self.delay, table.time_kind, self.zone)] if begin_times else [])]
        if len(begin_times) < len(self._begin_times):
            before = state.get("low", state.get("at"))
            if before is None:
                return None
            texts.append(before)
        moments = {text: _comparable(text) for text in texts}
        known = [(moment, text) for text, moment in moments.items() if moment is not None]
        return min(known)[1] if len(known) == len(moments) else None


def _comparable(text: str) -> datetime.datetime | None:
    """``text``, a time as PostgreSQL writes it, for comparison; ``None`` if Python has no such time."""
    plain = re.sub(r"([+-]\d\d)$", r"\1:00", text) if ":" in text else text
    plain = re.sub(r"\.(\d{1,6})", lambda match: "." + match[1].ljust(6, "0"), plain)
    try:
        moment = datetime.datetime.fromisoformat(plain)
    except ValueError:
        return None
    return moment.astimezone(datetime.timezone.utc).replace(tzinfo=None) if moment.tzinfo else moment

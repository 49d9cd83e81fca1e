"""Positions of the streaming source, and the difference between two of them. Nothing here queries a database.

A position holds one *state* for each table, as JSON. A state stands for a set of row versions, those that were read, and a
batch is the difference of two such sets. So a replay reads the same versions as the first try should. Each row version that
exists when its batch is read is in exactly one batch, whatever is written meanwhile.

=========================  ========================================================================================
mode                       the set that a state stands for
=========================  ========================================================================================
``incrementing``           ids up to ``id``, without those in ``holes``
``timestamp``              times up to ``at``; with ``x``: written by transactions below ``x`` that are not in ``open``
``timestamp+incrementing``  the same, where rows with the time ``at`` have ids up to ``id``
``bulk``                   everything, ``polls`` times
=========================  ========================================================================================

``holes`` are ids that were missing while a transaction was writing: they may still come. ``x`` and ``open`` are transaction
numbers of PostgreSQL, 64 bits wide; ``open`` has those that had not ended, with subtransactions. The stream looks for late
rows from the time ``low`` on (null: anywhere); without it, from ``at`` on. ``min`` is the first id of the first batch, which
only helps to cut it. ``oid`` tells a table from a later one of that name, ``columns`` is its schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ....core import Position, Split
from ....core.planning import even_ranges
from ....ground.state import digest, dumps

State = Mapping[str, Any]
_END: Final = (1 << 63) - 1
Interval = tuple["int | None", int]
"""Whole numbers from the first to the second, both included; ``None`` is no lower bound."""

INCREMENTING: Final = "incrementing"
TIMESTAMP: Final = "timestamp"
BOTH: Final = "timestamp+incrementing"
BULK: Final = "bulk"
MODES: Final = (INCREMENTING, TIMESTAMP, BOTH, BULK)


@dataclass(frozen=True)
class TableSplit(Split):
    """The share of one task in one table: the rows of ``upto`` that are not in ``after`` (JSON of states, ``""``: nothing).

    ``by`` has the columns of the key, ``oid`` the table's number, ``ids`` the task's share of a range of ids, if that is cut.
    """

    table: str
    mode: str
    by: tuple[str, ...]
    after: str
    upto: str
    ids: tuple[Interval, ...] = ()
    oid: int | None = None


def tables(position: Position) -> dict[str, dict[str, Any]]:
    """The state of each table in ``position``."""
    return {name: dict(state) for name, state in position["tables"].items()}


def table_splits(start: Position, end: Position, parallelism: int) -> Iterator[TableSplit]:
    """The splits between two positions, in the order of table names; ranges of ids are cut."""
    before = tables(start)
    for name, upto in sorted(tables(end).items()):
        after = before.get(name, {})
        if after.get("oid") != upto.get("oid"):
            after = {}  # another table has taken the name
        if read_fields(after) == read_fields(upto):
            continue
        mode, texts = mode_of(upto), (dumps(read_fields(after)) if read_fields(after) else "", dumps(read_fields(upto)))
        by, oid = tuple(upto["by"]), upto.get("oid")
        if mode != INCREMENTING:
            yield TableSplit(name, mode, by, *texts, oid=oid)
            continue
        for share in shares(ids_between(after, upto), upto.get("min"), parallelism):
            yield TableSplit(name, mode, by, *texts, tuple(share), oid)


def mode_of(state: State) -> str:
    """The mode of a state: with both a time and an id it is that of both."""
    if "polls" in state:
        return BULK
    if "at" in state:
        return BOTH if "id" in state else TIMESTAMP
    return INCREMENTING


def read_fields(state: State) -> dict[str, Any]:
    """The part of a state that says what was read."""
    return {name: value for name, value in state.items() if name in ("id", "holes", "at", "x", "open", "low", "polls")}


def state_of(text: str) -> dict[str, Any]:
    """A state of a :class:`TableSplit`."""
    return dict(json.loads(text)) if text else {}


# ---- intervals of ids


def ids_between(after: State, upto: State) -> list[Interval]:
    """The ids of ``upto`` that are not in ``after``, ascending."""
    known, last = after.get("id"), upto["id"]
    holes = intervals(upto.get("holes", ()))
    late = difference(holes_of(after), holes)
    if known is not None and known >= last:
        return late
    new: Interval = (None if known is None else known + 1, last)
    return [*late, *difference([new], holes)]


def holes_of(state: State) -> list[Interval]:
    """The holes of a state. Somebody may have moved its id back below some; these are new ids then."""
    return difference(intervals(state.get("holes", ())), [(state["id"] + 1, _END)]) if "id" in state else []


def intervals(pairs: Iterable[Sequence[int]]) -> list[Interval]:
    return [(first, last) for first, last in pairs]


def difference(whole: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """The numbers of ``whole`` that are not in ``holes``; both ascending. A hole has a first number."""
    left: list[Interval] = []
    gaps = list(holes)
    for first, last in whole:
        at = first
        for hole_first, hole_last in gaps:
            assert hole_first is not None
            if hole_last < (at if at is not None else hole_first) or hole_first > last:
                continue
            if at is None or at < hole_first:
                left.append((at, hole_first - 1))
            at = hole_last + 1
        if at is None or at <= last:
            left.append((at, last))
    return left


def intersection(some: Iterable[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The numbers that are in both; both ascending, and with a first number."""
    result: list[Interval] = []
    for first, last in some:
        for low, high in others:
            if (low or 0) <= last and (first or 0) <= high:
                result.append((max(first or 0, low or 0), min(last, high)))
    return result


def union(some: Iterable[Interval]) -> list[Interval]:
    """All numbers of ``some``, ascending; adjacent intervals become one."""
    result: list[Interval] = []
    for first, last in sorted((first or 0, last) for first, last in some):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def shares(whole: Sequence[Interval], smallest: int | None, count: int) -> Iterator[list[Interval]]:
    """``whole`` in up to ``count`` shares of about equal size; an interval without a start begins at ``smallest``."""
    known = [(_begin(interval, smallest), interval[1]) for interval in whole]
    total = sum(last - first + 1 for first, last in known)
    for first, last in even_ranges(0, total - 1, count):
        share: list[Interval] = []
        passed = 0
        for (begin, end), (open_begin, _) in zip(known, whole, strict=True):
            low, high = max(first - passed, 0), min(last - passed, end - begin)
            if low <= high:
                share.append((open_begin if low == 0 else begin + low, begin + high))
            passed += end - begin + 1
        yield share


def _begin(interval: Interval, smallest: int | None) -> int:
    first, last = interval
    if first is not None:
        return first
    return min(last, smallest) if smallest is not None else last


# ---- schemas


def fingerprint(columns: Iterable[tuple[str, str]]) -> str:
    """Names and types of columns, in order, 8 letters each: small enough for a thousand tables."""
    return "".join(digest(name, length=4) + digest(kind, length=4) for name, kind in columns)


@dataclass(frozen=True)
class Change:
    """The difference of a table's columns from a fingerprint. ``gone`` is a number, since the names are not known."""

    added: tuple[str, ...]
    retyped: tuple[str, ...]
    gone: int

    def __bool__(self) -> bool:
        return bool(self.added or self.retyped or self.gone)

    def __str__(self) -> str:
        texts = [f"new: {', '.join(self.added)}"] if self.added else []
        texts += [f"with another type: {', '.join(self.retyped)}"] if self.retyped else []
        texts += [f"gone: {self.gone}"] if self.gone else []
        return "; ".join(texts)


def changed(known: str, columns: Sequence[tuple[str, str]]) -> Change:
    """The change of a table's columns since its fingerprint was ``known``."""
    before = {known[at : at + 4]: known[at + 4 : at + 8] for at in range(0, len(known), 8)}
    now = {digest(name, length=4): (name, digest(kind, length=4)) for name, kind in columns}
    return Change(
        tuple(name for key, (name, _) in now.items() if key not in before),
        tuple(name for key, (name, kind) in now.items() if before.get(key, kind) != kind),
        len(set(before) - set(now)),
    )

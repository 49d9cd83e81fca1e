"""The outcome of a batch of changes: the position of each, the last truncation, and one change for each key."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from ...core import Batch
from ...formats.base import quoted
from .change_log import (
    ATTEMPT,
    DELETED,
    DIGITS,
    ENDS,
    MOVED,
    ORDINAL,
    POSITION,
    SNAPSHOT,
    TRUNCATES,
    Changes,
    unknown_value,
)
from .column_types import fitted
from .holes import DROPPED, mark_of
from .log_state import Alteration, LogState, SnapshotRows
from .positions import ARRIVAL, place_of, place_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NEWEST, _ORDER, _BEGIN = (f"__connectors_{name}" for name in ("newest", "order", "begin"))


def without_dropped(changes: Changes, known: Container[str]) -> Changes:
    """``changes`` of which the marks, and ``dropped``, are of columns that were there before: the log says what was before.

    A record from before a column came has its default. Raises :class:`Misconfigured` for one that nobody knows, of a column
    that is not ``known``. The records need not be in the order of the log: partitions of a topic interleave, and a connector
    that starts again repeats records.
    """
    from pyspark.sql import functions as F

    names, frame = sorted(changes.dropped), changes.frame
    if not names:
        return changes
    digits = F.lit("") if changes.order == ARRIVAL else F.coalesce(F.col(DIGITS), F.lit(""))
    place, ordinal, is_read = F.concat(digits, place_of(0, 0, F.col(ORDINAL))), F.col(ORDINAL), F.col(SNAPSHOT)
    is_absent = {name: F.array_contains(DROPPED, mark_of(name)) for name in names}
    lasts = []
    for absent in is_absent.values():
        values = F.when(~is_read, place), F.when(is_read, ordinal), ordinal
        lasts.append(F.struct(*(F.max(F.when(~absent, value)) for value in values)))
    is_new = {}
    for (name, absent), (change, read, last) in zip(is_absent.items(), frame.agg(*lasts).collect()[0], strict=True):
        is_before = F.when(is_read, ordinal < last).otherwise((place < change) | (ordinal < read))
        is_new[name] = absent & F.coalesce(is_before, F.lit(False))
    is_gone = {name: absent & ~is_new[name] for name, absent in is_absent.items()}
    seen = frame.agg(*(F.array(*map(F.max, conditions.values())) for conditions in (is_new, is_gone))).collect()[0]
    filled, dropped = ({name for name, is_seen in zip(names, side, strict=True) if is_seen} for side in seen)
    if unknown := sorted(name for name in changes.required & filled if name.lower() not in known):
        raise unknown_value(unknown[0])
    cells = {name: F.col(quoted(name)) for name in frame.columns}
    cells |= {name: F.when(~is_gone[name], cells[name]) for name in dropped}
    cells[DROPPED] = F.array_except(DROPPED, F.array(*(F.when(is_new[name], F.lit(mark_of(name))) for name in names)))
    return replace(changes, frame=frame.select(*(cell.alias(name) for name, cell in cells.items())), dropped=frozenset(dropped))


def placed_changes(changes: Changes, state: LogState, batch: Batch, keys: Sequence[str]) -> Changes:
    """``changes`` with their positions. A change that names no row is an error of the query."""
    from pyspark.sql import functions as F

    digits = F.lit("") if state.order == ARRIVAL else F.coalesce(F.col(DIGITS), F.lit(""))
    place = place_of(state.life, batch.number, F.col(ORDINAL))
    position = F.concat(F.lit(f"{state.generation:03d}"), digits, place)
    nulls = [F.col(quoted(key)).isNull() for key in keys]
    is_nameless = reduce(and_, nulls) | (F.col(DELETED) & reduce(or_, nulls))
    message = F.lit(
        f"a change has no value of {', '.join(keys)} (keyColumns), so it names no row; of a deletion the database's log may "
        "have the primary key alone, unless the table has REPLICA IDENTITY FULL"
    )
    checked = F.when(is_nameless & ~F.col(TRUNCATES), F.raise_error(message)).otherwise(position)
    return replace(changes, frame=changes.frame.withColumn(POSITION, checked))


def snapshot_rows(changes: Changes, state: LogState, batch: Batch) -> SnapshotRows | None:
    """A summary of a batch's rows of snapshots; ``None`` if it has no such row."""
    from pyspark.sql import functions as F

    by_attempt = changes.frame.where(SNAPSHOT).groupBy(ATTEMPT)
    rows = by_attempt.agg(F.min(ORDINAL).alias("first"), F.max(ORDINAL).alias("last"), F.max(ENDS).alias("ends")).collect()
    if not rows:
        return None
    newest = max(rows, key=lambda row: row["last"])
    return SnapshotRows(newest[ATTEMPT], place_text(state.life, batch.number, newest["first"]), newest["ends"])


def truncation_in(changes: Changes) -> tuple[str, int] | None:
    """The position of the last truncation among ``changes``, and its place in the batch."""
    from pyspark.sql import functions as F

    row = changes.frame.where(TRUNCATES).agg(F.max(POSITION).alias("position"), F.max(ORDINAL).alias("ordinal")).head()
    return (row["position"], row["ordinal"]) if row is not None and row["position"] is not None else None


def is_behind(position: str, ordinal: int) -> Column:
    """True for changes behind a truncation."""
    from pyspark.sql import functions as F

    return ~F.col(TRUNCATES) & F.when(F.col(SNAPSHOT), F.col(ORDINAL) > ordinal).otherwise(F.col(POSITION) > position)


def newest_changes(
    changes: Changes, keys: Sequence[str], holes: Mapping[str, str], may_be_snapshot: bool, is_partial: bool
) -> DataFrame:
    """One change for each key: the one that holds after all of the batch.

    A row of a snapshot takes the place of what came before it; of changes of the log behind it, the one with the last position
    holds. ``holes`` are conditions of values that a change does not tell, as SQL: those of the change before it count, if the
    batch has that, and never values from before the row began. With ``holes``, or ``is_partial`` for a table with columns that
    its source has no more, each change says whether its row has begun in the batch.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    frame, by_key = changes.frame, Window.partitionBy(*map(quoted, keys))
    is_behind_read = F.lit(True)
    if may_be_snapshot:
        last_read = F.max(F.when(F.col(SNAPSHOT), F.col(ORDINAL))).over(by_key)
        is_behind_read = F.coalesce(F.col(ORDINAL) >= last_read, is_behind_read)
    frame = frame.withColumn(_ORDER, F.struct(is_behind_read, ~F.col(SNAPSHOT), F.col(POSITION)))
    order = F.col(_ORDER)
    if holes or is_partial:
        begin = F.max(F.when(F.col(MOVED) | F.col(DELETED), order)).over(by_key)
        frame = frame.withColumn(_BEGIN, begin).where(F.col(_BEGIN).isNull() | (order >= F.col(_BEGIN)))
        frame = frame.withColumn(MOVED, F.col(_BEGIN).isNotNull())
    whole = F.struct(*(F.col(quoted(name)) for name in changes.frame.columns))
    touched = [_last_touched(name, hole, order).alias(f"touched_{n}") for n, (name, hole) in enumerate(holes.items())]
    grouped = frame.alias("new").groupBy(*map(quoted, keys)).agg(F.max_by(whole, order).alias(_NEWEST), *touched)
    grouped = grouped.select(F.col(_NEWEST).alias("new"), *(f"touched_{number}" for number in range(len(touched))))
    told = {name: F.col(f"touched_{number}") for number, name in enumerate(holes)}
    cells = []
    for name in changes.frame.columns:
        cell = F.col("new")[name]
        if name in holes:
            cell = F.when(F.expr(holes[name]) & told[name].isNotNull(), told[name][name]).otherwise(cell)
        if name == DROPPED and holes:
            marks = (F.when(touched.isNotNull(), F.lit(mark_of(column))) for column, touched in told.items())
            cell = F.array_except(cell, F.array(*marks))
        cells.append(cell.alias(name))
    return grouped.select(*cells)


def _last_touched(name: str, hole: str, order: Column) -> Column:
    from pyspark.sql import functions as F

    is_value = ~F.coalesce(F.expr(hole), F.lit(False)) & ~F.col(DELETED)
    return F.max_by(F.struct(F.col(quoted(name)).alias(name)), F.when(is_value, order))


def passing_alterations(changes: Changes, types: Mapping[str, Any], known: Set[str | None]) -> list[Alteration]:
    """What the table would follow beside the alterations of ``known`` columns: it came and went within the batch."""
    pairs = [(name, types.get(name.lower()), kind) for name, kind in changes.columns.items() if name not in known]
    return [
        Alteration("add.column", name, None, kind.simpleString())
        if before is None
        else Alteration("alter.column.type", name, before.simpleString(), kind.simpleString())
        for name, before, kind in pairs
        if before != kind
    ]


def with_columns(changes: Changes, types: Mapping[str, Any]) -> Changes:
    """``changes`` with the columns of the table alone, in their types."""
    from pyspark.sql import functions as F

    columns = {name: types[name.lower()] for name in changes.columns if name.lower() in types}
    others = [name for name in changes.frame.columns if name not in changes.columns]
    cells = [fitted(F.col(quoted(name)), changes.columns[name], kind, name).alias(name) for name, kind in columns.items()]
    return replace(changes, frame=changes.frame.select(*cells, *map(quoted, others)), columns=columns)

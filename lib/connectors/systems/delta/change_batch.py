"""The outcome of a batch of changes: the position of each, the last truncation, and one change for each key."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from .holes import ABSENT, mark_of
from .log_state import JSON_TIMES, Alteration, LogState, Origin, SnapshotRows
from .positions import ARRIVAL, place_of, place_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BEGIN: Final = "__connectors_begin"
"""The column of the newest change of a key that has the position at which its row has begun in the batch."""
AFTER_DELETION: Final = "__connectors_after_deletion"
"""The column beside ``BEGIN`` that is true where a deletion of the key is in the batch."""
_NEWEST, _ORDER = "__connectors_newest", "__connectors_order"


def with_defaults(changes: Changes, known: Mapping[str, Any], state: LogState | None) -> Changes:
    """``changes`` of which those that lack a column have its default if they are older than it, and else no value.

    The positions tell which are older: partitions of a topic interleave, a connector that starts again repeats records, and
    a snapshot is ahead of the log. ``known`` are the types of the table's columns, and ``state`` has the origins of some.
    Raises :class:`Misconfigured` for a default that nobody knows, of a column that is not ``known``.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType

    origins = {} if state is None else {name: origin for name, origin in state.origins.items() if name in known}
    others = {name: known[name] for name in origins.keys() - {*map(str.lower, changes.columns)}}
    names, frame = sorted({*changes.gaps, *others}), changes.frame
    if not names:
        return changes
    columns, declared = changes.columns | others, {**changes.declared}
    for name, kind in others.items():
        marks = F.array_append(ABSENT, F.lit(mark_of(name)))
        frame = frame.withColumn(name, F.lit(None).cast(kind)).withColumn(ABSENT, marks)
    digits = _digits(changes.order)
    place, ordinal, is_read = F.concat(digits, place_of(0, 0, F.col(ORDINAL))), F.col(ORDINAL), F.col(SNAPSHOT)
    is_absent = {name: F.array_contains(ABSENT, mark_of(name)) for name in names}
    gaps = [
        F.struct(
            F.max(F.when(~absent & ~is_read, place)), F.max(F.when(~absent & is_read, ordinal)),
            F.max(F.when(~absent, ordinal)), F.max(F.when(absent & ~is_read, place)),
        )
        for absent in is_absent.values()
    ]  # fmt: skip
    cells = {name: F.col(quoted(name)) for name in frame.columns}
    for name, places in zip(names, frame.agg(*gaps).collect()[0], strict=True):
        gap, origin, is_new = _Gap(*places), origins.get(name.lower()), name.lower() not in known
        is_first = is_new and bool(known) and gap.read is not None  # a snapshot has it here for the first time
        is_ahead = gap.change is None and (origin.position is None if origin else is_first)
        in_batch = F.lit(True) if is_ahead and is_new else (place < F.lit(gap.change)) | (ordinal < F.lit(gap.read))
        is_older = is_absent[name] & F.coalesce(F.when(is_read, ordinal < F.lit(gap.last)).otherwise(in_batch), F.lit(False))
        if name in changes.required and is_new and frame.where(is_older).limit(1).collect():
            raise unknown_value(name)
        cells[name] = F.when(~is_absent[name] | is_older, cells[name])
        position = (origin and changes.order != ARRIVAL and origin.position) or ""  # of arrivals, no record is older
        if name not in declared and (is_ahead or (gap.lack is not None and gap.lack < (gap.change or position))):
            declared = _source_columns(name, columns[name], is_new, state) | declared
        if origin and (is_ahead or position):
            value = fitted(F.expr(origin.sql()), DataType.fromDDL(origin.kind), columns[name], name)
            is_older = ~is_read & (F.lit(True) if is_ahead else digits < position)
            cells[name] = F.when(is_absent[name] & is_older, value).otherwise(cells[name])
    frame = frame.select(*(cell.alias(name) for name, cell in cells.items()))
    return replace(changes, frame=frame, columns=columns, declared=declared, gaps=changes.gaps | others.keys())


class _Gap(NamedTuple):
    """What a batch has of a column that some of its records lack; ``None`` where there is no such record.

    ``change`` is the place of the last change of the log with the column, and ``lack`` of the last one without it. ``read`` is
    the ordinal of the last row of a snapshot with it, and ``last`` of the last record. A column is *ahead* that snapshots have
    and the log has not reached: all of the log that lacks it is older.
    """

    change: str | None
    read: int | None
    last: int | None
    lack: str | None


def _source_columns(name: str, kind: Any, is_new: bool, state: LogState | None) -> dict[str, str]:
    """The type of the column ``name`` that the source has declared last, or has in this batch; empty if it had dropped it."""
    if state is None or name in state.keys:
        return {}
    if is_new:
        return {name: kind.simpleString()}
    return {own: text for own, text in state.columns.items() if own.lower() == name.lower()}


def origins_of(changes: Changes, known: Mapping[str, Origin], types: Container[str]) -> dict[str, Origin]:
    """The ``known`` origins, with what ``changes`` tell of them, and those of columns beside the table's ``types``."""
    from pyspark.sql import functions as F

    def value(name: str) -> Column:
        default = changes.defaults.get(name)
        return F.lit(None).cast("string") if default is None else F.to_json(F.struct(default.alias("v")), JSON_TIMES)

    def position(name: str) -> Column:
        return F.min(F.when(~F.array_contains(ABSENT, mark_of(name)) & ~F.col(SNAPSHOT), _digits(changes.order)))

    origins, names = {**known}, {name.lower(): name for name in changes.columns}
    if new := [lower for lower in names if lower not in types]:
        spark, kinds = changes.frame.sparkSession, (changes.columns[names[lower]].simpleString() for lower in new)
        values = spark.range(1).select(*(value(names[lower]).alias(lower) for lower in new)).collect()[0]
        origins |= {lower: Origin(None, kind, text) for lower, kind, text in zip(new, kinds, values, strict=True)}
    if unplaced := [lower for lower, origin in origins.items() if origin.position is None and lower in names]:
        positions = changes.frame.agg(*(position(names[lower]).alias(lower) for lower in unplaced)).collect()[0]
        origins |= {lower: origins[lower]._replace(position=p) for lower, p in zip(unplaced, positions, strict=True)}
    return origins


def _digits(order: str) -> Column:
    from pyspark.sql import functions as F

    return F.lit("") if order == ARRIVAL else F.coalesce(F.col(DIGITS), F.lit(""))


def placed_changes(changes: Changes, state: LogState, batch: Batch, keys: Sequence[str]) -> Changes:
    """``changes`` with their positions. A change that names no row is an error of the query."""
    from pyspark.sql import functions as F

    place = place_of(state.life, batch.number, F.col(ORDINAL))
    position = F.concat(F.lit(f"{state.generation:03d}"), _digits(state.order), place)
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
    changes: Changes, keys: Sequence[str], holes: Mapping[str, str], may_be_snapshot: bool, has_orphans: bool
) -> DataFrame:
    """One change for each key: the one that holds after all of the batch.

    A row of a snapshot takes the place of what came before it; of changes of the log behind it, the one with the last position
    holds. ``holes`` are conditions of values that a change does not tell, as SQL: those of the change before it count, if the
    batch has that, and never values from before the row began. With ``holes``, or ``has_orphans`` for a table with columns that
    its source has no more, ``BEGIN`` says where its row has begun in the batch.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    frame, by_key = changes.frame, Window.partitionBy(*map(quoted, keys))
    is_behind_read, begins = F.lit(True), F.col(MOVED) | F.col(DELETED)
    if may_be_snapshot:
        last_read = F.max(F.when(F.col(SNAPSHOT), F.col(ORDINAL))).over(by_key)
        is_behind_read = F.coalesce(F.col(ORDINAL) >= last_read, is_behind_read)
        begins = F.col(DELETED) | (F.col(MOVED) & last_read.isNull())  # the snapshot has read the row
    frame = frame.withColumn(_ORDER, F.struct(is_behind_read, ~F.col(SNAPSHOT), F.col(POSITION)))
    order = F.col(_ORDER)
    if holes or has_orphans:
        frame = frame.withColumn(AFTER_DELETION, F.max(DELETED).over(by_key))
        frame = frame.withColumn(BEGIN, F.max(F.when(begins, order)).over(by_key))
        frame = frame.where(F.col(BEGIN).isNull() | (order >= F.col(BEGIN))).withColumn(BEGIN, F.col(BEGIN)[POSITION])
    columns = [name for name in frame.columns if name != _ORDER]
    whole = F.struct(*(F.col(quoted(name)) for name in columns))
    touched = [_last_touched(name, hole, order).alias(f"touched_{n}") for n, (name, hole) in enumerate(holes.items())]
    grouped = frame.alias("new").groupBy(*map(quoted, keys)).agg(F.max_by(whole, order).alias(_NEWEST), *touched)
    grouped = grouped.select(F.col(_NEWEST).alias("new"), *(f"touched_{number}" for number in range(len(touched))))
    last_values = {name: F.col(f"touched_{number}") for number, name in enumerate(holes)}
    cells = []
    for name in columns:
        cell = F.col("new")[name]
        if name in holes:
            cell = F.when(F.expr(holes[name]) & last_values[name].isNotNull(), last_values[name][name]).otherwise(cell)
        if name == ABSENT and holes:
            marks = (F.when(value[ABSENT], F.lit(mark_of(column))) for column, value in last_values.items())
            cell = F.array_compact(F.array(*marks))
        cells.append(cell.alias(name))
    return grouped.select(*cells)


def _last_touched(name: str, hole: str, order: Column) -> Column:
    """The last value that a change tells, or else that of one whose source did not have the column."""
    from pyspark.sql import functions as F

    is_absent = F.array_contains(ABSENT, mark_of(name))
    is_value = (~F.coalesce(F.expr(hole), F.lit(False)) | is_absent) & ~F.col(DELETED)
    value = F.struct(F.col(quoted(name)).alias(name), is_absent.alias(ABSENT))
    return F.max_by(value, F.when(is_value, F.struct(~is_absent, order)))


def last_position(changes: Changes) -> str:
    """The last position of the database's log in the batch; empty where the arrival is the order, or a snapshot is ahead."""
    from pyspark.sql import functions as F

    if changes.order == ARRIVAL:
        return ""
    (row,) = changes.frame.agg(F.max(_digits(changes.order)).alias("last"), F.max(SNAPSHOT).alias("read")).collect()
    return "" if row["read"] else row["last"] or ""


def remade_columns(changes: Changes, state: LogState) -> list[str]:
    """Columns of ``state`` that the source has dropped and made anew: changes without one are between others in the log."""
    from pyspark.sql import functions as F

    names = [name for name in changes.declared if name in state.columns and name in changes.gaps]
    if changes.order == ARRIVAL or not names:
        return []
    digits, is_read = _digits(changes.order), F.col(SNAPSHOT)
    cells = []
    for name in names:
        is_absent = F.array_contains(ABSENT, mark_of(name))
        own, others = (F.when(condition & ~is_read, digits) for condition in (~is_absent, is_absent))
        cells.append(F.struct(F.min(own), F.max(others), F.max(own)))
    found = zip(names, changes.frame.agg(*cells).collect()[0], strict=True)
    return [
        name
        for name, (first, lack, last) in found
        if lack and last and (state.schema_position or first) < lack < last
    ]


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


def with_columns(changes: Changes, types: Mapping[str, Any], *, adds: bool, widens: bool) -> Changes:
    """``changes`` with the columns of the table, and others if it ``adds`` them; in its types, unless it ``widens`` them."""
    from pyspark.sql import functions as F

    own = {name: kind for name, kind in changes.columns.items() if adds or name.lower() in types}
    columns = {name: kind if widens else types.get(name.lower(), kind) for name, kind in own.items()}
    others = [name for name in changes.frame.columns if name not in changes.columns]
    cells = [fitted(F.col(quoted(name)), changes.columns[name], kind, name).alias(name) for name, kind in columns.items()]
    return replace(changes, frame=changes.frame.select(*cells, *map(quoted, others)), columns=columns)

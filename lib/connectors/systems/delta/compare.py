"""Compares Delta tables that follow a change log with the database that the log is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...core import Misconfigured, Problem
from ...formats.base import WHOLE_TIMES, quoted
from ...ground import machine
from ...ground.options import Duration
from .database_table import DatabaseTable
from .log_state import source_name
from .merge_all import MergedTable, tables_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

NAME: Final = "connect.compare"
RESULT: Final = (
    "table string, source string, rows bigint, target_rows bigint, missing bigint, extra bigint, different bigint, "
    "unsettled bigint, examples array<string>, left_out array<string>"
)
_RANGES: Final = 4096
"""Both sides are added up in so many ranges of keys; only ranges that differ are looked at row by row."""
_OWN: Final = "_position"
_LOOK_SECONDS: Final = 5.0
_MOST_LOOKED_AT: Final = 10_000
"""The most rows that are looked at again. If more differ, no transaction that is under way explains it."""
_SHOWN: Final = 5
_ALTERED: Final = "connectors_altered"
"""A column that is not null where a value of the database does not fit the type that it has here."""


def compare(database: Mapping[str, Any], target: str, *, tables: Sequence[str] = (), wait: str = "0s") -> DataFrame:
    """How tables that :func:`~connectors.connect.merge` or :func:`~connectors.connect.merge_all` keep differ from the database.

    ``database`` are the options of ``connectors.jdbc`` that reach it (``url``, ``user``, ``password``), or the properties of
    the connector; ``target`` is what the merge was given: a table, a schema, or the folder of either; of a schema, ``tables``
    names some. Both sides are added up in ranges of keys, and rows are compared only where ranges differ. A row differs if it
    does so for all of ``wait`` while the database's row stays the same: give more than the pipeline needs from a change to its
    merge, or 0 for a database at rest.

    Returns a row for each table: its name here and its ``source`` there, the ``rows`` of the database and ``target_rows``; the
    rows that are ``missing`` here, ``extra`` (also twice), ``different``, and ``unsettled`` (they changed all the time);
    ``examples``, some keys as JSON; ``left_out``, the columns that only one side has, or that are text in the database only.
    Raises :class:`~connectors.ground.errors.Misconfigured` for a target without merged tables, for an unknown table, and for
    one that the database does not have.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    try:
        seconds = float(Duration(None).parse(str(wait)))
    except ValueError:
        raise _wrong("wait", f'must be a duration such as "5 minutes"; got "{wait}".') from None
    sides = [_Sides(spark, database, table) for table in tables_of(spark, target, tables, NAME)]
    for side in sides:
        side.add_up()
    _look_again(sides, seconds)
    return spark.createDataFrame([side.result() for side in sides], RESULT)


class _Difference(NamedTuple):
    """The digests of a key's rows in the source and in the target, the range of the key, and how many more the target has."""

    source: Decimal | None
    target: Decimal | None
    range: int
    surplus: int


class _Sides:
    """A table and its source; ``open`` are rows that differ by their keys, ``unsettled`` those whose source has changed."""

    def __init__(self, spark: SparkSession, database: Mapping[str, Any], table: MergedTable) -> None:
        from pyspark.sql import functions as F

        state = table.state(spark)
        if state is None:
            raise _wrong("target", f"has {table.name}, which no merge has written.")
        self.table, self.state, self.source = table, state, source_name(state.topic)
        rows = table.rows(spark)
        database_table = DatabaseTable(spark, database, self.source)
        try:
            source = database_table.rows()
        except Exception as error:
            text = f"cannot give {self.source}, the source of {table.name}; name other tables by tables, or delete this one."
            raise _wrong("database", f"{text} {' '.join(str(error).split())}") from error
        if self.state.deleted:
            rows = rows.where(F.col(quoted(self.state.deleted)).isNull()).drop(self.state.deleted)
        rows = rows.drop(_OWN)
        types, kinds = ({field.name: field.dataType for field in side.schema} for side in (rows, source))
        values = {name: database_table.value(name, kinds[name], types[name]) for name in types if name in kinds}
        common = {name: value for name, value in values.items() if value is not None}
        self.left_out = sorted({*types, *kinds} - {*common})
        if lost := [key for key in self.state.keys if key not in common]:
            raise _wrong("database", f"has no column {lost[0]} in {self.source}, which identifies the rows of {table.name}.")
        altered = [_is_altered(*value, types[name]) for name, value in common.items() if value[1] != types[name]]
        typed = source.select(
            *(value.try_cast(types[name]).alias(name) for name, (value, _) in common.items()),
            F.when(reduce(or_, altered, F.lit(False)), F.lit(True)).alias(_ALTERED),
        )
        rows = rows.select(*map(quoted, common), F.lit(None).cast("boolean").alias(_ALTERED))
        self._source, self._target = _digests(typed, state.keys), _digests(rows, state.keys)
        self.open: dict[str, _Difference] = {}
        self.unsettled: dict[str, _Difference] = {}

    def add_up(self) -> None:
        """Compares the sums of both sides, and the rows of the ranges in which they differ."""
        self.rows, self.target_rows, ranges = self._ranges()
        self.open = dict(self._differences(ranges))

    def look_again(self) -> None:
        """Leaves out the rows that are equal now, and those whose source has changed."""
        found = {**self.open, **self.unsettled}
        now = dict(self._differences(sorted({row.range for row in found.values()})))
        still = {key: now[key] for key in found if key in now}
        is_same = {key: key in self.open and row.source == self.open[key].source for key, row in still.items()}
        self.open = {key: row for key, row in still.items() if is_same[key]}
        self.unsettled = {key: row for key, row in still.items() if not is_same[key]}

    @property
    def is_waiting(self) -> bool:
        """True while another look may find rows that are equal by now."""
        return bool(self.open or self.unsettled) and len(self.open) <= _MOST_LOOKED_AT

    def result(self) -> tuple[Any, ...]:
        """The row of the answer."""
        missing = sum(row.surplus < 0 for row in self.open.values())
        extra = sum(row.surplus > 0 for row in self.open.values())
        counts = (missing, extra, len(self.open) - missing - extra, len(self.unsettled))
        examples = sorted(self.open)[:_SHOWN]
        return (self.table.name, self.source, self.rows, self.target_rows, *counts, examples, self.left_out)

    def _ranges(self) -> tuple[int, int, list[int]]:
        """The number of rows of both sides, and the ranges in which they differ."""
        from pyspark.sql import functions as F

        frames = [side.groupBy("range").agg(F.count("*"), _total()).collect() for side in (self._source, self._target)]
        sums = [{number: (count, total) for number, count, total in frame} for frame in frames]
        differ = [number for number in sums[0].keys() | sums[1].keys() if sums[0].get(number) != sums[1].get(number)]
        rows, target_rows = (sum(rows for rows, _ in side.values()) for side in sums)
        return rows, target_rows, differ

    def _differences(self, ranges: Sequence[int]) -> Iterator[tuple[str, _Difference]]:
        """The rows of ``ranges`` that differ, by key."""
        from pyspark.sql import functions as F

        if not ranges:
            return
        source, target = (
            side.where(F.col("range").isin(list(ranges)))
            .groupBy("key", "range")
            .agg(_total().alias(name), F.count("*").alias(f"{name}s"))
            for name, side in (("source", self._source), ("target", self._target))
        )
        surplus = F.coalesce("targets", F.lit(0)) - F.coalesce("sources", F.lit(0))
        joined = source.join(target, ["key", "range"], "full").withColumn("surplus", surplus)
        wrong = joined.where(~F.col("source").eqNullSafe(F.col("target")) | (F.col("surplus") != 0))
        for row in wrong.select("key", "source", "target", "range", "surplus").toLocalIterator():
            yield row.key, _Difference(row.source, row.target, row.range, row.surplus)


def _look_again(sides: Sequence[_Sides], seconds: float) -> None:
    """Looks again, until ``seconds`` have passed, at the rows that differ."""
    until, pause = machine.monotonic() + seconds, min(_LOOK_SECONDS, seconds)
    while seconds and (waiting := [side for side in sides if side.is_waiting]):
        left = until - machine.monotonic()
        if left <= 0:
            return
        machine.sleep(min(pause, left))
        pause *= 2
        for side in waiting:
            side.look_again()


def _digests(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """For each row its ``key`` as JSON, the ``range`` of the key, and a ``digest`` of all columns."""
    from pyspark.sql import functions as F

    key = F.to_json(F.struct(*map(quoted, keys)), WHOLE_TIMES)
    digest = F.xxhash64(*(_hashable(rows, name) for name in rows.columns))
    return rows.select(key.alias("key"), F.pmod(F.xxhash64(key), F.lit(_RANGES)).alias("range"), digest.alias("digest"))


def _hashable(rows: DataFrame, name: str) -> Column:
    """The column and whether it is null, which a hash passes over; a nested value as text, since a map has no hash."""
    from pyspark.sql import functions as F

    column = F.col(quoted(name))
    is_nested = rows.schema[name].dataType.typeName() in ("map", "array", "struct")
    return F.struct(F.to_json(F.struct(column), WHOLE_TIMES) if is_nested else column, column.isNull())


def _total() -> Column:
    from pyspark.sql import functions as F

    return F.sum(F.col("digest").cast("decimal(38,0)"))  # a sum of 64-bit numbers would overflow


def _is_altered(column: Column, source: DataType, target: DataType) -> Column:
    """True for a value of the database that is not the same as the type ``target``; a floating number may be rounded."""
    from pyspark.sql.types import DecimalType, IntegralType

    cast = column.try_cast(target)
    is_same = cast.try_cast(source).eqNullSafe(column) if isinstance(target, (DecimalType, IntegralType)) else cast.isNotNull()
    return column.isNotNull() & ~is_same


def _wrong(option: str, text: str) -> Misconfigured:
    return Misconfigured(NAME, [Problem(option, text)])

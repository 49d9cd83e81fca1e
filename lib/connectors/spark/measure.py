"""Counts of a batch: rows and checksum, which Spark takes while it writes them, and the meters of its tasks and commit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..core.batch import Batch, Committable
from ..core.datasets import Dataset
from ..core.ledger import is_stream
from ..core.metrics import Component, Meter, Place, about
from ..core.planning import source_id
from ..core.sink import Sink
from ..core.source import Source
from ..ground import machine
from ..ground.state import digest
from .session import observation_is_known, task_ids, task_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField

_OBSERVATION_SECONDS: Final = 0.2


class Measures:
    """The rows and checksum of a batch; both ``None`` when nothing was measured. Known once the batch was computed."""

    def __init__(self, observation: Any = None) -> None:
        self._observation = observation

    @property
    def rows(self) -> int | None:
        return int(self._observation.get["rows"]) if self._observation else None

    def rows_if_known(self) -> int | None:
        """The rows, without waiting for them for long: a writer that rebuilds the plan may lose what was to be counted."""
        until = machine.monotonic() + _OBSERVATION_SECONDS  # Spark publishes it a moment after the batch is computed
        while not (is_known := observation_is_known(self._observation)) and machine.monotonic() < until:
            machine.sleep(0.001)
        return self.rows if is_known else None

    @property
    def checksum(self) -> str | None:
        """Independent of the order of rows; ``None`` if the columns have no hash, or a sum of hashes is too large."""
        sums = [value for name, value in self._observation.get.items() if name != "rows"] if self._observation else []
        if not sums or None in sums:
            return None
        return digest(*sums, length=16)

    @classmethod
    def of(cls, frame: DataFrame) -> Measures:
        """Measures ``frame`` by computing it."""
        watched, measures = measured(frame)
        watched.write.format("noop").mode("overwrite").save()
        return measures


def measured(frame: DataFrame) -> tuple[DataFrame, Measures]:
    """``frame``, and what will be known of it when it has been computed once: rows and checksum."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    columns = [_hashed(field) for field in frame.schema if _has_hash(field.dataType)]
    row = f"xxhash64({', '.join(columns)})"
    # Two halves: no sum of fewer than 2**31 hashes is too large for a long, and decimals take twice as long.
    halves = [f"try_sum({row} & 4294967295L) AS low", f"try_sum(shiftrightunsigned({row}, 32)) AS high"]
    sums = [F.expr(half) for half in halves if columns]
    return frame.observe(observation, F.expr("count(1) AS rows"), *sums), Measures(observation)


def _hashed(field: StructField) -> str:
    """SQL for what is hashed of a column: its value, and whether it is null."""
    name = f"`{field.name.replace('`', '``')}`"
    nested = field.dataType.simpleString().startswith(("struct<", "array<"))  # a hash skips the nulls inside
    text = f"to_json({name}, map('ignoreNullFields', 'false', 'timeZone', 'UTC'))" if nested else name
    return f"{text}, isnull({name})"


def counted(frame: DataFrame) -> tuple[DataFrame, Measures]:
    """:func:`measured`, rows only."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    return frame.observe(observation, F.expr("count(1) AS rows")), Measures(observation)


def _has_hash(kind: DataType) -> bool:
    """False for types that Spark refuses to hash, maps and variants, also inside others."""
    text = kind.simpleString()
    return "map<" not in text and "variant" not in text


def source_meter(source: Source, index: int) -> Meter:
    """In a task: counts what it reads as the ``index``-th share of its batch; a batch read is not counted.

    Not by Spark's number of the task: ``coalesce`` lets one task read several shares.
    """
    query, batch, _ = task_ids()
    component = Component("source", source.name, source_id(source), about(source.values, _datasets(source)))
    return Meter(Place(query, component, batch, index, task_run()) if query else None)


def sink_meter(sink: Sink, batch: Batch, index: int | None = None) -> Meter:
    """Counts for one sink: what its ``index``-th task does, or without it the commit of the batch on the driver."""
    component = Component("sink", sink.name, batch.sink_id, about(sink.values, _datasets(sink), sink.target()))
    place = Place(batch.query, component, batch.number, index if index is not None else -1)
    return Meter(place if is_stream(batch.query) else None)


def _datasets(part: Source | Sink) -> Sequence[Dataset]:
    """The datasets of a part; none if it cannot tell: nothing may fail for them."""
    try:
        return part.datasets()
    except Exception:
        return ()


def count_commit(meter: Meter, began: float, staged: Sequence[Committable], measures: Measures | None = None) -> None:
    """Counts the commit of a batch that ``began`` on the monotonic clock: rows ``staged`` by tasks, or Spark's ``measures``."""
    meter.now(commit_ms=round((machine.monotonic() - began) * 1000), last_commit=round(machine.time(), 3))
    rejected = sum(committable.rejected for committable in staged)
    letters = sum(committable.rejected for committable in staged if committable.letters or committable.is_set_aside)
    meter.count(errors=rejected, dead_letters=letters)
    if (rows := _rows(staged, measures, rejected)) is not None:
        meter.count(rows=rows)


def _rows(staged: Sequence[Committable], measures: Measures | None, rejected: int) -> int | None:
    """The rows that were written; ``None`` if they are not known. The batch is committed: nothing may fail here any more."""
    observed = None
    with contextlib.suppress(Exception):
        observed = measures.rows_if_known() if measures else None
    if observed is not None:
        return observed - rejected
    return sum(committable.rows for committable in staged) if staged or measures is None else None

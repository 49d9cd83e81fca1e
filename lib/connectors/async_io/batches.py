"""The batches and slots of the engine, and the conversion from Arrow to Python rows and back, once per batch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from math import inf
from typing import Any, Final

import pyarrow as pa

from ..ground.errors import Poison
from .function import named


class Columns:
    """Builds output batches: the columns ``keep`` of the input, then those of ``results``."""

    def __init__(self, keep: Sequence[str], results: pa.Schema, operator: str) -> None:
        self.keep, self.results, self.operator = list(keep), results, operator
        self._names = frozenset(results.names)
        self._struct = pa.struct(list(results))

    @staticmethod
    def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """The rows of ``batch`` as dicts; a map column gives a dict too."""
        has_maps = any("map<" in str(field.type) for field in batch.schema)  # without them it is four times as fast
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="lossy") if has_maps else batch.to_pylist()
        return rows

    def build(self, source: pa.RecordBatch, indices: list[int] | None, results: list[Any]) -> pa.RecordBatch | None:
        """The rows ``indices`` of ``source`` (``None``: all), once for each row of their result; None if there are none."""
        if set(map(type, results)) == {dict}:
            flat = results
        else:
            positions = range(source.num_rows) if indices is None else indices
            indices, flat = self._spread(source, positions, results)
        if not flat:
            return None
        inputs = source.select(self.keep)
        if indices is not None:
            inputs = inputs.take(pa.array(indices, pa.int64()))
        arrays = self._arrays(source, indices, flat)
        return pa.RecordBatch.from_arrays([*inputs.columns, *arrays], schema=pa.schema([*inputs.schema, *self.results]))

    def _spread(
        self, source: pa.RecordBatch, positions: Sequence[int], results: list[Any]
    ) -> tuple[list[int], list[dict[str, Any]]]:
        indices: list[int] = []
        flat: list[dict[str, Any]] = []
        for position, result in zip(positions, results, strict=True):
            if result is None:
                continue
            rows = [result] if isinstance(result, Mapping) else result
            if not isinstance(rows, (list, tuple)) or not all(isinstance(row, Mapping) for row in rows):
                got = f"the result must be a dict, a list of dicts, or None; got {_kind(result)}"
                raise self._refused(source, position, got)
            indices += itertools.repeat(position, len(rows))
            flat += [row if type(row) is dict else dict(row) for row in rows]
        return indices, flat

    def _arrays(self, source: pa.RecordBatch, indices: list[int] | None, flat: list[dict[str, Any]]) -> list[pa.Array]:
        if all(map(self._names.issuperset, flat)):
            try:
                columns: list[pa.Array] = pa.array(flat, self._struct).flatten()
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                pass
            else:
                if not any(
                    column.null_count and not field.nullable
                    for field, column in zip(self.results, columns, strict=True)
                ):
                    return columns
        raise self._culprit(source, indices, flat)

    def _culprit(self, source: pa.RecordBatch, indices: list[int] | None, flat: list[dict[str, Any]]) -> Poison:
        """The error for the first value in ``flat`` that does not fit the schema; it names the row and column."""
        for n, row in enumerate(flat):
            if problem := self._problem(row):
                return self._refused(source, n if indices is None else indices[n], problem)
        return Poison("a result does not fit the schema", connector=self.operator)

    def _problem(self, row: Mapping[str, Any]) -> str:
        if unknown := sorted(map(str, row.keys() - self._names)):
            return f"the result has {', '.join(unknown)}, which the schema has not ({', '.join(self.results.names)})"
        for column in self.results:
            value = row.get(column.name)
            if value is None and not column.nullable:
                return f"column {column.name} of the result is null, and the schema says not null"
            try:
                pa.array([value], column.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                return f"column {column.name} of the result does not fit {column.type}: {error}"
        return ""

    def _refused(self, source: pa.RecordBatch, position: int, problem: str) -> Poison:
        row = source.slice(position, 1).to_pylist()[0]
        where = f"row {named(row, [name for name in self.keep if len(self.keep) < len(row)])}"
        return Poison(problem, record=where, connector=self.operator, where=where)


def _kind(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return "a list with " + ", ".join(sorted({type(row).__name__ for row in result}))
    return type(result).__name__


class _RowState(Enum):
    PENDING = "the row has no outcome yet"
    SENT = "its outcome has left the engine"


PENDING: Final = _RowState.PENDING
SENT: Final = _RowState.SENT


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine; durations are seconds, ``timeout`` may be infinite."""

    capacity: int = 100
    timeout: float = 30.0
    ordered: bool = False
    batch_size: int = 1
    batch_time: float = 0.1
    close_timeout: float = 5.0
    flush_interval: float = 0.2


class RowBatch:
    """The rows of one record batch; from ``source`` the caller builds the output."""

    __slots__ = ("arrived", "left", "results", "rows", "sent", "size", "source", "taken")

    def __init__(self, rows: list[Any], source: Any = None) -> None:
        self.rows = rows
        self.source = source
        self.size = self.left = len(rows)
        self.taken = self.sent = 0
        self.results: list[Any] = [PENDING] * self.size
        self.arrived = 0.0

    def put(self, first: int, results: list[Any]) -> bool:
        """Stores the results of the rows from ``first`` on; true if no more are missing."""
        self.results[first : first + len(results)] = results
        self.left -= len(results)
        return not self.left

    def finished(self, in_order: bool) -> list[int]:
        """The rows that have an outcome and have not left; ``in_order``: only those before the first without outcome."""
        if in_order:
            return list(takewhile(lambda i: self.results[i] is not PENDING, range(self.sent, self.size)))
        return [i for i, result in enumerate(self.results) if result is not PENDING and result is not SENT]

    def send(self, indices: list[int]) -> Output:
        """Takes out the outcomes of ``indices``; others will follow."""
        results = [self.results[i] for i in indices]
        for i in indices:
            self.results[i] = SENT
        self.sent += len(indices)
        return Output(self.source, indices, results, last=False)

    def send_rest(self) -> Output:
        """Takes out all remaining outcomes; if none has left yet, the whole batch unchanged."""
        if not self.sent:
            return Output(self.source, None, self.results, last=True)
        indices = [i for i, result in enumerate(self.results) if result is not SENT]
        return Output(self.source, indices, [self.results[i] for i in indices], last=True)


_NO_BATCH: Final = RowBatch([])


@dataclass
class Output:
    """Outcomes that leave the engine: the rows ``indices`` of ``source`` (``None``: all); ``last``: none of it remain."""

    source: Any
    indices: list[int] | None
    results: list[Any]
    last: bool


class Slot:
    """One place in the capacity: the rows that it serves now, and since when (infinity: no rows, or the clock is paused)."""

    __slots__ = ("batch", "index", "late", "places", "rows", "since", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.late = False
        self.park()

    def park(self) -> None:
        """Makes the slot idle, so that it keeps no batch in memory."""
        self.batch = _NO_BATCH
        self.index = 0
        self.rows: Any = None
        self.places: list[tuple[RowBatch, int, int]] = []
        self.since = inf

    def pieces(self) -> list[tuple[RowBatch, int, int]]:
        """The places for the results of its rows: batch, first index, index after the last."""
        return self.places or [(self.batch, self.index, self.index + 1)]


Call = Callable[[Any, Slot], Awaitable[Any]]
"""A call for one row, or for a list of rows if ``batch_size`` is above 1; it then returns a result for each."""

Fallback = Callable[[Any, BaseException], Any]
"""Returns the result of a row whose call has failed, from the row and the error; raises if it has none."""


def check_results(rows: list[Any], results: Any) -> list[Any]:
    """The results of a call for several rows. Raises ``TypeError`` unless there is one for each."""
    if not isinstance(results, (list, tuple)) or len(results) != len(rows):
        got = f"{len(results)} entries" if isinstance(results, (list, tuple)) else type(results).__name__
        raise TypeError(f"a call of {len(rows)} rows must return a list with one entry for each; got {got}")
    return list(results)

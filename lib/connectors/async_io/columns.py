"""Arrow in, Python rows, Arrow out: one conversion per batch, and what is only passed on is never touched."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..core.errors import Poison
from .failures import named


class Columns:
    """Builds output batches: the columns ``keep`` of the input beside those of ``results``."""

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
        """The rows ``indices`` of ``source`` (``None``: all), once for each row of their result; None when there are none."""
        if set(map(type, results)) == {dict}:
            flat = results
        else:
            positions = range(source.num_rows) if indices is None else indices
            indices, flat = self._spread(source, positions, results)
        if not flat:
            return None
        kept = source.select(self.keep)
        if indices is not None:
            kept = kept.take(pa.array(indices, pa.int64()))
        made = self._arrays(source, indices, flat)
        return pa.RecordBatch.from_arrays([*kept.columns, *made], schema=pa.schema([*kept.schema, *self.results]))

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
        """Something in ``flat`` does not fit the schema: the error that names the row and the column."""
        for n, row in enumerate(flat):
            if problem := self._problem(row):
                return self._refused(source, n if indices is None else indices[n], problem)
        return Poison("a result does not fit the schema", connector=self.operator)

    def _problem(self, row: Mapping[str, Any]) -> str:
        if unknown := sorted(map(str, row.keys() - self._names)):
            return f"the result has {', '.join(unknown)}, which the schema has not ({', '.join(self.results.names)})"
        for field in self.results:
            value = row.get(field.name)
            if value is None and not field.nullable:
                return f"column {field.name} of the result is null, and the schema says not null"
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                return f"column {field.name} of the result does not fit {field.type}: {error}"
        return ""

    def _refused(self, source: pa.RecordBatch, position: int, problem: str) -> Poison:
        row = source.slice(position, 1).to_pylist()[0]
        where = f"row {named(row, [name for name in self.keep if len(self.keep) < len(row)])}"
        return Poison(problem, record=where, connector=self.operator, where=where)


def _kind(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return "a list with " + ", ".join(sorted({type(row).__name__ for row in result}))
    return type(result).__name__

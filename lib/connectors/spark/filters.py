"""Filters of Spark that a batch reader takes, in sessions with ``spark.sql.python.filterPushdown.enabled``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import datasource

from ..core.source import Predicate, Source
from .workers import plainly

_OPERATORS: Final = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}


class PushedFilters:
    """Hands the filters that a source may know to it, and the rest back to Spark."""

    source: Source

    def pushFilters(self, filters: Sequence[datasource.Filter]) -> Iterable[datasource.Filter]:
        known = {place: predicate for place, filter in enumerate(filters) if (predicate := _predicate(filter)) is not None}
        with plainly():
            taken = {id(predicate) for predicate in self.source.push_filters(list(known.values()))}
        return [filter for place, filter in enumerate(filters) if id(known.get(place)) not in taken]


def _predicate(filter: Any) -> Predicate | None:
    """A filter on a column, by one comparison; ``None`` for another one."""
    operator = _OPERATORS.get(type(filter).__name__)
    if operator is None or len(filter.attribute) != 1:
        return None
    values = tuple(filter.value) if operator == "in" else (filter.value,)
    return None if None in values else Predicate(filter.attribute[0], operator, values)

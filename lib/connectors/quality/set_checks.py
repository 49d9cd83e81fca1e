"""The checks of all rows together. :mod:`.define` describes their arguments."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ..ground.quantities import duration
from .check import Check, literal, quoted, unlike_column

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation


@dataclass(frozen=True)
class Unique(Check):
    @property
    def meaning(self) -> str:
        return f"{' and '.join(self.columns)} occur{'s' * (len(self.columns) == 1)} once"

    def expectation(self) -> Expectation:
        from .expectations import ExpectColumnValuesToBeUnique, ExpectCompoundColumnsToBeUnique

        if len(self.columns) == 1:
            return ExpectColumnValuesToBeUnique(column=self.columns[0], **self._labels)
        return ExpectCompoundColumnsToBeUnique(
            column_list=list(self.columns), ignore_row_if="any_value_is_missing", **self._labels
        )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.columns:
            yield "needs one or more columns"

    def sample(self, df: DataFrame, rows: int) -> DataFrame | None:
        names = [quoted(column) for column in self.columns]
        present = df.where(" AND ".join(f"{name} IS NOT NULL" for name in names))
        return present.groupBy(*names).agg(sf.count("*").alias("occurrences")).where("occurrences > 1").limit(rows)


@dataclass(frozen=True)
class RowCount(Check):
    min: int | None = 1
    max: int | None = None

    @property
    def least(self) -> int:
        """``min``, by default 1, since an output without rows is hardly ever intended."""
        return 1 if self.min is None else self.min

    @property
    def meaning(self) -> str:
        if self.max is None:
            return f"at least {self.least} row{'' if self.least == 1 else 's'}"
        return f"{self.least} to {self.max} rows"

    def off_by(self, rows: int) -> int:
        """The number of rows that are missing or too many."""
        extra = rows - self.max if self.max is not None else 0
        return max(self.least - rows, extra, 0)

    def expectation(self) -> Expectation:
        from .expectations import ExpectTableRowCountToBeBetween

        return ExpectTableRowCountToBeBetween(min_value=self.least, max_value=self.max, **self._labels)

    def problems(self) -> Iterator[str]:
        limits = {"min": self.min, "max": self.max}
        wrong = {key: value for key, value in limits.items() if value is not None and not _is_count(value)}
        for key, value in wrong.items():
            yield f"{key} must be a whole number, 0 or more; got {value!r}"
        if not wrong and self.max is not None and self.least > self.max:
            yield f"has min above max: {self.least} > {self.max}"


@dataclass(frozen=True)
class Fresh(Check):
    within: str | float = ""
    as_of: datetime.datetime | None = None

    @property
    def meaning(self) -> str:
        return f"the newest {self.columns[0]} is at most {self.within} old"

    def expectation(self) -> Expectation:
        from .expectations import ExpectNoRowToFail

        column = quoted(self.columns[0])
        now = self.as_of or datetime.datetime.now(datetime.timezone.utc)
        oldest = literal(now - datetime.timedelta(seconds=duration(self.within)))
        return ExpectNoRowToFail(failing=f"if(max({column}) < {oldest}, count({column}), 0)", **self._labels)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        try:
            duration(self.within)
        except ValueError as wrong:
            yield f"within must be {wrong}; got {self.within!r}"
        if self.as_of is not None and getattr(self.as_of, "tzinfo", None) is None:
            yield f"as_of needs a time zone, such as datetime.timezone.utc; got {self.as_of!r}"

    def misfits(self, df: DataFrame) -> Iterator[str]:
        return unlike_column(df.schema[self.columns[0]], datetime.date.min)

    def sample(self, df: DataFrame, rows: int) -> DataFrame | None:
        column = quoted(self.columns[0])
        return df.agg(sf.max(column).alias(self.columns[0]))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

"""What every check has in common.

A *row check* has a predicate that is true, false or null for each row; null counts as passed, as in SQL's ``CHECK``.
A *set check* judges all rows together (uniqueness, number, age) and so cannot put a single row aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .sql import quoted

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

_SHOWN_COLUMNS = 8


@dataclass(frozen=True)
class Check:
    """What every check has: a ``name``, unique among its :class:`Checks`, and the ``columns`` that it reads."""

    name: str
    columns: tuple[str, ...] = ()

    is_row_check: ClassVar[bool] = False

    @property
    def meaning(self) -> str:
        """One plain sentence for the report."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """What is wrong with the arguments, as far as can be told without data."""
        for column in self.columns:
            if not isinstance(column, str) or not column:
                yield f"a column is given by its name; got {column!r}"
            elif "`" in column:
                yield "has a backtick in a column's name, which Great Expectations cannot read; rename the column"

    def misfits(self, df: DataFrame) -> Iterator[str]:
        """What does not fit ``df``, whose columns are known to exist."""
        return iter(())

    def expectation(self) -> Expectation:
        """The same check for Great Expectations."""
        raise NotImplementedError

    def sample(self, df: DataFrame, rows: int) -> DataFrame | None:
        """A few rows that show what is wrong; None where no row could."""
        return None

    @property
    def _labels(self) -> dict[str, Any]:
        return {"description": self.meaning, "meta": {"check": self.name}}


@dataclass(frozen=True)
class RowCheck(Check):
    """A check of single rows."""

    is_row_check: ClassVar[bool] = True

    @property
    def predicate(self) -> str:
        """Spark SQL that is true or null for a good row."""
        raise NotImplementedError

    @property
    def failed(self) -> str:
        """Spark SQL that is true for a row that fails, and false or null for every other."""
        return f"NOT ({self.predicate})"

    def expectation(self) -> Expectation:
        from .expectations import ExpectNoRowToFail

        return ExpectNoRowToFail(failing=f"count_if({self.failed})", **self._labels)

    def sample(self, df: DataFrame, rows: int) -> DataFrame | None:
        shown = [*self._read_columns(df.columns), *df.columns]
        columns = list(dict.fromkeys(shown))[:_SHOWN_COLUMNS]
        return df.where(sf.expr(self.failed)).select(*map(quoted, columns)).limit(rows)

    def _read_columns(self, existing: Sequence[str]) -> Sequence[str]:
        return self.columns

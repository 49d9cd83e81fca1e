"""The checks of single rows. :mod:`.define` describes their arguments."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .check import RowCheck, kind_of_value, literal, not_comparable, quoted, unlike_column

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation


@dataclass(frozen=True)
class NotNull(RowCheck):
    @property
    def meaning(self) -> str:
        return f"{self.columns[0]} is never null"

    @property
    def predicate(self) -> str:
        return f"{quoted(self.columns[0])} IS NOT NULL"

    def expectation(self) -> Expectation:
        from .expectations import ExpectColumnValuesToNotBeNull

        return ExpectColumnValuesToNotBeNull(column=self.columns[0], **self._labels)


@dataclass(frozen=True)
class Between(RowCheck):
    """Not Great Expectations' own check: that turns a ``datetime`` bound into a date and a decimal or large integer into
    a float, and lets NaN pass a lower bound, because Spark orders NaN above every number."""

    low: Any = None
    high: Any = None

    @property
    def meaning(self) -> str:
        if self.low is None or self.high is None:
            side, bound = ("at most", self.high) if self.low is None else ("at least", self.low)
            return f"{self.columns[0]} is {side} {bound}"
        return f"{self.columns[0]} is between {self.low} and {self.high}"

    @property
    def predicate(self) -> str:
        column = quoted(self.columns[0])
        parts = [f"{column} >= {literal(self.low)}"] if self.low is not None else []
        parts += [f"{column} <= {literal(self.high)}"] if self.high is not None else []
        parts += [f"NOT isnan({column})"] if kind_of_value(self._bounds[0]) == "number" else []
        return "(" + " AND ".join(parts) + ")"

    @property
    def _bounds(self) -> list[Any]:
        return [bound for bound in (self.low, self.high) if bound is not None]

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self._bounds:
            yield "gives neither low nor high; give one or both"
        elif wrong := not_comparable(self._bounds):
            yield wrong
        elif any(isinstance(bound, float) and math.isnan(bound) for bound in self._bounds):
            yield "has NaN as a bound, and nothing lies on either side of it"
        elif len(self._bounds) == 2:
            yield from self._order()

    def _order(self) -> Iterator[str]:
        try:
            if self.low > self.high:
                yield f"has low above high: {self.low} > {self.high}; exchange them"
        except TypeError:
            yield f"cannot compare {self.low!r} with {self.high!r}; give both of one type, with or without zone"

    def misfits(self, df: DataFrame) -> Iterator[str]:
        return unlike_column(df.schema[self.columns[0]], self._bounds[0])


@dataclass(frozen=True)
class InSet(RowCheck):
    values: tuple[Any, ...] = ()

    @property
    def meaning(self) -> str:
        return f"{self.columns[0]} is one of {listed(self.values)}"

    @property
    def predicate(self) -> str:
        return f"{quoted(self.columns[0])} IN ({', '.join(map(literal, self.values))})"

    def expectation(self) -> Expectation:
        if any(isinstance(value, datetime.datetime) for value in self.values):
            # Great Expectations would read a datetime without zone in the zone of this process, not of the session.
            return super().expectation()
        from .expectations import ExpectColumnValuesToBeInSet

        return ExpectColumnValuesToBeInSet(column=self.columns[0], value_set=list(self.values), **self._labels)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.values:
            yield "needs a list of at least one value"
        elif None in self.values:
            yield "has None among its values; null always passes, and not_null is the check that refuses it"
        elif wrong := not_comparable(self.values):
            yield wrong

    def misfits(self, df: DataFrame) -> Iterator[str]:
        return unlike_column(df.schema[self.columns[0]], self.values[0])


@dataclass(frozen=True)
class Matches(RowCheck):
    """The whole text must match, so that a forgotten anchor does not let ``AA, and anything`` pass as ``AA``."""

    pattern: str = ""

    @property
    def meaning(self) -> str:
        return f"{self.columns[0]} matches {self.pattern} from its first to its last character"

    @property
    def _anchored(self) -> str:
        return rf"\A(?:{self.pattern})\z"

    @property
    def predicate(self) -> str:
        return f"{quoted(self.columns[0])} RLIKE {literal(self._anchored)}"

    def expectation(self) -> Expectation:
        from .expectations import ExpectColumnValuesToMatchRegex

        return ExpectColumnValuesToMatchRegex(column=self.columns[0], regex=self._anchored, **self._labels)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not isinstance(self.pattern, str) or not self.pattern:
            yield f"needs a regular expression; got {self.pattern!r}"

    def misfits(self, df: DataFrame) -> Iterator[str]:
        yield from unlike_column(df.schema[self.columns[0]], "")
        try:  # Alone and as used: alone refuses "a)(b", which the anchors' parentheses would make valid.
            for pattern in (self.pattern, self._anchored):
                df.sparkSession.sql(f"SELECT '' RLIKE {literal(pattern)}").collect()
        except PySparkException as error:
            yield f"{self.pattern!r} is no regular expression for Java, which Spark uses: {_first_line(error)}"


@dataclass(frozen=True)
class Expression(RowCheck):
    sql: str = ""

    @property
    def meaning(self) -> str:
        return f"{self.sql} holds"

    @property
    def predicate(self) -> str:
        return f"({self.sql}\n)"  # The line break ends a comment that the expression may end with.

    def problems(self) -> Iterator[str]:
        if not isinstance(self.sql, str) or not self.sql.strip():
            yield f"needs a predicate in Spark SQL, such as 'amount > 0'; got {self.sql!r}"

    def misfits(self, df: DataFrame) -> Iterator[str]:
        try:
            # Spark Connect analyses a plan only for its schema, and takes that of a bare filter from its input.
            df.where(sf.expr(self.predicate)).select(sf.lit(1)).schema  # noqa: B018
        except PySparkException as error:
            yield f"is no predicate over these columns: {_first_line(error)}"

    def _read_columns(self, existing: Sequence[str]) -> Sequence[str]:
        words = set(re.findall(r"\w+", self.sql.lower()))
        return [column for column in existing if column.lower() in words]


def listed(values: Sequence[Any], width: int = 60) -> str:
    """The values on one line, or their number if the line is too long."""
    text = ", ".join(map(str, values))
    return text if len(text) <= width else f"{len(values)} values"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].partition(" SQLSTATE")[0]

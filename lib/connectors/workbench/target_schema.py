"""The target of a pipeline of many tables: a schema, shown and judged table by table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..ground.errors import Misconfigured, Problem
from .versions import history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..quality import Check, Report
    from ..systems.delta.merge_all import MergedTable

_ANY: Final = "*"
"""Stands for all tables without rules of their own."""


@dataclass(frozen=True)
class TargetSchema:
    """Tables that ``merge_all`` or ``fan_out`` writes to the schema ``name``, or to the folder; ``checks`` are their rules."""

    name: str
    checks: str

    def tables(self, spark: SparkSession) -> DataFrame:
        """A row for each table: how many ``rows`` it has, how many ``changes`` it has got, and when the ``newest`` batch."""
        counts = []
        for table in self._merged(spark):
            address = {"path" if table.place.is_path else "table": table.place.location}
            newest = history(spark, address, 1).collect()[0]["timestamp"]
            counts.append((table.name, table.rows(spark).count(), table.changes, newest))
        return spark.createDataFrame(counts, "table string, rows long, changes long, newest timestamp")

    def alterations(self, spark: SparkSession) -> DataFrame:
        """The tables that came, and how their columns have changed; the newest first."""
        from ..systems.delta.merge_all import alterations

        self._merged(spark)
        return alterations(spark, self.name)

    def verdicts(self, spark: SparkSession) -> list[Report]:
        """The verdict on each table: its key is there and unique, and its rules hold, or those of ``*`` where it has none.

        A table may be empty, unless a rule ``row_count`` says otherwise. Raises :class:`Misconfigured` for rules of a table
        that is not there.
        """
        from ..quality import Checks, rules_by_table

        tables, checks = self._merged(spark), rules_by_table(self.checks)
        names = [table.name for table in tables]
        if missing := sorted(checks.keys() - {*names, _ANY}):
            text = f"has rules for {', '.join(missing)}, which is no table of {self.name}. There are: {', '.join(names)}."
            raise _wrong("checks", text)
        own = {name: found.checks for name in names if (found := checks.get(name, checks.get(_ANY)))}
        return [
            Checks(_with_keys(own.get(table.name, ()), table.keys(spark))).validate(table.rows(spark), name=table.name)
            for table in tables
        ]

    def folders(self) -> list[str]:
        """The folders of the tables and of what is kept beside them, for a target that is a folder."""
        from pyspark.sql import SparkSession

        from ..systems.delta.merge_all import locations

        return [location for location in locations(SparkSession.active(), self.name) if Path(location).exists()]

    def _merged(self, spark: SparkSession) -> Sequence[MergedTable]:
        from ..systems.delta.merge_all import merged_tables

        if tables := merged_tables(spark, self.name):
            return tables
        raise _wrong("target", f"is {self.name}, to which no batch was written. Run the pipeline first.")


def _with_keys(checks: Sequence[Check], keys: Sequence[str]) -> list[Check]:
    """``checks``, and those of the ``keys``."""
    from ..quality import not_null, row_count, unique
    from ..quality.set_checks import RowCount

    of_keys = [*map(not_null, keys), *([unique(*keys)] if keys else [])]
    count = [] if any(isinstance(check, RowCount) for check in checks) else [row_count(min=0)]
    return list(dict.fromkeys([*count, *of_keys, *checks]))


def _wrong(parameter: str, text: str) -> Misconfigured:
    return Misconfigured("the pipeline", [Problem(parameter, text)])

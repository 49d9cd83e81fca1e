"""What a pipeline and its slices have recorded of their batches, in the folders of their state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .versions import count_until, newest_versions, rows_at

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_SLICES: Final = "slices"
"""The folder of the state of slices, in that of their pipeline."""


def slice_folder(folder: str, name: str) -> str:
    """The folder of the state of the slice ``name``, of a pipeline whose state is in ``folder``."""
    return f"{folder}/{_SLICES}/{name}"


def letter_count(spark: SparkSession, folder: str, condition: str = "true") -> int:
    """The number of dead letters in ``folder`` for which ``condition`` is true."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(folder).where(condition).count()
    except AnalysisException as none:  # the first letter makes the folder
        if none.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        return 0


class BatchRecord:
    """The complete batches of a pipeline and of its slices, as their tables ``counts`` have them when this is made.

    What is counted by its methods is counted up to these batches. ``folder`` is that of the pipeline's state.
    """

    read: int
    """The rows of all batches."""
    good: int
    """How many of these rows passed the checks."""
    newest: dict[str, Row | None]
    """The newest batch, if a batch wrote them, by the folders of those that have recorded any."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        from pyspark.errors import AnalysisException

        self._spark, self._folder = spark, folder
        self.read, self.good, self.newest = 0, 0, {}
        for state in self._folders:
            table = {"path": f"{state}/counts"}
            try:
                version, self.newest[state] = newest_versions(spark, table)
            except AnalysisException:
                continue
            counts = rows_at(spark, table, version).selectExpr("sum(rows)", "sum(good)").collect()[0]
            self.read, self.good = self.read + (counts[0] or 0), self.good + (counts[1] or 0)
        self._last = self._last_batches()

    def letters(self) -> int:
        """The number of dead letters of the sources."""
        return sum(letter_count(self._spark, f"{state}/letters") for state in self.newest)

    def delivered(self, table: Mapping[str, str]) -> int:
        """The number of rows in the target, a Delta ``table``."""
        return count_until(self._spark, table, self._last, self._pending())

    def quarantined(self) -> int:
        """The number of rows in quarantine."""
        return sum(count_until(self._spark, {"path": f"{state}/quarantine"}, self._last) for state in self.newest)

    def _last_batches(self) -> dict[str, int]:
        """The number of the last recorded batch of each query: -1 for one that has begun and recorded none."""
        last = {row.query: int(row.batch) for row in self.newest.values() if row is not None}
        for state, checkpoint in self._checkpoints.items():
            if state not in self.newest:
                last[_query(checkpoint)] = -1
        return last

    def _pending(self) -> set[str]:
        """The queries that have planned a batch after their last recorded one: the target may have its rows."""
        pending = set()
        for checkpoint in self._checkpoints.values():
            planned = (int(file.name) for file in Path(checkpoint, "offsets").glob("*") if file.name.isdecimal())
            if max(planned, default=-1) > self._last.get(query := _query(checkpoint), -1):
                pending.add(query)
        return pending

    @property
    def _checkpoints(self) -> dict[str, Path]:
        """The checkpoints that there are, by the folders of the pipeline and of its slices."""
        checkpoints = {state: Path(state, "checkpoint") for state in self._folders}
        return {state: checkpoint for state, checkpoint in checkpoints.items() if (checkpoint / "metadata").exists()}

    @property
    def _folders(self) -> list[str]:
        """The folders of the state of the pipeline and of its slices."""
        return [self._folder, *map(str, sorted(Path(slice_folder(self._folder, "")).glob("*")))]


def _query(checkpoint: Path) -> str:
    """The id of the query whose ``checkpoint`` this is."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])

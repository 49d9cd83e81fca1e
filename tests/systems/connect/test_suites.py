"""Connectors of Connect's model pass the cases of the kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing import SinkContext, SourceContext
from connectors.testing.driver import SparkQuery
from connectors.testing.epoch_suite import EpochSourceSuite
from connectors.testing.faults import FailureInjector, Point
from connectors.testing.spark_suites import ROWS, SparkSinkSuite, SparkSourceSuite

from .contexts import FileSinkContext, LinesContext, OffsetSinkContext, TablesContext


class WithoutTimes(SparkSourceSuite):
    """Rows are compared without the time at which they were read."""

    def _stream(self, spark: Any, system: SourceContext, folder: Path, schema: Any = None, **options: str) -> None:
        typed = {**system.options(), **system.limit, **options}
        rows = spark.readStream.format("connectors.connect").options(**typed).load().drop("timestamp")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()


class TestLines(EpochSourceSuite):
    context = LinesContext


@pytest.mark.soak
class TestTables(EpochSourceSuite):
    context = TablesContext


class TestLinesOnSpark(WithoutTimes):
    context = LinesContext


@pytest.mark.soak
class TestTablesOnSpark(WithoutTimes):
    context = TablesContext


class TestFileSinkOnSpark(SparkSinkSuite):
    context = FileSinkContext


class TestOffsetSinkOnSpark(SparkSinkSuite):
    context = OffsetSinkContext

    @pytest.mark.essential
    def test_no_row_and_no_letter_is_lost_where_a_task_dies_behind_the_commit_of_its_target(
        self, spark: Any, target: SinkContext, query: SparkQuery
    ) -> None:
        injector = FailureInjector(query.faults)
        injector.arm(Point.TASK_STAGED)
        query.run(spark)
        assert injector.struck() == 1
        target.expect(ROWS)

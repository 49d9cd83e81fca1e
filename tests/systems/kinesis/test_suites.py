"""Kinesis passes the cases of the kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing import EpochSourceSuite, SourceContext
from connectors.testing.spark_suites import SparkSourceSuite

from .contexts import FanOutContext, StreamContext

pytestmark = pytest.mark.server


class TestStream(EpochSourceSuite):
    context = StreamContext


@pytest.mark.soak
class TestFanOut(EpochSourceSuite):
    context = FanOutContext


@pytest.mark.soak
class TestStreamOnSpark(SparkSourceSuite):
    context = StreamContext

    def _stream(self, spark: Any, system: SourceContext, folder: Path, schema: Any = None, **options: str) -> None:
        typed = {**system.options(), **system.limit, **options}
        rows = spark.readStream.format("connectors.kinesis").options(**typed).load().drop("approximateArrivalTimestamp")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()

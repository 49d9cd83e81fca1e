"""Pub/Sub passes the cases of the kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing import QueueSuite, SourceContext
from connectors.testing.spark_suites import SparkSourceSuite

from .contexts import SubscriptionContext

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:The return_immediately flag:DeprecationWarning")]


@pytest.mark.soak  # the epoch log's cases run on the doubles and on Redis in each run
class TestSubscription(QueueSuite):
    context = SubscriptionContext


@pytest.mark.soak
class TestSubscriptionOnSpark(SparkSourceSuite):
    context = SubscriptionContext

    def _stream(self, spark: Any, system: SourceContext, folder: Path, schema: Any = None, **options: str) -> None:
        typed = {**system.options(), **system.limit, **options}
        rows = spark.readStream.format("connectors.pubsub").options(**typed).load().drop("publishTime")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()

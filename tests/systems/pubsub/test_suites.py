"""Pub/Sub passes the cases of the kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing import QueueSuite, SourceContext
from connectors.testing.spark_suites import SparkSourceSuite

from .contexts import SubscriptionContext

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:The return_immediately flag:DeprecationWarning")]


class TestSubscription(QueueSuite):
    context = SubscriptionContext
    short_form = (
        QueueSuite.test_everything_is_read_once,
        QueueSuite.test_a_restart_after_each_batch_loses_and_doubles_nothing,
        QueueSuite.test_a_replay_reads_the_same_rows_with_another_parallelism_and_more_data,
        QueueSuite.test_a_frozen_query_ends_with_what_was_there,
        QueueSuite.test_a_run_that_ends_at_a_point_of_an_epoch_loses_and_doubles_nothing,
        QueueSuite.test_a_released_message_comes_again,
        QueueSuite.test_an_acknowledged_message_does_not_come_again_and_may_be_acknowledged_twice,
        QueueSuite.test_a_leased_message_comes_to_nobody_else,
        QueueSuite.test_a_message_that_comes_again_before_its_acknowledgement_counts_once,
    )


@pytest.mark.soak
class TestSubscriptionOnSpark(SparkSourceSuite):
    context = SubscriptionContext

    def _stream(self, spark: Any, system: SourceContext, folder: Path, schema: Any = None, **options: str) -> None:
        typed = {**system.options(), **system.limit, **options}
        rows = spark.readStream.format("connectors.pubsub").options(**typed).load().drop("publishTime")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()

"""Sink and source pass every case of the kit, which log in by a connection string. The code under them is that of Kafka.

The server is Kafka's broker: Event Hubs speaks its protocol, and there is no Event Hubs to start on a machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from connectors.systems.event_hubs import EventHubsSink, EventHubsSource
from connectors.testing import SinkSuite, SourceSuite
from connectors.testing.servers.kafka_server import CONNECTION_STRING
from tests.systems.kafka import sink_contexts, source_contexts

pytestmark = pytest.mark.server


def with_login(server: Any, options: dict[str, str], *without: str) -> dict[str, str]:
    """``options`` of Kafka as those of an event hub."""
    settings = {"kafka.bootstrap.servers": server.sasl_bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT"}
    others = {name: value for name, value in options.items() if name not in without}
    return {**others, "connectionString": CONNECTION_STRING, **settings}


class SourceContext(source_contexts.KafkaContext):
    source = EventHubsSource

    def options(self) -> dict[str, str]:
        return {**with_login(self.topic.server, super().options(), "subscribe"), "eventHub": self.topic.name}


class SinkContext(sink_contexts.AtLeastOnceContext):
    sink = EventHubsSink

    def options(self) -> dict[str, str]:
        return {**with_login(self.server, super().options(), "topic"), "eventHub": self.topic}


class TransactionalSinkContext(sink_contexts.KafkaContext):
    sink = EventHubsSink

    def options(self) -> dict[str, str]:
        return {**with_login(self.server, super().options(), "topic"), "eventHub": self.topic}


class TestSource(SourceSuite):
    context = SourceContext
    short_form = (
        SourceSuite.test_a_restart_after_each_batch_loses_and_doubles_nothing,
        SourceSuite.test_a_replay_cuts_the_same_splits_with_another_parallelism,
        SourceSuite.test_the_start_does_not_move,
        SourceSuite.test_what_the_system_has_lost_stops_the_query,
    )


class TestSink(SinkSuite):
    context = SinkContext
    short_form = (
        SinkSuite.test_the_declared_guarantee_is_the_one_that_is_computed,
        SinkSuite.test_a_killed_run_is_finished_by_the_next_ones,
    )


class TestTransactionalSink(SinkSuite):
    context = TransactionalSinkContext
    short_form = (
        SinkSuite.test_the_declared_guarantee_is_the_one_that_is_computed,
        SinkSuite.test_a_killed_run_is_finished_by_the_next_ones,
        SinkSuite.test_a_commit_that_raises_is_carried_through_or_repeated,
        SinkSuite.test_a_zombie_that_finishes_late_changes_nothing,
        SinkSuite.test_of_two_runs_of_one_query_at_the_same_time_one_wins,
        SinkSuite.test_an_older_checkpoint_is_refused,
    )

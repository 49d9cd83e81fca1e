"""Sink and source pass every case of the kit, let in by a connection string. The code under them is that of Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.systems.event_hubs import EventHubsSink, EventHubsSource
from connectors.testing import SinkSuite, SourceSuite
from connectors.testing.servers.kafka_server import CONNECTION_STRING
from tests.systems.kafka import sink_contexts, source_contexts

pytestmark = pytest.mark.soak


def let_in(server: Any, options: dict[str, str], *without: str) -> dict[str, str]:
    """``options`` of Kafka as those of an event hub."""
    there = {"kafka.bootstrap.servers": server.sasl_bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT"}
    kept = {name: value for name, value in options.items() if name not in without}
    return {**kept, "connectionString": CONNECTION_STRING, **there}


class SourceContext(source_contexts.KafkaContext):
    source = EventHubsSource

    def options(self) -> dict[str, str]:
        return {**let_in(self.topic.server, super().options(), "subscribe"), "eventHub": self.topic.name}


class SinkContext(sink_contexts.AtLeastOnceContext):
    sink = EventHubsSink

    def options(self) -> dict[str, str]:
        return {**let_in(self.server, super().options(), "topic"), "eventHub": self.topic}


class TransactionalSinkContext(sink_contexts.KafkaContext):
    sink = EventHubsSink

    def options(self) -> dict[str, str]:
        return {**let_in(self.server, super().options(), "topic"), "eventHub": self.topic}


class TestSource(SourceSuite):
    context = SourceContext


class TestSink(SinkSuite):
    context = SinkContext


class TestTransactionalSink(SinkSuite):
    context = TransactionalSinkContext

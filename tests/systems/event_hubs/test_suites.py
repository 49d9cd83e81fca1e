"""Sink and source pass every case of the kit, which log in by a connection string. The code under them is that of Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.systems.event_hubs import EventHubsSink, EventHubsSource
from connectors.testing import SinkSuite, SourceSuite
from connectors.testing.servers.kafka_server import CONNECTION_STRING
from tests.systems.kafka import sink_contexts, source_contexts

pytestmark = pytest.mark.soak


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


class TestSink(SinkSuite):
    context = SinkContext


class TestTransactionalSink(SinkSuite):
    context = TransactionalSinkContext

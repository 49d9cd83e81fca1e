"""``connectors.event_hubs``: Azure Event Hubs by its Kafka protocol. It needs no more than a connection string."""

from __future__ import annotations

from .sink import EventHubsSink
from .source import EventHubsSource

__all__ = ["EventHubsSink", "EventHubsSource"]

"""``connectors.kafka``: topics of Kafka, read and written exactly once."""

from __future__ import annotations

from .sink import KafkaSink
from .source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]

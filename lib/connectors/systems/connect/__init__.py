"""``connectors.connect``: connectors of Kafka Connect's model, as a source and as a sink."""

from .sink import ConnectSink
from .source import ConnectSource

__all__ = ["ConnectSink", "ConnectSource"]

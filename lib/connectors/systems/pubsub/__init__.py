"""``connectors.pubsub``: messages of Google Cloud Pub/Sub, received from a subscription and published to a topic."""

from .sink import PubSubSink
from .source import PubSubSource

__all__ = ["PubSubSink", "PubSubSource"]

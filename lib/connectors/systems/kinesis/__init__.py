"""``connectors.kinesis``: the records of a stream of Amazon Kinesis, over its reshards, and rows as records of a stream."""

from .sink import KinesisSink
from .source import KinesisSource

__all__ = ["KinesisSink", "KinesisSource"]

"""``connectors.redis``: Redis Streams as a source; hashes, values, lists, sorted sets, streams and channels as a sink."""

from .sink import RedisSink
from .source import RedisSource

__all__ = ["RedisSink", "RedisSource"]

"""``connectors.redis``: Redis Streams as a source."""

from .source import RedisSource

__all__ = ["RedisSource"]

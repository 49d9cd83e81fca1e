"""``connectors.hybrid``: sources one after the other, as one stream."""

from .source import HybridSource

__all__ = ["HybridSource"]

"""``connectors.http``: a declared REST API as a source, and requests to one as a sink."""

from .sink import HttpSink
from .source import HttpSource

__all__ = ["HttpSink", "HttpSource"]

"""``connectors.file_stream``: Kafka Connect's pair of file connectors, lines in and lines out."""

from __future__ import annotations

from .sink import FileStreamSink
from .source import FileStreamSource

__all__ = ["FileStreamSink", "FileStreamSource"]

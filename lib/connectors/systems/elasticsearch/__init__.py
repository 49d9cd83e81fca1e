"""``connectors.elasticsearch``: documents of Elasticsearch and OpenSearch, written by ``_bulk`` and read shard by shard."""

from __future__ import annotations

from .sink import ElasticsearchSink
from .source import ElasticsearchSource

__all__ = ["ElasticsearchSink", "ElasticsearchSource"]

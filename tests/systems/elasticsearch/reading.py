"""An index, read as a batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.systems.elasticsearch import ElasticsearchSource

from .writing import QUICK


def source_of(hosts: str, index: str, **options: Any) -> ElasticsearchSource:
    """The source of an index, with short pauses."""
    source = ElasticsearchSource.of({"hosts": hosts, "index": index, **QUICK, **options})
    assert isinstance(source, ElasticsearchSource)
    return source


def read(source: ElasticsearchSource, schema: pa.Schema) -> list[dict[str, Any]]:
    """All rows of ``source``."""
    parts = Planner(source).whole()
    return [row for part in parts for batch in read_slice(source, part, schema) for row in batch.to_pylist()]

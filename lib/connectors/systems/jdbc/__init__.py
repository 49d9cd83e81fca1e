"""``connectors.jdbc``: tables of a database, read in balanced ranges, and written exactly once.

Spark's own JDBC writer appends in batches, at least once, and does not stream. This one stages the rows of a micro-batch and
moves them in one transaction. Its first statement writes the ledger row of the batch.
"""

from __future__ import annotations

from ..delta.fan_out import fan_out
from .dialects import register_dialect
from .ledger import DatabaseCommitter
from .sink import JdbcSink
from .source import JdbcSource

__all__ = ["DatabaseCommitter", "JdbcSink", "JdbcSource", "fan_out", "register_dialect"]

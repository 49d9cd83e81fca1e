"""``connectors.cassandra``: a table of Apache Cassandra as a batch, by token ranges, and rows into a table by its key."""

from .measure import measured_splits
from .sink import CassandraSink
from .source import CassandraSource

__all__ = ["CassandraSink", "CassandraSource", "measured_splits"]

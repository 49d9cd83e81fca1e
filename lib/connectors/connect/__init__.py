"""Kafka Connect's model on Spark: connectors, tasks, records, schemas and settings, in Python.

An author subclasses :class:`SourceConnector` and :class:`SourceTask`, or :class:`SinkConnector` and :class:`SinkTask`; a user
runs the class by ``spark.readStream.format("connectors.connect").option("config", …)``. :mod:`.host` is the seam between the
runtime and what runs the tasks.

There is no JDBC source here: ``connectors.jdbc`` with ``tables`` copies a whole database, and misses no row that is committed
after rows with later ids. For files there is ``connectors.file_stream``.
"""

from importlib import import_module
from typing import Any

from .config import ConfigDef, ConfigType, ConfigValue, Importance, between, non_empty, valid_string
from .connector import (
    ConnectorTransactionBoundaries,
    ErrantRecordReporter,
    ExactlyOnceSupport,
    SinkConnector,
    SinkTask,
    SourceConnector,
    SourceTask,
    TopicPartition,
    TransactionContext,
    group_partitions,
)
from .converters import Converter, RecordConverter
from .data import Field, Schema, SchemaBuilder, Struct, Type, require_schema
from .errors import (
    ConfigException,
    ConnectException,
    DataException,
    RetriableException,
    SchemaBuilderException,
    SchemaException,
)
from .offsets import OffsetStorageReader
from .records import Header, Headers, RecordMetadata, SinkRecord, SourceBatch, SourceRecord

__all__ = [
    "ConfigDef",
    "ConfigException",
    "ConfigType",
    "ConfigValue",
    "ConnectException",
    "ConnectorTransactionBoundaries",
    "Converter",
    "DataException",
    "ErrantRecordReporter",
    "ExactlyOnceSupport",
    "Field",
    "Header",
    "Headers",
    "Importance",
    "OffsetStorageReader",
    "RecordConverter",
    "RecordMetadata",
    "RetriableException",
    "Schema",
    "SchemaBuilder",
    "SchemaBuilderException",
    "SchemaException",
    "SinkConnector",
    "SinkRecord",
    "SinkTask",
    "SourceBatch",
    "SourceConnector",
    "SourceRecord",
    "SourceTask",
    "Struct",
    "TopicPartition",
    "TransactionContext",
    "Type",
    "between",
    "compare",
    "group_partitions",
    "merge",
    "merge_all",
    "non_empty",
    "require_schema",
    "snapshot",
    "valid_string",
]


def __getattr__(name: str) -> Any:
    """``compare``, ``merge``, ``merge_all`` and ``snapshot``, which are of Delta and so no part of this layer."""
    if name in ("compare", "merge", "merge_all", "snapshot"):
        return getattr(import_module(f"connectors.systems.delta.{name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

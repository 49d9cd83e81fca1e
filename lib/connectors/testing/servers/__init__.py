"""Real servers for tests and notebooks: from package registries, on loopback, without root or docker.

A new server is a subclass of :class:`Server` and a line in this module. Its attribute ``required`` says whether every
machine must have it.
"""

from .api_service import ApiService
from .base import HOST, Server, Unavailable, shared_server
from .cassandra_server import CassandraServer
from .databases import MariaDbServer, MySqlServer, OpenSearchServer, PostgresServer, RedisServer
from .document_service import DocumentService
from .dynamodb_server import DynamoDbServer
from .kafka_server import KafkaServer
from .kinesis_server import KinesisServer, KinesisStreams
from .pubsub_server import PubSubServer
from .queue_service import QueueService
from .recorded_api import RecordedApi
from .schema_registry import SchemaRegistry
from .spark_servers import ConnectServer
from .storages import AzuriteServer, GcsServer, HdfsServer, MotoServer

__all__ = [
    "HOST",
    "ApiService",
    "AzuriteServer",
    "CassandraServer",
    "ConnectServer",
    "DocumentService",
    "DynamoDbServer",
    "GcsServer",
    "HdfsServer",
    "KafkaServer",
    "KinesisServer",
    "KinesisStreams",
    "MariaDbServer",
    "MotoServer",
    "MySqlServer",
    "OpenSearchServer",
    "PostgresServer",
    "PubSubServer",
    "QueueService",
    "RecordedApi",
    "RedisServer",
    "SchemaRegistry",
    "Server",
    "Unavailable",
    "shared_server",
]

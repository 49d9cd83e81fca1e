"""Real servers for tests and notebooks: from package registries, on loopback, without root or docker."""

from .base import HOST, Server, Unavailable
from .clouds import AzuriteServer, GcsServer, MotoServer
from .databases import MariaDbServer, PostgresServer, RedisServer
from .hdfs_server import HdfsServer
from .http_service import HttpService
from .kafka_server import KafkaServer
from .opensearch_server import OpenSearchServer
from .schema_registry import SchemaRegistry
from .spark_servers import ConnectServer

__all__ = [
    "HOST",
    "AzuriteServer",
    "ConnectServer",
    "GcsServer",
    "HdfsServer",
    "HttpService",
    "KafkaServer",
    "MariaDbServer",
    "MotoServer",
    "OpenSearchServer",
    "PostgresServer",
    "RedisServer",
    "SchemaRegistry",
    "Server",
    "Unavailable",
]

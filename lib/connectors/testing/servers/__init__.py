"""Real servers for tests and notebooks: from package registries, on loopback, without root or docker."""

from .azurite_server import AzuriteServer
from .base import HOST, Server, Unavailable
from .connect_server import ConnectServer
from .gcs_server import GcsServer
from .hdfs_server import HdfsServer
from .http_service import HttpService
from .kafka_server import KafkaServer
from .mariadb_server import MariaDbServer
from .moto_server import MotoServer
from .opensearch_server import OpenSearchServer
from .postgres_server import PostgresServer
from .redis_server import RedisServer
from .schema_registry import SchemaRegistry

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

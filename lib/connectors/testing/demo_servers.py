"""Demonstrations on servers of their own: brokers, streams, databases, stores and APIs."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from .demo import ROWS, Demo, Files
from .scratch import SCRATCH, Order, Scratch, text_of
from .servers import (
    HOST,
    ApiService,
    CassandraServer,
    DynamoDbServer,
    KafkaServer,
    KinesisServer,
    MotoServer,
    OpenSearchServer,
    PostgresServer,
    PubSubServer,
    RedisServer,
    Server,
)
from .servers.kafka_server import CONNECTION_STRING

S = TypeVar("S", bound=Server)
_ACCOUNT: Final = {"accessKeyId": "test", "secretAccessKey": "test"}


class Served(Demo, Generic[S]):
    """A demonstration on a server of its own, of ``kind``."""

    kind: type[S]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = self.launched()
        if not self.forgets:
            self.server.folder = folder
        self.server.start()

    def launched(self) -> S:
        """The server, not yet started."""
        return self.kind()


class Kafka(Served[KafkaServer]):
    system = "kafka"
    kind = KafkaServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.bootstrap


class History(Kafka):
    """Files with the oldest orders, and a topic with all but the oldest of these."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.parameters = {"history": str(folder / "history")}

    def put(self, name: str, orders: Sequence[Order]) -> None:
        folder = self.folder / "history"
        if not folder.exists():
            folder.mkdir()
            third = len(orders) // 3
            Files(folder).put(name, orders[:third])
            orders = orders[third // 2 :]
        super().put(name, orders)


class EventHubs(Kafka):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = CONNECTION_STRING
        self.options = {"kafka.bootstrap.servers": self.server.sasl_bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT"}

    def scratch(self) -> Scratch:
        return SCRATCH["kafka"](self.server.bootstrap, {})


class Kinesis(Served[KinesisServer]):
    system = "kinesis"
    kind = KinesisServer
    forgets = ("source", "target")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "us-east-1"
        self.options = {"endpoint": self.server.url, **_ACCOUNT}


class Firehose(Served[MotoServer]):
    kind = MotoServer
    forgets = ("target",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "us-east-1"
        self.options = {"endpoint": self.server.url, **_ACCOUNT}

    def create(self, name: str) -> None:
        client = self.server.client("firehose")
        if name not in client.list_delivery_streams()["DeliveryStreamNames"]:
            self.server.bucket(name)
            bucket = {"RoleARN": "arn:aws:iam::123456789012:role/delivery", "BucketARN": f"arn:aws:s3:::{name}"}
            client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=bucket)


class PubSub(Served[PubSubServer]):
    kind = PubSubServer
    forgets = ("source", "target")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "demonstration"
        self.options = {"endpoint": self.server.endpoint}

    @contextlib.contextmanager
    def _clients(self) -> Iterator[tuple[Any, Any]]:
        import grpc  # type: ignore[import-untyped]
        from google.pubsub_v1 import PublisherClient, SubscriberClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        with grpc.insecure_channel(self.server.endpoint) as channel:
            subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
            yield PublisherClient(transport=PublisherGrpcTransport(channel=channel)), subscriber

    def create(self, name: str) -> None:
        project = f"projects/{self.address}"
        topic, subscription = f"{project}/topics/{name}", f"{project}/subscriptions/{name}"
        with self._clients() as (publisher, subscriber):
            if topic not in [found.name for found in publisher.list_topics(project=project)]:
                publisher.create_topic(name=topic)
                subscriber.create_subscription(name=subscription, topic=topic)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._clients() as (publisher, _):
            messages = [{"data": text_of(order).encode()} for order in orders]
            publisher.publish(topic=f"projects/{self.address}/topics/{name}", messages=messages)


class Redis(Served[RedisServer]):
    system = "redis"
    kind = RedisServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.url

    def launched(self) -> RedisServer:
        server = super().launched()
        server.append_only = True
        return server


class Changes(Served[PostgresServer]):
    """A PostgreSQL; each run also updates and deletes some orders.

    It keeps nothing where root runs it: then it is another user, who may not enter every folder.
    """

    system = "cdc"
    kind = PostgresServer
    forgets = ("source",) if hasattr(os, "getuid") and not os.getuid() else ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"{HOST}:{self.server.port}"

    def scratch(self) -> Scratch:
        return SCRATCH["cdc"](self.address, {"database_user": self.server.user})

    def rows(self, name: str) -> list[tuple[int, int]]:
        """The id and the price of each order that the table has now."""
        with self.connect() as database:
            return list(database.execute(f"SELECT id, cents FROM {name} ORDER BY id").fetchall())

    def connect(self) -> Any:
        """A connection to the database, which ends with its transaction."""
        import psycopg

        return psycopg.connect(self.server.url, user=self.server.user)


class WholeDatabase(Changes):
    """A PostgreSQL with a schema of several tables; ``returns`` is one that the second run finds new."""

    PUBLICATION: Final = "dbz_publication"

    def create(self, name: str) -> None:
        """The first orders make the schema."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self.connect() as database:
            if not database.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self.PUBLICATION,)).fetchone():
                database.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
                database.execute(f"CREATE PUBLICATION {self.PUBLICATION} FOR TABLES IN SCHEMA {name}")
        super().create(f"{name}.orders")
        super().put(f"{name}.orders", orders)
        first = orders[0]["id"]
        with self.connect() as database:
            columns = "city text PRIMARY KEY, orders bigint, cents bigint"
            database.execute(f"CREATE TABLE IF NOT EXISTS {name}.cities ({columns})")
            totals = f"SELECT city, count(*), sum(cents) FROM {name}.orders GROUP BY city"
            changed = "UPDATE SET orders = excluded.orders, cents = excluded.cents"
            database.execute(f"INSERT INTO {name}.cities {totals} ON CONFLICT (city) DO {changed}")
            columns = "order_id bigint, part int, cents bigint, PRIMARY KEY (order_id, part)"
            for table, each in (("payments", 1), *([("returns", 9)] if first else [])):
                database.execute(f"CREATE TABLE IF NOT EXISTS {name}.{table} ({columns})")
                rows = f"SELECT id, 1, cents FROM {name}.orders WHERE id >= {first} AND id % {each} = 0"
                database.execute(f"INSERT INTO {name}.{table} {rows}")


class OpenSearch(Served[OpenSearchServer]):
    system = "elasticsearch"
    kind = OpenSearchServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.url


class Restored(Served[S]):
    """A server that forgets; a file has all orders that it was given, so that the next one gets them, too."""

    forgets = ("target",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: set[str] = set()

    def feed(self, name: str = "orders", rows: int = ROWS) -> None:
        file, orders = self.folder / f"{name}.jsonl", self._new(name, rows)
        with file.open("a") as lines:
            lines.writelines(f"{json.dumps(order)}\n" for order in orders)
        self.create(name)
        self.put(name, orders if name in self._known else [json.loads(line) for line in file.read_text().splitlines()])
        self._known.add(name)


class Api(Restored[ApiService]):
    kind = ApiService

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.url

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self.server.add(name, [{**order, "updated_at": order["at"]} for order in orders])


class Service(Served[ApiService]):
    """A service that tells the name of a customer."""

    kind = ApiService

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"{self.server.url}/users/{{id}}"


class DynamoDb(Restored[DynamoDbServer]):
    system = "dynamodb"
    kind = DynamoDbServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "us-east-1"
        self.options = {"endpoint": self.server.url, **_ACCOUNT}


class Cassandra(Restored[CassandraServer]):
    kind = CassandraServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options = dict(self.server.options)
        self.address = str(self.options.pop("contactPoints"))

    def create(self, name: str) -> None:
        self.server.keyspace(name.split(".")[0])
        columns = "id bigint PRIMARY KEY, city text, cents bigint, at timestamp"
        self.server.client.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        insert = self.server.client.prepare(f"INSERT INTO {name} (id, city, cents, at) VALUES (?, ?, ?, ?)")
        for order in orders:
            row = {**order, "at": datetime.datetime.fromisoformat(order["at"])}
            self.server.client.execute(insert, [row[key] for key in ("id", "city", "cents", "at")])

"""Demonstrations: systems on this machine with sample orders, for pipelines that were given no address.

A demonstration keeps below a folder what its system can keep, so that a second run goes on where the first has ended.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from ..ground.errors import Misconfigured, Problem
from ..workbench.settings import VOLUMES, workdir
from .servers import (
    HOST,
    ApiService,
    CassandraServer,
    DynamoDbServer,
    HttpService,
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

Order = Mapping[str, Any]

ROWS: Final = 300
"""The orders that a demonstration gets at each run of a pipeline."""
COLUMNS: Final = "id long, city string, cents long, at timestamp"
_CITIES: Final = ("Bern", "Genève", "Zürich", "Lugano")
_FILE_CONNECTORS: Final = {"pluginPackages": "org.apache.kafka:connect-file:4.3.1"}
_ACCOUNT: Final = {"accessKeyId": "test", "secretAccessKey": "test"}


def demo(system: str, folder: str = "") -> Demo:
    """The demonstration of ``system``, a name such as ``kafka``. It runs as long as this process, its data stay in ``folder``.

    Raises :class:`Misconfigured` for another system, and :class:`~connectors.testing.servers.Unavailable`, or ``ImportError``,
    where this machine cannot have it.
    """
    if system not in _DEMOS:
        raise Misconfigured("workbench.demo", [Problem("system", f'must be {" or ".join(_DEMOS)}; got "{system}".')])
    place = Path(folder or workdir(f"{VOLUMES}main/connectors/data/demonstrations/{system}"))
    key = system, str(place)
    if key not in _running:
        place.mkdir(parents=True, exist_ok=True)
        _running[key] = _DEMOS[system](place)
    return _running[key]


class Demo(ABC):
    """A system with sample orders. ``address`` reaches it, together with ``options``."""

    address: str
    target_address = ""
    """The address as a target, where that is another one."""
    options: Mapping[str, str] = {}
    forgets: ClassVar[Sequence[str]] = ()
    """The ends of a pipeline, ``source`` or ``target``, at which the system has forgotten everything in the next process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_used = False
        """True once a pipeline of this process has used it."""

    def feed(self, name: str = "orders", rows: int = ROWS) -> None:
        """Adds ``rows`` orders to ``name``, a topic, stream, table, index or file, which is made where there is none.

        One of fifty has a price below zero. Where a system takes any bytes, one of a hundred is cut off.
        """
        self.create(name)
        self.put(name, self._new(name, rows))

    def _new(self, name: str, rows: int) -> Sequence[Order]:
        counter = self.folder / f"{name}.rows"
        first = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(first + rows))  # first: no two orders have one id, also after a kill
        return list(_orders(first, rows))

    def create(self, name: str) -> None:  # noqa: B027  # many systems make it with the first row
        """Makes ``name`` where it is missing."""

    @abstractmethod
    def put(self, name: str, orders: Sequence[Order]) -> None:
        """Adds orders."""


class _Served(Demo):
    """A demonstration on a server of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = self.launched()
        if not self.forgets:
            self.server.folder = folder
        self.server.start()

    @abstractmethod
    def launched(self) -> Any:
        """The server, not yet started."""


class _Kafka(_Served):
    server: KafkaServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.bootstrap

    def launched(self) -> Server:
        return KafkaServer()

    def create(self, name: str) -> None:
        from confluent_kafka.admin import AdminClient

        client: Any = AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})
        if name not in client.list_topics(timeout=30).topics:
            self.server.create_topic(name, 2)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.server.bootstrap, "log_level": 0})
        for order in orders:
            producer.produce(name, _text(order))
        producer.flush()


class _EventHubs(_Kafka):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = CONNECTION_STRING
        self.options = {"kafka.bootstrap.servers": self.server.sasl_bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT"}


class _Kinesis(_Served):
    server: KinesisServer
    forgets = ("source", "target")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "us-east-1"
        self.options = {"endpoint": self.server.url, **_ACCOUNT}

    def launched(self) -> Server:
        return KinesisServer()

    def create(self, name: str) -> None:
        if name not in self.server.client.list_streams()["StreamNames"]:
            self.server.create(name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self.server.put(name, [(str(order["city"]), _text(order).encode()) for order in orders])


class _Firehose(_Served):
    server: MotoServer
    forgets = ("target",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "us-east-1"
        self.options = {"endpoint": self.server.url, **_ACCOUNT}

    def launched(self) -> Server:
        return MotoServer()

    def create(self, name: str) -> None:
        client = self.server.client("firehose")
        if name not in client.list_delivery_streams()["DeliveryStreamNames"]:
            self.server.bucket(name)
            bucket = {"RoleARN": "arn:aws:iam::123456789012:role/delivery", "BucketARN": f"arn:aws:s3:::{name}"}
            client.create_delivery_stream(DeliveryStreamName=name, ExtendedS3DestinationConfiguration=bucket)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        raise NotImplementedError("a delivery stream is no source")


class _PubSub(_Served):
    server: PubSubServer
    forgets = ("source", "target")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "demonstration"
        self.options = {"endpoint": self.server.endpoint}

    def launched(self) -> Server:
        return PubSubServer()

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
            messages = [{"data": _text(order).encode()} for order in orders]
            publisher.publish(topic=f"projects/{self.address}/topics/{name}", messages=messages)


class _Redis(_Served):
    server: RedisServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.url

    def launched(self) -> Server:
        server = RedisServer()
        server.append_only = True
        return server

    def put(self, name: str, orders: Sequence[Order]) -> None:
        import redis

        with redis.Redis.from_url(self.address) as client, client.pipeline(transaction=False) as pipeline:
            for order in orders:
                pipeline.xadd(name, {"id": "?"} if _is_cut_off(order) else {key: str(value) for key, value in order.items()})
            pipeline.execute()


class _Files(Demo):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = str(folder / "*.parquet")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        times = [datetime.datetime.fromisoformat(order["at"]) for order in orders]
        rows = pa.Table.from_pylist([dict(order) for order in orders]).set_column(3, "at", pa.array(times))
        file = self.folder / f"{name}-{orders[0]['id']:09}.parquet"
        pq.write_table(rows, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)


class _Lines(Demo):
    is_ascii = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = str(folder / "*.jsonl")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.writelines(f"{_text(order, is_ascii=self.is_ascii)}\n" for order in orders)


class _Connector(_Lines):
    """Lines of files, by Kafka Connect's own connectors."""

    is_ascii = True  # the connector counts letters and goes on at that byte

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options = _FILE_CONNECTORS
        text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
        kind = "org.apache.kafka.connect.file.FileStream{}Connector"
        source = {"connector.class": kind.format("Source"), "file": str(folder / "orders.jsonl"), "topic": "orders"}
        target = {"connector.class": kind.format("Sink"), "file": str(folder / "copy.txt"), "name": "orders"}
        self.address, self.target_address = json.dumps({**source, **text}), json.dumps({**target, **text})


class _Database(Demo):
    """An SQLite file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "orders.db"
        self.address = f"jdbc:sqlite:{self.file}"

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with contextlib.closing(sqlite3.connect(self.file, timeout=60)) as database, database:
            columns = "id INTEGER PRIMARY KEY, city TEXT, cents INTEGER, at DATETIME"
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
            rows = [{**order, "at": order["at"].replace("T", " ")[:23]} for order in orders]
            database.executemany(f"INSERT INTO {name} VALUES (:id, :city, :cents, :at)", rows)


class Changes(_Served):
    """A PostgreSQL; each run also updates and deletes some orders.

    It keeps nothing where root runs it: then it is another user, who may not enter every folder.
    """

    server: PostgresServer
    forgets = ("source",) if hasattr(os, "getuid") and not os.getuid() else ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"{HOST}:{self.server.port}"

    def launched(self) -> Server:
        return PostgresServer()

    def put(self, name: str, orders: Sequence[Order]) -> None:
        import psycopg

        columns = "id bigint PRIMARY KEY, city text, cents bigint, at timestamptz"
        with psycopg.connect(self.server.url, user=self.server.user) as database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
            database.execute(f"UPDATE {name} SET cents = cents + 1 WHERE id % 10 = 3")
            database.execute(f"DELETE FROM {name} WHERE id % 10 = 4")
            rows = [{**order, "cents": abs(order["cents"])} for order in orders]
            insert = f"INSERT INTO {name} VALUES (%(id)s, %(city)s, %(cents)s, %(at)s)"
            database.cursor().executemany(insert, rows)

    def rows(self, name: str) -> list[tuple[int, int]]:
        """The id and the price of each order that the table has now."""
        import psycopg

        with psycopg.connect(self.server.url, user=self.server.user) as database:
            return database.execute(f"SELECT id, cents FROM {name} ORDER BY id").fetchall()


class _OpenSearch(_Served):
    server: OpenSearchServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.url

    def launched(self) -> Server:
        return OpenSearchServer()

    def create(self, name: str) -> None:
        from urllib.error import HTTPError

        kinds = {"id": "long", "city": "keyword", "cents": "long", "at": "date"}
        mapping = {"properties": {key: {"type": kind} for key, kind in kinds.items()}}
        with contextlib.suppress(HTTPError):  # it is there
            self.server.ask("PUT", f"/{name}", {"mappings": mapping})

    def put(self, name: str, orders: Sequence[Order]) -> None:
        for order in orders:
            self.server.ask("PUT", f"/{name}/_doc/{order['id']}", dict(order))
        self.server.ask("POST", f"/{name}/_refresh")


class _Restored(_Served):
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


class _Api(_Restored):
    server: ApiService

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = self.server.url

    def launched(self) -> Server:
        return ApiService()

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self.server.add(name, [{**order, "updated_at": order["at"]} for order in orders])


class _Service(_Served):
    """A service that tells the name of a customer."""

    server: HttpService

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"{self.server.url}/users/{{id}}"

    def launched(self) -> Server:
        return HttpService()

    def put(self, name: str, orders: Sequence[Order]) -> None:
        raise NotImplementedError("a service is no source")


class _DynamoDb(_Restored):
    server: DynamoDbServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "us-east-1"
        self.options = {"endpoint": self.server.url, **_ACCOUNT}

    def launched(self) -> Server:
        return DynamoDbServer()

    def create(self, name: str) -> None:
        client = self.server.client()
        if name not in client.list_tables()["TableNames"]:
            key = [{"AttributeName": "id", "KeyType": "HASH"}], [{"AttributeName": "id", "AttributeType": "N"}]
            client.create_table(TableName=name, KeySchema=key[0], AttributeDefinitions=key[1], BillingMode="PAY_PER_REQUEST")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        client = self.server.client()
        for order in orders:
            item = {key: {"N" if isinstance(value, int) else "S": str(value)} for key, value in order.items()}
            client.put_item(TableName=name, Item=item)


class _Cassandra(_Restored):
    server: CassandraServer

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options = dict(self.server.options)
        self.address = str(self.options.pop("contactPoints"))

    def launched(self) -> Server:
        return CassandraServer()

    def create(self, name: str) -> None:
        self.server.keyspace(name.split(".")[0])
        columns = "id bigint PRIMARY KEY, city text, cents bigint, at timestamp"
        self.server.client.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        insert = self.server.client.prepare(f"INSERT INTO {name} (id, city, cents, at) VALUES (?, ?, ?, ?)")
        for order in orders:
            row = {**order, "at": datetime.datetime.fromisoformat(order["at"])}
            self.server.client.execute(insert, [row[key] for key in ("id", "city", "cents", "at")])


class _Delta(Demo):
    """A table, as a folder."""

    address = ""

    def table(self, name: str) -> str:
        """The path of the table."""
        return str(self.folder / name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from pyspark.sql import SparkSession

        spark = SparkSession.active()
        rows = [(o["id"], o["city"], o["cents"], datetime.datetime.fromisoformat(o["at"])) for o in orders]
        frame = spark.createDataFrame(rows, COLUMNS)
        frame.coalesce(1).write.format("delta").mode("append").save(self.table(name))


def _orders(first: int, count: int) -> Iterator[Order]:
    chance = random.Random(first)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    for number in range(first, first + count):
        cents = -1 if number % 50 == 7 else chance.randrange(100, 20_000)
        yield {"id": number, "city": chance.choice(_CITIES), "cents": cents, "at": now}


def _is_cut_off(order: Order) -> bool:
    return bool(order["id"] % 100 == 13)


def _text(order: Order, *, is_ascii: bool = False) -> str:
    text = json.dumps(order, ensure_ascii=is_ascii)
    return text[:20] if _is_cut_off(order) else text


_running: dict[tuple[str, str], Demo] = {}
_DEMOS: Final[dict[str, type[Demo]]] = {
    "cassandra": _Cassandra,
    "cdc": Changes,
    "connect": _Connector,
    "delta": _Delta,
    "dynamodb": _DynamoDb,
    "elasticsearch": _OpenSearch,
    "event_hubs": _EventHubs,
    "files": _Files,
    "firehose": _Firehose,
    "http": _Api,
    "jdbc": _Database,
    "kafka": _Kafka,
    "kinesis": _Kinesis,
    "lines": _Lines,
    "pubsub": _PubSub,
    "redis": _Redis,
    "service": _Service,
}

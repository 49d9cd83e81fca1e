"""Systems of one's own as targets of pipelines: started outside, given by parameters, and harmed behind the pipeline's back."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.testing.servers import (
    CassandraServer,
    DynamoDbServer,
    KafkaServer,
    OpenSearchServer,
    PostgresServer,
    RedisServer,
)
from connectors.testing.servers.kafka_server import CONNECTION_STRING
from tests.servers import optional, required


class OwnTarget(ABC):
    """A target. ``parameters`` are those of the job; a harm is done to the order of a number."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def parameters(self) -> dict[str, str]: ...

    @abstractmethod
    def lose(self, number: int) -> None:
        """The target has the order no more."""

    @abstractmethod
    def spoil(self, number: int) -> None:
        """The order has a price below zero."""

    @property
    def doubling(self) -> Callable[[int], None] | None:
        """What gives the target the order twice; ``None`` where its key forbids that."""
        return None


class OwnSqlite(OwnTarget):
    name = "jdbc"

    def parameters(self) -> dict[str, str]:
        return {"url": f"jdbc:sqlite:{self.folder}/own.db", "target": "sales"}

    def _execute(self, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(self.folder / "own.db")) as database, database:
            assert database.execute(statement).rowcount == 1

    def lose(self, number: int) -> None:
        self._execute(f"DELETE FROM sales WHERE id = {number}")

    def spoil(self, number: int) -> None:
        self._execute(f"UPDATE sales SET cents = -5 WHERE id = {number}")


class OwnPostgres(OwnSqlite):
    @cached_property
    def server(self) -> PostgresServer:
        return required(PostgresServer)

    def parameters(self) -> dict[str, str]:
        login = {"user": self.server.user, "password": self.server.password or "none"}
        return {"url": self.server.jdbc, "target": "sales_of_pipelines", "options": json.dumps(login)}

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.server.url, user=self.server.user, password=self.server.password) as connection:
            assert connection.execute(statement.replace("sales", "sales_of_pipelines")).rowcount == 1


class OwnFiles(OwnTarget):
    name = "files"

    def parameters(self) -> dict[str, str]:
        bucket = {"bucket": "yyyy/MM", "bucket.timeColumn": "at"}
        return {"target": str(self.folder / "files"), "options": json.dumps(bucket)}

    def _file_of(self, number: int) -> tuple[Path, pa.Table, Any]:
        for file in (self.folder / "files").rglob("*.parquet"):
            rows = pq.read_table(file)
            is_it = pc.equal(rows["id"], number)
            if pc.any(is_it).as_py():
                return file, rows, is_it
        raise AssertionError(f"no file has {number}")

    def lose(self, number: int) -> None:
        file, rows, is_it = self._file_of(number)
        pq.write_table(rows.filter(pc.invert(is_it)), file)

    def spoil(self, number: int) -> None:
        file, rows, is_it = self._file_of(number)
        cents = pc.if_else(is_it, pa.scalar(-5, pa.int64()), rows["cents"])
        pq.write_table(rows.set_column(rows.schema.get_field_index("cents"), "cents", cents), file)

    @property
    def doubling(self) -> Callable[[int], None]:
        def double(number: int) -> None:
            file, rows, is_it = self._file_of(number)
            pq.write_table(rows.filter(is_it), file.with_name("stranger.parquet"))

        return double


class OwnKafka(OwnTarget):
    name = "kafka"

    @cached_property
    def server(self) -> KafkaServer:
        return required(KafkaServer)

    @cached_property
    def topic(self) -> str:
        return self.server.create_topic("sales-of-pipelines", 1)

    def parameters(self) -> dict[str, str]:
        return {"kafka_bootstrap_servers": self.server.bootstrap, "target": self.topic}

    def lose(self, number: int) -> None:
        """All up to the order are gone, as by retention."""
        client = {"bootstrap.servers": self.server.bootstrap, "group.id": "looks", "auto.offset.reset": "earliest"}
        consumer = Consumer(client)
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        while (record := consumer.poll(30)) is not None and record.key() != b"%d" % number:
            pass
        assert record is not None
        consumer.close()
        admin: Any = AdminClient({"bootstrap.servers": self.server.bootstrap})
        offset = record.offset() or 0
        next(iter(admin.delete_records([TopicPartition(self.topic, 0, offset + 1)]).values())).result(30)

    def _produce(self, number: int, cents: int) -> None:
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        producer.produce(self.topic, json.dumps({"id": number, "city": "Zürich", "cents": cents}))
        producer.flush()

    def spoil(self, number: int) -> None:
        self._produce(1_000_000 + number, -5)

    @property
    def doubling(self) -> Callable[[int], None]:
        return lambda number: self._produce(number, 7)


class OwnEventHub(OwnKafka):
    name = "event_hubs"

    @cached_property
    def topic(self) -> str:
        return self.server.create_topic("sales-of-hubs", 1)

    def parameters(self) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.server.sasl_bootstrap, "kafka.security.protocol": "SASL_PLAINTEXT"}
        return {"connectionString": CONNECTION_STRING, "target": self.topic, "options": json.dumps(options)}


    @property
    def doubling(self) -> None:  # type: ignore[override]
        """An event may come again: that is no harm there."""


class OwnRedis(OwnTarget):
    name = "redis"

    @cached_property
    def client(self) -> Any:
        import redis

        return redis.Redis.from_url(required(RedisServer).url)

    def parameters(self) -> dict[str, str]:
        return {"url": required(RedisServer).url, "target": "sale"}

    def lose(self, number: int) -> None:
        assert self.client.delete(f"sale:{number}") == 1

    def spoil(self, number: int) -> None:
        assert self.client.hset(f"sale:{number}", "cents", -5) == 0


class OwnDynamoDb(OwnTarget):
    name = "dynamodb"

    @cached_property
    def client(self) -> Any:
        return optional(DynamoDbServer).client()

    def parameters(self) -> dict[str, str]:
        key = [{"AttributeName": "id", "KeyType": "HASH"}], [{"AttributeName": "id", "AttributeType": "N"}]
        if "sales" not in self.client.list_tables()["TableNames"]:
            table = {"KeySchema": key[0], "AttributeDefinitions": key[1], "BillingMode": "PAY_PER_REQUEST"}
            self.client.create_table(TableName="sales", **table)
        options = {"endpoint": optional(DynamoDbServer).url, "accessKeyId": "test", "secretAccessKey": "test"}
        return {"region": "us-east-1", "target": "sales", "options": json.dumps(options)}

    def lose(self, number: int) -> None:
        answer = self.client.delete_item(TableName="sales", Key={"id": {"N": str(number)}}, ReturnValues="ALL_OLD")
        assert answer["Attributes"]

    def spoil(self, number: int) -> None:
        self.client.put_item(TableName="sales", Item={"id": {"N": str(number)}, "city": {"S": "Bern"}, "cents": {"N": "-5"}})


class OwnCassandra(OwnTarget):
    name = "cassandra"

    @cached_property
    def server(self) -> CassandraServer:
        return required(CassandraServer)

    def parameters(self) -> dict[str, str]:
        keyspace = self.server.keyspace("own_pipelines")
        columns = "id bigint PRIMARY KEY, city text, cents bigint, at timestamp"
        self.server.client.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.sales ({columns})")
        options = dict(self.server.options)
        nodes = options.pop("contactPoints")
        return {"contactPoints": nodes, "target": f"{keyspace}.sales", "options": json.dumps(options)}

    def lose(self, number: int) -> None:
        self.server.client.execute(f"DELETE FROM own_pipelines.sales WHERE id = {number}")

    def spoil(self, number: int) -> None:
        self.server.client.execute(f"UPDATE own_pipelines.sales SET cents = -5 WHERE id = {number}")


class OwnSearch(OwnTarget):
    name = "elasticsearch"

    @cached_property
    def server(self) -> OpenSearchServer:
        return required(OpenSearchServer)

    def parameters(self) -> dict[str, str]:
        return {"hosts": self.server.url, "target": "sales-of-pipelines"}

    def lose(self, number: int) -> None:
        assert self.server.ask("DELETE", f"/sales-of-pipelines/_doc/{number}?refresh=true")["result"] == "deleted"

    def spoil(self, number: int) -> None:
        path = f"/sales-of-pipelines/_update/{number}?refresh=true"
        assert self.server.ask("POST", path, {"doc": {"cents": -5}})["result"] == "updated"


TARGETS: dict[str, type[Any]] = {
    "SQLite": OwnSqlite,
    "files": OwnFiles,
    "PostgreSQL": OwnPostgres,
    "Kafka": OwnKafka,
    "Event Hubs": OwnEventHub,
    "Redis": OwnRedis,
    "DynamoDB": OwnDynamoDb,
    "Cassandra": OwnCassandra,
    "OpenSearch": OwnSearch,
}
QUICK = ("SQLite",)

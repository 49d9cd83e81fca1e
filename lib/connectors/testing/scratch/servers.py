"""Systems on servers: brokers, streams, stores and search."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...ground.errors import Transient
from ...systems import source_class
from .base import Order, Scratch, is_cut_off, text_of, values_of, wait_until


class Kafka(Scratch):
    """Topics."""

    batch_limit = "maxOffsetsPerTrigger"

    def _config(self) -> dict[str, str]:
        from ...systems.kafka.config import client_config, connection_config

        login = {name: value for name, value in self.options.items() if name.startswith("kafka.")}
        source = source_class("kafka").of({"kafka.bootstrap.servers": self.address, "subscribe": "orders", **login})
        return connection_config(client_config(source.values))

    def _admin(self) -> Any:
        from ...systems.kafka.cluster import connected_admin

        return connected_admin(self._config())

    def exists(self, name: str) -> bool:
        return name in self._admin().list_topics(timeout=30).topics

    def create(self, name: str) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        admin = self._admin()
        if name not in admin.list_topics(timeout=30).topics:
            for creation in admin.create_topics([NewTopic(name, 2)]).values():
                creation.result(30)
            wait_until(lambda: name in admin.list_topics(timeout=30).topics, f"topic {name}")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from confluent_kafka import Producer

        errors: list[Any] = []

        def note(error: Any, _: Any) -> None:
            errors.extend([error] if error else [])

        producer = Producer({**self._config(), "enable.idempotence": True})
        for order in orders:
            producer.produce(name, text_of(order), on_delivery=note)
            producer.poll(0)
        if producer.flush(60) or errors:
            raise Transient(f"{name} has not taken all orders: {errors[0] if errors else 'no answer within 60 s'}")

    def drop(self, name: str) -> None:
        admin = self._admin()
        if name in admin.list_topics(timeout=30).topics:
            for deletion in admin.delete_topics([name]).values():
                deletion.result(30)


class Kinesis(Scratch):
    """Data streams of two shards."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ...systems.aws import aws_client

        values = values_of("kinesis", self, region=self.address, streamName="orders", stateLocation="/")
        with aws_client("connectors.kinesis", "kinesis", values) as aws:
            yield aws.client

    def exists(self, name: str) -> bool:
        with self._client() as client:
            return any(name in page["StreamNames"] for page in client.get_paginator("list_streams").paginate())

    def create(self, name: str) -> None:
        if not self.exists(name):
            with self._client() as client:
                client.create_stream(StreamName=name, ShardCount=2)
                client.get_waiter("stream_exists").wait(StreamName=name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._client() as client:
            for order in orders:
                client.put_record(StreamName=name, PartitionKey=str(order["city"]), Data=text_of(order).encode())

    def drop(self, name: str) -> None:
        if self.exists(name):
            with self._client() as client:
                client.delete_stream(StreamName=name, EnforceConsumerDeletion=True)


class DynamoDb(Scratch):
    """Tables with the key ``id``."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ...systems.aws import AwsClient

        values = values_of("dynamodb", self, region=self.address, table="orders")
        with contextlib.closing(AwsClient("connectors.dynamodb", "dynamodb", values)) as aws:
            yield aws.client

    def exists(self, name: str) -> bool:
        with self._client() as client:
            return any(name in page["TableNames"] for page in client.get_paginator("list_tables").paginate())

    def create(self, name: str) -> None:
        if not self.exists(name):
            key = [{"AttributeName": "id", "KeyType": "HASH"}], [{"AttributeName": "id", "AttributeType": "N"}]
            with self._client() as client:
                settings = {"KeySchema": key[0], "AttributeDefinitions": key[1], "BillingMode": "PAY_PER_REQUEST"}
                client.create_table(TableName=name, **settings)
                client.get_waiter("table_exists").wait(TableName=name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._client() as client:
            for order in orders:
                item = {key: {"N" if isinstance(value, int) else "S": str(value)} for key, value in order.items()}
                client.put_item(TableName=name, Item=item)

    def drop(self, name: str) -> None:
        if self.exists(name):
            with self._client() as client:
                client.delete_table(TableName=name)


class Redis(Scratch):
    """Streams, and the hashes whose keys begin with the name."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ...systems.redis.connection import RedisClient

        values = values_of("redis", self, url=self.address, stream="orders", group="orders", stateLocation="/")
        redis = RedisClient("connectors.redis", values)
        try:
            with redis.errors():
                yield redis.client
        finally:
            redis.close()

    def _keys(self, client: Any, name: str) -> Iterator[Any]:
        yield from client.scan_iter(name)
        yield from client.scan_iter(f"{name}:*")

    def exists(self, name: str) -> bool:
        with self._client() as client:
            return next(self._keys(client, name), None) is not None

    def create(self, name: str) -> None:
        """The first entry makes it."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._client() as client, client.pipeline(transaction=False) as pipeline:
            for order in orders:
                pipeline.xadd(name, {"id": "?"} if is_cut_off(order) else {key: str(value) for key, value in order.items()})
            pipeline.execute()

    def drop(self, name: str) -> None:
        with self._client() as client:
            for key in list(self._keys(client, name)):
                client.delete(key)


class Search(Scratch):
    """Indexes of Elasticsearch or OpenSearch."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ...systems.elasticsearch.client import SearchClient

        client = SearchClient("connectors.elasticsearch", values_of("elasticsearch", self, hosts=self.address, index="orders"))
        try:
            yield client
        finally:
            client.close()

    def exists(self, name: str) -> bool:
        from ...systems.elasticsearch.client import NotFound

        with self._client() as client:
            try:
                client.ask("GET", f"/{name}")
            except NotFound:
                return False
            return True

    def create(self, name: str) -> None:
        kinds = {"id": "long", "city": "keyword", "cents": "long", "at": "date"}
        mapping = {"properties": {key: {"type": kind} for key, kind in kinds.items()}}
        if not self.exists(name):
            with self._client() as client:
                client.ask("PUT", f"/{name}", {"mappings": mapping})

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from ...systems.elasticsearch.client import NDJSON

        lines = [json.dumps(line) for order in orders for line in ({"index": {"_id": str(order["id"])}}, dict(order))]
        body = "".join(f"{line}\n" for line in lines).encode()
        with self._client() as client:
            answer = client.loads(client.request("POST", f"/{name}/_bulk?refresh=true", body, NDJSON))
        if answer["errors"]:
            raise Transient(f"{name} has not taken all orders: {json.dumps(answer)[:300]}")

    def drop(self, name: str) -> None:
        if self.exists(name):
            with self._client() as client:
                client.ask("DELETE", f"/{name}")

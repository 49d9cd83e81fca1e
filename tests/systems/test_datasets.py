"""The names of datasets: OpenLineage's own where it has rules for a system, and none with a secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openlineage.client.naming import dataset as rules

from connectors.core import Sink, Source
from connectors.core.datasets import Dataset, of_location
from connectors.ground.state import digest
from connectors.systems import all_systems, own_systems

SECRET = "geheim"
LOGIN = {"user": "me", "password": SECRET}
POSTGRESQL = {"url": f"jdbc:postgresql://db:5433/shop?user=me&password={SECRET}", "dbtable": "sales.orders"}
KAFKA = {"kafka.bootstrap.servers": "a:9093,b:9093", "kafka.sasl.password": SECRET}
EVENT_HUBS = f"Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey={SECRET}"
API = {"baseUrl": f"https://me:{SECRET}@api.example.org/v1", "resources": [{"name": "orders", "path": "/orders"}]}
SAMPLES: list[tuple[str, str, Mapping[str, Any], list[tuple[str, str]]]] = [
    ("kafka", "source", {**KAFKA, "subscribe": "orders,users"}, [("kafka://a:9093", "orders"), ("kafka://a:9093", "users")]),
    ("kafka", "source", {**KAFKA, "assign": '{"orders": [0]}'}, [("kafka://a:9093", "orders")]),
    ("kafka", "sink", {**KAFKA, "topic": "orders"}, [("kafka://a:9093", "orders")]),
    ("kafka", "sink", KAFKA, []),
    (
        "event_hubs", "source", {"connectionString": EVENT_HUBS, "eventHub": "orders"},
        [("kafka://shop.servicebus.windows.net:9093", "orders")],
    ),
    ("jdbc", "source", POSTGRESQL, [("postgres://db:5433", "shop.sales.orders")]),
    ("jdbc", "source", {**POSTGRESQL, "dbtable": "(select 1) t"}, []),
    ("jdbc", "sink", {**POSTGRESQL, "dbtable": "orders"}, [("postgres://db:5433", "shop.public.orders")]),
    ("jdbc", "sink", {"url": "jdbc:mariadb://db:3307/shop", "dbtable": "orders"}, [("mysql://db:3307", "shop.orders")]),
    ("jdbc", "sink", {"url": "jdbc:mysql://db/shop", "dbtable": "orders"}, [("mysql://db:3306", "shop.orders")]),
    ("jdbc", "sink", {"url": "jdbc:sqlite:/data/shop.db", "dbtable": "orders"}, [("file", "/data/shop.db/orders")]),
    ("files", "source", {"path": "s3://bucket/orders/2026", "fileFormat": "json"}, [("s3://bucket", "orders/2026")]),
    ("files", "sink", {"path": "/data/orders"}, [("file", "/data/orders")]),
    ("file_stream", "source", {"path": "/data/*.log"}, [("file", "/data/*.log")]),
    ("delta", "sink", {"path": "/data/orders"}, [("file", "/data/orders")]),
    ("delta", "sink", {"table": "main.shop.orders"}, [("delta", "main.shop.orders")]),
    (
        "cassandra", "source", {**LOGIN, "contactPoints": "n1,n2:9043", "keyspace": "shop", "table": "orders"},
        [("cassandra://n1:9042", "shop.orders")],
    ),
    ("pubsub", "source", {"projectId": "p", "subscriptionId": "s", "stateLocation": "/x"}, [("pubsub", "subscription:p:s")]),
    ("pubsub", "sink", {"projectId": "p", "topicId": "t"}, [("pubsub", "topic:p:t")]),
    ("kinesis", "source", {"streamName": "s", "region": "eu-west-1", "stateLocation": "/x"}, [("kinesis://eu-west-1", "s")]),
    ("dynamodb", "sink", {"table": "t", "endpoint": "http://localhost:8000"}, [("dynamodb://localhost:8000", "t")]),
    ("firehose", "sink", {"deliveryStream": "d", "region": "eu-west-1"}, [("firehose://eu-west-1", "d")]),
    (
        "elasticsearch", "sink", {**LOGIN, "hosts": "https://search:9200", "index": "orders", "idColumn": "id"},
        [("elasticsearch://search:9200", "orders")],
    ),
    (
        "redis", "source", {"url": f"redis://:{SECRET}@cache:6380/1", "stream": "s", "group": "g", "stateLocation": "/x"},
        [("redis://cache:6380", "s")],
    ),
    ("http", "source", {"config": json.dumps(API), "resource": "orders"}, [("https://api.example.org", "orders")]),
    (
        "http", "sink", {"url": f"https://api.example.org/{SECRET}/{{id}}?key={SECRET}"},
        [("https://api.example.org", digest(f"https://api.example.org/{SECRET}/{{id}}?key={SECRET}"))],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("system", "side", "options", "names"), SAMPLES)
def test_the_datasets_of_a_system_have_their_names_and_no_secret(
    system: str, side: str, options: Mapping[str, Any], names: list[tuple[str, str]]
) -> None:
    kind = all_systems()[system][side == "sink"]
    assert kind is not None
    datasets = kind.of(options).datasets()
    assert list(datasets) == names
    assert SECRET not in json.dumps(datasets)


def test_each_system_that_has_data_of_its_own_has_datasets() -> None:
    kinds = [kind for pair in own_systems().values() for kind in pair if kind is not None]
    without = {kind.name for kind in kinds if kind.datasets in (Source.datasets, Sink.datasets)}
    assert without == {"print", "sequence"}


@pytest.mark.parametrize(
    ("dataset", "rule"),
    [
        (Dataset("kafka://a:9093", "orders"), rules.Kafka("a", "9093", "orders")),
        (Dataset("postgres://db:5433", "shop.public.orders"), rules.Postgres("db", "5433", "shop", "public", "orders")),
        (Dataset("mysql://db:3307", "shop.orders"), rules.MySQL("db", "3307", "shop", "orders")),
        (Dataset("cassandra://n1:9042", "shop.orders"), rules.Cassandra("n1", "9042", "shop", "orders")),
        (Dataset("pubsub", "topic:p:t"), rules.PubSubNaming(rules.PubSubResourceType.TOPIC, "p", "t")),
        (of_location("s3a://bucket/a/b"), rules.S3("bucket", "a/b")),
        (of_location("gs://bucket/a/b/"), rules.GCS("bucket", "a/b")),
        (of_location("abfss://c@shop.dfs.core.windows.net/a"), rules.ABFSS("c", "shop", "a")),
        (of_location("abfs://c@shop.dfs.core.windows.net/a"), rules.ABFSS("c", "shop", "a")),
        (of_location("hdfs://name:8020/a/b"), rules.HDFS("name", "8020", "/a/b")),
        (of_location("file:/data/a"), rules.LocalFileSystem("/data/a")),
    ],
)
def test_the_names_are_those_of_openlineages_own_client(dataset: Dataset, rule: rules.DatasetNaming) -> None:
    assert dataset == (rule.get_namespace(), rule.get_name())

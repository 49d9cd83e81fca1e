"""Systems that log in by a service credential of Unity Catalog: by which keys they call, and what excludes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Misconfigured, Sink, Source
from connectors.core.writing import stage
from connectors.storage.location import checked_storage
from connectors.systems import own_systems
from connectors.systems.aws import AwsClient
from connectors.systems.aws import _session as aws_session
from connectors.systems.dynamodb import DynamoDbSink
from connectors.systems.kinesis import KinesisSource
from connectors.systems.kinesis.cursor import client_key
from connectors.systems.pubsub import PubSubSource
from connectors.systems.pubsub.connection import PubSubClient
from connectors.testing.servers import MotoServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Rule
from tests.fake_runtime import FakeRuntime
from tests.servers import required
from tests.systems.dynamodb.contexts import ItemsContext
from tests.systems.kinesis.streams import refusal

NAME = {"databricks.serviceCredential": "orders"}


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    with FakeRuntime({"orders": "aws", "google": "gcp"}).installed() as runtime:
        yield runtime


def ended_keys_refused(runtime: FakeRuntime, refused: Reply) -> Rule:
    return lambda seen, forward: forward() if runtime.accepts(seen.headers.get("Authorization", "")) else refused


@pytest.mark.server
def test_a_client_of_aws_follows_a_rotation(runtime: FakeRuntime, tmp_path: Path) -> None:
    table = ItemsContext(tmp_path)
    with contextlib.closing(table), FaultProxy(table.server.url) as proxy:
        proxy.rule = ended_keys_refused(runtime, refusal("ExpiredTokenException"))
        login = {name: value for name, value in table.options().items() if "Key" not in name or name == "keyColumns"}
        sink = DynamoDbSink.of({**login, **NAME, "endpoint": proxy.url})
        for number in range(2):  # the client of the first batch writes the second one too
            rows = pa.RecordBatch.from_pydict({"id": [number], "name": ["x"]})
            stage(sink, Batch("s", "q", number), rows.schema, 0, iter([rows]))
            runtime.end()
        assert sorted(int(item["id"]["N"]) for item in table.client.scan(TableName=table.table)["Items"]) == [0, 1]


def test_clients_have_the_descriptions_of_services_in_common_and_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(key: str, region: str) -> Any:
        login = {"accessKeyId": key, "secretAccessKey": key, "region": region}
        options = {**login, "streamName": "s", "stateLocation": "/nowhere"}
        return aws_session("connectors.kinesis", KinesisSource.of(options, streaming=True).values)

    def models(session: Any) -> Any:
        return session.get_component("data_loader")

    first, second = session("first", "us-east-1"), session("second", "eu-central-1")
    assert models(first) is models(second)
    assert [each.get_credentials().access_key for each in (first, second)] == ["first", "second"]
    assert [each.get_config_variable("region") for each in (first, second)] == ["us-east-1", "eu-central-1"]
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    own = models(session("first", "us-east-1"))
    assert own.search_paths == [str(tmp_path), *models(first).search_paths]


@pytest.mark.server
def test_a_role_is_assumed_by_a_service_credential(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    role = {"region": "us-east-1", "roleArn": "arn:aws:iam::123456789012:role/reader", "streamName": "s"}
    source = KinesisSource.of({**role, **NAME, "stateLocation": "/nowhere"}, streaming=True)
    with FaultProxy(required(MotoServer).url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.url)
        client = AwsClient("connectors.kinesis", "kinesis", source.values)
        client.client._request_signer._credentials.get_frozen_credentials()
        client.close()
        assert runtime.accepts(proxy.seen[0].headers["Authorization"])


@pytest.mark.server
def test_a_bucket_is_opened_by_a_service_credential_and_follows_a_rotation(runtime: FakeRuntime) -> None:
    server = required(MotoServer)
    server.bucket("of-a-service-credential")
    with FaultProxy(server.url) as proxy:
        proxy.rule = ended_keys_refused(runtime, Reply(400, b"<Error><Code>ExpiredToken</Code></Error>", {}))
        options = {**NAME, "client_kwargs": {"endpoint_url": proxy.url, "region_name": "us-east-1"}}
        storage = checked_storage("connectors.toy", "path", "s3://of-a-service-credential/folder", options)
        assert storage.put_if_absent("name", b"content")
        runtime.end()
        assert storage.read("name") == b"content"
    with pytest.raises(Misconfigured, match="by which Spark's own writer cannot log in"):
        storage.spark_options()
    with pytest.raises(Misconfigured, match=r"has databricks.serviceCredential and key and secret; give one login"):
        checked_storage("connectors.toy", "path", "s3://b/x", {**options, "key": "k", "secret": "s"})


@pytest.mark.parametrize("location", ["gs://bucket/x", "abfss://c@a.dfs.core.windows.net/x"])
def test_a_storage_that_takes_no_service_credential_says_so(location: str) -> None:
    with pytest.raises(Misconfigured, match=r"storageOptions +has databricks.serviceCredential, which"):
        checked_storage("connectors.toy", "path", location, NAME)


def test_pubsub_is_given_the_provider_and_no_token_of_it(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport as Transport

    create, credentials = Transport.create_channel, []

    def create_channel(*arguments: Any, **options: Any) -> Any:
        credentials.append(options["credentials"])
        return create(*arguments, **options)

    monkeypatch.setattr(Transport, "create_channel", create_channel)
    options = {"projectId": "p", "subscriptionId": "s", "stateLocation": "/nowhere"}
    source = PubSubSource.of({**options, "databricks.serviceCredential": "google"}, streaming=True)
    PubSubClient("connectors.pubsub", source.values, "subscriber").close()
    for _ in range(2):
        headers: dict[str, str] = {}
        credentials[0].before_request(None, "POST", "https://pubsub.googleapis.com", headers)
        assert runtime.accepts(headers["authorization"])
        runtime.end()
    wrong = PubSubSource.of({**options, **NAME}, streaming=True)
    with pytest.raises(Misconfigured, match="names a credential of another cloud"):
        PubSubClient("connectors.pubsub", wrong.values, "subscriber")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"serviceCredential": "a"}, {"serviceCredential": "b"}),
        ({"accessKeyId": "a", "secretAccessKey": "typo"}, {"accessKeyId": "a", "secretAccessKey": "right"}),
    ],
)
def test_two_logins_have_no_client_of_kinesis_in_common(one: dict[str, str], other: dict[str, str]) -> None:
    options = {"streamName": "s", "stateLocation": "/nowhere"}
    keys = {client_key(KinesisSource.of({**options, **login}, streaming=True).values) for login in (one, other)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("source", "options", "rival"),
    [
        (KinesisSource, {"streamName": "s", "accessKeyId": "a", "secretAccessKey": "hush"}, "accessKeyId"),
        (KinesisSource, {"streamName": "s", "sessionToken": "hush"}, "sessionToken"),
        (
            PubSubSource,
            {"projectId": "p", "subscriptionId": "s", "credentialsSecret": '{"a": "hush"}'},
            "credentialsSecret",
        ),
    ],
)
def test_one_login_is_given(source: type[Source], options: dict[str, str], rival: str) -> None:
    with pytest.raises(Misconfigured, match=rf"databricks.serviceCredential +is given beside {rival}") as error:
        source.of({**options, **NAME, "stateLocation": "/nowhere"}, streaming=True)
    assert "hush" not in str(error.value)


def test_a_secret_in_the_place_of_a_name_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_MAIN_SHOP_KEY", "hush")
    login = {"databricks.serviceCredential": "{{secrets/main.shop.key}}", "region": "us-east-1"}
    source = KinesisSource.of({**login, "streamName": "s", "stateLocation": "/nowhere"}, streaming=True)
    with pytest.raises(Misconfigured, match="cannot be had outside") as error:
        AwsClient("connectors.kinesis", "kinesis", source.values)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    "connector",
    [connector for pair in own_systems().values() for connector in pair if connector],
    ids=lambda c: c.__module__,
)
def test_each_connector_says_why_it_does_not_take_an_identity(connector: type[Source | Sink]) -> None:
    with pytest.raises(Misconfigured, match=r"databricks.connection +names a connection of Unity Catalog, whose login"):
        connector.of({"DATABRICKS.connection": "orders"})
    is_known = "databricks.serviceCredential" in connector.known_options().declared
    assert is_known is (connector.name in ("kinesis", "firehose", "dynamodb", "pubsub"))
    if not is_known:
        with pytest.raises(Misconfigured, match=r"databricks.serviceCredential +is not taken: .*\{\{secrets/catalog"):
            connector.of(NAME)

"""Clear errors of the source of Kinesis."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.core import Fatal, Misconfigured, Transient
from connectors.systems.kinesis import KinesisSource
from connectors.testing.servers import MotoServer
from connectors.testing.servers.fault_proxy import FaultProxy
from tests.servers import required
from tests.systems.kinesis.contexts import ACCOUNT, StreamContext
from tests.systems.kinesis.streams import refusal

pytestmark = pytest.mark.server


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    return {**ACCOUNT, "streamName": "nobody", "stateLocation": str(tmp_path / "log"), "request.timeout": "3s"}


def begin(values: Mapping[str, str]) -> None:
    began = time.monotonic()
    try:
        KinesisSource.of(values, streaming=True).begin()
    finally:
        assert time.monotonic() - began < 8


def test_a_stream_that_does_not_exist_is_named_at_once(system: StreamContext, values: dict[str, str]) -> None:
    with pytest.raises(Fatal, match=r"(?s)the stream nobody does not exist: .*correct the name, the region or the account"):
        begin({**values, "endpoint": system.server.url})


def test_no_permission_is_named_at_once(proxy: FaultProxy, values: dict[str, str]) -> None:
    proxy.rule = lambda *_: refusal("AccessDeniedException", message="not authorized to perform kinesis:DescribeStreamSummary")
    with pytest.raises(Fatal, match=r"(?s)AWS refuses access to the stream nobody: .*kinesis:DescribeStreamSummary.*grant"):
        begin({**values, "endpoint": proxy.url})


def test_a_service_that_is_away_is_an_outage(values: dict[str, str], proxy: FaultProxy) -> None:
    with pytest.raises(Transient, match="AWS does not answer for the stream nobody"):
        begin({**values, "endpoint": "http://127.0.0.1:1"})
    proxy.rule = lambda *_: refusal("InternalFailure", 500)
    with pytest.raises(Transient, match="AWS does not answer for the stream nobody"):
        begin({**values, "endpoint": proxy.url})


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without any configuration of AWS."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_a_missing_region_and_missing_credentials_are_named(bare: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"region +missing, and the environment names none"):
        begin({name: value for name, value in values.items() if name != "region"})
    options = {name: value for name, value in values.items() if "Key" not in name}
    with pytest.raises(Fatal, match=r"(?s)AWS gets no credentials for the stream nobody.*give accessKeyId"):
        begin({**options, "endpoint": "http://127.0.0.1:1"})


def test_a_role_is_assumed(bare: pytest.MonkeyPatch, proxy: FaultProxy, values: dict[str, str]) -> None:
    bare.setenv("AWS_ENDPOINT_URL_STS", required(MotoServer).url)
    role = {"roleArn": "arn:aws:iam::123456789012:role/reader", "endpoint": proxy.url}
    with pytest.raises(Fatal, match="does not exist"):
        begin({**values, **role})
    (request,) = proxy.seen
    assert "Credential=ASIA" in request.headers["Authorization"]  # a temporary key, and not the user's own


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streamArn": "arn:aws:kinesis:…"}, r"streamArn +is given beside streamName"),
        ({"startingPosition": "yesterday"}, r'startingPosition +must be LATEST, .*; got "YESTERDAY"'),
        ({"startingPosition": '{"shardId-0": 5}'}, r"startingPosition +must be LATEST, .*JSON object of sequence numbers"),
        ({"startingPosition": "AT_TIMESTAMP"}, r"startingTimestamp +missing"),
        ({"startingTimestamp": "5"}, r"startingTimestamp +has no use without"),
        ({"consumer": "efo"}, r"consumerName +missing"),
        ({"consumerName": "x"}, r"consumerName +has no use without consumer=efo; got consumer=polling"),
        ({"endpoint": "localhost"}, r"endpoint +must be a URL"),
        ({"secretAccessKey": ""}, r"(secretAccessKey|accessKeyId)"),
    ],
)
def test_wrong_options_are_named(values: dict[str, str], options: dict[str, str], text: str) -> None:
    if "secretAccessKey" in options:
        values.pop("secretAccessKey")
        options = {}
    with pytest.raises(Misconfigured, match=text) as error:
        KinesisSource.of({**values, **options}, streaming=True)
    assert "secret" not in str(error.value).replace("secretAccessKey", "")

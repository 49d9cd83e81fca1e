"""A bucket that is reached with the machine's own credentials, as where a location has no ``storageOptions``."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from connectors.storage import s3_bucket
from connectors.testing.servers import MotoServer

from .servers import required


class MachineBucket:
    """An empty bucket of moto. ``client`` is boto3's; the environment of this process has key, region and address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = required(MotoServer)
        self.name = f"b{uuid.uuid4().hex}"
        options = server.bucket(self.name)
        self.client: Any = server.client("s3")
        self.url = f"s3://{self.name}"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
        monkeypatch.setenv("AWS_DEFAULT_REGION", options["client_kwargs"]["region_name"])
        monkeypatch.setenv("AWS_ENDPOINT_URL", options["client_kwargs"]["endpoint_url"])

    def keys(self) -> set[str]:
        return {listed["Key"] for listed in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])}


@pytest.fixture
def machine_bucket(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A :class:`MachineBucket`; clients that other tests made without an address are not used."""
    s3_bucket._client.cache_clear()
    yield MachineBucket(monkeypatch)
    s3_bucket._client.cache_clear()

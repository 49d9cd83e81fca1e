"""AWS on this machine by moto: S3, DynamoDB, Firehose, Kinesis; from PyPI (``moto[server]``)."""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
from importlib import import_module
from typing import Any, Final

from .base import HOST, Server, Unavailable, free_ports

_KEYS: Final = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class MotoServer(Server):
    """An empty AWS. ``url`` is its address; every key and secret is right.

    Its Kinesis never ends a closed shard.
    """

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise Unavailable("`pip install 'moto[server]'`")
        (self.port,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        self.spawn([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)])

    def ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=5) as answer:
            return bool(answer.status == 200)

    def client(self, service: str) -> Any:
        """A boto3 client of ``service``."""
        return import_module("boto3").client(service, endpoint_url=self.url, **_KEYS)

    def bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket. Returns the ``storageOptions`` that reach it."""
        self.client("s3").create_bucket(Bucket=name)
        client = {"endpoint_url": self.url, "region_name": _KEYS["region_name"]}
        return {"key": _KEYS["aws_access_key_id"], "secret": _KEYS["aws_secret_access_key"], "client_kwargs": client}

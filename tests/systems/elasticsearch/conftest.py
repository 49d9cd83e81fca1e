"""A real OpenSearch, an index name for each test, and a proxy between."""

from __future__ import annotations

import contextlib
import urllib.error
import uuid
from collections.abc import Iterator

import pytest

from connectors.testing.servers import OpenSearchServer
from connectors.testing.servers.fault_proxy import FaultProxy
from tests.servers import required


@pytest.fixture
def server() -> OpenSearchServer:
    return required(OpenSearchServer)


@pytest.fixture
def index(server: OpenSearchServer) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    with contextlib.suppress(urllib.error.HTTPError):
        server.ask("DELETE", f"/{name}*")


@pytest.fixture
def proxy(server: OpenSearchServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.url) as fault_proxy:
        yield fault_proxy

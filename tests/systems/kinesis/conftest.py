"""The stream of the tests of Kinesis, and a proxy before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.systems.kinesis.cursor import POOL
from connectors.testing.servers.fault_proxy import FaultProxy
from tests.systems.kinesis.contexts import StreamContext


@pytest.fixture(params=[StreamContext])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamContext]:
    folder = tmp_path / "system"
    folder.mkdir()
    context = request.param(folder)
    yield context
    POOL.close_all()
    context.close()


@pytest.fixture
def proxy(system: StreamContext) -> Iterator[FaultProxy]:
    with FaultProxy(system.server.url) as proxy:
        yield proxy

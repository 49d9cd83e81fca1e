"""A stream into Delta and hashes back, by the notebook ``redis_streams``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from connectors.testing.servers import RedisServer
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_each_scan_is_read_once_and_other_keys_stay(spark: Any, tmp_path: Path) -> None:
    url = required(RedisServer).url
    client = redis.Redis.from_url(url)
    client.xadd("scans", {"answer": 42})
    try:
        execution = Execution("redis_streams", spark, tmp_path, {"url": url, "scans": "1000"})
        assert execution.exit() == "1,000 scans once, 100 of them held by a dead consumer"
        assert execution.pictures() == 1
        assert client.xlen("scans") == 1
        assert not list(client.scan_iter("connectors-scans-*", count=1000))
    finally:
        client.delete("scans")

"""Feeds, a cache and lookups, by the notebook ``redis``."""

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
@pytest.mark.soak  # its parts have tests of their own
@pytest.mark.usefixtures("foreign_files")
def test_each_order_is_in_a_feed_once_and_other_keys_stay(spark: Any, tmp_path: Path) -> None:
    url = required(RedisServer).url
    with redis.Redis.from_url(url) as client:
        client.set("foreign", "stays")
        execution = Execution("redis", spark, tmp_path, {"url": url, "orders": "1000"})
        assert execution.exit().startswith("1,000 orders in feeds once; a loop doubled ")
        assert execution.pictures() == 1
        assert {key for key in client.keys("*") if not key.startswith(b"connectors:")} == {b"foreign"}

"""The table of the tests of merges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.systems.merge.shop_log import Log, on_moments
from tests.systems.merge.targets import Target


@pytest.fixture(autouse=True)
def quick_merges(quick_plans: None) -> None:
    """The other tests of merges run as sessions of users do."""


@pytest.fixture
def target(spark: Any, tmp_path: Path) -> Target:
    return Target(spark, tmp_path / "orders")


@pytest.fixture
def kept(spark: Any, tmp_path: Path) -> Target:
    """A table with its history."""
    return Target(spark, tmp_path / "orders", history=True)


@pytest.fixture
def log(spark: Any, tmp_path: Path) -> Iterator[Log]:
    log = Log(spark, tmp_path / "shop")
    log.merge()
    log.lose(7, 14, 50)
    yield log
    log.shop.connection.close()


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few rows are read in ranges, too."""
    monkeypatch.setattr("connectors.systems.jdbc.ranges._partition_count", lambda *_: 3)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Calls a function at the moments of each step."""
    return on_moments(monkeypatch)

"""The table of the tests of merges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.systems.merge.targets import Target

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(autouse=True)
def quick_merges(spark: Any) -> Iterator[None]:
    """Spark would compile for longer than it runs: a batch has few rows. The other tests of merges run compiled."""
    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    yield
    for name in _INTERPRETED:
        spark.conf.unset(name)


@pytest.fixture
def target(spark: Any, tmp_path: Path) -> Target:
    return Target(spark, tmp_path / "orders")


@pytest.fixture
def kept(spark: Any, tmp_path: Path) -> Target:
    """A table with its history."""
    return Target(spark, tmp_path / "orders", history=True)

"""Queries over the files of a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .following import Query


@pytest.fixture
def query(tmp_path: Path) -> Callable[..., Query]:
    def make(pattern: str = "*.log", **options: str) -> Query:
        return Query(tmp_path, path=str(tmp_path / pattern), **options)

    return make

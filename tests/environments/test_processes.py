"""Tests in several processes: those of a file stay together, and so do those of an environment."""

from __future__ import annotations

import pytest

from connectors.testing.environments import CONNECT


def group(request: pytest.FixtureRequest) -> str:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("all tests run in one process")
    return request.node.nodeid.rpartition("@")[2]


def test_a_file_is_a_group(request: pytest.FixtureRequest) -> None:
    assert group(request) == "tests/environments/test_processes.py"


@pytest.mark.parametrize("environment", [CONNECT])
def test_an_environment_is_a_group(request: pytest.FixtureRequest, environment: str) -> None:
    assert group(request) == environment

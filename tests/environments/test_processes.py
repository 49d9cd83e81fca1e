"""Tests in several processes: those of a file, of a system and of an environment stay together, large groups first."""

from __future__ import annotations

import pytest

from connectors.testing.environments import CONNECT


def group(request: pytest.FixtureRequest) -> str:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("all tests run in one process")
    return request.node.nodeid.rpartition("@")[2]


def test_a_file_is_a_group(request: pytest.FixtureRequest) -> None:
    assert group(request) == "tests/environments/test_processes.py"


def test_a_system_is_a_group_with_the_cases_that_it_inherits(request: pytest.FixtureRequest) -> None:
    group(request)
    groups = {
        item.path.name: item.nodeid.rpartition("@")[2]
        for item in request.session.items
        if item.path.parent.name == "kafka" and not item.get_closest_marker("essential")
    }
    if not groups:
        pytest.skip("Kafka's tests were not chosen")
    assert set(groups.values()) == {"tests/systems/kafka"}


def test_a_large_group_begins_before_a_small_one(request: pytest.FixtureRequest) -> None:
    small, large = group(request), "tests/systems/kafka"
    items = [item for item in request.session.items if not item.get_closest_marker("long")]
    order = list(dict.fromkeys(item.nodeid.rpartition("@")[2] for item in items))
    if large not in order:
        pytest.skip("Kafka's tests were not chosen")
    assert order.index(large) < order.index(small)


@pytest.mark.parametrize("environment", [CONNECT])
def test_an_environment_is_a_group(request: pytest.FixtureRequest, environment: str) -> None:
    assert group(request) == environment

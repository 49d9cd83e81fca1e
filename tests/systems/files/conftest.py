"""The session's time zone; and which cases run: on S3 and HDFS each costs seconds, so that most are for ``make soak``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

_TAKEN = "test_what_was_published_and_taken_away_is_not_brought_back"
_KILLED = "test_a_run_killed_at_any_moment_is_finished_by_the_next"
_REPLAYED = "test_a_batch_that_spark_replays_is_not_written_again"
_FAULTS = "test_a_stream_writes_every_row_through_faults_of_tasks"
_REMOTE = ("test_every_row_is_written", _TAKEN, _KILLED)
_CASES = {
    "TestS3": _REMOTE,
    "TestRollingS3": _REMOTE,
    "TestHdfs": (f"{_TAKEN}[format", f"{_KILLED}[format"),
    "TestRollingHdfs": (f"{_TAKEN}[foreach_batch", f"{_KILLED}[foreach_batch"),
    "TestHdfsOnSpark": (f"{_FAULTS}[format", f"{_REPLAYED}[foreach_batch"),
    "TestBucketed": _REMOTE,
    "TestFinished": (*_REMOTE, "test_a_commit_that_raises", "test_a_zombie"),
    "TestSealing": (*_REMOTE, "test_a_killed_run_is_finished_by_the_next_ones[foreach_batch"),
}
"""The cases that stay in ``make test``, by the beginning of their names."""


@pytest.fixture
def zone(spark: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives the session another time zone for the length of a test."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = getattr(item, "cls", None)
        prefixes = _CASES.get(kind.__name__) if kind is not None else None
        if prefixes and not item.name.startswith(prefixes):
            item.add_marker(pytest.mark.soak)

"""On S3 each case of the kit costs seconds, and all of them twice for rolling: ``make test`` takes some, ``make soak`` all."""

from __future__ import annotations

import pytest

_SLOW = ("TestS3", "TestRollingS3", "TestSealing")
_KEPT = (
    "test_every_row_is_written",
    "test_what_was_published_and_taken_away_is_not_brought_back",
    "test_a_run_killed_at_any_moment_is_finished_by_the_next",
    "test_a_killed_run_is_finished_by_the_next_ones[foreach_batch",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = getattr(item, "cls", None)
        kept = _KEPT[:-1] if kind is not None and "S3" in kind.__name__ else _KEPT
        if kind is not None and kind.__name__ in _SLOW and not item.name.startswith(kept):
            item.add_marker(pytest.mark.soak)

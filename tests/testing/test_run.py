"""A suite runs where a connector is being written, as often as its author wants."""

from __future__ import annotations

import pytest

from connectors.testing import run_suite

from .broken import ReadsBackwards
from .toys import LogContext


def test_a_suite_runs_again_after_its_connector_was_mended() -> None:
    with pytest.raises(AssertionError, match="came after the newer"):
        run_suite(ReadsBackwards, only="order")
    assert "1 passed" in run_suite(LogContext, only="order")

"""The job that takes flights from Kafka, computes, and fills a search index."""

from __future__ import annotations

from pathlib import Path

import pytest

from .quickstart import run


@pytest.mark.soak  # its parts have tests of their own
def test_every_document_is_what_the_events_add_up_to(tmp_path: Path) -> None:
    code, output = run("kafka_to_search", {"workdir": str(tmp_path), "rows": "20000", "per_batch": "8000"})
    assert code == 0, output
    assert "20,000 events" in output
    assert "documents, each as computed" in output

"""The job that takes flights from Kafka, computes, and fills a search index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import KafkaServer, OpenSearchServer
from tests.servers import required

from .quickstart import run
from .test_files_databases_search import Execution, foreign_files, request

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.usefixtures("foreign_files")
@pytest.mark.soak
def test_documents_are_as_computed_and_other_indices_stay(spark: Any, tmp_path: Path) -> None:
    hosts, brokers = required(OpenSearchServer).url, required(KafkaServer).bootstrap
    request(hosts, "PUT", "/flights/_doc/1?refresh=true", {"answer": 42})
    try:
        parameters = {"hosts": hosts, "bootstrap_servers": brokers, "rows": "2000", "per_batch": "1000"}
        execution = Execution("windows_to_search", spark, tmp_path, parameters)
        assert execution.exit().startswith("2,000 events, ")
        assert execution.pictures() == 1
        assert request(hosts, "GET", "/flights/_doc/1")["_source"] == {"answer": 42}
        indices = {index["index"] for index in request(hosts, "GET", "/_cat/indices?format=json")}
        assert not [index for index in indices if index.endswith("-posted")]
    finally:
        request(hosts, "DELETE", "/flights")


@pytest.mark.soak  # its parts have tests of their own
def test_every_document_is_what_the_events_add_up_to(tmp_path: Path) -> None:
    code, output = run("windows_to_search", {"workdir": str(tmp_path), "rows": "20000", "per_batch": "8000"})
    assert code == 0, output
    assert "20,000 events" in output
    assert "documents, each as computed" in output

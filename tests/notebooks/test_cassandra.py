"""A table of Cassandra by ranges of its ring, by the notebook ``cassandra``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import CassandraServer
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.soak  # its parts have tests of their own
@pytest.mark.usefixtures("foreign_files")
def test_each_reading_is_read_once_while_the_node_dies_and_its_keyspace_is_gone(spark: Any, tmp_path: Path) -> None:
    required(CassandraServer)
    execution = Execution("cassandra", spark, tmp_path, {"readings": "4000"})
    assert execution.exit().startswith("4000 readings in ")
    assert execution.pictures() == 1
    rows = required(CassandraServer).client.execute("select keyspace_name from system_schema.keyspaces")
    assert not [name for (name,) in rows if name.startswith("fleet_")]

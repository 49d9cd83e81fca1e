"""Streams of Kinesis into Delta, and tables into Kinesis and Firehose: ``kinesis``, ``kinesis_sink``, ``firehose``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.testing.servers import KinesisServer, MotoServer
from tests.servers import required

from .test_files_databases_search import Execution, foreign_files

__all__ = ["foreign_files"]
pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.usefixtures("foreign_files")]


@pytest.mark.soak
def test_each_record_is_read_once_while_shards_change(spark: Any, tmp_path: Path) -> None:
    foreign = required(KinesisServer)
    foreign.create("scooters", 1)
    execution = Execution("kinesis", spark, tmp_path, {"records": "1600"})
    assert execution.exit().startswith("1,600 records once and in order over ")
    assert execution.pictures() == 1
    assert foreign.client.list_streams()["StreamNames"].count("scooters") == 1
    assert not [name for name in foreign.client.list_streams()["StreamNames"] if name.startswith("connectors-")]
    foreign.client.delete_stream(StreamName="scooters")


@pytest.mark.soak
def test_a_batch_that_is_put_again_is_in_the_stream_twice_and_in_the_tables_once(spark: Any, tmp_path: Path) -> None:
    required(KinesisServer)
    execution = Execution("kinesis_sink", spark, tmp_path, {"reports": "800"})
    assert execution.exit() == "800 reports, 100 twice in the stream, once in a table"
    assert execution.pictures() == 1


@pytest.mark.soak
def test_a_table_is_delivered_without_a_reading_lost(spark: Any, tmp_path: Path) -> None:
    required(MotoServer)
    execution = Execution("firehose", spark, tmp_path, {"meters": "2000"})
    assert execution.exit().startswith("2,000 readings delivered, ")
    assert execution.pictures() == 1

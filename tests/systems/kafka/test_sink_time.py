"""Transactions that take long: told before it is too late, and told apart from a run that has taken over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal
from connectors.core.ledger import Entry
from connectors.core.metrics import Component, Meter, Place, counted
from connectors.metrics import table
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.committer import KafkaCommitter, KafkaFrameCommitter
from connectors.systems.kafka.session import open_session

from .sink_contexts import DirectContext, is_decided
from .sink_target import TEXT, Target, publish, rows


def _values(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * count, pa.binary())})


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("count", [0, 600_000], ids=["before its commit", "while records are sent"])
def test_an_expired_transaction_is_told_with_its_time_and_the_brokers_maximum(tmp_path: Path, count: int) -> None:
    """The client says that another producer has the id; tried again it would only take as long again."""
    target = Target(tmp_path, partitions=1)
    sink = target.sink(transactionTimeout="1500ms")

    def records() -> Iterator[pa.RecordBatch]:
        yield _values(10)
        open_session(sink.transaction_settings()).producer.flush()
        _wait(lambda: is_decided(target.server.bootstrap, target.place(0)))
        for _ in range(count // 10_000):
            yield _values(10_000)

    batch = Batch(sink.sink_id(), "query", 0)
    with pytest.raises(Fatal, match=r"was open for \d+ s; the broker ended it after 1.5 s(?s:.*)at most 900 s") as expiry:
        publish(sink, "query", 0, records(), sink.rejects(batch), lambda sent: Entry("query", 0, sent))
    assert "raise transactionTimeout" in str(expiry.value)
    assert target.values() == []


def test_a_transaction_that_took_half_of_its_time_is_a_warning_while_it_is_open(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = KafkaCommitter._records

    def slow(self: KafkaCommitter, staged: Any) -> Iterator[pa.RecordBatch]:
        yield from original(self, staged)
        _wait(lambda: "half of transactionTimeout (4 s)" in caplog.text)

    monkeypatch.setattr(KafkaCommitter, "_records", slow)
    target.write(rows(1), TEXT, transactionTimeout="4s")
    assert target.values() == ["v1"]


def test_a_task_that_took_half_of_its_time_is_a_warning_of_the_driver(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    committer = KafkaFrameCommitter(target.sink(stagingLocation=None))
    with Meter(Place(target.topic, Component("sink", "kafka"), 0)).counting(), caplog.at_level(logging.WARNING):
        committer._show_time(301)
    assert "took 301 s, more than half of transactionTimeout (600 s)" in caplog.text
    (file,) = counted(target.topic)
    assert file["state"][""] == {"transaction_ms": 301_000, "timeout_ms": 600_000}


@pytest.mark.parametrize("slots", ["1", "2"])
def test_the_table_of_a_query_has_the_time_of_the_transaction_and_its_limit(
    spark: Any, tmp_path: Path, slots: str
) -> None:
    target = DirectContext(tmp_path)
    sink = ForeachBatch(KafkaSink.of({**target.options(), "slots": slots, "transactionTimeout": "5 minutes"}))
    frame = spark.range(20).selectExpr("CAST(id AS string) AS key", "'v' AS value")
    sink.write(frame, Batch(target.topic, target.topic, 0))
    (row,) = table(target.topic).to_dict("records")
    assert row["timeout_ms"] == 300_000
    assert 0 < row["transaction_ms"] < row["commit_ms"]

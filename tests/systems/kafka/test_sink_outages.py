"""A broker that dies in mid-batch, and what a killed run leaves open for readers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch
from connectors.core.commit import Commit
from connectors.core.ledger import Entry
from connectors.systems.kafka.committer import KafkaCommitter
from connectors.systems.kafka.ledger import SINK_PARTITION
from connectors.systems.kafka.session import open_session
from connectors.testing.engine import in_a_child

from .sink_contexts import is_decided
from .sink_target import TEXT, Target, forget_sessions, publish, rows


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def _values(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([text.encode() for text in texts], pa.binary())})


def test_a_broker_that_is_killed_in_mid_batch_and_comes_back_has_the_batch_once(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 0

    def outage(self: KafkaCommitter, staged: Any) -> Iterator[pa.RecordBatch]:
        nonlocal kills
        for records in original(self, staged):
            half = records.num_rows // 2
            yield records.slice(0, half)
            if not kills:
                open_session(self.sink.transaction_settings()).producer.flush()  # they are in the topic, and not committed
                target.server.kill()
                target.server.relaunch()
                kills += 1
            yield records.slice(half)

    original = KafkaCommitter._records
    monkeypatch.setattr(KafkaCommitter, "_records", outage)
    target.write(rows(*range(200)), TEXT, retry__maxRetries=20, retry__initialBackoff="100ms", retry__maxBackoff="1s")
    assert kills == 1
    assert target.values() == sorted(f"v{number}" for number in range(200))


@pytest.mark.soak
def test_a_broker_that_was_restarted_between_batches_does_not_hold_up_the_next_one(target: Target) -> None:
    """The client that has written the first batch would wait for the broker of that time for ever."""
    target.write(rows(1), TEXT)
    _is_marked_everywhere(target)
    target.server.kill()
    target.server.relaunch()
    target.write(rows(2), TEXT, retry__maxRetries=20, retry__initialBackoff="100ms", retry__maxBackoff="1s")
    assert target.values() == ["v1", "v2"]


def _is_marked_everywhere(target: Target) -> None:
    """A broker of Kafka 4.3.1 that dies between its answer to a commit and the marks of it in the topics forgets the marks:
    readers of any producer's transactions then wait for ever."""
    assert target.values() == ["v1"]
    open_session(target.sink().transaction_settings()).read_ledger(SINK_PARTITION)


def _leaves_half_a_batch(target: Target) -> None:
    sink = target.sink()

    def dies() -> Iterator[Any]:
        yield _values("half")
        open_session(sink.transaction_settings()).producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    batch = Batch(sink.sink_id(), "query", 0)
    publish(sink, "query", 0, dies(), sink.rejects(batch), lambda sent: Entry("query", 0, sent))


@pytest.mark.parametrize("more", [True, False], ids=["with the batch again", "with nothing to write"])
def test_what_a_killed_run_has_left_open_delays_no_reader_longer_than_the_restart(tmp_path: Path, more: bool) -> None:
    """The transaction may last ten minutes. The first thing that the next run does ends it."""
    target = Target(tmp_path, partitions=1)
    assert in_a_child(lambda: _leaves_half_a_batch(target)) == -signal.SIGKILL
    assert not is_decided(target.server.bootstrap, target.place(0)), "a reader would wait"
    target.write(rows(1), TEXT, transactionalIdPrefix=None, stagingLocation=None)
    forget_sessions()
    began = time.monotonic()
    if more:
        target.write(rows(2), TEXT, number=0)
    else:
        Commit(target.sink()).begin(Batch(target.topic, "query", 0))
    assert target.values() == (["v1", "v2"] if more else ["v1"])
    assert time.monotonic() - began < 30
    assert "half" in target.values("read_uncommitted")

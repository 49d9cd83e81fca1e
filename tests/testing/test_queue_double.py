"""The queue for tests, which is as strict as the strictest system."""

from __future__ import annotations

from pathlib import Path

from connectors.testing.queue_double import QueueDouble


def test_leases_end_by_the_queues_clock_and_by_that_of_nobody_who_asks(tmp_path: Path) -> None:
    queue, other = QueueDouble(tmp_path / "queue.db"), QueueDouble(tmp_path / "queue.db")
    queue.set_time(1000.0)
    queue.publish([7])
    ((*_, lease),) = queue.receive(1)
    assert other.receive(1) == []
    other.set_time(1031.0)
    queue.acknowledge([lease])
    assert queue.unacknowledged() == 1, "an ended lease acknowledges nothing"
    assert [body for _, body, *_ in other.receive(1)] == [7]

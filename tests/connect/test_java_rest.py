"""Java tasks side by side: one that fails beside one that never rests, and sources that an ``availableNow`` run must leave."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connectors.core import ReadLimit
from tests.connect.java_connectors import use_connector
from tests.connect.java_sources import poll, started, values_of

BUSY = """
if (number == 1 && lives < 3) {
    throw new RuntimeException("the disk is full");
}
Thread.sleep(20L);
return records(1);
"""
TRICKLE = "if (at > 0) { Thread.sleep(200L); } return records(at == 0 ? 1000 : 1);"
BACKLOG = "Thread.sleep(30L); return records(500);"


def test_a_task_that_fails_starts_again_beside_one_that_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = use_connector(monkeypatch, "Busy", BUSY)
    with started({**properties, "tasks.max": "2"}) as host:
        until = time.monotonic() + 30
        while not any(value.startswith(b"1:") for value in values_of(host.poll(1, ReadLimit(), 1.0))):
            assert time.monotonic() < until, host.statuses()


@pytest.mark.soak
@pytest.mark.parametrize(("source", "ends"), [(TRICKLE, True), (BACKLOG, False)])
def test_a_source_that_trickles_has_caught_up_and_one_with_a_backlog_has_not(
    monkeypatch: pytest.MonkeyPatch, source: str, ends: bool
) -> None:
    name = "Trickle" if ends else "Backlog"
    with started(use_connector(monkeypatch, name, source)) as host:
        poll(host, 1000)
        assert not host.has_caught_up(1.0)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            host.poll(1, ReadLimit(), 0.5)
        assert host.has_caught_up(1.0) == ends


COMMITS = """
public void commitRecord(
    org.apache.kafka.connect.source.SourceRecord record, org.apache.kafka.clients.producer.RecordMetadata metadata) {
    String text = metadata == null ? "none" : metadata.topic() + metadata.partition() + metadata.hasOffset();
    note(settings, record.value() + "=" + text);
}
"""


def test_a_record_that_became_a_row_is_committed_with_metadata_and_one_that_was_dropped_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    properties = use_connector(monkeypatch, "Committed", "return at == 0 ? records(3) : null;", more=COMMITS)
    filtered = {
        "transforms": "drop",
        "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.drop.predicate": "missing",
        "predicates": "missing",
        "predicates.missing.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
    }
    with started({**properties, **filtered, "notes": str(notes), "null": ":1"}) as host:
        poll(host, 2)
        host.committed(1)
    assert notes.read_text().split() == ["0:0=t0false", "null=none", "0:2=t0false"]


def test_a_task_that_has_started_again_hears_nothing_of_the_records_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    source = """
if (at == 0) {
    return records(lives == 1 ? 2 : 1);
}
Thread.sleep(lives == 1 ? 1000L : 20L);
if (lives == 1) {
    throw new RuntimeException("the connection is gone");
}
return null;
"""
    properties = use_connector(monkeypatch, "Reborn", source, more=COMMITS)
    with started({**properties, "notes": str(notes)}) as host:
        poll(host, 2)
        poll(host, 1, epoch=2)
        host.committed(2)
    assert notes.read_text().split() == ["0:0=t0false"]

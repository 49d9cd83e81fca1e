"""Positions of a shard in one process, without a service."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connectors.core.cursor_source import WholeEnumerator
from connectors.systems.kinesis import KinesisSource
from connectors.systems.kinesis.cursor import Shard

OLDEST = {"from": "TRIM_HORIZON"}


def record(number: int, part: int, *, is_last: bool) -> dict[str, Any]:
    """A record that the producer's library has packed with others."""
    data = {"Data": b"%d" % part, "PartitionKey": "key", "ApproximateArrivalTimestamp": 1.0}
    return {**data, "SequenceNumber": str(number), "Sub": part, "IsLast": is_last}


@pytest.mark.parametrize("position", [{"from": 1_000}, {"from": 2_000}])
def test_a_query_that_starts_elsewhere_takes_no_records_of_another_one(position: dict[str, Any]) -> None:
    before = Shard(OLDEST, [record(1, 0, is_last=True)], iterator="of the oldest")
    before.seek(position)
    behind = Shard(OLDEST, [record(1, 0, is_last=True)])
    behind.take(1, None)
    behind.seek(position)
    for shard in (before, behind):
        assert (shard.position, shard.records, shard.iterator) == (position, [], None)


def test_a_page_is_read_again_from_the_place_where_the_query_started() -> None:
    shard = Shard(OLDEST, [record(1, 0, is_last=True)])
    taken = shard.take(1, None)
    shard.seek(OLDEST)
    assert shard.records == taken


@pytest.mark.parametrize("page", [1, 3])
def test_a_start_at_a_time_has_the_same_records_whatever_the_pages(page: int) -> None:
    """The service promises neither exact times of arrival nor that they grow."""
    arrivals = [0.9, 1.1, 0.9]
    records = [{**record(n, 0, is_last=True), "ApproximateArrivalTimestamp": at} for n, at in enumerate(arrivals)]
    shard = Shard({"from": 1_000})
    taken = []
    for first in range(0, 3, page):
        shard.add(records[first : first + page], "0")
        taken += shard.take(3, None)
    assert taken == records[1:]


def test_a_replay_of_packed_records_takes_several_pages_to_its_end() -> None:
    records = [record(number, part, is_last=part == 2) for number in (1, 2, 3) for part in range(3)]
    cursor = KinesisSource.of({"streamName": "s", "region": "eu-central-1"}).driver_cursor()
    client: Any = SimpleNamespace(shards={"shard": Shard(OLDEST, records)}, stream_name="s")
    cursor._client = client
    position, end, pages = OLDEST, {"after": "2"}, []
    while position != end:
        page = cursor.read("shard", position, end, 4)
        pages.append(page.rows.num_rows)
        position = page.position
    assert pages == [4, 2]


def test_a_batch_from_the_latest_record_on_leaves_out_the_shards_that_were_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = KinesisSource.of({"streamName": "s", "region": "eu-central-1", "startingPosition": "LATEST"})
    shards = {
        "parent": {"SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "9"}},
        "child": {"SequenceNumberRange": {"StartingSequenceNumber": "10"}, "ParentShardId": "parent"},
    }
    monkeypatch.setattr(source, "_list", lambda finished: shards)
    start = {"epoch": 0, "positions": {"child": {"from": 1000}}}
    (part,) = WholeEnumerator(source).slices(start, {"epoch": 1, "until": 0.0}, 1)
    assert part.detail == {"child": {"from": 1000}}

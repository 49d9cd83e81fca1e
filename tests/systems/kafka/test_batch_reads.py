"""A batch read takes every record up to the end: what holds back a stream has no meaning for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from connectors.core import DataLoss
from connectors.core.planning import Planner
from connectors.systems.kafka.cluster import KafkaTopic, TimedOffset
from connectors.systems.kafka.positions import Partition
from connectors.systems.kafka.source import KafkaSource

RECORDS = 100
HOURS = 10_000_000


class TwoPartitions:
    """A cluster whose first partition is hours ahead of the second one."""

    def topics(self, names: Iterable[str]) -> dict[str, KafkaTopic]:
        return {name: KafkaTopic("id", (0, 1)) for name in names}

    def first(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)

    def last(self, partitions: Iterable[Partition], written: bool = False) -> dict[Partition, int]:
        return dict.fromkeys(partitions, RECORDS)

    def times(self, offsets: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return {partition: self._time(partition, offset) for partition, offset in offsets.items()}

    def after(self, times: Mapping[Partition, int]) -> dict[Partition, TimedOffset | None]:
        records = {name: [TimedOffset(n, self._time(name, n)) for n in range(RECORDS)] for name in times}
        return {name: next((r for r in records[name] if r.time >= stamp), None) for name, stamp in times.items()}

    @staticmethod
    def _time(partition: Partition, offset: int) -> int:
        return 1000 * offset + (HOURS if partition[1] == 0 else 0)


def records_of(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    brokers: Any = TwoPartitions()
    source = KafkaSource.of({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **options})
    monkeypatch.setattr(source, "cluster", lambda: brokers)
    planner = Planner(source)
    splits = [split for part in planner.whole() for split in planner.enumerator.splits_of(part)]
    return sum(split.end - split.first for split in splits)


@pytest.mark.parametrize("option", [{}, {"minOffsetsPerTrigger": "1000"}, {"maxDrift": "5s"}], ids=str)
def test_a_batch_read_holds_nothing_back(option: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert records_of(option, monkeypatch) == 2 * RECORDS


@pytest.mark.parametrize("bounds", [(0, 101), (60, 50)], ids=["beyond the end", "before the start"])
def test_a_batch_that_cannot_end_where_it_is_told_stops_unless_losses_are_accepted(
    bounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = bounds
    options = {"startingOffsets": f'{{"t": {{"0": {first}, "1": 0}}}}', "endingOffsets": f'{{"t": {{"0": {last}, "1": -1}}}}'}
    with pytest.raises(DataLoss, match=f"is to end at offset {last}, but it begins at {first}, and the partition ends at 100"):
        records_of(options, monkeypatch)
    assert records_of({**options, "failOnDataLoss": "false"}, monkeypatch) == RECORDS + max(0, min(last, 100) - first)

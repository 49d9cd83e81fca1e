"""What end offsets tell of partitions, and that nothing else depends on it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.core import PartitionProgress, ReadLimit
from connectors.core import progress as telling
from connectors.core.planning import INITIAL, Planner, source_id
from connectors.core.progress import Waiting, packed, unpacked
from connectors.ground.state import dumps
from connectors.metrics import table
from connectors.systems.file_stream import FileStreamSource
from connectors.systems.files import FilesSource
from connectors.systems.sequence import SequenceSource


def sequence(**options: Any) -> Planner:
    return Planner(SequenceSource.of({"end": 100, **options}, streaming=True))


def test_an_end_offset_tells_position_end_and_lag() -> None:
    end = sequence().latest(INITIAL, ReadLimit(rows=30))
    assert unpacked(end) == [PartitionProgress("0", 31, 101, 70, 0.0)]
    assert json.dumps(end, separators=(",", ":")) == dumps(end)


def test_the_lag_is_zero_at_the_end() -> None:
    planner, end = sequence(), INITIAL
    for _ in range(4):
        end = planner.latest(end, ReadLimit(rows=30))
    assert unpacked(end)[0].lag_records == 0


def test_a_rate_tells_seconds() -> None:
    planner = sequence(end=10**9, rowsPerSecond=10)
    planner.enumerator.head = lambda: planner.enumerator.start()["since"] + 60_000  # type: ignore[method-assign]
    (progress,) = unpacked(planner.latest(INITIAL, ReadLimit(rows=100)))
    assert progress.lag_records is not None
    assert progress.lag_seconds == pytest.approx(progress.lag_records / 10)


def test_an_offset_that_differs_only_in_progress_is_nothing_new() -> None:
    planner = sequence()
    end = planner.latest(INITIAL)
    without = {key: value for key, value in end.items() if key != "progress"}
    for other in ({**end, "progress": {"id": "x", "start": "", "parts": [["0", 1, 2]]}}, without):
        assert planner.latest(other) is other
        assert list(planner.slices(end, other)) == []
        planner.committed(other)


def test_slices_do_not_depend_on_progress() -> None:
    planner = sequence()
    end = planner.latest(INITIAL)
    without = {key: value for key, value in end.items() if key != "progress"}
    assert planner.slices(INITIAL, end) == planner.slices(INITIAL, without)


def test_a_source_that_cannot_tell_does_not_fail_the_query(caplog: pytest.LogCaptureFixture) -> None:
    planner = sequence()

    def broken(at: object, head: object) -> Sequence[PartitionProgress]:
        raise OSError("no route")

    planner.enumerator.progress = broken  # type: ignore[method-assign]
    assert planner.latest(INITIAL)["at"] == {"next": 101}
    assert "progress of its partitions is not known" in caplog.text


def test_files_tell_bytes_each_for_itself(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"12345678\n" * 2)
    (tmp_path / "b.log").write_bytes(b"12345678\n" * 10)
    planner = Planner(FileStreamSource.of({"path": str(tmp_path / "*.log")}, streaming=True))
    end = planner.latest(INITIAL, ReadLimit(bytes=60))
    positions = {Path(progress.partition).name: (progress.position, progress.latest) for progress in unpacked(end)}
    assert positions == {"a.log": (18, 18), "b.log": (36, 90)}
    lags = {Path(progress.partition).name: progress.behind() for progress in unpacked(planner.latest(end))}
    assert lags == {"a.log": 0, "b.log": 0}


def test_the_time_since_a_record_was_first_seen_waiting_is_told() -> None:
    clock = [100.0]
    waiting = Waiting(lambda: clock[0])
    lags = []
    for now, position, latest in ((100, 0, 10), (105, 5, 20), (110, 10, 20), (112, 15, 20), (120, 20, 20), (130, 20, 21)):
        clock[0] = now
        lags.append(waiting.timed([PartitionProgress("p", position, latest)])[0].lag_seconds)
    assert lags == [0, 5, 5, 7, 0, 0]


def test_memory_for_waiting_is_bounded_and_tells_too_little_rather_than_too_much() -> None:
    clock = [0.0]
    waiting = Waiting(lambda: clock[0])
    for step in range(1000):
        clock[0] = step
        (progress,) = waiting.timed([PartitionProgress("p", 0, step + 1)])
    assert progress.lag_seconds == 999
    assert all(len(ends) <= 129 for ends in waiting._ends.values())


def test_only_so_many_partitions_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "PARTITIONS", 3)
    parts = unpacked({"progress": packed([PartitionProgress(str(n), 0, n, n) for n in range(10)])})
    assert [part.partition for part in parts] == ["(8 others)", "8", "9"]
    assert sum(part.lag_records or 0 for part in parts) == sum(range(10))


@pytest.mark.parametrize("names", [["a/x", "a/y"], ["only"], [""], ["x", ""], []])
def test_what_is_packed_comes_back(names: list[str]) -> None:
    kinds = [(5, 5, 0, 0.0), (5, 5, None, 0.0), (5, 9, None, 1.5), ("5", None, None, None), (None, None, 7, None)]
    for kind in kinds:
        parts = sorted((PartitionProgress(name, *kind) for name in names), key=lambda part: part.partition)
        assert unpacked({"progress": packed(parts)}) == parts


def test_what_was_skipped_travels_beside_the_cells() -> None:
    cells: list[tuple[Any, ...]] = [("a", 5, 5, 0, 0.0, 3), ("b", None, None, None, 1.5, 0), ("c", 1)]
    parts = [PartitionProgress(*values) for values in cells]
    document = packed(parts)
    assert unpacked({"progress": json.loads(json.dumps(document))}) == parts
    assert max(map(len, document["parts"])) == 5
    assert "skipped" not in packed(parts[2:])
    del document["skipped"]
    assert [part.skipped for part in unpacked({"progress": document})] == [None] * 3


def test_what_many_partitions_have_skipped_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "PARTITIONS", 2)
    parts = [PartitionProgress(str(n), 0, n, n, skipped=n if n else None) for n in range(4)]
    assert {part.partition: part.skipped for part in unpacked({"progress": packed(parts)})} == {"(3 others)": 3, "3": 3}
    others = [PartitionProgress(str(n), 0, n, n) for n in range(4)]
    assert [part.skipped for part in unpacked({"progress": packed(others)})] == [None, None]


def test_facts_travel_beside_the_cells_into_columns_of_the_table_and_cost_nothing_where_there_are_none() -> None:
    facts = {"slot_lag_bytes": 7 << 30, "wal_status": "extended", "snapshot_rows": 40, "snapshot_runs": True}
    parts = [PartitionProgress("a", 5, 5, 0, 0.0, facts=facts), PartitionProgress("b", 6)]
    document = json.loads(json.dumps(packed(parts)))
    assert unpacked({"progress": document}) == parts
    assert "facts" not in packed(parts[1:])
    offset = {"source": "connect", "progress": {"id": "x", **document}}
    frame = table({"id": "never-run", "sources": [{"endOffset": dumps(offset)}]})
    assert frame["slot_lag_bytes"].dtype == frame["snapshot_total"].dtype == "Int64"
    told = frame[["slot_lag_bytes", "wal_status", "snapshot_rows", "snapshot_total"]].astype(object)
    assert told.where(told.notna(), None).to_numpy().tolist() == [[7 << 30, "extended", 40, None], [None] * 4]
    del document["facts"]
    assert [part.facts for part in unpacked({"progress": document})] == [{}, {}]


def test_the_table_says_how_many_files_were_skipped(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "fileFormat": "text", "failOnDataLoss": "false"}
    planner = Planner(FilesSource.of(options, streaming=True))
    end = INITIAL
    for name, age in (("new", 0), ("old", 86400), ("newer", 0)):
        (tmp_path / f".{name}").write_text("line\n")
        os.utime(tmp_path / f".{name}", (time.time() - age, time.time() - age))
        (tmp_path / f".{name}").rename(tmp_path / name)
        end = planner.latest(end)
    lines = sequence().latest(INITIAL)
    frame = table({"id": "never-run", "sources": [{"endOffset": dumps(end)}, {"endOffset": dumps(lines)}]})
    assert frame["component"].tolist() == ["source files", "source sequence"]
    assert frame["skipped"].isna().tolist() == [False, True]
    assert frame["skipped"][0] == 1


def test_a_source_keeps_its_name_when_only_sizes_are_tuned_and_secrets_are_no_part_of_it() -> None:
    def named(**options: Any) -> str:
        return source_id(SequenceSource.of({"end": 100, **options}))

    assert named() == named(maxRowsPerTrigger=5, numPartitions=7)
    assert named() != named(end=101)


def test_a_table_is_made_of_a_progress_and_two_sources_of_one_system_are_told_apart() -> None:
    ends = [sequence(end=last).latest(INITIAL, ReadLimit(rows=30)) for last in (100, 50)]
    progress = {"id": "never-run", "sources": [{"endOffset": dumps(ends[0])}, {"endOffset": ends[1]}, {"endOffset": "7"}]}
    frame = table(progress)
    assert sorted(frame["lag_records"]) == [20, 70]
    assert frame["component"].nunique() == 2
    assert frame["position"].tolist() == [31, 31]


def test_the_columns_are_there_before_the_first_batch() -> None:
    assert list(table("no-such-query").columns) == [
        "component", "partition", "position", "latest", "lag_records", "lag_seconds", "rows", "bytes", "errors", "retries",
        "dead_letters", "in_flight", "commit_ms", "last_commit", "skipped", "waiting_for", "waiting_since", "transaction_ms",
        "timeout_ms", "slot_lag_bytes", "wal_status", "snapshot_rows", "snapshot_total",
    ]  # fmt: skip


def test_what_is_no_query_is_told_so() -> None:
    with pytest.raises(TypeError, match="takes a streaming query"):
        table(3)

"""The buffered sink: a batch is one file, whole, in order, whatever ends a run in between. See also files/test_sink.py."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.core import Batch, Sink
from connectors.core.commit import Commit
from connectors.core.folder import SinkFolder
from connectors.core.writing import stage
from connectors.storage import local
from connectors.systems.buffered import BufferedSink

from .batches import write
from .files.helpers import visible


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return BufferedSink.of({"path": str(tmp_path)})


def numbers(file: Path) -> list[int]:
    return [json.loads(line)["n"] for line in file.read_text().splitlines()]


def test_a_batch_is_one_file_with_the_rows_of_all_its_tasks(sink: Sink, tmp_path: Path) -> None:
    write(sink, rows(1, 2), rows(), rows(3))
    assert [numbers(file) for file in visible(tmp_path)] == [[1, 2, 3]]


def test_files_list_in_the_order_of_their_batches(tmp_path: Path) -> None:
    sink = BufferedSink.of({"path": str(tmp_path), "onMissingBatches": "continue"})
    for number in (0, 9, 10, 100):
        write(sink, rows(number), number=number)
    assert [numbers(file) for file in visible(tmp_path)] == [[0], [9], [10], [100]]


@pytest.mark.parametrize("step", ["growing", "joined", "half discarded", "discarded", "released"])
def test_a_release_that_broke_off_anywhere_is_finished_once(
    sink: Sink, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(sink.sink_id(), "q", 0)
    staged = [stage(sink, batch, rows(0).schema, task, iter([rows(task)])) for task in range(2)]
    with monkeypatch.context() as broken:
        _break(broken, step)
        with pytest.raises(OSError, match="died"):
            Commit(sink).finish(batch, staged)
    assert len(visible(tmp_path)) == (step == "released")
    Commit(sink).recover(Batch(sink.sink_id(), "q", 1))
    assert [numbers(file) for file in visible(tmp_path)] == [[0, 1]]
    assert list((tmp_path / ".connectors").glob("*/stage/*")) == []


def _break(patch: pytest.MonkeyPatch, step: str) -> None:
    """Lets a release die at ``step``."""
    calls = {"half discarded": 1, "discarded": 2, "released": 2}
    left = [calls.get(step, 0)]
    remove = SinkFolder.remove

    def die(*_: object) -> None:
        raise OSError("died")

    def counting(self: SinkFolder, attempt: str) -> None:
        if not left[0]:
            die()
        left[0] -= 1
        remove(self, attempt)

    if step == "growing":
        patch.setattr(local, "disk", type("Dying", (local.Disk,), {"rename_if_absent": die})())
    elif step == "discarded":
        patch.setattr(SinkFolder, "publish", die)
    else:
        patch.setattr(SinkFolder, "remove", counting)

"""Files become visible whole, once, and over nothing that exists; what was staged must be there before it is recorded."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from connectors.core import Batch, Fatal
from connectors.core.folder import SinkFolder
from connectors.core.ledger import Entry
from connectors.storage import storage_of


@pytest.fixture
def folder(tmp_path: Path) -> SinkFolder:
    return SinkFolder(storage_of(str(tmp_path)), "orders")


def staged(folder: SinkFolder, content: str = "rows", attempt: str = "attempt") -> str:
    name = f"{folder.begin(attempt)}/rows"
    with folder.create(name) as file:
        file.write(content.encode())
    return name


def test_a_staged_file_gets_its_final_name(folder: SinkFolder, tmp_path: Path) -> None:
    name = staged(folder)
    folder.publish(name, "year=2024/part-0")
    assert (tmp_path / "year=2024/part-0").read_text() == "rows"
    assert not (tmp_path / name).exists()


def test_a_publication_that_is_called_again_does_nothing(folder: SinkFolder, tmp_path: Path) -> None:
    name = staged(folder)
    for _ in range(2):
        folder.publish(name, "part-0")
    assert (tmp_path / "part-0").read_text() == "rows"


def test_a_publication_is_one_step(folder: SinkFolder, tmp_path: Path) -> None:
    name = staged(folder)
    node = (tmp_path / name).stat().st_ino
    folder.publish(name, "part-0")
    assert (tmp_path / "part-0").stat().st_ino == node, "renamed, not copied: there is no half of it"
    assert (tmp_path / "part-0").stat().st_nlink == 1, "and not linked first: there is no second name of it"


def test_what_was_published_and_then_moved_or_deleted_is_not_published_again(folder: SinkFolder, tmp_path: Path) -> None:
    name = staged(folder)
    folder.publish(name, "part-0")
    (tmp_path / "part-0").unlink()
    folder.publish(name, "part-0")
    assert not (tmp_path / "part-0").exists()


def test_nothing_is_ever_overwritten(folder: SinkFolder, tmp_path: Path) -> None:
    name = staged(folder)
    (tmp_path / "part-0").write_text("somebody's")
    with pytest.raises(Fatal, match="part-0 exists") as caught:
        folder.publish(name, "part-0")
    assert "nothing was overwritten" in caught.value.way_out
    assert (tmp_path / "part-0").read_text() == "somebody's"
    (tmp_path / "part-0").unlink()
    folder.publish(name, "part-0")
    assert (tmp_path / "part-0").read_text() == "rows"


def test_staging_and_ledger_are_hidden_from_readers(folder: SinkFolder, tmp_path: Path) -> None:
    staged(folder)
    folder.ledger().record(Entry("q", 0))
    assert [entry.name[0] for entry in tmp_path.iterdir()] == ["."]


def test_a_look_up_among_many_batches_asks_the_disk_for_their_names_only(
    folder: SinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(3):
        folder.ledger().record(Entry("q", batch))
    monkeypatch.setattr("connectors.storage.local._item", None)  # what asks for the size and time of each file
    last = folder.ledger().last("q")
    assert last is not None
    assert last.batch == 2


@pytest.mark.parametrize("sink_id", ["..", "../../elsewhere", "a/b", ".", "a b", "/absolute"])
def test_a_sink_id_of_any_text_has_a_hidden_folder_of_its_own(tmp_path: Path, sink_id: str) -> None:
    target = tmp_path / "target"
    own = Path(os.path.normpath(target / SinkFolder(storage_of(str(target)), sink_id).own))
    assert own.parent == target / ".connectors"


def test_old_staging_is_swept_but_not_that_of_a_live_batch(folder: SinkFolder, tmp_path: Path) -> None:
    for attempt in ("old-1", "live-1", "young-1"):
        folder.begin(attempt)
    for attempt in ("old-1", "live-1"):
        os.utime(tmp_path / folder.stage(attempt), (time.time() - 1000, time.time() - 1000))
    folder.sweep(500, frozenset({"live"}))
    assert sorted(os.listdir(tmp_path / folder.hidden("stage"))) == ["live-1", "young-1"]


def test_what_processes_that_were_killed_left_of_a_ledger_is_swept_when_it_is_old(
    folder: SinkFolder, tmp_path: Path
) -> None:
    folder.ledger().record(Entry("q", 0))
    pending = tmp_path / folder.hidden("ledger/.pending")  # what a record creates first
    whole = os.listdir(pending)
    for number in range(2):
        killed = os.fork()
        if not killed:
            os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            folder.ledger().record(Entry("q", 1))
        os.waitpid(killed, 0)
        if number == 0:
            (old,) = pending.glob(".*")
            os.utime(old, (time.time() - 1000, time.time() - 1000))
    folder.sweep(500, frozenset())
    assert old.name not in os.listdir(pending)
    assert len(list(pending.glob(".*"))) == 1, "whoever creates it may be alive"
    folder.sweep(-1, frozenset())
    assert os.listdir(pending) == whole


def test_sweeping_and_removing_what_does_not_exist_is_no_error(folder: SinkFolder) -> None:
    folder.sweep(0, frozenset())
    folder.remove("nothing")


def test_a_staged_file_that_is_gone_or_has_another_size_is_an_error_that_names_the_folder(
    folder: SinkFolder, tmp_path: Path
) -> None:
    name = staged(folder)
    folder.check_staged([(name, 4)])
    with pytest.raises(Fatal, match=f"with 5 bytes, and on the driver it has 4 bytes: {tmp_path} is not the same folder"):
        folder.check_staged([(name, 5)])
    folder.remove("attempt")
    with pytest.raises(Fatal, match="on the driver it is gone"):
        folder.check_staged([(name, 4)])


def test_of_the_runs_that_died_at_a_batch_the_newest_are_left(folder: SinkFolder, tmp_path: Path) -> None:
    stage = tmp_path / folder.hidden("stage")
    runs = [Batch("orders", "q", 7, run=f"run {number}") for number in range(6)]
    for number, batch in enumerate(runs):
        for _ in range(2):
            attempt = batch.attempt()
            staged(folder, attempt=attempt)
            os.utime(stage / attempt, (number, number))
    other = Batch("orders", "q", 8, run="run 0").attempt()
    staged(folder, attempt=other)
    folder.drop_attempts(runs[5])
    begins = {attempt.rpartition("-")[0] for attempt in os.listdir(stage)}
    assert begins == {batch.attempt().rpartition("-")[0] for batch in runs[2:]} | {other.rpartition("-")[0]}
    folder.drop_attempts(runs[5], failed=True)
    assert runs[5].attempt().rpartition("-")[0] not in {attempt.rpartition("-")[0] for attempt in os.listdir(stage)}

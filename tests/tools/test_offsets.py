"""``connectors offsets``: where the sources of a query stand, and a move of one that no death leaves half done."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors import systems
from connectors.core import metrics
from connectors.ground.errors import Misconfigured, StateError
from connectors.metrics.queries import process_start
from connectors.storage.local import LocalStorage
from connectors.testing.forgetful_disk import ForgetfulDisk
from connectors.testing.source_suite import SourceQuery
from connectors_tools.offsets import Checkpoint, Entry, SourceOffset
from tests.shard_double import ShardDoubleSource

from ..systems.reference_contexts import ShardContext
from .checkpoints import FILES, KAFKA, MESSAGES, METADATA, SEQUENCE, checkpoint, offsets


class DyingAtSync(ForgetfulDisk):
    """The power fails before the sync of this number."""

    def __init__(self, folder: Path, journal: Path, number: int) -> None:
        super().__init__(folder, journal)
        self.number = number

    def sync(self, path: Path) -> None:
        if path.name in ("offsets", "3") or path.parent.name == "offsets":
            if not self.number:
                raise KeyboardInterrupt
            self.number -= 1
        super().sync(path)


def move_until_death(path: Path) -> None:
    opened = Checkpoint(str(path))
    with contextlib.suppress(KeyboardInterrupt):
        entry = opened.movable()
        opened.move(entry, entry.source(None).move({"next": 9}))


def moved(value: Mapping[str, Any], to: Mapping[str, Any]) -> Any:
    return SourceOffset("0", value).move(to).value


class TestAtRest:
    """Entries of checkpoints, without Spark."""

    def test_both_forms_of_an_entry_come_back_as_they_were(self) -> None:
        for version, names in (("v1", ("", "")), ("v2", ("0:", "1:"))):
            text = "\n".join([version, METADATA, f'{names[0]}{{"b": 1, "a": 2}}', f"{names[1]}-"])
            assert Entry.of(7, text).text() == text

    def test_sources_of_the_second_form_are_ordered_by_their_numbers(self) -> None:
        entry = Entry.of(7, "\n".join(["v2", METADATA, '10:{"a": 1}', '9:{"a": 2}']))
        assert [source.name for source in entry.sources] == ["9", "10"]

    def test_what_no_version_has_written_is_refused(self) -> None:
        with pytest.raises(StateError, match="has the format 'v3'"):
            Entry.of(7, f"v3\n{METADATA}\n-")
        with pytest.raises(StateError, match="cannot be read"):
            Entry.of(7, f"v1\n{METADATA}\n{{")

    def test_show_names_the_partitions_and_their_lag(self, tmp_path: Path) -> None:
        output = offsets("show", checkpoint(tmp_path / "c", KAFKA, None)).output
        assert "batch 3, planned 2026-" in output
        assert 'source 0  connectors.kafka\n    {"orders":{"0":100,"1":7}}\n    orders-0  at 100, 20 behind 120' in output
        assert "source 1\n    has not read anything yet" in output
        assert "source 0" not in offsets("show", tmp_path / "c", "--source", "1").output

    def test_a_source_that_counts_is_shown_beside_others_and_not_moved(self, tmp_path: Path) -> None:
        path = checkpoint(tmp_path / "c", SEQUENCE)
        with (path / "offsets" / "3").open("a") as file:
            file.write("\n5")
        assert "source 1\n    5" in offsets("show", path, "--state-location", tmp_path).output
        output = offsets("set", path, "--source", 1, "--to-offset", '{"a": 1}', "--yes", code=2).output
        assert "source 1 stands at 5, which has no parts to move" in " ".join(output.split())
        offsets("set", path, "--source", 0, "--to-offset", '{"next": 1}', "--yes")
        assert (path / "offsets" / "3").read_text().endswith("\n5")

    def test_show_as_json_has_what_a_program_needs(self, tmp_path: Path) -> None:
        facts = json.loads(offsets("show", checkpoint(tmp_path / "c", KAFKA), "--json").output)
        assert (facts["query"], facts["committed"], facts["planned"]) == ("71c8-query", 3, None)
        (source,) = facts["sources"]
        assert (source["connector"], source["position"]) == ("connectors.kafka", {"orders": {"0": 100, "1": 7}})
        assert source["partitions"][0]["lag_records"] == 20

    def test_kafka_is_moved_by_topic_and_partition(self) -> None:
        after = moved(KAFKA, {"orders": {"0": 60}})
        assert after["at"] == {"topics": {"orders": {"at": {"0": 60, "1": 7}, "id": "abc"}}, "cut": {"least": 2}}
        assert after.keys() == {"v", "source", "parts", "at"}
        assert moved({"reservoirVersion": 7, "index": 3}, {"reservoirVersion": 5, "index": -1})["index"] == -1  # Delta's own
        assert moved({"orders": {"0": 5, "1": 9}}, {"orders": {"1": 2}}) == {"orders": {"0": 5, "1": 2}}  # Spark's own source

    def test_a_shift_stops_at_the_first_offset(self) -> None:
        after = SourceOffset("0", KAFKA).shift(-50).position
        assert after == {"orders": {"0": 50, "1": 0}}
        assert SourceOffset("0", {"orders": {"0": 5}}).shift(10).value == {"orders": {"0": 15}}

    def test_a_source_whose_positions_are_in_its_epoch_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(systems._ADDED, "shard_double", (ShardDoubleSource, None))
        (tmp_path / "system").mkdir()
        system = ShardContext(tmp_path / "system")
        system.write(6)  # their numbers are 1 to 6, and every other one is in shard a
        system.shards.split("b")
        log: list[Any] = []
        while SourceQuery(system).next(log):
            pass
        path = checkpoint(tmp_path / "c", log[-1])
        state = ("--state-location", system.options()["stateLocation"])
        assert '    {"a":5,"b":null,"b1":0,"b2":0}' in offsets("show", path, *state).output
        for arguments, message in [
            ((), "--state-location is missing; it has the positions of source 0"),
            (("--state-location", tmp_path), "has no epoch log: it was deleted"),
            ((*state, "--to-offset", '{"z": 1}'), 'names "z", which the source does not have. There is a, b, b1, b2'),
            ((*state, "--to-offset", '{"a": "1"}'), 'gives "a" "1"; it is like 5 now'),
        ]:
            typed = arguments if "--to-offset" in arguments else (*arguments, "--to-offset", '{"a": 1}')
            failure = offsets("set", path, *typed, "--yes", code=1 if "no epoch log" in message else 2).output
            assert message in " ".join(failure.split())
        before = Checkpoint(str(path)).entry(3).source("0").value
        offsets("set", path, *state, "--to-offset", '{"a": 5, "b": null, "b1": 0, "b2": 0}', "--yes")
        assert Checkpoint(str(path)).entry(3).source("0").value["at"] == {**before["at"], "positions": {}}
        offsets("set", path, *state, "--to-offset", '{"a": 3}', "--yes")
        assert '    {"a":3,"b":null,"b1":0,"b2":0}' in offsets("show", path, *state).output
        offsets("set", path, *state, "--to-offset", '{"b": 2}', "--yes")
        log[-1] = Checkpoint(str(path)).entry(3).source("0").value
        assert sorted(row["value"] for row in SourceQuery(system).rest(log)) == [3, 4, 5]
        path = checkpoint(tmp_path / "after", log[-1])
        offsets("reset", path, *state, "--yes")
        assert Checkpoint(str(path)).entry(3).source("0").value["at"]["positions"] is None
        assert "has not read anything yet" in offsets("show", path, *state).output
        assert "has not read anything yet" in offsets("set", path, *state, "--to-offset", '{"a": 1}', "--yes", code=2).output
        log[-1] = Checkpoint(str(path)).entry(3).source("0").value
        assert sorted(row["value"] for row in SourceQuery(system).rest(log)) == [*range(6)]

    def test_an_epoch_that_a_newer_checkpoint_has_planned_is_finished_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(systems._ADDED, "shard_double", (ShardDoubleSource, None))
        (tmp_path / "system").mkdir()
        system, log = ShardContext(tmp_path / "system"), list[Any]()
        system.write(6)
        while SourceQuery(system).next(log):
            pass
        path = checkpoint(tmp_path / "c", log[0])
        state = ("--state-location", system.options()["stateLocation"])
        for move in (("set", path, *state, "--to-offset", '{"a": 1}', "--yes"), ("reset", path, *state, "--yes")):
            assert "has planned the next epoch of source 0 already" in " ".join(offsets(*move, code=2).output.split())

    def test_a_reset_leaves_the_start_to_the_options(self) -> None:
        assert SourceOffset("0", KAFKA).reset().value == {"v": 1, "phase": "initial"}

    @pytest.mark.parametrize(
        ("value", "to", "message"),
        [
            (KAFKA, {"order": {"0": 1}}, r'--to-offset +names "order", which the source does not have. There is orders'),
            (KAFKA, {"orders": {"7": 1}}, r'names "orders.7"'),
            (KAFKA, {"orders": {"0": "1"}}, r'gives "orders.0" "1"; it is like 100 now'),
            (KAFKA, {"orders": {"0": -2}}, r'gives "orders.0" -2; a position is 0 or above'),
            (KAFKA, {"orders": 5}, r'gives "orders" 5'),
            (FILES, {"at": 1}, r"cannot move source 0: it knows files by their names"),
            (SEQUENCE, {"nxt": 1}, r'names "nxt".*There is next'),
            (MESSAGES, {"x": "1"}, r"connectors.pubsub, whose system keeps the position"),
            ({**MESSAGES, "source": "own"}, {"x": "1"}, r"connectors.own, which is not installed here"),
        ],
    )  # fmt: skip
    def test_a_place_that_cannot_be_is_refused(self, value: Mapping[str, Any], to: Mapping[str, Any], message: str) -> None:
        with pytest.raises(Misconfigured, match=message):
            moved(value, to)

    def test_only_what_has_a_number_in_each_partition_is_shifted(self) -> None:
        values: list[Any] = [SEQUENCE, {"logOffset": 3}, {"a": {"0": True}}, {"a": {}}]
        for value in values:
            with pytest.raises(Misconfigured, match="moves the offsets of Kafka"):
                SourceOffset("0", value).shift(1)

    def test_what_spark_reads_itself_has_no_start_to_go_back_to(self, tmp_path: Path) -> None:
        path = checkpoint(tmp_path / "c", {"logOffset": 3})
        assert "give source 0 a place by set --to-offset" in offsets("reset", path, "--yes", code=2).output

    def test_bad_calls_say_what_is_wrong_and_change_nothing(self, tmp_path: Path) -> None:
        path = checkpoint(tmp_path / "c", SEQUENCE, SEQUENCE, None)
        before = (path / "offsets" / "3").read_bytes()
        to = ("--to-offset", '{"next": 1}')
        for arguments, code, message in [
            (("set", path), 2, "give one of --to-offset, --shift-by, --to-earliest"),
            (("set", path, *to, "--shift-by", 1), 2, "give one of --to-offset, --shift-by, --to-earliest"),
            (("set", path, "--to-offset", "1"), 2, "--to-offset must be a JSON object; got 1"),
            (("set", path, "--to-offset", "{"), 2, "--to-offset must be JSON"),
            (("set", path, *to), 2, "the query has 3 sources: 0, 1, 2"),
            (("set", path, *to, "--source", "5"), 2, 'must be one of 0, 1, 2; got "5"'),
            (("set", path, *to, "--source", "2"), 2, "has not read anything yet"),
            (("show", tmp_path / "nothing"), 2, "has no checkpoint of a query"),
            (("show", "gopher://x"), 2, "gopher"),
        ]:
            assert message in " ".join(offsets(*arguments, code=code).output.split())
        offsets("set", path, *to, "--source", "0", "--dry-run")
        assert "Aborted" in offsets("set", path, *to, "--source", "0", code=1, stdin="n\n").output
        assert (path / "offsets" / "3").read_bytes() == before

    @pytest.mark.parametrize(
        ("value", "move", "is_free"),
        [
            (SEQUENCE, ("set", "--to-offset", '{"next": 42}'), True),
            (SEQUENCE, ("set", "--to-offset", '{"next": 40}'), False),
            (KAFKA, ("set", "--to-offset", '{"orders": {"0": 101}}'), True),
            (KAFKA, ("set", "--to-offset", '{"orders": {"0": 200, "1": 6}}'), False),
            (FILES, ("reset",), False),
        ],
    )
    def test_nothing_is_delivered_again_unasked(
        self, tmp_path: Path, value: Mapping[str, Any], move: tuple[str, ...], is_free: bool
    ) -> None:
        path = checkpoint(tmp_path / "c", value)
        before = (path / "offsets" / "3").read_bytes()
        output = offsets(move[0], path, *move[1:], "--yes", code=0 if is_free else 2, accepts=False).output
        assert ("--accept-duplicates" in output) is not is_free
        assert ((path / "offsets" / "3").read_bytes() != before) is is_free

    def test_a_batch_that_is_not_finished_is_not_taken_from_its_sink(self, tmp_path: Path) -> None:
        path = checkpoint(tmp_path / "c", SEQUENCE, committed=False)
        output = offsets("set", path, "--to-offset", '{"next": 1}', "--yes", code=2).output
        assert "has batch 3, planned and not committed. Start the query" in " ".join(output.split())

    def test_a_query_that_runs_on_another_machine_keeps_its_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = checkpoint(tmp_path / "c", {"logOffset": 3})
        (path / "offsets" / "2").write_text(f'v1\n{METADATA}\n{{"logOffset": 2}}')
        before = {file.name: file.read_text() for file in (path / "offsets").iterdir()}
        sync = LocalStorage.sync

        def goes_on(storage: LocalStorage, *arguments: Any) -> None:
            sync(storage, *arguments)
            (path / "offsets" / "4").write_text(f'v1\n{METADATA}\n{{"logOffset": 4}}')

        monkeypatch.setattr(LocalStorage, "sync", goes_on)
        output = offsets("set", path, "--to-offset", '{"logOffset": 0}', "--yes", code=2).output
        assert "has a batch behind 3 by now: the query runs somewhere" in " ".join(output.split())
        assert {name: (path / "offsets" / name).read_text() for name in before} == before

    def test_a_query_that_goes_on_before_the_answer_is_not_moved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = checkpoint(tmp_path / "c", {"orders": {"0": 5, "1": 9}})

        def goes_on(*_: Any, **__: Any) -> None:
            (path / "offsets" / "4").write_text(f'v1\n{METADATA}\n{{"orders": {{"0": 6, "1": 12}}}}')
            (path / "commits" / "4").write_text("v1\n{}")

        monkeypatch.setattr("click.confirm", goes_on)
        output = offsets("set", path, "--to-offset", '{"orders": {"0": 2}}', code=2).output
        assert "has gone on behind batch 3 meanwhile" in " ".join(output.split())
        assert Checkpoint(str(path)).movable().source(None).position == {"orders": {"0": 6, "1": 12}}

    @pytest.mark.parametrize("dies_before", range(3))
    def test_a_power_failure_leaves_the_old_place_or_the_new_one(self, tmp_path: Path, dies_before: int) -> None:
        for seed in range(60):
            folder = tmp_path / str(seed)
            path = checkpoint(folder / "c", SEQUENCE)
            old = (path / "offsets" / "3").read_text()
            (path / "offsets" / ".3.crc").write_text("of the old entry")
            disk = DyingAtSync(path, folder / "journal", dies_before)
            disk.start()
            disk.run(lambda path=path: move_until_death(path))  # type: ignore[misc]
            disk.fail(random.Random(seed))
            is_old = (path / "offsets" / "3").read_text() == old
            assert is_old or not (path / "offsets" / ".3.crc").exists()
            assert Checkpoint(str(path)).movable().source(None).position == {"next": 41 if is_old else 9}

    def test_a_query_that_runs_is_not_moved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import os
        import platform
        import threading

        monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "metrics"))
        monkeypatch.delattr("connectors.metrics.queries.counted_queries")  # thousands of others would take seconds
        monkeypatch.setattr("connectors_tools.cli_offsets._END_SECONDS", 0.0)
        run = {"process": os.getpid(), "process_start": process_start(os.getpid()), "machine": platform.node()}
        note = {"name": "orders", "state": "running", "started": time.time(), **run}
        metrics.write_note("71c8-query", note)
        path = checkpoint(tmp_path / "c", SEQUENCE)
        move = ("set", path, "--to-offset", '{"next": 1}', "--yes")
        assert f"query orders runs, in process {os.getpid()}. Stop it first." in offsets(*move, code=1).output
        monkeypatch.setattr("connectors_tools.cli_offsets._END_SECONDS", 60.0)
        threading.Timer(0.5, metrics.write_note, ("71c8-query", {**note, "state": "stopped"})).start()
        offsets(*move)  # the session says late that the query has ended

    def test_state_that_stays_is_named(self, tmp_path: Path) -> None:
        path = checkpoint(tmp_path / "c", SEQUENCE)
        (path / "state").mkdir()
        assert "second time, or is left out as known or late" in offsets("reset", path, "--dry-run").output

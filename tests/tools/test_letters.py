"""``connectors letters``: what dead letters say, and how they are dropped."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch
from connectors.core.dead_letters import SinkLetters, SourceLetters
from connectors.core.letter_files import LetterFile
from connectors.storage.local import LocalStorage
from connectors.testing.forgetful_disk import ForgetfulDisk
from connectors_tools.letters import Filter, Letters

from .letter_folders import COMMA, DAMAGED, DyingStorage, LateStorage, Part, letters, put, records


def test_a_list_counts_kinds_of_errors(tmp_path: Path) -> None:
    put(tmp_path)
    put(tmp_path, 1, [b'{"id":1000,}'])
    assert [line for line in letters("list", tmp_path).output.splitlines() if " to " not in line and "UTC" not in line] == [
        "3 dead letters of connectors.kafka, Poison", "    no JSON: a comma at …",
        "1 dead letter of connectors.kafka, Poison", "    no JSON at all",
    ]  # fmt: skip
    kinds = json.loads(letters("list", tmp_path, "--error", "at all", "--json").output)
    assert [(kind["count"], kind["error"]) for kind in kinds] == [(1, "no JSON at all")]
    assert letters("list", tmp_path, "--source", "connectors.files").output == f"no dead letters in {tmp_path}\n"


def test_letters_are_chosen_by_time(tmp_path: Path) -> None:
    put(tmp_path)
    now = datetime.datetime.now().astimezone()
    hour = datetime.timedelta(hours=1)
    counts = [
        len(json.loads(letters("list", tmp_path, option, time.isoformat(timespec="seconds"), "--json").output))
        for option, time in [("--since", now - hour), ("--since", now + hour), ("--until", now - hour), ("--until", now + hour)]
    ]
    assert counts == [2, 0, 0, 2]
    assert letters("list", tmp_path, "--since", "0001-01-01", "--until", "9999-12-31T23:59:59").output.count("dead letter") == 2


def test_values_are_masked_unless_asked_for(tmp_path: Path) -> None:
    put(tmp_path, records=[b'{"city": "Bern", "email" : "a.b@c.ch", "id": 12,}'])
    shown = letters("show", tmp_path).output
    assert '{"city": "xxxx", "email" : "x.x@x.xx", "id": 99,}' in shown
    assert "xxxx-9" in shown
    assert "Bern" in letters("show", tmp_path, "--plain").output


def test_values_in_errors_are_masked_too(tmp_path: Path) -> None:
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    for number, name in enumerate(["anna@example.org", "bo@example.org", "Johannes-Maximilian"]):
        record = json.dumps({"id": name, "note": "a number"}).encode()
        found.add(str(number), "ValueError", f"field id: must be a bigint; got '{name[:16]}...'", record)
    found.put(Part(0))
    for command in ("list", "show"):
        output = letters(command, tmp_path).output
        assert "must be" in output
        assert not [word for word in ("anna", "bo", "example", "Johannes", "Maxim") if word in output]
    assert "got 'anna@example.org...'" in letters("show", tmp_path, "--plain").output


@pytest.mark.parametrize("encoding", ["json", "utf-8", "latin-1", "utf-16", "utf-16-be"])
def test_values_in_errors_are_masked_whatever_the_encoding_of_the_record(tmp_path: Path, encoding: str) -> None:
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    text = json.dumps({"id": "Jürgen\tBäcker"}, ensure_ascii=encoding == "json")
    record = text.encode("utf-8" if encoding == "json" else encoding)
    found.add("0", "ValueError", "field id: must be a bigint; got 'Jürgen\tBäcker'", record)
    found.put(Part(0))
    for command in ("list", "show"):
        assert not [word for word in ("Jürgen", "Bäcker") if word in letters(command, tmp_path).output]


def test_a_value_that_stands_before_a_colon_is_masked(tmp_path: Path) -> None:
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    damaged = [b'{"city":"Bern":3,"note":1}', b'"Bern": 3', b'{"note":["Bern" : 3]}', b'{"note":"a \\"Bern\\":"}']
    for number, record in enumerate(damaged):
        found.add(str(number), "JSONDecodeError", "a note at 'Bern'", record)
    found.put(Part(0))
    shown = letters("show", tmp_path).output + letters("list", tmp_path).output
    assert '{"city":"xxxx":9,"note":9}' in shown
    assert "Bern" not in shown


def test_a_limit_is_a_number_from_1_on(tmp_path: Path) -> None:
    assert "--limit" in letters("show", tmp_path, "--limit", "-1", code=2).output


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "orders.parquet")
    assert "orders.parquet" in letters("list", tmp_path, code=1).output
    (tmp_path / "orders.parquet").write_bytes(b"")
    assert "orders.parquet" in letters("list", tmp_path, code=1).output


def test_a_replay_does_not_bring_back_what_was_dropped(tmp_path: Path) -> None:
    put(tmp_path)
    assert letters("drop", tmp_path, "--error", "comma", "--yes").output == "dropped: 2 dead letters\n"
    put(tmp_path)
    assert records(tmp_path) == [b"neither"]
    letters("drop", tmp_path, "--yes")
    put(tmp_path)
    assert records(tmp_path) == []
    put(tmp_path, records=[*DAMAGED, b"new"])  # the topic was made anew, or a schema has changed
    assert records(tmp_path) == [b"new"]
    put(tmp_path, records=[*DAMAGED, b"new"])
    assert records(tmp_path) == [b"new"]


def test_letters_of_a_year_that_no_datetime_has_are_listed_and_dropped(tmp_path: Path) -> None:
    at = 1_600_000_000_123_000_000
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    for number in range(2):
        found.add(str(number), "Poison", f"error {number}", b"x", timestamp=at)
    found.put(Part(0))
    assert letters("list", tmp_path).output.startswith("2 dead letters")
    letters("drop", tmp_path, "--error", "error 0", "--yes")
    assert pq.read_table(tmp_path)["timestamp"].cast(pa.int64()).to_pylist() == [at]


def refuse(folder: Path, *records: str) -> None:
    """What a sink without a ledger does with bad rows of one batch, each time that it writes it."""
    sink, batch, file = SinkLetters(LocalStorage(folder), "http", "orders", repeats=True), Batch("orders", "q", 3), LetterFile()
    for record in records:
        file.add({"error_class": "Poison", "error": f"no {record}", "record": record.encode()})
    staged = [sink.stage(batch, file)]
    sink.decide(batch, staged)
    sink.publish(batch, staged)


def test_a_replay_of_a_sink_without_a_ledger_does_not_bring_back_what_was_dropped(tmp_path: Path) -> None:
    refuse(tmp_path, "taken the next time", "x", "y", "x")
    letters("drop", tmp_path, "--error", "no x", "--yes")
    for _ in range(2):
        refuse(tmp_path, "y", "x", "x", "new")
        assert sorted(records(tmp_path)) == [b"new", b"taken the next time", b"y"]
        assert pq.read_table(tmp_path).num_rows == 3


def test_a_removal_takes_nothing_that_a_replay_of_the_batch_brings_meanwhile(tmp_path: Path) -> None:
    refuse(tmp_path, "x")
    opened = Letters(str(tmp_path))
    opened.storage = LateStorage(tmp_path, lambda: refuse(tmp_path, "new", "x"))
    assert opened.drop(Filter()) == 1
    assert records(tmp_path) == [b"new"]


def test_what_is_dropped_is_gone_also_after_a_power_failure(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / f"letters-{seed}"
        put(folder)
        disk = ForgetfulDisk(folder, tmp_path / f"journal-{seed}")
        disk.start()
        disk.run(lambda folder=folder: Letters(str(folder)).drop(COMMA))  # type: ignore[misc]
        disk.fail(random.Random(seed))
        assert records(folder) == [b"neither"]
        put(folder)
        assert records(folder) == [b"neither"]


def test_other_readers_see_what_is_left_also_when_two_rewrite_a_file_or_one_dies(tmp_path: Path) -> None:
    put(tmp_path)
    opened = Letters(str(tmp_path))
    opened.storage = LateStorage(tmp_path, lambda: Letters(str(tmp_path)).drop(Filter(error="at all")))
    assert opened.drop(COMMA) == 2
    assert pq.read_table(tmp_path).num_rows == 0
    put(tmp_path, 1)
    opened.storage = DyingStorage(tmp_path, 1)  # the record of the removal is there, and the file is as before
    with contextlib.suppress(KeyboardInterrupt):
        opened.drop(COMMA)
    assert Letters(str(tmp_path)).drop(COMMA) == 0
    assert pq.read_table(tmp_path)["record"].to_pylist() == [b"neither"]

"""Dead letters: nothing set aside is lost, nothing is there twice, and memory does not grow with them."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Batch, Misconfigured, Split
from connectors.core.commit import Commit
from connectors.core.dead_letters import SinkLetters, SourceLetters
from connectors.core.ledger import once_query
from connectors.core.letter_files import SHOWN, LetterFile, letter_key, letters_in, letters_left, remove_letters
from connectors.core.writing import stage
from connectors.storage import Storage, storage_of
from connectors.storage.base import Item
from connectors.storage.local import LocalStorage
from connectors.systems.file_stream import FileStreamSink, FileStreamSource
from connectors.testing.servers import MotoServer

from ..servers import required


@dataclass(frozen=True)
class Part(Split):
    first: int
    topic_id: str = ""


def put(storage: Storage, split: Part, *records: tuple[str, bytes], error_class: str = "ValueError") -> None:
    letters = SourceLetters("connectors.toy", storage)
    for position, record in records:
        letters.add(position, error_class, f"no number: {record!r}", record)
    letters.put(split)


def read(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]


def records(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((row["position"], row["record"]) for row in read(folder))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_of(str(tmp_path))


class TestSource:
    def test_a_replay_adds_nothing(self, storage: Storage, tmp_path: Path) -> None:
        for _ in range(3):
            put(storage, Part(0), ("1", b"x"), ("5", b"y"))
        assert records(tmp_path) == [("1", b"x"), ("5", b"y")]

    def test_a_replay_with_another_schema_adds_what_is_bad_now(self, storage: Storage, tmp_path: Path) -> None:
        put(storage, Part(0), ("1", b"x"), ("5", b"y"))
        for _ in range(2):
            put(storage, Part(0), ("5", b"y"), ("7", b"z"))
        assert records(tmp_path) == [("1", b"x"), ("5", b"y"), ("7", b"z")]

    def test_the_same_place_with_another_record_or_error_class_is_another_letter(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        put(storage, Part(0), ("1", b"x"))
        put(storage, Part(0), ("1", b"other"))
        put(storage, Part(0), ("1", b"x"), error_class="OverflowError")
        assert [row["record"] for row in read(tmp_path)].count(b"x") == 2
        assert [row["record"] for row in read(tmp_path)].count(b"other") == 1

    def test_the_words_of_an_error_and_its_time_do_not_make_another_letter(self, storage: Storage, tmp_path: Path) -> None:
        for error in ("no number", "not a number"):
            letters = SourceLetters("connectors.toy", storage)
            letters.add("1", "ValueError", error, b"x")
            letters.put(Part(0))
        assert len(read(tmp_path)) == 1

    def test_splits_of_a_topic_that_was_made_anew_do_not_meet(self, storage: Storage, tmp_path: Path) -> None:
        for topic in ("a", "b"):
            put(storage, Part(0, topic), ("1", b"x"))
        assert records(tmp_path) == [("1", b"x"), ("1", b"x")]

    def test_records_that_come_again_are_one_letter(self, storage: Storage, tmp_path: Path) -> None:
        put(storage, Part(0), ("1", b"x"), ("2", b"y"), ("1", b"x"), ("2", b"y"), ("3", b"z"))
        assert [record for _, record in records(tmp_path)] == [b"x", b"y", b"z"]


class TestSink:
    def test_what_a_killed_process_was_writing_does_not_stop_the_next(self, storage: Storage, tmp_path: Path) -> None:
        letters = SinkLetters(storage, "toy", "orders")
        ready = tmp_path / letters.folder.hidden("ready", "q")
        ready.mkdir(parents=True)
        (ready / ".9f86d081884c7d659a2feaa0c55ad015").write_bytes(b"half")
        letters.recover(lambda query: 7)
        assert read(tmp_path) == []

    def test_what_another_query_has_decided_and_not_recorded_is_left_alone(self, storage: Storage, tmp_path: Path) -> None:
        letters, other = (SinkLetters(storage, "toy", "orders") for _ in range(2))
        batch = Batch("orders", "another query", 3)
        other.decide(batch, [other.stage(batch, letter_file("x"))])
        letters.recover(lambda query: {"another query": 2}.get(query, 9))
        other.publish(batch)
        assert [row["record"] for row in read(tmp_path)] == [b"x"]

    def test_a_driver_that_stood_still_while_another_run_published_its_batch_stops_no_later_run(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        (late, other), batch = (SinkLetters(storage, "toy", "orders") for _ in range(2)), Batch("orders", "q", 3)
        other.decide(batch, [other.stage(batch, letter_file("x"))])
        other.publish(batch)
        late.decide(batch, [late.stage(batch, letter_file("y"))])
        other.recover(lambda query: 3)
        assert [row["record"] for row in read(tmp_path)] == [b"x"]
        assert not list(tmp_path.glob(".connectors/*/ready/*/*")), "each start reads what is there"
        other.recover(lambda query: 3)

    def test_a_batch_without_letters_asks_the_storage_once_when_it_is_published(self, tmp_path: Path) -> None:
        asked: list[str] = []

        class Asked(LocalStorage):
            def item(self, name: str) -> Item | None:
                asked.append(name)
                return super().item(name)

            def publish(self, name: str, final: str, journal: str) -> bool:
                asked.append(name)
                return super().publish(name, final, journal)

        letters, batch = SinkLetters(Asked(tmp_path), "toy", "orders"), Batch("orders", "q", 3)
        letters.decide(batch, [])
        letters.publish(batch)
        assert len(asked) == 1

    def test_letters_of_all_tasks_are_numbered_and_appear_with_the_commit(self, storage: Storage, tmp_path: Path) -> None:
        letters, batch = SinkLetters(storage, "toy", "orders"), Batch("orders", "q", 3)
        staged = [letters.stage(batch, letter_file("a", "b")), letters.stage(batch, letter_file("c"))]
        letters.decide(batch, staged)
        assert read(tmp_path) == []
        for _ in range(2):
            letters.publish(batch, staged)
        numbered = [(json.loads(row["position"])["n"], row["record"]) for row in read(tmp_path)]
        assert numbered == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert [file for file in (tmp_path / ".connectors").rglob("*") if file.is_file()] == []


class TestPlaces:
    def test_letters_go_to_the_bucket_that_the_option_names(self, tmp_path: Path) -> None:
        server = required(MotoServer)
        bucket = f"letters{id(tmp_path)}"
        options = {"errors": "deadLetter", "deadLetterPath": f"s3://{bucket}/bad", "storageOptions": server.bucket(bucket)}
        sink = FileStreamSink.of({"path": str(tmp_path), **options})
        letters, batch = sink.letters(), Batch(sink.sink_id(), "q", 0)
        assert letters is not None
        staged = [letters.stage(batch, letter_file("x"))]
        letters.decide(batch, staged)
        letters.publish(batch, staged)
        put(storage_of(options["deadLetterPath"], options["storageOptions"]), Part(0), ("1", b"y"))  # type: ignore[arg-type]
        keys = [item["Key"] for item in server.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
        assert sorted(key.partition("-")[0] for key in keys) == ["bad/file_stream", "bad/toy"]
        assert list(tmp_path.iterdir()) == []

    def test_letters_are_removed_in_a_bucket_while_others_read_them(self, tmp_path: Path) -> None:
        server = required(MotoServer)
        bucket = f"removed{id(tmp_path)}"
        location, options = f"s3://{bucket}/bad", server.bucket(bucket)
        storage = storage_of(location, options)
        put(storage, Part(0), *((str(number), b"x" * 100) for number in range(5000)))
        (name,) = storage.names()
        keys = [letter_key(letter) for letter in letters_left(storage, name)]
        reader = storage_of(location, options)
        call, removals = reader.bucket.call, iter(range(0, 5000, 1000))  # type: ignore[attr-defined]

        def call_late(operation: str, **arguments: Any) -> Any:
            if operation == "get_object":
                first = next(removals)
                remove_letters(storage, name, set(keys[first : first + 1000]))
            return call(operation, **arguments)

        reader.bucket.call = call_late  # type: ignore[attr-defined]
        assert [letter_key(letter) for letter in letters_left(reader, name)] == keys[1000:]

    @pytest.mark.parametrize("kind", [FileStreamSource, FileStreamSink])
    def test_a_place_without_a_conditional_create_is_refused_at_the_start(self, kind: Any) -> None:
        options = {"path": "/data", "errors": "deadLetter", "deadLetterPath": "ftp://host/bad"}
        more = {"streaming": True} if kind is FileStreamSource else {}
        with pytest.raises(Misconfigured, match=r"deadLetterPath .*ftp:// has no proven way to create a file only where"):
            kind.of(options, **more)


class TestMemory:
    def test_letters_leave_memory_as_they_come(self) -> None:
        letters, record = LetterFile(), b"x" * 1000
        tracemalloc.start()
        try:
            for number in range(100_000):
                letters.add({"source": "s", "position": str(number), "error_class": "E", "error": "e", "record": record})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 60 << 20, "100 MB of records pass through a few of them"
        assert sum(1 for _ in letters_in(letters.content())) == 100_000

    def test_an_error_of_any_length_is_shown_in_part(self) -> None:
        letters = LetterFile()
        letters.add({"error": "no " * 100_000, "record": b"x"})
        (letter,) = letters_in(letters.content())
        assert len(letter["error"]) < SHOWN + 50
        assert letter["error"].endswith("(300000 characters)")
        again = LetterFile()
        again.add(letter)  # its file is rewritten
        assert list(letters_in(again.content())) == [letter]


def letter_file(*records: str) -> LetterFile:
    letters = LetterFile()
    for record in records:
        letters.add({"error_class": "Poison", "error": "no", "record": record.encode()})
    return letters


def test_letters_of_a_batch_write_appear_though_its_driver_died_before_the_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"path": str(tmp_path / "out"), "errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    sink = FileStreamSink.of(options)
    schema = pa.schema([("value", pa.string())])
    dead = Batch(sink.sink_id(), once_query(), 0, run="first")
    rows = pa.RecordBatch.from_pydict({"value": ["good", "ba\nd"]}, schema=schema)
    commit = Commit(sink)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commit.committer, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        commit.finish(dead, [stage(sink, dead, schema, 0, iter([rows]))])
    Commit(sink).begin(Batch(sink.sink_id(), once_query(), 0, run="second"))
    assert [row["error_class"] for row in read(tmp_path / "letters")] == ["Poison"]
    assert [file.read_text() for file in (tmp_path / "out").glob("part-*")] == ["good\n"]

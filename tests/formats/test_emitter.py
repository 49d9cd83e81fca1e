"""Bad records: the user says what becomes of them, and a replay adds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Poison, Split
from connectors.core.letter_files import DEAD_LETTERS
from connectors.formats import check_format, format_options
from connectors.formats.emitter import FormatEmitter

RAW = pa.schema([("file", pa.string()), ("at", pa.int64()), ("value", pa.binary())])
ROWS = pa.schema([("file", pa.string()), ("at", pa.int64()), ("value", pa.struct([("a", pa.int64())]))])


@dataclass(frozen=True)
class Part(Split):
    file: str
    first: int


ONE, TWO = Part("one", 0), Part("two", 0)


def emitter_of(errors: str, path: Path | None = None) -> FormatEmitter:
    typed = {
        "value.format": "json",
        "schema": "a long",
        "errors": errors,
        **({"deadLetterPath": str(path)} if path else {}),
    }
    values = format_options("string").parse("connectors.toy", typed, check_format)
    return FormatEmitter("connectors.toy", values, ROWS, ("file", "at"))


def records(*values: bytes | None, file: str = "one") -> pa.RecordBatch:
    places = range(len(values))
    return pa.RecordBatch.from_pydict(
        {"file": [file] * len(values), "at": list(places), "value": list(values)}, schema=RAW
    )


def letters(path: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(path.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_good_records_become_rows() -> None:
    rows = emitter_of("fail").emit(records(b'{"a":1}', None), ONE)
    assert rows.schema == ROWS
    assert [row["value"] for row in rows.to_pylist()] == [{"a": 1}, None]


def test_a_bad_record_fails_with_its_place_its_bytes_and_the_way_out() -> None:
    with pytest.raises(Poison) as caught:
        emitter_of("fail").emit(records(b'{"a":1}', b"rotten \xff"), ONE)
    assert caught.value.record == b"rotten \xff"
    assert caught.value.where == '{"at":1,"file":"one"}'
    assert "errors=deadLetter" in caught.value.way_out
    assert "rotten" in str(caught.value)


def test_a_long_bad_record_is_cut_in_the_message_and_whole_in_the_error() -> None:
    with pytest.raises(Poison) as caught:
        emitter_of("fail").emit(records(b"x" * 10_000), ONE)
    assert len(str(caught.value)) < 500
    assert len(caught.value.record) == 10_000


def test_a_bad_record_is_skipped() -> None:
    rows = emitter_of("skip").emit(records(b"x", b'{"a":1}', b"y", b'{"a":2}', b"z"), ONE)
    assert [(row["at"], row["value"]["a"]) for row in rows.to_pylist()] == [(1, 1), (3, 2)]
    assert emitter_of("skip").emit(records(b"x"), ONE).num_rows == 0


def test_a_bad_record_becomes_a_dead_letter(tmp_path: Path) -> None:
    emitter = emitter_of("deadLetter", tmp_path)
    rows = emitter.emit(records(b'{"a":1}', b"rotten"), ONE)
    emitter.finish(ONE)
    assert rows.num_rows == 1
    (letter,) = letters(tmp_path)
    assert list(letter) == DEAD_LETTERS.names
    assert (letter["source"], letter["position"]) == ("connectors.toy", '{"at":1,"file":"one"}')
    assert (letter["error_class"], letter["record"]) == ("JSONDecodeError", b"rotten")
    assert letter["error"]
    assert letter["at"].tzinfo is not None


def test_a_split_without_bad_records_has_no_dead_letters(tmp_path: Path) -> None:
    emitter = emitter_of("deadLetter", tmp_path)
    emitter.emit(records(b'{"a":1}'), ONE)
    emitter.finish(ONE)
    assert letters(tmp_path) == []


def test_a_replay_adds_no_dead_letters(tmp_path: Path) -> None:
    for _ in range(3):
        emitter = emitter_of("deadLetter", tmp_path)
        emitter.emit(records(b"x", b"y"), ONE)
        emitter.finish(ONE)
    assert [letter["record"] for letter in letters(tmp_path)] == [b"x", b"y"]


def test_an_attempt_that_failed_leaves_no_dead_letters_and_the_next_one_all(tmp_path: Path) -> None:
    emitter_of("deadLetter", tmp_path).emit(records(b"x"), ONE)
    assert letters(tmp_path) == []
    emitter = emitter_of("deadLetter", tmp_path)
    emitter.emit(records(b"x", b"y"), ONE)
    emitter.finish(ONE)
    assert len(letters(tmp_path)) == 2


def test_records_that_an_emitter_sees_again_are_one_dead_letter(tmp_path: Path) -> None:
    emitter = emitter_of("deadLetter", tmp_path)
    first = emitter.emit(records(b"x", b'{"a":1}'), ONE)
    again = emitter.emit(records(b"x", b'{"a":1}'), ONE)
    emitter.finish(ONE)
    assert first == again
    assert len(letters(tmp_path)) == 1


def test_each_split_has_dead_letters_of_its_own(tmp_path: Path) -> None:
    emitter = emitter_of("deadLetter", tmp_path)
    for split in (ONE, TWO):
        emitter.emit(records(b"x", file=split.file), split)
        emitter.finish(split)
    assert len(list(tmp_path.glob("toy-*.parquet"))) == 2
    assert {letter["position"] for letter in letters(tmp_path)} == {'{"at":0,"file":"one"}', '{"at":0,"file":"two"}'}


KEYED_RAW = pa.schema([("at", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
KEYED_ROWS = pa.schema([("at", pa.int64()), ("key", pa.string()), ("value", pa.struct([("a", pa.int64())]))])


def keyed(errors: str, path: Path | None = None) -> FormatEmitter:
    typed = {"key.format": "string", "value.format": "json", "schema": "a long", "errors": errors}
    typed |= {"deadLetterPath": str(path)} if path else {}
    values = format_options("bytes", key="bytes").parse("connectors.toy", typed, check_format)
    return FormatEmitter("connectors.toy", values, KEYED_ROWS, ("at",))


KEYED = pa.RecordBatch.from_pydict(
    {
        "at": range(6),
        "key": [b"k", b"\xff", b"k", b"\xff", None, b"\xff"],
        "value": [b'{"a":1}', b'{"a":2}', b"x", b"y", None, None],
    },
    schema=KEYED_RAW,
)


def test_keys_are_read_beside_values_and_a_record_is_one_dead_letter_whichever_is_bad(tmp_path: Path) -> None:
    emitter = keyed("deadLetter", tmp_path)
    rows = emitter.emit(KEYED, ONE)
    emitter.finish(ONE)
    assert rows.to_pylist() == [{"at": 0, "key": "k", "value": {"a": 1}}, {"at": 4, "key": None, "value": None}]
    rejects = {letter["position"]: letter for letter in letters(tmp_path)}
    assert {place: letter["record"] for place, letter in rejects.items()} == {
        '{"at":1}': b'{"a":2}',
        '{"at":2}': b"x",
        '{"at":3}': b"y",
        '{"at":5}': None,
    }
    assert rejects['{"at":1}']["error"].startswith("key: not UTF-8")
    assert rejects['{"at":2}']["error"].startswith("value: ")
    assert "value: " in rejects['{"at":3}']["error"]
    assert "key: " in rejects['{"at":3}']["error"]


def test_a_bad_key_without_a_value_fails_with_its_place() -> None:
    with pytest.raises(Poison, match="key: not UTF-8") as caught:
        keyed("fail").emit(KEYED[5:], ONE)
    assert caught.value.where == '{"at":5}'
    assert "has no value" in str(caught.value)

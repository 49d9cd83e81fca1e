"""Quotes of csv are those of RFC 4180: a file with others is refused, since Arrow makes other rows of it, and says nothing."""

from __future__ import annotations

import codecs
import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core import Poison
from connectors.systems.files.reader import _Quotes, read_file

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TEXTS = pa.schema([("name", pa.string()), ("other", pa.string())])


class Trickle:
    """A stream that gives at most ``size`` bytes at a time."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content = io.BytesIO(content)
        self._size = size

    def read(self, size: int) -> bytes:
        return self._content.read(min(size, self._size))


def has_sound_quotes(text: str) -> bool:
    """What a reading character by character finds; a quote within a field that begins otherwise is any character."""
    at = 0
    while at < len(text):
        if text[at] == '"':
            at += 1
            while True:
                at = text.find('"', at) + 1
                if not at:
                    return False
                if text[at : at + 1] != '"':
                    break
                at += 1
            if text[at : at + 1] not in ("", ",", "\r", "\n"):
                return False
        while at < len(text) and text[at] not in ",\r\n":
            at += 1
        at += 1
    return True


@given(st.text('"""",a\r\n ', max_size=16), st.integers(1, 5))
def test_what_is_refused_is_what_a_simple_reading_refuses(text: str, size: int) -> None:
    stream: Any = io.BufferedReader(_Quotes(Trickle(text.encode(), size), "a.csv"), 8)
    if has_sound_quotes(text):
        assert stream.read() == text.encode()
    else:
        with pytest.raises(Poison, match=r"a\.csv cannot be read as csv: a text in quotes"):
            stream.read()


def read(path: Path, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as file:
        return [row for rows in read_file(file, str(path), "csv", schema) for row in rows.to_pylist()]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (r'1,"say \"hi\""', "ends before the end of its field"),  # as Spark writes by default
        ('1,"a"b', "ends before the end of its field"),
        ('1,"a\n2,b\n3,c', "is never closed"),
    ],
)
def test_a_file_with_other_quotes_is_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "a.csv").write_text(f"0,x\n{text}\n")
    with pytest.raises(Poison, match=rf"a\.csv cannot be read as csv: a text in quotes {what}") as refused:
        read(tmp_path / "a.csv")
    assert 'option("escape", "\\"")' in str(refused.value)


def test_line_ends_and_doubled_quotes_within_quotes_and_single_ones_elsewhere_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('1,"a,\n""b"""\n2,5" pipe\n3,""\n4,"' + "x\n" * (1 << 20) + '"\n5,"end"')
    names = ['a,\n"b"', '5" pipe', "", "x\n" * (1 << 20), "end"]
    assert read(tmp_path / "a.csv") == [{"id": number, "name": name} for number, name in enumerate(names, 1)]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path, name: str) -> None:
    content = codecs.BOM_UTF8 + b'"a,""b""",x\n"1,",y\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read(tmp_path / name, TEXTS) == [{"name": 'a,"b"', "other": "x"}, {"name": "1,", "other": "y"}]


@pytest.mark.parametrize("text", [b'"abc","def"\n' * (1 << 18), b'"' + b'""' * (1 << 20) + b'",x\n'], ids=["short", "long"])
def test_the_check_needs_little_memory_whatever_arrow_asks_for_at_once(text: bytes) -> None:
    stream, into = _Quotes(io.BytesIO(text), "a.csv"), bytearray(len(text))
    tracemalloc.start()
    try:
        while stream.readinto(into):
            pass
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()

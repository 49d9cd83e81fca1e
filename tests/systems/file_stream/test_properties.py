"""Whatever files do while they are followed, each line is read once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.core import ReadLimit
from connectors.core.planning import Offset
from connectors.systems.file_stream import lines, source
from connectors.testing.source_suite import SourceQuery

from ..reference_contexts import FileStreamContext
from .test_lines import simple_lines

_TEXT = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r", b"\r\n", b"\0", b"\xff"]), max_size=8).map(b"".join)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), _TEXT),
        st.tuples(st.just("batch"), st.sampled_from([None, 1, 2, 5, 9]), st.integers(1, 4)),
        st.tuples(st.just("rotate"), st.integers(0, 2), st.none()),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=150)
@given(steps=_STEPS)
def test_any_appends_rotations_and_limits_give_the_lines_of_a_simple_reading(steps: list[Any]) -> None:
    """Each file that ever was is read as if it had been read once, at the end, by the simplest program."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, size in {"_BLOCK": 3, "_TAIL": 2}.items():
            patch.setattr(lines, name, size)
        patch.setattr(source, "_SMALLEST_SPLIT", 3)
        _follow(Path(folder), steps)


def _follow(folder: Path, steps: list[Any]) -> None:
    log: list[Offset] = []
    written = {(number, 0): b"" for number in range(3)}
    turn = [0, 0, 0]
    pairs: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(3)}
    clock = 1e9

    def read(limit: int | None, parallelism: int) -> bool:
        reading = SourceQuery(_Bytes(folder), path=str(folder / "*.log"), numPartitions=str(parallelism))
        rows = reading.next(log, ReadLimit(bytes=limit))
        for row in sorted(rows or [], key=lambda row: (row["filename"], row["position"])):
            pairs[int(Path(row["filename"]).name[0])].append((row["position"], row["value"]))
        return rows is not None

    for kind, first, second in steps:
        clock += 1
        if kind == "append":
            file = folder / f"{first}.log"
            written[first, turn[first]] += second
            with file.open("ab") as log_file:
                log_file.write(second)
            os.utime(file, (clock, clock))
        elif kind == "batch":
            read(first, second)
        elif (folder / f"{first}.log").exists() and simple_lines(written[first, turn[first]]) and log:
            read(None, 1)  # files are known before they rotate; those between two batches have tests of their own
            (folder / f"{first}.log").rename(folder / f"{first}.log.{turn[first]}")
            turn[first] += 1
            written[first, turn[first]] = b""
    while read(None, 2):
        pass
    for number in range(3):
        files = [simple_lines(content) for (name, _), content in sorted(written.items()) if name == number]
        assert sorted(pairs[number]) == sorted(line for lines_of_file in files for line in lines_of_file)


class _Bytes(FileStreamContext):
    """Values as bytes, so that any bytes may be in them."""

    schema = FileStreamContext.schema.set(2, FileStreamContext.schema.field(2).with_type(pa.binary()))

    def options(self) -> dict[str, str]:
        return {"value.format": "bytes"}

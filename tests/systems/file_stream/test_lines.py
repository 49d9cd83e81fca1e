"""Where lines end, against an implementation so simple that it cannot be wrong."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.systems.file_stream import lines
from connectors.systems.file_stream.lines import first_line_end, last_line_end, read_lines

Lines = list[tuple[int, bytes]]


def simple_lines(data: bytes) -> Lines:
    """The byte after each line and its terminator, and the line; a ``\\r`` at the very end is not known to be one."""
    pairs, begin, at = [], 0, 0
    while at < len(data):
        width = 2 if data[at : at + 2] == b"\r\n" else 1 if data[at : at + 1] in (b"\n", b"\r") else 0
        if width and data[at:] != b"\r":
            pairs.append((at + width, data[begin:at]))
            begin = at + width
        at += width or 1
    return pairs


def lines_of(data: bytes, cuts: tuple[int, ...] = ()) -> Lines:
    """The complete lines of ``data``, read range by range."""
    file = io.BytesIO(data)
    end = last_line_end(file, 0, len(data), len(data))
    bounds = sorted({0, end, *(cut for cut in cuts if cut < end)})
    pairs: Lines = []
    for first, last in itertools.pairwise(bounds):
        begin = first_line_end(file, first - 1, last) if first else 0
        if begin is not None:
            for positions, values in read_lines(file, begin, last, end):
                pairs += zip(positions.to_pylist(), values.to_pylist(), strict=True)
    return pairs


@pytest.fixture(params=[(2, 2), (3, 5), (7, 2), (64 << 10, 4 << 20)], ids=str)
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that every line crosses the border of one, and those of use."""
    monkeypatch.setattr(lines, "_TAIL", request.param[0])
    monkeypatch.setattr(lines, "_BLOCK", request.param[1])


@pytest.mark.usefixtures("blocks")
class TestEnds:
    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"a\nb\n", [(2, b"a"), (4, b"b")]),
            (b"a\r\nb\r\n", [(3, b"a"), (6, b"b")]),
            (b"a\rb\rc", [(2, b"a"), (4, b"b")]),
            (b"a\nbc\r\nd\re\n", [(2, b"a"), (6, b"bc"), (8, b"d"), (10, b"e")]),
            (b"\n\r\n\r\n\n", [(1, b""), (3, b""), (5, b""), (6, b"")]),
            (b"\r\r\n\r\r", [(1, b""), (3, b""), (4, b"")]),
            (b"\n\r", [(1, b"")]),
            (b"", []),
            (b"no line end at all", []),
            (b"\0a\0\n\xff\xfe\n\x0b\x0c\x85\n", [(4, b"\0a\0"), (7, b"\xff\xfe"), (11, b"\x0b\x0c\x85")]),
            (b"x" * 100 + b"\r\n" + b"y" * 50 + b"\n", [(102, b"x" * 100), (153, b"y" * 50)]),
        ],
        ids=["lf", "crlf", "cr", "mixed", "empty lines", "cr cr lf", "cr waits", "empty", "unfinished", "odd bytes", "long"],
    )
    def test_positions_are_the_byte_after_the_terminator(self, data: bytes, expected: Lines) -> None:
        assert simple_lines(data) == expected
        assert lines_of(data) == expected

    @given(data=st.binary(max_size=60) | st.text("a\n\r", max_size=60).map(str.encode), cuts=st.sets(st.integers(1, 60)))
    def test_any_bytes_cut_anywhere_give_the_same_lines(self, data: bytes, cuts: set[int]) -> None:
        assert lines_of(data, tuple(cuts)) == simple_lines(data)

    @given(
        data=st.text("a\n\r", max_size=40).map(str.encode),
        low=st.integers(0, 5),
        length=st.integers(0, 40),
    )
    def test_the_last_end_below_a_limit_and_the_first_one_above(self, data: bytes, low: int, length: int) -> None:
        ends = [0, *(position for position, _ in simple_lines(data))]
        begin = ends[min(low, len(ends) - 1)]
        high = min(begin + length, len(data))
        file = io.BytesIO(data)
        assert last_line_end(file, begin, high, len(data)) == max(end for end in ends if end <= max(begin, high))
        assert first_line_end(file, begin, len(data)) == next((end for end in ends if end > begin), None)


def test_a_file_that_became_shorter_is_noticed_and_not_waited_for() -> None:
    file = io.BytesIO(b"a\nb")
    assert first_line_end(file, 2, 1000) is None
    assert last_line_end(file, 2, 1000, 1000) == 2
    with pytest.raises(EOFError):
        list(read_lines(file, 0, 1000, 1000))


def test_a_range_reads_little_more_than_its_own_bytes() -> None:
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            Counting.taken += len(data)
            return data

    file = Counting(b"0123456789\n" * 1_000_000)
    assert sum(len(values) for _, values in read_lines(file, 0, 1_100_000, 11_000_000)) == 100_000
    assert Counting.taken < 1_100_000 + (1 << 17)


def test_a_line_longer_than_many_blocks_is_read_in_few_growing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_TAIL", 16)
    monkeypatch.setattr(lines, "_BLOCK", 16)
    searched = []
    line_ends = lines.line_ends
    monkeypatch.setattr(lines, "line_ends", lambda block, complete: searched.append(len(block)) or line_ends(block, complete))
    data = b"x" * 100_000 + b"\n"
    assert [len(value) for value in _values(read_lines(io.BytesIO(data), 0, 1, len(data)))] == [100_000]
    assert sum(searched) < 5 * len(data)


def _values(blocks: Iterator[tuple[object, object]]) -> Iterator[bytes]:
    for _, values in blocks:
        yield from values.to_pylist()  # type: ignore[attr-defined]

"""The print sink: what a line looks like, and where it goes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.core import Misconfigured
from connectors.systems.print_rows import PrintSink

from .batches import write


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "0> one\n0> null\n1> three\n"), ({"prefix": "out"}, "out:0> one\nout:0> null\nout:1> three\n")],
)
def test_a_single_column_is_printed_as_it_is(
    options: dict[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(PrintSink.of(options), pa.record_batch({"value": ["one", None]}), pa.record_batch({"value": ["three"]}))
    assert capsys.readouterr().out == expected


def test_several_columns_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    write(PrintSink.of({}), pa.record_batch({"id": [1, 2], "name": ["a\nb", "ü"]}))
    assert capsys.readouterr().out == '0> {"id":1,"name":"a\\nb"}\n0> {"id":2,"name":"ü"}\n'


def test_more_than_at_least_once_is_refused_with_the_reason() -> None:
    with pytest.raises(Misconfigured, match="taken back"):
        PrintSink.of({"guarantee": "exactly-once"})

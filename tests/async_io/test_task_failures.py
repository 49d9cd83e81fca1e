"""What a row that fails, or does not fit, does to its task."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.ground.errors import Fatal, Poison, Transient

from .tasks import Guarded, batch, rows_of


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionError("refused"), Transient),
        (ValueError("odd"), Poison),
        (Fatal("stop"), Fatal),
        (Transient("busy"), Transient),
    ],
)
def test_an_error_names_the_row_and_the_cause(raised, kind):
    async def fails(row):
        if row["id"] == 2:
            raise raised
        return {}

    with pytest.raises(kind) as caught:
        rows_of(fails, batch(1, 2))
    message = str(caught.value)
    assert "row {'id': 2}" in message
    assert type(raised).__name__ in message
    assert str(raised) in message
    assert caught.value.__cause__ is raised


def test_an_error_shows_no_secret():
    async def fails(row):
        raise ConnectionError

    rows = pa.RecordBatch.from_pydict({"id": [1], "api_token": ["hush"]})
    with pytest.raises(Transient) as caught:
        rows_of(fails, rows, keep=("id", "api_token"))
    assert "hush" not in str(caught.value)


def test_a_fallback_takes_the_place_of_a_failed_row():
    assert rows_of(Guarded({"name": "none"}), batch(1, 2)) == [{"id": 1, "name": "none"}, {"id": 2, "name": "none"}]


def test_a_fallback_that_passes_on_leaves_the_error():
    with pytest.raises(Transient, match="ConnectionError: down"):
        rows_of(Guarded(), batch(1))


def test_a_fallback_that_raises_is_told_with_its_row():
    class Broken(Guarded):
        def timeout(self, row):
            raise KeyError("city")

    with pytest.raises(Poison, match=r"row \{'id': 1\}.*KeyError: 'city'"):
        rows_of(Broken(), batch(1))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"nam": "x"}, "the result has nam, which the schema has not (name)"),
        ({"name": 5}, "column name of the result does not fit string"),
        (7, "the result must be a dict, a list of dicts, or None; got int"),
        ([{"name": "a"}, 7], "got a list with dict, int"),
    ],
)
def test_a_result_that_does_not_fit_names_row_and_column(result, text):
    async def odd(row):
        return result if row["id"] == 2 else {"name": "fine"}

    with pytest.raises(Poison) as caught:
        rows_of(odd, batch(1, 2, 3))
    assert text in str(caught.value)
    assert "{'id': 2}" in str(caught.value)


def test_a_null_where_the_schema_says_not_null_is_an_error():
    async def nothing(row):
        return {}

    with pytest.raises(Poison, match="column name of the result is null"):
        rows_of(nothing, batch(1), results=pa.schema([pa.field("name", pa.string(), nullable=False)]))

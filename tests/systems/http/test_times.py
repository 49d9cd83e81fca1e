"""Cursors whose values are times as text, without a server: one time has several texts."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from connectors.systems.http import HttpSource
from connectors.systems.http.client import Answer

Rows = list[dict[str, Any]]


def sweeps(answers: list[Rows]) -> list[int]:
    """The ids that a stream hands on when each sweep finds the next of ``answers``."""
    parameters, cursor = {"since": "{position}"}, {"field": "at", "start": "2024-01-01T00:00:00Z"}
    resource = {"name": "r", "path": "r", "key": "id", "parameters": parameters, "cursor": cursor}
    config = {"baseUrl": "http://127.0.0.1:1", "resources": [resource]}
    source = HttpSource.of(
        {"config": json.dumps(config), "pollInterval": "0s", "stateLocation": "/unused"}, streaming=True
    )
    reader = source.cursor(pa.schema([("id", pa.int64()), ("at", pa.string())]))
    reader.open()
    position: Any = {}
    ids: list[int] = []
    try:
        for rows in answers:
            body = json.dumps(rows).encode()
            reader._client.request = lambda *request, body=body: Answer(200, {}, body)  # type: ignore[method-assign]
            page = reader.read("r", position, None, 100)
            while not page.is_last:
                ids += page.rows.column("id").to_pylist()
                position = page.position
                page = reader.read("r", position, None, 100)
    finally:
        reader.close()
    return ids


@pytest.mark.parametrize(
    "times",
    [
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00.500Z", "2024-05-01T10:00:01Z"),
        ("2024-05-01T10:00:00+00:00", "2024-05-01T10:00:00.5+00:00", "2024-05-01T10:00:01.123456789+00:00"),
        ("2024-10-27T02:30:00+02:00", "2024-10-27T02:10:00+01:00", "2024-10-27T02:10:01+01:00"),  # summer time ends
        ("2024-10-27T02:30:00.000+0200", "2024-10-27T02:10:00.000+0100", "2024-10-27T02:10:01.000+0100"),
        ("2024-05-01 10:00", "2024-05-01 10:01", "2024-05-01 10:02"),
        ("a", "b", "c"),
    ],
)
def test_each_record_is_handed_on_once_in_the_order_of_its_times(times: tuple[str, ...]) -> None:
    rows = [{"id": number, "at": at} for number, at in enumerate(times)]
    assert sweeps([rows[:1], rows[:2], rows[::-1], rows]) == [0, 1, 2]


def test_a_record_with_the_newest_time_in_another_text_is_new() -> None:
    rows = [{"id": 0, "at": "2024-05-01T10:00:00Z"}, {"id": 1, "at": "2024-05-01T10:00:00.000Z"}]
    assert sweeps([rows[:1], rows, rows]) == [0, 1]

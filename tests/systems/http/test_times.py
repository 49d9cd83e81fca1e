"""Cursors whose values are times as text, without a server: one time has several texts."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from connectors.systems.http import HttpSource
from connectors.systems.http.client import Answer

Rows = list[dict[str, Any]]


def sweeps(answers: list[Rows], lookback: str = "0", requests: list[str] | None = None) -> list[int]:
    """The ids that a stream hands on when each sweep finds the next of ``answers``; adds what it asked to ``requests``."""
    parameters, cursor = {"since": "{position}"}, {"field": "at", "start": "2024-01-01T00:00:00Z", "lookback": lookback}
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

            def answer(method: str, url: str, *rest: Any, body: bytes = body) -> Answer:
                if requests is not None:
                    requests.append(parse_qs(urlsplit(url).query)["since"][0])
                return Answer(200, {}, body)

            reader._client.request = answer  # type: ignore[method-assign]
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
        ("2024-10-27 02:30:00 +0200", "2024-10-27 02:10:00 +0100", "2024-10-27 02:10:01 +0100"),
        ("2024-05-01t10:00:00z", "2024-05-01t10:00:00.5z", "2024-05-01t10:00:01z"),
        ("Wed, 31 Jan 2024 12:00:00 GMT", "Thu, 01 Feb 2024 12:00:00 GMT", "Fri, 02 Feb 2024 12:00:00 GMT"),
        ("Wed Oct 10 20:19:24 +0000 2018", "Wed Oct 10 20:19:25 +0000 2018", "Thu Oct 11 20:19:24 +0000 2018"),
        ("31 Jan 2024 12:00:00 +0100", "01 Feb 2024 12:00:00 +0100", "02 Feb 2024 12:00:00 +0100"),
        ("a", "b", "c"),
        ("INV-99", "INV-100", "INV-101"),
        ("1.9.0", "1.10.0", "1.10.1"),
        ("a10b2", "a9b10", "b0b10"),  # texts of one length, as hexadecimal ids have it, are not compared by numbers
    ],
)
def test_each_record_is_handed_on_once_in_the_order_of_its_times(times: tuple[str, ...]) -> None:
    rows = [{"id": number, "at": at} for number, at in enumerate(times)]
    assert sweeps([rows[:1], rows[:2], rows[::-1], rows]) == [0, 1, 2]


def test_a_record_with_the_newest_time_in_another_text_is_new() -> None:
    rows = [{"id": 0, "at": "2024-05-01T10:00:00Z"}, {"id": 1, "at": "2024-05-01T10:00:00.000Z"}]
    assert sweeps([rows[:1], rows, rows]) == [0, 1]


@pytest.mark.parametrize(
    ("times", "lookback", "position"),
    [
        (("2024-01-31 12:00:00", "2024-01-31 12:30:00", "2024-01-31 11:30:00"), "1 hour", "2024-01-31 11:30:00"),
        (("2024-01-31T12:00:00.5", "2024-01-31T12:30:00.5", "2024-01-31T11:30:00.5"), "1 hour", "2024-01-31T11:30:00.5"),
        (("2024-01-31", "2024-02-01", "2024-01-31"), "1 day", "2024-01-31"),
        (("2024-01-31", "2024-02-01", "2024-01-31"), "1 hour", "2024-01-31"),
        (("2024-01-31 12:00:00 UTC", "2024-01-31 12:30:00 UTC", "2024-01-31 12:00:00 UTC"), "1h", "2024-01-31 11:30:00 UTC"),
        (("2024-01-31T12:00:00.000Z", "2024-01-31T12:30:00.000Z", "2024-01-31T12:00:00Z"), "1h", "2024-01-31T11:30:00.000Z"),
        (("2024-01-31 12:00 +0200", "2024-01-31 12:30 +0200", "2024-01-31 12:00 +0200"), "1h", "2024-01-31 11:30:00 +0200"),
    ],
)
def test_a_lookback_reaches_late_records_and_asks_in_the_form_of_the_times(
    times: tuple[str, ...], lookback: str, position: str
) -> None:
    rows, requests = [{"id": number, "at": at} for number, at in enumerate(times)], list[str]()
    assert sweeps([rows[:1], rows[:2], rows, rows], lookback, requests) == [0, 1, 2]
    assert requests[-1] == position

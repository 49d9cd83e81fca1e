"""The values of cursors and what is remembered of them: numbers of 64 bits, ids as text, times that many records share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Cursor, Fatal
from connectors.systems.http import HttpSource
from connectors.testing.source_suite import SourceQuery
from connectors_tools.offsets import SourceOffset

from .answers import Answers, Asked, Declared, Reply, Rows, answers

BIG = 1_800_000_000_000_000_001
TEXTS = pa.schema([("id", pa.string()), ("n", pa.int64())])
NUMBERS = pa.schema([("id", pa.int64()), ("n", pa.int64())])


@pytest.fixture
def server() -> Iterator[Answers]:
    with answers() as one:
        yield one


def since(rows: Rows, size: int = 10) -> Any:
    """Pages of the rows whose ``at`` is a number that is not below ``since``, in their order."""

    def rule(asked: Asked) -> Reply:
        given = asked.query.get("since") or (asked.body or {}).get("since")
        new = [row for row in rows if given is None or int(row["at"]) >= int(given)]
        first = (int((asked.body or asked.query).get("page", 1)) - 1) * size
        return Reply(new[first : first + size])

    return rule


class Numbered(Declared):
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])


class Texts(Declared):
    schema = pa.schema([("id", pa.int64()), ("at", pa.string())])


def declared(lookback: str = "0", **more: Any) -> dict[str, Any]:
    cursor, paging = {"field": "at", "lookback": lookback}, {"kind": "page", "size": 10}
    return {"cursor": cursor, "key": "id", "parameters": {"since": "{position}"}, "paging": paging, **more}


@pytest.mark.parametrize("lookback", ["0", "3"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ids_that_are_texts_of_numbers_are_compared_as_numbers(
    server: Answers, tmp_path: Path, lookback: str, method: str
) -> None:
    rows = [{"id": number, "at": str(number)} for number in range(1, 10)]
    server.rule = since(rows)
    system, log = Texts(tmp_path, server, **declared(lookback, method=method)), []
    assert SourceQuery(system).rest(log) == rows
    rows += [{"id": number, "at": str(number)} for number in range(10, 120)]
    assert SourceQuery(system).rest(log) == rows[9:]
    rows.append({"id": 1000, "at": "119"})
    assert SourceQuery(system).rest(log) == rows[-1:]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(("first", "lookback"), [(BIG, "1"), (BIG, "0.5"), (1_699_999_995, "5"), (-5, "2")])
def test_whole_numbers_stay_whole_with_a_lookback(
    server: Answers, tmp_path: Path, method: str, first: int, lookback: str
) -> None:
    rows = [{"id": 1, "at": first}]
    server.rule = since(rows)
    system, log = Numbered(tmp_path, server, **declared(lookback, method=method)), []
    assert SourceQuery(system).rest(log) == rows
    rows += [{"id": 2, "at": first}, {"id": 3, "at": first + 1}, {"id": 4, "at": first + 2}]
    assert SourceQuery(system).rest(log) == rows[1:]
    asked = [str((request.body or request.query).get("since")) for request in server.asked[-3:]]
    if lookback.isdigit():
        assert set(asked) <= {str(first + 2 - int(lookback)), str(first - int(lookback))}, asked


@pytest.mark.parametrize(
    ("value", "lookback", "text"),
    [
        (7, "1 hour", 'its lookback is "1 hour"[\\s\\S]*lookback that is a number'),
        ("a", "3", 'texts such as "a", which have no lookback'),
    ],
)
def test_a_lookback_that_has_no_meaning_is_told(server: Answers, tmp_path: Path, value: Any, lookback: str, text: str) -> None:
    server.rule = lambda asked: Reply([{"id": 1, "at": value}] if asked.query.get("page") == "1" else [])
    with pytest.raises(Fatal, match=text):
        SourceQuery(Texts(tmp_path, server, **declared(lookback))).rest([])


def test_values_that_have_no_order_are_told(server: Answers, tmp_path: Path) -> None:
    server.rule = lambda asked: Reply([{"id": 1, "at": 7}, {"id": 2, "at": "8"}] if asked.query.get("page") == "1" else [])
    with pytest.raises(Fatal, match=r"7 in one record and '8' in another|'8' in one record and 7 in another"):
        SourceQuery(Texts(tmp_path, server, **declared())).rest([])


@pytest.mark.parametrize("key", ["", "id"])
def test_records_of_one_time_are_each_read_once_over_pages_epochs_and_runs(server: Answers, tmp_path: Path, key: str) -> None:
    rows = [{"id": number, "at": 7} for number in range(45)]
    server.rule = since(rows)
    system, log = Numbered(tmp_path, server, **declared(key=key)), []
    assert SourceQuery(system, maxRowsPerTrigger="7").rest(log) == rows
    rows += [{"id": number, "at": 7} for number in range(45, 58)]
    assert SourceQuery(system, maxRowsPerTrigger="7").rest(log) == rows[45:]
    rows += [{"id": 99, "at": 8}]
    assert SourceQuery(system).rest(log) == rows[58:]
    assert SourceQuery(system).rest(log) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lookback", ["0", "16"])
def test_what_comes_late_and_what_changes_while_pages_are_read_comes_once(
    server: Answers, tmp_path: Path, seed: int, lookback: str
) -> None:
    """A table under change, newest first, so that records move to later pages while they are read."""
    chance, rows, clock, seen = random.Random(seed), Rows(), 100, []

    def change(count: int) -> None:
        nonlocal clock
        for _ in range(count if len(server.asked) < 100 else 0):
            clock += 1
            late = chance.randrange(int(lookback)) if lookback != "0" and chance.random() < 0.3 else 0
            record = {"id": chance.randrange(60), "at": clock - late}
            if not any(row["id"] == record["id"] and row["at"] >= record["at"] for row in rows):
                rows[:] = [row for row in rows if row["id"] != record["id"]] + [record]
                rows.sort(key=lambda row: (row["at"], row["id"]), reverse=True)
                seen.append(record)

    change(40)
    rule = since(rows)

    def changing(asked: Asked) -> Reply:
        reply = rule(asked)
        if chance.random() < 0.3:
            change(2)
        return reply

    server.rule = changing
    system, log, got = Numbered(tmp_path, server, **declared(lookback)), [], Rows()
    for _ in range(3):
        change(20)
        got += SourceQuery(system, maxRowsPerTrigger="9").rest(log)
    server.rule = rule
    got += SourceQuery(system).rest(log)
    as_texts = [json.dumps(row) for row in got]
    assert len(set(as_texts)) == len(as_texts), "no row comes twice"
    assert {json.dumps(row) for row in rows} <= set(as_texts), "the newest form of each row has come"
    assert set(as_texts) <= {json.dumps(row) for row in seen}


def test_a_position_with_a_lookback_stays_small(server: Answers, tmp_path: Path) -> None:
    count, lookback = 8000, 2000
    rows = [{"id": number, "at": number} for number in range(count)]
    server.rule = since(rows, 4000)
    resource = declared(str(lookback), paging={"kind": "page", "size": 4000, "shortPage": "last"})
    system, log = Numbered(tmp_path, server, **resource), []
    query = SourceQuery(system, maxRowsPerTrigger="4000")
    assert len(query.rest(log)) == count
    epochs = query.source.log()
    positions = [len(json.dumps(header.positions)) for epoch in epochs.epochs() for header in epochs.headers(epoch)]
    assert max(positions) < (count + lookback * 9 / 8) * 11 + 1000, "eleven bytes of each record"
    assert positions[-1] < lookback * 9 / 8 * 11 + 1000, "between sweeps of those in the lookback alone"
    rows += [{"id": count, "at": count - lookback}, {"id": count + 1, "at": count}]
    rows.sort(key=lambda row: row["at"])
    assert [row["id"] for row in SourceQuery(system).rest(log)] == [count, count + 1]
    assert SourceQuery(system).rest(log) == []


def test_a_lookback_with_too_many_records_is_told(
    server: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.systems.http.sweep._MOST_SEEN", 30)
    rows = [{"id": number, "at": number} for number in range(60)]
    server.rule = since(rows)
    log: list[Any] = []
    with pytest.raises(Fatal, match=r"40 records of r may come again[\s\S]*shorten its lookback: config.resources.r.cursor"):
        SourceQuery(Numbered(tmp_path, server, **declared("40"))).rest(log)
    got = SourceQuery(Numbered(tmp_path, server, **declared("20"))).batch(log, 0)
    assert got + SourceQuery(Numbered(tmp_path, server, **declared("20"))).rest(log) == rows


def test_a_look_at_an_api_that_needs_a_position_asks_from_the_start_of_the_cursor(server: Answers, tmp_path: Path) -> None:
    rows = [{"id": 1, "at": 7}]
    server.rule = lambda asked: Reply(rows if "since" in asked.query else [], 200 if "since" in asked.query else 422)
    system = Numbered(tmp_path, server, key="id", cursor={"field": "at", "start": 0}, parameters={"since": "{position}"})
    query = SourceQuery(system)
    assert query.source.schema == "`id` bigint, `at` bigint"
    assert query.rest([]) == rows
    assert {request.query["since"] for request in server.asked} == {"0", "7"}


def test_a_move_back_gives_again_what_the_lookback_remembers(server: Answers, tmp_path: Path) -> None:
    rows = [{"id": number, "at": number} for number in range(1, 31)]
    server.rule = since(rows)
    system, log = Numbered(tmp_path, server, **declared("5")), []
    query = SourceQuery(system)
    query.rest(log)
    offset = SourceOffset("0", log[-1]).move({"r": {"after": 28}}, query.source.log())  # type: ignore[attr-defined]
    log[-1] = dict(offset.value or {})
    assert SourceQuery(system).rest(log) == rows[22:]


def rest(cursor: Cursor, position: Any) -> Rows:
    """The rows behind ``position``."""
    page, rows = cursor.read("r", position, None, 10), []
    while not page.is_last:
        rows += page.rows.to_pylist()
        page = cursor.read("r", page.position, None, 10)
    return rows


def test_an_attempt_behind_one_that_failed_reads_what_that_had_swept(server: Answers, tmp_path: Path) -> None:
    server.rule = since([{"id": 1, "at": 1}])
    system = Numbered(tmp_path, server, **declared())
    cursor = HttpSource.of({**system.options(), "pollInterval": "1h"}, streaming=True).cursor(system.schema)
    with closing(cursor):
        cursor.open()
        assert [rest(cursor, json.loads("{}")) for _ in range(2)] == [[{"id": 1, "at": 1}]] * 2


def test_an_attempt_that_ends_the_sweep_of_an_earlier_epoch_begins_one_as_the_failed_attempt_had(
    server: Answers, tmp_path: Path
) -> None:
    rows = [{"id": number, "at": number} for number in range(15, 0, -1)]
    server.rule = since(rows)
    source = HttpSource.of({**Numbered(tmp_path, server, **declared()).options(), "pollInterval": "1h"}, streaming=True)
    with closing(source.cursor(Numbered.schema)) as cursor:
        cursor.open()
        position = json.dumps(cursor.read("r", {}, None, 10).position)
    rows.insert(0, {"id": 16, "at": 16})
    with closing(source.cursor(Numbered.schema)) as cursor:
        cursor.open()
        assert [sorted(row["id"] for row in rest(cursor, json.loads(position))) for _ in range(2)] == [[1, 2, 3, 4, 5, 16]] * 2


class Ids(Declared):
    schema = pa.schema([("id", pa.int64())])


def test_a_number_with_more_digits_than_a_float_passes_over_no_record_behind_it(server: Answers, tmp_path: Path) -> None:
    numbers = ["1700000000.123456900"]

    def rule(asked: Asked) -> Reply:
        since = Decimal(asked.query.get("since", 0))
        rows = [f'{{"id": {place}, "at": {number}}}' for place, number in enumerate(numbers) if Decimal(number) >= since]
        return Reply(f"[{', '.join(rows)}]".encode())

    server.rule = rule
    system, log = Ids(tmp_path, server, cursor={"field": "at"}, key="id", parameters={"since": "{position}"}), []
    assert SourceQuery(system).rest(log) == [{"id": 0}]
    numbers.append("1700000000.123456901")
    assert SourceQuery(system).rest(log) == [{"id": 1}]

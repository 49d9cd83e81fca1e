"""Where a sweep ends, and where it must not: pages that are capped, go round, expire or break off; answers with errors."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal, Misconfigured, Transient
from connectors.systems.http import HttpSource
from connectors.testing.source_suite import SourceQuery

from .answers import QUICK, Answers, Asked, Declared, Reply, Rows, answers, read

CURSOR = {"cursor": {"field": "at"}, "key": "id", "parameters": {"since": "{position}"}}
TOKENS = {"paging": {"kind": "cursor", "path": "next"}, "records": "rows"}


@pytest.fixture
def server() -> Iterator[Answers]:
    with answers() as one:
        yield one


def rows_of(numbers: Any) -> Rows:
    return [{"id": number, "at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"} for number in numbers]


def numbered(rows: Rows, cap: int = 10**6, last: int | None = None) -> Any:
    """Pages by number or offset, of at most ``cap`` rows; behind page ``last`` the last one comes again."""

    def rule(asked: Asked) -> Reply:
        size = min(cap, int(asked.query.get("size", asked.query.get("limit", cap))))
        number = min(int(asked.query.get("page", 1)), last or 10**6)
        first = int(asked.query["offset"]) if "offset" in asked.query else (number - 1) * size
        return Reply(rows[first : first + size])

    return rule


@pytest.mark.parametrize("kind", ["page", "offset"])
def test_a_page_that_the_server_caps_is_not_the_last_one(server: Answers, kind: str) -> None:
    server.rule = numbered(rows_of(range(250)), cap=100)
    assert read(server, {"paging": {"kind": kind, "size": 500}}) == rows_of(range(250))


@pytest.mark.parametrize("kind", ["page", "offset"])
def test_a_short_page_is_the_last_one_where_the_user_says_so(server: Answers, kind: str) -> None:
    server.rule = numbered(rows_of(range(25)))
    assert read(server, {"paging": {"kind": kind, "size": 10, "shortPage": "last"}}) == rows_of(range(25))
    assert len(server.asked) == 4, "with the first look"
    with pytest.raises(Misconfigured, match=r"resources\.r\.paging\.shortPage=last needs size"):
        read(server, {"paging": {"kind": "page", "shortPage": "last"}})


@pytest.mark.parametrize(
    "paging",
    [
        {"kind": "page", "size": 10},
        {"kind": "page", "size": 10, "pages": "[9].none || `2`"},
        {"kind": "offset", "size": 10},
        {"kind": "cursor", "path": "'T1'"},
        {"kind": "link"},
    ],
)
@pytest.mark.parametrize("key", ["", "id"])
def test_a_server_that_gives_its_first_page_again_and_again_is_found_out(server: Answers, paging: Any, key: str) -> None:
    def rule(asked: Asked) -> Reply:
        rows = [{**row, "now": len(server.asked)} if key else row for row in rows_of(range(10))]
        return Reply(rows, headers={"Link": '</r?page=2>; rel="next"'})

    server.rule = rule
    with pytest.raises(Fatal, match=r"go round: page 2 has the same records as page 1[\s\S]*resources\.r\.paging"):
        read(server, {"paging": paging, "key": key})


def test_a_last_page_that_comes_again_and_again_ends_with_an_error_and_the_ways_out_work(server: Answers) -> None:
    server.rule = numbered(rows_of(range(35)), last=4)
    with pytest.raises(Fatal, match=r"page 5 has the same records as page 4[\s\S]*shortPage=last"):
        read(server, {"paging": {"kind": "page", "size": 10}})
    assert read(server, {"paging": {"kind": "page", "size": 10, "shortPage": "last"}}) == rows_of(range(35))
    assert read(server, {"paging": {"kind": "page", "size": 10, "pages": "[99] || `4`"}}) == rows_of(range(35))


def test_tokens_that_go_round_end_with_an_error_and_no_row_comes_twice(server: Answers, tmp_path: Path) -> None:
    def rule(asked: Asked) -> Reply:
        token = asked.query.get("cursor")
        page = {None: 0, "A": 1, "B": 2}[token]
        return Reply({"rows": rows_of([page * 10 + len(server.asked) % 2]), "next": "B" if token == "A" else "A"})

    server.rule = rule
    query, rows = SourceQuery(Declared(tmp_path, server, **CURSOR, **TOKENS), maxRowsPerTrigger="1"), Rows()
    with pytest.raises(Fatal, match="page 3 says that page 2 comes next, which has come already"):
        rows.extend(row for tasks in query.batches([]) for task in tasks for row in task)
    assert len({row["id"] // 10 for row in rows}) == len(rows) >= 2


def test_a_circle_of_more_pages_than_are_remembered_is_found_out(
    server: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Asked) -> Reply:
        number = int(asked.query.get("cursor", 0))
        return Reply({"rows": rows_of([number % 30]), "next": str(number + 1)})

    monkeypatch.setattr("connectors.systems.http.sweep._RECENT_PAGES", 5)
    server.rule = rule
    with pytest.raises(Fatal, match="page 31 has the same records as page 1"):
        read(server, TOKENS)


@pytest.mark.parametrize("key", ["", "id"])
def test_whole_numbers_of_any_length_are_read_as_decimals(server: Answers, key: str) -> None:
    rows = [{"id": 10**30 + number} for number in range(25)]
    server.rule = numbered(rows)
    got = read(server, {"key": key, "paging": {"kind": "page", "size": 10}}, pa.schema([("id", pa.decimal128(38))]))
    assert [int(row["id"]) for row in got] == [row["id"] for row in rows]


def test_records_that_move_by_a_page_while_pages_are_read_are_no_circle(server: Answers, tmp_path: Path) -> None:
    rows = rows_of(range(40))

    def rule(asked: Asked) -> Reply:
        if len(server.asked) == 3:  # the second page of the sweep
            rows[:0] = rows_of(range(100, 110))
        return numbered(rows)(asked)

    server.rule = rule
    got = SourceQuery(Declared(tmp_path, server, **CURSOR, paging={"kind": "page", "size": 10})).rest([])
    assert sorted(row["id"] for row in got) == [*range(40), *range(100, 110)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": "quota"}, r'answers nothing at "data.rows", also no null or empty list. Fields in it: error\.'),
        ({"data": {"items": [{"id": 1}]}}, r"correct config\.resources\.r\.records; or set records\.optional"),
        ({"items": []}, r"Lists in it: items\."),
        ({"data": []}, "answers nothing at"),
    ],
)
def test_an_answer_without_the_place_of_the_records_is_an_error(server: Answers, body: Any, text: str) -> None:
    server.rule = lambda asked: Reply(body)
    with pytest.raises(Fatal, match=text):
        read(server, {"records": "data.rows"})
    assert read(server, {"records": "data.rows", "records.optional": True}) == []


@pytest.mark.parametrize("body", [{"data": {"rows": []}}, {"data": {"rows": None}}, {"data": None}])
def test_a_place_of_records_that_is_null_or_empty_has_none(server: Answers, body: Any) -> None:
    server.rule = lambda asked: Reply(body)
    assert read(server, {"records": "data.rows"}) == []
    assert read(server, {"records": "data.rows[?id > `1`]"}) == []


def test_an_error_in_the_middle_of_a_sweep_moves_no_cursor(server: Answers, tmp_path: Path) -> None:
    rows, is_broken = rows_of(range(30)), True

    def rule(asked: Asked) -> Reply:
        page = numbered([row for row in rows if row["at"] >= asked.query.get("since", "")])(asked).body
        is_error = is_broken and asked.query["page"] == "2"
        return Reply({"error": {"code": 7}} if is_error else {"rows": page})

    server.rule = rule
    system = Declared(tmp_path, server, **CURSOR, records="rows", failWhen="error", paging={"kind": "page", "size": 10})
    log: list[Any] = []
    with pytest.raises(Fatal, match=r"answers an error: \{'code': 7\}"):
        SourceQuery(system, maxRowsPerTrigger="10").rest(log)
    is_broken = False
    got = SourceQuery(system).batch(log, 0) + (SourceQuery(system).batch(log, 1) if len(log) > 1 else [])
    assert got + SourceQuery(system).rest(log) == rows


def test_what_is_an_error_can_be_said_for_all_resources(server: Answers) -> None:
    server.rule = lambda asked: Reply({"status": "error", "rows": []})
    options = {"config": {"baseUrl": server.url, "failWhen": "status == 'error'", "resources": [{"name": "r", "path": "r"}]}}
    options["config"]["resources"][0]["records"] = "rows"  # type: ignore[index]
    with pytest.raises(Fatal, match="answers an error: True"):
        _ = HttpSource.of({"config": json.dumps(options["config"]), **QUICK}).schema
    for wrong in ({"failWhen": "a b"}, {"records.optional": True}):
        with pytest.raises(Misconfigured, match=next(iter(wrong))):
            read(server, wrong)


def test_an_answer_without_content_has_no_records(server: Answers) -> None:
    server.rule = lambda asked: Reply(status=204)
    for paging in ({"kind": "page"}, {"kind": "none"}, TOKENS["paging"]):
        assert read(server, {"paging": paging, "records": "rows"}) == []


def test_a_path_to_the_next_page_that_is_nowhere_and_a_column_that_no_record_has_are_told_once(
    server: Answers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path))
    server.rule = lambda asked: Reply({"rows": rows_of(range(10)), "next": None})
    schema = pa.schema([("id", pa.int64()), ("nmae", pa.string())])
    with caplog.at_level(logging.WARNING, "connectors"):
        for _ in range(3):
            read(server, {**TOKENS, "paging": {"kind": "cursor", "path": "meta.nxt"}}, schema)
            read(server, TOKENS, pa.schema([("id", pa.int64())]))
    assert [record.message for record in caplog.records] == [
        "connectors.http: an answer with 10 records has nothing at config.resources.r.paging.path, so its page is the only one",
        "connectors.http: r: none of 10 records has the field nmae, so that column is null",
    ]


def expiring(server: Answers, rows: Rows, refusals: Iterator[bool], status: int = 410) -> Any:
    """Pages of ten by tokens that are refused where ``refusals`` says so."""

    def rule(asked: Asked) -> Reply:
        token = asked.query.get("cursor")
        if token is not None and next(refusals, False):
            return Reply({"error": "the token has expired"}, status)
        first = int(token or 0)
        since = [row for row in rows if row["at"] >= asked.query.get("since", "")]
        return Reply({"rows": since[first : first + 10], "next": str(first + 10) if first + 10 < len(since) else None})

    return rule


@pytest.mark.parametrize("key", ["", "id"])
@pytest.mark.parametrize("status", [400, 403, 410])
@pytest.mark.parametrize("ignore", [[], [410]])
def test_a_token_that_expires_begins_the_sweep_anew_and_no_row_is_lost_or_doubled(
    server: Answers, tmp_path: Path, status: int, ignore: list[int], key: str
) -> None:
    rows = rows_of(range(62))[::-1]  # the newest first
    refusals = iter([False, True, False, False, True])
    server.rule = expiring(server, rows, refusals, status)
    system = Declared(tmp_path, server, **{**CURSOR, "key": key}, **TOKENS, ignore=ignore)
    log: list[Any] = []
    got = SourceQuery(system, maxRowsPerTrigger="15").rest(log)
    assert next(refusals, None) is None
    assert got == rows
    rows[:0] = rows_of(range(62, 90))
    assert SourceQuery(system, maxRowsPerTrigger="15").rest(log) == rows[:28]


def test_a_row_that_changes_before_the_sweep_begins_anew_comes_again(server: Answers, tmp_path: Path) -> None:
    rows = rows_of(range(30))
    changed = {"id": 0, "at": "2027-01-01T00:00:00Z"}

    def refusals() -> Iterator[bool]:
        yield False
        rows[0] = changed
        yield True

    server.rule = expiring(server, rows, refusals())
    got = SourceQuery(Declared(tmp_path, server, **CURSOR, **TOKENS)).rest([])
    assert sorted(got, key=lambda row: row["at"]) == [*rows_of(range(30)), changed]


def test_a_token_that_is_always_refused_is_an_error(server: Answers, tmp_path: Path) -> None:
    server.rule = expiring(server, rows_of(range(30)), itertools.repeat(True))
    with pytest.raises(Fatal, match="answered 410"):
        SourceQuery(Declared(tmp_path, server, **CURSOR, **TOKENS, ignore=[410])).rest([])
    with pytest.raises(Fatal, match=r"answered 410[\s\S]*no longer takes the token"):
        read(server, {**TOKENS, "ignore": [410]})


def test_a_token_that_expires_behind_too_many_rows_is_an_error(
    server: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.systems.http.sweep._MOST_PASSED", 15)
    server.rule = expiring(server, rows_of(range(30)), iter([False, True]))
    with pytest.raises(Fatal, match="answered 410"):
        SourceQuery(Declared(tmp_path, server, **CURSOR, **TOKENS)).rest([])


def test_a_page_number_that_is_refused_is_no_end(server: Answers) -> None:
    def rule(asked: Asked) -> Reply:
        page = numbered(rows_of(range(25)))(asked)
        return page if page.body else Reply({"detail": "Invalid page."}, 404)

    server.rule = rule
    paging = {"kind": "page", "size": 10}
    with pytest.raises(Fatal, match=r"answered 404[\s\S]*where it tells how many there are[\s\S]*shortPage=last"):
        read(server, {"paging": paging, "ignore": [404]})
    assert len(read(server, {"paging": {**paging, "shortPage": "last"}})) == 25


def test_the_token_of_a_child_that_expires_reads_the_child_again(server: Answers) -> None:
    refusals = iter([False, False, False, True])  # the first two are for the look at the API
    child = expiring(server, rows_of(range(30)), refusals)
    server.rule = lambda asked: Reply([{"id": 7}]) if asked.path == "/r" else child(asked)
    children = [{"name": "c", "path": "r/{id}/c", **TOKENS, "ignore": [410]}]
    assert read(server, {"children": children}, name="c") == rows_of(range(30))
    assert next(refusals, None) is None


@pytest.mark.parametrize("kind", ["page", "cursor"])
def test_a_page_that_fails_once_is_read_again(server: Answers, kind: str) -> None:
    bodies = json.dumps(rows_of(range(3))).encode()
    broken = iter(
        [
            Reply(status=500),
            Reply(bodies[:40], length=len(bodies)),
            Reply(gzip.compress(bodies)[:-12], headers={"Content-Encoding": "gzip"}),
            Reply(bodies[:40]),
        ]
    )
    failed = False

    def rule(asked: Asked) -> Reply:
        nonlocal failed
        failed = not failed and asked.query.get("page", asked.query.get("cursor")) not in (None, "1")
        reply = next(broken, None) if failed else None
        if reply is not None:
            return reply
        if kind == "page":
            return numbered(rows_of(range(50)))(asked)
        page = expiring(server, rows_of(range(50)), iter([]))(asked)
        return Reply(page.body["rows"], headers={"X-Next": page.body["next"] or ""})

    server.rule = rule
    paging = {"kind": "page", "size": 10} if kind == "page" else {"kind": "cursor", "header": "X-Next"}
    assert read(server, {"paging": paging}) == rows_of(range(50))
    assert next(broken, None) is None


def test_a_body_that_breaks_off_each_time_is_an_outage(server: Answers) -> None:
    server.rule = lambda asked: Reply(b'[{"id": 1}, {"id"')
    with pytest.raises(Transient, match="answers what is no JSON"):
        read(server, {})


def test_a_total_that_changes_while_pages_are_read_ends_the_sweep_where_it_is_then(server: Answers) -> None:
    rows = rows_of(range(25))

    def rule(asked: Asked) -> Reply:
        rows.extend(rows_of(range(len(rows), len(rows) + 2)) if len(server.asked) < 5 else [])
        first = int(asked.query["offset"])
        return Reply({"rows": rows[first : first + 10], "total": str(len(rows))})

    server.rule = rule
    assert read(server, {"records": "rows", "paging": {"kind": "offset", "size": 10, "total": "total"}}) == rows


@pytest.mark.parametrize("status", [429, 503])
def test_an_api_that_says_when_to_come_again_is_not_asked_before(server: Answers, status: int) -> None:
    pauses = iter(["1", "3600"])
    times: list[float] = []

    def rule(asked: Asked) -> Reply:
        times.append(time.monotonic())
        pause = next(pauses, "3600") if len(times) != 2 else None
        return Reply(rows_of([1])) if pause is None else Reply(status=status, headers={"Retry-After": pause})

    server.rule = rule
    waits = {"retry.maxBackoff": "20ms", "outageTimeout": "1500ms"}
    with pytest.raises(Transient, match=r"longer than outageTimeout, 1\.5 s"):
        read(server, {}, **waits)
    first, second, third, last = times
    assert second - first >= 1.0, "the first look at the API"
    assert 1.4 < last - third < 2.5


@pytest.mark.parametrize("pause", ["0", "Wed, 01 Jan 2020 00:00:00 GMT"])
def test_an_api_that_says_to_come_again_at_once_is_asked_with_the_pauses_of_retries(server: Answers, pause: str) -> None:
    back_at = time.monotonic() + 0.5

    def rule(asked: Asked) -> Reply:
        is_back = time.monotonic() > back_at
        return Reply(rows_of([1])) if is_back else Reply(status=429, headers={"Retry-After": pause})

    server.rule = rule
    retries = {"retry.initialBackoff": "100ms", "retry.maxRetries": "5"}
    assert read(server, {}, **retries) == rows_of([1])
    assert len(server.asked) < 10


@pytest.mark.parametrize("header", [{"Retry-After": "1"}, {"X-RateLimit-Remaining": "0"}])
def test_a_limit_of_requests_that_is_answered_as_forbidden_is_waited_for(server: Answers, header: dict[str, str]) -> None:
    server.rule = lambda _: Reply(status=403, headers=header) if len(server.asked) < 2 else Reply(rows_of([1]))
    assert read(server, {}) == rows_of([1])
    server.rule = lambda _: Reply(status=403)
    with pytest.raises(Fatal, match="check headers and auth"):
        read(server, {})


def test_an_empty_page_before_the_total_is_one_whose_records_the_api_leaves_out(server: Answers) -> None:
    rows, hidden = rows_of(range(45)), range(10, 30)

    def rule(asked: Asked) -> Reply:
        first = int(asked.query["offset"])
        page = [row for row in rows[first : first + 10] if row["id"] not in hidden]
        return Reply({"rows": page, "total": 60 if first < 50 else 50})

    server.rule = rule
    paged = {"records": "rows", "paging": {"kind": "offset", "size": 10, "total": "total"}, "key": "id"}
    assert read(server, paged) == [row for row in rows if row["id"] not in hidden]


@pytest.mark.parametrize(
    "link",
    [
        '<{next}>; rel="prev next"',
        "<{next}>; rel='next'",
        "<{next}>;rel=next",
        '<{next}>; title="all, in pages"; rel = "next"',
        '</r?page=9,9>; rel="last", <{next}>; REL="next"; results="true"',
    ],
)
def test_the_next_page_is_found_in_a_link_however_the_api_writes_it(server: Answers, link: str) -> None:
    rows = rows_of(range(25))

    def rule(asked: Asked) -> Reply:
        number = int(asked.query.get("page", 1))
        following = f"/r?page={number + 1}"
        header = link.replace("{next}", following) if number < 3 else f'<{following}>; rel="next"; results="false"'
        return Reply(rows[10 * number - 10 : 10 * number], headers={"Link": header})

    server.rule = rule
    assert read(server, {"paging": {"kind": "link"}}) == rows
    server.rule = lambda _: Reply(rows, headers={"Link": '</r?page=2>; rel="next-archive"; title="rel=next", </r>; rel=first'})
    assert read(server, {"paging": {"kind": "link"}}) == rows


def _pages(size: int | None) -> dict[str, Any]:
    return {"kind": "page", **({} if size is None else {"size": size})}


@pytest.mark.parametrize(("size", "later"), [(10, 30), (30, 10), (10, None), (None, 10)])
def test_a_sweep_that_goes_on_under_another_size_of_pages_loses_and_doubles_no_row(
    server: Answers, tmp_path: Path, size: int | None, later: int | None
) -> None:
    server.rule = numbered(rows_of(range(100)), cap=30)
    first = Declared(tmp_path, server, paging=_pages(size), **CURSOR)
    query, log = SourceQuery(first, maxRowsPerTrigger="7"), []
    rows = [row for _ in range(5) for row in query.next(log) or []]
    assert len(rows) == 35
    rows += SourceQuery(Declared(tmp_path, server, paging=_pages(later), **CURSOR)).rest(log)
    assert rows == rows_of(range(100))


def test_an_answer_that_is_not_ready_is_waited_for(server: Answers) -> None:
    """As GitHub's statistics: 202 until they are computed."""
    waits = iter([202, 202, 202])
    server.rule = lambda asked: Reply([], status=202) if next(waits, None) else Reply(rows_of(range(5)))
    assert read(server, {}, **{"retry.maxRetries": "5"}) == rows_of(range(5))

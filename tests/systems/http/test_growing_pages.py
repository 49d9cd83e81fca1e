"""Pages that have other records each time when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.testing.source_suite import SourceQuery

from .answers import Answers, Asked, Declared, Reply, answers, read
from .test_sweeps import CURSOR, numbered, rows_of


@pytest.fixture
def server() -> Iterator[Answers]:
    with answers() as one:
        yield one


@pytest.mark.parametrize("size", [{"size": 10}, {}], ids=["size", "the API's size"])
def test_rows_that_fill_a_short_page_while_the_page_after_it_is_asked_for_are_not_passed_over(
    server: Answers, tmp_path: Path, size: dict[str, int]
) -> None:
    rows = rows_of(range(23))

    def rule(asked: Asked) -> Reply:
        if asked.query["page"] == "4" and len(rows) == 23:
            rows.extend(rows_of(range(23, 60)))
        return numbered(rows, cap=10)(asked)

    server.rule = rule
    got = SourceQuery(Declared(tmp_path, server, **CURSOR, paging={"kind": "page", **size})).rest([])
    assert sorted(row["id"] for row in got) == list(range(60))


def test_a_run_that_has_seen_the_end_behind_a_short_page_leaves_no_next_one_to_stand_there(
    server: Answers, tmp_path: Path
) -> None:
    rows = rows_of(range(3))
    server.rule = lambda asked: numbered([row for row in rows if row["at"] >= asked.query.get("since", "")], cap=10)(asked)
    system, log = Declared(tmp_path, server, **CURSOR, paging={"kind": "page"}), list[Any]()
    assert len(SourceQuery(system, maxRowsPerTrigger="3").next(log) or []) == 3
    rows += rows_of(range(3, 40))
    got = SourceQuery(system).rest(log)
    assert sorted(row["id"] for row in got) == list(range(3, 40))


def test_a_page_as_short_as_a_filtered_one_before_is_asked_for_again(server: Answers, tmp_path: Path) -> None:
    rows = rows_of(range(17))

    def rule(asked: Asked) -> Reply:
        if asked.query["page"] == "3" and len(rows) == 17:
            rows.extend(rows_of(range(17, 60)))
        shown = numbered(rows, cap=10)(asked).body
        return Reply([row for row in shown if row["id"] not in (1, 2, 3)])

    server.rule = rule
    got = SourceQuery(Declared(tmp_path, server, **CURSOR, paging={"kind": "page"})).rest([])
    assert sorted(row["id"] for row in got) == [0, *range(4, 60)]


@pytest.mark.parametrize("order", ["signed", "shuffled"])
def test_pages_that_differ_at_each_request_come_to_an_end(server: Answers, tmp_path: Path, order: str) -> None:
    def rule(asked: Asked) -> Reply:
        shown = numbered(rows_of(range(25)), cap=10)(asked).body
        if order == "shuffled":
            return Reply(shown[len(server.asked) % 3 :] + shown[: len(server.asked) % 3])
        return Reply([{**row, "url": f"?signature={len(server.asked)}"} for row in shown])

    server.rule = rule
    got = SourceQuery(Declared(tmp_path, server, **CURSOR, paging={"kind": "page"})).rest([])
    assert sorted(row["id"] for row in got) == list(range(25))
    assert len(server.asked) < 20


def test_pages_that_the_server_caps_are_asked_for_once_but_the_first_and_the_last(server: Answers) -> None:
    server.rule = numbered(rows_of(range(1005)), cap=100)
    assert read(server, {"paging": {"kind": "page", "size": 500}}) == rows_of(range(1005))
    assert len(server.asked) <= 1 + 12 + 2


def test_a_page_is_asked_for_again_where_the_api_does_not_tell_how_many_there_are(server: Answers, tmp_path: Path) -> None:
    """``pages`` names a place that its answers do not have."""
    rows = rows_of(range(3))

    def rule(asked: Asked) -> Reply:
        if asked.query["page"] == "2" and len(rows) == 3:
            rows.extend(rows_of(range(3, 40)))
        return Reply({"rows": numbered(rows, cap=10)(asked).body})

    server.rule = rule
    paging = {"kind": "page", "pages": "total_pages"}
    got = SourceQuery(Declared(tmp_path, server, **CURSOR, records="rows", paging=paging)).rest([])
    assert sorted(row["id"] for row in got) == list(range(40))

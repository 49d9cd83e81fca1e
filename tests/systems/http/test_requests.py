"""Requests of the sink whose answers are late, lost, or elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal
from connectors.core.writing import stage
from connectors.systems.http import HttpSink

from .answers import QUICK, Answers, Asked, Reply, answers

ROWS = pa.table({"id": ["a", "a"], "n": [1, 2]})


@pytest.fixture
def server() -> Iterator[Answers]:
    with answers() as one:
        yield one


def write(url: str, rows: pa.Table = ROWS, **options: str) -> None:
    sink = HttpSink.of({"url": url, **QUICK, **options})
    stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))


def test_a_request_that_is_given_up_does_not_arrive_after_the_newer_row_of_its_key(server: Answers) -> None:
    """Its answer comes byte by byte, so that no read of the connection takes too long."""
    applied: list[int] = []

    def rule(asked: Asked) -> Reply:
        is_slow = not server.asked[1:]

        def drop() -> Iterator[bytes]:
            for _ in range(4 if is_slow else 1):
                time.sleep(0.1 if is_slow else 0)
                yield b" "
            applied.append(asked.body["n"])

        return Reply(drop())

    server.rule = rule
    write(f"{server.url}/{{id}}", method="PUT", **{"request.timeout": "250ms"})
    assert applied[-1] == 2
    assert applied[:2] == [1, 1], "the row that was given up is sent again when its call has returned"


def test_a_row_whose_answer_is_lost_is_sent_again_with_its_key(server: Answers) -> None:
    taken: dict[str, Any] = {}

    def rule(asked: Asked) -> Reply:
        is_known = asked.headers["Idempotency-Key"] in taken
        taken[asked.headers["Idempotency-Key"]] = asked.body["n"]
        return Reply(b"taken", length=None if is_known else 500)

    server.rule = rule
    write(server.url, idempotencyHeader="Idempotency-Key", idColumn="n")
    assert sorted(taken.values()) == [1, 2]
    assert len(server.asked) == 4


@pytest.mark.parametrize("status", [301, 302, 303])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_redirect_to_a_page_that_takes_no_rows_is_no_success(server: Answers, status: int, method: str) -> None:
    login = Reply(b"<html>please log in</html>")
    server.rule = lambda asked: login if asked.path == "/login" else Reply(status=status, headers={"Location": "/login"})
    with pytest.raises(Fatal, match=rf"answered {status}[\s\S]*give the URL that the redirects end at"):
        write(f"{server.url}/rows", method=method)


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_keeps_the_request_is_followed(server: Answers, status: int) -> None:
    there = f"{server.url}/there"
    server.rule = lambda asked: Reply() if asked.path == "/there" else Reply(status=status, headers={"Location": there})
    write(f"{server.url}/rows", auth=json.dumps({"type": "bearer", "token": "t0ken"}))
    assert sorted(asked.body["n"] for asked in server.asked if asked.path == "/there") == [1, 2]
    assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer t0ken"}

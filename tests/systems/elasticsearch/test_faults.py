"""Throttled items, timeouts, refused connections, servers that go and come: only what failed is sent again, nothing is lost."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from connectors.core import Fatal, Transient
from connectors.testing.servers import OpenSearchServer
from connectors.testing.servers.base import HOST, free_ports
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Rule, Seen

from .writing import write

ROWS = [{"id": n, "name": f"row {n}"} for n in range(40)]
EXPECTED = {str(row["id"]): row for row in ROWS}


def ids(request: Seen) -> list[str]:
    return [line["index"]["_id"] for line in request.lines[::2]]


def items_refused(status: int, kind: str, which: Any, times: int) -> Rule:
    """The first ``times`` requests have the items refused whose id ``which`` says; the server does not see them."""
    left = [times]

    def rule(request: Seen, passed_on: Any) -> Reply:
        if left[0] <= 0:
            return passed_on()
        left[0] -= 1
        lines = request.body.splitlines(keepends=True)
        pairs = list(zip(lines[::2], lines[1::2], strict=True))
        refused = [which(int(name)) for name in ids(request)]
        rest = b"".join(a + b for (a, b), bad in zip(pairs, refused, strict=True) if not bad)
        answers = iter(json.loads(passed_on(rest).body)["items"] if rest else [])
        error = {"index": {"status": status, "error": {"type": kind, "reason": "injected"}}}
        items = [error if bad else next(answers) for bad in refused]
        return Reply(200, json.dumps({"errors": True, "items": items}).encode(), {"Content-Type": "application/json"})

    return rule


def test_items_that_are_throttled_are_sent_again_and_no_others(server: OpenSearchServer, proxy: FaultProxy, index: str) -> None:
    proxy.rule = items_refused(429, "rejected_execution_exception", lambda n: n % 10 == 3, times=2)
    assert write(proxy.url, index, ROWS, idColumn="id").rows == 40
    assert [len(ids(request)) for request in proxy.seen[1:]] == [4, 4] if len(proxy.seen) == 3 else False
    assert server.documents(index) == EXPECTED


@pytest.mark.parametrize("status", [500, 503])
def test_items_that_failed_in_the_server_are_sent_again(
    server: OpenSearchServer, proxy: FaultProxy, index: str, status: int
) -> None:
    proxy.rule = items_refused(status, "unavailable_shards_exception", lambda n: n < 5, times=1)
    write(proxy.url, index, ROWS, idColumn="id")
    assert [len(ids(request)) for request in proxy.seen[1:]] == [5]
    assert server.documents(index) == EXPECTED


def test_throttling_that_does_not_end_fails_the_batch_as_an_outage(proxy: FaultProxy, index: str) -> None:
    proxy.rule = items_refused(429, "rejected_execution_exception", lambda n: n == 3, times=1000)
    patient = {"retry__maxRetries": "2", "outageTimeout": "500ms", "circuitBreaker__failures": "1000"}
    with pytest.raises(Transient, match=r"the last answer: 429 rejected_execution_exception.*longer than outageTimeout"):
        write(proxy.url, index, ROWS, idColumn="id", errors="skip", **patient)


def answered(*replies: Reply | None) -> Rule:
    """The first requests get these answers, the rest the server's."""
    left = list(replies)
    return lambda request, passed_on: left.pop(0) if left else passed_on()


@pytest.mark.parametrize(
    "reply",
    [
        Reply(429, b"slower", {"Retry-After": "0"}),
        Reply(503, b"<html>gateway</html>", {"Content-Type": "text/html"}),
        Reply(200, b"<html>login</html>", {"Content-Type": "text/html"}),
        Reply(200, b'{"errors":false,"items":[]}', {"Content-Type": "application/json"}),
        None,
    ],
    ids=["429", "503", "no JSON", "too few items", "connection closed"],
)
def test_a_request_that_fails_as_a_whole_is_sent_again(
    server: OpenSearchServer, proxy: FaultProxy, index: str, reply: Reply | None
) -> None:
    proxy.rule = answered(reply, reply)
    assert write(proxy.url, index, ROWS, idColumn="id").rows == 40
    assert len(proxy.seen) == 3
    assert server.documents(index) == EXPECTED


def test_an_answer_that_does_not_come_in_time_is_not_waited_for(
    server: OpenSearchServer, proxy: FaultProxy, index: str
) -> None:
    over = threading.Event()

    def rule(request: Seen, passed_on: Any) -> Reply | None:
        if len(proxy.seen) == 1:
            over.wait(20)
        return passed_on()

    proxy.rule = rule
    write(proxy.url, index, ROWS, idColumn="id", request__timeout="300ms")
    over.set()
    assert server.documents(index) == EXPECTED


def test_an_answer_that_does_not_come_in_time_ends_the_batch_when_the_user_says_so(proxy: FaultProxy, index: str) -> None:
    over = threading.Event()

    def rule(request: Seen, passed_on: Any) -> None:
        over.wait(20)

    proxy.rule = rule
    with pytest.raises(Transient, match=r"no answer"):
        write(proxy.url, index, ROWS, request__timeout="200ms", request__onTimeout="fail", retry__maxRetries="0")
    over.set()
    assert len(proxy.seen) == 1


def test_another_host_is_taken_for_one_that_does_not_answer(server: OpenSearchServer, index: str) -> None:
    (dead,) = free_ports(1)
    for hosts in (f"http://{HOST}:{dead},{server.url}", f"{server.url},http://{HOST}:{dead}"):
        write(hosts, index, ROWS, idColumn="id", batch__maxRecords="5", retry__maxRetries="0")
    assert server.documents(index) == EXPECTED


def test_a_server_that_is_not_there_is_an_outage_and_the_circuit_spares_it(index: str) -> None:
    (dead,) = free_ports(1)
    breaker, began = {"circuitBreaker__failures": "2", "circuitBreaker__resetTimeout": "1s"}, time.monotonic()
    with pytest.raises(Transient, match="refused 3 times; the last answer: no answer"):
        write(f"http://{HOST}:{dead}", index, ROWS, retry__maxRetries="2", **breaker)
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_told_at_once(proxy: FaultProxy, index: str, status: int) -> None:
    proxy.rule = answered(*[Reply(status, b"no", {"Content-Type": "text/plain"})] * 9)
    with pytest.raises(Fatal, match=f"{status}(.|\n)*apiKey"):
        write(proxy.url, index, ROWS, user="me", password="hush-hush")
    assert len(proxy.seen) == 1
    assert proxy.seen[0].headers["authorization"] == "Basic bWU6aHVzaC1odXNo"


def test_an_api_key_goes_into_the_header_as_it_is(proxy: FaultProxy, index: str) -> None:
    write(proxy.url, index, ROWS, apiKey="bm90LWEta2V5")
    assert proxy.seen[0].headers["authorization"] == "ApiKey bm90LWEta2V5"


def test_a_server_that_announces_itself_with_its_media_type_is_taken_as_well(
    server: OpenSearchServer, proxy: FaultProxy, index: str
) -> None:
    def announced(request: Seen, passed_on: Any) -> Reply:
        reply = passed_on()
        media = "application/vnd.elasticsearch+json;compatible-with=8"
        return Reply(reply.status, reply.body, {"Content-Type": media, "X-Elastic-Product": "Elasticsearch"})

    proxy.rule = announced
    write(proxy.url, index, ROWS, idColumn="id")
    assert server.documents(index) == EXPECTED


@pytest.mark.soak
def test_a_server_that_is_killed_in_the_middle_of_a_batch_and_comes_back(server: OpenSearchServer, index: str) -> None:
    server.ask("PUT", f"/{index}", {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
    rows = [{"id": n, "text": "x" * 200} for n in range(20_000)]
    patient = {"retry__maxRetries": "500", "retry__maxBackoff": "500ms", "circuitBreaker__failures": "1000"}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            assert write(server.url, index, rows, idColumn="id", batch__maxRecords="100", **patient).rows == len(rows)
        except BaseException as error:
            failed.append(error)

    writing = threading.Thread(target=run)
    with FaultProxy(server.url):
        writing.start()
        while server.ask("GET", f"/{index}/_stats/indexing")["_all"]["primaries"]["indexing"]["index_total"] < 1000:
            assert writing.is_alive()
        server.kill()
        assert writing.is_alive(), "the server must be killed before all rows are there"
        server.relaunch()
        writing.join(120)
    assert not writing.is_alive()
    assert failed == []
    server.ask("POST", f"/{index}/_refresh")
    assert server.ask("GET", f"/{index}/_count")["count"] == len(rows)

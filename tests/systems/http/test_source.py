"""What the source of REST APIs reads: every paging, only what is new, children; and what servers do wrong."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal, Misconfigured, Transient
from connectors.core.planning import INITIAL, Planner
from connectors.core.reading import read_slice
from connectors.systems.http import HttpSource
from connectors.systems.http.client import HttpClient
from connectors.testing.servers import ApiService
from connectors.testing.servers.api_service import CLIENT
from connectors.testing.source_suite import SourceQuery
from tests.servers import required

from .contexts import CURSOR, SCHEMA, SHAPES, ApiContext, resource

pytestmark = pytest.mark.server
Rows = list[dict[str, Any]]
QUICK = {"retry.initialBackoff": "10ms", "retry.maxRetries": "2", "outageTimeout": "0s"}


@pytest.fixture
def service() -> Iterator[ApiService]:
    server = required(ApiService)
    server.behave()
    yield server
    server.behave()


@pytest.fixture
def table() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def records(count: int) -> Rows:
    times = [f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z" for number in range(count)]
    return [{"id": number, "name": f"n{number}", "updated_at": at} for number, at in enumerate(times)]


def read(config: dict[str, Any], schema: pa.Schema = SCHEMA, **options: Any) -> Rows:
    """The rows of a batch."""
    source = HttpSource.of({"config": json.dumps(config), **QUICK, **options})
    parts = Planner(source).whole()
    return [row for part in parts for batch in read_slice(source, part, schema) for row in batch.to_pylist()]


def api(service: ApiService, *resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"baseUrl": service.url, "resources": list(resources), **more}


@pytest.mark.parametrize("count", [0, 1, 10, 35])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_pages_are_read(service: ApiService, table: str, shape: str, count: int) -> None:
    written = records(count)
    service.add(table, written)
    assert read(api(service, resource(shape, table))) == written


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_reads_what_is_new_or_changed_and_nothing_twice(tmp_path: Path, shape: str) -> None:
    class Context(ApiContext):
        pass

    Context.shape = shape
    system, log = Context(tmp_path), []
    first = system.write(35)
    assert SourceQuery(system).rest(log) == first
    late = {"id": 99, "name": "of the same time", "updated_at": first[-1]["updated_at"]}
    changed = {**first[3], "name": "changed", "updated_at": "2026-02-01T00:00:00Z"}
    system.server.add(system.table, [late, changed])
    assert SourceQuery(system).rest(log) == [late, changed]
    assert SourceQuery(system).rest(log) == []


def test_later_sweeps_ask_only_since_the_last_position(tmp_path: Path) -> None:
    system, log = ApiContext(tmp_path), []
    system.write(300)
    SourceQuery(system).rest(log)
    before = requests_to(system.server, f"/page/{system.table}")
    system.write(1)
    assert len(SourceQuery(system).rest(log)) == 1
    assert requests_to(system.server, f"/page/{system.table}") - before < 10, "300 records are 31 pages"


def test_an_api_that_cannot_be_asked_since_a_position_is_read_whole_each_time(tmp_path: Path) -> None:
    class Whole(ApiContext):
        def options(self) -> dict[str, str]:
            config = api(self.server, resource("page", self.table, parameters={}))
            return {**super().options(), "config": json.dumps(config)}

    system, log = Whole(tmp_path), []
    first = system.write(300)
    assert SourceQuery(system).rest(log) == first
    system.server.behave(latency=0.05)
    before = requests_to(system.server, f"/page/{system.table}")
    new = system.write(2)
    query = SourceQuery(system)
    query.planner.freeze()
    assert query.rest(log) == new
    assert requests_to(system.server, f"/page/{system.table}") - before == 32, "one sweep"
    assert query.planner.latest(log[-1]) == log[-1]


def test_a_run_that_goes_on_with_a_sweep_of_an_earlier_one_reads_what_came_on_pages_that_were_passed(tmp_path: Path) -> None:
    class NewestFirst(ApiContext):
        def options(self) -> dict[str, str]:
            config = api(self.server, resource("page", self.table, parameters={"since": "{position}", "order": "desc"}))
            return {**super().options(), "config": json.dumps(config)}

    system, log = NewestFirst(tmp_path), []
    written = system.write(30)
    rows = SourceQuery(system, maxRowsPerTrigger="10").next(log) or []
    assert rows == written[:19:-1]
    new = system.write(1)
    query = SourceQuery(system)
    query.planner.freeze()
    rows += query.rest(log)
    assert rows == written[::-1] + new


def requests_to(service: ApiService, path: str) -> int:
    return int(service.seen()["requests"].get(f"GET {path}", 0))


def test_a_record_that_comes_late_is_read_within_the_lookback(tmp_path: Path) -> None:
    class Late(ApiContext):
        def options(self) -> dict[str, str]:
            config = api(self.server, resource("page", self.table, cursor={**CURSOR, "lookback": "1 hour"}))
            return {**super().options(), "config": json.dumps(config)}

    system, log = Late(tmp_path), []
    service, path = system.server, f"/page/{system.table}"
    first = [{"id": 1, "name": "a", "updated_at": "2026-01-01T12:00:00Z"}]
    service.add(system.table, first)
    assert SourceQuery(system).rest(log) == first
    late = [{"id": 2, "name": "b", "updated_at": "2026-01-01T11:30:00Z"}]
    service.add(system.table, [*late, {"id": 3, "name": "too late", "updated_at": "2026-01-01T10:00:00Z"}])
    assert SourceQuery(system).rest(log) == late
    assert SourceQuery(system).rest(log) == []
    assert requests_to(service, path) > 0


def test_a_replay_has_the_records_that_were_read_though_the_api_has_others_now(tmp_path: Path) -> None:
    system = ApiContext(tmp_path)
    written = system.write(20)
    query, log = SourceQuery(system), []
    assert query.next(log) == written
    system.server.forget()
    assert SourceQuery(system).batch(log, 0) == written


def test_a_record_that_moves_to_the_next_page_while_pages_are_read_comes_once(tmp_path: Path) -> None:
    system, log = ApiContext(tmp_path), []
    written = system.write(20)
    query = SourceQuery(system, maxRowsPerTrigger="10")
    rows = query.next(log) or []
    early = {"id": 1000, "name": "in front", "updated_at": "2025-01-01T00:00:00Z"}
    system.server.add(system.table, [early])
    rows += query.rest(log)
    assert rows == written, "the tenth record is now on the second page"


def test_children_are_read_for_each_parent(service: ApiService, table: str) -> None:
    service.add(table, records(12))
    items = [{"order": f"{number}", "position": position} for number in range(12) for position in range(number % 4)]
    service.add("items", [{"id": f"{table}-{item['order']}-{item['position']}", **item} for item in items])
    child = {
        "name": "items",
        "path": f"children/{table}/{{id}}/items",
        "paging": {"kind": "page", "size": 2},
        "include": {"order_id": "id"},
    }
    config = api(service, {"name": "orders", "path": f"page/{table}", "paging": {"kind": "page"}, "children": [child]})
    schema = pa.schema([("order_id", pa.int64()), ("position", pa.int64()), ("id", pa.string())])
    rows = [row for row in read(config, schema, resource="items") if row["id"].startswith(table)]
    expected = [(int(item["order"]), item["position"]) for item in items]
    assert [(row["order_id"], row["position"]) for row in rows] == expected


def test_a_parent_without_a_page_of_its_children_has_none_where_its_status_is_ignored(service: ApiService, table: str) -> None:
    service.add(table, records(2))
    child = {"name": "items", "path": "children/nothing/{id}/items", "ignore": [404]}
    config = api(service, {"name": "orders", "path": f"page/{table}", "children": [child]})
    assert read(config, resource="items") == []
    del child["ignore"]
    with pytest.raises(Fatal, match=r"answered 404[\s\S]*config.resources.items.ignore have 404"):
        read(config, resource="items")


def test_fields_of_parents_are_percent_encoded_in_paths(service: ApiService, table: str) -> None:
    service.add(table, [{"id": "a/b c?d", "name": "x", "updated_at": ""}])
    service.add("items", [{"id": f"{table}-1", "order": "a/b c?d"}])
    child = {"name": "items", "path": f"children/{table}/{{id}}/items"}
    config = api(service, {"name": "orders", "path": f"page/{table}", "children": [child]})
    rows = read(config, pa.schema([("id", pa.string())]), resource="items")
    assert {"id": f"{table}-1"} in rows


LONG = 18446744073709551617
"""A whole number of 65 bits."""


@pytest.mark.parametrize("beside", [[], [("price", pa.decimal128(10, 2))]])
def test_long_whole_numbers_keep_their_digits(service: ApiService, table: str, beside: list[Any]) -> None:
    deep = {"a": 1.1, "b": [LONG]}
    service.add(table, [{"id": LONG, "price": 1.5, "rate": LONG, "share": 2.5, "deep": deep}, {"id": 7, "share": 3}])
    texts = [(name, pa.string()) for name in ("id", "share", "deep")]
    config = api(service, {"name": "r", "path": f"page/{table}"})
    rows = {row["id"]: row for row in read(config, pa.schema([*texts, ("rate", pa.float64()), *beside]))}
    long, short = rows[str(LONG)], rows["7"]
    assert (long["share"], long["rate"], json.loads(long["deep"])) == ("2.5", float(LONG), deep)
    assert (short["share"], short["deep"]) == ("3", None)
    assert long.get("price", Decimal("1.50")) == Decimal("1.50")


@pytest.mark.parametrize("beside", [[], [("price", pa.decimal128(10, 2))]])
def test_long_negative_numbers_have_one_text_whatever_is_beside_them(
    service: ApiService, table: str, beside: list[Any]
) -> None:
    number = -(2**63) - 1
    service.add(table, [{"id": number, "deep": {"a": [number, LONG]}}, {"id": number - 1}])
    config = api(service, {"name": "r", "path": f"page/{table}", "key": ["id"], "paging": {"kind": "page", "size": 1}})
    rows = read(config, pa.schema([("id", pa.string()), ("deep", pa.string()), *beside]))
    assert [row["id"] for row in rows] == [str(number), str(number - 1)]
    assert rows[0]["deep"] == f'{{"a":[{number},{LONG}]}}'


def test_keys_that_are_long_whole_numbers_tell_records_apart(service: ApiService, table: str) -> None:
    service.add(table, [{"id": LONG + number, "name": f"n{number}"} for number in range(4)])
    config = api(service, {"name": "r", "path": f"page/{table}", "key": ["id"], "paging": {"kind": "page", "size": 1}})
    rows = read(config, pa.schema([("name", pa.string())]))
    assert [row["name"] for row in rows] == [f"n{number}" for number in range(4)]


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_children_of_a_parent_whose_field_makes_another_place_are_not_requested(
    service: ApiService, table: str, value: str
) -> None:
    service.add(table, [{"id": value, "name": "x", "updated_at": ""}])
    child = {"name": "items", "path": f"page/{table}/{{id}}", "ignore": [404]}
    config = api(service, {"name": "orders", "path": f"page/{table}", "children": [child]})
    with pytest.raises(Fatal, match=r'makes "\.*" of a part of page/[\s\S]*config\.resources\.items\.path'):
        read(config, resource="items")
    child["path"] = f"page/{table}?of={{id}}"
    assert read(config, pa.schema([("id", pa.string())]), resource="items") == [{"id": value}]
    child["path"] = f"page/{table}{{updated_at}}"  # a part with more in it
    assert read(config, pa.schema([("id", pa.string())]), resource="items") == [{"id": value}]


def test_the_columns_are_those_of_the_records(service: ApiService, table: str) -> None:
    first = {"id": 1, "price": 1.5, "tags": ["a"], "address": {"zip": "1"}, "mixed": 1, "nothing": None, "is_new": True}
    service.add(table, [first, {"id": 2, "mixed": {"a": 1}, "odd name": "x"}])
    source = HttpSource.of({"config": json.dumps(api(service, {"name": "r", "path": f"page/{table}"}))})
    assert source.schema == (
        "`id` bigint, `price` double, `tags` array<string>, `address` struct<`zip`: string>, `mixed` string, `nothing` string, "
        "`is_new` boolean, `odd name` string"
    )
    empty = HttpSource.of({"config": json.dumps(api(service, {"name": "r", "path": f"page/{table}-none"}))})
    with pytest.raises(Misconfigured, match=r"give .schema\(…\)"):
        _ = empty.schema


def test_values_that_fit_no_column_are_named(service: ApiService, table: str) -> None:
    service.add(table, [{"id": "seven"}])
    with pytest.raises(Fatal, match=r"'seven'[\s\S]*give \.schema"):
        read(api(service, {"name": "r", "path": f"page/{table}"}), pa.schema([("id", pa.int64())]))


def test_decimals_keep_their_digits(service: ApiService, table: str) -> None:
    service.add(table, [{"id": 1, "price": 12345678901234.12}])
    schema = pa.schema([("price", pa.decimal128(20, 2))])
    assert str(read(api(service, {"name": "r", "path": f"page/{table}"}), schema)[0]["price"]) == "12345678901234.12"


def test_an_api_that_limits_requests_is_read_whole(service: ApiService, table: str) -> None:
    written = records(120)
    service.add(table, written)
    service.behave(rate=8)
    assert read(api(service, resource("page", table))) == written  # 13 requests


def test_the_rate_limit_keeps_below_that_of_the_api(service: ApiService, table: str) -> None:
    service.add(table, records(100))
    service.behave(rate=8)
    start = time.monotonic()
    assert len(read(api(service, resource("page", table)), rateLimit="6")) == 100
    assert time.monotonic() - start > 1.4, "12 requests, 6 a second"
    assert requests_to(service, f"/page/{table}") == 13, "with the first look, and the first page twice; none was refused"


def test_an_outage_is_waited_for_and_retry_after_is_heeded(service: ApiService, table: str) -> None:
    written = records(30)
    service.add(table, written)
    service.behave(fail=1, status=503, retry_after="1")
    start = time.monotonic()
    assert read(api(service, resource("page", table))) == written
    assert time.monotonic() - start > 0.9
    service.behave(fail=100, status=503)
    with pytest.raises(Transient, match="answered 503"):
        read(api(service, resource("page", table)))


def test_a_server_that_does_not_answer_is_an_outage(service: ApiService, table: str) -> None:
    service.add(table, records(1))
    service.behave(hang=1)
    assert len(read(api(service, resource("page", table)), **{"request.timeout": "300ms"})) == 1
    config = {"baseUrl": "http://127.0.0.1:9", "resources": [{"name": "r", "path": "x"}]}
    with pytest.raises(Transient, match="no answer from http://127.0.0.1:9/x".replace(".", r"\.")):
        read(config)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"path": "nowhere"}, "answered 404"),
        ({"path": "offset/t"}, r"answers no list of records. Lists in it: items\.[\s\S]*config.resources.r.records"),
        ({"path": "offset/t", "records": "items[].id"}, "records that are no objects"),
        ({"path": "page/t", "cursor": {"field": "gone"}}, '"gone", which must be a number or text'),
    ],
)
def test_what_the_declaration_gets_wrong_is_said(service: ApiService, part: dict[str, Any], text: str) -> None:
    service.add("t", records(1))
    with pytest.raises(Fatal, match=text):
        read(api(service, {"name": "r", **part}))


def test_logins(service: ApiService, table: str) -> None:
    service.add(table, records(3))
    config = api(service, resource("page", table))
    service.behave(login="Basic bWU6c8OkY3JldA==")
    assert len(read(config, auth=json.dumps({"type": "basic", "user": "me", "password": "säcret"}))) == 3
    with pytest.raises(Fatal, match=r"answered 401[\s\S]*check headers and auth") as refused:
        read(config, auth=json.dumps({"type": "basic", "user": "me", "password": "wr0ng"}))
    assert "wr0ng" not in str(refused.value)
    service.behave(login="Bearer t0ken")
    assert len(read(config, auth=json.dumps({"type": "bearer", "token": "t0ken"}))) == 3
    assert len(read(config, headers=json.dumps({"authorization": "Bearer t0ken"}))) == 3


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_token_of_oauth_is_got_and_renewed(service: ApiService, table: str, place: str) -> None:
    written = records(60)
    service.add(table, written)
    login = {
        "type": "oauth2",
        "tokenUrl": f"{service.url}/token",
        "clientId": CLIENT[0],
        "clientSecret": CLIENT[1],
        "clientAuth": place,
    }
    config = api(service, resource("page", table))
    service.behave(token=True, token_seconds=1.0)
    assert read(config, auth=json.dumps(login), rateLimit="4") == written, "seven requests, a token lasts for four"
    with pytest.raises(Fatal, match=r"gives no token[\s\S]*check clientId") as refused:
        read(config, auth=json.dumps({**login, "clientSecret": "wr0ng"}))
    assert "wr0ng" not in str(refused.value)


def test_a_token_that_is_refused_is_replaced_at_once(service: ApiService) -> None:
    login = {"type": "oauth2", "tokenUrl": f"{service.url}/token", "clientId": CLIENT[0], "clientSecret": CLIENT[1]}
    config = json.dumps(api(service, resource("page", "t")))
    client = HttpClient(HttpSource.of({"config": config, "auth": json.dumps(login)}).values, service.url)
    service.behave(token=True)
    assert client.request("GET", f"{service.url}/page/t", {}, None).status == 200
    service.revoke()
    assert client.request("GET", f"{service.url}/page/t", {}, None).status == 200
    service.behave(token=False, login="Bearer other")
    assert client.request("GET", f"{service.url}/page/t", {}, None).status == 401
    client.close()


def test_a_next_url_on_another_host_gets_no_credentials(service: ApiService, table: str) -> None:
    with ApiService() as other:
        other.add(table, records(15))
        service.add(table, records(1))
        path = f"away?to={other.url}/page/{table}"
        secrets = {"headers": json.dumps({"X-Api-Key": "s3cret"}), "auth": json.dumps({"type": "bearer", "token": "t0ken"})}
        config = api(service, {"name": "r", "path": path})
        assert len(read(config, **secrets)) == 10
        redirected = other.seen()["headers"]
        followed = {"name": "r", "path": f"page/{table}", "paging": {"kind": "next", "path": f"'{other.url}/page/{table}'"}}
        assert len(read(api(service, {**followed, "records": "@"}), **secrets)) == 11
        linked = other.seen()["headers"]
    for headers in (redirected, linked):
        assert not {"x-api-key", "authorization"} & {name.lower() for name in headers}
    assert service.seen()["headers"]["X-Api-Key"] == "s3cret"


def problems(options: dict[str, Any]) -> list[str]:
    with pytest.raises(Misconfigured) as wrong:
        HttpSource.of(options)
    return [f"{problem.option} {problem.text}" for problem in wrong.value.problems]


def test_each_problem_of_the_declaration_is_listed() -> None:
    config = {
        "baseUrl": "ftp://x",
        "resources": [
            {"name": "a", "path": "{id}", "pageing": {}, "paging": {"kind": "pages"}},
            {"name": "b", "path": "b", "paging": {"kind": "cursor"}, "body": {}, "records": "a b"},
            {"path": "c", "parameters": {"since": "{position}"}},
            {"name": "d", "path": "d", "parameters": {"since": "{position}"}},
            {"name": "e", "path": "e", "paging": {"kind": "page", "size": "many"}, "cursor": {"field": "f", "lookback": "x"}},
        ],
    }
    listed = "\n".join(problems({"config": json.dumps(config)}))
    for text in (
        "config baseUrl must be a URL",
        'resources[0].pageing is no option of this object; did you mean "paging"?',
        "resources.b.paging needs path, the cursor's place in the body, or header",
        'resources.b.records is no JMESPath: "a b"',
        "resources.b.body needs method POST",
        "resources[2].name is missing",
        "resources.d has {position}, but no cursor",
        "resources.e.paging.size must be a whole number",
        "resources.e.cursor.lookback must be a number, or a duration",
    ):
        assert text in listed


def test_bad_options_name_the_way_out(tmp_path: Path) -> None:
    config = json.dumps({"baseUrl": "http://x", "resources": [{"name": "a", "path": "a"}, {"name": "b", "path": "b"}]})
    assert problems({"config": config}) == ["resource missing; config has several: a, b."]
    assert problems({"config": config, "resource": "c"}) == ['resource must be one of a, b; got "c".']
    assert problems({"config": config, "resource": "a", "maxDrift": "1s"})[0].startswith("maxDrift has no use")
    headers, auth = json.dumps({"a": "b\r\nc", "n": 1}), json.dumps({"type": "basic", "user": "u"})
    many = problems({"config": config, "resource": "a", "headers": headers, "auth": auth})
    assert [problem[:19] for problem in many] == ["headers must have n", "headers must have t", "auth password: miss"]
    with pytest.raises(Misconfigured, match='says of "a" no cursor') as refused:
        HttpSource.of({"config": config, "resource": "a", "stateLocation": str(tmp_path)}, streaming=True)
    assert "http://x" not in str(refused.value)


def test_a_declaration_is_a_secret(service: ApiService) -> None:
    config = '{"baseUrl": "http://x", "resources": "s3cret"'
    with pytest.raises(Misconfigured) as refused:
        HttpSource.of({"config": config})
    assert "s3cret" not in str(refused.value)


def test_a_new_query_begins_with_an_answer(service: ApiService, tmp_path: Path) -> None:
    config = api(service, resource("page", "t", path="nowhere"))
    options = {"config": json.dumps(config), "stateLocation": str(tmp_path), **QUICK}
    planner = Planner(HttpSource.of(options, streaming=True))
    with pytest.raises(Fatal, match="answered 404"):
        planner.latest(INITIAL)

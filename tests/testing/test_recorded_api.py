"""The server that records the answers of an HTTP API, and replays them without the API and without a login."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.systems.http import HttpSource
from connectors.testing.servers import ApiService, RecordedApi
from connectors.testing.servers.api_service import CLIENT
from connectors.testing.servers.base import request_json
from connectors.testing.servers.exchanges import masked
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen, certificates
from tests.systems.http.contexts import resource

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("updated_at", pa.string())])
SECRETS = {name: f"s3cret-of-the-{name}" for name in ("header", "query", "basic", "body", "answer", "cookie", "form")}
QUICK = {"retry.initialBackoff": "10ms", "retry.maxRetries": "0", "outageTimeout": "0s"}


def read(url: str, shape: str, **options: str) -> list[dict[str, Any]]:
    config = json.dumps({"baseUrl": url, "resources": [resource(shape, "orders")]})
    source = HttpSource.of({"config": config, **QUICK, **options})
    parts = Planner(source).whole()
    return [row for part in parts for batch in read_slice(source, part, SCHEMA) for row in batch.to_pylist()]


def exchange(path: str, answer: Any, **request: Any) -> dict[str, Any]:
    return {"request": {"method": "GET", "path": path, **request}, "response": {"body": answer}}


@pytest.mark.server
@pytest.mark.parametrize("shape", ["page", "link", "next", "header", "search"])
def test_a_recording_gives_the_rows_of_the_api_when_that_is_gone(tmp_path: Path, shape: str) -> None:
    rows = [{"id": number, "name": f"ä{number}", "updated_at": f"2026-01-01T00:00:{number:02}Z"} for number in range(25)]
    file, login = tmp_path / "api.json", {"type": "bearer", "token": SECRETS["header"]}
    with ApiService() as service:
        service.add("orders", rows)
        service.behave(login=f"Bearer {SECRETS['header']}")
        with RecordedApi(file, service.url) as recorder:
            assert read(recorder.url, shape, auth=json.dumps(login)) == rows
            requests = len(recorder.seen)
        upstream = service.url
    with RecordedApi(file) as replay:
        assert read(replay.url, shape) == rows
        assert replay.missing == []
    text = file.read_text()
    assert len(json.loads(text)) == requests >= 3
    assert [part for part in (SECRETS["header"], upstream) if part in text] == []
    assert ("{api}" in text) == (shape == "link")


@pytest.mark.server
def test_a_login_by_oauth_is_recorded_without_its_token(tmp_path: Path) -> None:
    file = tmp_path / "api.json"

    def rows(url: str, secret: str) -> list[dict[str, Any]]:
        login = {"type": "oauth2", "tokenUrl": f"{url}/token", "clientId": CLIENT[0], "clientSecret": secret}
        login["clientAuth"] = "body"
        return read(url, "page", auth=json.dumps(login))

    with ApiService() as service:
        service.add("orders", [{"id": 1, "name": "a", "updated_at": "2026-01-01T00:00:00Z"}])
        service.behave(token=True)
        with RecordedApi(file, service.url) as recorder:
            recorded = rows(recorder.url, CLIENT[1])
    assert [part for part in (CLIENT[1], "token-") if part in file.read_text()] == []
    with RecordedApi(file) as replay:
        assert rows(replay.url, "another") == recorded
        assert replay.missing == []


def test_no_credential_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "api.json"

    def answer(seen: Seen, _: object) -> Reply:
        body = {
            "access_token": SECRETS["answer"],
            "user": {"password": SECRETS["answer"], "api_key": SECRETS["answer"], "client_secret": [SECRETS["answer"]]},
            "echo": [f"you are {SECRETS['header']}", f"basic {SECRETS['basic']}", f"key {SECRETS['query']}"],
            "file": f"https://u:{SECRETS['answer']}@x/f?X-Amz-Signature={SECRETS['answer']}&next_page_token=t2",
            "nextPageToken": "t2",
            "key": "ISSUE-1",
            "options": "red",
        }
        headers = {"Set-Cookie": f"session={SECRETS['cookie']}", "X-Auth-Token": SECRETS["answer"], "X-Rate": "7"}
        return Reply(200, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})

    basic = base64.b64encode(f"me:{SECRETS['basic']}".encode()).decode()
    headers = {"X-Api-Key": SECRETS["header"], "Authorization": f"Basic {basic}", "Cookie": f"id={SECRETS['cookie']}"}
    with FaultProxy("") as upstream:
        upstream.rule = answer
        with RecordedApi(file, upstream.url) as api:
            url, content = f"{api.url}/a?page=1&key={SECRETS['query']}", {"token": SECRETS["body"], "n": 1}
            got = request_json(url, content, "POST", headers)
            form = f"grant_type=password&password={SECRETS['form']}".encode()
            urllib.request.urlopen(urllib.request.Request(f"{api.url}/token", form, headers), timeout=30).close()
    assert got["access_token"] == SECRETS["answer"], "the caller gets the answer as it is"
    assert upstream.seen[0].headers["X-Api-Key"] == SECRETS["header"]
    text = file.read_text()
    assert [name for name, secret in SECRETS.items() if secret in text or basic in text] == []
    (first, second) = json.loads(text)
    assert first["request"] == {"method": "POST", "path": "/a?page=1&key=***", "body": {"token": "***", "n": 1}}
    assert second["request"]["body"] == "grant_type=password&password=***"
    body = first["response"]["body"]
    assert (body["nextPageToken"], body["key"], body["options"]) == ("t2", "ISSUE-1", "red")
    assert "next_page_token=t2" in body["file"]
    assert first["response"]["headers"] == {"Content-Type": "application/json", "X-Auth-Token": "***", "X-Rate": "7"}
    with RecordedApi(file) as api:
        assert request_json(f"{api.url}/a?key=other&page=1", {"n": 1, "token": "other"}, "POST")["key"] == "ISSUE-1"
        assert api.missing == []


def test_a_request_gets_its_answers_in_order_and_the_last_one_again(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    other = exchange("/a?x=2", [3])
    file.write_text(json.dumps([exchange("/a?x=1&y=é z", [1]), other, exchange("/a?y=é z&x=1", {"next": "{api}/b"})]))
    with RecordedApi(file) as api:
        url = f"{api.url}/a?y=%C3%A9+z&x=1"
        assert [request_json(url) for _ in range(3)] == [[1], {"next": f"{api.url}/b"}, {"next": f"{api.url}/b"}]
        assert request_json(f"{api.url}/a?x=2") == [3]


def test_bodies_are_compared_as_json_and_an_empty_list_is_one(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    first = exchange("/q", [], method="POST", body={"a": 1, "b": [2]})
    file.write_text(json.dumps([first, exchange("/q", {}, method="POST", body={"a": 2})]))
    with RecordedApi(file) as api:
        assert request_json(f"{api.url}/q", {"b": [2], "a": 1}, "POST") == []
        assert request_json(f"{api.url}/q", {"a": 2}, "POST") == {}


def test_an_unknown_request_is_told_with_the_nearest_ones(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    file.write_text(json.dumps([exchange("/orders?page=1", []), exchange("/users", [])]))
    with RecordedApi(file) as api:
        with pytest.raises(urllib.error.HTTPError) as refused:
            request_json(f"{api.url}/orders?page=2")
        assert refused.value.code == 501
        answer = json.load(refused.value)
        assert answer["error"] == "no answer is recorded for GET /orders?page=2"
        assert answer["nearest"][0] == "GET /orders?page=1"
        assert api.missing == ["GET /orders?page=2"]


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("token", "refresh_token", "sessionToken", "X-Amz-Security-Token", "apiKey", "private_key")),
        *((name, True) for name in ("password", "client_secret", "signature", "Authorization", "Cookie")),
        *((name, False) for name in ("nextPageToken", "X-Next-Page-Token", "pagination_token", "$skiptoken", "syncToken")),
        *((name, False) for name in ("key", "sources", "headers", "id")),
    ],
)
def test_a_field_is_secret_by_its_name_and_the_token_of_a_page_is_none(name: str, is_secret: bool) -> None:
    assert masked({name: "v", "n": None}) == {name: "***" if is_secret else "v", "n": None}
    assert masked(f"/a?{name}=v&b=1") == f"/a?{name}={'***' if is_secret or name == 'key' else 'v'}&b=1"


def test_each_spelling_of_the_address_of_the_api_becomes_that_of_the_recorder(tmp_path: Path) -> None:
    with FaultProxy("") as upstream:
        host = upstream.url.partition("//")[2]
        text = rf'{{"a": "http:\/\/{host}\/a", "b": "https://{host}/b", "c": "see http://{host}.", "d": "http://{host}.x/"}}'
        upstream.rule = lambda seen, _: Reply(200, text.encode(), {"Location": f"http://{host}/c"})
        with RecordedApi(tmp_path / "api.json", upstream.url) as api, urllib.request.urlopen(f"{api.url}/x") as answer:
            url, location, got = api.url, answer.headers["Location"], json.load(answer)
    assert (location, got) == (f"{url}/c", {"a": f"{url}/a", "b": f"{url}/b", "c": f"see {url}.", "d": f"http://{host}.x/"})
    assert (tmp_path / "api.json").read_text().count("{api}") == 4


def test_an_api_that_speaks_tls_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = certificates(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.authority))
    with FaultProxy("", issued.server_context()) as upstream:
        upstream.rule = lambda seen, _: Reply(200, json.dumps({"next": f"{upstream.url}/b"}).encode())
        with RecordedApi(tmp_path / "api.json", upstream.url) as api:
            assert request_json(f"{api.url}/a") == {"next": f"{api.url}/b"}
    assert json.loads((tmp_path / "api.json").read_text())[0]["response"]["body"] == {"next": "{api}/b"}


def test_an_upstream_with_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be an address without a path"):
        RecordedApi(tmp_path / "api.json", "https://api.example.com/v1")

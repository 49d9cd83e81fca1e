"""Over TLS, as a user, to several hosts, and to servers that say what they are: the sink and the source alike."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Fatal
from connectors.testing.servers import OpenSearchServer
from connectors.testing.servers.base import HOST, free_ports
from connectors.testing.servers.fault_proxy import Certificates, FaultProxy, Reply, Rule, Seen, certificates

from .reading import read, source_of
from .writing import write

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = [{"id": n, "name": f"row {n}"} for n in range(40)]
BASIC = {"user": "me", "password": "hush-hush"}
API_KEY = base64.b64encode(b"an id:a key").decode()


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("issued"))


@pytest.fixture
def secure(server: OpenSearchServer, issued: Certificates) -> Iterator[FaultProxy]:
    """OpenSearch behind TLS."""
    with FaultProxy(server.url, issued.server_context()) as fault_proxy:
        yield fault_proxy


def only_for(authorization: str) -> Rule:
    """Lets in who has this header, as a server with users does."""

    def rule(request: Seen, passed_on: Any) -> Reply:
        headers = {name.lower(): value for name, value in request.headers.items()}
        refused = Reply(401, b'{"error":"unable to authenticate"}', {"Content-Type": "application/json"})
        return passed_on() if headers.get("authorization") == authorization else refused

    return rule


def everything(hosts: str, index: str, **options: str) -> list[dict[str, Any]]:
    return sorted(read(source_of(hosts, index, **options), SCHEMA), key=lambda row: row["id"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("header", "options"),
    [
        (f"Basic {base64.b64encode(b'me:hush-hush').decode()}", BASIC),
        (f"ApiKey {API_KEY}", {"apiKey": API_KEY}),
        (f"ApiKey {API_KEY}", {"apiKey": f"ApiKey {API_KEY}"}),
    ],
    ids=["user and password", "API key", "API key with its word"],
)
def test_a_user_writes_and_reads_over_tls(
    secure: FaultProxy, issued: Certificates, index: str, header: str, options: dict[str, str]
) -> None:
    secure.rule = only_for(header)
    trusted = {"caCert": str(issued.authority), **options}
    assert write(secure.url, index, ROWS, SCHEMA, idColumn="id", **trusted).rows == len(ROWS)
    assert everything(secure.url, index, **trusted) == ROWS


def test_a_wrong_password_is_told_at_once_without_showing_it(secure: FaultProxy, issued: Certificates, index: str) -> None:
    secure.rule = only_for("Basic of somebody else")
    trusted = {"caCert": str(issued.authority), **BASIC}
    for attempt in (lambda: write(secure.url, index, ROWS, **trusted), lambda: everything(secure.url, index, **trusted)):
        with pytest.raises(Fatal, match=r"401(.|\n)*user and password") as error:
            attempt()
        assert "hush" not in str(error.value)
    assert len(secure.seen) == 2


def test_a_certificate_of_an_authority_that_nobody_knows_is_refused(
    secure: FaultProxy, index: str, tmp_path: Path
) -> None:
    others = certificates(tmp_path)
    for trust in ({}, {"caCert": str(others.authority)}):
        for attempt in (
            lambda trust=trust: write(secure.url, index, ROWS, **trust, **BASIC),
            lambda trust=trust: everything(secure.url, index, **trust, **BASIC),
        ):
            with pytest.raises(Fatal, match=r"no secure connection(.|\n)*certificate(.|\n)*caCert"):
                attempt()
    assert secure.seen == [], "not even the credentials may be sent"


def test_a_certificate_that_was_made_for_another_host_is_refused(
    server: OpenSearchServer, index: str, tmp_path: Path
) -> None:
    others = certificates(tmp_path, "search.example.org")
    with FaultProxy(server.url, others.server_context()) as proxy:
        for attempt in (write, everything):
            with pytest.raises(Fatal, match=r"doesn't match 'search.example.org'(.|\n)*write the host"):
                attempt(proxy.url, index, *([ROWS] if attempt is write else []), caCert=str(others.authority), **BASIC)
        assert proxy.seen == []


def test_a_file_of_certificates_that_is_not_there_is_told(secure: FaultProxy, index: str, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=r"caCert names no file"):
        write(secure.url, index, ROWS, caCert=str(tmp_path / "missing.pem"))


def test_a_host_that_stops_answering_is_replaced_by_the_next_one(server: OpenSearchServer, index: str) -> None:
    (dead,) = free_ports(1)
    with FaultProxy(server.url) as first, FaultProxy(server.url) as second:
        hosts = f"http://{HOST}:{dead},{first.url},{second.url}"
        write(hosts, index, ROWS, SCHEMA, idColumn="id", batch__maxRecords="5", retry__maxRetries="0")
        both = len(first.seen), len(second.seen)
        assert min(both) > 0, "the requests are spread over the hosts"
        first.rule = lambda request, passed_on: None if "_search" in request.path else passed_on()
        assert everything(hosts, index, pageSize="4", **{"retry.maxRetries": "0"}) == ROWS
        assert any("_search" in request.path for request in first.seen), "the host that does not answer was asked"


def test_servers_that_announce_themselves_are_written_and_read(proxy: FaultProxy, index: str) -> None:
    def announced(request: Seen, passed_on: Any) -> Reply:
        reply = passed_on()
        media = "application/vnd.elasticsearch+json;compatible-with=8"
        return Reply(reply.status, reply.body, {"Content-Type": media, "X-Elastic-Product": "Elasticsearch"})

    proxy.rule = announced
    write(proxy.url, index, ROWS, SCHEMA, idColumn="id")
    assert source_of(proxy.url, index).schema == "`id` bigint, `name` string"
    assert everything(proxy.url, index) == ROWS

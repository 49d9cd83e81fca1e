"""What the sink sends: requests, bodies and keys; what becomes of refusals; and that no login goes astray."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet
import pytest
import trustme
from pyspark.sql.functions import spark_partition_id

from connectors.core import Batch, Fatal, Misconfigured, Poison, Transient
from connectors.core.writing import stage
from connectors.systems.http import HttpSink
from connectors.testing.servers import ApiService
from tests.servers import required
from tests.systems.batches import write as write_batch

from .contexts import RequestsContext

pytestmark = pytest.mark.server
QUICK = {"retry.initialBackoff": "10ms", "retry.maxRetries": "2", "outageTimeout": "0s"}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[RequestsContext]:
    context = RequestsContext(tmp_path)
    yield context
    context.server.behave()


def rows_of(count: int) -> pa.Table:
    return pa.table({"id": list(range(count)), "name": [f"n{number}" for number in range(count)]})


def write(target: RequestsContext, rows: pa.Table, path: str = "", number: int = 0, **options: str) -> None:
    """Writes rows as one task of a batch."""
    url = f"{target.server.url}/rows/{target.table}{path}"
    sink = HttpSink.of({"url": url, **QUICK, **options})
    stage(sink, Batch(sink.sink_id(), "q", number), rows.schema, 0, iter(rows.to_batches()))


def requests(target: RequestsContext, method: str = "POST") -> int:
    return int(target.server.seen()["requests"].get(f"{method} /rows/{target.table}", 0))


@pytest.mark.parametrize("body", ["row", "json", "ndjson"])
def test_rows_arrive_in_each_form(target: RequestsContext, body: str) -> None:
    rows = pa.table({"id": [1, 2, 3], "name": ["ä", None, "c"]})
    write(target, rows, body=body)
    assert sorted(target.rows(), key=lambda row: row["id"]) == rows.to_pylist()
    assert requests(target) == (3 if body == "row" else 1)


def test_requests_have_so_many_rows_and_bytes(target: RequestsContext) -> None:
    write(target, rows_of(25), body="json", **{"batch.maxRecords": "10"})
    assert requests(target) == 3
    write(target, rows_of(25), body="ndjson", **{"batch.maxBytes": "100"})
    assert requests(target) > 6
    assert len(target.rows()) == 50


def test_columns_in_the_url_are_percent_encoded(target: RequestsContext) -> None:
    rows = pa.table({"id": ["a/b c", "d?e=f", "ü%"]})
    write(target, rows, "/{id}", method="PUT")
    write(target, rows, "/{id}", method="PUT")
    assert sorted(row["id"] for row in target.rows()) == ["a/b c", "d?e=f", "ü%"]
    write(target, rows.slice(0, 2), "/{id}", method="DELETE")
    write(target, rows.slice(0, 2), "/{id}", method="DELETE")
    assert target.rows() == [{"id": "ü%"}], "what is gone already is no error"


def test_a_replay_sends_the_same_keys_and_another_batch_others(target: RequestsContext) -> None:
    keys = {"idempotencyHeader": "Idempotency-Key", "idColumn": "id"}
    rows = rows_of(20)
    write(target, rows, **keys)
    write(target, rows.slice(10), **keys)
    write(target, rows.slice(0, 10), **keys)
    assert len(target.rows()) == 20
    write(target, rows, number=1, **keys)
    assert len(target.rows()) == 40


@pytest.mark.spark
def test_equal_rows_are_each_taken_once_whatever_the_parallelism_of_a_replay(target: RequestsContext, spark: Any) -> None:
    frame = spark.range(60).selectExpr("id % 7 AS id", "'x' AS name")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    options = {"url": f"{target.server.url}/rows/{target.table}", "idempotencyHeader": "Idempotency-Key"}
    for tasks, partitions in ((1, 2), (5, 3), (3, 7)):
        sink = HttpSink.of({**options, "numPartitions": str(partitions)}, placed=True)
        assert isinstance(sink, HttpSink)
        placed, dealt = sink.placed(frame.repartition(tasks), schema, Batch("s", "q", 0))
        rows = dealt.withColumn("task", spark_partition_id()).toPandas()
        assert rows["task"].max() < partitions
        for task, part in rows.groupby("task"):
            content = pa.Table.from_pandas(part[["id", "name"]], schema, preserve_index=False)
            stage(placed, Batch("s", "q", 0), schema, int(task), iter(content.to_batches()))
    assert sorted(row["id"] for row in target.rows()) == sorted(number % 7 for number in range(60))


def test_equal_rows_need_a_column_where_no_rows_are_placed(target: RequestsContext) -> None:
    sink = HttpSink.of({"url": target.server.url, "idempotencyHeader": "Idempotency-Key"})
    with pytest.raises(Misconfigured, match=r"idColumn +missing; with format[\s\S]*foreach_batch"):
        sink.refuse_frame(rows_of(1).schema, placed=False)
    sink.refuse_frame(rows_of(1).schema, placed=True)


@pytest.mark.parametrize("body", ["row", "json"])
def test_rows_that_the_server_refuses_are_bad_and_the_others_arrive(target: RequestsContext, tmp_path: Path, body: str) -> None:
    target.server.behave(refused=["n3", "n11"])
    letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    sink = HttpSink.of({"url": f"{target.server.url}/rows/{target.table}", "body": body, **QUICK, **letters})
    write_batch(sink, rows_of(15).to_batches()[0])
    assert sorted(row["id"] for row in target.rows()) == [number for number in range(15) if number not in (3, 11)]
    content = pa.parquet.read_table(tmp_path / "letters").to_pylist()
    assert sorted(json.loads(letter["record"])["id"] for letter in content) == [3, 11]
    assert all("answered 422" in letter["error"] for letter in content)
    with pytest.raises(Poison, match="answered 422"):
        write(target, rows_of(15), body=body)


def test_outages_are_waited_for_and_retry_after_is_heeded(target: RequestsContext) -> None:
    target.server.behave(fail=3, status=503)
    write(target, rows_of(10))
    target.server.behave(fail=1, status=429, retry_after="1")
    start = time.monotonic()
    write(target, rows_of(10))
    assert time.monotonic() - start > 0.9
    assert len(target.rows()) == 20
    target.server.behave(fail=1000, status=503)
    with pytest.raises(Transient, match="answered 503"):
        write(target, rows_of(1))


def test_statuses_can_be_chosen(target: RequestsContext) -> None:
    target.server.behave(fail=1, status=409)
    write(target, rows_of(1), retryStatuses="409")
    assert len(target.rows()) == 1
    target.server.behave(fail=1, status=409)
    write(target, rows_of(1), successStatuses="200-299,409")
    assert len(target.rows()) == 1, "409 counts as taken"


@pytest.mark.parametrize(("status", "text"), [(401, "check headers and auth"), (403, "check headers and auth")])
def test_a_login_that_is_refused_is_no_bad_row(target: RequestsContext, status: int, text: str) -> None:
    target.server.behave(fail=100, status=status)
    with pytest.raises(Fatal, match=text):
        write(target, rows_of(3), errors="skip")


def test_a_url_that_is_not_there_is_no_bad_row(target: RequestsContext) -> None:
    with pytest.raises(Fatal, match=r"answered 404[\s\S]*correct url or method"):
        write(target, rows_of(3), "/one/two", errors="skip")


def test_so_many_requests_are_under_way(target: RequestsContext) -> None:
    target.server.forget()
    target.server.behave(latency=0.02)
    write(target, rows_of(200), **{"batch.maxInFlight": "8"})
    assert 5 <= target.server.seen()["most"] <= 8
    assert len(target.rows()) == 200


def test_headers_go_with_each_request_and_not_to_another_host(target: RequestsContext) -> None:
    with ApiService() as other:
        options = {"headers": json.dumps({"X-Tenant": "t1"}), "auth": json.dumps({"type": "bearer", "token": "t0ken"})}
        sink = HttpSink.of({"url": f"{target.server.url}/away?to={other.url}/rows/x", **QUICK, **options})
        rows = rows_of(1)
        stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
        assert target.server.seen()["headers"]["X-Tenant"] == "t1"
        names = {name.lower() for name in other.seen()["headers"]}
        assert not names & {"x-tenant", "authorization"}


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"url": "host/x"}, ["url must begin with http:// or https:// and a host"]),
        ({"url": "http://me:pw@host/x"}, ["url must hold no login; give it by auth."]),
        ({"url": "http://{host}/x"}, ["url must have no column in its host"]),
        ({"url": "http://host/{id}", "body": "json"}, ["url has a column, and the rows of a request of body=json go to one"]),
        ({"url": "http://host/{}"}, ["url must be text with columns in braces"]),
        ({"idempotencyHeader": "a b"}, ["idempotencyHeader must be the name of a header"]),
        (
            {"idempotencyHeader": "Key", "idColumn": "id", "headers": '{"key": "1"}'},
            ["idempotencyHeader is given by headers too, the same for all rows"],
        ),
        ({"idempotencyHeader": "Key", "body": "json"}, ["idempotencyHeader has no use without body=row"]),
        ({"idColumn": "id"}, ["idColumn has no use without idempotencyHeader."]),
        ({"method": "DELETE", "body": "json"}, ["body has no use with method=DELETE"]),
        ({"batch.maxRecords": "5"}, ["batch.maxRecords has no use with body=row"]),
        ({"retryStatuses": "5xx"}, ['retryStatuses must be statuses such as 200-299,304; got "5xx".']),
        ({"retryStatuses": "²"}, ['retryStatuses must be statuses such as 200-299,304; got "²".']),
        ({"successStatuses": "299-200"}, ['successStatuses must be statuses such as 200-299,304; got "299-200".']),
        ({"successStatuses": "200-29999999999"}, ["successStatuses must be statuses such as 200-299,304"]),
        ({"headers": '{"a": "b\\nc"}'}, ["headers must have no line breaks"]),
        ({"clientKey": "k.pem"}, ["clientCert missing; clientKey needs its certificate."]),
        ({"auth": '{"type": "digest"}'}, ["auth must have a type among basic, bearer, oauth2."]),
        ({"auth": '{"type": "oauth2", "clientId": "c"}'}, ["auth tokenUrl: missing.", "auth clientSecret: missing."]),
        (
            {"auth": '{"type": "bearer", "token": "t"}', "headers": '{"authorization": "x"}'},
            ["auth is given beside the header Authorization"],
        ),
        ({"guarantee": "exactly-once"}, ['guarantee "exactly-once" is not possible, only "at-least-once"']),
        (
            {"guarantee": "exactly-once", "idempotencyHeader": "Key", "idColumn": "id"},
            ["a server that takes each key once has each row once, but has no ledger of batches"],
        ),
    ],
)
def test_bad_options_name_the_way_out(options: dict[str, str], texts: list[str]) -> None:
    with pytest.raises(Misconfigured) as wrong:
        HttpSink.of({"url": "http://host/x", **options})
    listed = "\n".join(f"{problem.option} {problem.text}" for problem in wrong.value.problems)
    for text in texts:
        assert text in listed
    assert "pw" not in listed


def test_a_column_that_is_not_there_is_named(target: RequestsContext) -> None:
    with pytest.raises(Misconfigured, match=r'url +names the column "key"'):
        write(target, rows_of(1), "/{key}", method="PUT")


def test_a_null_in_the_url_is_a_bad_row(target: RequestsContext) -> None:
    rows = pa.table({"id": ["a", None]})
    write(target, rows, "/{id}", method="PUT", errors="skip")
    assert target.rows() == [{"id": "a"}]


@pytest.mark.parametrize("path", ["/{id}", "/{id}?all={name}", "/{id}/mails", "/a{id}.{name}/{id}"])
@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_value_that_would_make_the_url_of_another_place_is_a_bad_row(target: RequestsContext, path: str, value: str) -> None:
    rows = pa.table({"id": [value, "x"], "name": ["", ""]})
    before = target.server.seen()["requests"]
    with contextlib.suppress(Fatal):  # the service has no place for some
        write(target, rows, path, method="DELETE", errors="skip")
    asked = {name for name, count in target.server.seen()["requests"].items() if count > before.get(name, 0)}
    assert asked <= {f"DELETE /rows/{target.table}{path.replace('{id}', 'x').replace('{name}', '').partition('?')[0]}"}
    with pytest.raises(Poison, match=f'a column makes "{re.escape(value)}" of a part of the path'):
        write(target, rows, path, method="DELETE")


def test_such_a_value_in_the_query_or_in_a_part_with_more_is_one_as_any(target: RequestsContext) -> None:
    rows = pa.table({"id": ["", ".", ".."], "name": ["a", "b", "c"]})
    write(target, rows, "/{name}{id}?of={id}", method="PUT")
    assert len(target.rows()) == 3


def test_a_delete_needs_no_body_that_json_has(target: RequestsContext) -> None:
    write(target, rows_of(3), "/{id}", method="PUT")
    rows = pa.table({"id": [0, 1], "x": [float("nan"), 1.0], "text": ["y" * 200, ""]})
    write(target, rows, "/{id}", method="DELETE", **{"batch.maxRecordBytes": "100"})
    assert [row["id"] for row in target.rows()] == [2]
    write(target, rows, "/{id}", method="DELETE", idempotencyHeader="Key", idColumn="id")
    with pytest.raises(Poison, match="NaN or infinity"):
        write(target, rows, "/{id}", method="DELETE", idempotencyHeader="Key")


class Recorder(http.server.BaseHTTPRequestHandler):
    """Notes the headers of each request."""

    headers_seen: ClassVar[list[list[tuple[str, str]]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.headers_seen.append([(name.lower(), value) for name, value in self.headers.items()])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *parts: object) -> None:
        pass


@pytest.mark.parametrize("name", ["Content-Type", "content-type", "ACCEPT"])
def test_a_header_of_the_user_goes_once_in_place_of_the_sinks_own(name: str) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        own = {"headers": json.dumps({name: "application/vnd.api+json"}), **QUICK}
        sink = HttpSink.of({"url": f"http://127.0.0.1:{server.server_port}/rows", **own})
        stage(sink, Batch("s", "q", 0), rows_of(1).schema, 0, iter(rows_of(1).to_batches()))
    finally:
        server.shutdown()
        server.server_close()
    seen = Recorder.headers_seen.pop()
    assert [value for other, value in seen if other == name.lower()] == ["application/vnd.api+json"]
    assert len({other for other, _ in seen if other in ("content-type", "accept")}) == 2


def test_a_certificate_of_the_client_is_shown_to_the_server(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("me@example.org").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *parts: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url, rows = f"https://127.0.0.1:{server.server_port}/rows", rows_of(1)
        trusted = {"caCert": str(tmp_path / "ca.pem"), "clientCert": str(tmp_path / "client.pem")}
        sink = HttpSink.of({"url": url, **QUICK, **trusted})
        stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
        assert bodies == [b'{"id":0,"name":"n0"}']
        strange = HttpSink.of({"url": url, **QUICK})
        with pytest.raises(Fatal, match="give the authority's certificate by caCert"):
            stage(strange, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))
    finally:
        server.shutdown()
        server.server_close()


def test_a_secret_in_the_url_is_not_shown(target: RequestsContext) -> None:
    target.server.behave(fail=100, status=400)
    with pytest.raises(Poison) as refused:
        write(target, rows_of(1), "?api_key=s3cret")
    assert "s3cret" not in str(refused.value)
    assert base64.b64encode(b"s3cret").decode() not in str(refused.value)


def test_the_service_of_the_kit_is_one_that_every_machine_must_have() -> None:
    assert required(ApiService).required

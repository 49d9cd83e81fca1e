"""Logins, TLS, secure bundles, and what a user reads of a cluster that cannot be reached."""

from __future__ import annotations

import http.server
import json
import re
import ssl
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, ConnectorError, Fatal, Misconfigured, Transient
from connectors.core.writing import stage
from connectors.systems.cassandra import CassandraSink, CassandraSource
from connectors.systems.cassandra.connection import CassandraClient
from connectors.testing.servers import HOST
from connectors.testing.servers.base import free_ports

from .contexts import KEYSPACE, Tables
from .reading import read

SECRET = "a-password-nobody-may-see"
SCHEMA = pa.schema([("id", pa.int32())])


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables()


@pytest.fixture(scope="module")
def table(tables: Tables) -> str:
    table = tables.make("id int primary key")
    tables.execute(f"insert into {KEYSPACE}.{table} (id) values (7)")
    return table


def rows(tables: Tables, table: str, **options: str) -> list[dict[str, Any]]:
    source = CassandraSource.of({**tables.options(table), "retry.maxRetries": "0", **options})
    assert isinstance(source, CassandraSource)
    return read(source, SCHEMA)


def error_of(tables: Tables, table: str, **options: str) -> ConnectorError:
    with pytest.raises(ConnectorError) as raised:
        rows(tables, table, **options)
    assert SECRET not in str(raised.value)
    return raised.value


def test_a_cluster_that_is_down_is_an_error_within_seconds_that_names_it_and_what_to_see_to() -> None:
    address = f"{HOST}:{free_ports(1)[0]}"
    options = {"contactPoints": address, "keyspace": "k", "table": "t", "user": "u", "password": SECRET}
    began = time.monotonic()
    for use in (
        lambda: CassandraSource.of(options).schema,
        lambda: CassandraSink.of(options).check_target(SCHEMA),
    ):
        with pytest.raises(Transient, match=f"no node of {address} answers: .*Connection refused") as raised:
            use()
        assert "Way out: see that contactPoints is right" in str(raised.value)
        assert SECRET not in str(raised.value)
    assert time.monotonic() - began < 10


@pytest.mark.soak
@pytest.mark.server
def test_a_wrong_datacenter_is_named_beside_those_that_there_are(tables: Tables, table: str) -> None:
    error = error_of(tables, table, localDatacenter="Frankfurt")
    assert isinstance(error, Misconfigured)
    assert 'localDatacenter   "Frankfurt" is no datacenter of the cluster, which has datacenter1.' in str(error)


@pytest.mark.server
def test_a_wrong_password_is_no_outage(tables: Tables, table: str) -> None:
    error = error_of(tables, table, password=SECRET)
    assert isinstance(error, Fatal)
    assert "Cassandra refuses the login" in str(error)
    assert "Way out: check user and password" in str(error)


@pytest.mark.server
def test_a_permission_that_is_missing_is_named(tables: Tables, table: str) -> None:
    tables.execute("create role if not exists reader with login = true and password = 'reader'")
    login = {"user": "reader", "password": "reader"}
    assert "no SELECT permission" in str(error_of(tables, table, **login))
    sink = CassandraSink.of({**tables.options(table), **login})
    batch = pa.RecordBatch.from_pydict({"id": [1]}, SCHEMA)
    with pytest.raises(Fatal, match=r"no MODIFY permission(.|\n)*Way out: grant the role the permission"):
        stage(sink, Batch("s", "q", 0), SCHEMA, 0, iter([batch]))


@pytest.mark.server
def test_tls_with_the_certificate_of_a_client(tables: Tables, table: str) -> None:
    files = {name: str(path) for name, path in tables.server.tls.items()}
    secure = {"caCert": files["authority"], "clientCert": files["client"]}
    assert rows(tables, table, **secure) == [{"id": 7}]
    with CassandraTls(tables, table, **secure) as session:
        assert session.is_encrypted()
    for wrong, text in (
        ({**secure, "clientCert": files["stranger"]}, "TLS with the node fails|no node of .* answers"),
        ({"tls": "true", "clientCert": files["client"]}, "not trusted|TLS with the node fails"),
        ({"caCert": files["authority"]}, "TLS with the node fails|no node of .* answers"),
    ):
        assert_matches(error_of(tables, table, **wrong), text)
    broken = tables.server.folder / "broken.pem"
    broken.write_text("no certificate")
    assert_matches(error_of(tables, table, caCert=str(broken)), "caCert   cannot be read as certificates and keys in PEM")


def assert_matches(error: ConnectorError, text: str) -> None:
    assert re.search(text, str(error)), str(error)


class CassandraTls:
    """A client, which says whether its connections are encrypted."""

    def __init__(self, tables: Tables, table: str, **options: str) -> None:
        self.client = CassandraClient(CassandraSource.of({**tables.options(table), **options}).values)

    def __enter__(self) -> CassandraTls:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()

    def is_encrypted(self) -> bool:
        connections = [part for holder in self.client.cluster.get_connection_holders() for part in holder.get_connections()]
        return all(isinstance(connection._socket, ssl.SSLSocket) for connection in connections) and bool(connections)


@pytest.fixture
def bundle(tables: Tables, tmp_path: Path) -> Iterator[Path]:
    """A secure bundle as Astra gives it, and the service that says where the nodes are: the node takes TLS by itself."""
    folder = tables.server.tls["authority"].parent
    (host,) = tables.server.client.execute("select host_id from system.local")
    contact = {"type": "sni_proxy", "local_dc": "datacenter1", "sni_proxy_address": f"{HOST}:{tables.server.port}"}
    answer = json.dumps({"version": 1, "contact_info": {**contact, "contact_points": [str(host[0])]}}).encode()

    class Service(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), Service)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.load_verify_locations(folder / "authority.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    file = tmp_path / "bundle.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("config.json", json.dumps({"host": HOST, "port": server.server_address[1]}))
        archive.write(folder / "authority.pem", "ca.crt")
        archive.write(folder / "client.pem", "cert")
        archive.write(folder / "client.pem", "key")
    yield file
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.server
def test_a_secure_bundle_takes_the_place_of_addresses_and_certificates(tables: Tables, table: str, bundle: Path) -> None:
    login = {"user": tables.server.user, "password": tables.server.password}
    options = {**login, "keyspace": KEYSPACE, "table": table, "secureConnectBundle": str(bundle)}
    source = CassandraSource.of(options)
    assert isinstance(source, CassandraSource)
    assert read(source, SCHEMA) == [{"id": 7}]
    with pytest.raises(Misconfigured, match="secureConnectBundle   is given beside contactPoints"):
        CassandraSource.of({**options, "contactPoints": "h"})
    bundle.write_bytes(b"no zip")
    other = CassandraSource.of({**options, "user": "other"})  # a client of its own
    with pytest.raises(Misconfigured, match="secureConnectBundle   is no secure bundle"):
        print(other.schema)


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cassandra"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cassandra", None)
    source = CassandraSource.of({"contactPoints": "a-host-of-its-own", "keyspace": "k", "table": "t"})
    with pytest.raises(Misconfigured, match=r"needs a package that is not here .*pip install cassandra-driver"):
        print(source.schema)

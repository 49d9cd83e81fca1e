"""Encrypted sessions: ``ssl`` and ``sslMode`` of a URL, with servers that have a certificate and with those that have none."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.systems.jdbc import JdbcSink
from connectors.testing.servers import HOST, MariaDbServer, PostgresServer
from tests.servers import optional, required

Files = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    """Copies of a certificate for ``localhost``, which is its own authority, and of its key, for the user of a server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        key = ["-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "certificate"]
        subprocess.run(["openssl", "req", "-x509", "-days", "2", *key, *subject], cwd=folder, check=True, capture_output=True)

        def copies(user: str) -> tuple[Path, Path]:
            certificate, key = (Path(shutil.copy(folder / file, folder / f"{file}-{user}")) for file in ("certificate", "key"))
            key.chmod(0o600)
            if not os.getuid():
                shutil.chown(key, user)
            return certificate, key

        yield copies


def cipher(server: Any, parameters: str = "", host: str = HOST) -> str:
    """The cipher of a new session; ``""`` for one in clear text."""
    login = {"user": server.user, **({"password": server.password} if server.password else {})}
    url = f"{server.jdbc.replace(HOST, host)}?{parameters}"
    dialect = JdbcSink.of({"url": url, "dbtable": "t", "request.timeout": "5s", **login}).dialect()
    with contextlib.closing(dialect.connect()) as connection:
        if isinstance(server, PostgresServer):
            return str(connection.rows("SELECT coalesce(cipher, '') FROM pg_stat_ssl WHERE pid = pg_backend_pid()")[0][0])
        return str(connection.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


def test_mariadb_is_spoken_to_as_the_url_asks(files: Files) -> None:
    optional(MariaDbServer)
    certificate, key = files("mysql")
    with MariaDbServer(**{"ssl-cert": str(certificate), "ssl-key": str(key)}) as server:
        assert cipher(server, "sslMode=disable") == ""
        assert cipher(server, "sslMode=trust")
        for full in ("ssl=true", "useSsl=true", "sslMode=verify-full"):
            with pytest.raises(Misconfigured, match="CERTIFICATE_VERIFY_FAILED"):
                cipher(server, full, "localhost")
            assert cipher(server, f"{full}&serverSslCert={certificate}", "localhost")
            with pytest.raises(Misconfigured, match="CERTIFICATE_VERIFY_FAILED"):  # by another name
                cipher(server, f"{full}&serverSslCert={certificate}")
        assert cipher(server, f"sslMode=verify-ca&serverSslCert={certificate}")
        assert cipher(server, f"ssl_ca={certificate}")
        with pytest.raises(Misconfigured, match="cannot be read"):
            cipher(server, "ssl=true&serverSslCert=/nowhere")


def test_a_mariadb_without_a_certificate_is_refused_where_the_url_asks_for_encryption() -> None:
    with pytest.raises(Misconfigured, match=r"cannot be used: .*SSL|does not encrypt"):
        cipher(optional(MariaDbServer), "ssl=true")


def test_a_client_of_mariadb_that_goes_on_in_clear_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pymysql

    connect = pymysql.connect
    monkeypatch.setattr(pymysql, "connect", lambda **options: connect(**{**options, "ssl": None}))
    with pytest.raises(Misconfigured, match="does not encrypt"):
        cipher(optional(MariaDbServer), "ssl=true")


def test_postgresql_is_spoken_to_as_the_url_asks(files: Files) -> None:
    certificate, key = files("nobody")
    with PostgresServer(ssl="on", ssl_cert_file=str(certificate), ssl_key_file=str(key)) as server:
        assert cipher(server, "sslmode=disable") == ""
        with pytest.raises(Misconfigured, match="root certificate file"):
            cipher(server, "ssl=true", "localhost")
        assert cipher(server, f"ssl=true&sslrootcert={certificate}", "localhost")
        with pytest.raises(Misconfigured, match="does not match host name"):
            cipher(server, f"ssl=true&sslrootcert={certificate}")


def test_a_postgresql_without_a_certificate_is_refused_where_the_url_asks_for_encryption(files: Files) -> None:
    certificate, _ = files("nobody")
    with pytest.raises(Misconfigured, match="does not support SSL"):
        cipher(required(PostgresServer), f"ssl=true&sslrootcert={certificate}")

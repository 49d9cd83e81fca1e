"""A proxy in front of an HTTP server that makes requests fail as a test says, and certificates for servers with TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .base import HOST, Unavailable


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: the ``authority`` that a client trusts, and a server's certificate ``chain`` with its ``key`` (PKCS 8)."""

    authority: Path
    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """For a server in this process."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


class Authority:
    """An authority that nobody knows, with its certificate ``pem``. Raises :class:`Unavailable` without ``trustme``."""

    def __init__(self) -> None:
        try:
            import trustme
        except ImportError as missing:
            raise Unavailable(f"{missing.name} is not installed; pip install trustme") from None
        self._authority = trustme.CA(key_type=trustme.KeyType.RSA)
        self._kind = trustme.KeyType.RSA
        self.pem = self._authority.cert_pem.bytes()

    def issue(self, host: str = HOST) -> tuple[bytes, bytes]:
        """A new key (PKCS 8) and the chain of its certificate, for whoever is called ``host``."""
        from cryptography.hazmat.primitives import serialization as forms

        certificate = self._authority.issue_cert(host, key_type=self._kind)
        key = forms.load_pem_private_key(certificate.private_key_pem.bytes(), None)
        text = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
        return text, b"".join(part.bytes() for part in certificate.cert_chain_pems)


def certificates(folder: Path, host: str = HOST) -> Certificates:
    """Creates in ``folder`` the certificates of a server that is called ``host``, by a new :class:`Authority`."""
    authority = Authority()
    folder.mkdir(parents=True, exist_ok=True)
    files = Certificates(*(folder / name for name in ("authority.pem", "server.pem", "server.key")))
    key, chain = authority.issue(host)
    for file, content in ((files.authority, authority.pem), (files.chain, chain), (files.key, key)):
        file.write_bytes(content)
    return files


@dataclass
class Seen:
    """A request that came to the proxy: ``lines`` are those of a body of JSON lines."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines() if line]


@dataclass
class Reply:
    """An answer: instead of the server's, or the server's changed."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


Rule = Callable[[Seen, Callable[..., Reply]], "Reply | None"]
"""Answers a request. Its second argument forwards the request, or another body, and returns the server's answer.

``None`` closes the connection without an answer.
"""


class FaultProxy:
    """Forwards requests to ``target``, unless ``rule`` answers them. Threads in this process; use it as a context.

    With ``tls`` clients must speak TLS to the proxy, which reaches ``target`` without.
    """

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.rule: Rule | None = None
        self.seen: list[Seen] = []
        self._server = ThreadingHTTPServer((HOST, 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, seen: Seen) -> Reply | None:
        self.seen.append(seen)

        def forward(body: bytes = seen.body) -> Reply:
            return self._forward(seen, body)

        return self.rule(seen, forward) if self.rule else forward()

    def _forward(self, seen: Seen, body: bytes) -> Reply:
        """The server's answer; 502 if it gives none."""
        url = urlsplit(self.target)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(str(url.hostname), url.port, timeout=60)
        of_connection = ("host", "connection", "content-length")
        headers = {name: value for name, value in seen.headers.items() if name.lower() not in of_connection}
        try:
            connection.request(seen.method, seen.path, body or None, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), _headers(seen.method, answer))
        except OSError as refused:
            return Reply(502, str(refused).encode(), {"Content-Type": "text/plain"})
        finally:
            connection.close()


def _headers(method: str, answer: http.client.HTTPResponse) -> dict[str, str]:
    """The headers of an answer, without those of its connection, and without the length of a body that a rule may change."""
    left_out = {"connection", "date", "keep-alive", "server", "transfer-encoding"}
    if method != "HEAD":
        left_out.add("content-length")
    headers = {name.title(): value for name, value in answer.headers.items() if name.lower() not in left_out}
    return {"Content-Type": "text/plain", **headers}


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = proxy.answer(Seen(self.command, self.path, dict(self.headers.items()), body))
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Not on the test's output."""

    return Handler

"""A server on loopback whose answers a test decides, request by request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.systems.http import HttpSource
from connectors.testing import SourceContext

Rows = list[dict[str, Any]]
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.string())])
QUICK = {"retry.initialBackoff": "10ms", "retry.maxRetries": "2", "outageTimeout": "0s"}


@dataclass
class Asked:
    """A request: ``query`` has the parameters of its URL, ``body`` is its JSON."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any = None


@dataclass
class Reply:
    """An answer. ``body`` becomes JSON, unless it is bytes, or an iterator of those; ``length`` is what it says to have."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


class Answers:
    """``rule`` gives the answer to each request; ``asked`` are those that came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rule: Callable[[Asked], Reply] = lambda asked: Reply(status=404)
        self.asked: list[Asked] = []


@contextmanager
def answers() -> Iterator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            parts = urlsplit(self.path)
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(content) if content else None
            asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), self.headers, body)
            server.asked.append(asked)
            reply = server.rule(asked)
            is_slow = isinstance(reply.body, Iterator)
            text = reply.body if is_slow or isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204 and not is_slow:
                self.send_header("Content-Length", str(len(text) if reply.length is None else reply.length))
            self.end_headers()
            for part in text if is_slow else [text]:
                self.wfile.write(part)

        do_GET = do_POST = do_PUT = serve  # noqa: N815

        def log_message(self, *parts: object) -> None:
            pass

    real = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    real.daemon_threads = True
    server = Answers(f"http://127.0.0.1:{real.server_port}")
    threading.Thread(target=real.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        real.shutdown()
        real.server_close()


class Declared(SourceContext):
    """A resource of such a server."""

    source = HttpSource
    schema = SCHEMA

    def __init__(self, folder: Path, server: Answers, **resource: Any) -> None:
        super().__init__(folder)
        self.server, self.resource = server, {"name": "r", "path": "r", **resource}

    def options(self) -> dict[str, str]:
        config = {"baseUrl": self.server.url, "resources": [self.resource]}
        more = {"stateLocation": str(self.folder / "log"), "pollInterval": "20ms", "drainTimeout": "20ms", **QUICK}
        return {"config": json.dumps(config), **more}

    def write(self, count: int) -> Rows:
        raise NotImplementedError


def read(server: Answers, resource: Mapping[str, Any], schema: pa.Schema = SCHEMA, name: str = "", **options: str) -> Rows:
    """The rows of a batch."""
    config = {"baseUrl": server.url, "resources": [{"name": "r", "path": "r", **resource}]}
    source = HttpSource.of({"config": json.dumps(config), "resource": name or "r", **QUICK, **options})
    return [row for part in Planner(source).whole() for batch in read_slice(source, part, schema) for row in batch.to_pylist()]

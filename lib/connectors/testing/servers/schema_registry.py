"""A small schema registry with the part of the interface that Confluent's client uses, and faults that a test sets.

Its schemas are in a file, so that they outlive a kill. It does not check whether versions of a subject are compatible.
"""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from .base import HOST, Server, library_path, request_json

_FILE = "schemas.json"


class SchemaRegistry(Server):
    """A registry in a process of its own; with ``user`` and ``password`` every request must have them."""

    required = True

    def __init__(self, user: str = "", password: str = "") -> None:
        super().__init__()
        self.url = f"http://{HOST}:{self.port}"
        self.user = user
        self.password = password

    def launch(self) -> None:
        credentials = [self.user, self.password] if self.user else []
        self.spawn([sys.executable, "-m", __name__, str(self.port), *credentials], library_path())

    def ready(self) -> bool:
        return "requests" in self.seen()

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Any] = ()) -> int:
        """Adds ``schema`` as a version of ``subject``, unless it is one, and returns its id.

        ``references`` are those of the registry's API.
        """
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        return int(self._call("POST", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)["id"])

    def behave(self, *, fail: int = 0, status: int = 503) -> None:
        """From now on the next ``fail`` requests of clients are answered with ``status``."""
        self._call("PUT", "/behaviour", {"fail": fail, "status": status})

    def seen(self) -> dict[str, int]:
        """The number of requests for each path; ``requests`` is the number of all."""
        return {str(path): int(count) for path, count in self._call("GET", "/seen").items()}

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": _basic(self.user, self.password)} if self.user else {}
        return request_json(self.url + path, body, method, headers)


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class _Store:
    """Schemas by id, and the ids of the versions of each subject."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.file = Path(_FILE)
        state = json.loads(self.file.read_text()) if self.file.exists() else {"schemas": [], "subjects": {}}
        self.schemas: list[dict[str, Any]] = state["schemas"]
        self.subjects: dict[str, list[int]] = state["subjects"]

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        with self.lock:
            if schema not in self.schemas:
                self.schemas.append(schema)
            number = self.schemas.index(schema) + 1
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            self.file.write_text(json.dumps({"schemas": self.schemas, "subjects": self.subjects}))
            return number

    def version(self, subject: str, version: str) -> dict[str, Any] | None:
        numbers = self.subjects.get(subject, [])
        index = len(numbers) if version == "latest" else int(version)
        if not 1 <= index <= len(numbers):
            return None
        number = numbers[index - 1]
        return {"subject": subject, "version": index, "id": number, **self.schemas[number - 1]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ClassVar[_Store]
    credentials: ClassVar[str] = ""
    behaviour: ClassVar[dict[str, int]] = {"fail": 0, "status": 503}
    requests: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        path = urllib.parse.urlsplit(self.path).path
        status, answer = self._answer(path, [urllib.parse.unquote(part) for part in path.strip("/").split("/")], body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, path: str, parts: list[str], body: Any) -> tuple[int, Any]:
        if self.credentials and self.headers.get("Authorization") != self.credentials:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if path == "/seen":
            return 200, {**self.requests, "requests": sum(self.requests.values())}
        if path == "/behaviour":
            self.behaviour.update(body)
            return 200, {}
        self.requests[path] += 1
        if self.behaviour["fail"] > 0:
            self.behaviour["fail"] -= 1
            return self.behaviour["status"], {"error_code": self.behaviour["status"], "message": "an injected fault"}
        return self._schemas(parts, body)

    def _schemas(self, parts: list[str], body: Any) -> tuple[int, Any]:
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            known = 0 < number <= len(self.store.schemas)
            return (200, self.store.schemas[number - 1]) if known else (404, _missing(40403, "Schema not found"))
        if parts[0] == "subjects" and self.command == "POST":
            schema = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
            return 200, {"id": self.store.add(parts[1], schema)}
        if parts[0] == "subjects" and len(parts) == 4:
            version = self.store.version(parts[1], parts[3])
            return (200, version) if version else (404, _missing(40401, "Subject not found"))
        return 404, _missing(404, "Not found")


def _missing(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def _serve(port: int, user: str = "", password: str = "") -> None:
    _Handler.store = _Store()
    _Handler.credentials = _basic(user, password) if user else ""
    ThreadingHTTPServer((HOST, port), _Handler).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *sys.argv[2:])

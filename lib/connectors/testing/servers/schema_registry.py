"""A small schema registry with the part of the interface that Confluent's client uses, and faults that a test sets.

Its schemas are in a file, so that they outlive a kill. It does not check whether versions of a subject are compatible.
"""

from __future__ import annotations

import base64
import json
import sys
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
        self.file = Path(_FILE)
        state = json.loads(self.file.read_text()) if self.file.exists() else {"schemas": [], "subjects": {}}
        self.schemas: list[dict[str, Any]] = state["schemas"]
        self.subjects: dict[str, list[int]] = state["subjects"]

    def add(self, subject: str, schema: dict[str, Any]) -> int:
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


def _serve(port: int, *login: str) -> None:
    from aiohttp import web

    store, requests, behaviour = _Store(), Counter[str](), {"fail": 0, "status": 503}

    def refused(status: int, code: int, message: str) -> web.Response:
        return web.json_response({"error_code": code, "message": message}, status=status)

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> Any:
        if login and request.headers.get("Authorization") != _basic(*login):
            return refused(401, 401, "Unauthorized")
        if request.path not in ("/seen", "/behaviour"):
            requests[request.path] += 1
            if behaviour["fail"] > 0:
                behaviour["fail"] -= 1
                return refused(behaviour["status"], behaviour["status"], "an injected fault")
        return await handler(request)

    async def seen(request: web.Request) -> web.Response:
        return web.json_response({**requests, "requests": requests.total()})

    async def behave(request: web.Request) -> web.Response:
        behaviour.update(await request.json())
        return web.json_response({})

    async def schema(request: web.Request) -> web.Response:
        number = int(request.match_info["id"])
        is_known = 0 < number <= len(store.schemas)
        return web.json_response(store.schemas[number - 1]) if is_known else refused(404, 40403, "Schema not found")

    async def register(request: web.Request) -> web.Response:
        body = await request.json()
        parts = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
        return web.json_response({"id": store.add(request.match_info["subject"], parts)})

    async def version(request: web.Request) -> web.Response:
        answer = store.version(request.match_info["subject"], request.match_info["version"])
        return web.json_response(answer) if answer else refused(404, 40401, "Subject not found")

    app = web.Application(middlewares=[guarded])
    app.add_routes([web.get("/seen", seen), web.put("/behaviour", behave), web.get("/schemas/ids/{id}", schema)])
    app.add_routes([web.post("/subjects/{subject}", register), web.post("/subjects/{subject}/versions", register)])
    app.add_routes([web.get("/subjects/{subject}/versions/{version}", version)])
    web.run_app(app, host=HOST, port=port, access_log=None, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *sys.argv[2:])

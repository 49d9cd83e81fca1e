"""A small REST API in a process of its own: records behind every usual paging, a target for rows, and users to ask about.

``GET /page``, ``/offset``, ``/cursor``, ``/header``, ``/link``, ``/next`` and ``POST /search`` give the records of a table,
each paged in its own way; ``since`` leaves out those whose ``updated_at`` is below it, ``order=desc`` turns them round. ``GET
/children/orders/7/items`` gives children. ``POST /rows``, ``PUT`` and ``DELETE /rows/…/7`` take rows; a request with a header
``Idempotency-Key`` that has come before changes nothing. ``GET /users/7`` answers ``{"id": 7, "name": "user-7", "city":
"city-7"}`` (ids from a million on: 404), ``GET /users?ids=7,8`` a list. ``POST /token`` gives tokens; ``PUT /behaviour`` sets
what goes wrong. The service has no memory beyond its process.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .base import HOST, Server, library_path, request_json

CLIENT: Final = ("client", "s3cret-of-client")
UNKNOWN: Final = 1_000_000
"""The first id of a user that the service does not know."""
_LIMIT: Final = 10


@dataclass
class ApiBehaviour:
    """The behaviour of the service from now on.

    The next ``fail`` requests get ``status``, with ``retry_after`` where it is not empty; the next ``hang`` get no answer.
    Answers take ``latency`` seconds. More than ``rate`` requests in a second get 429. With ``login`` requests need a header
    ``Authorization`` of this value; ``token``: one of the tokens that the service gave, which last ``token_seconds``. Rows
    whose ``name`` is in ``refused`` get 422.
    """

    fail: int = 0
    status: int = 503
    retry_after: str = ""
    hang: int = 0
    latency: float = 0.0
    rate: int = 0
    login: str = ""
    token: bool = False
    token_seconds: float = 3600.0
    refused: Sequence[str] = ()


class ApiService(Server):
    """The service, and what a test does with it. Its answers take ``latency`` seconds until :meth:`behave` says otherwise."""

    required = True

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__()
        self.url = f"http://{HOST}:{self.port}"
        self.latency = latency

    def launch(self) -> None:
        self.spawn([sys.executable, "-m", __name__, str(self.port), str(self.latency)], library_path())

    def ready(self) -> bool:
        return bool(request_json(f"{self.url}/seen"))

    def behave(self, **behaviour: Any) -> None:
        """Sets the parts of :class:`ApiBehaviour`, all others as they are by default. The latency outlives a kill."""
        settings = ApiBehaviour(**behaviour)
        self.latency = settings.latency
        request_json(f"{self.url}/behaviour", asdict(settings), "PUT")

    def add(self, table: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Adds records to a table, or puts them in the place of those of their ``id``."""
        request_json(f"{self.url}/add/{table}", {"records": list(records)}, "PUT")

    def revoke(self) -> None:
        """Makes all tokens that were given worthless."""
        request_json(f"{self.url}/revoke", {}, "PUT")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows that a table has."""
        return list(request_json(f"{self.url}/all/{table}")["rows"])

    def seen(self) -> dict[str, Any]:
        """``requests``: how many came, by method and path; ``headers``: those of the last one; ``most``: at a time."""
        return dict(request_json(f"{self.url}/seen"))

    def forget(self) -> None:
        """Empties all tables, and starts :meth:`seen` anew."""
        request_json(f"{self.url}/forget", {}, "PUT")


@dataclass
class _Service:
    """The service's state and its handlers; ``web`` is aiohttp's module, which only the service's process imports."""

    web: Any
    behaviour: ApiBehaviour
    tables: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    tokens: dict[str, float] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    headers: dict[str, str] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    now: int = 0
    most: int = 0
    number: int = 0

    def table(self, name: str) -> dict[str, dict[str, Any]]:
        return self.tables.setdefault(name, {})

    def records_of(self, request: Any, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The records of a table since what is asked for, by their times."""
        records = list(self.table(request.match_info["table"]).values())
        if since := content.get("since"):
            records = [record for record in records if record["updated_at"] >= since]
        records.sort(key=lambda record: (record.get("updated_at", ""), str(record.get("id", "")).zfill(20)))
        return records[::-1] if content.get("order") == "desc" else records

    async def page(self, request: Any) -> Any:
        number, size = int(request.query.get("page", 1)), int(request.query.get("size", _LIMIT))
        return self.web.json_response(self.records_of(request, request.query)[(number - 1) * size : number * size])

    async def offset(self, request: Any) -> Any:
        first, size = int(request.query.get("offset", 0)), int(request.query.get("limit", _LIMIT))
        records = self.records_of(request, request.query)
        return self.web.json_response({"total": len(records), "items": records[first : first + size]})

    async def cursor(self, request: Any) -> Any:
        records, after = self._after(request, request.query.get("cursor", ""), request.query)
        return self.web.json_response({"data": {"records": records}, "meta": {"next_cursor": after}})

    async def header(self, request: Any) -> Any:
        records, after = self._after(request, request.query.get("cursor", ""), request.query)
        return self.web.json_response(records, headers={"X-Next-Cursor": after} if after else {})

    async def link(self, request: Any) -> Any:
        records, after = self._after(request, request.query.get("after", ""), request.query)
        url = request.url.with_host(HOST).update_query(after=after)
        return self.web.json_response(records, headers={"Link": f'<{url}>; rel="next", <{url}>; rel="last"'} if after else {})

    async def next_url(self, request: Any) -> Any:
        records, after = self._after(request, request.query.get("after", ""), request.query)
        url = str(request.rel_url.update_query(after=after)) if after else None
        return self.web.json_response({"results": records, "next": url})

    async def search(self, request: Any) -> Any:
        content = await request.json()
        number, size = int(content.get("page", 1)), int(content.get("size", _LIMIT))
        records = self.records_of(request, content.get("filter", {}))
        return self.web.json_response({"hits": records[(number - 1) * size : number * size], "pages": -(-len(records) // size)})

    async def children(self, request: Any) -> Any:
        parent = request.match_info["id"]
        if parent not in self.table(request.match_info["table"]):
            return self.web.Response(status=404)
        number = int(request.query.get("page", 1))
        items = [record for record in self.table("items").values() if str(record["order"]) == parent]
        return self.web.json_response(items[(number - 1) * 2 : number * 2])

    async def users(self, request: Any) -> Any:
        ids = [int(text) for text in request.match_info.get("id", request.query.get("ids", "")).split(",")]
        if "id" not in request.match_info:
            return self.web.json_response([_user(number) for number in ids])
        return self.web.Response(status=404) if ids[0] >= UNKNOWN else self.web.json_response(_user(ids[0]))

    def _after(self, request: Any, cursor: str, content: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        """A page of records, and the cursor of the page after it."""
        first = int(base64.b64decode(cursor)) if cursor else 0
        records = self.records_of(request, content)
        after = first + _LIMIT
        return records[first:after], base64.b64encode(b"%d" % after).decode() if after < len(records) else ""

    async def take(self, request: Any) -> Any:
        """Takes rows: one, a list, or lines."""
        text = await request.text()
        is_lines = request.content_type == "application/x-ndjson"
        rows = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
        rows = rows if isinstance(rows, list) else [rows]
        if any(row.get("name") in self.behaviour.refused for row in rows):
            return self.web.json_response({"error": "a row is refused"}, status=422)
        key = request.headers.get("Idempotency-Key")
        if key is None or key not in self.keys:
            table = self.table(request.match_info["table"])
            for row in rows:
                self.number += 1
                table[request.match_info.get("id") or f"#{self.number}"] = row
        if key is not None:
            self.keys.add(key)
        return self.web.json_response({"taken": len(rows)})

    async def remove(self, request: Any) -> Any:
        row = self.table(request.match_info["table"]).pop(request.match_info["id"], None)
        return self.web.Response(status=404 if row is None else 204)

    async def token(self, request: Any) -> Any:
        form = await request.post()
        basic = f"Basic {base64.b64encode(':'.join(CLIENT).encode()).decode()}"
        is_known = request.headers.get("Authorization") == basic or (form.get("client_id"), form.get("client_secret")) == CLIENT
        if not is_known or form.get("grant_type") != "client_credentials":
            return self.web.json_response({"error": "invalid_client"}, status=401)
        self.number += 1
        token = f"token-{self.number}"
        self.tokens[token] = time.monotonic() + self.behaviour.token_seconds
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": int(self.behaviour.token_seconds)}
        return self.web.json_response(answer)

    async def away(self, request: Any) -> Any:
        """Redirects to what the query names, so that a request keeps its method."""
        raise self.web.HTTPTemporaryRedirect(request.query["to"])

    async def behave(self, request: Any) -> Any:
        self.behaviour = ApiBehaviour(**await request.json())
        self.times.clear()
        return self.web.json_response({})

    async def add(self, request: Any) -> Any:
        table = self.table(request.match_info["table"])
        for record in (await request.json())["records"]:
            self.number += 1
            table[str(record.get("id", f"#{self.number}"))] = record
        return self.web.json_response({})

    async def all_rows(self, request: Any) -> Any:
        return self.web.json_response({"rows": list(self.table(request.match_info["table"]).values())})

    async def seen(self, request: Any) -> Any:
        return self.web.json_response({"requests": self.requests, "headers": self.headers, "most": self.most})

    async def revoke(self, request: Any) -> Any:
        self.tokens.clear()
        return self.web.json_response({})

    async def forget(self, request: Any) -> Any:
        self.tables.clear()
        self.keys.clear()
        self.requests.clear()
        self.most = self.now
        return self.web.json_response({})

    async def guard(self, request: Any, handler: Callable[..., Any]) -> Any:
        """Answers a request as the behaviour wants it."""
        self.now += 1
        self.most = max(self.most, self.now)
        self.requests[f"{request.method} {request.path}"] += 1
        self.headers = dict(request.headers)
        try:
            return await self._refused(request) or await handler(request)
        finally:
            self.now -= 1

    async def _refused(self, request: Any) -> Any:
        behaviour, moment = self.behaviour, time.monotonic()
        if behaviour.hang > 0:
            behaviour.hang -= 1
            await asyncio.Event().wait()
        if behaviour.latency:
            await asyncio.sleep(behaviour.latency)
        if behaviour.fail > 0:
            behaviour.fail -= 1
            headers = {"Retry-After": behaviour.retry_after} if behaviour.retry_after else {}
            return self.web.Response(status=behaviour.status, headers=headers)
        if behaviour.rate:
            self.times = [time for time in self.times if time > moment - 1]
            if len(self.times) >= behaviour.rate:
                return self.web.Response(status=429, headers={"Retry-After": "1"})
            self.times.append(moment)
        login = request.headers.get("Authorization", "")
        is_known = self.tokens.get(login.removeprefix("Bearer "), 0.0) > moment if behaviour.token else login == behaviour.login
        return None if is_known or not (behaviour.token or behaviour.login) else self.web.Response(status=401)


def _user(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"user-{number}", "city": f"city-{number % 100}"}


def _serve(port: int, latency: float) -> None:
    from aiohttp import web

    service = _Service(web, ApiBehaviour(latency=latency))

    @web.middleware
    async def guarded(request: Any, handler: Any) -> Any:
        is_control = request.path.split("/")[1] in ("behaviour", "add", "all", "seen", "forget", "revoke", "token")
        return await (handler(request) if is_control else service.guard(request, handler))

    app = web.Application(middlewares=[guarded], client_max_size=256 << 20)
    app.add_routes(
        [
            web.get("/page/{table}", service.page),
            web.get("/offset/{table}", service.offset),
            web.get("/cursor/{table}", service.cursor),
            web.get("/header/{table}", service.header),
            web.get("/link/{table}", service.link),
            web.get("/next/{table}", service.next_url),
            web.post("/search/{table}", service.search),
            web.get("/children/{table}/{id}/items", service.children),
            web.post("/rows/{table}", service.take),
            web.put("/rows/{table}/{id}", service.take),
            web.delete("/rows/{table}/{id}", service.remove),
            web.route("*", "/away", service.away),
            web.get("/users", service.users),
            web.get("/users/{id}", service.users),
            web.post("/token", service.token),
            web.put("/behaviour", service.behave),
            web.put("/add/{table}", service.add),
            web.get("/all/{table}", service.all_rows),
            web.get("/seen", service.seen),
            web.put("/forget", service.forget),
            web.put("/revoke", service.revoke),
        ]
    )
    web.run_app(app, host=HOST, port=port, access_log=None, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]))

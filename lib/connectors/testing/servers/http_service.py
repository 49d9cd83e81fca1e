"""A small HTTP service about users, with a latency and faults that a test sets while it runs.

``GET /users/7`` answers ``{"id": 7, "name": "user-7", "city": "city-7"}`` (ids from a million on: 404), and
``GET /users?ids=7,8`` a list. ``PUT /behaviour`` changes how it behaves, ``GET /seen`` counts its requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .base import HOST, Server, library_path, request_json

UNKNOWN: Final = 1_000_000
"""The first id that the service does not know."""


class HttpService(Server):
    """The service in a process of its own, so that it does not share the caller's interpreter lock."""

    required = True

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__()
        self.url = f"http://{HOST}:{self.port}"
        self.latency = latency

    def launch(self) -> None:
        self.spawn([sys.executable, "-m", __name__, str(self.port), str(self.latency)], library_path())

    def ready(self) -> bool:
        return bool(request_json(f"{self.url}/seen"))

    def behave(self, *, latency: float = 0.0, fail: int = 0, status: int = 503, hang: int = 0) -> None:
        """From now on: answers take ``latency`` seconds, the next ``fail`` have ``status``, the next ``hang`` never come."""
        self.latency = latency
        request_json(f"{self.url}/behaviour", asdict(Behaviour(latency, fail, status, hang)), "PUT")

    def seen(self) -> dict[str, Any]:
        """``requests``: their number by id as text; ``most``: how many came at once."""
        return dict(request_json(f"{self.url}/seen"))

    def forget(self) -> None:
        """Starts :meth:`seen` anew."""
        request_json(f"{self.url}/forget", {}, "PUT")


@dataclass
class Behaviour:
    """The behaviour of the service towards requests about users."""

    latency: float = 0.0
    fail: int = 0
    status: int = 503
    hang: int = 0


@dataclass
class _Service:
    """The service's state and its handlers; ``web`` is aiohttp's module, which only the service's process imports."""

    web: Any
    behaviour: Behaviour
    requests: Counter[str] = field(default_factory=Counter)
    now: int = 0
    most: int = 0

    async def users(self, request: Any) -> Any:
        ids = request.match_info.get("id") or request.query.get("ids", "")
        self.now += 1
        self.most = max(self.most, self.now)
        self.requests[ids] += 1
        try:
            return await self._answer(ids, "id" in request.match_info)
        finally:
            self.now -= 1

    async def _answer(self, ids: str, single: bool) -> Any:
        if self.behaviour.hang > 0:
            self.behaviour.hang -= 1
            await asyncio.Event().wait()
        if self.behaviour.latency:
            await asyncio.sleep(self.behaviour.latency)
        if self.behaviour.fail > 0:
            self.behaviour.fail -= 1
            return self.web.Response(status=self.behaviour.status)
        users = [_user(int(text)) for text in ids.split(",")]
        if single and int(ids) >= UNKNOWN:
            return self.web.Response(status=404)
        return self.web.json_response(users[0] if single else users)

    async def behave(self, request: Any) -> Any:
        self.behaviour = Behaviour(**await request.json())
        return self.web.json_response({})

    async def seen(self, request: Any) -> Any:
        return self.web.json_response({"requests": self.requests, "most": self.most})

    async def forget(self, request: Any) -> Any:
        self.requests.clear()
        self.most = self.now
        return self.web.json_response({})


def _user(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"user-{number}", "city": f"city-{number % 100}"}


def _serve(port: int, latency: float) -> None:
    from aiohttp import web

    service = _Service(web, Behaviour(latency))
    app = web.Application()
    app.add_routes(
        [
            web.get("/users", service.users),
            web.get("/users/{id}", service.users),
            web.put("/behaviour", service.behave),
            web.put("/forget", service.forget),
            web.get("/seen", service.seen),
        ]
    )
    web.run_app(app, host=HOST, port=port, access_log=None, print=None, shutdown_timeout=0.1)  # some answers never come


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]))

"""The common part of the services here that take JSON calls over HTTP: ``POST /<path>`` with an object, answered by one."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from .base import HOST, Server, library_path, request_json

Call = Callable[[Mapping[str, str], Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a call, from the names in its path and from its object."""


class Conflict(Exception):
    """The call contradicts the state of the service, and has changed nothing: status 409."""


class JsonService(Server):
    """A service in a process of its own. Its state is in the folder ``state``: without one, it ends with the service.

    The module of a subclass runs as a program, with its port and the folder: it calls :func:`serve`.
    """

    required = True

    def __init__(self, state: str = "") -> None:
        super().__init__()
        self.url = f"http://{HOST}:{self.port}"
        self.state = state

    def launch(self) -> None:
        module = sys.modules[type(self).__module__].__spec__
        assert module is not None
        state = Path(self.state or self.folder / "state")
        state.mkdir(parents=True, exist_ok=True)
        self.spawn([sys.executable, "-m", module.name, str(self.port), str(state)], library_path())

    def ready(self) -> bool:
        return bool(self.call("ready"))

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a call. Raises ``urllib.error.HTTPError`` where it is refused."""
        return dict(request_json(f"{self.url}/{path}", body, "POST"))


def serve(port: int, calls: Mapping[str, Call]) -> None:
    """Answers the calls of each path until the process ends. A call that raises ``ValueError`` or ``KeyError`` is a bad one."""
    from aiohttp import web

    def handler(call: Call) -> Any:
        async def answer(request: web.Request) -> web.Response:
            try:
                return web.json_response(dict(await call(request.match_info, await request.json())))
            except Conflict as conflict:
                return web.json_response({"error": str(conflict)}, status=409)
            except (KeyError, TypeError, ValueError) as error:
                return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)

        return answer

    async def ready(_: Mapping[str, str], __: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ready": True}

    app = web.Application(client_max_size=256 << 20)
    app.add_routes([web.post(f"/{path}", handler(call)) for path, call in {**calls, "ready": ready}.items()])
    web.run_app(app, host=HOST, port=port, access_log=None, print=None, shutdown_timeout=0.1)

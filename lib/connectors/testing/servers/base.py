"""Shared by every server module: free ports, and a child process in a folder of its own with a readiness probe."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

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

"""A TCP proxy on loopback that drops a connection at a chosen message, or goes silent."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from connectors.testing.servers import HOST


class Proxy:
    """Passes everything on to ``port``, until :meth:`arm` says otherwise. Use it as a context.

    A connection whose client sends ``word`` is dropped ``before`` the server gets it, ``at`` it (the server gets it, and its
    answer is lost), or ``after`` the answer was passed on. With ``half`` the client's end is dropped, and the server, which
    gets nothing, keeps its own. While the proxy is ``silent`` nothing is passed on, and no connection ends: those that were
    open stay silent for ever, as those to a machine that is lost. ``own_port`` is the proxy's; 0: any.
    """

    def __init__(self, port: int, own_port: int = 0) -> None:
        self.server = port
        self.listener = socket.create_server((HOST, own_port))
        self.port: int = self.listener.getsockname()[1]
        self.dropped = 0
        self.silent = False
        self._word, self._when, self._times = b"", "", 0
        self._lock = threading.Lock()

    def arm(self, word: str, when: str, times: int = 1) -> None:
        self._word, self._when, self._times = word.encode(), when, times

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection((HOST, self.server))
        state = {"cut": ""}
        back = threading.Thread(target=self._answers, args=(server, client, state), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self._swallows(state):
                    continue
                state["cut"] = self._strikes(data)
                if state["cut"] == "before":
                    break
                if state["cut"] == "half":
                    _shut(client)
                    back.join()  # until the server ends the connection
                    return
                server.sendall(data)
        _shut(server)
        back.join()
        _shut(client)

    def _answers(self, server: socket.socket, client: socket.socket, state: dict[str, str]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self._swallows(state):
                    continue
                if state["cut"] == "at":
                    break
                client.sendall(data)
                if state["cut"] == "after":
                    break
        _shut(client)
        _shut(server)

    def _swallows(self, state: dict[str, str]) -> bool:
        if self.silent:
            state["cut"] = "silent"
        return state["cut"] == "silent"

    def _strikes(self, data: bytes) -> str:
        with self._lock:
            if self._times and self._word in data:
                self._times -= 1
                self.dropped += 1
                return self._when
        return ""


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()

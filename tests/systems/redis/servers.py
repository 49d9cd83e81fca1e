"""Redis on several nodes: a cluster of three, and a server with a replica that sentinels watch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import redis

from connectors.testing.servers import HOST, RedisServer
from connectors.testing.servers.base import free_ports
from connectors.testing.servers.fault_proxy import Certificates

SLOTS = 16_384
SECONDS = 30.0
HIGHEST_PORT = 55_535


class ClusterNode(RedisServer):
    """A node of a cluster; it has no slots at first. It talks to the others by the port 10,000 above its own."""

    def __init__(self) -> None:
        super().__init__()
        self.port = next(port for port in free_ports(50) if port <= HIGHEST_PORT)

    def launch(self) -> None:
        address = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self.spawn([self.binary, *address, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000"])


class TlsServer(RedisServer):
    """A server that speaks TLS alone, as ``files`` say. Not every build can."""

    def __init__(self, files: Certificates) -> None:
        super().__init__()
        self.files = files
        self.url = f"rediss://{HOST}:{self.port}/0?ssl_ca_certs={files.authority}"

    def launch(self) -> None:
        names = {"cert": self.files.chain, "key": self.files.key, "ca-cert": self.files.authority}
        files = [part for name, file in names.items() for part in (f"--tls-{name}-file", str(file))]
        address = ["--bind", HOST, "--port", "0", "--tls-port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self.spawn([self.binary, *address, *files, "--tls-auth-clients", "no"])

    def ready(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            return bool(client.ping())


class ReplicaServer(RedisServer):
    """A replica of ``primary``."""

    def __init__(self, primary: RedisServer) -> None:
        super().__init__()
        self.primary = primary

    def launch(self) -> None:
        address = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self.spawn([self.binary, *address, "--replicaof", HOST, str(self.primary.port)])


class SentinelServer(RedisServer):
    """A sentinel that watches ``primary`` as ``orders`` and needs nobody's consent to replace it."""

    def __init__(self, primary: RedisServer) -> None:
        super().__init__()
        self.primary = primary

    def launch(self) -> None:
        settings = [f"port {self.port}", f"bind {HOST}", f"dir {self.folder}"]
        settings += [f"sentinel monitor orders {HOST} {self.primary.port} 1"]
        settings += ["sentinel down-after-milliseconds orders 500", "sentinel failover-timeout orders 5000"]
        file = self.folder / "sentinel.conf"
        if not file.exists():
            file.write_text("\n".join(settings) + "\n")
        self.spawn([self.binary, str(file), "--sentinel"])


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """The address of a cluster whose slots lie on three nodes."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(ClusterNode()) for _ in range(3)]
        clients = [stack.enter_context(redis.Redis(HOST, node.port)) for node in nodes]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            first, end = SLOTS * number // 3, SLOTS * (number + 1) // 3
            client.execute_command("CLUSTER ADDSLOTS", *range(first, end))
            clients[0].execute_command("CLUSTER MEET", HOST, nodes[number].port)
        wait(lambda: all(_is_whole(client) for client in clients))
        yield "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in nodes)


@contextlib.contextmanager
def watched() -> Iterator[tuple[str, RedisServer]]:
    """The address of a server that a sentinel replaces when it dies, and that server."""
    with RedisServer() as primary, ReplicaServer(primary) as replica, SentinelServer(primary) as sentinel:
        with redis.Redis(HOST, replica.port) as client:
            wait(lambda: client.info("replication")["master_link_status"] == "up")
        with redis.Redis(HOST, sentinel.port) as client:
            wait(lambda: client.execute_command("SENTINEL REPLICAS", "orders"))
        yield f"redis+sentinel://{HOST}:{sentinel.port}/orders", primary


def wait(condition: Any) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "the nodes do not find each other"
        time.sleep(0.05)


def _is_whole(client: Any) -> bool:
    state = client.cluster("INFO")
    return bool(state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) == 3)

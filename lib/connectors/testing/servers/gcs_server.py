"""Google Cloud Storage on this machine by fake-gcs-server, a Go module. Needs go."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any, Final

from .base import HOST, Server, free_ports, need
from .programs import built, run

MODULE: Final = "github.com/fsouza/fake-gcs-server@v1.56.1"
_MAIN: Final = """package main

import (
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// The module ignores ifGenerationMatch of a rewrite. Here a rewrite with ifGenerationMatch=0 fails with 412 when its
// target exists, and rewrites come one after another, as the service documents it.
func conditional(server http.Handler) http.Handler {
	var one sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, target, rewrite := strings.Cut(r.URL.EscapedPath(), "/rewriteTo/")
		if rewrite && r.URL.Query().Get("ifGenerationMatch") == "0" {
			one.Lock()
			defer one.Unlock()
			answer := httptest.NewRecorder()
			server.ServeHTTP(answer, httptest.NewRequest("GET", "/storage/v1/"+target, nil))
			if answer.Code == 200 {
				http.Error(w, `{"error": {"code": 412, "message": "conditionNotMet"}}`, 412)
				return
			}
		}
		server.ServeHTTP(w, r)
	})
}

func main() {
	address, root := os.Args[1], os.Args[2]
	options := fakestorage.Options{Scheme: "http", StorageRoot: root, NoListener: true, ExternalURL: "http://" + address}
	server, err := fakestorage.NewServerWithOptions(options)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(address, conditional(server.HTTPHandler())))
}
"""


class GcsServer(Server):
    """An empty object storage that outlives an outage. ``url`` is its address; it checks no credentials."""

    def __init__(self) -> None:
        super().__init__()
        self.program = built("gcs", MODULE + _MAIN, _build) / "server"
        (self.port,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        self.spawn([str(self.program), f"{HOST}:{self.port}", str(self.folder / "data")])

    def ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/storage/v1/b?project=test", timeout=5) as answer:
            return bool(answer.status == 200)

    def bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket. Returns the ``storageOptions`` that reach it."""
        body, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/storage/v1/b?project=test", body, headers)
        urllib.request.urlopen(request, timeout=30).close()
        return self.options()

    def options(self, url: str = "") -> dict[str, Any]:
        """The ``storageOptions`` of the server, at the address ``url`` (that of a proxy)."""
        return {"endpoint_url": url or self.url, "token": "anon", "project": "test"}


def _build(folder: Path) -> None:
    go, env = need("go"), {"GOFLAGS": "-mod=mod"}
    (folder / "main.go").write_text(_MAIN)
    run([go, "mod", "init", "server"], folder, env)
    run([go, "get", MODULE], folder, env)
    run([go, "build", "-ldflags=-s -w", "-o", "server", "."], folder, env)

"""Azure's blob storage on this machine by Azurite, an npm package. Needs node and npm."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .base import HOST, Server, free_ports, need
from .programs import built, run

PACKAGE: Final = "azurite@3.35.0"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its published key."""


class AzuriteServer(Server):
    """An empty blob storage that outlives an outage. ``url`` is the address of its one account.

    It has no hierarchical namespace: what ``dfs.core.windows.net`` answers, a rename above all, is not there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node = need("node")
        self.program = built("azurite", PACKAGE, _install) / "node_modules/azurite/dist/src/blob/main.js"
        (self.port,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}/{ACCOUNT}"

    def launch(self) -> None:
        address = ["--blobHost", HOST, "--blobPort", str(self.port), "--location", str(self.folder / "data")]
        switches = ["--silent", "--skipApiVersionCheck", "--disableProductStyleUrl", "--disableTelemetry"]
        self.spawn([self.node, str(self.program), *address, *switches])

    def ready(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}?comp=list", timeout=5)
        except urllib.error.HTTPError as refused:  # a request without a signature, and an answer
            return refused.code == 403
        return True

    def kill(self) -> None:
        """An outage. The server may save first: it writes its index every few seconds only."""
        for child in self.children:
            child.terminate()
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(self.stop_timeout)
        super().kill()

    def container(self, name: str) -> dict[str, Any]:
        """Makes a container. Returns the ``storageOptions`` that reach it."""
        options = self.options()
        azure = import_module("azure.storage.blob")
        with azure.ContainerClient.from_connection_string(options["connection_string"], name) as client:
            client.create_container()
        return options

    def options(self, url: str = "", key: str = KEY) -> dict[str, Any]:
        """The ``storageOptions`` of the account, at the address ``url`` (that of a proxy) and with another ``key``."""
        endpoint = f"BlobEndpoint={url or self.url}"
        return {"connection_string": f"AccountName={ACCOUNT};AccountKey={key};{endpoint};"}


def _install(folder: Path) -> None:
    (folder / "package.json").write_text("{}")
    run([need("npm"), "install", "--no-audit", "--no-fund", "--silent", PACKAGE], folder)

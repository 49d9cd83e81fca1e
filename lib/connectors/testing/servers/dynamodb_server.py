"""Amazon's own DynamoDB for a machine of one's own, from Maven jars. Needs Java with its compiler.

Its transactions, limits and refusals are the service's; it never throttles. Amazon's licence lets it be used for tests.
"""

from __future__ import annotations

import os
import socket
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .base import HOST, Server, Unavailable, classpath, java

_LOCAL: Final = "software.amazon.dynamodb:DynamoDBLocal:3.3.1"
_KEYS: Final = {"region_name": "us-east-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
_MAIN: Final = """\
import java.lang.reflect.Field;
import org.eclipse.jetty.server.*;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

public class Loopback {
    public static void main(String[] arguments) throws Exception {
        DynamoDBProxyServer local = ServerRunner.createServerFromCommandLineArgs(arguments);
        Field field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        for (Connector connector : ((Server) field.get(local)).getConnectors()) {
            ((ServerConnector) connector).setHost("%s");
        }
        local.start();
        local.join();
    }
}
"""
"""The server listens on all addresses otherwise."""


class DynamoDbServer(Server):
    """An empty DynamoDB, in memory. ``url`` is its address; every key and secret is right."""

    def __init__(self) -> None:
        super().__init__()
        self.java = java()
        if not (Path(self.java).resolve().parent / "javac").exists():
            raise Unavailable("a JDK, whose compiler DynamoDB's launcher needs")
        self.files = classpath("dynamodb", _LOCAL, types=("jar", "bundle", "so")).split(os.pathsep)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        main = self.folder / "Loopback.java"
        main.write_text(_MAIN % HOST)
        jars = os.pathsep.join(file for file in self.files if file.endswith(".jar"))
        libraries = os.pathsep.join(sorted({str(Path(file).parent) for file in self.files if file.endswith(".so")}))
        heap = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        local = ["-inMemory", "-disableTelemetry", "-port", str(self.port)]
        self.spawn([self.java, *heap, f"-Djava.library.path={libraries}", "-cp", jars, str(main), *local])

    def ready(self) -> bool:
        with socket.create_connection((HOST, self.port), 1):
            return True

    def client(self, service: str = "dynamodb") -> Any:
        """A boto3 client."""
        return import_module("boto3").client(service, endpoint_url=self.url, **_KEYS)

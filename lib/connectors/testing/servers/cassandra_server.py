"""Apache Cassandra on this machine: one node in a JVM, from Maven jars. Needs Java 11 or 17."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .base import HOST, Server, Unavailable, classpath, free_ports, java
from .fault_proxy import Authority

CASSANDRA: Final = "org.apache.cassandra:cassandra-all:5.0.8"
_PARTITIONERS: Final = "org.apache.cassandra.dht"
_SETTINGS: Final = """\
cluster_name: connectors
partitioner: {partitioners}.{partitioner}
endpoint_snitch: SimpleSnitch
num_tokens: 8
listen_address: {host}
rpc_address: {host}
storage_port: {storage}
ssl_storage_port: {storage_tls}
native_transport_port: {port}
start_native_transport: true
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{host}:{storage}"
data_file_directories: [{folder}/data]
commitlog_directory: {folder}/commitlog
saved_caches_directory: {folder}/saved_caches
hints_directory: {folder}/hints
cdc_raw_directory: {folder}/cdc
commitlog_sync: batch
commitlog_segment_size: 5MiB
auto_snapshot: false
memtable_allocation_type: heap_buffers
disk_access_mode: standard
column_index_size: 4KiB
materialized_views_enabled: true
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
permissions_validity: 1s
roles_validity: 1s
credentials_validity: 60s
client_encryption_options:
  enabled: true
  optional: true
  require_client_auth: true
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
  keystore: {folder}/tls/server.pem
  truststore: {folder}/tls/authority.pem
"""
_LOG: Final = """\
<configuration><appender name="O" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %-5level %msg%n</pattern>
</encoder></appender><root level="WARN"><appender-ref ref="O"/></root></configuration>
"""
_QUICK: Final = ("-XX:+UseSerialGC", "-XX:-UsePerfData")
_PROPERTIES: Final = {
    "jdk.attach.allowAttachSelf": "true",
    "io.netty.tryReflectionSetAccessible": "true",
    "cassandra-foreground": "yes",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.ring_delay_ms": "100",
    "cassandra.superuser_setup_delay_ms": "0",
    "cassandra.auth_bcrypt_gensalt_log2_rounds": "4",
}
_JAVA_BASE: Final = (
    "java.lang.module",
    "jdk.internal.loader",
    "jdk.internal.ref",
    "jdk.internal.reflect",
    "jdk.internal.math",
    "jdk.internal.module",
    "jdk.internal.util.jar",
    "sun.nio.ch",
    "java.io",
    "java.lang.reflect",
    "java.lang",
    "java.util",
    "java.nio",
)
_EXPORTS: Final = (
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.management/com.sun.jmx.remote.security",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "java.base/java.lang.ref",
    "jdk.unsupported/sun.misc",
)
_MODULES: Final = (
    *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _JAVA_BASE),
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
"""The options of Java that open those of its own parts that Cassandra uses."""


class CassandraServer(Server):
    """An empty Cassandra 5 of one node that outlives an outage. ``options`` reach it, as ``connectors.cassandra`` names them.

    It wants a login. It takes connections without TLS, and with TLS those of clients that have a certificate: the files are in
    ``tls``. The node has eight ranges of the ring.
    """

    required = True
    start_timeout = 180.0
    stop_timeout = 0.0  # nothing of it is kept
    user, password = "cassandra", "cassandra"

    def __init__(self, partitioner: str = "Murmur3Partitioner", heap: str = "400m") -> None:
        super().__init__()
        self.java, self.classpath = java(), classpath("cassandra", CASSANDRA)
        self.partitioner, self.heap = partitioner, heap
        self.port, self.storage, self.storage_tls, self.jmx = free_ports(4)

    @property
    def options(self) -> dict[str, str]:
        return {
            "contactPoints": f"{HOST}:{self.port}",
            "localDatacenter": "datacenter1",
            "user": self.user,
            "password": self.password,
        }

    @property
    def tls(self) -> Mapping[str, Path]:
        """The files ``authority``, ``client`` (certificate and key of a client) and ``stranger`` (of another authority)."""
        return {name: self.folder / "tls" / f"{name}.pem" for name in ("authority", "client", "stranger")}

    def launch(self) -> None:
        self._write_certificates()
        settings = _SETTINGS.format(
            **{name: getattr(self, name) for name in ("port", "storage", "storage_tls", "partitioner", "folder")},
            partitioners=_PARTITIONERS,
            host=HOST,
        )
        (self.folder / "cassandra.yaml").write_text(settings)
        (self.folder / "logback.xml").write_text(_LOG)
        meter = next(jar for jar in self.classpath.split(":") if "jamm-" in Path(jar).name)
        properties = {
            **_PROPERTIES,
            "cassandra.config": f"file://{self.folder}/cassandra.yaml",
            "logback.configurationFile": f"{self.folder}/logback.xml",
            "cassandra.storagedir": str(self.folder),
            "cassandra.jmx.local.port": str(self.jmx),
        }
        self.spawn(
            [
                *(self.java, f"-Xms{self.heap}", f"-Xmx{self.heap}", *_QUICK, f"-javaagent:{meter}", "-cp", self.classpath),
                *(f"-D{name}={value}" for name, value in properties.items()),
                *_MODULES,
                "org.apache.cassandra.service.CassandraDaemon",
            ]
        )

    def ready(self) -> bool:
        socket.create_connection((HOST, self.port), 5).close()  # the driver would work hard to find nobody there
        with self.session() as session:
            return session.execute("select release_version from system.local").one() is not None

    @contextlib.contextmanager
    def session(self) -> Any:
        """A session of the driver, which ends with the block."""
        cluster = self._cluster()
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()

    @cached_property
    def client(self) -> Any:
        """A session of the driver that lives as long as the server."""
        return self._cluster().connect()

    def kill(self) -> None:
        if client := self.__dict__.pop("client", None):  # it would wait before it connects again
            client.cluster.shutdown()
        super().kill()

    def keyspace(self, name: str) -> str:
        """Makes a keyspace that has each row once, and returns its name."""
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self.client.execute(f"create keyspace if not exists {name} with replication = {replication}")
        return name

    def estimate(self, keyspace: str) -> None:
        """Writes the rows of a keyspace to disk and has the node estimate the sizes of its tables, as it does by itself
        every five minutes."""
        self.nodetool("flush", keyspace)
        self.nodetool("refreshsizeestimates")

    def nodetool(self, *arguments: str) -> str:
        """Runs the operator's tool and returns what it prints. Raises :class:`Unavailable` with it if it fails."""
        tool = [self.java, "-Xmx64m", *_QUICK, *_MODULES, "-cp", self.classpath]
        properties = [f"-Dlogback.configurationFile={self.folder}/logback.xml", f"-Duser.home={self.folder}"]
        command = [*tool, *properties, "org.apache.cassandra.tools.NodeTool", "-h", HOST, "-p", str(self.jmx), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise Unavailable(f"nodetool {' '.join(arguments)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return done.stdout

    def _cluster(self) -> Any:
        cluster, auth = import_module("cassandra.cluster"), import_module("cassandra.auth")
        balancing = import_module("cassandra.policies").RoundRobinPolicy()
        profile = cluster.ExecutionProfile(balancing, request_timeout=60.0)
        login = auth.PlainTextAuthProvider(self.user, self.password)
        profiles = {cluster.EXEC_PROFILE_DEFAULT: profile}
        return cluster.Cluster(
            [HOST], self.port, execution_profiles=profiles, auth_provider=login, connect_timeout=10, protocol_version=5
        )

    def _write_certificates(self) -> None:
        folder = self.folder / "tls"
        if folder.exists():
            return
        authority, other = Authority(), Authority()
        folder.mkdir()
        (folder / "authority.pem").write_bytes(authority.pem)
        for name, issuer in (("server", authority), ("client", authority), ("stranger", other)):
            (folder / f"{name}.pem").write_bytes(b"".join(issuer.issue()))

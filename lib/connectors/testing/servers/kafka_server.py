"""A Kafka broker in one JVM, from Maven jars: KRaft, one node, without ZooKeeper."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any, Final

from .base import HOST, Server, classpath, free_ports, java, run_step
from .fault_proxy import Certificates

VERSION: Final = "4.3.1"
LOG4J: Final = "2.25.4"
COORDINATES: Final = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J}",  # without a binding the broker logs nothing, not even "started"
    f"org.apache.logging.log4j:log4j-core:{LOG4J}",
)
CONNECTION_STRING: Final = "Endpoint=sb://localhost/;SharedAccessKeyName=k;SharedAccessKey=s"
"""The password of the user ``$ConnectionString``, as Azure Event Hubs has it."""

_READY: Final = b"Kafka Server started"
_LOGGING: Final = """\
<?xml version="1.0"?><Configuration status="ERROR"><Appenders><Console name="c" target="SYSTEM_OUT">
<PatternLayout pattern="%d{HH:mm:ss,SSS} %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root><Logger name="kafka.server.KafkaRaftServer" level="INFO"/></Loggers>
</Configuration>
"""
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class KafkaServer(Server):
    """An empty broker. ``bootstrap`` is its plain address, ``sasl_bootstrap`` the one that asks for a user.

    Users are ``app`` with the password ``app``, and ``$ConnectionString`` with ``connection_string``. With ``tls`` there is
    also ``tls_bootstrap``, which asks for a user over TLS. ``properties`` of the broker win over those of this class. The
    broker creates no topics by itself. :meth:`relaunch` brings it back after :meth:`kill`, with its data and addresses.
    """

    required = True
    start_timeout = 90.0

    def __init__(
        self, tls: Certificates | None = None, connection_string: str = CONNECTION_STRING, **properties: str
    ) -> None:
        super().__init__()
        self.tls, self.connection_string = tls, connection_string
        self.properties, self.java = properties, java()
        self.classpath = classpath("kafka", *COORDINATES)
        self.sasl, self.controller, self.secure = free_ports(3)
        self.bootstrap = f"{HOST}:{self.port}"
        self.sasl_bootstrap = f"{HOST}:{self.sasl}"
        self.tls_bootstrap = f"{HOST}:{self.secure}"
        self._log_start = 0

    def launch(self) -> None:
        conf = self.folder / "server.properties"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        (self.folder / "log4j2.xml").write_text(_LOGGING)
        if not (self.folder / "data").exists():
            self._format(conf)
        self._log_start = self._log().stat().st_size if self._log().exists() else 0
        self.spawn(self._command("kafka.Kafka", str(conf), heap="512m"))

    def ready(self) -> bool:
        """True once the log says so: the port is open before the broker serves."""
        return _READY in self._log().read_bytes()[self._log_start :]

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Creates a topic and returns its name; ``config`` has ``_`` for ``.`` (``max_message_bytes="2000"``)."""
        from confluent_kafka import admin as api

        settings = {key.replace("_", "."): value for key, value in config.items()}
        # A variable of its own: a client that is collected as garbage cancels its requests.
        admin: Any = api.AdminClient({"bootstrap.servers": self.bootstrap})
        topic = api.NewTopic(name, partitions, 1, config=settings)  # type: ignore[attr-defined]
        admin.create_topics([topic])[name].result(30)
        return name

    def tool(self, main: str, *arguments: str) -> str:
        """The output of one of Kafka's own tools, by its class (``org.apache.kafka.tools.ConsumerPerformance``)."""
        command = self._command(main, *arguments)
        process = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=self.folder)
        return process.stdout + process.stderr

    def _format(self, conf: Path) -> None:
        number = b"k" + uuid.uuid4().bytes[1:]  # an id that begins with "-" would be taken for an option
        cluster = base64.urlsafe_b64encode(number).decode().rstrip("=")
        command = self._command("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(conf))
        run_step(command, "Kafka's storage cannot be formatted")

    def _command(self, *arguments: str, heap: str = "256m") -> list[str]:
        memory = ["-Xms64m", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"
        return [self.java, *memory, logging, "-cp", self.classpath, *arguments]

    def _log(self) -> Path:
        return self.folder / "server.log"

    def _settings(self) -> dict[str, str]:
        listeners = {"PLAINTEXT": self.bootstrap, "SASL_PLAINTEXT": self.sasl_bootstrap}
        if self.tls is not None:
            listeners["SASL_SSL"] = self.tls_bootstrap
        served = ",".join(f"{name}://{address}" for name, address in listeners.items())
        users = f'user_$ConnectionString="{self.connection_string}" user_app="app"'
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self.controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"{served},CONTROLLER://{HOST}:{self.controller}",
            "advertised.listeners": served,
            "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in listeners)]),
            "log.dirs": os.fspath(self.folder / "data"),
            "log.retention.ms": "-1",  # records may have the times of years ago
            **{f"{topic}.topic.replication.factor": "1" for topic in ("offsets", "share.coordinator.state")},
            **{f"{log}.replication.factor": "1" for log in ("transaction.state.log", "default")},
            **{f"{log}.num.partitions": "1" for log in ("offsets.topic", "transaction.state.log")},
            **{f"{log}.min.isr": "1" for log in ("transaction.state.log", "share.coordinator.state.topic")},
            "min.insync.replicas": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": "11534336",
            "sasl.enabled.mechanisms": "PLAIN",
            **{f"listener.name.{name}.plain.sasl.jaas.config": f"{_PLAIN} {users};" for name in ("sasl_plaintext", "sasl_ssl")},
            **self._keys(),
            **{key.replace("_", "."): value for key, value in self.properties.items()},
        }

    def _keys(self) -> dict[str, str]:
        """The settings of a file with the server's certificate and its key."""
        if self.tls is None:
            return {}
        store = self.folder / "server.pem"
        store.write_bytes(self.tls.key.read_bytes() + self.tls.chain.read_bytes())
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": os.fspath(store)}

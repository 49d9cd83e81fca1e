"""Java connectors in tests: their packages, and the settings of hosts."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from connectors.connect.host import SOURCE_COLUMNS, ConnectorSettings, TaskRecords
from connectors.connect.java.jars import plugin_class_path
from connectors.connect.java.source_host import JavaSourceHost
from connectors.core.source import ReadLimit
from connectors.jvm.java import use_java

FILES: Final = "org.apache.kafka:connect-file:4.3.1"
DEBEZIUM: Final = "io.debezium:debezium-connector-postgres:3.6.1.Final"
DEBEZIUM_JDBC: Final = "io.debezium:debezium-connector-jdbc:3.5.0.Final"
DEBEZIUM_MARIADB: Final = "io.debezium:debezium-connector-mariadb:3.5.0.Final"
DEBEZIUM_MYSQL: Final = "io.debezium:debezium-connector-mysql:3.6.1.Final"
CAMEL_SQS: Final = "org.apache.camel.kafkaconnector:camel-kafka-connector:0.11.0,org.apache.camel:camel-aws2-sqs:3.11.1"
FILE_SOURCE: Final = "org.apache.kafka.connect.file.FileStreamSourceConnector"


def file_properties(path: Path, **more: str) -> dict[str, str]:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return {"connector.class": FILE_SOURCE, "name": "lines", "file": str(path), "topic": "lines", **named}


def sqs_properties(side: str, queue: str, url: str) -> dict[str, str]:
    """Camel's connector on a queue of SQS, at the AWS of ``url``; ``side`` is source or sink."""
    options = "accessKey=test&secretKey=test&region=us-east-1" + "&maxMessagesPerPoll=10&delay=50" * (side == "source")
    return {
        "connector.class": f"org.apache.camel.kafkaconnector.Camel{side.title()}Connector",
        "name": queue,
        "topics": queue,
        f"camel.{side}.url": f"aws2-sqs:{queue}?{options}&overrideEndpoint=true&uriEndpointOverride={url}",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }


def mariadb_properties(port: int, database: str, server_id: int, history: Path) -> dict[str, str]:
    """Debezium on a MariaDB server of the test kit."""
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "name": f"mariadb_{database}",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "app",
        "database.password": "app",
        "database.server.id": str(server_id),
        "database.include.list": database,
        "topic.prefix": "maria",
        "include.schema.changes": "false",
        "database.ssl.mode": "disable",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(history),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }


def mysql_properties(port: int, database: str, server_id: int, history: Path) -> dict[str, str]:
    """Debezium on a MySQL server of the test kit."""
    return {
        **mariadb_properties(port, database, server_id, history),
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "name": f"mysql_{database}",
        "topic.prefix": "mysql",
        "database.ssl.mode": "disabled",
    }


def settings(properties: dict[str, str], package: str = FILES, **more: Any) -> ConnectorSettings:
    return ConnectorSettings(properties, plugin_packages=(package,), restart_backoff=0.05, **more)


@contextmanager
def started(
    properties: dict[str, str], package: str = FILES, offsets: Any = None, groups: Any = None, **more: Any
) -> Iterator[JavaSourceHost]:
    host = JavaSourceHost(settings(properties, package, **more))
    try:
        host.start(offsets or {}, groups or {})
        yield host
    finally:
        host.close()


def poll(host: JavaSourceHost, rows: int, epoch: int = 1, seconds: float = 60.0) -> list[TaskRecords]:
    """Polls until there are so many rows. Raises ``AssertionError`` when they do not come."""
    records: list[TaskRecords] = []
    until = time.monotonic() + seconds
    while sum(part.rows.num_rows for part in records) < rows:
        records += host.poll(epoch, ReadLimit(), 1.0)
        assert time.monotonic() < until, f"{sum(part.rows.num_rows for part in records)} of {rows} rows came"
    return records


def rows_of(records: list[TaskRecords]) -> list[dict[str, Any]]:
    tables = [part.rows for part in records]
    return (pa.concat_tables(tables) if tables else SOURCE_COLUMNS.empty_table()).to_pylist()


def values_of(records: list[TaskRecords]) -> list[bytes]:
    return [row["value"] for row in rows_of(records)]


def probe(folder: Path, package: str = "probe") -> Path:
    """A folder with a jar of ``ProbeSinkConnector.java``, which is compiled into ``package``."""
    source = (Path(__file__).parent / "ProbeSinkConnector.java").read_text().replace("package probe;", f"package {package};")
    work = folder / f"compiled-{package}"
    (work / "classes").mkdir(parents=True)
    (work / "ProbeSinkConnector.java").write_text(source)
    path = os.pathsep.join(plugin_class_path(None, [FILES]))
    compiler = [str(use_java() / "bin" / "java"), "-cp", path, "org.codehaus.commons.compiler.samples.CompilerDemo"]
    files = ["-d", str(work / "classes"), "-classpath", path, str(work / "ProbeSinkConnector.java")]
    subprocess.run([*compiler, *files], check=True, capture_output=True)
    (folder / "plugins").mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "plugins" / f"{package}-1.0.jar", "w") as jar:
        for file in (work / "classes").rglob("*.class"):
            jar.write(file, file.relative_to(work / "classes"))
        jar.writestr("META-INF/services/org.apache.kafka.connect.sink.SinkConnector", f"{package}.ProbeSinkConnector\n")
    return folder / "plugins"


def probe_properties(folder: Path, **more: str) -> dict[str, str]:
    """Properties of the probe, which writes its lines to ``folder/"log"``."""
    named = {key.replace("__", "."): value for key, value in more.items()}
    string = "org.apache.kafka.connect.storage.StringConverter"
    return {
        "connector.class": "probe.ProbeSinkConnector",
        "name": "probe",
        "topics": "t",
        "log": str(folder / "log"),
        "value.converter": string,
        **named,
    }


def probe_lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def exists(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()

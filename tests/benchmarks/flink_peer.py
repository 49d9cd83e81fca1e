"""Flink, in a JVM of its own with its jars from a Maven repository: the peer of benchmarks that are given ``--peers``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from connectors.jvm.java import use_java
from connectors.jvm.maven import class_path, spark_jars

VERSION: Final = "2.2.0"
FLINK = "org.apache.flink:{}:" + VERSION
NEEDS = ("flink-clients", "flink-table-api-java-bridge", "flink-table-runtime", "flink-connector-files", "flink-json")
ALONE = (FLINK.format("flink-table-planner-loader"), "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2")
OPENS = ("java.base/java.util", "java.base/java.lang")
"""The packages of Java that Flink's serializers look into."""


class Flink:
    """Jobs in Flink's SQL, with a checkpoint each second into ``folder``, in as many tasks as ``parallelism``."""

    def __init__(self, folder: Path, parallelism: int) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        jars = class_path("flink", [FLINK.format(name) for name in NEEDS], alone=ALONE)
        (py4j,) = spark_jars().glob("py4j-*.jar")
        port = launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(jars),
            java_path=str(use_java() / "bin" / "java"),
            javaopts=["-Xmx1g", *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENS)],
            die_on_exit=True,
        )
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self.settings = {
            "execution.checkpointing.interval": "1s",
            "execution.checkpointing.dir": folder.as_uri(),
            "execution.checkpointing.storage": "filesystem",
            "parallelism.default": str(parallelism),
            "taskmanager.numberOfTaskSlots": str(parallelism),
        }

    def job(self, *statements: str) -> Any:
        """Runs ``statements``. Returns the job of the last one."""
        flink = self.gateway.jvm.org.apache.flink
        configuration = flink.configuration.Configuration()
        for name, value in self.settings.items():
            configuration.setString(name, value)
        settings = flink.table.api.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration)
        tables = flink.table.api.TableEnvironment.create(settings.build())
        results = [tables.executeSql(statement) for statement in statements]
        return results[-1].getJobClient().get()


def table(name: str, columns: str, options: Mapping[str, str]) -> str:
    """The statement that makes the table ``name``."""
    settings = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE `{name}` ({columns}) WITH ({settings})"


def topic(bootstrap: str, name: str, *, is_target: bool = False) -> dict[str, str]:
    """The options of a topic that is read from its start, or written to exactly once; its records are bytes."""
    address = {"connector": "kafka", "properties.bootstrap.servers": bootstrap, "topic": name}
    if not is_target:
        return {**address, "scan.startup.mode": "earliest-offset"}
    once = {"sink.delivery-guarantee": "exactly-once", "sink.transactional-id-prefix": name}
    return {**address, **once, "properties.transaction.timeout.ms": "600000"}

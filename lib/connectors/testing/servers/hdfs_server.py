"""HDFS on this machine: a NameNode and a DataNode, each a process of its own, of the very Hadoop that PySpark carries."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from .base import HOST, Server, Unavailable, classpath, free_ports, java

_SPARKS_OWN: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
_QUICK: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG: Final = """\
log4j.rootLogger=WARN,O
log4j.appender.O=org.apache.log4j.ConsoleAppender
log4j.appender.O.layout=org.apache.log4j.PatternLayout
log4j.appender.O.layout.ConversionPattern=%d %p %c %m%n
"""


class HdfsServer(Server):
    """An empty HDFS with one copy of each block. ``url`` is its address, ``web`` that of WebHDFS (``host:port``)."""

    start_timeout = 180.0

    def __init__(self) -> None:
        super().__init__()
        jars = _sparks_jars()
        version = _version(jars)
        own = classpath("hdfs", f"org.apache.hadoop:hadoop-client-minicluster:{version}", without=_SPARKS_OWN)
        self._jars = f"{own}:{jars}/*"
        self.port, self.web_port, *self._data_ports = free_ports(5)
        self.url, self.web = f"hdfs://{HOST}:{self.port}", f"{HOST}:{self.web_port}"
        self.storage = {"host": HOST, "port": self.web_port, "user": "test"}
        """The ``storageOptions`` that reach it."""

    def launch(self) -> None:
        if not (self.folder / "name/current").exists():
            done = subprocess.run(
                self._java("NameNode", "-format", "-force", "-nonInteractive"), cwd=self.folder, capture_output=True, text=True
            )
            if done.returncode:
                raise Unavailable(f"HDFS cannot be formatted:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
        self.spawn(self._java("NameNode"))
        self.spawn(self._java("DataNode"))

    def ready(self) -> bool:
        state = self._bean("FSNamesystemState")
        return bool(state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational" and self._has_room())

    def _has_room(self) -> bool:
        """Whether a file can be put somewhere: the DataNode is alive a moment before it has told its disk."""
        address = f"http://{self.web}/webhdfs/v1/ready?op=CREATE&noredirect=true&user.name=test"
        with urllib.request.urlopen(urllib.request.Request(address, method="PUT"), timeout=5) as answer:
            return "Location" in json.load(answer)

    def _bean(self, name: str) -> Any:
        address = f"http://{self.web}/jmx?qry=Hadoop:service=NameNode,name={name}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return json.load(answer)["beans"][0]

    def _java(self, node: str, *arguments: str) -> list[str]:
        kind = f"org.apache.hadoop.hdfs.server.{node.lower()}.{node}"
        return [java(), *_QUICK, "-cp", f"{self._settings()}:{self._jars}", kind, *arguments]

    def _settings(self) -> Path:
        folder = self.folder / "settings"
        folder.mkdir(exist_ok=True)
        data, ipc, http = (f"{HOST}:{port}" for port in self._data_ports)
        (folder / "core-site.xml").write_text(
            _xml({"fs.defaultFS": self.url, "hadoop.tmp.dir": str(self.folder / "tmp"), "hadoop.http.staticuser.user": "test"})
        )
        (folder / "hdfs-site.xml").write_text(
            _xml(
                {
                    "dfs.replication": "1",
                    "dfs.permissions.enabled": "false",
                    "dfs.namenode.name.dir": f"file://{self.folder}/name",
                    "dfs.namenode.http-address": self.web,
                    "dfs.namenode.rpc-bind-host": HOST,
                    "dfs.namenode.safemode.extension": "0",
                    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                    "dfs.namenode.fs-limits.min-block-size": "1024",
                    "dfs.heartbeat.interval": "1",
                    "dfs.namenode.redundancy.considerLoad": "false",
                    "dfs.datanode.hostname": HOST,
                    "dfs.datanode.data.dir": f"file://{self.folder}/data",
                    "dfs.datanode.address": data,
                    "dfs.datanode.ipc.address": ipc,
                    "dfs.datanode.http.address": http,
                }
            )
        )
        (folder / "log4j.properties").write_text(_LOG)
        return folder


def _sparks_jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("install pyspark, whose Hadoop it runs")
    return Path(spec.origin).parent / "jars"


def _version(jars: Path) -> str:
    (api,) = jars.glob("hadoop-client-api-*.jar")
    return api.stem.removeprefix("hadoop-client-api-")


def _xml(settings: dict[str, str]) -> str:
    pairs = (f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(pairs)}</configuration>"

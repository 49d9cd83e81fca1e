"""Storages of clouds and clusters on this machine.

- :class:`MotoServer`: AWS (S3, DynamoDB, Firehose, Kinesis) by moto, from PyPI: ``moto[server]``.
- :class:`AzuriteServer`: Azure's blob storage by Azurite, an npm package.
- :class:`GcsServer`: Google Cloud Storage by fake-gcs-server, a Go module, built once.
- :class:`HdfsServer`: HDFS by the Hadoop that PySpark carries, and a few more jars from Maven. Needs Java.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from .base import (
    HOST,
    Server,
    Unavailable,
    classpath,
    find_program,
    free_ports,
    go_program,
    java,
    npm_package,
    request_json,
    run_step,
    spark_jars,
)

_KEYS: Final = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class MotoServer(Server):
    """An empty AWS. ``url`` is its address; every key and secret is right.

    Its Kinesis never ends a closed shard.
    """

    required = True

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise Unavailable("`pip install 'moto[server]'`")
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        self.spawn([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)])

    def ready(self) -> bool:
        return request_json(f"{self.url}/moto-api/data.json") is not None

    def client(self, service: str) -> Any:
        """A boto3 client of ``service``."""
        return import_module("boto3").client(service, endpoint_url=self.url, **_KEYS)

    def bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket. Returns the ``storageOptions`` that reach it."""
        self.client("s3").create_bucket(Bucket=name)
        client = {"endpoint_url": self.url, "region_name": _KEYS["region_name"]}
        return {"key": _KEYS["aws_access_key_id"], "secret": _KEYS["aws_secret_access_key"], "client_kwargs": client}


_AZURITE: Final = "azurite@3.35.0"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its published key."""


class AzuriteServer(Server):
    """An empty blob storage that outlives an outage. ``url`` is the address of its one account.

    It has no hierarchical namespace: what ``dfs.core.windows.net`` answers, a rename above all, is not there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node = find_program("node")
        self.program = npm_package("azurite", _AZURITE) / "node_modules/azurite/dist/src/blob/main.js"
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


_GCS_MODULE: Final = "github.com/fsouza/fake-gcs-server@v1.56.1"
_GCS_MAIN: Final = """package main

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
        self.program = go_program("gcs", _GCS_MODULE, _GCS_MAIN)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        self.spawn([str(self.program), f"{HOST}:{self.port}", str(self.folder / "data")])

    def ready(self) -> bool:
        return request_json(f"{self.url}/storage/v1/b?project=test") is not None

    def bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket. Returns the ``storageOptions`` that reach it."""
        request_json(f"{self.url}/storage/v1/b?project=test", {"name": name})
        return self.options()

    def options(self, url: str = "") -> dict[str, Any]:
        """The ``storageOptions`` of the server, at the address ``url`` (that of a proxy)."""
        return {"endpoint_url": url or self.url, "token": "anon", "project": "test"}


_SPARK_HAS: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
_QUICK: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_HADOOP_LOG: Final = """\
log4j.rootLogger=WARN,O
log4j.appender.O=org.apache.log4j.ConsoleAppender
log4j.appender.O.layout=org.apache.log4j.PatternLayout
log4j.appender.O.layout.ConversionPattern=%d %p %c %m%n
"""


class HdfsServer(Server):
    """An empty HDFS with one copy of each block. ``url`` is its address, ``web`` that of WebHDFS (``host:port``).

    A NameNode and a DataNode, each a process of its own.
    """

    required = True
    start_timeout = 180.0

    def __init__(self) -> None:
        super().__init__()
        jars = spark_jars()
        (api,) = jars.glob("hadoop-client-api-*.jar")
        version = api.stem.removeprefix("hadoop-client-api-")
        cluster = classpath("hdfs", f"org.apache.hadoop:hadoop-client-minicluster:{version}", without=_SPARK_HAS)
        self._jars = f"{cluster}:{jars}/*"
        self.web_port, *self._data_ports = free_ports(4)
        self.url, self.web = f"hdfs://{HOST}:{self.port}", f"{HOST}:{self.web_port}"
        self.storage = {"host": HOST, "port": self.web_port, "user": "test"}
        """The ``storageOptions`` that reach it."""

    def launch(self) -> None:
        if not (self.folder / "name/current").exists():
            run_step(self._java("NameNode", "-format", "-force", "-nonInteractive"), "HDFS cannot be formatted", self.folder)
        self.spawn(self._java("NameNode"))
        self.spawn(self._java("DataNode"))

    def ready(self) -> bool:
        bean = "Hadoop:service=NameNode,name=FSNamesystemState"
        state = request_json(f"http://{self.web}/jmx?qry={bean}")["beans"][0]
        return bool(state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational" and self._has_room())

    def _has_room(self) -> bool:
        """True if a file can be created: the DataNode is alive a moment before the NameNode knows its disk."""
        url = f"http://{self.web}/webhdfs/v1/ready?op=CREATE&noredirect=true&user.name=test"
        return "Location" in request_json(url, method="PUT")

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
        (folder / "log4j.properties").write_text(_HADOOP_LOG)
        return folder


def _xml(settings: dict[str, str]) -> str:
    pairs = (f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(pairs)}</configuration>"

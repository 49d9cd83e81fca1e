"""AWS on this machine by moto: S3, DynamoDB, Firehose, Kinesis; from PyPI (``moto[server]``)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import urllib.error
import urllib.request
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from .base import HOST, Server, Unavailable, built, classpath, free_ports, java, need, run

_KEYS: Final = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class MotoServer(Server):
    """An empty AWS. ``url`` is its address; every key and secret is right.

    Its Kinesis never ends a closed shard.
    """

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise Unavailable("`pip install 'moto[server]'`")
        (self.port,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        self.spawn([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)])

    def ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=5) as answer:
            return bool(answer.status == 200)

    def client(self, service: str) -> Any:
        """A boto3 client of ``service``."""
        return import_module("boto3").client(service, endpoint_url=self.url, **_KEYS)

    def bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket. Returns the ``storageOptions`` that reach it."""
        self.client("s3").create_bucket(Bucket=name)
        client = {"endpoint_url": self.url, "region_name": _KEYS["region_name"]}
        return {"key": _KEYS["aws_access_key_id"], "secret": _KEYS["aws_secret_access_key"], "client_kwargs": client}


# MERGED Azure's blob storage on this machine by Azurite, an npm package. Needs node and npm.

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


# MERGED Google Cloud Storage on this machine by fake-gcs-server, a Go module. Needs go.

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


# MERGED HDFS on this machine: a NameNode and a DataNode, each a process of its own, of the very Hadoop that PySpark
# carries.

_SPARKS_OWN: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
_QUICK: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_HADOOP_LOG: Final = """\
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
        (folder / "log4j.properties").write_text(_HADOOP_LOG)
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

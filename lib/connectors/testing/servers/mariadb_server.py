"""MariaDB, where Debian's package ``mariadb-server`` is installed. Started by hand: no service, no root password."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from importlib import import_module
from typing import Final

from .base import HOST, Server, Unavailable, free_ports, need

SETTINGS: Final = {
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
        self.settings = {**SETTINGS, **settings}
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

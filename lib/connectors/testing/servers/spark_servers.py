"""A Spark Connect server, which is what serverless compute offers."""

from __future__ import annotations

import socket
import sys
import sysconfig
import venv
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ...workbench.home import spark_home
from .base import HOST, Server, Unavailable, library_path

_PRELOADED = """\
import gc
import pandas, pyarrow  # noqa: what a worker needs half a second for
import pyspark.daemon, pyspark.worker

if __name__ == "__main__":
    gc.freeze()
    pyspark.daemon.manager()
"""


class ConnectServer(Server):
    """A Spark Connect server. ``url`` goes to ``SparkSession.builder.remote``; ``conf`` is Spark's.

    Its Python workers find this library and the rest of ``PYTHONPATH``. With ``library=False`` they find only the packages
    that are installed, without this library, as on somebody else's server.
    """

    def __init__(self, conf: Mapping[str, str] | None = None, *, library: bool = True) -> None:
        super().__init__()
        if None in map(find_spec, ("pyspark", "grpc")):
            raise Unavailable("install pyspark[connect]")
        self.home = spark_home()
        self.library = library
        self.url = f"sc://{HOST}:{self.port}"
        self.conf = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            "spark.ui.enabled": "false",
            **(conf or {}),
        }

    def launch(self) -> None:
        python = self._python()
        conf = self.conf if self.library else {"spark.python.daemon.module": "preloaded", **self.conf}
        settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        submit = [str(self.home / "bin" / "spark-submit"), "--master", "local[2,4]", *settings]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self.spawn([*submit, *server], {"SPARK_HOME": str(self.home), "SPARK_LOCAL_IP": HOST, **python})

    def ready(self) -> bool:
        with socket.create_connection((HOST, self.port), 1):
            return True

    def _python(self) -> dict[str, str]:
        if self.library:
            return {"PYSPARK_PYTHON": sys.executable, **library_path()}
        (self.folder / "preloaded.py").write_text(_PRELOADED)
        return {"PYSPARK_PYTHON": str(_bare_python(self.folder / "python")), "PYTHONPATH": str(self.folder)}


def _bare_python(folder: Path) -> Path:
    """A Python with the packages of this one, except those that are installed as a link to their sources."""
    purelib = Path(sysconfig.get_paths()["purelib"])
    if (purelib / "connectors").exists():
        raise Unavailable("the library is installed; a server without it needs it as a link (pip install --editable)")
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=False, symlinks=True)
        base = {"base": str(folder), "platbase": str(folder)}
        inside = sysconfig.get_path("purelib", "posix_prefix", base)
        # A path file names a folder; the path files in *that* folder, of editable installs, are not read.
        (Path(inside) / "installed.pth").write_text(f"{purelib}\n")
    return folder / "bin" / "python"

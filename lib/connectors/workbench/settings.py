"""The settings of a local session, and the folders for the data of its notebooks.

A local session is for small data on one machine; everything is on 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..ground.errors import Misconfigured, Problem
from ..ground.runtime import in_workspace

VOLUMES = "/Volumes/"
_MARK: Final = ".made-by-a-notebook"


VOLUMES_VARIABLE: Final = "CONNECTORS_VOLUMES"
"""The environment variable with the local folder for the volumes of a workspace."""


def library() -> Path:
    """The folder that holds the package ``connectors``, for the path of Spark's workers."""
    return Path(__file__).resolve().parents[2]


def workdir(value: str) -> str:
    """The folder for a notebook's data: ``value`` itself, but locally a folder of this machine instead of a volume.

    A volume (``/Volumes/catalog/schema/name/…``) exists only in a workspace. Locally the same path below ``runs/`` of the
    repository replaces it, so that one parameter serves both. ``$CONNECTORS_VOLUMES`` names another folder, and wins
    wherever it is set. Makes the folder. Raises :class:`Misconfigured` if that fails.
    """
    if not value:
        raise Misconfigured("the notebook", [Problem("workdir", "missing; give a folder or a volume.")])
    volumes = os.environ.get(VOLUMES_VARIABLE)
    catalog = Path(*Path(value).parts[:3])  # /Volumes itself exists on every macOS
    local = value.startswith(VOLUMES) and bool(volumes or not (in_workspace() or catalog.exists()))
    folder = Path(volumes or library().parent / "runs") / value.lstrip("/") if local else Path(value).expanduser()
    if "://" in value:
        return value
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        text = f"{value} cannot be made: {refused.strerror or refused} ({folder}). Give a folder that you may write to."
        raise Misconfigured("the notebook", [Problem("workdir", text)]) from refused
    return str(folder.absolute())


def fresh_folder(path: str | Path) -> Path:
    """An empty folder at ``path``, for data that a notebook makes again on each run.

    It removes the data of an earlier run. If the folder has other contents, it changes nothing and raises
    :class:`Misconfigured`.
    """
    folder = Path(path)
    mark = folder / _MARK
    if mark.exists():
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        text = f"has a folder {folder.name} that no notebook made: {folder}. It is left as it is; give another workdir."
        raise Misconfigured("the notebook", [Problem("workdir", text)])
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return folder


_SETTINGS: Final = {
    "spark.app.name": "connectors",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # 200 partitions for a few thousand rows are 200 tasks of scheduling and nothing else.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Workers fork from a daemon that has already loaded Arrow and this library.
    "spark.python.daemon.module": "connectors.workbench.daemon",
    # By TCP, each task's first rows come 40 ms late: small packets wait for delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # Queries that run side by side take turns, each in a pool of its own.
    "spark.scheduler.mode": "FAIR",
    # A stopping query may wait for its batch, but not for ever.
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.ui.enabled": "false",
}
_DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's 50 partitions per table state cost 20 s at the first write of a small table.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_UI: Final = {"spark.ui.enabled": "true", "spark.sql.streaming.ui.enabled": "true"}
UI_VARIABLE: Final = "CONNECTORS_SPARK_UI"
"""The environment variable that turns on Spark's web pages: ``1``. ``make lab`` sets it."""
_FOLDER_OF_SOCKETS: Final = 60
"""The most bytes of the folder's path. On macOS the path of a socket has at most 104 bytes; its name takes 43."""
_JOINED: Final = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
}


def default_master() -> str:
    """All cores of this machine, and four tries of each task: ``local[n]`` alone never repeats a failed task."""
    return f"local[{os.cpu_count() or 2},4]"


def local_settings(
    folder: Path, log: Path, jars: list[str], conf: Mapping[str, str], java_options: str = ""
) -> dict[str, str]:
    """The settings of a local session; ``conf`` wins, except that lists such as ``spark.jars`` are joined.

    ``jars`` are Delta's; without them the session does without Delta. ``folder`` is for the session's own files (the
    warehouse, sockets), ``log`` the file for Spark's log.
    """
    logging = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    java = f"{java_options} {logging} -Dconnectors.log={log}".strip()
    settings = {
        **_SETTINGS,
        **(_UI if os.environ.get(UI_VARIABLE) == "1" else {}),
        **(_DELTA_SETTINGS if jars else {}),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.jars": ",".join(jars),
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executorEnv.PYTHONPATH": python_path(),
    }
    if len(os.fsencode(folder)) <= _FOLDER_OF_SOCKETS:  # else they are in Java's temporary folder, and some remain there
        settings["spark.python.unix.domain.socket.dir"] = str(folder)
    for key, value in conf.items():
        joined = _JOINED.get(key) if settings.get(key) else None
        settings[key] = f"{settings[key]}{joined}{value}" if joined else value
    return settings


def python_path() -> str:
    """``PYTHONPATH`` with the library first, so that Spark's workers import the same ``connectors``."""
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join(dict.fromkeys([str(library()), *others]))


def prepare_environment() -> None:
    """Sets the environment variables that Spark's processes inherit; they must be set before the JVM starts."""
    os.environ["PYTHONPATH"] = python_path()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

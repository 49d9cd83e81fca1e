"""Runs a declarative pipeline of a bundle on this machine, by Spark's own command in a process of its own.

A table ``catalog.schema.name`` is a Delta table where a local run has it, below the volumes of the schema; there a catalog of
Hive's knows it from run to run. In configurations, too, a volume is the folder that stands for it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from connectors.ground.process_end import die_with_parent
from connectors.jvm.java import use_java
from connectors.spark.submit_file import submit_file
from connectors.workbench.class_archive import java_options
from connectors.workbench.home import at_home
from connectors.workbench.jars import delta_jars
from connectors.workbench.settings import VOLUMES, default_master, local_settings, prepare_environment, workdir

from .configuration import Config, Findings, as_text
from .execution import RunLimits, enforced

_EVENT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)")
LOG: Final = "spark.log"
_COMMAND: Final = """
from pyspark.pipelines.cli import main
from pyspark.sql.connect.client import DefaultChannelBuilder
DefaultChannelBuilder.default_port = staticmethod(lambda: {port})
main()
"""
"""``spark-pipelines``, with a Spark Connect server for this run alone: Spark's own has one port, and is open to the network."""
_END_SECONDS: Final = 10


@dataclass(frozen=True)
class Pipeline:
    """A declarative pipeline: its files ``globs``, absolute, and the catalog and schema of its tables."""

    key: str
    globs: tuple[str, ...]
    catalog: str
    schema: str
    configuration: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """The folder of what outlives a local run: checkpoints, and the catalog."""
        return Path(workdir(f"{self._tables}/.pipelines/{self.key}"))

    @property
    def _tables(self) -> str:
        return f"{VOLUMES}{self.catalog}/{self.schema}"

    def specification(self, folder: Path) -> Config:
        """The pipeline as ``spark-pipelines`` reads it from a file in ``folder``."""
        places = {key: _place(value) for key, value in self.configuration.items()}
        return {
            "name": self.key,
            "storage": (self.folder / "storage").as_uri(),
            "configuration": places,
            "libraries": [{"glob": {"include": os.path.relpath(glob, folder)}} for glob in self.globs],
        }

    def settings(self, log: Path) -> dict[str, str]:
        """The settings of the session that runs it."""
        catalog = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.sources.default": "delta",
            "spark.sql.warehouse.dir": Path(workdir(self._tables)).as_uri(),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.folder / 'catalog'};create=true",
        }
        return local_settings(self.folder, log, delta_jars(), catalog, java_options())


def pipeline(key: str, config: Config, findings: Findings) -> Pipeline:
    """The pipeline that ``config`` defines. What a local run cannot do is in ``findings``."""
    globs = []
    for library in config.get("libraries") or []:
        path = (library.get("glob") or {}).get("include") or (library.get("file") or {}).get("path")
        if path is None or path.endswith(".ipynb"):
            text = f"only files with Python or SQL run locally, by glob or file; got {library!r:.80}"
            findings.local_problem(f"{key}.libraries", text)
        else:
            globs.append(str(path))
    if not globs:
        findings.problem(f"{key}.libraries", "names no file.")
    configuration = {str(name): as_text(value) for name, value in (config.get("configuration") or {}).items()}
    catalog, schema = (
        str(config.get(name) or default) for name, default in (("catalog", "main"), ("schema", "default"))
    )
    return Pipeline(key, tuple(globs), catalog, schema, configuration)


def _place(value: str) -> str:
    """``value``, a path in a volume by that of the folder which stands for the volume; it may be a file, or a pattern."""
    if not value.startswith(VOLUMES):
        return value
    parts = value.split("/", maxsplit=5)
    return "/".join([workdir("/".join(parts[:5])), *parts[5:]])


class PipelineFailed(RuntimeError):
    """A run that is not complete; the text is all that Spark said."""


def run_pipeline(
    pipeline: Pipeline, folder: Path, full_refresh: Sequence[str], limits: RunLimits, on_event: Callable[[str], object]
) -> None:
    """Runs ``pipeline`` once.

    ``folder`` is for the run's own files: its specification, and ``spark.log`` with all that Spark says. ``full_refresh`` names
    tables that begin anew; ``*`` is all. ``on_event`` is told what happens. Raises :class:`PipelineFailed`, and
    :class:`~.execution.Expired` when a limit passes.
    """
    log = folder / LOG
    process_of_run = pipeline_process(pipeline, folder, full_refresh)
    with process_of_run as process, log.open("w", encoding="utf-8") as file, enforced(limits):
        for line in process.stdout or ():
            file.write(line)
            file.flush()
            if event := _EVENT.fullmatch(line.strip()):
                on_event(event[1])
        if process.wait() != 0:
            raise PipelineFailed(log.read_text(encoding="utf-8"))


@contextmanager
def pipeline_process(
    pipeline: Pipeline, folder: Path, full_refresh: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The process of a run, as of :func:`run_pipeline`, with all that it says as its output. It has ended afterwards."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    specification = folder / "spark-pipeline.yml"
    specification.touch(0o600)  # a value of the configuration may be secret
    specification.write_text(yaml.safe_dump(pipeline.specification(folder)))
    port = _free_port()
    command = [sys.executable, "-c", _COMMAND.format(port=port), "run", "--spec", str(specification)]
    if "*" in full_refresh:
        command.append("--full-refresh-all")
    elif full_refresh:
        command += ["--full-refresh", ",".join(full_refresh)]
    use_java()
    prepare_environment()
    server = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": port}
    with submit_file({**pipeline.settings(folder / "log4j.log"), **server}), at_home():
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            preexec_fn=die_with_parent,
            cwd=folder,  # where the catalog writes its log
            env={**os.environ, "SPARK_REMOTE": default_master()},
        )  # fmt: skip
        try:
            yield process
        finally:
            _end(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

"""A driver of a proof: it runs a pipeline's notebook in a Spark session of its own, with connectors that faults can strike.

:class:`Driver` starts ``python -m connectors_tools.proof.driver`` and writes its :class:`Task` to its input, since parameters
may be secrets and anybody can read a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

from connectors.core.sink import Sink
from connectors.ground import machine
from connectors.ground.messages import message_in
from connectors.spark.session import driver_process
from connectors.systems import add_system, all_systems
from connectors.systems.delta import merge
from connectors.testing.faults import FailureInjector, faulty_calls, faulty_sink, faulty_source
from connectors.testing.notebooks import run_notebook
from connectors.workbench.settings import python_path
from connectors.workbench.start import start

FAULTS_VARIABLE: Final = "CONNECTORS_FAULTS"
"""The environment variable with the folder of faults, for Spark's Python workers."""
_END_SECONDS: Final = 900.0
_LOG: Final = 60_000
_DAEMON: Final = {"spark.python.daemon.module": "connectors_tools.proof.daemon"}
_CLUSTER: Final = {
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
}


@dataclass(frozen=True)
class Task:
    """A run of a notebook: ``systems`` get faults, ``unprotected`` ones also a new ledger at each start.

    The run ends with the process ``proof``.
    """

    notebook: str
    parameters: Mapping[str, str]
    faults: str
    systems: Sequence[str]
    master: str
    unprotected: bool = False
    proof: int = field(default_factory=os.getpid)


class Driver:
    """The running process of a :class:`Task`, whose output goes to the end of the file ``log``."""

    def __init__(self, task: Task, log: Path) -> None:
        self.log, self.log_start = log, log.stat().st_size if log.exists() else 0
        environment = {**os.environ, "PYTHONPATH": python_path(), FAULTS_VARIABLE: task.faults}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "connectors_tools.proof.driver"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=Path(task.notebook).parent,
                env=environment,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its log says why
            self.process.stdin.write(json.dumps(asdict(task)).encode())
            self.process.stdin.close()

    def wait(self, seconds: float = _END_SECONDS) -> int | None:
        """The exit code; ``None`` if the driver still runs after ``seconds``."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kills Python and its JVM, which is in the same group of processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def error(self) -> str:
        """The message of the error that has ended it, on one line."""
        text = self.log.read_bytes()[self.log_start :].decode(errors="replace")
        return " ".join(message_in(text[-_LOG:]).split())


def add_faults(systems: Sequence[str], injector: FailureInjector, *, unprotected: bool) -> None:
    """Replaces the connectors of ``systems``, in this process, by those that pass the points of ``injector``."""
    known = all_systems()
    for system in systems:
        source, sink = known[system]
        if source is not None:
            add_system(faulty_source(source, injector))
        if sink is not None:
            add_system(faulty_sink(_forgetful(sink) if unprotected else sink, injector))
    merge.ChangeTable = faulty_sink(merge.ChangeTable, injector)  # type: ignore[misc, assignment]  # no format has its name


def _forgetful(kind: type[Sink]) -> type[Sink]:
    """A subclass of ``kind`` that does not know what it has written in an earlier process."""
    token = machine.token()

    class ForgetfulSink(kind):  # type: ignore[valid-type, misc]
        @classmethod
        def of(cls, typed: Mapping[str, Any], *, placed: bool = False) -> Sink:
            sink: Sink = super().of({**typed, "onLostLedger": "notWritten"}, placed=placed)
            return sink

        def sink_id(self) -> str:
            return f"{super().sink_id()}-{token}"

    return ForgetfulSink


def _end_with(proof: int) -> None:
    """Kills this process and its JVM once the process ``proof`` has died, since nobody else would."""
    while os.getppid() == proof:
        machine.sleep(1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Runs the task that the input of this process has."""
    task: dict[str, Any] = json.load(sys.stdin)
    Thread(target=_end_with, args=[task["proof"]], daemon=True).start()
    injector = FailureInjector(task["faults"])
    add_faults(task["systems"], injector, unprotected=task["unprotected"])
    faulty_calls(injector)
    is_cluster = task["master"].startswith("local-cluster")
    variable = {f"spark.executorEnv.{FAULTS_VARIABLE}": task["faults"]}
    spark = start({**_DAEMON, **variable, **(_CLUSTER if is_cluster else {})}, task["master"])
    injector.set_victims(os.getpid(), driver_process(spark))
    run_notebook(task["notebook"], task["parameters"])
    spark.stop()


if __name__ == "__main__":
    main()

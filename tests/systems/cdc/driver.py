"""A Spark driver in a process of its own that takes orders, so that one start of Spark serves many rounds of a test.

:class:`Driver` is the side of the test; ``python -m tests.systems.cdc.driver SPEC.json`` is the process. Orders are lines of
JSON on its standard input, answers are lines of a pipe. The process ends with its input.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from connectors.testing.driver import _FaultyForeachBatch
from connectors.testing.faults import FailureInjector, faulty_sink, faulty_source
from connectors.testing.session import python_path

_START_SECONDS = 180.0
_LOG = 6_000
DATABASE = "all tables"
"""The name of a sink that merges all tables."""
_ERROR = re.compile(r"(: )?[\w.]+(Error|Exception|Refused|Fatal|Misconfigured|Poison|Transient):? ")


class DriverDied(Exception):
    """The driver's process is gone."""


class Driver:
    """A driver process; its output goes to ``folder/log``. ``master`` is Spark's, or the environment ``cluster``."""

    def __init__(self, folder: Path, master: str, conf: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        spec = folder / "spec.json"
        spec.write_text(json.dumps({"master": master, "conf": dict(conf)}))
        reader, writer = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.systems.cdc.driver", str(spec), str(writer)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": python_path()},
                pass_fds=[writer],
                start_new_session=True,
            )
        os.close(writer)
        self._answers = os.fdopen(reader, "rb", buffering=0)
        self._rest = b""
        self.pids: list[int] = []

    def wait_until_ready(self) -> None:
        """Returns when Spark runs."""
        if not self.pids:
            self.pids = self._answer(_START_SECONDS)["pids"]

    def start(self, query: Mapping[str, Any]) -> None:
        """Starts a query, see :func:`start_query`, and returns when Spark has begun with it."""
        self._order({"do": "start", "query": query})
        self._answer(_START_SECONDS)

    def stop(self) -> str:
        """Stops the query cleanly. Returns its error, empty for none."""
        self._order({"do": "stop"})
        return str(self._answer(_START_SECONDS)["error"])

    def wait(self, seconds: float) -> str | None:
        """Waits for the end of the query. Returns its error, empty for none, or ``None`` if it still runs."""
        self._order({"do": "wait", "seconds": seconds})
        answer = self._answer(seconds + _START_SECONDS)
        return str(answer["error"]) if answer["ended"] else None

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Ends Python and Spark's JVM at once, as a crash of the machine would."""
        for pid in {*self.pids, self.process.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def close(self) -> None:
        """Ends the process by the end of its input."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
                self.process.wait(30)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self.kill()
        self._answers.close()

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-_LOG:]

    def _order(self, order: Mapping[str, Any]) -> None:
        stdin: IO[bytes] | None = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise DriverDied from error

    def _answer(self, seconds: float) -> Any:
        """The next answer. Raises :class:`DriverDied` if none will come."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                os.kill(self.process.pid, signal.SIGUSR1)
                time.sleep(2.0)
                raise AssertionError(f"the driver hangs:\n{self.tail()}")
            chunk = self._answers.read(65_536)
            if not chunk:
                raise DriverDied
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


def start_query(spark: Any, query: Mapping[str, Any]) -> Any:
    """Starts a stream of ``connectors.connect`` into sinks of ``connectors.connect.merge``, which pass the points of faults.

    ``query`` has ``name``, ``source`` (its options), ``sinks`` (options by the name of the table, or of ``DATABASE`` for a
    sink of all tables), ``checkpoint``, ``faults`` (a folder, with one of :class:`FailureInjector` for the source and for each
    sink), ``trigger`` (arguments of Spark's) and ``records``: a folder that keeps all records, or nothing.
    """
    import connectors
    from connectors.spark.foreach_batch import Several
    from connectors.systems.connect import ConnectSource
    from connectors.systems.delta.merge import ChangeTable
    from connectors.systems.delta.merge_all import ChangeTables

    source = faulty_source(ConnectSource, FailureInjector(f"{query['faults']}/source"))
    connectors.register(spark, source)
    functions: list[Any] = [_Records(query["records"])] if query.get("records") else []
    for table, options in query["sinks"].items():
        injector = FailureInjector(f"{query['faults']}/{table}")
        kind = ChangeTables if table == DATABASE else ChangeTable
        sink = faulty_sink(kind, injector).of({**options, "queryName": query["name"]})
        functions.append(_FaultyForeachBatch(sink, injector))
    rows = spark.readStream.format("connectors.connect").options(**query["source"]).load()
    writer = rows.writeStream.queryName(query["name"]).trigger(**query["trigger"])
    return writer.option("checkpointLocation", query["checkpoint"]).foreachBatch(Several(functions)).start()


class _Records:
    """Keeps the records of each batch as Parquet, to look at after a failure."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, frame: Any, number: int) -> None:
        text = ("cast(key AS string) AS key", "cast(value AS string) AS value", "topic", "sourceOffset")
        frame.selectExpr(*text).write.mode("overwrite").parquet(f"{self.folder}/batch={number:06d}")


def main(file: str, answers: int) -> None:
    """Takes orders until there are no more."""
    from connectors.spark.session import driver_process
    from connectors.testing.environments import CLUSTER, Environment
    from connectors.testing.session import session

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    spec = json.loads(Path(file).read_text())
    with os.fdopen(answers, "w", buffering=1) as pipe:
        os.set_inheritable(answers, False)
        if spec["master"] == CLUSTER:
            environment = Environment(CLUSTER, spec["conf"])
            environment.start()
            spark = environment.spark
        else:
            spark = session(spec["master"], spec["conf"])
        _send(pipe, pids=[os.getpid(), driver_process(spark)])
        orders = _Orders(spark)
        for line in sys.stdin:
            order = json.loads(line)
            _send(pipe, **orders.take(order))


class _Orders:
    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.query: Any = None

    def take(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if order["do"] == "start":
            remove_half_an_offset(Path(order["query"]["checkpoint"]))
            self.query = start_query(self.spark, order["query"])
            return {}
        if order["do"] == "stop":
            try:
                self.query.stop()
            except Exception as error:  # it did not stop in time
                return {"error": f"stop: {error}"}
            return {"error": self._error()}
        return {"ended": self._ends(order["seconds"]), "error": self._error()}

    def _ends(self, seconds: float) -> bool:
        try:
            return bool(self.query.awaitTermination(seconds))
        except Exception:  # the query has failed: exception() tells how
            return True

    def _error(self) -> str:
        """The error of the query: that of Python where Spark wraps one."""
        error = self.query.exception()
        if error is None:
            return ""
        lines = [line.strip() for line in str(error).splitlines()]
        titles = [line[:900] for line in lines if _ERROR.match(line)]
        return "\n".join([*titles[-3:], "", str(error)[:4000]])


def remove_half_an_offset(checkpoint: Path) -> None:
    """Lets a query start whose driver was killed while it wrote its very first offset, as SparkQuery does."""
    offsets = checkpoint / "offsets"
    files: Sequence[Path] = list(offsets.iterdir()) if offsets.exists() else []
    if all(file.name.startswith(".") for file in files):
        for file in files:
            file.unlink()


def _send(pipe: Any, **answer: Any) -> None:
    pipe.write(json.dumps(answer) + "\n")
    pipe.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""Killing drivers on Spark: many queries in one session that is killed again and again, and then every row compared.

A round starts a driver, with another parallelism than the one before, lets it write to all targets at once, and kills it: at
a point that one of the queries reaches, or at any moment. Each round there is more to write: more numbers, or what a source
under test has been given. What survives is told by the last run, which nobody disturbs. A driver that fails of itself, such as
one whose Python workers did not come up in time on a busy machine, is started again, as a scheduler does, and told of.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.sink import Guarantee
from .compare import same_records
from .contexts import SinkContext, SourceContext
from .driver import SparkQuery, start_driver
from .faults import FailureInjector, Point
from .spark_suites import spark_query

_START_SECONDS = 300.0
_STARTS = 3
_ROWS = 40
_SCALES = (1, 2, 3, 5, 2)
_LOG = 60_000


@dataclass
class Kills:
    """Drivers that write to ``targets`` (by name: a context and a carrier) and are killed as ``seed`` says.

    A target whose name is in ``sources`` gets that system's rows as they are, any other one gets the rows of its context.
    ``conf`` are settings of Spark that the drivers need.
    """

    folder: Path
    targets: Mapping[str, tuple[SinkContext, str]]
    seed: int = 0
    master: str = "local[2,4]"
    sources: Mapping[str, SourceContext] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    """How each round went."""
    _written: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self, kills: int) -> None:
        """Kills, finishes undisturbed, and raises ``AssertionError`` naming every record that is wrong anywhere."""
        chance = random.Random(self.seed)
        queries = {name: self._query(name) for name in self.targets}
        rows = 0
        for number in range(kills):
            rows += _ROWS
            self._round(number, queries, rows, chance)
        for query in queries.values():
            FailureInjector(query.faults).disarm()
            (Path(query.faults) / "victims").unlink(missing_ok=True)
        self._run(list(queries.values()), rows, 2, "the last run")
        for name, (target, _) in self.targets.items():
            self._compare(name, target, rows)

    def _query(self, name: str) -> SparkQuery:
        target, carrier = self.targets[name]
        query = spark_query(target, self.folder / name, carrier)
        if system := self.sources.get(name):
            query.source, query.source_options = system.source.name, {**system.options(), **system.limit}
            query.select = ["*"]
        return query

    def _round(self, number: int, queries: Mapping[str, SparkQuery], rows: int, chance: random.Random) -> None:
        name, query = chance.choice(sorted(queries.items()))
        at_a_point = chance.random() < 0.7
        injector = FailureInjector(query.faults)
        for source, system in self.sources.items():
            self._written.setdefault(source, []).extend(system.write(_ROWS))
        point = (
            injector.arm_one_of(chance.randrange(1 << 30), _points(*self.targets[name]), rows=2) if at_a_point else None
        )
        how = f"where {point.value} in {name}" if point else "at any moment"
        kill_after = None if at_a_point else chance.uniform(0.0, 6.0)
        code = self._run(list(queries.values()), rows, _SCALES[number % len(_SCALES)], f"round {number}", kill_after)
        injector.disarm()
        self.told.append(f"round {number}: {'killed' if code else 'not reached'} {how}")

    def _run(
        self, queries: Sequence[SparkQuery], rows: int, parallelism: int, what: str, kill_after: float | None = None
    ) -> int:
        """Runs a driver to its end, or kills it so many seconds after its queries have started. Returns its exit code."""
        for query in queries:
            end = {"end": str(rows)} if query.source == "sequence" else {}
            query.source_options.update(end, numPartitions=str(parallelism))
        for _ in range(_STARTS):
            run = _Run(self.folder / "child", self.master, list(queries), what, self.conf)
            code = run.finish(kill_after)
            if code in (0, -signal.SIGKILL):
                return code
            self.told.append(f"{what}: failed of itself: {run.reason()}")
        raise AssertionError("\n".join([*self.told[-_STARTS:], run.log.read_text()[-_LOG:]]))

    def _compare(self, name: str, target: SinkContext, rows: int) -> None:
        repeats = target.guarantee is Guarantee.AT_LEAST_ONCE
        expected = (
            self._written[name] if name in self.sources else [target.row(number) for number in range(1, rows + 1)]
        )
        try:
            same_records(expected, target.rows(), repeats=repeats)
        except AssertionError as wrong:
            raise AssertionError(f"{name}, seed {self.seed}: {wrong}\n" + "\n".join(self.told)) from None


class _Run:
    """One driver."""

    def __init__(self, folder: Path, master: str, queries: list[SparkQuery], what: str, conf: Mapping[str, str]) -> None:
        self.log, self.ready, self.what = folder / "log", folder / "ready", what
        self.begin = self.log.stat().st_size if self.log.exists() else 0
        self.process = start_driver(folder, master, queries, **conf)

    def finish(self, kill_after: float | None = None) -> int:
        """The exit code. Raises ``AssertionError`` with all threads of a driver that hangs."""
        until = time.monotonic() + _START_SECONDS
        if kill_after is not None:
            while not self.ready.exists() and self.process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(kill_after)
            self._kill()
        try:
            return self.process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up()
            raise AssertionError(f"{self.what} hangs:\n{self.log.read_text()[-_LOG:]}") from None

    def reason(self) -> str:
        """What the driver said last of an error."""
        said = self.log.read_bytes()[self.begin :].decode(errors="replace")
        errors = re.findall(r"^\S*(?:Error|Exception|Transient)\b.*", said, re.MULTILINE)
        return str(errors[-1]) if errors else said[-_LOG:]

    def _give_up(self) -> None:
        """Lets Python and the JVM write where all their threads are, and ends both."""
        for pid, ask in zip(_victims(self.log.parent / "spec.json"), (signal.SIGUSR1, signal.SIGQUIT), strict=False):
            os.kill(pid, ask)
        time.sleep(3)  # they write into the log
        self._kill()
        self.process.wait(_START_SECONDS)

    def _kill(self) -> None:
        """Kills Python and the JVM; Spark's workers lead groups of their own and live on for a moment."""
        for pid in {*_victims(self.log.parent / "spec.json"), self.process.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _victims(spec: Path) -> list[int]:
    plan = json.loads(spec.read_text())
    found = Path(plan["queries"][0]["faults"]) / "victims"
    return list(json.loads(found.read_text())) if found.exists() else []


def _points(target: SinkContext, carrier: str) -> tuple[Point, ...]:
    """The points at which a driver can be killed while it writes to ``target``."""
    sink = target.sink.of(target.options())
    commit = (Point.COMMIT_BEFORE, Point.COMMIT_AFTER) if sink.committer() is not None else ()
    recorded = (Point.RECORDED,) if sink.ledger() is not None else ()
    done = (Point.BATCH_DONE,) if carrier == "foreach_batch" else ()
    return (Point.TASK_ROW, Point.TASK_STAGED, *commit, *recorded, *done)

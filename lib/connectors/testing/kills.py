"""Kills of Spark drivers: runs many queries in one session, kills it again and again, and then compares every row.

A round starts a driver with another parallelism than the previous round, and lets it write to all targets at once. Then it
kills the driver, at a point that one of the queries reaches or at any moment. With real executors, every other kill hits
one of them instead, at a row of its task, and the driver goes on. Each round adds rows: more numbers, or new records in
the sources under test. A last, undisturbed run finishes all queries. A driver may also fail without a kill, for example
because its Python workers start too slowly on a busy machine. It is then restarted, as a scheduler does, and the report
says so.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.epoch_source import EpochLogSource, EpochSource
from ..systems import SYSTEMS
from .compare import same_records
from .contexts import SinkContext, SourceContext
from .driver import SparkQuery, start_driver
from .environments import CLUSTER, LOCAL
from .faults import ACKNOWLEDGEMENT_POINTS, EPOCH_POINTS, Action, FailureInjector, Point, kill_processes
from .spark_suites import class_name, spark_query

DRIVER, EXECUTOR, NOTHING = OUTCOMES = ("driver killed", "executor killed", "not reached")
_START_SECONDS = 600.0
_STARTS = 3
_ROWS = 40
_SCALES = (1, 2, 3, 5, 2)
_LOG = 60_000


@dataclass
class Kills:
    """Drivers that write to ``targets`` (by name: a context and a carrier) and are killed at moments chosen by ``seed``.

    A target whose name is in ``sources`` gets that system's rows unchanged, any other gets the rows of its context.
    ``conf`` has Spark settings that the drivers need; they run in ``environments`` by turns.
    """

    folder: Path
    targets: Mapping[str, tuple[SinkContext, str]]
    seed: int = 0
    sources: Mapping[str, SourceContext] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    environments: Sequence[str] = (LOCAL,)
    report: list[str] = field(default_factory=list)
    """The outcome of each round, one line each."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """The number of rounds by environment and outcome."""
    _written: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self, kills: int) -> None:
        """Kills, finishes undisturbed, and raises ``AssertionError``, which names every wrong record of every target.

        A second call continues the same queries.
        """
        chance = random.Random(f"{self.seed} {self._rounds}")
        queries = {name: self._query(name) for name in self.targets}
        for _ in range(kills):
            self._round(self._rounds, queries, (self._rounds + 1) * _ROWS, chance)
        rows = self._rounds * _ROWS
        for query in queries.values():
            FailureInjector(query.faults).disarm()
            FailureInjector(query.faults).clear_victims()
        for system in self.sources.values():
            system.settle()
        self._run(list(queries.values()), rows, 2, "the last run")
        wrong = [difference for name in self.targets if (difference := self._difference(name, rows))]
        if wrong:
            raise AssertionError("\n".join([*wrong, *self.report]))

    @property
    def _rounds(self) -> int:
        return self.outcomes.total()

    def _query(self, name: str) -> SparkQuery:
        target, carrier = self.targets[name]
        query = spark_query(target, self.folder / name, carrier)
        if system := self.sources.get(name):
            query.source, query.source_options = system.source.name, {**system.options(), **system.limit}
            query.select, query.classes = ["*"], [*query.classes, *map(class_name, system.classes)]
            if system.source.name not in SYSTEMS or issubclass(system.source, EpochLogSource):
                query.source_class = class_name(system.source)
        return query

    def _round(self, number: int, queries: Mapping[str, SparkQuery], rows: int, chance: random.Random) -> None:
        name, query = chance.choice(sorted(queries.items()))
        environment = self.environments[number % len(self.environments)]
        at_a_point = chance.random() < 0.7
        action = Action.KILL_EXECUTOR if environment == CLUSTER and chance.random() < 0.5 else Action.KILL
        injector = FailureInjector(query.faults)
        struck = injector.struck()
        for source, system in self.sources.items():
            self._written.setdefault(source, []).extend(system.write(_ROWS))
        if at_a_point or action is Action.KILL_EXECUTOR:
            point = injector.arm_one_of(chance.randrange(1 << 30), self._points(name, query, action), rows=2, action=action)
            moment, kill_after = f"where {point.value} in {name}", None
        else:
            moment, kill_after = "at any moment", chance.uniform(0.0, 6.0)
        scale = _SCALES[number % len(_SCALES)]
        code = self._run(list(queries.values()), rows, scale, f"round {number}", kill_after, environment)
        outcome = DRIVER if code else EXECUTOR if injector.struck() > struck else NOTHING
        injector.disarm()
        self.outcomes[f"{environment}: {outcome}"] += 1
        self.report.append(f"round {number}, {environment}: {outcome} {moment}")

    def _points(self, name: str, query: SparkQuery, action: Action) -> tuple[Point, ...]:
        """The points at which ``query`` can be killed while it writes to the target ``name``."""
        if action is Action.KILL_EXECUTOR:
            return (Point.TASK_ROW, Point.READ_ROW) if query.source_class else (Point.TASK_ROW,)
        target, carrier = self.targets[name]
        left_out = {Point.PUBLISHED} if carrier == "foreach_batch" else {Point.PUBLISHED, Point.BATCH_DONE}
        points = tuple(point for point in target.points() if point not in left_out)
        source = self.sources.get(name)
        if source is None or not issubclass(source.source, EpochLogSource):
            return points
        left_out = set() if issubclass(source.source, EpochSource) else set(ACKNOWLEDGEMENT_POINTS)
        return points + tuple(point for point in EPOCH_POINTS if point not in left_out)

    def _run(
        self,
        queries: Sequence[SparkQuery],
        rows: int,
        parallelism: int,
        title: str,
        kill_after: float | None = None,
        environment: str = LOCAL,
    ) -> int:
        """Runs a driver to its end, or kills it ``kill_after`` seconds after its queries started. Returns its exit code."""
        for query in queries:
            end = {"end": str(rows)} if query.source == "sequence" else {}
            query.source_options.update(end, numPartitions=str(parallelism))
        for _ in range(_STARTS):
            driver = _Driver(self.folder / "driver", list(queries), title, self.conf, environment)
            code = driver.finish(kill_after)
            if code in (0, -signal.SIGKILL):
                return code
            self.report.append(f"{title}: failed of itself: {driver.error()}")
        raise AssertionError("\n".join([*self.report[-_STARTS:], driver.log.read_text()[-_LOG:]]))

    def _difference(self, name: str, rows: int) -> str:
        """Every wrong record of the target ``name``; empty if there is none."""
        target, _ = self.targets[name]
        try:
            if name in self.sources:
                same_records(self._written[name], target.rows(), repeats=target.repeats())
            else:
                target.expect(rows)
        except AssertionError as wrong:
            return f"{name}, seed {self.seed}: {wrong}"
        return ""


class _Driver:
    """A driver process, from its start to its end."""

    def __init__(self, folder: Path, queries: list[SparkQuery], title: str, conf: Mapping[str, str], environment: str) -> None:
        self.log, self.ready, self.title = folder / "log", folder / "ready", title
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        self.injector = FailureInjector(queries[0].faults)
        self.process = start_driver(folder, environment, queries, **conf)

    def finish(self, kill_after: float | None) -> int:
        """The exit code. Raises ``AssertionError`` with all threads of a driver that hangs."""
        if kill_after is not None:
            until = time.monotonic() + _START_SECONDS
            while not self.ready.exists() and self.process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(kill_after)
            self._kill()
        try:
            return self.process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self._dump_threads()
            self._kill()
            self.process.wait(_START_SECONDS)
            raise AssertionError(f"{self.title} hangs:\n{self.log.read_text()[-_LOG:]}") from None

    def error(self) -> str:
        """The last error in the log of this driver."""
        log = self.log.read_bytes()[self.log_start :].decode(errors="replace")
        errors = re.findall(r"^\S*(?:Error|Exception|Transient)\b.*", log, re.MULTILINE)
        return str(errors[-1]) if errors else log[-_LOG:]

    def _dump_threads(self) -> None:
        """Makes Python and the JVM write the stacks of all their threads into the log."""
        for pid, dump in zip(self.injector.victims(), (signal.SIGUSR1, signal.SIGQUIT), strict=False):
            os.kill(pid, dump)
        time.sleep(3)  # they write into the log

    def _kill(self) -> None:
        """Kills Python and the JVM. Spark's workers have their own process groups and live on for a moment."""
        kill_processes({*self.injector.victims(), self.process.pid})

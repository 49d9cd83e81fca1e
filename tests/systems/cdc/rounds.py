"""Rounds of a workload while the query that follows it is killed again and again, and a comparison of every row in between.

Everything is drawn from the seed and the number of the round, and each round leaves a line of report. The same seed gives the
same statements, settings and kills; only the moments at which they meet are the machine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.delta_log import settings
from tests.systems.cdc.compare import Copy, delta_table, differences, report
from tests.systems.cdc.driver import DATABASE, Driver, DriverDied
from tests.systems.cdc.kills import KILLS, Kill, Outcome, Target, driver_at_a_moment, driver_at_a_point, gone
from tests.systems.cdc.workload import Workload

QUICK: Final = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
}
"""Settings of Spark that make a small batch quick."""
_STARTS: Final = 3
_LONGEST: Final = 3000.0
"""Seconds of a run, on a machine with two cores that does other work beside."""
_SHOWN: Final = ("copy", "commit", "rollback", "alter", "truncate", "late commit")


class Rounds:
    """A workload, and the query that copies its tables into Delta tables, which stand beside each other in ``folder``.

    ``rows`` is about how many rows a round changes; ``kills`` are those to choose from, with their weights. One sink merges
    all tables if ``is_whole``, else each has its own.
    """

    def __init__(
        self,
        workload: Workload,
        folder: Path,
        environment: str = "local[2,4]",
        rows: int = 300,
        kills: Mapping[Kill, float] = KILLS,
        is_whole: bool = False,
    ) -> None:
        self.workload, self.folder, self.seed = workload, folder, workload.seed
        self.environment, self.rows, self.kills = environment, rows, kills
        self.is_whole = is_whole
        self.report: list[str] = []
        self._drivers = self._failures = 0
        self._next: Driver | None = None
        self.driver = self._new_driver()
        self._is_running = self._ends_by_itself = False

    def run(self, rounds: int, quiet_every: int = 5) -> None:
        """Runs so many rounds, with a quiet point after every few and at the end.

        Raises ``AssertionError`` at the first quiet point that finds a difference, or when the query cannot be started.
        """
        for number in range(rounds):
            self._round(number)
            if number % quiet_every == quiet_every - 1 or number == rounds - 1:
                self.quiet_point(number)

    def quiet_point(self, number: int) -> None:
        """Lets the query come to the end of the log while nothing changes, and compares."""
        chance = random.Random(f"quiet {self.seed} {number}")
        began = time.monotonic()
        runs_on = self._is_running and not self._ends_by_itself and chance.random() < 0.3
        copies = self.workload.quiet()
        if runs_on:
            self._await_marks()
        else:
            self._drain(chance)
        rows = ", ".join(f"{len(copy.rows)} {copy.name}" for copy in copies)
        how = "while the query runs on" if runs_on else "after the query's end"
        self._note(f"seed {self.seed}, quiet point {how}: {rows}; {time.monotonic() - began:.0f} s")
        self._compare(copies)
        if {"restart_snapshot", "filtered"} <= self.workload.switches and chance.random() < 0.4:
            self._note("a run that begins with a snapshot of every other row, while nothing changes")
            self._drain(chance, self.workload.partial_snapshot(chance))
            self._compare(copies)

    def close(self) -> None:
        """Ends all drivers."""
        for driver in filter(None, (self.driver, self._next)):
            driver.close()

    def _compare(self, copies: Sequence[Copy]) -> None:
        evolves = "evolve" in self.workload.switches
        pairs = [(copy, self.folder / copy.name) for copy in copies]
        found = [difference for pair in pairs for difference in differences(*pair, is_exact=evolves)]
        assert not found, self._failure(report(found))

    def _round(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        began = time.monotonic()
        ends = chance.random() < 0.15
        kill = chance.choices(list(self.kills), list(self.kills.values()))[0]
        if ends and self._is_running:
            self._stop()
        if kill in (driver_at_a_moment, driver_at_a_point) and not ends and self._next is None:
            self._next = self._new_driver()
        if not self._is_running:
            self._start(chance, ends)
        counts: dict[str, int] = {}
        with self._work(chance, number, counts):
            outcome = self._natural_end() if ends else kill(self._target(), chance)
        self._after(outcome)
        shown = ", ".join(f"{counts[name]} {name}" for name in _SHOWN if counts.get(name))
        snapshots = "".join(f", {counts[name]} {name}" for name in counts if name.endswith("snapshot"))
        took = time.monotonic() - began
        changes = f"{counts['rows']} rows changed, {shown}{snapshots}"
        self._note(f"seed {self.seed}, round {number}: {outcome.text}; {changes}; {took:.0f} s")

    @contextlib.contextmanager
    def _work(self, chance: random.Random, number: int, counts: dict[str, int]) -> Iterator[None]:
        """Runs the workload of a round beside what is done in the context."""
        rows, seconds = int(self.rows * chance.choice((0.3, 1, 1.7))), chance.choice((0.0, 3.0, 6.0))
        errors: list[BaseException] = []

        def work() -> None:
            try:
                counts.update(self.workload.work(rows, number, seconds))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if errors:
            raise errors[0]

    def _natural_end(self) -> Outcome:
        error = self.driver.wait(_LONGEST)
        assert error is not None, self._failure("the query does not end")
        return Outcome("the natural end of a run", True, error)

    def _after(self, outcome: Outcome) -> None:
        """Looks at what a kill has left."""
        if outcome.text.startswith(("the natural end", "stopped")) and outcome.error:
            self._note_failure(outcome.error)
        if outcome.ends:
            self._is_running = False
            assert gone(self.workload.name), self._failure(f"a JVM of the connector outlives: {outcome.text}")
        elif (error := self._failed()) is not None:
            self._is_running = False
            self._note_failure(error)

    def _failed(self) -> str | None:
        """The error of a query that should run, and does not."""
        try:
            error = self.driver.wait(0.2)
        except DriverDied:
            return f"the driver has died of itself: {self.driver.tail()[-600:]}"
        return error if error or (error == "" and not self._ends_by_itself) else None

    def _start(self, chance: random.Random, ends: bool, more: Mapping[str, str] | None = None) -> None:
        """Starts the query, in another driver where this one is dead."""
        if not self.driver.is_alive():
            self.driver, self._next = self._next or self._new_driver(), None
        self.driver.wait_until_ready()
        self.driver.start(self._query(chance, ends, more or {}))
        self._is_running, self._ends_by_itself = True, ends

    def _stop(self) -> None:
        if error := self.driver.stop():
            self._note_failure(error)
        self._is_running = False

    def _drain(self, chance: random.Random, more: Mapping[str, str] | None = None) -> None:
        """Runs the query until it has written the marks; a run that is slow to start may end before."""
        if self._is_running:
            self._stop()
        for _ in range(_STARTS):
            self._start(chance, ends=True, more=more)
            error = self.driver.wait(_LONGEST)
            self._is_running = False
            assert error is not None, self._failure("the query does not end")
            if error:
                self._note_failure(error)
            elif not (missing := self._unmarked()):
                self._failures = 0
                return
            else:
                self._note(f"the run has ended before it came to the end of the log of {', '.join(missing)}")
        raise AssertionError(self._failure(f"{_STARTS} runs do not come to the end of the log: {error[:4000]}"))

    def _await_marks(self) -> None:
        until = time.monotonic() + _LONGEST
        while missing := self._unmarked():
            if (error := self._failed()) is not None:
                self._is_running = False
                self._note_failure(error)
                self._drain(random.Random(f"again {self.seed}"))
                return
            assert time.monotonic() < until, self._failure(f"the end of the log of {', '.join(missing)} does not come")
            time.sleep(0.5)

    def _unmarked(self) -> list[str]:
        """The tables in Delta that are behind the last quiet point."""
        missing = []
        for table in self.workload.tables.values():
            rows = delta_table(self.folder / table.name)
            column, key = table.columns[0].name, table.keys[0]
            marks = () if rows is None or column not in rows.column_names else zip(rows[key], rows[column], strict=True)
            if not any(k.as_py() == 0 and mark.as_py() == self.workload.mark() for k, mark in marks):
                missing.append(table.name)
        return missing

    def _query(self, chance: random.Random, ends: bool, more: Mapping[str, str]) -> dict[str, Any]:
        """A query with small epochs, as ``chance`` says, for the driver."""
        source = {
            "config": json.dumps(self.workload.config(chance, **more)),
            "pluginPackages": self.workload.package,
            "stateLocation": str(self.folder / "state"),
            "drainTimeout": "15s",
            "pollInterval": "1s",
            "maxRowsPerTrigger": str(chance.choice((1000, 3000) if ends else (200, 1000, 3000))),
        }
        return {
            "name": "cdc",
            "source": source,
            "sinks": self._sinks(),
            "checkpoint": str(self.folder / "checkpoint"),
            "faults": str(self.folder / "faults"),
            "trigger": {"availableNow": True} if ends else {"processingTime": "100 milliseconds"},
            "records": str(self.folder / "records") if os.environ.get("RECORDS") else "",
        }

    def _sinks(self) -> dict[str, dict[str, str]]:
        return {DATABASE: self.workload.database_sink(self.folder)} if self.is_whole else self.workload.sinks(self.folder)

    def _target(self) -> Target:
        names = list(self._sinks())
        return Target(self.driver, self.workload.name, self.folder, names, self.environment)

    def _new_driver(self) -> Driver:
        self._drivers += 1
        return Driver(self.folder / f"driver-{self._drivers}", self.environment, {**settings(), **QUICK})

    def _note_failure(self, error: str) -> None:
        """A failure that nobody has injected; the next start names the value of a new column where the log tells none."""
        if "Give the value: fill=" in error:
            self._note("stopped for the value of a new column")
            return
        self._note("failed of itself: " + error.partition("\n\n")[0])
        self._failures += 1
        assert self._failures < _STARTS, self._failure(f"the query fails again and again: {error}")

    def _note(self, text: str) -> None:
        self.report.append(text)
        with (self.folder / "report.txt").open("a") as file:
            file.write(f"{text}\n")

    def _failure(self, text: str) -> str:
        title = f"seed {self.seed}, switches {sorted(self.workload.switches)}, folder {self.folder}"
        return "\n".join([text, title, *self.report])

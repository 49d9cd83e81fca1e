"""Seeded schedules: writers that commit late, out of order, in subtransactions, or never, and a reader that dies."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from connectors.core.planning import Offset
from connectors.systems.buffered import BufferedSink
from connectors.testing import FailureInjector
from connectors.testing.engine import Engine, in_a_child
from connectors.testing.faults import Point, faulty_sink
from connectors.testing.source_suite import Rows, SourceQuery

from .incremental_contexts import StreamContext

SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("changed", pa.timestamp("us", "UTC"))])


@dataclass
class Writer:
    """A connection with at most one transaction."""

    connection: Any
    name: str
    depth: int = 0
    busy: bool = False
    prepared: bool = False


@dataclass
class Schedule:
    """Random steps of ``writers`` and a reader over the table of ``context``; ``updates`` says whether rows are changed."""

    context: StreamContext
    seed: int
    updates: bool
    writers: int = 3
    log: list[Offset] = field(default_factory=list)
    batches: list[Rows] = field(default_factory=list)
    report: list[str] = field(default_factory=list)

    def run(self, steps: int) -> None:
        """Runs, lets every writer end, reads the rest, and compares. Raises ``AssertionError`` with the schedule."""
        self.chance = random.Random(self.seed)
        self.table = self.context.target.table
        with contextlib.ExitStack() as stack:
            connections = [self.context.target.connect() for _ in range(self.writers)]
            for connection in connections:
                stack.callback(connection.close)
            self.people = [Writer(connection, f"w{n}") for n, connection in enumerate(connections)]
            self.reading = self.restarted()
            stack.callback(lambda: self.reading.planner.close())
            for _ in range(steps):
                self.chance.choices((self.write, self.read, self.restart), (6, 3, 1))[0]()
            for writer in self.people:
                self.end(writer)
            self.drain()
        self.compare()

    def drain(self) -> None:
        """Reads what is left."""
        self.restart()
        while self.read():
            pass

    # ---- the reader

    def restarted(self) -> SourceQuery:
        return SourceQuery(self.context, numPartitions=str(self.chance.randint(1, 3)))

    def read(self) -> bool:
        """One batch; now and then it is read, forgotten, and replayed by a new reader."""
        limit = self.chance.choice((None, 1, 3))
        self.reading.source.values._values["maxrowspertrigger"] = limit
        rows = self.reading.next(self.log)
        self.report.append(f"read {None if rows is None else [(row['id'], row['version']) for row in rows]} {self.log[-1:]}")
        if rows is None:
            return limit is not None and self.more()
        number = len(self.log) - 1
        if self.chance.random() < 0.2:
            if self.chance.random() < 0.5:
                self.write()
            self.reading.planner.close()
            self.reading = self.restarted()
            rows = self.reading.batch(self.log, number)
            self.report.append(f"replayed {[(row['id'], row['version']) for row in rows]}")
        self.batches.append(rows)
        return True

    def more(self) -> bool:
        """Asks without a limit whether there is really nothing."""
        self.reading.source.values._values["maxrowspertrigger"] = None
        rows = self.reading.next(self.log)
        if rows is not None:
            self.batches.append(rows)
        return rows is not None

    def restart(self) -> None:
        self.reading.planner.close()
        self.reading = self.restarted()
        self.report.append("restart")

    # ---- the writers

    def write(self) -> None:
        writer = self.chance.choice(self.people)
        if writer.prepared:
            return
        if not writer.busy:
            self.run_sql(writer, "BEGIN")
            writer.busy, writer.depth = True, 0
            return
        work = [self.insert, self.insert, self.insert, self.save, self.release, self.end]
        if self.updates:
            work.append(self.update)
        self.chance.choice(work)(writer)

    def insert(self, writer: Writer) -> None:
        clock = self.chance.choice(("now()", "now()", "clock_timestamp()"))
        rows = f"SELECT 0, {clock} FROM generate_series(1, {self.chance.randint(1, 3)})"
        self.run_sql(writer, f"INSERT INTO {self.table} (version, changed) {rows}")

    def update(self, writer: Writer) -> None:
        """Changes rows that nobody else is changing."""
        free = f"SELECT id FROM {self.table} ORDER BY random() LIMIT 2 FOR UPDATE SKIP LOCKED"
        self.run_sql(writer, f"UPDATE {self.table} SET version = version + 1, changed = clock_timestamp() WHERE id IN ({free})")

    def save(self, writer: Writer) -> None:
        writer.depth += 1
        self.run_sql(writer, f"SAVEPOINT s{writer.depth}")

    def release(self, writer: Writer) -> None:
        if writer.depth:
            self.run_sql(writer, f"{self.chance.choice(('RELEASE', 'ROLLBACK TO'))} SAVEPOINT s{writer.depth}")
            writer.depth -= 1

    def end(self, writer: Writer) -> None:
        if not writer.busy:
            return
        how = self.chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "PREPARE"))
        if how == "PREPARE":
            name = f"sim-{self.table}-{self.chance.randrange(1 << 40)}"
            self.run_sql(writer, f"PREPARE TRANSACTION '{name}'")
            writer.prepared = True
            if self.chance.random() < 0.7:
                self.read()
            self.run_sql(writer, f"{self.chance.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{name}'")
            writer.prepared = False
        else:
            self.run_sql(writer, how)
        writer.busy, writer.depth = False, 0

    def run_sql(self, writer: Writer, sql: str) -> None:
        self.report.append(f"{writer.name}: {sql}")
        writer.connection.execute(sql)

    # ---- the outcome

    def compare(self) -> None:
        versions = dict(self.context.target.query(f"SELECT id, version FROM {self.table}"))
        by_version = "timestamp" in self.context.mode["incremental"]
        rows = [row for batch in self.batches for row in batch]
        read = Counter((row["id"], row["version"] if by_version else versions.get(row["id"])) for row in rows)
        wrong = {
            "doubled": [key for key, times in read.items() if times > 1],
            "lost": sorted(set(versions.items()) - set(read)),
            "never committed": [key for key in read if key[0] not in versions],
        }
        problems: Mapping[str, Any] = {name: keys for name, keys in wrong.items() if keys}
        assert not problems, f"seed {self.seed}: {problems}\n" + "\n".join(self.report)


class OneWriter(Schedule):
    """SQLite: a transaction at a time, read around; its rows have the time at which it began, or of the change."""

    began: str = ""

    def write(self) -> None:
        (writer,) = self.people
        if not writer.busy:
            self.run_sql(writer, "BEGIN IMMEDIATE")
            writer.busy, self.began = True, now()
            return
        work = [self.insert, self.insert, self.end, *([self.update] if self.updates else [])]
        self.chance.choice(work)(writer)

    def insert(self, writer: Writer) -> None:
        rows = ", ".join([f"(0, '{self.chance.choice((self.began, now()))}')"] * self.chance.randint(1, 3))
        self.run_sql(writer, f"INSERT INTO {self.table} (version, changed) VALUES {rows}")

    def update(self, writer: Writer) -> None:
        some = f"SELECT id FROM {self.table} ORDER BY random() LIMIT 2"
        self.run_sql(writer, f"UPDATE {self.table} SET version = version + 1, changed = '{now()}' WHERE id IN ({some})")

    def end(self, writer: Writer) -> None:
        if writer.busy:
            self.run_sql(writer, self.chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))
            writer.busy = False


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")


POINTS = (Point.TASK_ROW, Point.TASK_STAGED, Point.COMMIT_BEFORE, Point.COMMIT_AFTER, Point.BATCH_DONE)


class Killed(Schedule):
    """Here a whole query runs instead of a reader, in a process that is killed; what is in the target counts."""

    kills: int = 0

    def read(self) -> bool:
        """Runs the query until there is nothing new, or until it is killed. True if it was."""
        injector = FailureInjector(self.folder / "faults")
        if self.chance.random() < 0.9:
            injector.arm_one_of(self.chance.randrange(1 << 30), POINTS, rows=2)
        code = in_a_child(self.engine(injector).run)
        injector.disarm()
        assert code in (0, -9), f"the query ended with {code}"
        self.kills += code == -9
        self.report.append(f"the query was {'killed' if code else 'done'}")
        return code == -9

    def restart(self) -> None:
        """Each run is one."""

    def engine(self, injector: FailureInjector) -> Engine:
        options = {**self.context.options(), "maxRowsPerTrigger": str(self.chance.randint(2, 6))}
        source = self.context.source.of({**options, "numPartitions": str(self.chance.randint(1, 3))}, streaming=True)
        # a row may change between a batch and its replay, which then holds fewer rows
        sink = faulty_sink(BufferedSink, injector).of({"path": str(self.folder / "copy"), "onReplayMismatch": "skip"})
        checkpoint = self.folder / "checkpoint"
        return Engine(checkpoint, source, sink, SCHEMA, lambda batch: batch.select(["id", "version"]), injector=injector)

    @property
    def folder(self) -> Any:
        return self.context.folder

    def compare(self) -> None:
        files = [file for file in (self.folder / "copy").iterdir() if file.name[0] not in "._"]
        self.batches = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        super().compare()

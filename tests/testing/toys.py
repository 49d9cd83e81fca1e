"""Small correct connectors, and how the suites see them. The tests break them, one method at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from connectors.core import (
    REQUIRED,
    Batch,
    Choice,
    Committable,
    Committer,
    DataLoss,
    Duration,
    Flag,
    GlobalCommitter,
    Options,
    Position,
    ReadLimit,
    Sink,
    SinkWriter,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
    Text,
)
from connectors.core.folder import SinkFolder
from connectors.core.ledger import Entry, FileLedger
from connectors.core.planning import even_ranges, fair_shares
from connectors.formats.text import json_lines
from connectors.storage import storage_of
from connectors.testing import FolderContext, SinkContext, SourceContext


@dataclass(frozen=True)
class Numbered(Split):
    """The lines ``first..last`` of the log, both included."""

    first: int
    last: int


class LogSource(Source):
    """The lines of a file that only grows."""

    name, schema = "toy_log", "line string"
    options = Options(
        path=Text(REQUIRED), start=Choice("earliest", among=("earliest", "latest")), failOnDataLoss=Flag(True)
    )
    bounded = True

    def enumerator(self) -> LogEnumerator:
        return LogEnumerator(self)

    def reader(self, schema: pa.Schema) -> LogReader:
        return LogReader(self, schema)

    def lines(self) -> list[str]:
        return Path(self.values["path"]).read_text().splitlines()


class LogEnumerator(SplitEnumerator[Numbered]):
    def __init__(self, source: LogSource) -> None:
        self.source = source

    def start(self) -> Position:
        return {"lines": self.head() if self.source.values["start"] == "latest" else 0}

    def head(self) -> int:
        return len(self.source.lines())

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        if head < at["lines"]:
            if self.source.values["failOnDataLoss"]:
                raise DataLoss(f"the log has {head} lines, {at['lines']} were read", way_out="set failOnDataLoss=false")
            at = {"lines": 0}
        return {"lines": head if limit.rows is None else min(head, at["lines"] + limit.rows)}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Numbered]:
        for first, last in even_ranges(start["lines"], end["lines"] - 1, parallelism):
            yield Numbered(first, last)


class LogReader(SplitReader[Numbered]):
    def __init__(self, source: LogSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema

    def read(self, split: Numbered) -> Iterator[pa.RecordBatch]:
        return self.resume(split, 0)

    def resume(self, split: Numbered, records: int) -> Iterator[pa.RecordBatch]:
        lines = self.source.lines()[split.first + records : split.last + 1]
        for first in range(0, len(lines), 4):
            yield pa.RecordBatch.from_pydict({"line": lines[first : first + 4]}, schema=self.schema)


class LogContext(SourceContext):
    source = LogSource
    schema = pa.schema([("line", pa.string())])
    latest: ClassVar[Mapping[str, str] | None] = {"start": "latest"}

    def options(self) -> dict[str, str]:
        return {"path": str(self._log())}

    def write(self, count: int) -> list[dict[str, Any]]:
        count_before = len(self._log().read_text().splitlines())
        lines = [f"line {number}" for number in range(count_before, count_before + count)]
        with self._log().open("a") as log:
            log.writelines(line + "\n" for line in lines)
        return [{"line": line} for line in lines]

    def lose(self) -> bool:
        self._log().write_text("")
        return True

    def _log(self) -> Path:
        log = self.folder / "log"
        log.touch()
        return log


@dataclass(frozen=True)
class Counted(Split):
    """The numbers ``first..last`` of one side, both included."""

    side: str
    first: int
    last: int


class PairSource(Source):
    """Two partitions, left and right, of numbers; files say how many there are."""

    name, schema = "toy_pair", "side string, number long"
    options = Options(path=Text(REQUIRED))

    def enumerator(self) -> PairEnumerator:
        return PairEnumerator(Path(self.values["path"]))

    def reader(self, schema: pa.Schema) -> PairReader:
        return PairReader()


class PairEnumerator(SplitEnumerator[Counted]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self) -> Position:
        return {"left": 0, "right": 0}

    def head(self) -> dict[str, int]:
        return {side: len((self.folder / side).read_bytes()) for side in ("left", "right")}

    def advance(self, at: Position, head: Mapping[str, int], limit: ReadLimit) -> Position:
        shares = self.share(limit.rows, {side: head[side] - at[side] for side in head})
        return {side: at[side] + shares[side] for side in head}

    def share(self, limit: int | None, backlog: Mapping[str, int]) -> dict[str, int]:
        return fair_shares(limit, backlog)

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Counted]:
        for side in ("left", "right"):
            for first, last in even_ranges(start[side], end[side] - 1, parallelism):
                yield Counted(side, first, last)


class PairReader(SplitReader[Counted]):
    def read(self, split: Counted) -> Iterator[pa.RecordBatch]:
        numbers = list(range(split.first, split.last + 1))
        yield pa.RecordBatch.from_pydict({"side": [split.side] * len(numbers), "number": numbers})


class PairContext(SourceContext):
    source = PairSource
    schema = pa.schema([("side", pa.string()), ("number", pa.int64())])

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.counts = {"left": 0, "right": 0}

    def options(self) -> dict[str, str]:
        for side in self.counts:
            (self.folder / side).touch()
        return {"path": str(self.folder)}

    def write(self, count: int) -> list[dict[str, Any]]:
        rows = []
        for number in range(count):
            side = "left" if number % 2 else "right"
            rows.append({"side": side, "number": self.counts[side]})
            self.counts[side] += 1
        for side, size in self.counts.items():
            (self.folder / side).write_bytes(b"." * size)
        return rows

    def partition(self, row: Mapping[str, Any]) -> str:
        return str(row["side"])


class LinesSink(Sink):
    """JSON lines in a folder, a file for each task, with a ledger of files."""

    name = "toy_lines"
    options = Options(path=Text(REQUIRED), stagingRetention=Duration(7 * 86400.0))

    def target(self) -> str:
        return str(self.values["path"])

    def folder(self) -> SinkFolder:
        return SinkFolder(storage_of(self.values["path"]), self.sink_id())

    def ledger(self) -> FileLedger:
        return self.folder().ledger()

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        return LinesWriter(self.folder(), batch.attempt())

    def committer(self) -> Committer:
        return LinesCommitter(self.folder(), self.values["stagingRetention"])


class LinesWriter(SinkWriter):
    def __init__(self, folder: SinkFolder, attempt: str) -> None:
        self.folder = folder
        self.attempt = attempt
        self.rows = 0
        self.name = f"{folder.begin(attempt)}/rows"
        self.file = self.opened()

    def opened(self) -> BinaryIO:
        return self.folder.create(self.name)

    def write(self, batch: pa.RecordBatch) -> None:
        self.file.writelines(json_lines(batch))
        self.rows += batch.num_rows

    def prepare(self) -> Committable:
        self.file.close()
        self.folder.sync([self.name])
        return Committable(self.rows, {"attempt": self.attempt, "size": self.folder.size(self.name)})

    def abort(self) -> None:
        self.folder.remove(self.attempt)

    def close(self) -> None:
        self.file.close()


class LinesCommitter(Committer):
    def __init__(self, folder: SinkFolder, retention: float = 7 * 86400.0) -> None:
        self.folder = folder
        self.retention = retention

    def check(self, committables: Sequence[Committable], rows: int) -> None:
        files = [(f"{self.folder.stage(staged.data['attempt'])}/rows", staged.data["size"]) for staged in committables]
        self.folder.check_staged(files)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        self.folder.drop_attempts(batch, failed=failed)

    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        names = [f"{batch.file_id()}-{number}.json" for number in range(len(committables))]
        for name, committable in zip(names, committables, strict=True):
            self.folder.publish(f"{self.folder.stage(committable.data['attempt'])}/rows", name)
        self.folder.sync_names(names)
        for committable in committables:
            self.discard(committable)

    def discard(self, committable: Committable) -> None:
        self.folder.remove(committable.data["attempt"])

    def sweep(self, live: frozenset[str]) -> None:
        self.folder.sweep(self.retention, live)


class LinesContext(FolderContext):
    sink = LinesSink

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.files() for line in file.read_text().splitlines()]


TABLES = """
CREATE TABLE IF NOT EXISTS staged (attempt TEXT, id INTEGER, name TEXT);
CREATE TABLE IF NOT EXISTS rows (id INTEGER, name TEXT);
CREATE TABLE IF NOT EXISTS ledger (sink TEXT, query TEXT, batch INTEGER, rows INTEGER, PRIMARY KEY (sink, query, batch));
"""


def connect(path: str) -> sqlite3.Connection:
    """A connection that waits for others. A killed process loses nothing without fsync; only a power cut would."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.executescript("PRAGMA synchronous = OFF;")
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'").fetchone():
        connection.executescript(TABLES)
    return connection


class SqliteSink(Sink):
    """A table of SQLite: rows and ledger in one transaction."""

    name = "toy_sqlite"
    options = Options(path=Text(REQUIRED))

    def target(self) -> str:
        return str(self.values["path"])

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        place = f"{batch.prefix()}/{subtask}/"
        self.forget(place)
        return SqliteWriter(self.target(), place + batch.attempt())

    def forget(self, place: str) -> None:
        """Removes what earlier attempts have staged at ``place``: a batch that fails for ever does not fill the table."""
        with closing(connect(self.target())) as database:
            database.execute("DELETE FROM staged WHERE attempt LIKE ?", (f"{place}%",))

    def committer(self) -> GlobalCommitter:
        return SqliteCommitter(self.target(), self.sink_id())


class SqliteWriter(SinkWriter):
    def __init__(self, path: str, attempt: str) -> None:
        self.path = path
        self.attempt = attempt
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        rows = [(self.attempt, row["id"], row["name"]) for row in batch.to_pylist()]
        with closing(connect(self.path)) as database:
            database.executemany("INSERT INTO staged VALUES (?, ?, ?)", rows)
        self.rows += len(rows)

    def prepare(self) -> Committable:
        return Committable(self.rows, {"attempt": self.attempt})

    def abort(self) -> None:
        SqliteCommitter(self.path, "").discard(Committable(0, {"attempt": self.attempt}))


class SqliteCommitter(GlobalCommitter):
    records_claims = True

    def __init__(self, path: str, sink_id: str) -> None:
        self.path = path
        self.sink_id = sink_id

    def last(self, query: str) -> Entry | None:
        with closing(connect(self.path)) as database:
            row = database.execute(
                "SELECT batch, rows FROM ledger WHERE sink = ? AND query = ? ORDER BY batch DESC LIMIT 1",
                (self.sink_id, query),
            ).fetchone()
        return Entry(query, *row) if row else None

    def queries(self) -> frozenset[str]:
        with closing(connect(self.path)) as database:
            rows = database.execute("SELECT DISTINCT query FROM ledger WHERE sink = ?", (self.sink_id,)).fetchall()
        return frozenset(query for (query,) in rows if "-" not in query[:5])

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        with closing(connect(self.path)) as database:
            database.execute("BEGIN IMMEDIATE")
            self.record(database, entry)
            if claim := entry.ownership():
                self.record(database, claim)
            for committable in committables:
                attempt = (committable.data["attempt"],)
                self.check(database, committable)
                database.execute("INSERT INTO rows SELECT id, name FROM staged WHERE attempt = ?", attempt)
                database.execute("DELETE FROM staged WHERE attempt = ?", attempt)
            database.execute("COMMIT")

    def check(self, database: sqlite3.Connection, committable: Committable) -> None:
        """Raises where the stage is gone: another run has begun the batch anew, and this one must not commit it."""
        attempt = (committable.data["attempt"],)
        (rows,) = database.execute("SELECT count(*) FROM staged WHERE attempt = ?", attempt).fetchone()
        if rows != committable.rows:
            raise ValueError(f"{rows} of {committable.rows} rows are staged: another run has taken over")

    def record(self, database: sqlite3.Connection, entry: Entry) -> None:
        values = (self.sink_id, entry.query, entry.batch, entry.rows)
        database.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", values)

    def discard(self, committable: Committable) -> None:
        with closing(connect(self.path)) as database:
            database.execute("DELETE FROM staged WHERE attempt = ?", (committable.data["attempt"],))


class SqliteContext(SinkContext):
    sink = SqliteSink
    sweeping: ClassVar[Mapping[str, Any]] = {}

    def leftovers(self) -> list[str]:
        with closing(connect(self.options()["path"])) as database:
            return [attempt for (attempt,) in database.execute("SELECT DISTINCT attempt FROM staged")]

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder / "target.db")}

    def rows(self) -> list[dict[str, Any]]:
        with closing(connect(self.options()["path"])) as database:
            return [{"id": key, "name": name} for key, name in database.execute("SELECT id, name FROM rows")]

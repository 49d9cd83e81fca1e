"""The toy connectors, each broken by overriding one method. Each fault is one that authors really make."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from connectors.core import Batch, Committable, Position, ReadLimit, SinkWriter, Slice, SplitReader
from connectors.core.ledger import OWNER, Entry, FileLedger

from .toys import (
    LinesCommitter,
    LinesContext,
    LinesSink,
    LinesWriter,
    LogContext,
    LogEnumerator,
    LogReader,
    LogSource,
    Numbered,
    PairContext,
    PairEnumerator,
    PairSource,
    SqliteCommitter,
    SqliteContext,
    SqliteSink,
    SqliteWriter,
    connect,
)


class SkipsARowOnResume(LogContext):
    class Reader(LogReader):
        def resume(self, split: Numbered, records: int) -> Iterator[pa.RecordBatch]:
            return super().resume(split, records + 1 if records else 0)

    class source(LogSource):  # noqa: N801
        def reader(self, schema: pa.Schema) -> LogReader:
            return SkipsARowOnResume.Reader(self, schema)


class ReadsBackwards(LogContext):
    """Hands on the records of each split from the last to the first, the same way at each call."""

    class Reader(LogReader):
        def read(self, split: Numbered) -> Iterator[pa.RecordBatch]:
            rows = pa.Table.from_batches(super().resume(split, 0), self.schema)
            yield from rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64())).to_batches()

        resume = SplitReader.resume

    class source(LogSource):  # noqa: N801
        def reader(self, schema: pa.Schema) -> LogReader:
            return ReadsBackwards.Reader(self, schema)


class CutsTheNewestFirst(LogContext):
    """Lists the splits of a range from the newest to the oldest, several for each task."""

    class Enumerator(LogEnumerator):
        def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Numbered]:
            yield from reversed(list(super().splits(start, end, 3 * parallelism)))

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return CutsTheNewestFirst.Enumerator(self)


class BeginsWithTheNewestBatch(LogContext):
    """Each batch reads the newest of what is left, in order."""

    class Enumerator(LogEnumerator):
        def start(self) -> Position:
            return {"lines": 0, "left": 0, "before": 0}

        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            left, before = (at["left"], at["before"]) if at["left"] else (head - at["lines"], head)
            if not left:
                return at
            rows = min(left, limit.rows or left)
            return {"lines": max(head, at["lines"]), "left": left - rows, "before": before - rows, "rows": rows}

        def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Numbered]:
            yield Numbered(end["before"], end["before"] + end["rows"] - 1)

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return BeginsWithTheNewestBatch.Enumerator(self)


class NeedsARecordToBegin(LogContext):
    """Takes a log without lines for an error."""

    class Enumerator(LogEnumerator):
        def start(self) -> Position:
            return {"lines": self.source.lines().index("line 0")}

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return NeedsARecordToBegin.Enumerator(self)


class TakesAnEmptySystemForItsEnd(LogContext):
    """A query that begins on a log without lines is at its end for ever."""

    class Enumerator(LogEnumerator):
        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            ended = at.get("ended") or not head
            return {"lines": 0, "ended": True} if ended else super().advance(at, head, limit)

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return TakesAnEmptySystemForItsEnd.Enumerator(self)


class ItsStartMoves(LogContext):
    """Reads nothing before the start, but finds the start out again each time."""

    class Enumerator(LogEnumerator):
        def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Numbered]:
            return super().splits(max(start, self.start(), key=lambda at: int(at["lines"])), end, parallelism)

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return ItsStartMoves.Enumerator(self)


class CutsByTodaysParallelism(LogContext):
    class Enumerator(LogEnumerator):
        def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Numbered]:
            return super().splits(start, end, self.source.parallelism())

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return CutsByTodaysParallelism.Enumerator(self)


class ReadsWhatCameLater(LogContext):
    """A replay reads to the end of the log, not to the end of its batch."""

    class Enumerator(LogEnumerator):
        def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Numbered]:
            return super().splits(start, {"lines": self.head()}, parallelism)

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return ReadsWhatCameLater.Enumerator(self)


class ServesTheLargestOnly(PairContext):
    """Spends the whole limit on the first partition that has something."""

    class Enumerator(PairEnumerator):
        def share(self, limit: int | None, backlog: Mapping[str, int]) -> dict[str, int]:
            left = sum(backlog.values()) if limit is None else limit
            taken = min(backlog["left"], left)
            return {"left": taken, "right": min(backlog["right"], left - taken)}

    class source(PairSource):  # noqa: N801
        def enumerator(self) -> PairEnumerator:
            return ServesTheLargestOnly.Enumerator(Path(self.values["path"]))


class OverlooksALoss(LogContext):
    """Takes a log that has become shorter for one without anything new."""

    class Enumerator(LogEnumerator):
        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            return at if head < at["lines"] else super().advance(at, head, limit)

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return OverlooksALoss.Enumerator(self)


class CommitsTwiceOnReplay(SqliteContext):
    """Believes that the newest batch is the one before, so it writes a replayed batch again."""

    class Committer(SqliteCommitter):
        def last(self, query: str) -> Entry | None:
            last = super().last(query)
            return dataclasses.replace(last, batch=last.batch - 1) if last else None

        def record(self, database: sqlite3.Connection, entry: Entry) -> None:
            values = (self.sink_id, entry.query, entry.batch, entry.rows)
            database.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?)", values)

    class sink(SqliteSink):  # noqa: N801
        def committer(self) -> SqliteCommitter:
            return CommitsTwiceOnReplay.Committer(self.target(), self.sink_id())


class CommitsInTwoSteps(SqliteContext):
    """The rows are committed first and the ledger after them: a crash between the two doubles the batch."""

    class Committer(SqliteCommitter):
        def record(self, database: sqlite3.Connection, entry: Entry) -> None:
            pass

        def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
            super().commit(entry, committables)
            with closing(connect(self.path)) as database:
                super().record(database, entry)

    class sink(SqliteSink):  # noqa: N801
        def forget(self, place: str) -> None:
            pass

        def committer(self) -> SqliteCommitter:
            return CommitsInTwoSteps.Committer(self.target(), self.sink_id())


class ChecksAndThenCommits(SqliteContext):
    """Asks the ledger before its transaction and not in it: two runs at the same time both find nothing."""

    class Committer(SqliteCommitter):
        def check(self, database: sqlite3.Connection, committable: Committable) -> None:
            pass

        def record(self, database: sqlite3.Connection, entry: Entry) -> None:
            values = (self.sink_id, entry.query, entry.batch, entry.rows)
            database.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?)", values)

        def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
            last = self.last(entry.query)
            time.sleep(0.2)
            if last is None or last.batch < entry.batch:
                super().commit(entry, committables)

    class sink(SqliteSink):  # noqa: N801
        def forget(self, place: str) -> None:
            pass

        def committer(self) -> SqliteCommitter:
            return ChecksAndThenCommits.Committer(self.target(), self.sink_id())


class KeepsTheStagesOfFailedStarts(SqliteContext):
    """Each start of a batch leaves what it has staged."""

    class sink(SqliteSink):  # noqa: N801
        def forget(self, place: str) -> None:
            pass


class SweepsTheStagesOfOthers(LinesContext):
    """Takes every stage for a leftover that is not of its own batch, also those of a query that is running."""

    class Committer(LinesCommitter):
        def sweep(self, live: frozenset[str]) -> None:
            for stage in self.folder.glob(".connectors/*/stage/*"):
                if not stage.name.startswith(tuple(live)):
                    shutil.rmtree(str(stage), ignore_errors=True)

    class sink(LinesSink):  # noqa: N801
        def committer(self) -> LinesCommitter:
            return SweepsTheStagesOfOthers.Committer(self.folder())


class PublishesTwice(LinesContext):
    """Copies under a new name at each call, so that a publication that is called again doubles the rows."""

    class Committer(LinesCommitter):
        def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
            for committable in committables:
                rows = self.folder.storage.read(f"{self.folder.stage(committable.data['attempt'])}/rows")
                self.folder.storage.put_if_absent(f"{batch.attempt()}.json", rows)

    class sink(LinesSink):  # noqa: N801
        def committer(self) -> LinesCommitter:
            return PublishesTwice.Committer(self.folder())


class UndoesWhatIsPublished(SqliteContext):
    """Discards by batch: the newest rows go, whoever wrote them."""

    class Committer(SqliteCommitter):
        def discard(self, committable: Committable) -> None:
            super().discard(committable)
            with closing(connect(self.path)) as database:
                database.execute("DELETE FROM rows WHERE id > (SELECT max(id) FROM rows) - ?", (committable.rows,))

    class sink(SqliteSink):  # noqa: N801
        def committer(self) -> SqliteCommitter:
            return UndoesWhatIsPublished.Committer(self.target(), self.sink_id())


class UndoesABatchThatIsDecided(LinesContext):
    """Its ledger does not know a batch before it is published, so the abort of a failed commit removes the rows."""

    class Ledger(FileLedger):
        def last(self, query: str) -> Entry | None:
            recorded, marks = self._batches(query)
            return self._entry(query, max(recorded & marks)) if recorded & marks else None

    class sink(LinesSink):  # noqa: N801
        def ledger(self) -> FileLedger:
            return UndoesABatchThatIsDecided.Ledger(self.folder().storage, self.folder().hidden("ledger"))


class LosesADecidedBatch(LinesContext):
    """Forgets what was decided and not published."""

    class Ledger(FileLedger):
        def unpublished(self) -> list[Entry]:
            return []

    class sink(LinesSink):  # noqa: N801
        def ledger(self) -> FileLedger:
            return LosesADecidedBatch.Ledger(self.folder().storage, self.folder().hidden("ledger"))


class DependsOnTheLayout(SqliteContext):
    """Each task commits its rows by itself, once per batch and subtask: a replay with other subtasks is not the same."""

    class Writer(SqliteWriter):
        def __init__(self, path: str, attempt: str, token: str) -> None:
            super().__init__(path, attempt)
            self.token = token

        def prepare(self) -> Committable:
            with closing(connect(self.path)) as database:
                database.execute("BEGIN IMMEDIATE")
                if not database.execute("SELECT 1 FROM ledger WHERE sink = ?", (self.token,)).fetchone():
                    database.execute("INSERT INTO ledger VALUES (?, '', 0, 0)", (self.token,))
                    database.execute("INSERT INTO rows SELECT id, name FROM staged WHERE attempt = ?", (self.attempt,))
                database.execute("DELETE FROM staged WHERE attempt = ?", (self.attempt,))
                database.execute("COMMIT")
            return super().prepare()

    class sink(SqliteSink):  # noqa: N801
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            return DependsOnTheLayout.Writer(self.target(), batch.attempt(), f"{batch.prefix()} {subtask}")


class TrustsTheAttemptNumber(LinesContext):
    """Attempts are numbered by the process, from 0: after a restart the files of a dead attempt are taken for its own."""

    class Writer(LinesWriter):
        def opened(self) -> BinaryIO:
            return (Path(self.folder.root) / self.name).open("ab")

    class sink(LinesSink):  # noqa: N801
        def __init__(self, values: Any) -> None:
            super().__init__(values)
            self.attempts: dict[tuple[int, int], int] = {}

        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            attempt = self.attempts.setdefault((batch.number, subtask), 0)
            self.attempts[batch.number, subtask] += 1
            return TrustsTheAttemptNumber.Writer(self.folder(), f"{batch.prefix()}-{subtask}-{attempt}")


class SkipsByBatchIdAlone(LinesContext):
    """Records neither rows nor checksum, so it takes any batch of the same number for the committed one."""

    class Ledger(FileLedger):
        def record(self, entry: Entry) -> bool:
            return super().record(dataclasses.replace(entry, rows=None, checksum=None))

    class sink(LinesSink):  # noqa: N801
        def ledger(self) -> FileLedger:
            return SkipsByBatchIdAlone.Ledger(self.folder().storage, self.folder().hidden("ledger"))


class NeverSweeps(LinesContext):
    """What dead attempts have staged stays for ever."""

    class Committer(LinesCommitter):
        def sweep(self, live: frozenset[str]) -> None:
            pass

    class sink(LinesSink):  # noqa: N801
        def committer(self) -> LinesCommitter:
            return NeverSweeps.Committer(self.folder())


class KnowsNoOlderBatch(LinesContext):
    """Looks a batch up by its number: an older checkpoint finds its batches and skips them, whatever they hold."""

    class Ledger(FileLedger):
        def last(self, query: str) -> Entry | None:
            recorded = self._batches(query)
            return self._entry(query, min(recorded)) if recorded else None

    class sink(LinesSink):  # noqa: N801
        def ledger(self) -> FileLedger:
            return KnowsNoOlderBatch.Ledger(self.folder().storage, self.folder().hidden("ledger"))


class NumbersItsOffsetsInMemory(LogContext):
    """Remembers in the enumerator how far it was, so a restarted query begins again."""

    class Enumerator(LogEnumerator):
        at = 0

        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            self.at = int(super().advance({"lines": self.at}, head, limit)["lines"])
            return {"lines": self.at}

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return NumbersItsOffsetsInMemory.Enumerator(self)


class NeverStandsStill(LogContext):
    """Puts the time into its position."""

    class Enumerator(LogEnumerator):
        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            return {**super().advance(at, head, limit), "seen": time.time_ns()}

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return NeverStandsStill.Enumerator(self)


class IgnoresTheLimit(LogContext):
    class Enumerator(LogEnumerator):
        def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
            return super().advance(at, head, ReadLimit(rows=limit.rows and limit.rows + 1))

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return IgnoresTheLimit.Enumerator(self)


class ListsItsSplits(LogContext):
    class Enumerator(LogEnumerator):
        def splits_of(self, part: Slice) -> Iterator[Numbered]:
            return list(super().splits_of(part))  # type: ignore[return-value]

    class source(LogSource):  # noqa: N801
        def enumerator(self) -> LogEnumerator:
            return ListsItsSplits.Enumerator(self)


class SwallowsErrors(LogContext):
    """Takes any error for the end of the log. (The emitter is where a fault of the reader passes by.)"""

    class source(LogSource):  # noqa: N801
        def __init_subclass__(cls, **kwargs: Any) -> None:
            reader_of = cls.reader

            def reader(self: LogSource, schema: pa.Schema) -> Any:
                return SwallowsErrors.Quiet(reader_of(self, schema))

            cls.reader = reader  # type: ignore[method-assign]

    class Quiet(LogReader):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner.inner.source, inner.inner.schema)
            self.inner = inner

        def read(self, split: Numbered) -> Iterator[pa.RecordBatch]:
            with contextlib.suppress(Exception):
                yield from self.inner.read(split)


class KnowsOneQueryOnly(LinesContext):
    class Ledger(FileLedger):
        def queries(self) -> frozenset[str]:
            return frozenset()

        def record(self, entry: Entry) -> bool:
            return entry.query == OWNER or super().record(entry)

    class sink(LinesSink):  # noqa: N801
        def ledger(self) -> FileLedger:
            return KnowsOneQueryOnly.Ledger(self.folder().storage, self.folder().hidden("ledger"))


class SharesOneLedger(SqliteContext):
    """Keeps one ledger for the target, whatever the sink id."""

    class sink(SqliteSink):  # noqa: N801
        def committer(self) -> SqliteCommitter:
            return SqliteCommitter(self.target(), "the only one")


class LosesTheLastRows(LinesContext):
    """Buffers, and does not flush at the end."""

    class Writer(LinesWriter):
        waiting: pa.RecordBatch | None = None

        def write(self, batch: pa.RecordBatch) -> None:
            if self.waiting is not None:
                super().write(self.waiting)
            self.waiting = batch

    class sink(LinesSink):  # noqa: N801
        def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
            return LosesTheLastRows.Writer(self.folder(), batch.attempt())

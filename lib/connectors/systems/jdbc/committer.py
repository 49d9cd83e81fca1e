"""The commit of a batch in the database: the ledger row first, then the rows, in one transaction."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ...core.batch import Batch, Committable
from ...core.dead_letters import Rejects
from ...core.folder import SinkFolder
from ...core.ledger import OWNER, Entry, already_committed, check_claim, is_once
from ...core.sink import GlobalCommitter
from ...core.writing import ArrowStage
from ...ground.errors import Fatal, Poison, Problem, Transient
from .connection import Connection, naming_holders, pooled_connection
from .ledger import LEDGER, TableLedger, pending, with_pending
from .prepared import PreparedTransactions, lock_name
from .routing import TABLE, target_of
from .stage import TEMPORARY_STAGE, StageMove, age_of, batch_prefix_of, drop, is_of_run, stage_prefix, unpacked
from .statement_move import move_of
from .target import Target, refuse, staged_columns

if TYPE_CHECKING:
    from .sink import JdbcSink


_CLEANED: Final = 10
"""The number of later commits that try again to drop a stage in use; each waits a moment for it."""


class _TrialEnd(Exception):
    """Ends a trial, which is then rolled back."""


class JdbcCommitter(GlobalCommitter):
    """Commits batches, finishes those that an earlier run decided, and removes staging that no run needs."""

    records_claims = True

    def __init__(self, sink: JdbcSink) -> None:
        self.sink = sink
        self._dialect = sink.dialect()
        self._routing = sink.routing(self._dialect)
        self._target = Target(sink.values, self._dialect, target_of(sink.values["dbtable"], self._dialect))
        self._ledger = TableLedger(self._dialect, self._target.table.beside(LEDGER), sink.sink_id())
        self._dropped = ""
        """The last discarded staging table; all committables of a batch name the same table."""

    def last(self, query: str) -> Entry | None:
        with self._connected() as connection:
            entry = self._ledger.last(connection, query)
            return self._finish(connection, query) if entry and pending(entry) else entry

    def queries(self) -> frozenset[str]:
        with self._connected() as connection:
            return self._ledger.queries(connection)

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        self._refuse_unrepeatable(entry)
        prepared = [committable.data["prepared"] for committable in committables if committable.data.get("prepared")]
        batch = Batch(self.sink.sink_id(), entry.query, entry.batch)
        with self._connected() as connection:
            self._ledger.make(connection)
            moves = self._plan_moves(connection, committables)
            if prepared:
                self._commit_prepared(connection, batch, with_pending(entry, prepared))
            else:
                self._roll_back_attempts(connection, batch)
                if moves and self._dialect.one_writer:
                    self._load_files(connection, moves[0].plan.schema, _staged(committables))
                with self._behind_others(connection, entry) if entry.replace else contextlib.nullcontext():
                    self._transaction(connection, with_pending(entry, []), moves)
            self._clean(connection, entry, committables)

    def discard(self, committable: Committable) -> None:
        name = committable.data.get("prepared")
        if name:
            with self._connected() as connection, self._prepared(connection).lock():
                if name not in self._pending_names(connection):
                    self._prepared(connection).roll_back([name])
        self._remove_stage(committable)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        """Drops the stages and prepared transactions of earlier runs for ``batch``; with ``failed`` also those of this run.

        It spares no run, not even one that is still alive: the ledger says what is decided, and a run without its stage
        fails before it commits anything.
        """
        if self._dialect.one_writer:
            return self._folder().drop_attempts(batch, failed=failed, runs=0)
        with self._connected() as connection:
            for stage in self._stages(connection, f"{batch.prefix()}_"):
                if failed or not is_of_run(stage, batch):
                    drop(connection, self._target.table.beside(stage))
            self._roll_back_attempts(connection, batch, spare_own=not failed)

    def sweep(self, live: frozenset[str]) -> None:
        """Removes old staging, rolls back undecided transactions, and raises if there is no target."""
        retention = self.sink.values["stagingRetention"]
        if self._dialect.one_writer:
            self._folder().sweep(retention, live)
        with self._connected() as connection:
            if not self._routing:
                self._target.check(connection)
            for stage in self._stages(connection):
                if age_of(stage) > retention and batch_prefix_of(stage) not in live:
                    drop(connection, self._target.table.beside(stage))
            self._recover(connection, live)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection of the driver; a lock timeout names the sessions that hold the lock."""
        locked = naming_holders(self._dialect, [self._ledger.table, self._target.table], lock_name(self.sink.sink_id()))
        with locked, pooled_connection(self._dialect) as connection:
            yield connection

    def _stages(self, connection: Connection, batch_prefix: str = "") -> list[str]:
        """The sink's staging tables, or those of one batch."""
        prefix = f"{stage_prefix(self.sink.sink_id())}{batch_prefix}"
        return self._dialect.tables(connection, self._target.table.schema, prefix)

    def _folder(self) -> SinkFolder:
        return self.sink.folder()

    # the steps of a commit

    def _refuse_unrepeatable(self, entry: Entry) -> None:
        if is_once(entry.query) and self.sink.values["guarantee"] == "exactly-once":
            text = "missing; exactly-once, df.write needs txnAppId and txnVersion to know itself when it is run again."
            refuse([Problem("txnAppId", text)])

    def _plan_moves(self, connection: Connection, committables: Sequence[Committable]) -> list[StageMove]:
        """The moves of the staged rows into their tables. Creates or widens a single target, even without rows."""
        schemas = [committable.data["schema"] for committable in committables if committable.data.get("schema")]
        if not schemas:
            return []
        schema, staged = unpacked(schemas[0]), _staged(committables)
        rows = sum(committable.rows for committable in staged)
        tables = self._routing.moves(staged) if self._routing else [(self._target.table, "", rows)]
        parts = [
            (Target(self.sink.values, self._dialect, table).plan(connection, schema), condition, count)
            for table, condition, count in tables
        ]
        if not staged:
            return []
        stage, attempts = TEMPORARY_STAGE, list[int]()
        if not self._dialect.one_writer:
            stage = self._target.table.beside(staged[0].data["stage"])
            attempts = [committable.data["attempt"] for committable in staged]
        return [
            move_of(connection, plan, stage, attempts, rows=count, where=condition) for plan, condition, count in parts
        ]

    def _load_files(self, connection: Connection, schema: pa.Schema, staged: Sequence[Committable]) -> None:
        """Loads staged files, before the transaction begins, into a table that only this connection sees."""
        dialect, columns = self._dialect, staged_columns(self._dialect, schema)
        if self._routing:
            columns.append((TABLE, dialect.types["int64"]))
        for statement in dialect.create_stage(TEMPORARY_STAGE, columns, temporary=True):
            connection.execute(statement)
        for committable in staged:
            with ArrowStage.reader(self._folder(), committable.data["file"]) as file:
                dialect.load(connection, TEMPORARY_STAGE, [name for name, _ in columns], file)

    def _clean(self, connection: Connection, entry: Entry, committables: Sequence[Committable]) -> None:
        """Removes the stage of a committed batch. If this fails, a later sweep removes it.

        Also removes stages of the query's last batches: a late task may have used them at the commit, or made them again.
        """
        committed = range(max(0, entry.batch - _CLEANED), entry.batch + 1)
        prefixes = {Batch(self.sink.sink_id(), entry.query, number).prefix() for number in committed}
        with contextlib.suppress(Transient, Fatal):
            for file in [committable.data["file"] for committable in committables if committable.data.get("file")]:
                self._folder().remove(file)
            for stage in self._stages(connection) if any(committable.data.get("stage") for committable in committables) else ():
                if batch_prefix_of(stage) in prefixes:
                    drop(connection, self._target.table.beside(stage))
            self._ledger.forget_once(connection, entry.query)

    def _remove_stage(self, committable: Committable) -> None:
        data = committable.data
        if data.get("file"):
            self._folder().remove(data["file"])
        stage = data.get("stage")
        if stage and stage != self._dropped:
            self._dropped = stage
            with self._connected() as connection:
                drop(connection, self._target.table.beside(stage))

    # the transaction of a batch

    def _transaction(self, connection: Connection, entry: Entry, moves: Sequence[StageMove]) -> None:
        """Commits the whole batch or nothing. If the database refuses a row, a second try looks for it."""
        try:
            self._try(connection, entry, moves)
        except Poison:
            if not moves or self.rejects is None:
                raise
            if self._dialect.savepoints:
                self._try(connection, entry, moves, self.rejects)
            else:
                self._search_by_trial(connection, entry, moves, self.rejects)

    def _try(
        self, connection: Connection, entry: Entry, moves: Sequence[StageMove], refused: Rejects | None = None
    ) -> None:
        """Runs one transaction; ``refused`` takes the rows that the database refuses."""
        with connection.transaction():
            self._begin(connection, entry)
            for move in moves:
                move.check_rows()
                move.check_keys()
            for move in moves:
                move.move() if refused is None else move.move_all_but(refused)
            if self.rejects is not None and self.rejects.count:
                self.rejects.decide()

    def _begin(self, connection: Connection, entry: Entry) -> None:
        self._ledger.record(connection, entry)
        for statement in self._dialect.at_begin:
            connection.execute(statement)
        if entry.replace:
            connection.execute(f"DELETE FROM {self._dialect.table(self._target.table)}")

    def _search_by_trial(
        self, connection: Connection, entry: Entry, moves: Sequence[StageMove], rejects: Rejects
    ) -> None:
        """Without savepoints: the shortest refused beginning of a move ends with a bad row, which is then left out."""
        first, last = self._dialect.positions(connection, moves[0].stage)
        while True:
            try:
                return self._try(connection, entry, moves)
            except Poison as error:
                refused = error

            def is_refused(count: int) -> bool:
                return self._trial(connection, entry, moves[:count], last) is not None

            tried = moves[: 1 + bisect_left(range(1, len(moves)), True, key=is_refused)]
            low, high = first, last
            while low < high:
                middle = (low + high) // 2
                if refusal := self._trial(connection, entry, tried, middle):
                    refused, high = refusal, middle
                else:
                    low = middle + 1
            tried[-1].exclude(low, rejects, refused)

    def _trial(self, connection: Connection, entry: Entry, moves: Sequence[StageMove], last: int) -> Poison | None:
        """What the database refuses of ``moves``, the last of which ends at the position ``last``."""
        try:
            with contextlib.suppress(_TrialEnd), connection.transaction():
                self._begin(connection, entry)
                for move in moves[:-1]:
                    move.move()
                moves[-1].move_up_to(last)
                raise _TrialEnd
        except Poison as error:
            return error
        return None

    # prepared transactions

    def _prepared(self, connection: Connection) -> PreparedTransactions:
        return PreparedTransactions(connection, self._target.table, self.sink.sink_id())

    def _commit_prepared(self, connection: Connection, batch: Batch, entry: Entry) -> None:
        """Decides and commits under one lock, so that between the two no other driver rolls back the decided transactions."""
        prepared = self._prepared(connection)
        with prepared.lock():
            last = self._ledger.last(connection, entry.query)
            if last is not None and last.batch >= entry.batch:
                raise already_committed(entry)
            prepared.check(batch, pending(entry))
            self._transaction(connection, entry, [])
            self._carry_through(connection, entry)

    def _finish(self, connection: Connection, query: str) -> Entry | None:
        """The newest batch of ``query``, with all of its prepared transactions committed."""
        with self._prepared(connection).lock():
            entry = self._ledger.last(connection, query)  # again: its own driver may have finished it
            return self._carry_through(connection, entry) if entry and pending(entry) else entry

    @contextlib.contextmanager
    def _behind_others(self, connection: Connection, replacement: Entry) -> Iterator[None]:
        """Finishes all decided batches before a batch that replaces all rows: their rows must not come after it.

        A claim ends the other queries. Their undecided prepared transactions are rolled back, or their keys would stay locked.
        A sink with the same id in another schema has its own ledger, so its transactions stay.
        """
        if not self._dialect.prepares:
            yield
            return
        prepared = self._prepared(connection)
        with prepared.lock():
            for entry in self._ledger.unfinished(connection):
                if pending(entry):
                    self._carry_through(connection, entry)
            if replacement.claim is not None:
                check_claim(self.sink.sink_id(), replacement, self._ledger.last(connection, OWNER))
                for query in self._ledger.queries(connection):
                    if last := self._ledger.last(connection, query):
                        prepared.roll_back(prepared.of_batch(Batch(self.sink.sink_id(), query, last.batch + 1)))
            yield

    def _carry_through(self, connection: Connection, entry: Entry) -> Entry:
        """Commits the prepared transactions of the decided ``entry``; the caller holds the lock."""
        prepared, names = self._prepared(connection), pending(entry)
        prepared.commit(names)
        complete = with_pending(entry, [])
        with connection.transaction():
            self._ledger.amend(connection, complete)
            prepared.markers.remove(connection, names)
        return complete

    def _recover(self, connection: Connection, live: frozenset[str]) -> None:
        """Commits transactions that an earlier run decided; rolls back those that no run has decided or is about to decide."""
        if not self._dialect.prepares:
            return
        for entry in self._ledger.unfinished(connection):
            if pending(entry):
                self._finish(connection, entry.query)
        prepared = self._prepared(connection)
        if prepared.orphans(live):
            with prepared.lock():
                prepared.roll_back(prepared.orphans(live) - self._pending_names(connection))

    def _roll_back_attempts(self, connection: Connection, batch: Batch, *, spare_own: bool = False) -> None:
        """Rolls back transactions of attempts at ``batch`` that no ledger row names; with ``spare_own`` not those of its run.

        Every mode of commit needs this: the batch is about to write rows that those transactions have locked.
        """
        if not self._dialect.prepares:
            return
        prepared = self._prepared(connection)
        existing = prepared.of_earlier_runs if spare_own else prepared.of_batch
        if existing(batch):
            with prepared.lock():
                prepared.roll_back(existing(batch) - self._pending_names(connection))

    def _pending_names(self, connection: Connection) -> set[str]:
        """The prepared transactions still to be committed."""
        return {name for entry in self._ledger.unfinished(connection) for name in pending(entry)}


def _staged(committables: Sequence[Committable]) -> list[Committable]:
    """Those of ``committables`` that name a staging table or file."""
    return [committable for committable in committables if committable.data.get("stage") or committable.data.get("file")]

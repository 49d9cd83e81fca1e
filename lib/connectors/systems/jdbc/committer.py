"""The commit of a batch in the database: the ledger row first, then the rows, in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.dead_letters import Rejects
from ...core.errors import Fatal, Misconfigured, Poison, Problem, Transient
from ...core.folder import SinkFolder
from ...core.ledger import Entry, is_stream
from ...core.sink import Batch, Committable, GlobalCommitter
from ...core.writing import ArrowStage
from .by_task import Slots
from .connection import Connection, naming_holders
from .dialects import Table
from .ledger import TableLedger, pending, refusal, with_pending
from .prepared import Prepared, lock_name
from .stage import Move, age_of, drop, is_of_run, stage_prefix, staged_columns, unpacked
from .target import Plan, Target

if TYPE_CHECKING:
    from . import JdbcSink

_TEMPORARY = Table("connectors_staged")


class _Enough(Exception):
    """Ends a trial, so that it is rolled back."""


class JdbcCommitter(GlobalCommitter):
    """Commits batches, carries through what was decided, and removes what no run needs."""

    def __init__(self, sink: JdbcSink) -> None:
        self.sink = sink
        self._dialect = sink.dialect()
        self._target = Target(sink.values, self._dialect)
        self._ledger = TableLedger(self._dialect, self._target.table.beside("connectors_ledger"), sink.sink_id())

    def last(self, query: str) -> Entry | None:
        with self._connected() as connection:
            entry = self._ledger.last(connection, query)
            return self._finish(connection, query) if entry and pending(entry) else entry

    def queries(self) -> frozenset[str]:
        with self._connected() as connection:
            return self._ledger.queries(connection)

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        self._refuse_unrepeatable(entry)
        staged = [one for one in committables if one.data.get("stage") or one.data.get("file")]
        prepared = [one.data["prepared"] for one in committables if one.data.get("prepared")]
        batch = Batch(self.sink.sink_id(), entry.query, entry.batch)
        with self._connected() as connection:
            self._ledger.make(connection)
            plan = self._plan(connection, staged)
            self._check_tasks(connection, batch, committables)
            if prepared:
                self._commit_prepared(connection, batch, with_pending(entry, prepared))
            else:
                self._roll_back_attempts(connection, batch)
                move = self._move(connection, plan, staged) if plan and staged else None
                self._transaction(connection, with_pending(entry, []), move)
            self._clean(connection, entry, committables)

    def discard(self, committable: Committable) -> None:
        name = committable.data.get("prepared")
        if name:
            with self._connected() as connection, self._prepared(connection).lock():
                if name not in self._pending_names(connection):
                    self._prepared(connection).roll_back([name])
        self._remove(committable)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        """Drops what earlier runs have staged or prepared for ``batch``, and with ``failed`` what this run has.

        None of them is spared, whether it is quite dead or not: the ledger says what is decided, and a run whose stage is
        gone fails before it commits anything.
        """
        if self._dialect.one_writer:
            return self._folder().drop_attempts(batch, failed=failed, runs=0)
        with self._connected() as connection:
            for stage in self._stages(connection, f"{batch.prefix()}_"):
                if failed or not is_of_run(stage, batch):
                    drop(connection, self._target.table.beside(stage))
            self._roll_back_attempts(connection, batch, spare_own=not failed)

    def _stages(self, connection: Connection, begin: str = "") -> list[str]:
        """The sink's staging tables, or those of one batch."""
        prefix = f"{stage_prefix(self.sink.sink_id())}{begin}"
        return self._dialect.tables(connection, self._target.table.schema, prefix)

    def sweep(self, live: frozenset[str]) -> None:
        """Removes old staging, rolls back transactions that nobody decided, and stops if there is no target."""
        retention = self.sink.values["stagingRetention"]
        if self._dialect.one_writer:
            self._folder().sweep(retention, live)
        with self._connected() as connection:
            self._target.check(connection)
            for stage in self._stages(connection):
                if age_of(stage) > retention and stage.split("_")[2] not in live:
                    drop(connection, self._target.table.beside(stage))
            self._recover(connection, live)

    def _recover(self, connection: Connection, live: frozenset[str]) -> None:
        """Commits what an earlier run has decided; rolls back what no run has, and none is about to."""
        if not self._dialect.prepares:
            return
        for entry in self._ledger.entries(connection):
            if pending(entry):
                self._finish(connection, entry.query)
        prepared = self._prepared(connection)
        if prepared.orphans(live):
            with prepared.lock():
                prepared.roll_back(prepared.orphans(live) - self._pending_names(connection))

    def _commit_prepared(self, connection: Connection, batch: Batch, entry: Entry) -> None:
        """Decides and commits under one lock: between the two no other driver rolls back what this one has decided."""
        prepared = self._prepared(connection)
        with prepared.lock():
            last = self._ledger.last(connection, entry.query)
            if last is not None and last.batch >= entry.batch:
                raise refusal(entry)
            prepared.check(batch, pending(entry))
            self._transaction(connection, entry, None)
            self._carry_through(connection, entry)

    def _finish(self, connection: Connection, query: str) -> Entry | None:
        """The newest batch of ``query``, with all of its prepared transactions committed."""
        with self._prepared(connection).lock():
            entry = self._ledger.last(connection, query)  # anew: its own driver may have finished it
            return self._carry_through(connection, entry) if entry and pending(entry) else entry

    def _carry_through(self, connection: Connection, entry: Entry) -> Entry:
        """Commits the prepared transactions of ``entry``, which is decided; the caller has the lock."""
        prepared, names = self._prepared(connection), pending(entry)
        prepared.commit(names)
        complete = with_pending(entry, [])
        with connection.transaction():
            self._ledger.amend(connection, complete)
            prepared.markers.remove(connection, names)
        return complete

    def _roll_back_attempts(self, connection: Connection, batch: Batch, *, spare_own: bool = False) -> None:
        """Rolls back what attempts at ``batch`` have prepared and no ledger row names, except those of its own run.

        Whichever way this run commits: the rows that they have locked are about to be written.
        """
        if not self._dialect.prepares:
            return
        prepared = self._prepared(connection)
        existing = prepared.of_earlier_runs if spare_own else prepared.of_batch
        if existing(batch):
            with prepared.lock():
                prepared.roll_back(existing(batch) - self._pending_names(connection))

    def _pending_names(self, connection: Connection) -> set[str]:
        """The prepared transactions that are to be committed."""
        return {name for entry in self._ledger.entries(connection) for name in pending(entry)}

    def _prepared(self, connection: Connection) -> Prepared:
        return Prepared(connection, self._target.table, self.sink.sink_id())

    def _refuse_unrepeatable(self, entry: Entry) -> None:
        once = not is_stream(entry.query) and entry.query.startswith("once-")
        if once and self.sink.values["guarantee"] == "exactly-once":
            text = "missing; exactly-once, df.write needs txnAppId and txnVersion to know itself when it is run again."
            raise Misconfigured("connectors.jdbc", [Problem("txnAppId", text)])

    def _plan(self, connection: Connection, committables: Sequence[Committable]) -> Plan | None:
        schemas = [one.data["schema"] for one in committables if one.data.get("schema")]
        return self._target.plan(connection, unpacked(schemas[0])) if schemas else None

    def _move(self, connection: Connection, plan: Plan, staged: Sequence[Committable]) -> Move:
        if self._dialect.one_writer:
            self._load_files(connection, plan.schema, staged)
            stages = [_TEMPORARY]
        else:
            stages = [plan.table.beside(one.data["stage"]) for one in staged]
        move = Move(connection, plan, stages)
        move.check_rows(sum(one.rows for one in staged))
        move.check_keys()
        return move

    def _check_tasks(self, connection: Connection, batch: Batch, committables: Sequence[Committable]) -> None:
        values = self.sink.values
        if values["commit"] == "task" and committables and values["onReplayMismatch"] == "stop":
            Slots(self._dialect, self._target.table, batch.sink_id).check(connection, batch, committables)

    def _transaction(self, connection: Connection, entry: Entry, move: Move | None) -> None:
        """Everything of the batch or nothing. A row that is refused is looked for in a second try."""
        try:
            self._try(connection, entry, move, search=False)
        except Poison:
            if move is None or self.rejects is None:
                raise
            if self._dialect.savepoints:
                self._try(connection, entry, move, search=True)
            else:
                self._search_by_trial(connection, entry, move, self.rejects)

    def _search_by_trial(self, connection: Connection, entry: Entry, move: Move, rejects: Rejects) -> None:
        """Without savepoints: the shortest beginning of the stage that is refused ends with a bad row. Then all over again."""
        first, last = self._dialect.positions(connection, move.stages[0])
        while True:
            try:
                return self._try(connection, entry, move, search=False)
            except Poison as error:
                refused, low, high = error, first, last
            while low < high:
                middle = (low + high) // 2
                try:
                    with contextlib.suppress(_Enough), connection.transaction():
                        self._begin(connection, entry)
                        move.up_to(middle)
                        raise _Enough
                except Poison as error:
                    refused, high = error, middle
                else:
                    low = middle + 1
            move.leave_out(low, rejects, refused)

    def _try(self, connection: Connection, entry: Entry, move: Move | None, *, search: bool) -> None:
        with connection.transaction():
            self._begin(connection, entry)
            if move and search and self.rejects is not None:
                move.all_but(self.rejects)
            elif move:
                move.all()
            if self.rejects is not None and self.rejects.count:
                self.rejects.decide()

    def _begin(self, connection: Connection, entry: Entry) -> None:
        self._ledger.record(connection, entry)
        for statement in self._dialect.at_begin:
            connection.execute(statement)
        if entry.replace:
            connection.execute(f"DELETE FROM {self._dialect.table(self._target.table)}")

    def _load_files(self, connection: Connection, schema: pa.Schema, staged: Sequence[Committable]) -> None:
        """Into a table that only this connection sees, and before the transaction begins."""
        dialect, columns = self._dialect, staged_columns(self._dialect, schema)
        connection.execute(f"DROP TABLE IF EXISTS {dialect.table(_TEMPORARY)}")
        connection.execute(dialect.create_stage(_TEMPORARY, columns).replace("CREATE TABLE", "CREATE TEMPORARY TABLE", 1))
        for one in staged:
            with ArrowStage.reader(self._folder(), one.data["file"]) as reader:
                dialect.load(connection, _TEMPORARY, [name for name, _ in columns], reader)

    def _clean(self, connection: Connection, entry: Entry, committables: Sequence[Committable]) -> None:
        """The batch is committed; what is left over now is swept one day, should this fail."""
        with contextlib.suppress(Transient, Fatal):
            for committable in committables:
                self._remove(committable, connection)
            if entry.query.startswith("once-"):
                self._ledger.forget(connection, entry.query)

    def _remove(self, committable: Committable, connection: Connection | None = None) -> None:
        """Removes a staged file or table."""
        data = committable.data
        if data.get("file"):
            self._folder().remove(data["file"])
        if data.get("stage"):
            with contextlib.nullcontext(connection) if connection else self._connected() as session:
                drop(session, self._target.table.beside(data["stage"]))

    def _folder(self) -> SinkFolder:
        return self.sink.folder()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        locked = naming_holders(self._dialect, [self._ledger.table, self._target.table], lock_name(self.sink.sink_id()))
        with locked, contextlib.closing(self._dialect.connect()) as connection:
            yield connection

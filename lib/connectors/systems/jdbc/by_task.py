"""``commit=task``: each task is a transaction of its own, which holds the row that says that its rows are there.

The rows of a batch are dealt out to *slots* by a hash, of the keys where there are some, else of all columns. How many slots a
batch has is recorded before its tasks start, so that a replay gives each slot the same rows. A slot that is written is passed
over; a task of an older batch, of a run that was given up, finds a newer one in its row and stops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.errors import CommitRefused, Misconfigured, Problem
from ...core.ledger import Entry
from ...core.sink import Batch, Committable, SinkWriter
from .column_types import flat
from .connection import Connection, naming_holders
from .dialects import Dialect, Table
from .ledger import TableLedger
from .load import Chunks, Loader, loader_for
from .prepared import loadable, unfit_columns
from .stage import Move, staged_columns
from .target import Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LEDGER = "connectors_tasks"
_STAGED = Table("connectors_staged")
_NONE_YET = -1


class Slots:
    """The table ``connectors_tasks`` beside the target: one row per slot of a query, and one for their number."""

    def __init__(self, dialect: Dialect, target: Table, sink_id: str) -> None:
        self.ledger = TableLedger(dialect, target.beside(LEDGER), sink_id)

    def recorded(self, connection: Connection, batch: Batch, wanted: int) -> int:
        """How many slots ``batch`` has: as an earlier run has recorded, else ``wanted``, which is recorded then."""
        self.ledger.make(connection)
        name = f"{batch.query}/slots"
        last = self.ledger.last(connection, name)
        if last is None or last.batch < batch.number:
            self._make_rows(connection, batch.query, wanted)
            with contextlib.suppress(CommitRefused):  # another run was faster
                self.ledger.record(connection, Entry(name, batch.number, committables=({"slots": wanted},)))
            last = self.ledger.last(connection, name)
        if last is None or last.batch != batch.number:
            raise CommitRefused(f"a newer batch than {batch} is being written", way_out="let one run at a time write")
        return int(last.committables[0]["slots"])

    def claim(self, connection: Connection, batch: Batch, slot: int) -> bool:
        """The first statement of a slot's transaction; false if its rows are there. Waits for another attempt that is at it."""
        return self.ledger.advance(connection, Entry(f"{batch.query}/{slot}", batch.number))

    def written(self, connection: Connection, batch: Batch) -> dict[int, int | None]:
        """The slots of ``batch`` that are written, and their rows."""
        names = {f"{batch.query}/{slot}": slot for slot in range(self.recorded(connection, batch, 1))}
        found = [entry for entry in self.ledger.entries(connection) if entry.query in names and entry.batch == batch.number]
        return {names[entry.query]: entry.rows for entry in found}

    def check(self, connection: Connection, batch: Batch, committables: Sequence[Committable]) -> None:
        """Stops if what is written of ``batch`` is not what its tasks have just told."""
        told = {int(one.data["task"]): one.rows for one in committables if one.rows}
        there = self.written(connection, batch)
        if wrong := sorted(slot for slot in told.keys() | there.keys() if told.get(slot) != there.get(slot)):
            raise CommitRefused(
                f"the tasks {', '.join(map(str, wrong))} of {batch} have other rows than an earlier run has written for them: "
                "the query is not deterministic, or another checkpoint was restored",
                way_out="make the query deterministic, or take commit=batch; onReplayMismatch=skip keeps what is written",
            )

    def _make_rows(self, connection: Connection, query: str, slots: int) -> None:
        """Before the tasks need them: two that insert side by side would lock each other out on MariaDB."""
        there = {entry.query for entry in self.ledger.entries(connection)}
        for name in [f"{query}/{slot}" for slot in range(slots)]:
            if name not in there:
                with contextlib.suppress(CommitRefused):
                    self.ledger.record(connection, Entry(name, _NONE_YET))


class TaskWriter(SinkWriter):
    """Writes the rows of a slot, unless they are there."""

    def __init__(self, dialect: Dialect, plan: Plan, slots: Slots, batch: Batch, slot: int) -> None:
        self.dialect = dialect
        self.plan = plan
        self.slots = slots
        self.batch = batch
        self.slot = slot
        self.rows = 0
        self._moves = bool(plan.operation != "insert" or plan.keys or list(unfit_columns(dialect, plan)))
        self._columns = staged_columns(dialect, plan.schema)
        self._chunks = Chunks()
        self._loader: Loader | None = None
        self._there = False

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        rows = flat(batch) if self._moves else loadable(self.dialect, self.plan, batch)
        if not self._there and self._chunks.add(rows):
            self._load()

    def prepare(self) -> Committable:
        self._load()
        if self._loader is not None and not self._there:
            self._loader.limit_idle()
            connection = self._loader.connection
            if self._moves:
                move = Move(connection, self.plan, [_STAGED])
                move.check_keys()
                move.all()
            entry = Entry(f"{self.batch.query}/{self.slot}", self.batch.number, self.rows)
            self.slots.ledger.amend(connection, entry)
            self._loader.commit()
        return Committable(self.rows, {"task": self.slot})

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _load(self) -> None:
        if not self._chunks.batches or self._there:
            return
        if self._loader is None:
            self._loader = loader_for(self.dialect)
            self._begin(self._loader)
        if self._there:
            return
        names = [name for name, _ in self._columns] if self._moves else self.plan.names
        table = _STAGED if self._moves else self.plan.table
        self._loader.load(table, self._chunks.take(names), temporary=self._moves)

    def _begin(self, loader: Loader) -> None:
        loader.begin()
        with naming_holders(self.dialect, [self.slots.ledger.table]):
            self._there = not self.slots.claim(loader.connection, self.batch, self.slot)
        if self._there:
            loader.connection.rollback()
            self._refuse_newer(loader.connection)
            return
        for statement in self.dialect.at_begin:
            loader.connection.execute(statement)
        if self._moves:
            loader.connection.execute(self.dialect.create_stage(_STAGED, self._columns, temporary=True))

    def _refuse_newer(self, connection: Connection) -> None:
        last = self.slots.ledger.last(connection, f"{self.batch.query}/{self.slot}")
        if last is None or last.batch != self.batch.number:
            raise CommitRefused(f"a newer batch than {self.batch} is written", way_out="let one run at a time write")


def placed(frame: DataFrame, slots: int, keys: Sequence[str]) -> DataFrame:
    """``frame`` dealt out to ``slots`` by a hash of its ``keys``, else of all columns that have a hash."""
    from pyspark.sql import functions as F

    hashed: list[Column] = [F.col(_quoted(name)) for name in keys or _hashable(frame)]
    return frame.repartitionById(slots, F.pmod(F.xxhash64(*hashed), F.lit(slots)).cast("int") if hashed else F.lit(0))


def _hashable(frame: DataFrame) -> list[str]:
    without = ("map<", "variant")
    return [field.name for field in frame.schema if not any(kind in field.dataType.simpleString() for kind in without)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def outside_foreach_batch() -> Misconfigured:
    """There, nobody deals the rows out by a hash."""
    text = "task needs foreach_batch, which gives each task the same rows in a replay; take batch with format(…) and df.write."
    return Misconfigured("connectors.jdbc", [Problem("commit", text)])

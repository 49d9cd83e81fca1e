"""``commit=task``: each task is a transaction of its own, which holds the row that says that its rows are written.

The rows of a batch are dealt out to *slots* by a hash, of the keys where there are some, else of all columns. The number of
slots of a batch is recorded before its tasks start, so that a replay gives each slot the same rows. A replay leaves out slots
that are written. A late task of an older batch finds a newer batch in its slot's row, and stops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import CommitRefused
from ...core.ledger import Entry
from ...core.sink import Batch, Committable
from .connection import Connection
from .dialects import Dialect, Table
from .ledger import LEDGER, TableLedger

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

_LEDGER = "connectors_tasks"
_NEVER_WRITTEN = -1


class TaskSlots:
    """The table ``connectors_tasks`` beside the target: a row per slot of a query, and one for the number of its slots."""

    def __init__(self, dialect: Dialect, target: Table, sink_id: str) -> None:
        self.ledger = TableLedger(dialect, target.beside(_LEDGER), sink_id)
        self._sink_ledger = TableLedger(dialect, target.beside(LEDGER), sink_id)

    def recorded(self, connection: Connection, batch: Batch, default: int, on_new_query: str) -> int:
        """How many slots ``batch`` has: as an earlier run has recorded, else ``default``, which is recorded then."""
        self.ledger.make(connection)
        name = f"{batch.query}/slots"
        last = self.ledger.last(connection, name)
        if last is None:
            self._sink_ledger.claim(connection, batch.query, on_new_query)
        if last is None or last.batch < batch.number:
            self._insert_rows(connection, batch.query, default)
            with contextlib.suppress(CommitRefused):  # another run was faster
                self.ledger.record(connection, Entry(name, batch.number, committables=({"slots": default},)))
            last = self.ledger.last(connection, name)
        if last is None or last.batch != batch.number:
            raise CommitRefused(f"a newer batch than {batch} is being written", way_out="let one run at a time write")
        return int(last.committables[0]["slots"])

    def claim(self, connection: Connection, batch: Batch, slot: int) -> bool:
        """The first statement of a slot's transaction; false if its rows are written. Waits for another attempt at the slot."""
        return self.ledger.advance(connection, Entry(f"{batch.query}/{slot}", batch.number))

    def last_batch(self, connection: Connection, query: str, slot: int) -> int | None:
        """The newest batch of which ``slot`` is written."""
        last = self.ledger.last(connection, f"{query}/{slot}")
        return last.batch if last else None

    def check(self, connection: Connection, batch: Batch, committables: Sequence[Committable]) -> None:
        """Stops if the rows that are written of ``batch`` are others than those of ``committables``, which a replay gave."""
        reported = {int(committable.data["task"]): committable.rows for committable in committables if committable.rows}
        written = self._rows_of_slots(connection, batch)
        if wrong := sorted(slot for slot in reported.keys() | written.keys() if reported.get(slot) != written.get(slot)):
            raise CommitRefused(
                f"the tasks {', '.join(map(str, wrong))} of {batch} have other rows than an earlier run has written for them: "
                "the query is not deterministic, or another checkpoint was restored",
                way_out="make the query deterministic, or take commit=batch; onReplayMismatch=skip keeps what is written",
            )

    def _rows_of_slots(self, connection: Connection, batch: Batch) -> dict[int, int | None]:
        """The slots of ``batch`` that are written, and how many rows each has."""
        entries = [entry for entry in self.ledger.entries(connection) if entry.batch == batch.number]
        names = [entry.query.rpartition("/") for entry in entries]
        return {
            int(slot): entry.rows
            for entry, (query, _, slot) in zip(entries, names, strict=True)
            if query == batch.query and slot.isdigit()
        }

    def _insert_rows(self, connection: Connection, query: str, slots: int) -> None:
        """Before the tasks need them: on MariaDB, two tasks that insert side by side would lock each other out."""
        existing = {entry.query for entry in self.ledger.entries(connection)}
        for name in [f"{query}/{slot}" for slot in range(slots)]:
            if name not in existing:
                with contextlib.suppress(CommitRefused):
                    self.ledger.record(connection, Entry(name, _NEVER_WRITTEN))


def partitioned_by_hash(frame: DataFrame, slots: int, keys: Sequence[str]) -> DataFrame:
    """``frame`` in ``slots`` partitions by a hash of its ``keys``, else of all columns that have a hash."""
    from pyspark.sql import functions as F

    hashed: list[SparkColumn] = [F.col(_quoted(name)) for name in keys or _columns_with_hash(frame)]
    return frame.repartitionById(slots, F.pmod(F.xxhash64(*hashed), F.lit(slots)).cast("int") if hashed else F.lit(0))


def _columns_with_hash(frame: DataFrame) -> list[str]:
    without = ("map<", "variant")
    return [field.name for field in frame.schema if not any(kind in field.dataType.simpleString() for kind in without)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

"""Staging tables: their names, and the statements that move their rows into the target.

All tasks of a batch fill one table, named ``cst_<sink>_<batch>_<time>_<run>`` (time: hours since 1970), so that a sweep
recognizes old tables, and a run those of earlier runs. Its columns are those of
:func:`~connectors.systems.jdbc.target.staged_columns`, and :data:`ATTEMPT`: the number of the task attempt that staged the row.
The driver moves the rows of the attempts that Spark has accepted. Rows of other attempts, also late ones, stay until the table
is dropped.

Behind the rows of a statement of the user's own, :data:`PLACE` keeps their order where the database does not.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from ...core.batch import Batch
from ...ground import machine
from ...ground.errors import Fatal, Poison, Transient
from ...ground.state import digest
from .column_types import staged_schema
from .connection import Connection, repeated_keys
from .dialects import Column, Table
from .target import WritePlan

TEMPORARY_STAGE = Table("connectors_staged")
"""A staging table that only one connection sees."""
ATTEMPT: Final = "connectors_attempt"
PLACE: Final = "connectors_place"
_ROWS_OF_TASK: Final = 1 << 40
"""The places of a task: more than it has rows."""


def places(subtask: int, first: int, count: int) -> pa.Array:
    """The places of ``count`` rows of a task, the first of which is its row ``first`` (from 0)."""
    return pa.array(range(subtask * _ROWS_OF_TASK + first, subtask * _ROWS_OF_TASK + first + count), pa.int64())


def stage_prefix(sink_id: str) -> str:
    """The prefix of the names of a sink's staging tables."""
    return f"cst_{digest(sink_id, length=8)}_"


def stage_of(batch: Batch) -> str:
    """The name of the staging table of ``batch`` in its run, at most 63 bytes."""
    hours = batch.time // 3_600_000_000
    return f"{stage_prefix(batch.sink_id)}{batch.prefix()}_{hours:08x}_{batch.run_id()}"


def new_attempt() -> int:
    """A new number for a task attempt; Spark's own begin at 0 again after a restart."""
    return secrets.randbits(62)


def batch_prefix_of(stage: str) -> str:
    """The :meth:`~connectors.core.batch.Batch.prefix` of a staging table's batch."""
    return stage.split("_")[2]


def is_of_run(stage: str, batch: Batch) -> bool:
    """True if the run of ``batch`` created the staging table."""
    return stage.split("_")[4] == batch.run_id()


def age_of(stage: str) -> float:
    """The age of a staging table in seconds, from its name."""
    return machine.time() - int(stage.split("_")[3], 16) * 3600


def drop(connection: Connection, stage: Table) -> None:
    """Drops a staging table unless a session uses it; then a later run, or the sweep, drops it."""
    with contextlib.suppress(Transient):
        connection.execute(connection.dialect.drop_stage(stage))


def packed(schema: pa.Schema) -> str:
    """A schema as text, for a committable."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def unpacked(text: str) -> pa.Schema:
    """The schema that :func:`packed` gave."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


class RejectedRows(Protocol):
    """Takes the rows that the database refuses."""

    def add(self, row: Mapping[str, Any], error: BaseException | str) -> None: ...


@dataclass(frozen=True)
class StageRange:
    """The rows at the positions ``first`` to ``last`` of a stage."""

    first: int
    last: int

    def halves(self) -> tuple[StageRange, StageRange]:
        middle = (self.first + self.last) // 2
        return StageRange(self.first, middle), StageRange(middle + 1, self.last)


class StageMove:
    """Moves the rows of ``stage``, or only those of ``attempts``, as ``plan`` says, inside the caller's transaction.

    ``where`` is a condition of rows in SQL, and ``rows`` the number of rows that must exist. With ``keep_newer``, a row of the
    target stays unchanged if it has a larger value in the column that orders rows.
    """

    def __init__(
        self, connection: Connection, plan: WritePlan, stage: Table, attempts: Sequence[int] = (), *,
        rows: int = 0, keep_newer: bool = False, where: str = "",
    ) -> None:  # fmt: skip
        self.connection = connection
        self.dialect = connection.dialect
        self.plan = plan
        self.stage = stage
        self.rows = rows
        self.schema = staged_schema(plan.schema)
        self.excluded: list[int] = []
        # CASE keeps the planner from assuming that these attempts have few of the rows
        chosen = f"CASE WHEN {ATTEMPT} IN ({', '.join(map(str, attempts))}) THEN true ELSE false END"
        self._chosen = " AND ".join(filter(None, (chosen if attempts else "", where)))
        self.order = plan.order_name if keep_newer else ""
        self._targets = {column.index: column.target for column in plan.columns}

    def check_rows(self) -> None:
        """Raises if staged rows are gone: PostgreSQL empties unlogged tables when it starts after a crash.

        Nobody can drop the stage between this and the end of the transaction.
        """
        try:
            ((count,),) = self.connection.rows(f"SELECT count(*) FROM {self._source()}")
        except Fatal as error:
            raise Fatal(
                f"what tasks have staged cannot be read, as if another run of the query had dropped it ({error.message})",
                way_out="let one run at a time write with a checkpoint; nothing of the batch is written",
            ) from None
        if count != self.rows:
            raise Fatal(
                f"{self.rows} rows were staged and {count} are there: the server has lost the others, as in a crash, or "
                "another run of the query has dropped them",
                way_out="start the query again, and let one run of it write at a time: nothing of the batch is written",
            )

    def check_keys(self) -> None:
        """Refuses a batch that has a key more than once if nothing says which row is the last.

        It skips the check for an upsert if the database itself refuses a statement with repeated keys.
        """
        if not (self.dialect.tells_repeated_keys and self.plan.operation == "upsert" and self.plan.delete is None):
            self._refuse_repeated_keys()

    def _refuse_repeated_keys(self) -> None:
        """Refuses repeated keys; rows with a null key have no key in common."""
        plan = self.plan
        if not plan.keys or plan.order is not None:
            return
        keys = self._keys()
        present = [f"c{index} IS NOT NULL" for index in plan.key_indexes]
        sql = f"SELECT {keys} FROM {self._source(*present)} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
        if self.connection.rows(sql):
            raise repeated_keys()

    def move(self) -> None:
        """Moves all rows. Raises :class:`Poison`, which does not name the row, if the database refuses one."""
        self._move(None)

    def move_all_but(self, rejects: RejectedRows) -> None:
        """Moves all rows except those that the database refuses, which go to ``rejects``.

        The search by halves may move rows with the same key one after the other, so no database would refuse these.
        """
        self._refuse_repeated_keys()
        first, last = self._positions()
        if last >= first:
            self._move_by_halves(StageRange(first, last), rejects)

    def move_up_to(self, last: int) -> None:
        """Moves the rows up to a position, as a trial."""
        self._move(StageRange(0, last))

    def exclude(self, position: int, rejects: RejectedRows, error: Poison) -> None:
        """Passes the row at ``position`` to ``rejects``, and leaves it out of later moves."""
        self._reject(StageRange(position, position), rejects, error)
        self.excluded.append(position)

    def _move_by_halves(self, rows: StageRange, rejects: RejectedRows) -> None:
        try:
            with self.connection.savepoint():
                self._move(rows)
        except Poison as error:
            if rows.first == rows.last:
                return self._reject(rows, rejects, error)
            for half in rows.halves():
                self._move_by_halves(half, rejects)

    def _reject(self, rows: StageRange, rejects: RejectedRows, error: Poison) -> None:
        sql = f"SELECT {', '.join(self._all_columns())} FROM {self._source(self._between(rows))}"
        for row in self.connection.rows(sql):
            rejects.add(dict(zip(self.plan.schema.names, row, strict=True)), error)

    def _move(self, rows: StageRange | None) -> None:
        """Writes rows, and deletes those that ``deleteColumn`` marks; ``None`` means all rows."""
        plan, dialect, connection = self.plan, self.dialect, self.connection
        stays = f"NOT coalesce(c{plan.delete}, false)" if plan.delete is not None else ""
        select = self._select([column.index for column in plan.columns], plan.names, stays, rows)
        if plan.operation == "insert":
            statements: tuple[str, ...] = (dialect.insert(plan.table, plan.names, select),)
        elif plan.operation == "upsert":
            statements = dialect.upsert(plan.table, plan.names, plan.keys, plan.updated, select, self.order)
        else:
            statements = (dialect.update(plan.table, plan.keys, plan.updated, select, self.order),) if plan.updated else ()
        if plan.delete is not None:
            deleted = self._select(plan.key_indexes, plan.keys, f"c{plan.delete}", rows)
            statements += (dialect.delete(plan.table, plan.keys, deleted),)
        for statement in statements:
            connection.execute(statement)

    def _select(self, indexes: Sequence[int], names: Sequence[str], condition: str, rows: StageRange | None) -> str:
        """The staged columns ``indexes`` as values for the target; of rows with the same key only the last by its order."""
        values = ", ".join(
            f"{self._cast(index)} AS {self.dialect.quote(name)}" for index, name in zip(indexes, names, strict=True)
        )
        if self.plan.order is not None and self.plan.keys:
            inside = ""
            if rows is not None:
                inside = f"connectors_at BETWEEN {rows.first} AND {rows.last}"
            where = _where("connectors_rank = 1", condition, inside, self._not_excluded("connectors_at"))
            return f"SELECT {values} FROM ({self._ranked()}) AS connectors_rows {where}"
        inside = self._between(rows) if rows is not None else ""
        return f"SELECT {values} FROM {self._source(inside, condition, self._not_excluded(self._position()))}"

    def _positions(self) -> tuple[int, int]:
        """The first and last position of rows; not every position has a row."""
        return self.dialect.positions(self.connection, self.stage)

    def _position(self) -> str:
        """The position of a row, as SQL."""
        return self.dialect.position()

    def _between(self, rows: StageRange) -> str:
        return self.dialect.between(rows.first, rows.last)

    def _cast(self, index: int) -> str:
        return self.dialect.cast(f"c{index}", self.plan.schema.field(index).type, self._targets[index])

    def _keys(self) -> str:
        """The key of a staged row, without a cast: one value that cannot be cast would prevent all comparisons."""
        key: list[tuple[str, pa.DataType, Column]] = [
            (f"c{index}", self.schema.field(index).type, self._targets[index]) for index in self.plan.key_indexes
        ]
        return ", ".join(self.dialect.key(*column) for column in key)

    def _not_excluded(self, position: str) -> str:
        return f"{position} NOT IN ({', '.join(map(str, self.excluded))})" if self.excluded else ""

    def _ranked(self) -> str:
        """All rows with a rank; the last row of each key has rank 1."""
        assert self.plan.order is not None
        order = self.dialect.ordered(f"c{self.plan.order}", self.schema.field(self.plan.order).type)
        newest = f"CASE WHEN {order} IS NULL THEN 1 ELSE 0 END, {order} DESC"
        rank = f"row_number() OVER (PARTITION BY {self._keys()} ORDER BY {newest}) AS connectors_rank"
        staged = ", ".join(self._all_columns())
        return f"SELECT {staged}, {self.dialect.position()} AS connectors_at, {rank} FROM {self._source()}"

    def _all_columns(self) -> list[str]:
        return [f"c{index}" for index in range(len(self.schema))]

    def _source(self, *conditions: str) -> str:
        """The text after FROM for rows of the stage: the table and the conditions."""
        return f"{self.dialect.table(self.stage)} {_where(self._chosen, *conditions)}"


def _where(*conditions: str) -> str:
    return f"WHERE {' AND '.join(filter(None, conditions))}" if any(conditions) else ""

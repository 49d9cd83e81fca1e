"""Where a task attempt puts its rows: a staging table beside the target, or a file for databases with one writer.

A staging table is called ``cst_<sink>_<batch>_<time>_<run><random>`` (time: hours since 1970), so that the sweeper recognizes
old ones, and a run those of earlier runs. Its columns are ``c0``, ``c1``, …: no name of the user's can be in the way there.
"""

from __future__ import annotations

import base64
import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import Fatal, Misconfigured, Poison, Problem, Transient
from ...core.folder import SinkFolder
from ...core.sink import Batch, Committable, SinkWriter
from ...core.state import digest
from ...core.writing import ArrowStage
from .column_types import flat, flat_schema
from .connection import Connection
from .dialects import Column, Dialect, Table
from .dialects.postgresql import repeated_keys
from .load import Chunks, Loader, loader_for
from .target import Plan


def stage_prefix(sink_id: str) -> str:
    """What the names of all staging tables of a sink begin with."""
    return f"cst_{digest(sink_id, length=8)}_"


def new_stage(batch: Batch) -> str:
    """A new name for a staging table, 59 bytes."""
    hours = int(time.time() / 3600)
    return f"{stage_prefix(batch.sink_id)}{batch.prefix()}_{hours:08x}_{batch.run_id()}{uuid.uuid4().hex[:16]}"


def is_of_run(stage: str, batch: Batch) -> bool:
    """True if the run of ``batch`` has made the staging table; versions before wrote names that are of no run."""
    return stage.split("_")[4].startswith(batch.run_id())


def age_of(stage: str) -> float:
    """How old a staging table is, in seconds, by its name."""
    return time.time() - int(stage.split("_")[3], 16) * 3600


def packed(schema: pa.Schema) -> str:
    """A schema as text, for a committable."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def unpacked(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def staged_columns(dialect: Dialect, schema: pa.Schema) -> list[tuple[str, str]]:
    """Names and types of the columns of a staging table. Raises :class:`Misconfigured` for types that there are not."""
    types = [(field, dialect.sql_type(field.type)) for field in flat_schema(schema)]
    problems = [
        Problem(field.name, f"has the type {field.type}, which {dialect.name} cannot hold; cast it in the query.")
        for field, sql in types
        if sql is None
    ]
    if problems:
        raise Misconfigured("connectors.jdbc", problems)
    return [(f"c{number}", str(sql)) for number, (_, sql) in enumerate(types)]


class TableWriter(SinkWriter):
    """Stages rows in a table of their own, which other connections see when the attempt is complete."""

    def __init__(self, dialect: Dialect, target: Table, batch: Batch, schema: pa.Schema) -> None:
        self.dialect = dialect
        self.schema = schema
        self.columns = staged_columns(dialect, schema)
        self.stage = target.beside(new_stage(batch))
        self.rows = 0
        self._chunks = Chunks()
        self._loader: Loader | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        kept = without_zeros(self.dialect, flat(batch), self.rejects)
        self.rows += kept.num_rows
        if kept.num_rows and self._chunks.add(kept):
            self._load()

    def prepare(self) -> Committable:
        self._load()
        if self._loader is None:
            return Committable(0, {"schema": packed(self.schema)})
        self._loader.limit_idle()
        self._loader.commit()
        return Committable(self.rows, {"stage": self.stage.name, "schema": packed(self.schema)})

    def abort(self) -> None:
        if self._loader is not None:
            self._loader.close()
            with contextlib.suppress(Exception), contextlib.closing(self.dialect.connect()) as connection:
                drop(connection, self.stage)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _load(self) -> None:
        if not self._chunks.batches:
            return
        if self._loader is None:
            self._loader = loader_for(self.dialect)
            self._loader.connection.execute(self.dialect.create_stage(self.stage, self.columns))
        self._loader.load(self.stage, self._chunks.take([name for name, _ in self.columns]))


def without_zeros(dialect: Dialect, batch: pa.RecordBatch, rejects: Rejects | None) -> pa.RecordBatch:
    """PostgreSQL has no text with a zero byte, and would refuse the whole load for one.

    Raises :class:`Poison` if there are no ``rejects``.
    """
    if not dialect.refuses_zero_bytes:
        return batch
    good: Any = None
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            clean = pc.fill_null(pc.invert(pc.match_substring(column, "\0")), True)
            good = clean if good is None else pc.and_(good, clean)
    if good is None or pc.all(good).as_py():
        return batch
    refused = "a text with a zero byte, which PostgreSQL cannot hold"
    if rejects is None:
        raise Poison(refused)
    for row in batch.filter(pc.invert(good)).to_pylist():
        rejects.add(row, refused)
    return batch.filter(good)


class FileWriter(SinkWriter):
    """Stages rows in an Arrow file beside the database's, for the driver to load."""

    def __init__(self, dialect: Dialect, folder: SinkFolder, batch: Batch, schema: pa.Schema) -> None:
        staged_columns(dialect, schema)  # types that there are not are told before anything is written
        self.schema = schema
        self.staged = ArrowStage(folder, batch.attempt())

    def write(self, batch: pa.RecordBatch) -> None:
        self.staged.write(flat(batch).replace_schema_metadata(None))

    def prepare(self) -> Committable:
        self.staged.close()
        file = {"file": self.staged.attempt} if self.staged.rows else {}
        return Committable(self.staged.rows, {**file, "schema": packed(self.schema)})

    def abort(self) -> None:
        self.staged.remove()

    def close(self) -> None:
        self.staged.close()


def drop(connection: Connection, stage: Table) -> None:
    """Drops a staging table, unless a session uses it: a later run, or the sweep, drops that one."""
    with contextlib.suppress(Transient):
        connection.execute(connection.dialect.drop_stage(stage))


# MERGED From the stage into the target: set statements, and the search for rows that the database refuses.

class Rejects(Protocol):
    """Takes the rows that the database refuses."""

    def add(self, row: Mapping[str, Any], error: BaseException | str) -> None: ...


@dataclass(frozen=True)
class Part:
    """The rows at the positions ``first`` to ``last`` of stage number ``stage``."""

    stage: int
    first: int
    last: int

    def halves(self) -> tuple[Part, Part]:
        middle = (self.first + self.last) // 2
        return Part(self.stage, self.first, middle), Part(self.stage, middle + 1, self.last)


class Move:
    """Moves the rows of ``stages`` as ``plan`` says. All of its statements run inside the caller's transaction.

    With ``keep_newer``, a row of the target stays as it is if it has a larger value in the column that orders rows.
    """

    def __init__(self, connection: Connection, plan: Plan, stages: Sequence[Table], *, keep_newer: bool = False) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self.plan = plan
        self.stages = list(stages)
        self.staged = flat_schema(plan.schema)
        self.left_out: list[int] = []
        self.order = plan.order_name if keep_newer else ""

    def check_rows(self, expected: int) -> None:
        """Stops if staged rows are gone: PostgreSQL empties unlogged tables when it starts after a crash."""
        try:
            counts = [self.connection.rows(f"SELECT count(*) FROM {self.dialect.table(stage)}")[0][0] for stage in self.stages]
        except Fatal as gone:
            raise Fatal(
                f"what tasks have staged cannot be read, as if another run of the query had dropped it ({gone.message})",
                way_out="let one run at a time write with a checkpoint; nothing of the batch is written",
            ) from None
        if sum(counts) != expected:
            raise Fatal(
                f"{expected} rows were staged and {sum(counts)} are there: the server has lost the others, as in a crash",
                way_out="start the query again: nothing of the batch is written, and all of it is staged anew",
            )

    def check_keys(self) -> None:
        """Refuses a batch with a key more than once, if nothing says which row is the last one."""
        told = self.dialect.tells_repeated_keys and self.plan.operation == "upsert" and self.plan.delete is None
        if not self.stages or not self.plan.keys or self.plan.order is not None or told:
            return
        keys = self._keys()
        union = self._union([f"c{index}" for index in self.plan.key_indexes])
        sql = f"SELECT {keys} FROM ({union}) AS connectors_all GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
        if self.connection.rows(sql):
            raise repeated_keys()

    def all(self) -> None:
        """Moves everything. Raises :class:`Poison` if the database refuses a row, without saying which."""
        if self.stages:
            self._run(None)

    def all_but(self, rejects: Rejects) -> None:
        """Moves everything but the rows that the database refuses, which are handed to ``rejects``."""
        for part in self._parts():
            self._by_halves(part, rejects)

    def up_to(self, last: int) -> None:
        """Moves the rows of the only stage up to a position, as a trial."""
        self._run(Part(0, 0, last))

    def leave_out(self, position: int, rejects: Rejects, refused: Poison) -> None:
        """Hands the row at ``position`` of the only stage to ``rejects``; it is not moved from now on."""
        for row in self._rows(Part(0, position, position)):
            rejects.add(row, refused)
        self.left_out.append(position)

    def _by_halves(self, part: Part, rejects: Rejects) -> None:
        try:
            with self.connection.savepoint():
                self._run(part)
        except Poison as refused:
            if part.first == part.last:
                for row in self._rows(part):
                    rejects.add(row, refused)
                return
            for half in part.halves():
                self._by_halves(half, rejects)

    def _parts(self) -> Iterator[Part]:
        for number, stage in enumerate(self.stages):
            first, last = self.dialect.positions(self.connection, stage)
            if last >= first:
                yield Part(number, first, last)

    def _rows(self, part: Part) -> list[dict[str, Any]]:
        columns = ", ".join(f"c{index}" for index in range(len(self.staged)))
        where = self.dialect.between(part.first, part.last)
        found = self.connection.rows(f"SELECT {columns} FROM {self.dialect.table(self.stages[part.stage])} WHERE {where}")
        return [dict(zip(self.plan.schema.names, row, strict=True)) for row in found]

    def _run(self, part: Part | None) -> None:
        plan, dialect, connection = self.plan, self.dialect, self.connection
        kept = f"NOT coalesce(c{plan.delete}, false)" if plan.delete is not None else ""
        values = [self._value(written.index) for written in plan.columns]
        select = self._select(values, plan.names, kept, part)
        if plan.operation == "insert":
            connection.execute(dialect.insert(plan.table, plan.names, select))
        elif plan.operation == "upsert":
            for statement in dialect.upsert(plan.table, plan.names, plan.keys, plan.updated, select, self.order):
                connection.execute(statement)
        else:
            connection.execute(dialect.update(plan.table, plan.keys, plan.updated, select, self.order))
        if plan.delete is not None:
            gone = self._select([self._value(index) for index in plan.key_indexes], plan.keys, f"c{plan.delete}", part)
            connection.execute(dialect.delete(plan.table, plan.keys, gone))

    def _value(self, index: int) -> str:
        return self.dialect.cast(f"c{index}", self.staged.field(index).type, self._target(index))

    def _target(self, index: int) -> Column:
        return next(written.target for written in self.plan.columns if written.index == index)

    def _keys(self) -> str:
        """The key of a staged row. It is not cast, since a value that has no cast would keep all rows from being compared."""
        staged = self.staged
        keys = [self.dialect.key(f"c{index}", staged.field(index).type, self._target(index)) for index in self.plan.key_indexes]
        return ", ".join(keys)

    def _select(self, values: Sequence[str], names: Sequence[str], kept: str, part: Part | None) -> str:
        shown = ", ".join(f"{value} AS {self.dialect.quote(name)}" for value, name in zip(values, names, strict=True))
        if self.plan.order is not None and self.plan.keys:
            where = [kept] if kept else []
            if part is not None:
                where += [f"connectors_stage = {part.stage}", f"connectors_at BETWEEN {part.first} AND {part.last}"]
            where += [f"connectors_at {self._others()}"] if self.left_out else []
            ranked = self._last_of_each_key()
            return f"SELECT {shown} FROM ({ranked}) AS connectors_rows {_where('connectors_rank = 1', *where)}"
        if part is not None or self.left_out:
            part = part or Part(0, *self.dialect.positions(self.connection, self.stages[0]))
            left = f"{self.dialect.position()} {self._others()}" if self.left_out else ""
            stage = self.dialect.table(self.stages[part.stage])
            return f"SELECT {shown} FROM {stage} {_where(self.dialect.between(part.first, part.last), kept, left)}"
        return f"SELECT {shown} FROM ({self._union(self._all())}) AS connectors_rows {_where(kept)}"

    def _others(self) -> str:
        return f"NOT IN ({', '.join(map(str, self.left_out))})"

    def _last_of_each_key(self) -> str:
        order = f"c{self.plan.order}"
        newest = f"CASE WHEN {order} IS NULL THEN 1 ELSE 0 END, {order} DESC"
        rank = f"row_number() OVER (PARTITION BY {self._keys()} ORDER BY {newest}) AS connectors_rank"
        columns = [*self._all(), "connectors_stage", "connectors_at"]
        selects = [
            f"SELECT {', '.join(self._all())}, {number} AS connectors_stage, {self.dialect.position()} AS connectors_at "
            f"FROM {self.dialect.table(stage)}"
            for number, stage in enumerate(self.stages)
        ]
        return f"SELECT {', '.join(columns)}, {rank} FROM ({' UNION ALL '.join(selects)}) AS connectors_all"

    def _all(self) -> list[str]:
        return [f"c{index}" for index in range(len(self.staged))]

    def _union(self, columns: Sequence[str]) -> str:
        return " UNION ALL ".join(f"SELECT {', '.join(columns)} FROM {self.dialect.table(stage)}" for stage in self.stages)


def _where(*conditions: str) -> str:
    given = [condition for condition in conditions if condition]
    return f"WHERE {' AND '.join(given)}" if given else ""

"""Straight into the target: by a transaction that the task prepares and the driver commits.

A task of ``commit=task`` loads in the same way, where nothing must be moved by a statement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from ...core.errors import Misconfigured, Poison, Problem
from ...core.options import Values
from ...core.sink import Batch, Committable, SinkWriter
from .column_types import fitted, flat, flat_schema
from .dialects import Dialect
from .loaders import Chunks, Loader, loader_for
from .prepared import Markers, Prepared, prepared_name
from .target import Plan, Target


def prepared_plan(values: Values, dialect: Dialect, schema: pa.Schema, batch: Batch) -> Plan:
    """How a task of ``commit=prepared`` writes. Raises :class:`Misconfigured` with what keeps it from doing so."""
    with contextlib.closing(dialect.connect()) as connection:
        problems = [*_by_options(values, batch)]
        if not dialect.most_prepared(connection):
            problems.append(Problem("commit", f"prepared needs {dialect.prepared_needs}."))
        if problems:
            raise Misconfigured("connectors.jdbc", problems)
        plan = Target(values, dialect).plan(connection, schema)
        if unfit := list(unfit_columns(dialect, plan)):
            raise Misconfigured("connectors.jdbc", unfit)
        Markers(dialect, plan.table).make(connection)
    return plan


def _by_options(values: Values, batch: Batch) -> Iterator[Problem]:
    if values["operation"] != "insert" or values["deleteColumn"]:
        yield Problem("commit", "prepared takes inserts only: tasks that change the same row would wait for each other.")
    if values["errors"] != "fail":
        yield Problem("commit", f"prepared cannot look for bad rows; take commit=batch with errors={values['errors']}.")
    if batch.replace:
        yield Problem("commit", "prepared cannot replace what is in the table; take commit=batch with overwrite.")


def unfit_columns(dialect: Dialect, plan: Plan) -> Iterator[Problem]:
    """What keeps rows from being loaded into the target as they are."""
    if not dialect.loads_exactly:
        return
    staged = flat_schema(plan.schema)
    for one in plan.columns:
        if not _fits(staged.field(one.index).type, one.target.kind):
            text = f"is {one.kind} and goes into {one.target.sql}, which cannot be loaded directly"
            yield Problem(one.target.name, f"{text}; take commit=batch, or cast it.")


def _fits(given: pa.DataType, target: pa.DataType | None) -> bool:
    """True if each value of ``given`` either is one of ``target`` or is refused, and none is changed."""
    if target is None:
        return False
    numbers = (pa.types.is_integer, pa.types.is_floating)
    same = any(kind(given) and kind(target) for kind in numbers) and given.bit_width <= target.bit_width
    return bool(given == target or same or (pa.types.is_integer(given) and pa.types.is_integer(target)))


def loadable(dialect: Dialect, plan: Plan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with the target's columns. Raises :class:`Poison` if a value does not fit."""
    kept = flat(batch).select([one.index for one in plan.columns])
    if not dialect.loads_exactly:
        return kept
    try:
        return fitted(kept, [one.target.kind for one in plan.columns])
    except pa.ArrowInvalid as error:
        raise Poison(f"a value does not fit into {plan.table}: {error}") from None


class PreparedWriter(SinkWriter):
    """Loads the rows of an attempt into the target, in a transaction that it prepares."""

    def __init__(self, dialect: Dialect, plan: Plan, batch: Batch) -> None:
        self.dialect = dialect
        self.plan = plan
        self.batch = batch
        self.name = prepared_name(batch)
        self.rows = 0
        self._chunks = Chunks()
        self._loader: Loader | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        kept = loadable(self.dialect, self.plan, batch)
        self.rows += kept.num_rows
        if self._chunks.add(kept):
            self._load()

    def prepare(self) -> Committable:
        self._load()
        if self._loader is None:
            return Committable(0)
        self._loader.limit_idle()
        Markers(self.dialect, self.plan.table).add(self._loader.connection, self.name)
        self._loader.prepare(self.dialect.prepare(self.name))
        return Committable(self.rows, {"prepared": self.name})

    def abort(self) -> None:
        if self._loader is not None:
            self._loader.close()
            with contextlib.suppress(Exception), contextlib.closing(self.dialect.connect()) as connection:
                Prepared(connection, self.plan.table, self.batch.sink_id).roll_back([self.name])

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _load(self) -> None:
        if self._chunks.batches:
            self._loader = self._loader or loader_for(self.dialect)
            self._loader.begin(self.dialect.begin_prepared(self.name))
            self._loader.load(self.plan.table, self._chunks.take(self.plan.names))



"""Transactions that tasks have prepared in the database, and that the driver commits when the batch is decided.

They are called ``connectors-<sink>-<batch>-<run>-<time><random>``. A prepared transaction outlives its connection and the
server. A name that the server no longer has was committed or rolled back, and the server does not say which. So each
transaction holds a *marker*: its own name as a row of the table ``connectors_prepared``, visible once it is committed.

Who decides, commits or rolls back holds the *lock* of the sink, so that no driver rolls back what another one is about to
commit. It is a lock of the session, as databases end prepared transactions outside of transactions only.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from ...core.errors import DataLoss, Fatal, Misconfigured, Poison, Problem
from ...core.options import Values
from ...core.sink import Batch, Committable, SinkWriter
from ...core.state import digest
from .column_types import fitted, flat, flat_schema
from .connection import Connection
from .dialects import Dialect, Table
from .ledger import exists, make_table
from .load import Chunks, Loader, loader_for
from .target import Plan, Target

ABANDONED_SECONDS = 3600.0
"""When the sweep rolls back a prepared transaction that no ledger row names; the next run of its batch does so at once."""
_MARKERS = "connectors_prepared"
_PARTS_WITH_MARKER = 5
"""Versions before gave names of four parts, and wrote no marker."""


def prepared_name(batch: Batch) -> str:
    """A new name for a prepared transaction, 78 bytes; the last 32 are the time and what is random."""
    return f"{_run(batch)}{int(time.time()):08x}{uuid.uuid4().hex[:24]}"


def lock_name(sink_id: str) -> str:
    """The name of a sink's lock, 23 bytes."""
    return f"connectors-{digest(sink_id)}"


def _run(batch: Batch) -> str:
    """How the names begin that the run of ``batch`` gives; versions before gave names without a run."""
    return f"{lock_name(batch.sink_id)}-{batch.prefix()}-{batch.run_id()}-"


class Markers:
    """The table of markers beside ``target``."""

    def __init__(self, dialect: Dialect, target: Table) -> None:
        self.dialect = dialect
        self.table = target.beside(_MARKERS)

    def make(self, connection: Connection) -> None:
        """Makes the table, unless it exists. Not to be called inside a transaction."""
        make_table(connection, self.table, f"name {self.dialect.identifier} NOT NULL PRIMARY KEY")

    def add(self, connection: Connection, name: str) -> None:
        """A part of the transaction ``name``."""
        sql = f"INSERT INTO {self.dialect.table(self.table)} (name) VALUES ({self.dialect.placeholder})"
        connection.execute(sql, [name])

    def committed_names(self, connection: Connection, names: Sequence[str]) -> set[str]:
        """Those of ``names`` whose transactions are committed."""
        if not names or not exists(connection, self.table):
            return set()
        sql = f"SELECT name FROM {self.dialect.table(self.table)} WHERE name IN ({self.dialect.slots(len(names))})"
        return {name for (name,) in connection.rows(sql, names)}

    def remove(self, connection: Connection, names: Collection[str]) -> None:
        """What they say is now in the ledger."""
        sql = f"DELETE FROM {self.dialect.table(self.table)} WHERE name = {self.dialect.placeholder}"
        for name in sorted(name for name in names if _has_marker(name)):
            connection.execute(sql, [name])


class Prepared:
    """The prepared transactions of one sink, whose rows are in ``target``."""

    def __init__(self, connection: Connection, target: Table, sink_id: str) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self.name = lock_name(sink_id)
        self.markers = Markers(self.dialect, target)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The lock of the sink; it ends with the session at the latest.

        Raises :class:`~connectors.systems.jdbc.connection.LockTimeout` where another session has it for longer.
        """
        self.dialect.lock(self.connection, self.name)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                self.dialect.unlock(self.connection, self.name)

    def of_batch(self, batch: Batch) -> set[str]:
        """The names that attempts at ``batch`` have prepared."""
        return {name for name in self._existing() if name.startswith(f"{self.name}-{batch.prefix()}-")}

    def of_earlier_runs(self, batch: Batch) -> set[str]:
        """Those of :meth:`of_batch` that another run than that of ``batch`` has prepared."""
        return {name for name in self.of_batch(batch) if not name.startswith(_run(batch))}

    def orphans(self, live: frozenset[str]) -> set[str]:
        """Old ones, except those of ``live`` batches."""
        old = {name for name, age in self._existing().items() if age > ABANDONED_SECONDS}
        return {name for name in old if name.split("-")[2] not in live}

    def check(self, batch: Batch, names: Collection[str]) -> None:
        """Before the decision, under the lock: raises :class:`Fatal` unless all of ``names`` exist.

        The others of ``batch`` belong to dead attempts and are rolled back.
        """
        existing = self.of_batch(batch)
        if missing := set(names) - existing:
            raise Fatal(
                f"{len(missing)} of {len(names)} prepared transactions of the batch are gone: another run of the query, or a "
                "person, has rolled them back",
                way_out="start the query again: nothing of the batch was committed",
            )
        self.roll_back(existing - set(names))

    def commit(self, names: Sequence[str]) -> None:
        """Commits what is decided, under the lock. Raises :class:`DataLoss` for what somebody has rolled back since."""
        for name in sorted(set(names) & self._existing().keys()):
            self.dialect.commit_prepared(self.connection, name)
        expected = [name for name in names if _has_marker(name)]
        if lost := set(expected) - self.markers.committed_names(self.connection, expected):
            table = self.dialect.table(self.markers.table)
            markers = "; ".join(f"INSERT INTO {table} VALUES ('{name}')" for name in sorted(lost))
            raise DataLoss(
                f"{len(lost)} of {len(names)} prepared transactions of a batch that is decided were rolled back by somebody "
                "else, and their rows are not in the table; the others are committed",
                way_out=f"write the missing rows of the batch yourself, and say so by {markers}; then start the query again",
            )

    def roll_back(self, names: Collection[str]) -> None:
        """Rolls back those of ``names`` that exist; under the lock, unless only the caller knows the name."""
        for name in sorted(set(names) & self._existing().keys()) if names else ():
            self.dialect.rollback_prepared(self.connection, name)

    def _existing(self) -> dict[str, float]:
        return self.dialect.prepared(self.connection, f"{self.name}-")


def _has_marker(name: str) -> bool:
    return name.count("-") + 1 >= _PARTS_WITH_MARKER


# MERGED Straight into the target: by a transaction that the task prepares and the driver commits.
#
# A task of ``commit=task`` loads in the same way, where nothing must be moved by a statement.

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

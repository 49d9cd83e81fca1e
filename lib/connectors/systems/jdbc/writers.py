"""The writers of tasks: into a staging table or file, or into the target in a transaction that the task prepares."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...core.batch import Batch, Committable
from ...core.folder import SinkFolder
from ...core.sink import SinkWriter
from ...core.writing import StageWriter
from ...ground.columns import is_text
from ...ground.errors import ConnectorError, Poison
from . import load
from .column_types import cast_exactly, with_json_text
from .dialects import Dialect, Table
from .ledger import exists
from .prepared import Markers, PreparedTransactions, prepared_name
from .routing import TABLE, Routing
from .stage import ATTEMPT, PLACE, RejectedRows, new_attempt, packed, places, stage_of
from .target import WritePlan, staged_columns


class LoadingWriter(SinkWriter):
    """Loads the rows of a task attempt; the first rows call :meth:`begin`, and :meth:`prepare` ends the load."""

    def __init__(self, dialect: Dialect, table: Table, columns: list[str]) -> None:
        self.dialect = dialect
        self.table = table
        self.columns = columns
        self.rows = 0
        self.empty: Mapping[str, Any] = {}
        """The data of a committable without rows."""
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._loader: load.Loader | None = None

    @abstractmethod
    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of ``batch`` with the columns to load."""

    @abstractmethod
    def begin(self, loader: load.Loader) -> None:
        """Prepares for rows, for example begins a transaction."""

    @abstractmethod
    def end(self, loader: load.Loader) -> Mapping[str, Any]:
        """Called when all rows are loaded. Returns the data of the committable."""

    def write(self, batch: pa.RecordBatch) -> None:
        rows = self.convert(batch)
        self.rows += rows.num_rows
        if rows.num_rows:
            self._waiting.append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= load.LOADED_AT_ONCE:
            self._load()

    def prepare(self) -> Committable:
        self._load()
        if self._loader is None:
            return Committable(self.rows, self.empty)
        self._loader.limit_idle()
        return Committable(self.rows, self.end(self._loader))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _load(self) -> None:
        batches, self._waiting, self._bytes = self._waiting, [], 0
        if not batches:
            return
        if self._loader is None:
            self._loader = load.loader_for(self.dialect)
            self.begin(self._loader)
        self._loader.load(self.table, pa.Table.from_batches(batches).rename_columns(self.columns))


class TableWriter(LoadingWriter):
    """``commit=batch``: stages rows in the table of the batch, with the number of the attempt.

    With ``in_order``, the order of the task's rows can be read from the table; with ``routing``, their tables.
    """

    def __init__(
        self, dialect: Dialect, target: Table, batch: Batch, schema: pa.Schema, *, subtask: int = 0, in_order: bool = False,
        routing: Routing | None = None,
    ) -> None:  # fmt: skip
        numbers = [TABLE] if routing else []
        numbers += [ATTEMPT, PLACE] if in_order and not dialect.keeps_order else [ATTEMPT]
        self.stage_columns = [*staged_columns(dialect, schema), *((name, dialect.types["int64"]) for name in numbers)]
        self.subtask = subtask
        self.routing = routing
        super().__init__(dialect, target.beside(stage_of(batch)), [name for name, _ in self.stage_columns])
        self.attempt = new_attempt()
        self.empty = {"schema": packed(schema)}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = loadable_rows(self.dialect, with_json_text(batch), self.rejects)
        if self.routing:
            rows = self.routing.numbered(rows, self.rejects)
        numbers = [pa.repeat(pa.scalar(self.attempt, pa.int64()), rows.num_rows)]
        if PLACE in self.columns:
            numbers.append(places(self.subtask, self.rows, rows.num_rows))
        return pa.RecordBatch.from_arrays([*rows.columns, *numbers], self.columns)

    def begin(self, loader: load.Loader) -> None:
        """Makes the table. All tasks do so at once; PostgreSQL may refuse some of them in spite of IF NOT EXISTS."""
        connection = loader.connection
        try:
            for statement in self.dialect.create_stage(self.table, self.stage_columns):
                connection.execute(statement)
            loader.commit()
        except ConnectorError:
            connection.rollback()
            if not exists(connection, self.table):
                raise

    def end(self, loader: load.Loader) -> Mapping[str, Any]:
        loader.commit()
        tables = {"tables": dict(self.routing.rows)} if self.routing else {}
        return {"stage": self.table.name, "attempt": self.attempt, **tables, **self.empty}


class FileWriter(StageWriter):
    """``commit=batch`` for databases with one writer: stages rows in an Arrow file, which the driver loads."""

    def __init__(
        self, dialect: Dialect, folder: SinkFolder, batch: Batch, schema: pa.Schema, routing: Routing | None = None
    ) -> None:
        staged_columns(dialect, schema)  # refuses types before anything is written
        self.dialect = dialect
        self.schema = schema
        self.routing = routing
        super().__init__(folder, batch)

    def write(self, batch: pa.RecordBatch) -> None:
        rows = loadable_rows(self.dialect, with_json_text(batch), self.rejects)
        if self.routing:
            rows = self.routing.numbered(rows, self.rejects)
        self.staged.write(rows.replace_schema_metadata(None))

    def prepare(self) -> Committable:
        tables = {"tables": dict(self.routing.rows)} if self.routing else {}
        return Committable(self.staged.rows, {**super().prepare().data, **tables, "schema": packed(self.schema)})


class PreparedWriter(LoadingWriter):
    """``commit=prepared``: loads rows into the target in a transaction that it prepares and the driver commits."""

    def __init__(self, dialect: Dialect, plan: WritePlan, batch: Batch) -> None:
        super().__init__(dialect, plan.table, plan.names)
        self.plan = plan
        self.batch = batch
        self.name = prepared_name(batch)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return target_rows(self.dialect, self.plan, batch, self.rejects)

    def begin(self, loader: load.Loader) -> None:
        loader.begin(self.dialect.begin_prepared(self.name))

    def end(self, loader: load.Loader) -> Mapping[str, Any]:
        Markers(self.dialect, self.plan.table).add(loader.connection, self.name)
        loader.prepare(self.dialect.prepare(self.name))
        return {"prepared": self.name}

    def abort(self) -> None:
        if self._loader is not None:
            self._loader.close()
            with contextlib.suppress(Exception), contextlib.closing(self.dialect.connect()) as connection:
                PreparedTransactions(connection, self.plan.table, self.batch.sink_id).roll_back([self.name])


def target_rows(
    dialect: Dialect, plan: WritePlan, batch: pa.RecordBatch, rejects: RejectedRows | None = None
) -> pa.RecordBatch:
    """The :func:`loadable_rows` of ``batch`` with the target's columns. Raises :class:`Poison` if a value does not fit."""
    rows = loadable_rows(dialect, with_json_text(batch), rejects).select([column.index for column in plan.columns])
    if not dialect.loads_exactly:
        return rows
    try:
        return cast_exactly(rows, [column.target.kind for column in plan.columns])
    except pa.ArrowInvalid as error:
        raise Poison(f"a value does not fit into {plan.table}: {error}") from None


def loadable_rows(dialect: Dialect, batch: pa.RecordBatch, rejects: RejectedRows | None) -> pa.RecordBatch:
    """``batch`` without rows that would make the driver or the database refuse the whole load.

    Raises :class:`Poison` if there are no ``rejects`` to take them.
    """
    for find_good, reason in _LOADABLE:
        good = find_good(dialect, batch)
        if good is None or pc.all(good).as_py():
            continue
        if rejects is None:
            raise Poison(reason)
        for row in _readable(batch.filter(pc.invert(good))).to_pylist():
            rejects.add(row, reason)
        batch = batch.filter(good)
    return batch


def _with_utf8(dialect: Dialect, batch: pa.RecordBatch) -> pa.Array | None:
    return _all_good([_are_utf8(text) for text in _texts(batch) if not _is_valid(text)])


def _without_zero_bytes(dialect: Dialect, batch: pa.RecordBatch) -> pa.Array | None:
    texts = _texts(batch) if dialect.refuses_zero_bytes else []
    return _all_good([pc.invert(pc.match_substring(text, "\0")) for text in texts])


def _with_finite_numbers(dialect: Dialect, batch: pa.RecordBatch) -> pa.Array | None:
    columns = batch.columns if dialect.refuses_infinity else []
    return _all_good([pc.is_finite(column) for column in columns if pa.types.is_floating(column.type)])


def _without_nan(dialect: Dialect, batch: pa.RecordBatch) -> pa.Array | None:
    columns = batch.columns if dialect.refuses_nan else []
    return _all_good([pc.invert(pc.is_nan(column)) for column in columns if pa.types.is_floating(column.type)])


_LOADABLE: Final = (
    (_with_utf8, "a text that is not UTF-8"),
    (_without_zero_bytes, "a text with a zero byte, which PostgreSQL cannot hold"),
    (_with_finite_numbers, "a number that is NaN or infinite, which MariaDB cannot hold"),
    (_without_nan, "a number that is NaN, which SQLite would make NULL"),
)
"""The functions that find the good rows of a batch (``None``: all), each with the problem of the others."""


def _texts(batch: pa.RecordBatch) -> list[pa.Array]:
    return [column for column in batch.columns if is_text(column.type)]


def _all_good(columns: Sequence[pa.Array]) -> pa.Array | None:
    """A mask of the rows that are good in all ``columns``; nulls are good. ``None`` without columns."""
    good: Any = None
    for column in columns:
        present = pc.fill_null(column, True)
        good = present if good is None else pc.and_(good, present)
    return good


def _is_valid(text: pa.Array) -> bool:
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _are_utf8(text: pa.Array) -> pa.Array:
    cells = text.cast(pa.large_binary()).to_pylist()
    return pa.array([None if cell is None else cell.decode(errors="replace").encode() == cell for cell in cells], pa.bool_())


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with U+FFFD instead of bytes that are no UTF-8, so that its rows can be shown."""
    columns = [_decoded(column) if is_text(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decoded(text: pa.Array) -> pa.Array:
    cells = text.cast(pa.large_binary()).to_pylist()
    return pa.array([None if cell is None else cell.decode(errors="replace") for cell in cells], text.type)

"""Where a task attempt puts its rows: a staging table beside the target, or a file for databases with one writer.

A staging table is called ``cst_<sink>_<batch>_<time>_<run><random>`` (time: hours since 1970), so that the sweeper recognizes
old ones, and a run those of earlier runs. Its columns are ``c0``, ``c1``, …: no name of the user's can be in the way there.
"""

from __future__ import annotations

import base64
import contextlib
import time
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...core.arrow_stage import ArrowStage
from ...core.errors import Misconfigured, Poison, Problem, Transient
from ...core.folder import SinkFolder
from ...core.sink import Batch, Committable, SinkWriter
from ...core.state import digest
from .column_types import flat, flat_schema
from .connection import Connection
from .dialects import Dialect, Table
from .dialects.postgresql import PostgreSql
from .loaders import Chunks, Loader, loader_for
from .moving import Rejects


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
    if not isinstance(dialect, PostgreSql):
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

"""The task's side of the streaming source: the rows between two states of a table, as record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....core import ConnectorError, SeekingReader, Transient
from ....formats.text import json_objects
from ....ground.options import Values
from ..connection import Connection
from ..dialects import Dialect, Table
from ..rows import ColumnReader, Rows, columns_schema, columns_text, rows_for
from ..selection import Clause, Selection, Value, clause, join_clauses, read_selection, select
from .keys import Keys, between
from .options import is_stream_of_tables
from .positions import BOTH, BULK, INCREMENTING, TableSplit, state_of
from .tables import catalog_table

_log = logging.getLogger("connectors.jdbc")


class TableReader(SeekingReader[TableSplit]):
    """Reads in the order of the key, and passes on rows of one key together: after an outage it continues after that key.

    So changes and deletions of earlier rows do not matter. Without a key (``bulk``) it reads a split as a whole.
    """

    def __init__(self, values: Values, dialect: Dialect, schema: pa.Schema) -> None:
        super().__init__()
        self.values = values
        self.dialect = dialect
        self.schema = schema
        self.atomic = values["incremental"] == BULK  # type: ignore[misc]
        self._rows: Rows | None = None
        self._connection: Connection | None = None
        self._primary: Sequence[str] = ()

    def open(self) -> None:
        """Does nothing: the first split makes the connections, and an outage makes them again."""

    def close(self) -> None:
        for connection in (self._rows, self._connection):
            if connection is not None:
                connection.close()
        self._rows = self._connection = None

    def wake_up(self) -> None:
        super().wake_up()
        if self._rows is not None:
            self._rows.cancel()

    def resume(self, split: TableSplit, records: int) -> Iterator[pa.RecordBatch]:
        if records:
            self.close()
        return super().resume(split, records)

    def read_after(self, split: TableSplit, position: str | None) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        """Rows of whole keys. A position is the last of these keys, as text."""
        selection = self._selection(split)
        if selection is None:
            return
        try:
            yield from batches_of_whole_keys(self._batches(split, selection, position))
        except ConnectorError as error:
            if isinstance(error, Transient) or self._selection(split) is not None:
                raise
            _log.warning("%s was dropped while it was read", split.table)

    def _selection(self, split: TableSplit) -> Selection | None:
        """The present selection of the split; ``None`` for a table that is gone or was made again. Keeps its primary key."""
        if self._connection is None:
            self._connection = self.dialect.connect_to_read()
        if not is_stream_of_tables(self.values):
            selection = read_selection(self.values, self._connection)
            return selection if split.oid is None or self._is_there(split, selection.table or Table(split.table)) else None
        table = Table(split.table)
        if not self._is_there(split, table):
            return None
        source = self.dialect.table(table)
        return Selection(source, tuple(self.dialect.described(self._connection, source)), table)

    def _is_there(self, split: TableSplit, table: Table) -> bool:
        """Whether ``table`` is still that of ``split``. Keeps its primary key."""
        assert self._connection is not None
        current = catalog_table(self._connection, table)
        if current is None or (split.oid is not None and current.oid != split.oid):
            _log.warning("%s is gone: the rest of it is not read", split.table)
            return False
        self._primary = current.primary
        return True

    def _batches(
        self, split: TableSplit, selection: Selection, past: str | None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        if self._rows is None:
            self._rows = rows_for(self.dialect, self.values["fetchsize"])
        keys = _keys(split, selection)
        columns = self._columns(selection)
        where, order = self._where(split, keys, past), keys.order(self.dialect)
        marked = [f"{_key_text(keys, self.dialect)} AS connectors_key"] if order else []
        statement = select(selection.source, [*self._named(selection, columns.expressions), *marked], where, order)
        for batch in self._rows.batches(statement, [*columns.kinds, *[pa.string()] * len(marked)]):
            if batch.num_rows:
                rows = batch.select(range(len(columns.kinds)))
                rows_of_stream = self._as_stream(split, selection, columns.read(rows))
                yield rows_of_stream, batch.columns[-1].cast(pa.string()) if marked else None

    def _named(self, selection: Selection, expressions: Sequence[str]) -> list[str]:
        """``expressions``, casts with names of their own: PostgreSQL names a cast after its column, and would order by it."""
        plain = {self.dialect.quote(column.name) for column in selection.columns}
        return [text if text in plain else f"{text} AS connectors_{number}" for number, text in enumerate(expressions)]

    def _where(self, split: TableSplit, keys: Keys, past: str | None) -> Clause:
        rows = between(keys, self.dialect, state_of(split.after), state_of(split.upto), split.ids)
        if past is None:
            return rows
        is_id = keys.mode == INCREMENTING
        value = _literal(past) if not self.dialect.text_type else Decimal(past) if is_id else past
        key = Value(value, keys.id_type if is_id else keys.time_type)
        return join_clauses([rows, clause(f"{_first(keys, self.dialect)} > ", key)], " AND ")

    def _columns(self, selection: Selection) -> ColumnReader:
        schema = columns_schema(selection, ntz=self._ntz) if is_stream_of_tables(self.values) else self.schema
        return ColumnReader(self.dialect, selection, schema, self.values["timeZone"])

    @property
    def _ntz(self) -> bool:
        return bool(self.values["preferTimestampNTZ"])

    def _as_stream(self, split: TableSplit, selection: Selection, rows: pa.RecordBatch) -> pa.RecordBatch:
        """``rows`` unchanged, or as JSON if many tables share a stream."""
        if not is_stream_of_tables(self.values):
            return rows
        columns = {"table": pa.repeat(split.table, rows.num_rows), "row": json_objects(rows)}
        columns["schema"] = pa.repeat(columns_text(selection, ntz=self._ntz), rows.num_rows)
        columns["key"] = pa.repeat(pa.scalar(self._primary, pa.list_(pa.string())), rows.num_rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def batches_of_whole_keys(
    batches: Iterator[tuple[pa.RecordBatch, pa.Array | None]],
) -> Iterator[tuple[pa.RecordBatch, str | None]]:
    """``batches``, ordered by key, cut so that each ends with the last row of a key."""
    waiting: list[pa.RecordBatch] = []
    key = ""
    for rows, keys in batches:
        if keys is None:
            yield rows, None
            continue
        first = pc.index(keys, keys[-1]).as_py()
        if waiting and (first or keys[0].as_py() != key):
            if keys[0].as_py() == key:
                yield _concatenated([*waiting, rows.slice(0, first)]), keys[first - 1].as_py()
            else:
                yield _concatenated(waiting), key
                if first:
                    yield rows.slice(0, first), keys[first - 1].as_py()
            waiting = []
        elif first:
            yield rows.slice(0, first), keys[first - 1].as_py()
        waiting.append(rows.slice(first))
        key = keys[-1].as_py()
    if waiting:
        yield _concatenated(waiting), key


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _keys(split: TableSplit, selection: Selection) -> Keys:
    """The key of a split, with the present types of its columns."""
    if split.mode == BULK:
        return Keys(BULK)
    types = {name: selection.require_column("incrementingColumn", name).sql for name in split.by}
    number = split.by[-1] if split.mode in (INCREMENTING, BOTH) else ""
    times = tuple(name for name in split.by if name != number)
    return Keys(split.mode, number, times, types[times[0]] if times else "", types[number] if number else "")


def _literal(text: str) -> Any:
    """The value that SQLite's ``quote`` writes as ``text``."""
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return float(text) if set(text) & set(".eE") else int(text)


def _key_text(keys: Keys, dialect: Dialect) -> str:
    """SQL for the key of a row as text from which the same key can be read again."""
    key = _first(keys, dialect)
    return dialect.text_of(key) if dialect.text_type else f"quote({key})"


def _first(keys: Keys, dialect: Dialect) -> str:
    """The expression that rows are ordered by first, as SQL."""
    return keys.id(dialect) if keys.mode == INCREMENTING else keys.time(dialect)

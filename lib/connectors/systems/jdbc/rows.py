"""Reads a SELECT as Arrow record batches, in the database's fastest way, and converts its columns to a reader's schema.

==========  ==================================================  ==========================
postgresql  ADBC: binary COPY, decoded in C                     blocks of 4 MB or fetchsize
duckdb      its own Arrow                                       blocks of fetchsize rows
sqlite      ``sqlite3``, column by column                       the same
mysql       PyMySQL with a cursor on the server's side, alike   the same
==========  ==================================================  ==========================

MariaDB is read as MySQL. ADBC's driver for SQLite is not used: it takes the types from the first rows, so a column that begins
with nulls fails.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...formats.base import quoted, sql_type
from ...formats.json import parsed, reader
from ...ground.errors import Misconfigured, Poison, Problem
from ...ground.time_zones import region_problem
from .column_types import is_json, unix_scale
from .connection import Connection
from .dialects import Column, Dialect
from .dialects.postgresql import PostgreSql
from .load import AdbcConnection
from .selection import NAME, Clause, Selection, Value, render_clause

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, TypeError, ArithmeticError)


def as_arrow(cells: Sequence[Any], kind: pa.DataType, name: str = "") -> pa.Array:
    """A column of ``cells`` as ``kind``. Raises :class:`Poison`, which names the column, for an unsuitable value."""
    if not _arrow_changes(cells, kind):
        with contextlib.suppress(*_REFUSED):
            return pa.array(cells, kind)
    try:
        return _converted(cells, kind)
    except _REFUSED as wrong:
        text = f'the column "{name}" is read as {kind}, and a value of it is none: {wrong}'
        raise Poison(text, way_out="give the column another type, such as string, by .schema(…)") from None


def _arrow_changes(cells: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether Arrow itself would change numbers: it cuts off fractions, and takes numbers for times in microseconds."""
    changed = (float, Decimal) if pa.types.is_integer(kind) else (int, float) if pa.types.is_timestamp(kind) else ()
    return bool(changed) and not set(map(type, cells)).isdisjoint(changed)


def _converted(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    convert = _converter(kind)
    values = [None if cell is None else convert(cell) for cell in cells]
    if pa.types.is_temporal(kind) and any(isinstance(value, str) for value in values):
        texts = [None if value is None else str(value) for value in values]
        return pa.array(texts, pa.string()).cast(kind)
    return pa.array(values, kind)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_binary(kind):
        return lambda cell: cell.encode() if isinstance(cell, str) else bytes(cell)
    if pa.types.is_boolean(kind):
        return _truth
    if pa.types.is_decimal(kind):
        return lambda cell: Decimal(str(cell)).quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if pa.types.is_integer(kind):
        return _whole
    if pa.types.is_floating(kind):
        return float
    return _moment if pa.types.is_timestamp(kind) else _day


_EXACT = Context(prec=76)


def _text(cell: Any) -> str:
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def _truth(cell: Any) -> bool:
    if cell in (0, 1):
        return bool(cell)
    raise ValueError(f"{cell!r} is neither 0 nor 1")


def _whole(cell: Any) -> int:
    number = int(cell)  # of a text only if it is one
    if isinstance(cell, (str, bytes)) or number == cell:
        return number
    raise ValueError(f"{cell!r} is no whole number")


def _moment(cell: Any) -> Any:
    """A cell as a time: Arrow parses text; a number is a Unix time in the units that :func:`unix_scale` finds."""
    if isinstance(cell, (int, float)):
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=cell / unix_scale(cell))
    return cell


def _day(cell: Any) -> Any:
    return cell.date() if isinstance(cell, datetime.datetime) else cell


BLOCK_ROWS = 10_000
"""The rows of a record batch if ``fetchsize`` is not given."""
_BLOCK_BYTES = 4 << 20


class Rows(ABC):
    """Reads over a ``connection``, by default a new one. ``fetchsize`` is the most rows of a record batch."""

    def __init__(self, dialect: Dialect, fetchsize: int = 0, connection: Connection | None = None) -> None:
        self.dialect = dialect
        self.fetchsize = fetchsize or BLOCK_ROWS
        self.connection = connection or dialect.connect_to_read()
        self.spoilt = False
        """True while no other reader may use the connection."""

    @abstractmethod
    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        """The rows of a SELECT, with columns in its order; memory is bounded by a few blocks.

        ``kinds`` are the types to read the columns as. Databases with types of their own return those, which
        :class:`~connectors.systems.jdbc.rows.ColumnReader` converts. Only one statement at a time.
        """

    def control(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection for small queries, while nothing else is read."""
        return contextlib.nullcontext(self.connection)

    def execute(self, sql: str) -> None:
        """Runs a statement that returns no rows."""
        self.connection.execute(sql)

    @abstractmethod
    def cancel(self) -> None:
        """Cancels the running statement, which then raises. Called from another thread."""

    def close(self) -> None:
        self.connection.close()


def rows_for(dialect: Dialect, fetchsize: int = 0) -> Rows:
    """A new connection that reads from ``dialect``'s database."""
    kinds: dict[str, type[Rows]] = {"adbc": AdbcRows, "duckdb": DuckDbRows}
    return kinds.get(dialect.arrow_driver, PythonRows)(dialect, fetchsize)


class AdbcRows(Rows):
    """PostgreSQL through ADBC."""

    dialect: PostgreSql
    connection: AdbcConnection

    def __init__(self, dialect: PostgreSql, fetchsize: int = 0) -> None:
        own = (dialect.session_statement,) if dialect.session_statement else ()
        settings = (*dialect.settings(), *dialect.reading_settings(), *own)
        super().__init__(dialect, fetchsize, AdbcConnection(dialect, settings, autocommit=True))
        self.fetchsize = fetchsize  # 0: the blocks are the driver's
        self._cursor: Any = None
        self.spoilt = bool(own)

    def control(self) -> contextlib.AbstractContextManager[Connection]:
        return contextlib.closing(self.dialect.connect_to_read())

    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        quoted = self._quoted([part.value for part in statement if isinstance(part, Value)])
        text, _ = render_clause(statement, lambda number, value: self.dialect.bound(quoted[number], value.sql))
        spoilt, self.spoilt = self.spoilt, True
        try:
            with self.connection.judged(), self.connection.raw.cursor() as self._cursor:
                self._cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BLOCK_BYTES)})
                self._cursor.execute(text)
                for batch in self._cursor.fetch_record_batch():
                    yield from blocks(batch, self.fetchsize)
            self.spoilt = spoilt
        except (OSError, pa.ArrowException) as error:  # errors while rows come
            raise self.dialect.judge_text(error) from None
        finally:
            self._cursor = None

    def _quoted(self, values: Sequence[Any]) -> list[str]:
        """The values as literals, quoted by the server itself, in a statement to which they are bound.

        Bound to the SELECT, they would make ADBC hold all its rows in memory, and hide the number of rows from the planner.
        """
        if not values:
            return []
        calls = ", ".join(["quote_literal(%s::text)"] * len(values))
        return list(self.connection.rows(f"SELECT {calls}", [str(value) for value in values])[0])

    def cancel(self) -> None:
        cursor = self._cursor
        if cursor is not None:
            with contextlib.suppress(Exception):
                cursor.adbc_cancel()

    def close(self) -> None:
        self.connection.spoilt = self.connection.spoilt or self.spoilt
        self.connection.close()


class DuckDbRows(Rows):
    """DuckDB's own Arrow."""

    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        text, values = render_clause(statement, lambda _, value: self.dialect.bound("?", value.sql))
        with self.connection.judged():
            result = self.connection.raw.sql(text, params=values)
            to_reader = getattr(result, "to_arrow_reader", None) or result.fetch_record_batch  # the older name
            for batch in to_reader(self.fetchsize):
                yield from blocks(batch, self.fetchsize)

    def cancel(self) -> None:
        self.connection.raw.interrupt()

class PythonRows(Rows):
    """Reads Python rows, a block at a time, from a cursor that does not hold the whole result."""

    def batches(self, statement: Clause, kinds: Sequence[pa.DataType]) -> Iterator[pa.RecordBatch]:
        names = [str(number) for number in range(len(kinds))]
        cursor = self.dialect.reading_cursor(self.connection.raw)
        try:
            with self.connection.judged():
                self._run(cursor, statement)
                column_names = [column[0] for column in cursor.description]
                while rows := cursor.fetchmany(self.fetchsize):
                    columns = enumerate(zip(zip(*rows, strict=True), kinds, strict=True))
                    arrays = [as_arrow(cells, kind, column_names[number]) for number, (cells, kind) in columns]
                    yield pa.RecordBatch.from_arrays(arrays, names=names)
        finally:
            with contextlib.suppress(Exception):  # the connection may already be closed
                cursor.close()

    def _run(self, cursor: Any, statement: Clause) -> None:
        if "%" in self.dialect.placeholder:  # doubles a % in a name or query, since PyMySQL formats the text
            statement = tuple(part.replace("%", "%%") if isinstance(part, str) else part for part in statement)
        mark: Callable[[int, Value], str] = lambda _, value: self.dialect.bound(self.dialect.placeholder, value.sql)  # noqa: E731
        text, values = render_clause(statement, mark)
        cursor.execute(text, tuple(values))

    def cancel(self) -> None:
        with contextlib.suppress(Exception):
            interrupt = getattr(self.connection.raw, "interrupt", None)
            interrupt() if interrupt else self.connection.raw._force_close()


def blocks(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of at most ``most`` rows (0: in one piece)."""
    step = most or max(1, batch.num_rows)
    for number in range(math.ceil(batch.num_rows / step)):
        yield batch.slice(number * step, step)


_CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, TypeError, ArithmeticError)
_UTC = pa.timestamp("us", "UTC")
_WIDE_DIGITS = 76
"""The digits of an integer of 256 bits."""
_LAST, _FIRST = 253402300799999999, -62135596800000000
"""Spark's last and first moment, in microseconds. Spark's own reader also shows PostgreSQL's infinities so."""
_INFINITE = {-9222425352054775809: _LAST, -9222425352054775808: _FIRST}
_INFINITE_DAYS = {-2147472692: 2932896, -2147472691: -719162}


def columns_text(selection: Selection, *, ntz: bool) -> str:
    """The columns of ``selection`` as Spark SQL text. Times without a zone are ``timestamp_ntz`` with ``ntz``."""
    return ", ".join(f"{quoted(field.name)} {sql_type(field.type)}" for field in columns_schema(selection, ntz=ntz))


def columns_schema(selection: Selection, *, ntz: bool) -> pa.Schema:
    """As :func:`columns_text`, as an Arrow schema."""
    return pa.schema([(column.name, _default(column, ntz)) for column in selection.columns])


def _default(column: Column, ntz: bool) -> pa.DataType:
    kind = column.kind if column.kind is not None else pa.string()
    return _with_zone(kind) if not ntz else kind


def _with_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_with_zone(kind.value_type))
    return _UTC if pa.types.is_timestamp(kind) else kind


class ColumnReader:
    """Turns the columns of ``selection`` into rows of ``schema``, which may leave some out.

    ``expressions`` are to be selected; ``kinds`` are the types that the database returns for them. ``zone`` is for times
    without a zone.
    """

    def __init__(self, dialect: Dialect, selection: Selection, schema: pa.Schema, zone: str = "UTC") -> None:
        pairs = [(field, selection.column(field.name)) for field in schema]
        if missing := [field.name for field, column in pairs if column is None]:
            listing = ", ".join(column.name for column in selection.columns)
            problems = [Problem("schema", f'has "{name}", but the columns are {listing}.') for name in missing]
            raise Misconfigured(NAME, problems)
        columns: Sequence[Column] = [column for _, column in pairs if column is not None]
        if problem := region_problem(zone):  # this machine may differ from the driver's
            raise Misconfigured(NAME, [Problem("timeZone", problem)])
        self.schema = schema
        self.zone = zone
        self.expressions = [dialect.readable(column, field.type) for column, field in zip(columns, schema, strict=True)]
        self.kinds = [_selected_kind(column, field.type) for column, field in zip(columns, schema, strict=True)]

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``batch`` from the database in the schema. Raises :class:`Poison`, which names the column."""
        columns = [self._cast(column, field) for column, field in zip(batch.columns, self.schema, strict=True)]
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return cast_values(column, field.type, self.zone)
        except _CAST_ERRORS as wrong:
            text = f'the column "{field.name}" is read as {field.type}, and a value of it is none: {wrong}'
            raise Poison(text, way_out="give the column another type, such as string, by .schema(…)") from None


def _selected_kind(column: Column, target: pa.DataType) -> pa.DataType:
    """The type that :meth:`Dialect.readable` gives: text if ``target`` is text, else the type to read the column as."""
    return pa.string() if column.kind is None or pa.types.is_string(target) else column.kind


def cast_values(column: pa.Array, target: pa.DataType, zone: str = "UTC") -> pa.Array:
    """``column`` as ``target``, each value unchanged. Raises Arrow's error for a value that does not fit."""
    column = _finite(_stored(column))
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_list(target):
        values = cast_values(column.flatten(), target.value_type, zone)
        offsets = _offsets(column)
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=column.is_null() if column.null_count else None)
    if kind == target:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(target):
        return _zoned(column, target, zone)
    if is_json(target) and not is_json(kind):
        return _parsed(column, target)
    if pa.types.is_boolean(target) and pa.types.is_integer(kind):
        return pc.cast(column, pa.int64()).cast(target)
    if pa.types.is_string(kind) and pa.types.is_decimal(target):
        return _decimals(column, target)
    if pa.types.is_string(kind) and pa.types.is_timestamp(target):
        return _zoned(column.cast(pa.timestamp("us")), target, zone) if target.tz else column.cast(target)
    return pc.cast(column, target)


def _decimals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Text as decimals. Arrow's own cast gives a wrong number for a text with more digits than its integers hold."""
    if (pc.max(pc.utf8_length(texts)).as_py() or 0) > _WIDE_DIGITS - target.scale:
        return pa.array([None if text is None else Decimal(text) for text in texts.to_pylist()], target)
    return texts.cast(pa.decimal256(_WIDE_DIGITS, target.scale)).cast(target)


def _offsets(column: pa.Array) -> pa.Array:
    """Offsets into :meth:`flatten`'s values, which leave out values behind nulls and before a slice."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def _stored(column: pa.Array) -> pa.Array:
    """``column`` without the extension type by which ADBC marks types of the database (numeric, uuid)."""
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if pa.types.is_list(column.type) and isinstance(column.type.value_type, pa.BaseExtensionType):
        return column.cast(pa.list_(column.type.value_type.storage_type))
    return column


def _finite(column: pa.Array) -> pa.Array:
    """``column`` with Spark's last and first time instead of PostgreSQL's infinite times, which overflow in Arrow."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _replaced(column, pa.int64(), _INFINITE, _FIRST)
    return _replaced(column, pa.int32(), _INFINITE_DAYS, -719162) if pa.types.is_date32(kind) else column


def _replaced(column: pa.Array, plain: pa.DataType, replacements: dict[int, int], least: int) -> pa.Array:
    numbers = column.view(plain)
    if (pc.min(numbers).as_py() or 0) >= least:
        return column
    for old, new in replacements.items():
        numbers = pc.if_else(pc.equal(numbers, pa.scalar(old, plain)), pa.scalar(new, plain), numbers)
    return numbers.view(column.type)


def _zoned(column: pa.Array, target: pa.DataType, zone: str) -> pa.Array:
    """Times in ``zone``: a time that comes twice at the end of summer time is the earlier; a skipped one is the next."""
    if zone == "UTC":  # needs no data of the machine
        return column.cast(pa.timestamp("us")).cast(target)
    if column.type.tz and not target.tz:
        return pc.local_timestamp(column.cast(pa.timestamp("us", zone))).cast(target)
    if target.tz and not column.type.tz:
        column = pc.assume_timezone(column.cast(pa.timestamp("us")), zone, ambiguous="earliest", nonexistent="latest")
    return column.cast(target)


def _parsed(column: pa.Array, target: pa.DataType) -> pa.Array:
    read: Any = reader(target, "value")
    texts = column.cast(pa.string()).to_pylist()
    return pa.array([None if text is None else read(parsed(text)) for text in texts], target)

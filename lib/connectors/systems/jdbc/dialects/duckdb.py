"""DuckDB: a file that one process at a time may write. Loaded straight from Arrow."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ....ground import machine
from ....ground.errors import ConnectorError
from ..column_types import family, is_json
from ..connection import Connection
from .base import Dialect
from .tables import Column, Table, ascii_lower, row_bytes

_ARROW = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INTEGER": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "VARCHAR": pa.string(), "BLOB": pa.binary(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"), "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}  # fmt: skip

_WIDER = {
    "UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "BIGINT", "UBIGINT": "DECIMAL(20, 0)",
    "HUGEINT": "DECIMAL(38, 0)", "UHUGEINT": "DECIMAL(38, 0)", "TIMESTAMP_S": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP",
    "TIMESTAMP_NS": "TIMESTAMP",
}  # fmt: skip
"""Types that Spark does not have, and the wider types to read them as."""

_TABLE_KEY: Final = "translate({}, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz')"
"""The :meth:`~.base.Dialect.table_key` in SQL, whose ``lower`` knows more letters than ASCII's."""
_IN_USE: Final = ("Could not set lock on file", "Unique file handle conflict")


class DuckDb(Dialect):
    """DuckDB 1.1 and later. It has no savepoints, so bad rows are found in trial transactions."""

    name = system = "duckdb"
    packages = {"duckdb": "duckdb>=1.1"}  # noqa: RUF012
    begin = "BEGIN TRANSACTION"
    placeholder = "?"
    one_writer = True
    arrow_driver = "duckdb"
    savepoints = False
    types = {  # noqa: RUF012
        "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "float32": "FLOAT",
        "float64": "DOUBLE", "decimal": "DECIMAL({kind.precision}, {kind.scale})", "string": "VARCHAR", "binary": "BLOB",
        "date": "DATE", "timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP", "json": "JSON",
    }  # fmt: skip

    def open(self) -> Any:
        return self._opened()

    def open_to_read(self) -> Any:
        """Opens the file read-only: several processes may read it at the same time if none of them can write."""
        self.check_file()
        try:
            return self._opened(read_only=True)
        except self.module("duckdb").ConnectionException:  # this process has it open to write
            return self._opened()

    def _opened(self, **options: Any) -> Any:
        """Waits until no other process has the file, and no other thread opens or closes it, and then connects."""
        duckdb, until = self.module("duckdb"), machine.monotonic() + self.timeout
        while True:
            try:
                raw = duckdb.connect(self.address.database, **options)
                raw.execute("SET TimeZone = 'UTC'")
                return raw
            except duckdb.Error as error:
                if not any(text in str(error) for text in _IN_USE) or machine.monotonic() > until:
                    raise
                machine.sleep(0.02)

    def cursor(self, raw: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(raw)  # a cursor of DuckDB is a connection with transactions of its own

    def count(self, connection: Connection, sql: str, values: Sequence[Any]) -> int:
        return int(connection.rows(sql, values)[0][0])

    def errors(self) -> tuple[type[Exception], ...]:
        return (self.module("duckdb").Error,)

    def judge(self, error: Exception) -> ConnectorError:
        duckdb = self.module("duckdb")
        if isinstance(error, (duckdb.ConstraintException, duckdb.ConversionException, duckdb.OutOfRangeException)):
            return self.poison(error)
        if isinstance(error, (duckdb.IOException, duckdb.TransactionException)):
            return self.transient(error)
        return self.fatal(error)

    def refused(self, error: Exception) -> ConnectorError:
        return self.judge(error)

    def cast(self, expression: str, staged: pa.DataType, target: Column) -> str:
        if family(staged) not in ("string", "json") or target.sql == "VARCHAR":
            return expression
        return self._nested(expression, staged, target.sql) if is_json(staged) else f"CAST({expression} AS {target.sql})"

    def _nested(self, expression: str, staged: pa.DataType, sql: str) -> str:
        """``expression``, JSON, as a list, struct or map.

        A cast from text would turn JSON's line break into an ``n``; a cast from JSON refuses a struct that lacks fields.
        """
        if "BLOB" in sql and _has_binary(staged):
            return f"CAST({self._typed(expression, staged)} AS {sql})"
        item, of_json = family(staged.value_type) if pa.types.is_list(staged) else "", f"CAST({expression} AS JSON)"
        if (item, sql) == ("timestamp", "TIMESTAMP[]"):  # else DuckDB drops the offset
            return f"CAST(CAST({expression} AS TIMESTAMPTZ[]) AS {sql})"
        escaped = "true" if pa.types.is_map(staged) else f"contains({expression}, '\\')"
        return f"CASE WHEN {escaped} THEN CAST({of_json} AS {sql}) ELSE CAST({expression} AS {sql}) END"

    def parameter(self, kind: pa.DataType) -> str:
        """As in the base class. A list, struct or map is one also inside the statement, though it is staged as JSON."""
        return self._typed(self.placeholder, kind) if is_json(kind) else self.placeholder

    def _typed(self, expression: str, kind: pa.DataType) -> str:
        """``expression``, JSON, as a value of ``kind``."""
        with contextlib.closing(self.module("duckdb").connect()) as memory:
            (sql,) = memory.from_arrow(pa.schema([("v", _with_text(kind))]).empty_table()).types
        return self._decoded(f"CAST(CAST({expression} AS JSON) AS {sql})", kind)

    def _decoded(self, value: str, kind: pa.DataType, depth: int = 0) -> str:
        """``value``, whose binary values are texts in base64, as a value of ``kind``. It has ``value`` once."""
        if family(kind) == "binary":
            return f"from_base64({value})"
        if not _has_binary(kind):
            return value
        item = f"item{depth}"
        if pa.types.is_list(kind):
            return f"[{self._decoded(item, kind.value_type, depth + 1)} for {item} in {value}]"
        if pa.types.is_map(kind):
            parts = (("key", kind.key_type), ("value", kind.item_type))
            pair = ", ".join(f"{name} := {self._decoded(f'{item}.{name}', part, depth + 1)}" for name, part in parts)
            return f"map_from_entries([struct_pack({pair}) for {item} in map_entries({value})])"
        names = [(self.quote(field.name), field.type) for field in kind]
        fields = ", ".join(f"{name} := {self._decoded(f'{item}.{name}', part, depth + 1)}" for name, part in names)
        return f"[CASE WHEN {item} IS NOT NULL THEN struct_pack({fields}) END for {item} in [{value}]][1]"

    def load(self, connection: Connection, table: Table, names: Sequence[str], rows: pa.RecordBatchFileReader) -> None:
        batches = (rows.get_batch(number) for number in range(rows.num_record_batches))
        connection.raw.register("connectors_file", pa.RecordBatchReader.from_batches(rows.schema, batches))
        connection.execute(f"INSERT INTO {self.table(table)} SELECT * FROM connectors_file")
        connection.raw.unregister("connectors_file")

    def table_key(self, name: str) -> str:
        return ascii_lower(name)

    def columns(self, connection: Connection, table: Table) -> list[Column]:
        sql = (
            "SELECT column_name, data_type, is_nullable = 'YES', column_default IS NOT NULL FROM information_schema.columns "
            f"WHERE {_TABLE_KEY.format('table_name')} = ? AND table_schema = ? AND table_catalog = current_database() "
            "ORDER BY ordinal_position"
        )
        rows = connection.rows(sql, [self.table_key(table.name), table.schema or "main"])
        return [Column(name, sql, _arrow(sql), nullable, default) for name, sql, nullable, default in rows]

    def described(self, connection: Connection, source: str) -> list[Column]:
        return [Column(name, sql, _read_as(sql)) for name, sql, *_ in connection.rows(f"DESCRIBE SELECT * FROM {source}")]

    def size(self, connection: Connection, table: Table | None, source: str, columns: Sequence[Column]) -> int | None:
        plan = json.loads(connection.rows(f"EXPLAIN (FORMAT JSON) SELECT * FROM {source}")[0][1])
        rows = next(_estimates(plan), None)
        return None if rows is None else rows * row_bytes(columns)

    def readable(self, column: Column, as_kind: pa.DataType) -> str:
        name = self.quote(column.name)
        if column.kind is None or (pa.types.is_string(as_kind) and not pa.types.is_string(column.kind)):
            # structs and lists become JSON, which can be read again
            return f"CAST(to_json({name}) AS VARCHAR)" if _is_nested(column.sql) else f"CAST({name} AS VARCHAR)"
        return f"CAST({name} AS {_WIDER[column.sql]})" if column.sql in _WIDER else name

    def unique_keys(self, connection: Connection, table: Table) -> list[frozenset[str]]:
        sql = (
            "SELECT constraint_column_names FROM duckdb_constraints() "
            f"WHERE {_TABLE_KEY.format('table_name')} = ? AND schema_name = ? "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND database_name = current_database()"
        )
        return [frozenset(names) for (names,) in connection.rows(sql, [self.table_key(table.name), table.schema or "main"])]

    def tables(self, connection: Connection, schema: str, prefix: str) -> list[str]:
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND starts_with(table_name, ?)"
        return [name for (name,) in connection.rows(sql, [schema or "main", prefix])]


def _estimates(plan: Any) -> Iterator[int]:
    """The estimated rows of each node of a plan, the topmost first."""
    for node in plan:
        if rows := re.sub(r"\D", "", str(node.get("extra_info", {}).get("Estimated Cardinality", ""))):
            yield int(rows)
        yield from _estimates(node.get("children", ()))


def _arrow(sql: str) -> pa.DataType | None:
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", sql):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW.get(sql)


def _read_as(sql: str) -> pa.DataType | None:
    if sql.endswith("[]"):
        item = None if sql[:-2] in _WIDER else _read_as(sql[:-2])
        return None if item is None else pa.list_(item)
    return _arrow(_WIDER.get(sql, sql))


def _has_binary(kind: pa.DataType) -> bool:
    return family(kind) == "binary" or any(_has_binary(kind.field(number).type) for number in range(kind.num_fields))


def _with_text(kind: pa.DataType) -> pa.DataType:
    """``kind`` with texts in place of binary values, as JSON has it."""
    if pa.types.is_list(kind):
        return pa.list_(_with_text(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_with_text(kind.key_type), _with_text(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_text(field.type)) for field in kind])
    return pa.string() if family(kind) == "binary" else kind


def _is_nested(sql: str) -> bool:
    return sql.endswith("]") or sql.startswith(("STRUCT(", "MAP(", "UNION("))

"""The tables that columns in ``dbtable`` name, such as ``shop.orders_{region}``.

A task stages the number of each row's table, a digest of its name, in the column :data:`TABLE`, and tells the driver the names.
So no database compares names; names of one table, as ``EU`` and ``eu`` may be, have one move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from string import Formatter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...core.batch import Committable
from ...core.dead_letters import row_at
from ...ground.columns import ColumnType, is_text, template_columns
from ...ground.errors import Fatal, Poison, Problem
from ...ground.options import Values
from ...ground.state import digest
from .dialects import Dialect, Table
from .stage import RejectedRows
from .target import table_of

TABLE: Final = "connectors_table"
_KIND: Final = ColumnType(
    "of text, whole numbers, dates or boolean", is_text, types.is_integer, types.is_date32, types.is_boolean
)
_LONGEST: Final = 63
"""The most bytes of a table's name; PostgreSQL cuts off what is behind them."""
_OWN: Final = ("connectors_", "cst_")


class Routing:
    """The tables of a ``dbtable`` with columns; ``table`` has the template in place of a name."""

    def __init__(self, values: Values, dialect: Dialect) -> None:
        text = values["dbtable"]
        self.columns = template_columns(text)
        self.dialect = dialect
        self.table = table_of(text, dialect)
        self._template = table_of(text).name
        self._fold = str if text.rstrip()[-1] in "\"`" else dialect.folded
        self._most: int = values["maxTables"]
        self.rows = Counter[str]()
        """The rows of each table that this task has numbered."""

    def problems(self, schema: pa.Schema) -> Iterator[Problem]:
        """The columns of rows whose texts name no table."""
        for name in self.columns:
            if name in schema.names and (kind := schema.field(name).type) not in _KIND:
                yield Problem("dbtable", f'names the column "{name}", which must be {_KIND.words}; it is {kind}. Cast it.')

    def numbered(self, rows: pa.RecordBatch, rejects: RejectedRows | None) -> pa.RecordBatch:
        """``rows`` with the number of their table in the last column. A row without a table is a bad row."""
        names = self._names(rows).dictionary_encode()
        tables = [self._fold(text) for text in names.dictionary.to_pylist()]
        numbers = {table: _number(table) for table in tables if not self._fault(table)}
        column = pa.array([numbers.get(table) for table in tables], pa.int64()).take(names.indices)
        if column.null_count:
            bad = column.is_null()
            refused = rows.filter(bad)
            for place, name in enumerate(names.filter(bad).to_pylist()):
                fault = f"has no {' or '.join(self.columns)}" if name is None else self._fault(self._fold(name))
                reason = f"{self._template} names no table: the row {fault}"
                if rejects is None:
                    raise Poison(reason)
                rejects.add(row_at(refused, place), reason)
            rows, column = rows.filter(column.is_valid()), column.drop_null()
        counts = {count["values"]: count["counts"] for count in pc.value_counts(column).to_pylist()}
        for table, number in numbers.items():
            self.rows[table] += counts.get(number, 0)
        return pa.RecordBatch.from_arrays([*rows.columns, column], [*rows.schema.names, TABLE])

    def _names(self, rows: pa.RecordBatch) -> pa.Array:
        """The template with the values of each row; null where one has none."""
        parts: list[pa.Array | pa.Scalar] = []
        for text, name, _, _ in Formatter().parse(self._template):
            parts.append(pa.scalar(text))
            if name:
                cells = rows.column(rows.schema.get_field_index(name)).cast(pa.string())
                parts.append(pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells))
        return pc.binary_join_element_wise(*parts, "")

    def moves(self, staged: Sequence[Committable]) -> Iterator[tuple[Table, str, int]]:
        """The tables of staged rows by their names, each with the condition of its rows and their number."""
        rows = Counter[str]()
        for committable in staged:
            rows.update(committable.data["tables"])
        tables: dict[str, list[str]] = {}
        for name in sorted(rows):
            tables.setdefault(self.dialect.table_key(name), []).append(name)
        if len(tables) > self._most:
            text = f"{self._template} names {len(tables)} tables in a batch, and maxTables is {self._most}; one is {max(rows)}"
            raise Fatal(text, connector="connectors.jdbc", way_out="give another column, or more maxTables")
        for names in tables.values():
            numbers = ", ".join(str(_number(name)) for name in names)
            yield self.table.beside(names[0]), f"{TABLE} IN ({numbers})", sum(rows[name] for name in names)

    def _fault(self, table: str) -> str:
        """Why no table may have the name; empty if one may."""
        if len(table.encode()) > _LONGEST:
            return f"has a name of more than {_LONGEST} bytes, {table}"
        if self.dialect.table_key(table).startswith(_OWN):
            return f"has a name that begins as those of this library's own tables, {table}"
        return "" if self.dialect.takes_name(table) else f"has a name that {self.dialect.name} refuses, {table!r}"


def target_of(dbtable: str, dialect: Dialect | None = None) -> Table:
    """The table of the option ``dbtable``, or its template, in which a brace that is no column's is doubled."""
    return table_of(dbtable if template_columns(dbtable) else dbtable.format(), dialect)


def routing_problems(values: Values) -> Iterator[Problem]:
    """What columns in ``dbtable`` exclude."""
    if template_columns(table_of(values["dbtable"]).schema):
        text = f"must have columns in the name of the table only, such as shop.orders_{{region}}; got {values['dbtable']!r}."
        yield Problem("dbtable", text)
    if values["guarantee"] in ("idempotent", "at-least-once"):
        text = f"cannot be {values['guarantee']} with columns in dbtable: a batch is one transaction over all its tables."
        yield Problem("guarantee", f"{text} Take exactly-once.")
    for option, value, other in (("commit", "prepared", "batch"), ("onNewQuery", "replace", "stop")):
        if values[option] == value:
            yield Problem(option, f"cannot be {value} with columns in dbtable; take {option}={other}.")
    if values["statement"]:
        yield Problem("statement", "changes the table that dbtable names, which has columns; give the name of one table.")


def _number(table: str) -> int:
    return int(digest(table, length=15), 16)

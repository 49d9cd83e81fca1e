"""``connectors.delta``: rows go to one table, or to those that columns name: ``table="main.shop.orders_{region}"``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from ...core import Batch, Fatal, FrameCommitter, Misconfigured, Options, Problem
from ...core.datasets import Dataset
from ...formats.base import quoted
from ...ground.columns import Template, template_columns
from ...ground.options import Int, Values
from .sink import AppendSink, known_columns
from .tables import TABLES, TablesCommitter, TablesSink, append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TABLE: Final = "__connectors_table"
_KINDS: Final = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "date")
"""The types of columns whose texts no setting of the session alters."""


class DeltaSink(AppendSink):
    """Appends each micro-batch to a Delta table in one transaction, or to several tables.

    With columns in the last part of ``path`` or ``table`` (``main.shop.orders_{region}``) each row goes to the table that it
    names. Tables are written side by side, each at once, and the table ``_batches`` beside them records the batch: one that
    died between two tables is finished. Where the catalog does not allow a name, the query stops.

    Guarantee: exactly-once, by ``foreach_batch``. For other ways to write, Spark's own format ``delta`` is there.
    """

    options = AppendSink.options | Options(
        path=Template(
            None, alternatives=("table",), example="/lake/orders/{region}",
            meaning="the folder of the table, or /lake/orders/{region}; the first batch creates it",
        ),
        table=Template(
            None, example="main.shop.orders_{region}", meaning="the name of the table, or main.shop.orders_{region}"
        ),
        maxTables=Int(1000, at_least=1, meaning="tables that columns in path or table may name"),
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        for option, separator, example in (("path", "/", "/lake/orders/{region}"), ("table", ".", "main.shop.orders_{region}")):
            parent, _, name = (values[option] or "").rstrip("/").rpartition(separator)
            if template_columns(parent) or (template_columns(name) and not parent):
                yield Problem(option, f"must have columns in its last part only, such as {example}; got {values[option]!r}.")

    def datasets(self) -> Sequence[Dataset]:
        return [] if template_columns(self.target()) else super().datasets()

    def committer(self) -> FrameCommitter:
        return RoutingCommitter(self) if template_columns(self.target()) else super().committer()


class RoutingTables(TablesSink):
    """The folder or schema of the tables."""

    name = "delta"
    options = TABLES


class RoutingCommitter(TablesCommitter):
    """Appends the rows of a batch to their tables, side by side, and records the batch in the table ``_batches`` among them."""

    columns = "table string, rows bigint, batch bigint"

    def __init__(self, sink: DeltaSink) -> None:
        option, separator = ("path", "/") if sink.values["path"] else ("table", ".")
        parent, _, self._template = sink.values[option].rstrip("/").rpartition(separator)
        target = {"path" if option == "path" else "schema": parent, "sinkId": sink.sink_id()}
        super().__init__(RoutingTables.of(target))  # type: ignore[arg-type]
        self._most: int = sink.values["maxTables"]
        self._merges_schema = str(sink.values["mergeSchema"]).lower()

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as F

        columns = template_columns(self._template)
        self._check(frame, columns)
        parts = [(F.lit(text), name) for text, name, _, _ in Formatter().parse(self._template)]
        texts = [cell for text, name in parts for cell in (text, *([F.col(quoted(name)).cast("string")] if name else []))]
        rows = frame.withColumn(_TABLE, F.concat(*texts)).persist()
        try:
            counts = {row[_TABLE]: row["count"] for row in rows.groupBy(_TABLE).count().collect()}
            if nameless := counts.get(None):
                text = f"{nameless} rows have no {' or '.join(columns)}, so that {self._template} names no table"
                raise Fatal(text, connector="connectors.delta", way_out="give them a value by coalesce, or leave them out")
            if len(tables := self._asked | self._written | counts.keys()) > self._most:
                text = f"{self._template} names {len(tables)} tables, and maxTables is {self._most}; one is {max(counts)}"
                raise Fatal(text, connector="connectors.delta", way_out="give another column, or more maxTables")
            writes = {table: partial(self._write, rows, table) for table in counts}
            self.write_tables(frame.sparkSession, batch, writes, [(*count, batch.number) for count in counts.items()])
        finally:
            rows.unpersist()

    def _check(self, frame: DataFrame, columns: list[str]) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        for name in columns:
            if kinds.get(name) not in _KINDS:
                text = f"{name} in {self._template} must be a column of {', '.join(_KINDS)}; it is {kinds.get(name)}. Cast it."
                raise Misconfigured("connectors.delta", [Problem("path" if self.sink.values["path"] else "table", text)])

    def _write(self, rows: DataFrame, table: str, batch: Batch) -> None:
        from pyspark.sql import functions as F

        place = self.place(table)
        is_new = known_columns(rows.sparkSession, place) is None
        own: Any = rows.where(F.col(_TABLE) == table).drop(_TABLE)
        append(own, place, self.ledger.transaction(batch), is_new=is_new, mergeSchema=self._merges_schema)

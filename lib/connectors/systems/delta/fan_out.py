"""A stream of many tables becomes one Delta table for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...core import Batch, Choice, Fatal, Json, Misconfigured, Options, Problem
from ...formats.base import quoted
from ...ground.options import Values
from ...ground.state import digest
from .column_types import fitted, united_types, widen
from .sink import TablePlace, TransactionMark, admit_columns, properties_of, same_key
from .tables import TABLES, TablesCommitter, TablesSink, append, place_of
from .transaction import Merges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "delta_tables"
_COLUMNS: Final = ("table", "row", "schema")
_ROWS: Final = "connectors_rows"


def fan_out(
    schema: str, keys: Mapping[str, Sequence[str]] | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that keeps one Delta table for each table of a stream.

    ``schema`` is where the tables are: a folder, if it has a slash, or a schema such as ``main.shop``. The stream is
    ``connectors.jdbc`` with ``tables`` and ``includeSchema=true``. ``operation="upsert"`` goes by the primary key of each
    table: a changed row replaces the one before it. ``keys`` names other columns that identify a row, by table, with ``"*"``
    for all tables that it does not name. Without either each version is a row of its own. ``operation="replace"`` is for
    ``incremental=bulk``: a batch replaces all rows of its tables.

    Exactly-once. New columns are added; a column becomes wider where one type holds all its values, and a value that would be
    altered is an error. A row that is deleted in the database stays, unless tables are replaced. On Spark Connect and
    serverless compute a MERGE takes no version: a driver that stood still and goes on later puts its older rows back.
    """
    from ... import foreach_batch

    by_table = {"keyColumns": keys} if keys else {}
    return foreach_batch(DeltaTables, {**place_of(schema), **by_table, **options})


class DeltaTables(TablesSink):
    """The sink behind :func:`fan_out`."""

    name = NAME
    options = TABLES | Options(
        operation=Choice(
            None, among=("append", "upsert", "replace"), meaning="upsert where keyColumns names keys, else append"
        ),
        keyColumns=Json(
            None, dict, excludes="operation=append|replace",
            meaning='columns by table, in place of primary keys: {"orders": ["id"], "*": ["uuid"]}; * is for all others',
        ),
    )
    conditions = (
        "foreach_batch only; rows of a stream of tables with includeSchema; with keys, on Spark Connect or serverless compute, "
        "no driver that stood still goes on behind the next batches"
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if not all(_is_names(columns) for columns in (values["keyColumns"] or {}).values()):
            yield Problem("keyColumns", 'must be lists of columns by table: {"orders": ["id"]}.')

    def committer(self) -> DeltaTablesCommitter:
        return DeltaTablesCommitter(self)


class DeltaTablesCommitter(TablesCommitter):
    """Writes the rows of a batch into their tables."""

    columns = "table string, schema string, key array<string>, rows bigint, batch bigint"

    def __init__(self, sink: DeltaTables) -> None:
        super().__init__(sink)
        self.keys: Mapping[str, Sequence[str]] = sink.values["keyColumns"] or {}
        self.needs_rows = sink.values["operation"] != "replace"
        self._merges = Merges()

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Writes what ``frame`` has of each table, and records the batch."""
        from pyspark.sql import functions as F

        if missing := [name for name in _COLUMNS if name not in frame.columns]:
            text = f"must be a stream of tables with includeSchema=true; it has no column {', '.join(missing)}."
            raise Misconfigured(f"connectors.{NAME}", [Problem("stream", text)])
        key = F.col("key") if dict(frame.dtypes).get("key") == "array<string>" else F.lit(None)  # a stream of one's own
        rows = frame.persist()
        try:
            sums = F.count("*").alias("rows"), F.collect_set(key.cast("array<string>")).alias("keys")
            counts = rows.groupBy("table", "schema").agg(*sums).collect()
            schemas: dict[str, list[str]] = {}
            primary: dict[str, set[tuple[str, ...]]] = {}
            for row in sorted(counts, key=lambda row: str(row["schema"])):
                schemas.setdefault(row["table"], []).append(row["schema"])
                primary.setdefault(row["table"], set()).update(map(tuple, row["keys"]))
            keys = {name: self._keys_of(name, found) for name, found in primary.items()}
            writes = {name: partial(self._write, rows, name, texts, keys[name]) for name, texts in schemas.items()}
            record = [(row["table"], row["schema"], keys[row["table"]], row["rows"], batch.number) for row in counts]
            self.write_tables(frame.sparkSession, batch, writes, record)
        finally:
            rows.unpersist()

    def _write(self, frame: DataFrame, table: str, schemas: Sequence[str], keys: Sequence[str], batch: Batch) -> None:
        place, mark = self.place(table), self.ledger.transaction(batch)
        known = self.columns_of(frame.sparkSession, table, batch)
        declared = [_types(schema) for schema in schemas]  # several, when a batch met an ALTER TABLE
        known_types = {} if known is None else {field.name.lower(): field.dataType for field in known}
        types = united_types(declared, known_types)
        by_schema = [_columns(frame, table, schema, kinds, types) for schema, kinds in zip(schemas, declared, strict=True)]
        if known is not None:
            admit_columns(frame.sparkSession, place.sql, [name for name in types if name.lower() not in known_types])
        widen(frame.sparkSession, place.sql, known_types, types)
        rows = by_schema[0]
        for others in by_schema[1:]:
            rows = rows.unionByName(others, allowMissingColumns=True)
        if missing := [key for key in keys if key.lower() not in {name.lower() for name in types}]:
            raise _wrong(f'names "{missing[0]}" for {table}, whose columns are {", ".join(types)}; give {table} others.')
        if keys:
            _check_keys(table, keys, rows)
        if keys and known is not None:
            self._merge(rows, place, keys, batch, mark)
            return
        replacing = self.sink.values["operation"] == "replace"
        evolution = {"mergeSchema": "true", **properties_of(types)}
        append(rows, place, mark, is_new=known is None, mode="overwrite" if replacing else "append", **evolution)

    def _keys_of(self, table: str, primary: Set[tuple[str, ...]]) -> Sequence[str]:
        """The columns that identify a row of ``table``, whose primary key is in ``primary``. Raises :class:`Misconfigured`."""
        if alike := [name for name in self.keys if name.lower() == table.lower() and table not in self.keys]:
            raise _wrong(f'names "{alike[0]}"; the table is {table}.')
        keys = list(self.keys.get(table, self.keys.get("*", ())))
        if not keys and self.sink.values["operation"] == "upsert":
            keys = list(next(iter(primary))) if len(primary) == 1 else []
            if not keys:
                state, way_out = "which has no primary key", ""
                if any(primary):
                    state, way_out = "whose primary key has just changed", "start the query again, or "
                raise _wrong(f"lacks {table}, {state}; {way_out}give it columns that identify a row.")
        return keys

    def _merge(
        self, rows: DataFrame, place: TablePlace, keys: Sequence[str], batch: Batch, mark: TransactionMark
    ) -> None:
        """By key, and so the same when it is done again."""
        view = f"connectors_{digest(batch.prefix(), place.location)}"
        self._merges.merge(
            rows, view, place, mark,
            lambda target, source: f"MERGE WITH SCHEMA EVOLUTION INTO {target} AS old USING {source} AS new "
            f"ON {same_key(keys)} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        )  # fmt: skip


def _wrong(text: str) -> Misconfigured:
    return Misconfigured(f"connectors.{NAME}", [Problem("keyColumns", text)])


def _check_keys(table: str, keys: Sequence[str], rows: DataFrame) -> None:
    """Raises an error where ``rows`` have one key twice, or none: NULL is no value, and each row may have it."""
    from pyspark.sql import functions as F

    counts = rows.groupBy(*map(quoted, keys)).agg(F.count("*").alias(_ROWS))
    nulls = " OR ".join(f"{quoted(key)} IS NULL" for key in keys)
    if wrong := counts.where(f"{_ROWS} > 1 OR {nulls}").first():
        values = wrong[:-1]
        which = "no" if None in values else "the same"
        text = f"rows of {table} have {which} {', '.join(keys)}, such as {', '.join(map(str, values))}"
        way_out = f"if {table} has other columns that identify a row, give them as keyColumns"
        if None not in values:
            way_out += "; else a row has changed while the batch was read: start the query again"
        raise Fatal(text, connector=f"connectors.{NAME}", way_out=way_out)


def _is_names(columns: object) -> bool:
    return isinstance(columns, list) and bool(columns) and all(isinstance(name, str) for name in columns)


def _types(schema: str) -> dict[str, Any]:
    from pyspark.sql.types import StructType

    fields: Any = StructType.fromDDL(schema)
    return {field.name: field.dataType for field in fields}


def _columns(
    frame: DataFrame, table: str, schema: str, declared: Mapping[str, Any], types: Mapping[str, Any]
) -> DataFrame:
    """The rows of one table and schema, their JSON as columns of ``types``."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    read = StructType()
    for name, kind in declared.items():
        read.add(name, kind)
    some = frame.where((F.col("table") == table) & (F.col("schema") == schema))
    parsed = some.select(F.from_json("row", read, {"mode": "FAILFAST"}).alias("row"))
    cells = (
        fitted(F.col("row").getField(name), kind, types[name], f"{table}.{name}").alias(name)
        for name, kind in declared.items()
    )
    return parsed.select(*cells)

"""A change log of Kafka Connect as columns: which row of a table each record changes, how, and where in the log it stands.

Two forms are read. Debezium's *envelope* has ``op``, ``before``, ``after`` and ``source``. The *unwrapped* form, of Debezium's
``ExtractNewRecordState``, has the row beside ``__op``, ``__deleted`` and the position: ``__lsn``, or ``__file`` and ``__pos``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...core import Fatal, Misconfigured, Problem
from ...formats.base import quoted
from .change_schema import Cell, ChangeColumn, columns_of, columns_of_type, fields_of
from .holes import may_have_holes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

NAME: Final = "connectors.connect.merge"
DELETED, SNAPSHOT, ENDS, POSITION, ORDINAL = (
    f"__connectors_{name}" for name in ("deleted", "snapshot", "ends", "position", "ordinal")
)
"""Columns beside those of the row: is it deleted, or of a snapshot, or its last one; its place in the log, and in the batch."""

_OUTER: Final = "schema string, payload string"
_OWN: Final = "__"
_SOURCE: Final = ("lsn", "file", "pos", "row", "scn", "change_lsn", "ts_ms", "snapshot")
_LAST: Final = ("last", "last_in_data_collection")
"""What Debezium calls the last row of a snapshot, and of a table in it."""


@dataclass(frozen=True)
class Changes:
    """The changes of a batch: ``frame`` has the columns of the table, by their names and types, and those of this module."""

    frame: DataFrame
    columns: dict[str, Any]
    defaults: dict[str, Any]


def records_of(frame: DataFrame, topic: str | None) -> DataFrame:
    """The records that say something: ``key`` and ``value`` as text, in the order of the log."""
    from pyspark.sql import functions as F

    if missing := [name for name in ("value",) if name not in frame.columns]:
        text = f"must have the columns of connectors.connect; it has no {', '.join(missing)}."
        raise Misconfigured(NAME, [Problem("stream", text)])
    key = F.col("key").cast("string") if "key" in frame.columns else F.lit(None).cast("string")
    topics = F.col("topic") if "topic" in frame.columns else F.lit("")
    value, ordinal = F.col("value").cast("string"), F.monotonically_increasing_id()
    rows = frame.select(topics.alias("topic"), key.alias("key"), value.alias("value"), ordinal.alias(ORDINAL))
    rows = rows.where(F.col("value").isNotNull())
    return rows if topic is None else rows.where(F.col("topic") == topic)


@dataclass(frozen=True)
class Summary:
    """What one look at the records of a batch has found: their schemas as JSON text, oldest first, ``None`` for plain values.

    ``has_holes``: there are values that an update has not touched. ``may_delete`` is false where no record deletes, and
    ``may_end_snapshot`` where none is the last one of a snapshot.
    """

    schemas: list[str | None]
    key: str | None
    has_holes: bool
    may_delete: bool
    may_end_snapshot: bool


def summary_of(records: DataFrame) -> Summary:
    """A look at ``records``. Raises :class:`Misconfigured` for records of several topics."""
    from pyspark.sql import functions as F

    value = F.col("value")
    deletes = F.expr(r"value RLIKE '\"(op|__op)\"\\s*:\\s*\"d\"|\"__deleted\"\\s*:\\s*\"true\"'")
    ends = value.rlike(r'"(__source_|__)?snapshot"\s*:\s*"last')
    rows = (
        _outer(records)
        .groupBy("schema")
        .agg(
            F.collect_set("topic").alias("topics"),
            F.max(ORDINAL).alias("last"),
            F.max("key").alias("key"),
            F.max(may_have_holes(value)).alias("holes"),
            F.max(deletes).alias("deletes"),
            F.max(ends).alias("ends"),
        )
        .collect()
    )
    topics = sorted({topic for row in rows for topic in row["topics"]})
    if len(topics) > 1:
        text = f"missing; the stream has {len(topics)} topics ({', '.join(topics[:3])}, …), and a table is fed from one."
        raise Misconfigured(NAME, [Problem("topic", text)])
    ordered = sorted(rows, key=lambda row: row["last"])
    key = next((row["key"] for row in ordered if row["key"] is not None), None)
    holes, may_delete = any(row["holes"] for row in ordered), any(row["deletes"] for row in ordered)
    may_end = any(row["ends"] for row in ordered)
    return Summary([row["schema"] for row in ordered], key, holes, may_delete, may_end)


def key_columns(key: str | None) -> list[str]:
    """The fields of the records' keys, of the JSON text of one."""
    parsed = json.loads(key) if key is not None else None
    payload = parsed.get("payload") if isinstance(parsed, dict) and set(parsed) == {"schema", "payload"} else parsed
    if isinstance(payload, dict) and payload:
        return list(payload)
    text = "missing; the records have no key with fields, so name the columns that identify a row."
    raise Misconfigured(NAME, [Problem("keyColumns", text)])


def changes_of(records: DataFrame, schemas: Sequence[str | None], plain: StructType | None) -> Changes:
    """The changes that ``records`` hold, whose values have ``schemas``; ``plain`` is the schema of those that carry none."""
    from pyspark.sql import functions as F

    outer = _outer(records)
    parts = []
    for schema in schemas:
        if schema is None:
            part = outer.where("schema IS NULL").withColumn("text", F.col("value"))
            fields = columns_of_type(plain) if plain is not None else _inferred(part)
            parts.append(_changes(part, _form_of(fields)))
        else:
            part = outer if len(schemas) == 1 else outer.where(F.col("schema") == schema)
            parts.append(_changes(part.withColumn("text", F.col("payload")), _declared(schema)))
    return _united(parts)


def _outer(records: DataFrame) -> DataFrame:
    """``records`` with ``schema`` and ``payload`` of values that carry a schema."""
    from pyspark.sql import functions as F

    outer = F.from_json("value", _OUTER)
    is_plain = outer["schema"].isNull() | outer["payload"].isNull()
    return records.withColumns({"schema": F.when(~is_plain, outer["schema"]), "payload": outer["payload"]})


@dataclass(frozen=True)
class _Form:
    """How the fields of a value are laid out."""

    row: list[ChangeColumn]
    is_envelope: bool
    position: list[str]


def _declared(text: str) -> _Form:
    fields = fields_of(text)
    by_name = {str(field["field"]): field for field in fields}
    if not _is_envelope(by_name):
        own = [name for name in by_name if name.startswith(_OWN)]
        row = columns_of([field for field in fields if not str(field["field"]).startswith(_OWN)])
        return _Form(row, False, own)
    source = [str(field["field"]) for field in by_name.get("source", {}).get("fields", [])]
    return _Form(columns_of(by_name["after"]["fields"]), True, source)


def _is_envelope(names: Any) -> bool:
    return "op" in names and "after" in names


def _changes(rows: DataFrame, form: _Form) -> Changes:
    """The changes of records that have one schema."""
    from pyspark.sql import functions as F

    parsed = rows.withColumn("change", F.from_json("text", _read_type(form), {"mode": "FAILFAST"}))
    op, deleted, state, place = _places(form)
    last = place["snapshot"].isin(*_LAST) if "snapshot" in place else F.lit(False)
    has_exact = any(column.exact is not None for column in form.row)
    if has_exact:
        parsed = parsed.withColumn("exact", F.from_json("value", _exact_type(form))["payload"])

    def cell(column: ChangeColumn) -> Column:
        exact = state(F.col("exact"), column.name) if column.exact is not None else None
        return column.convert(Cell(state(F.col("change"), column.name), exact)).cast(column.type)

    cells = [cell(column).alias(column.name) for column in form.row]
    own = {
        DELETED: deleted,
        SNAPSHOT: op == "r",
        ENDS: (op == "r") & F.coalesce(last, F.lit(False)),
        POSITION: _position(place),
        ORDINAL: F.col(ORDINAL),
    }
    known = parsed.where(op.isNull() | (op != "m"))
    refusal = F.raise_error(F.lit("a truncation (op t) is not applied: name t in the connector's skipped.operations"))
    checked = F.when(op == "t", refusal).otherwise(op)
    frame = known.withColumn("op", checked).where(F.col("op").isNull() | (F.col("op") != ""))
    frame = frame.select(*cells, *(expression.alias(name) for name, expression in own.items()))
    types = {column.name: column.type for column in form.row}
    return Changes(frame, types, {column.name: column.default for column in form.row if column.default is not None})


def _form_of(columns: list[ChangeColumn]) -> _Form:
    """The form of plain JSON, of its columns: those of an envelope, or of a row."""
    by_name = {column.name: column for column in columns}
    if not _is_envelope(by_name):
        own = [name for name in by_name if name.startswith(_OWN)]
        return _Form([column for column in columns if not column.name.startswith(_OWN)], False, own)
    row: Any = by_name["after"].type
    if not hasattr(row, "fields"):  # a batch of deletions
        row = by_name["before"].type
    source = getattr(by_name["source"].type, "names", []) if "source" in by_name else []
    return _Form(columns_of_type(row), True, list(source))


def _read_type(form: _Form) -> StructType:
    from pyspark.sql.types import LongType, StringType, StructType

    row = StructType()
    for column in form.row:
        row = row.add(column.name, column.read)
    numbers = {"lsn", "pos", "row", "ts_ms"}
    if form.is_envelope:
        source = StructType()
        for name in form.position:
            if name in _SOURCE:
                source = source.add(name, LongType() if name in numbers else StringType())
        return StructType().add("op", "string").add("before", row).add("after", row).add("source", source)
    for name in form.position:
        number = name.removeprefix(_OWN).removeprefix("source_") in numbers
        row = row.add(name, LongType() if number else StringType())
    return row


def _exact_type(form: _Form) -> StructType:
    """The type of the columns that have to be read a second time, of a value with its schema."""
    from pyspark.sql.types import StructType

    row = StructType()
    for column in form.row:
        if column.exact is not None:
            row = row.add(column.name, column.exact)
    return StructType().add("payload", StructType().add("before", row).add("after", row) if form.is_envelope else row)


def _places(form: _Form) -> tuple[Column, Column, Callable[[Column, str], Column], dict[str, Column]]:
    """The operation, whether it deletes, a column of the row out of what was parsed, and the fields of the position."""
    from pyspark.sql import functions as F

    change = F.col("change")
    if form.is_envelope:
        op = change["op"]
        deleted = op == "d"
        source = {name: change["source"][name] for name in form.position if name in _SOURCE}

        def state(parsed: Column, name: str) -> Column:
            return F.when(deleted, parsed["before"][name]).otherwise(parsed["after"][name])

        return op, deleted, state, source
    fields = set(form.position)
    if "__deleted" not in fields and "__op" not in fields:
        text = (
            "must tell a deletion: set delete.tombstone.handling.mode=rewrite and add.fields=op,lsn (MySQL and MariaDB: "
            "op,file,pos,row) of ExtractNewRecordState, or leave the transform out."
        )
        raise Misconfigured(NAME, [Problem("value", text)])
    op = change["__op"] if "__op" in fields else F.lit(None).cast("string")
    deleted = F.coalesce(change["__deleted"] == "true", F.lit(False)) if "__deleted" in fields else op == "d"
    names = {name.removeprefix(_OWN).removeprefix("source_"): name for name in form.position}
    return op, deleted, lambda parsed, name: parsed[name], {name: change[own] for name, own in names.items()}


def _position(fields: dict[str, Column]) -> Column:
    """Where a change stands in the database's log, as text that sorts as the log does."""
    from pyspark.sql import functions as F

    def digits(column: Column, width: int = 20) -> Column:
        return F.lpad(F.coalesce(column.cast("string"), F.lit("0")), width, "0")

    if "lsn" in fields:
        return digits(fields["lsn"])
    if "file" in fields and "pos" in fields:
        number = F.regexp_extract(F.coalesce(fields["file"], F.lit("")), r"(\d*)$", 1)
        row = fields.get("row", F.lit(0))
        return F.concat(digits(number, 10), digits(fields["pos"]), digits(row, 10))
    for name in ("scn", "change_lsn", "ts_ms"):
        if name in fields:
            return F.coalesce(fields[name].cast("string"), F.lit("")) if name == "change_lsn" else digits(fields[name])
    text = "must have a position in the log: source.lsn, or source.file and source.pos; unwrapped: add.fields=op,lsn."
    raise Misconfigured(NAME, [Problem("value", text)])


def _inferred(part: DataFrame) -> list[ChangeColumn]:
    """The columns of plain JSON, by a look at all of it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType, StructType

    row = part.select(F.schema_of_variant_agg(F.parse_json("text")).alias("schema")).head()
    text = str(row["schema"]) if row is not None else ""
    if not text.startswith("OBJECT<"):
        raise Fatal(f"a change must be a JSON object; it is {text[:200]}", connector=NAME)
    kind = DataType.fromDDL(text.replace("OBJECT<", "STRUCT<").replace("VOID", "STRING"))
    assert isinstance(kind, StructType)
    return columns_of_type(_without_decimals(kind))


def _without_decimals(kind: Any) -> Any:
    """``kind`` with doubles for numbers that have a point: how many digits they have depends on the batch."""
    from pyspark.sql.types import ArrayType, DecimalType, DoubleType, StructType

    if isinstance(kind, DecimalType):
        return DoubleType()
    if isinstance(kind, ArrayType):
        return ArrayType(_without_decimals(kind.elementType))
    if isinstance(kind, StructType):
        struct = StructType()
        for field in kind:
            struct = struct.add(field.name, _without_decimals(field.dataType))
        return struct
    return kind


def _united(parts: Sequence[Changes]) -> Changes:
    """All parts with the columns of all: a column has its newest type, and its default in rows that are older than it."""
    from pyspark.sql import functions as F

    columns = {name: kind for part in parts for name, kind in part.columns.items()}
    defaults = {name: default for part in parts for name, default in part.defaults.items()}
    frames = []
    for part in parts:
        cells = [
            (F.col(quoted(name)) if name in part.columns else F.lit(defaults.get(name))).cast(kind).alias(name)
            for name, kind in columns.items()
        ]
        own = [F.col(name) for name in (DELETED, SNAPSHOT, ENDS, POSITION, ORDINAL)]
        frames.append(part.frame.select(*cells, *own))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return Changes(whole, columns, defaults)

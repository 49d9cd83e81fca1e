"""A change log of Kafka Connect as columns: which row of a table each record changes, how, and where in the log it stands.

Two forms are read. Debezium's *envelope* has ``op``, ``before``, ``after`` and ``source``. The *unwrapped* form, of Debezium's
``ExtractNewRecordState``, has the row beside ``__deleted`` and what ``add.fields`` adds: ``__op``, ``__source_sequence`` …
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...core import Fatal, Misconfigured, Problem
from .change_defaults import columns_of
from .change_schema import DECIMAL, Cell, ChangeColumn, columns_of_type, fields_of, numbers_as_texts
from .column_types import fitted, united_types
from .holes import ABSENT, mark_of, may_have_holes
from .positions import ARRIVAL, ATTEMPTS, FIELDS, LogOrder, order_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

NAME: Final = "connectors.connect.merge"
DELETED, SNAPSHOT, ENDS, ATTEMPT, TRUNCATES, MOVED, DIGITS, LOG, AT, ORDINAL, POSITION = (
    f"__connectors_{name}"
    for name in ("deleted", "snapshot", "ends", "attempt", "truncates", "moved", "digits", "log", "at", "ordinal", "position")
)
"""Columns beside those of the row: is it deleted, of a snapshot, the last one of it, and of which; is it a truncation; does
it begin a row, which may have had another key before; its place in the database's log, and which log that is; its time; its
place in the batch; all places as one text."""

_OUTER: Final = "schema string, payload string"
_METADATA: Final = frozenset(
    {
        "op", "deleted", "ts_ms", "ts_us", "ts_ns", "ts_sec", "table", "db", "schema", "collection", "name", "version",
        "connector", "snapshot", "sequence", "lsn", "txId", "xmin", "origin", "origin_lsn", "file", "pos", "row", "gtid",
        "server_id", "thread", "query", "commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn", "ord", "rs",
    }
)  # fmt: skip
"""The fields that ``add.fields`` may name, behind ``__`` or ``__source_``; another column of such a form is the table's own."""
_CLOCKS: Final = ("__ts_ms", "__ts_us", "__ts_ns")
"""The time at which Debezium has seen a change; ``__source_ts_ms`` is that of the database."""
_DEBEZIUM_ONLY: Final = (
    r'"name"\s*:\s*"io\.debezium\.connector\.(common\.(Heartbeat|TransactionMetadata)|[\w.]*SchemaChange)(Key|Value)?"'
)
"""Records that tell of Debezium itself, by the name of their schema."""
_POSTGRES: Final = "lsn"
"""The field of a place in the log that only PostgreSQL has."""
_OTHERS: Final = frozenset({"file", "gtid", "commit_lsn", "scn"})
"""Such fields of which PostgreSQL has none."""
ANY: Final = "*"
"""In ``fill``: every column of which only the user knows what older rows have."""
_HEARTBEATS: Final = "__debezium-heartbeat"
_AGAIN: Final = "__connectors.snapshot"
"""The header of the first record behind the start of a snapshot that was interrupted before."""
_OLD_KEY: Final = "__debezium.oldkey"
"""The header of a record whose row had another key before."""


@dataclass(frozen=True)
class Changes:
    """The changes of a batch: ``frame`` has the columns of the table, by their names and types, and those of this module.

    ``declared`` are the types, by name, that the newest record declares; those of ``columns`` hold the table's values, too.
    ``gaps`` are columns that some of the records do not have.
    ``defaults`` are the values of rows that are older than a column; ``required`` are columns of which only the user knows it.
    ``names_log``: positions belong to one log of several.
    """

    frame: DataFrame
    columns: dict[str, Any]
    declared: dict[str, str]
    gaps: frozenset[str]
    defaults: dict[str, Column]
    required: frozenset[str]
    order: str
    is_envelope: bool
    names_log: bool


@dataclass(frozen=True)
class Summary:
    """What a batch has of one topic: schemas as JSON text, oldest first, ``None`` for plain values.

    ``keys`` are the fields of the records' keys. ``has_holes``: there are values that an update has not touched. ``may_…`` is
    false where no record deletes, truncates, comes from a snapshot, or from one that is not incremental. Of all topics of the
    batch, ``again`` is the ordinal of the last record with which an interrupted snapshot begins again, and ``streams`` says
    that there are changes of the log.
    """

    schemas: Sequence[str | None] = ()
    keys: Sequence[tuple[str, ...]] = ()
    changes: int = 0
    has_holes: bool = False
    may_delete: bool = False
    may_truncate: bool = False
    may_be_snapshot: bool = False
    may_be_initial: bool = False
    streams: bool = False
    again: int | None = None


def records_of(frame: DataFrame) -> DataFrame:
    """The records in the order of the stream, and whether a snapshot begins anew with one.

    ``text`` is the value: the payload of one that carries a ``schema``, which is null for others. Spark writes the numbers of a
    payload anew, as doubles, so a value with decimals is there as it came, too: ``original``.
    """
    from pyspark.sql import functions as F

    if "value" not in frame.columns:
        raise Misconfigured(NAME, [Problem("stream", "must have the columns of connectors.connect; it has no value.")])

    def text(name: str) -> Column:
        return (F.col(name) if name in frame.columns else F.lit(None)).cast("string")

    topic = F.col("topic") if "topic" in frame.columns else F.lit("")

    def has_header(name: str) -> Column:
        if "headers" not in frame.columns:
            return F.lit(False)
        return F.coalesce(F.exists("headers", lambda header: header["key"] == name), F.lit(False))

    outer = F.from_json(text("value"), _OUTER)
    is_plain = outer["schema"].isNull() | outer["payload"].isNull()
    original = F.when(~is_plain & outer["schema"].contains(DECIMAL), text("value"))
    return frame.select(
        topic.alias("topic"), text("key").alias("key"), F.when(~is_plain, outer["schema"]).alias("schema"),
        F.when(is_plain, text("value")).otherwise(outer["payload"]).alias("text"), original.alias("original"),
        has_header(_AGAIN).alias("again"),
        has_header(_OLD_KEY).alias(MOVED), F.monotonically_increasing_id().alias(ORDINAL),
    )  # fmt: skip


def summaries_of(records: DataFrame) -> tuple[dict[str, Summary], Summary]:
    """A look at ``records``: a summary for each topic that has changes, and one for a topic that has none."""
    from pyspark.sql import functions as F

    value = F.col("text")
    is_change = value.isNotNull() & ~F.col("topic").startswith(_HEARTBEATS)

    def operation(*letters: str) -> Column:
        return value.rlike(rf'"(op|__op)"\s*:\s*"[{"".join(letters)}]"')

    def seen(condition: Column) -> Column:
        return F.max(F.coalesce(is_change & condition, F.lit(False)))

    incremental = value.rlike(r'"(__source_|__)?snapshot"\s*:\s*"incremental')
    payload = F.coalesce(F.get_json_object("key", "$.payload"), F.col("key"))
    found = (
        records.groupBy("topic", "schema", is_change.alias("changes"))
        .agg(
            F.count(F.lit(1)).alias("number"),
            F.max(ORDINAL).alias("last"),
            F.collect_set(F.when(is_change, F.json_object_keys(payload))).alias("keys"),
            seen(may_have_holes(value)).alias("holes"),
            seen(operation("d") | value.rlike(r'"__deleted"\s*:\s*"true"')).alias("deletes"),
            seen(operation("t")).alias("truncates"),
            seen(operation("r")).alias("snapshot"),
            seen(operation("r") & ~incremental).alias("initial"),
            seen(operation("c", "u", "d") & ~operation("r")).alias("streams"),
            F.max(F.when(F.col("again"), F.col(ORDINAL))).alias("again"),
        )
        .collect()
    )
    again = max((row["again"] for row in found if row["again"] is not None), default=None)
    rows = [row for row in found if row["changes"] and not re.search(_DEBEZIUM_ONLY, row["schema"] or "")]
    empty = Summary(streams=any(row["streams"] for row in rows), again=again)
    by_topic: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["last"]):
        by_topic.setdefault(row["topic"], []).append(row)
    return {topic: _summary(own, empty) for topic, own in sorted(by_topic.items())}, empty


def _summary(rows: Sequence[Any], empty: Summary) -> Summary:
    def any_of(name: str) -> bool:
        return any(row[name] for row in rows)

    return replace(
        empty,
        schemas=[row["schema"] for row in rows],
        keys=sorted({tuple(key) for row in rows for key in row["keys"] if key}),
        changes=sum(row["number"] for row in rows),
        has_holes=any_of("holes"),
        may_delete=any_of("deletes"),
        may_truncate=any_of("truncates"),
        may_be_snapshot=any_of("snapshot"),
        may_be_initial=any_of("initial"),
    )


def changes_of(
    records: DataFrame,
    schemas: Sequence[str | None],
    plain: StructType | None,
    known: Mapping[str, Any] | None = None,
    fills: Mapping[str, Any] | None = None,
    names: Callable[[Sequence[str]], Sequence[str | None]] = list,
) -> Changes:
    """The changes that ``records``, all of one topic, hold, whose values have ``schemas``.

    ``plain`` is the schema of values that carry none. ``known`` are the columns of the table: a column keeps its type there
    unless a wider one holds all values of both. ``fills`` are the user's values, as JSON, of rows that are older than a
    column. ``names`` tells the table's names of the columns of a row; ``None`` leaves a column out. Raises
    :class:`Misconfigured` where the form does not tell all there is to know.
    """
    from pyspark.sql import functions as F

    parts = []
    for schema in schemas:
        is_own = F.col("text").isNotNull() & F.col("schema").eqNullSafe(F.lit(schema))
        # Spark may read the JSON before it filters, so others have no text
        part = records.where(is_own).withColumn("text", F.when(is_own, F.col("text")))
        if schema is None:
            payload = F.concat(F.lit('{"payload":'), numbers_as_texts(F.col("text")), F.lit("}"))
            part = part.withColumn("original", payload)
        form = _plain_form(part, plain) if schema is None else _declared_form(schema)
        parts.append(_Part(part, form, is_plain=schema is None))
    return _united(parts, known or {}, fills or {}, names)


def columns_of_rows(schemas: Sequence[str | None]) -> list[list[str]]:
    """The names of the columns of a row, for each of ``schemas``."""
    return [[column.name for column in _declared_form(schema).row] for schema in schemas if schema is not None]


@dataclass(frozen=True)
class _Form:
    """The layout of a value: the columns of the row, and the fields that tell of its place, by Debezium's names of them."""

    row: list[ChangeColumn]
    is_envelope: bool
    source: dict[str, str]
    has_operation: bool = True


def _declared_form(text: str) -> _Form:
    fields = fields_of(text)
    by_name = {str(field["field"]): field for field in fields}
    if _is_envelope(by_name):
        source = [str(field["field"]) for field in by_name.get("source", {}).get("fields", [])]
        columns = columns_of(by_name["after"]["fields"], is_postgres=_POSTGRES in source)
        return _Form(columns, True, {name: name for name in source if name in FIELDS})
    names = {_metadata(name) for name in by_name}
    is_postgres = True if _POSTGRES in names else False if names & _OTHERS else None
    return _unwrapped_form(columns_of(fields, is_postgres=is_postgres))


def _plain_form(part: DataFrame, schema: StructType | None) -> _Form:
    """The form of values without a schema: it is seen in one of them, and ``schema`` has the columns of a row."""
    from pyspark.sql.types import StringType

    if schema is None:
        text = (
            'missing; the values carry no schema, so name the columns of a row, such as "id INT, name STRING", '
            "or set value.converter.schemas.enable=true."
        )
        raise Misconfigured(NAME, [Problem("schema", text)])
    row = part.select("text").head()
    value = json.loads(row["text"]) if row is not None else {}
    if not isinstance(value, dict):
        raise Fatal(f"a change must be a JSON object; it is {row['text'][:200] if row else ''}", connector=NAME)
    if _is_envelope(value):
        return _Form(columns_of_type(schema), True, {name: name for name in value.get("source") or {} if name in FIELDS})
    extra = [ChangeColumn(name, StringType(), StringType(), lambda cell: cell.read) for name in value if _metadata(name)]
    return _unwrapped_form([*columns_of_type(schema), *extra])


def _is_envelope(names: Any) -> bool:
    return "op" in names and "after" in names


def _metadata(name: str) -> str | None:
    """The field of Debezium that a field of the unwrapped form stands for."""
    plain = name.removeprefix("__").removeprefix("source_")
    return plain if name.startswith("__") and plain in _METADATA else None


def _unwrapped_form(columns: list[ChangeColumn]) -> _Form:
    names = {name: column.name for column in columns if (name := _metadata(column.name)) and column.name not in _CLOCKS}
    if "deleted" not in names:
        text = (
            "must tell a deletion, and in the unwrapped form only __deleted does: set "
            "delete.tombstone.handling.mode=rewrite of ExtractNewRecordState, and add.fields=op,source.sequence,lsn "
            "(MySQL and MariaDB: op,gtid,file,pos,row), or leave the transform out. "
            "Deletions that came without are not in the table: take a new snapshot."
        )
        raise Misconfigured(NAME, [Problem("value", text)])
    row = [column for column in columns if not _metadata(column.name)]
    source = {name: own for name, own in names.items() if name in FIELDS}
    return _Form(row, False, source, has_operation="op" in names)


@dataclass
class _Part:
    """The records of one schema, read."""

    rows: DataFrame
    form: _Form
    is_plain: bool
    order: LogOrder = field(init=False)

    def __post_init__(self) -> None:
        from pyspark.sql import functions as F

        parsed = self.rows.withColumn("change", F.from_json("text", _read_type(self.form), {"mode": "FAILFAST"}))
        if any(column.exact is not None for column in self.form.row):
            # what the numbers' quotes would break or alter, such as text behind the value, is an error
            options = {"mode": "FAILFAST", "allowSingleQuotes": "false"} if self.is_plain else {"mode": "PERMISSIVE"}
            parsed = parsed.withColumn("exact", F.from_json("original", _exact_type(self.form), options)["payload"])
        change = F.col("change")
        source = change["source"] if self.form.is_envelope else change
        fields = {name: source[own] for name, own in self.form.source.items()}
        self.order = order_of(fields, has_operation=self.form.has_operation, is_envelope=self.form.is_envelope)
        if self.form.is_envelope:
            self._operation, self._deleted = change["op"], change["op"] == "d"
        else:
            self._operation = change["__op"] if self.form.has_operation else F.lit(None).cast("string")
            self._deleted = F.coalesce(change["__deleted"].cast("string") == "true", F.lit(False))
        self._mark = fields.get("snapshot", F.lit(None).cast("string"))
        places = [fields[name].cast("string") for name in ATTEMPTS if name in fields]
        micros = fields.get("ts_us", F.lit(None).cast("bigint"))
        self._at = F.timestamp_micros(F.coalesce(micros, fields.get("ts_ms", F.lit(None).cast("bigint")) * 1000))
        self._attempt = F.concat_ws(" ", *places) if places else F.lit(None).cast("string")
        self._parsed = parsed.where(self._operation.isNull() | (self._operation != "m"))

    def value(self, column: ChangeColumn) -> Column:
        """The value of ``column`` after the change, or that of the deleted row, as ``column.type``."""
        from pyspark.sql import functions as F

        def state(parsed: Column) -> Column:
            if not self.form.is_envelope:
                return parsed[column.name]
            return F.when(self._deleted, parsed["before"][column.name]).otherwise(parsed["after"][column.name])

        exact = state(F.col("exact")) if column.exact is not None else None
        return column.convert(Cell(state(F.col("change")), exact)).cast(column.type)

    def select(self, cells: Sequence[Column], absent: Sequence[str]) -> DataFrame:
        """The changes, with ``cells`` as the columns of the row, of which their source does not have those of ``absent``."""
        from pyspark.sql import functions as F

        is_read = F.coalesce(self._operation == "r", F.lit(False))
        text = F.lit(None).cast("string")
        own = {
            DELETED: F.coalesce(self._deleted, F.lit(False)),
            SNAPSHOT: is_read,
            ENDS: is_read & F.coalesce(self._mark.startswith("last"), F.lit(False)),
            ATTEMPT: F.when(is_read & (self._attempt != "") & ~self._mark.eqNullSafe("incremental"), self._attempt),
            TRUNCATES: F.coalesce(self._operation == "t", F.lit(False)),
            MOVED: F.col(MOVED) | F.coalesce(self._operation == "c", F.lit(False)),
            DIGITS: text if self.order.digits is None else F.when(~is_read, self.order.digits),
            LOG: text if self.order.log is None else F.when(~is_read, self.order.log),
            AT: self._at,
            ORDINAL: F.col(ORDINAL),
            ABSENT: F.array(*(F.lit(mark_of(name)) for name in absent)).cast("array<string>"),
        }
        return self._parsed.select(*cells, *(expression.alias(name) for name, expression in own.items()))


def _read_type(form: _Form) -> StructType:
    from pyspark.sql.types import DataType, StructType

    row = StructType()
    for column in form.row:
        row = row.add(column.name, column.read)
    place = StructType()
    for name, own in form.source.items():
        place = place.add(own, DataType.fromDDL(FIELDS[name]))
    if form.is_envelope:
        return StructType().add("op", "string").add("before", row).add("after", row).add("source", place)
    for own in ("__deleted", *(("__op",) if form.has_operation else ())):
        place = place.add(own, "string")
    return StructType([*row, *place])


def _exact_type(form: _Form) -> StructType:
    """The type of the columns that have to be read a second time, of a value with its schema."""
    from pyspark.sql.types import StructType

    row = StructType()
    for column in form.row:
        if column.exact is not None:
            row = row.add(column.name, column.exact)
    return StructType().add("payload", StructType().add("before", row).add("after", row) if form.is_envelope else row)


def _united(
    parts: Sequence[_Part],
    known: Mapping[str, Any],
    fills: Mapping[str, Any],
    names: Callable[[Sequence[str]], Sequence[str | None]],
) -> Changes:
    """All parts with the columns of all, in types that hold the values of all and of the table."""
    from pyspark.sql import functions as F

    pairs = [list(zip(names([column.name for column in part.form.row]), part.form.row, strict=True)) for part in parts]
    spelling = {name.lower(): name for columns in pairs for name, _ in columns if name is not None}
    rows = [_row(columns, spelling) for columns in pairs]
    types = united_types([{name: column.type for name, column in row.items()} for row in rows], known)
    oldest = {name: column for row in reversed(rows) for name, column in row.items()}  # later defaults are of later rows
    defaults = {
        name: fitted(
            column.filled(fills[name]) if name in fills else column.value_of(column.default), column.type, types[name], name
        )
        for name, column in oldest.items()
        if name in fills or column.default is not None
    }
    frames = []
    gaps: set[str] = set()
    for part, own in zip(parts, rows, strict=True):
        absent = types.keys() - own.keys()
        cells = [
            fitted(part.value(own[name]), own[name].type, kind, name)
            if name in own
            else defaults.get(name, F.lit(None)).cast(kind)
            for name, kind in types.items()
        ]
        frames.append(part.select([cell.alias(name) for cell, name in zip(cells, types, strict=True)], sorted(absent)))
        gaps |= absent
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    required = frozenset(name for name, column in oldest.items() if column.needs_fill and not {name, ANY} & fills.keys())
    orders = {part.order.name for part in parts}
    order = orders.pop() if len(orders) == 1 else ARRIVAL
    is_envelope, names_log = (all(part.form.is_envelope for part in parts), any(part.order.log is not None for part in parts))
    declared = {name: column.type.simpleString() for name, column in rows[-1].items()}
    return Changes(whole, types, declared, frozenset(gaps), defaults, required, order, is_envelope, names_log)


def _row(pairs: Sequence[tuple[str | None, ChangeColumn]], spelling: Mapping[str, str]) -> dict[str, ChangeColumn]:
    """The columns of ``pairs`` by the newest ``spelling`` of their names: Spark and Delta take ``Id`` and ``id`` for one."""
    columns = [(spelling[name.lower()], column) for name, column in pairs if name is not None]
    row = dict(columns)
    return row if len(row) == len(columns) else {column.name: column for _, column in columns}  # an error of Spark


def unknown_value(name: str) -> Misconfigured:
    """The error of a new column whose value in older rows the log does not tell."""
    text = (
        f"the log does not tell which value the rows have that are older than the new column {name}: its default is gone, an "
        "expression, a value that SQL writes otherwise (quotes, a backslash, binary), or of a type that Debezium passes over. "
        f'Give the value: fill={{"{name}": …}}, as JSON that Spark reads for the column\'s type; null leaves them empty, and '
        f'fill={{"{ANY}": null}} does so for all such columns.'
    )
    return Misconfigured(NAME, [Problem("fill", text)])

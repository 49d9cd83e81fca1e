"""A table of the database behind a change log: its rows, in the types and the form that the log has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...formats.base import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_KINDS: Final = """
SELECT a.attname::text AS name, CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'r' THEN 'range' WHEN 'd'
    THEN format_type(t.typbasetype, NULL) ELSE format_type(t.oid, NULL) END AS kind, a.attgenerated <> '' AS is_generated
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass('{table}') AND a.attnum > 0 AND NOT a.attisdropped
"""
_ANY_NUMERIC: Final = "decimal(38,18)"
"""The type as which a ``numeric`` without precision is read."""
_TEXTS: Final = frozenset(
    {
        "text", "character varying", "character", "bpchar", '"char"', "name", "citext", "uuid", "json", "jsonb", "xml", "enum",
        "range", "inet", "cidr", "macaddr", "macaddr8", "ltree", "tsvector",
    }
)  # fmt: skip
"""Types of PostgreSQL that the log has as text, of those that are read as text."""


class DatabaseTable:
    """The table ``name`` (``schema.table``) of ``database``, the options of ``connectors.jdbc`` or of a Debezium connector."""

    def __init__(self, spark: SparkSession, database: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._spark = spark
        as_in_log = {"timeZone": "UTC", "preferTimestampNTZ": "false"}
        self.options = {**reader_options(database), **as_in_log, "dbtable": exact_name(name)}
        self._kinds: dict[str, str] = {}
        self._generated = set[str]()
        if is_postgresql(self.options):
            query = _KINDS.format(table=self.options["dbtable"].replace("'", "''"))
            rows = self._reader(query=query).collect()
            self._kinds = {row["name"]: row["kind"].rpartition(".")[2] for row in rows}
            self._generated = {row["name"] for row in rows if row["is_generated"]}

    def rows(self, **options: Any) -> DataFrame:
        """All rows, or those that ``options`` of ``connectors.jdbc`` leave, as that reads them."""
        return self._reader(**options)

    def value(self, name: str, source: DataType, target: DataType) -> tuple[Column, DataType] | None:
        """The column ``name``, read as ``source``, in the form of a log whose values are of type ``target``, and its type.

        ``None`` if only the log knows that form, as of PostgreSQL's ``interval``.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import NumericType

        kind, column = self._kinds.get(name, ""), F.col(quoted(name))
        if kind == "time without time zone" and target.typeName() in ("integer", "long"):
            hours, minutes, seconds = (F.split_part(column, F.lit(":"), F.lit(part)) for part in (1, 2, 3))
            parts = hours.cast("bigint") * 3600 + minutes.cast("bigint") * 60 + seconds.cast("decimal(8,6)")
            return (parts * (1_000_000 if target.typeName() == "long" else 1000)).cast(target), target
        if kind == "inet":  # Debezium writes the address of a host alone
            return F.regexp_replace(column, r"^([\d.]+)/32$|^([\da-fA-F:.]+)/128$", "$1$2"), source
        if source.typeName() == "string" and (target.typeName() != "string" or self.type_in_log(name, source) is None):
            return None  # an interval, or a time of day, has another text there
        if source.simpleString() == _ANY_NUMERIC and target.typeName() == "string":
            return None  # each of its texts has digits of its own behind the point
        if source.typeName() == "boolean" != target.typeName():
            return None  # MariaDB's tinyint(1) may have other numbers than 0 and 1
        if target.typeName() == "string" != source.typeName() and not isinstance(source, NumericType):
            return None  # bytes may be base64 there, and a time has a form of its own
        return column, source

    def type_in_log(self, name: str, source: DataType) -> DataType | None:
        """The type that the log will have for a column that is read as ``source``; ``None`` if only the log knows it."""
        return source if source.typeName() != "string" or not self._kinds or self.kind(name) in _TEXTS else None

    def kind(self, name: str) -> str:
        """The type of a column, as its database calls it; empty where that is not known."""
        return self._kinds.get(name, "")

    def is_generated(self, name: str) -> bool:
        """True for a column that the database computes, so that its log does not have it."""
        return name in self._generated

    def _reader(self, **options: Any) -> DataFrame:
        if "query" in options:
            options = {**{name: value for name, value in self.options.items() if name != "dbtable"}, **options}
        else:
            options = {**self.options, **options}
        return self._spark.read.format("connectors.jdbc").options(**options).load()


def reader_options(database: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``connectors.jdbc`` that reach ``database``: these, or the properties of a Debezium connector."""
    if "database.hostname" not in database:
        return dict(database)
    kind = database.get("connector.class", "")
    scheme = next((name for name in ("postgresql", "mariadb") if f".{name}." in kind), "mysql")
    host, name = database["database.hostname"], database.get("database.dbname", "")
    port = f":{database['database.port']}" if "database.port" in database else ""
    user = {name: database[f"database.{name}"] for name in ("user", "password") if f"database.{name}" in database}
    return {"url": f"{scheme}://{host}{port}/{name}", **user}


def is_postgresql(options: Mapping[str, Any]) -> bool:
    """True if ``options`` of ``connectors.jdbc`` reach a PostgreSQL."""
    return str(options.get("url", "")).startswith(("postgresql", "postgres", "jdbc:postgresql"))


def exact_name(source: str) -> str:
    """``schema.table`` in quotes, so that no database folds its letters."""
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in source.split("."))

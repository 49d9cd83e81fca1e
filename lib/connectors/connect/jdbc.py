"""The JDBC source of Connect's guide: one connector copies a whole database, whose tables come and go.

A thread of the connector looks for tables; when they change, the tasks are dealt out anew. A task reads each of its tables by a
column that grows, remembers the schema of each table, and makes a new one only when the columns have changed.
"""

from __future__ import annotations

import datetime
import re
import threading
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from ..core.clients import client_library
from .config import ConfigDef, between, non_empty
from .connector import ExactlyOnceSupport, SourceConnector, SourceTask, group_partitions
from .data import Field, Schema, SchemaBuilder, Struct, Type
from .errors import ConnectException, RetriableException
from .records import SourceRecord

CONFIG: Final = (
    ConfigDef()
    .define("connection.url", "STRING", importance="HIGH", documentation="a SQLAlchemy or JDBC URL", validator=non_empty)
    .define("connection.user", "STRING", None, "HIGH", "the user")
    .define("connection.password", "PASSWORD", None, "HIGH", "the password")
    .define("table.include", "STRING", ".*", "MEDIUM", "a pattern of whole table names")
    .define("table.exclude", "STRING", "", "MEDIUM", "a pattern of whole table names to leave out")
    .define("incrementing.column.name", "STRING", "id", "MEDIUM", "a column of each table whose values only grow")
    .define("topic.prefix", "STRING", "", "HIGH", "before the name of the table: the topic")
    .define("poll.interval.ms", "INT", 1000, "HIGH", "between two looks at a table without new rows", validator=between(1))
    .define("table.poll.interval.ms", "INT", 10_000, "LOW", "between two looks for tables", validator=between(1))
    .define("batch.max.rows", "INT", 1000, "LOW", "rows of one table in one poll, at most", validator=between(1))
)
TABLE: Final = "table"


class JdbcSourceConnector(SourceConnector):
    """Copies the tables of a database. A task has a group of tables; there are at most as many tasks as tables."""

    def start(self, props: Mapping[str, str]) -> None:
        self._props = dict(props)
        self._values = CONFIG.parse(_own(props))
        self._stopping = threading.Event()
        self._engine = engine_of(self._values)
        self._tables = self._listed()
        self._monitor = threading.Thread(target=self._watch, name="connectors.connect-jdbc-tables", daemon=True)
        self._monitor.start()

    def task_class(self) -> type[SourceTask]:
        return JdbcSourceTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        tables = self._tables
        groups = group_partitions(tables, min(max_tasks, len(tables))) if tables else []
        return [{**self._props, "tables": ",".join(group)} for group in groups]

    def stop(self) -> None:
        self._stopping.set()
        self._monitor.join()
        self._engine.dispose()

    def config(self) -> ConfigDef:
        return CONFIG

    def exactly_once_support(self, props: Mapping[str, str]) -> ExactlyOnceSupport | None:
        """A row's number says where to go on, as long as rows appear in the order of their numbers."""
        return ExactlyOnceSupport.SUPPORTED

    def _listed(self) -> list[str]:
        inspect = client_library("sqlalchemy", "'sqlalchemy>=2'", connector="connectors.connect").inspect
        include, exclude = re.compile(self._values["table.include"]), re.compile(self._values["table.exclude"])
        names = inspect(self._engine).get_table_names()
        return sorted(name for name in names if include.fullmatch(name) and not exclude.fullmatch(name))

    def _watch(self) -> None:
        pause = self._values["table.poll.interval.ms"] / 1000
        while not self._stopping.wait(pause):
            try:
                tables = self._listed()
            except Exception:  # an outage: the tasks meet it, too, and say so
                continue
            if tables != self._tables:
                self._tables = tables
                self.context.request_task_reconfiguration()


class JdbcSourceTask(SourceTask):
    """Reads its tables in turn, in the order of the growing column."""

    def start(self, props: Mapping[str, str]) -> None:
        self._values = CONFIG.parse(_own(props))
        self._stopping = threading.Event()
        self._tables = [name for name in props["tables"].split(",") if name]
        offsets = self.context.offset_storage_reader().offsets([{TABLE: name} for name in self._tables])
        column = self._values["incrementing.column.name"]
        self._at = {name: offset[column] if offset else None for name, offset in zip(self._tables, offsets, strict=True)}
        self._schemas: dict[str, tuple[Any, Schema]] = {}
        self._api = client_library("sqlalchemy", "'sqlalchemy>=2'", connector="connectors.connect")
        self._engine = engine_of(self._values)

    def poll(self) -> list[SourceRecord] | None:
        records: list[SourceRecord] = []
        for table in list(self._tables):
            if self._stopping.is_set():
                return None
            try:
                records += self._read(table)
            except (self._api.exc.OperationalError, self._api.exc.ProgrammingError) as refused:
                if self._exists(table):
                    raise RetriableException(f"{table} cannot be read: {refused.orig}") from refused
                self._tables.remove(table)  # dropped, before the connector has noticed
        if not records:
            self._stopping.wait(self._values["poll.interval.ms"] / 1000)
        return records or None

    def stop(self) -> None:
        self._stopping.set()
        self._engine.dispose()

    def _exists(self, table: str) -> bool:
        try:
            return bool(self._api.inspect(self._engine).has_table(table))
        except self._api.exc.SQLAlchemyError as refused:
            raise RetriableException(f"the database is away: {refused}") from refused

    def _read(self, table: str) -> list[SourceRecord]:
        quote, column = self._engine.dialect.identifier_preparer.quote, self._values["incrementing.column.name"]
        after = "" if self._at[table] is None else f" WHERE {quote(column)} > :after"
        query = f"SELECT * FROM {quote(table)}{after} ORDER BY {quote(column)} LIMIT {self._values['batch.max.rows']}"
        bound = {} if self._at[table] is None else {"after": self._at[table]}
        with self._engine.connect() as connection:
            result = connection.execute(self._api.text(query), bound)
            names, rows = list(result.keys()), result.fetchall()
        if not rows:
            return []
        if column not in names:
            raise ConnectException(f'{table} has no column "{column}" (incrementing.column.name)')
        place, schema = names.index(column), self._schema(table, names, rows)
        records = [self._record(table, schema, column, row, place) for row in rows]
        self._at[table] = rows[-1][place]
        return records

    def _record(self, table: str, schema: Schema, column: str, row: Sequence[Any], place: int) -> SourceRecord:
        struct = Struct(schema)
        for field, value in zip(schema.fields, row, strict=True):
            struct.put(field.name, _value(value, field.schema))
        topic = self._values["topic.prefix"] + table
        moment = int(time.time() * 1000)
        return SourceRecord({TABLE: table}, {column: row[place]}, topic, struct, value_schema=schema, timestamp=moment)

    def _schema(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Schema:
        """The schema of a table: computed when its columns change, else remembered."""
        known = self._schemas.get(table)
        if known is not None and known[0] == tuple(names):
            return known[1]
        columns = {column["name"]: column["type"] for column in self._api.inspect(self._engine).get_columns(table)}
        fields = tuple(
            Field(name, index, _field_schema(self._api, columns.get(name), [row[index] for row in rows]))
            for index, name in enumerate(names)
        )
        schema = Schema(Type.STRUCT, name=table, fields=fields)
        self._schemas[table] = tuple(names), schema
        return schema


def _field_schema(api: Any, kind: Any, values: Sequence[Any]) -> Schema:
    """The schema of a column, by its type in the database; every column may be null."""
    types = api.types
    if isinstance(kind, types.Boolean):
        return Schema.OPTIONAL_BOOLEAN_SCHEMA
    if isinstance(kind, types.Integer):
        return Schema.OPTIONAL_INT64_SCHEMA
    if isinstance(kind, types.Float):
        return Schema.OPTIONAL_FLOAT64_SCHEMA
    if isinstance(kind, types.Numeric):
        if kind.precision is None and kind.scale is None:  # each value has a scale of its own: text keeps all digits
            return Schema.OPTIONAL_STRING_SCHEMA
        return SchemaBuilder.decimal(kind.scale or 0).optional().build()
    if isinstance(kind, types.DateTime):
        return SchemaBuilder.timestamp().optional().build()
    if isinstance(kind, types.Date):
        return SchemaBuilder.date().optional().build()
    if isinstance(kind, types.Time):
        return SchemaBuilder.time().optional().build()
    if isinstance(kind, types.LargeBinary):
        return Schema.OPTIONAL_BYTES_SCHEMA
    return Schema.OPTIONAL_STRING_SCHEMA


def _value(value: Any, schema: Schema) -> Any:
    """A value of the database as Connect has it."""
    if value is None or schema.type is not Type.STRING or isinstance(value, str):
        if isinstance(value, datetime.datetime) and value.tzinfo is None:
            return value.replace(tzinfo=datetime.timezone.utc)
        if isinstance(value, str) and schema.logical == "org.apache.kafka.connect.data.Timestamp":
            return datetime.datetime.fromisoformat(value).replace(tzinfo=datetime.timezone.utc)
        if isinstance(value, (int, float)) and schema.logical == "org.apache.kafka.connect.data.Decimal":
            return Decimal(str(value))
        if schema.type is Type.BOOLEAN and isinstance(value, int):
            return bool(value)
        return value
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def engine_of(values: Mapping[str, Any]) -> Any:
    """The engine of a database; ``jdbc:`` before the URL is accepted."""
    api = client_library("sqlalchemy", "'sqlalchemy>=2'", connector="connectors.connect", option="connection.url")
    url = api.make_url(str(values["connection.url"]).removeprefix("jdbc:"))
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
    url = url.set(drivername=drivers.get(url.drivername, url.drivername))
    if values["connection.user"]:
        url = url.set(username=values["connection.user"], password=values["connection.password"])
    return api.create_engine(url, pool_pre_ping=True)


def _own(props: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in props.items() if key in CONFIG.keys}

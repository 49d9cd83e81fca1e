"""The tables that a stream reads: the catalog of the database, in one statement however many tables there are, and the key
columns of each.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ....core import Misconfigured, Problem
from ....ground.options import Values
from ..connection import Connection
from ..dialects import Dialect, Table
from ..selection import NAME, read_selection, source_of
from ..target import own_name
from .keys import DAY, PLAIN, Keys, kind_of, tick_of
from .options import is_stream_of_tables, mode_wanted
from .positions import BOTH, BULK, INCREMENTING, fingerprint
from .writers import SOURCES

OWN_TABLES: Final = re.compile("connectors_|cst_[0-9a-f]{8}_[0-9a-f]{12}_[0-9a-f]{8}_[0-9a-f]{24}")
"""The names of the library's own tables, ledgers and stages, begin so."""


@dataclass(frozen=True)
class CatalogTable:
    """A table: its ``columns`` as pairs of name and type, its primary key, and an ``oid`` if the database has one.

    ``stored`` is false for a view, whose rows do not tell which transaction wrote them. A query has no ``table``; its
    ``source`` is the text after FROM.
    """

    table: Table | None
    columns: tuple[tuple[str, str], ...]
    primary: tuple[str, ...] = ()
    not_null: frozenset[str] = frozenset()
    oid: int | None = None
    stored: bool = True
    source: str = ""

    @property
    def name(self) -> str:
        """The name in positions."""
        return str(self.table) if self.table else QUERY

    def type_of(self, column: str) -> str | None:
        return dict(self.columns).get(column)


_POSTGRESQL: Final = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       coalesce(a.attnum = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1]), false), c.oid::bigint, c.relkind IN ('r', 'p')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
WHERE {condition} ORDER BY c.relname, a.attnum
"""
_SQLITE: Final = """
SELECT m.name, p.name, p.type, p."notnull", p.pk > 0, NULL, m.type = 'table'
FROM sqlite_master m JOIN pragma_table_info(m.name) p
WHERE {condition} AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, p.cid
"""
_DUCKDB: Final = """
SELECT c.table_name, c.column_name, c.data_type, NOT c.is_nullable,
       coalesce(list_contains(k.constraint_column_names, c.column_name), false), c.table_oid, t.table_oid IS NOT NULL
FROM duckdb_columns() c
LEFT JOIN duckdb_tables() t ON t.table_oid = c.table_oid AND t.database_oid = c.database_oid AND t.schema_oid = c.schema_oid
LEFT JOIN duckdb_constraints() k ON k.table_oid = c.table_oid AND k.database_oid = c.database_oid
     AND k.constraint_type = 'PRIMARY KEY'
WHERE c.database_name = current_database() AND NOT c.internal AND {condition} ORDER BY c.table_name, c.column_index
"""
_MYSQL: Final = """
SELECT c.table_name, c.column_name, c.column_type, c.is_nullable = 'NO', c.column_key = 'PRI', NULL, t.table_type <> 'VIEW'
FROM information_schema.columns c
JOIN information_schema.tables t ON t.table_name = c.table_name AND BINARY t.table_name = c.table_name
WHERE {condition} ORDER BY c.table_name, c.ordinal_position
"""
"""A condition that names the schema of both keeps the server from opening the tables of all schemas."""
_POSTGRESQL_BLOCKS: Final = f"""{SOURCES}, used AS (
    SELECT s.relation, d.refobjid AS oid, d.refobjsubid AS number, d.objid AS sequence FROM source s
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = s.oid
    WHERE d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    UNION SELECT s.relation, s.oid, t.adnum, d.refobjid FROM source s JOIN pg_attrdef t ON t.adrelid = s.oid
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = t.oid AND d.refclassid = 'pg_class'::regclass
)
SELECT relation::bigint, attname, format('%%s, CACHE %%s, INCREMENT %%s', sequence::regclass, seqcache, seqincrement)
FROM used JOIN pg_sequence ON seqrelid = sequence JOIN pg_attribute ON attrelid = oid AND attnum = number
WHERE seqcache > 1 OR seqincrement <> 1
"""
_MARIADB_BLOCKS: Final = """
SELECT {name}, column_name, column_default FROM information_schema.columns
WHERE {condition} AND column_default LIKE 'nextval(%%'
"""
_ALL: Final = {
    "postgresql": (_POSTGRESQL, "n.nspname = current_schema() AND c.relkind IN ('r', 'p') AND NOT c.relispartition"),
    "sqlite": (_SQLITE, "m.type = 'table'"),
    "duckdb": (_DUCKDB, "c.schema_name = current_schema() AND t.table_oid IS NOT NULL"),
    **dict.fromkeys(
        ("mariadb", "mysql"),
        (_MYSQL, "c.table_schema = database() AND t.table_schema = database() "
         "AND t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')"),
    ),
}  # fmt: skip


def catalog_tables(connection: Connection) -> dict[str, CatalogTable]:
    """The tables of the default schema by name, without views and the library's own tables."""
    statement, condition = _ALL[connection.dialect.system]
    rows = connection.rows(statement.format(condition=condition))
    return {name: table for name, table in _by_table(rows, "").items() if not OWN_TABLES.match(name)}


def catalog_table(connection: Connection, table: Table) -> CatalogTable | None:
    """One table or view; ``None`` if there is none."""
    mark, system = connection.dialect.placeholder, connection.dialect.system
    values: list[Any] = [table.name, *([table.schema] * 2 if table.schema else [])]
    schema = mark if table.schema else None
    condition = {
        "postgresql": f"c.relname = {mark} AND " + (f"n.nspname = {mark}" if schema else "pg_table_is_visible(c.oid)"),
        "sqlite": f"m.name = {mark} COLLATE NOCASE",
        "duckdb": f"c.table_name = {mark} AND c.schema_name = {schema or 'current_schema()'}",
    }.get(system) or (
        f"c.table_name = {mark} AND c.table_schema = {schema or 'database()'} AND t.table_schema = {schema or 'database()'}"
    )
    statement, _ = _ALL[system]
    tables = _by_table(connection.rows(statement.format(condition=condition), values[: condition.count(mark)]), table.schema)
    return tables.get(table.name) or next(iter(tables.values()), None)  # a server may have names that differ in case


def _by_table(rows: Sequence[Sequence[Any]], schema: str) -> dict[str, CatalogTable]:
    columns: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        columns.setdefault(row[0], []).append(row)
    return {
        name: CatalogTable(
            Table(name, schema),
            tuple((row[1], row[2]) for row in rows),
            tuple(row[1] for row in rows if row[4]),
            frozenset(row[1] for row in rows if row[3]),
            rows[0][5],
            bool(rows[0][6]),
        )
        for name, rows in columns.items()
    }


_WHOLE: Final = re.compile(
    r"u?(tiny|small|medium|big|huge)?int(eger)?([248]|\(\d+\))?( unsigned)?|oid"
    r"|(numeric|decimal)( ?\(\d+(, ?0)?\))?( unsigned)?",
    re.I,
)
_FRACTIONS: Final = re.compile(r"real|float|double|(numeric|decimal) ?\(\d+, ?0*[1-9]", re.I)
_TEXT: Final = re.compile(r"(char|text|varchar|character varying|varbinary|bit|nvarchar|bpchar)\b[^(]*\(.*\)", re.I)
_QUALIFIED: Final = re.compile(r"\w+\.\w+")
QUERY: Final = "query"
"""The name of a query in positions, where a table has its own name."""


@dataclass(frozen=True)
class StreamTable:
    """One table, or a query. ``source`` is the text after FROM, ``time_kind`` the kind of its times (:mod:`.keys`).

    ``tick`` has the seconds in which several transactions may give rows the same time.
    ``relation`` is the number of a table or view in the catalog; ``oid`` is one that no other table ever gets.
    """

    name: str
    source: str
    keys: Keys
    columns: tuple[tuple[str, str], ...]
    oid: int | None = None
    time_kind: str = ""
    nulls: bool = True
    relation: int | None = None
    tick: float = 0.0

    @property
    def schema(self) -> str:
        """The fingerprint of the columns. A longer limit of a text is no change of type."""
        return fingerprint(self.plain_columns)

    @property
    def plain_columns(self) -> list[tuple[str, str]]:
        return [(name, _TEXT.sub(lambda match: match[1], kind)) for name, kind in self.columns]


@dataclass(frozen=True)
class Discovery:
    """The readable tables by name, names in the option ``tables`` that no table has, and the problems of other tables.

    ``catalog`` has the names of all tables, whether the options choose them or not.
    """

    tables: Mapping[str, StreamTable]
    absent: Sequence[str]
    unreadable: Mapping[str, Sequence[Problem]]
    catalog: Collection[str]

    def problems(self) -> list[Problem]:
        """The problems of all tables that cannot be read, and of names that can never be any table's."""
        qualified = [_with_schema(name) for name in self.absent if _QUALIFIED.fullmatch(name)]
        return [*qualified, *(problem for problems in self.unreadable.values() for problem in problems)]


def stream_tables(values: Values, connection: Connection) -> Discovery:
    """Finds the tables to read."""
    absent: Sequence[str] = ()
    if is_stream_of_tables(values):
        catalog = catalog_tables(connection)
        entries = [table for name, table in catalog.items() if name in values["tables"]]
        absent = values["tables"].unknown(catalog)
    else:
        entries = [_single(values, connection)]
        catalog = {entry.name: entry for entry in entries}
    tables: dict[str, StreamTable] = {}
    unreadable: dict[str, list[Problem]] = {}
    for entry in entries:
        try:
            tables[entry.name] = _stream_table(values, entry, connection.dialect)
        except Misconfigured as wrong:
            unreadable[entry.name] = list(wrong.problems)
    for name, problem in _unordered(values, tables, connection):
        unreadable.setdefault(name, []).append(problem)  # a column may have several sequences
    readable = {name: table for name, table in tables.items() if name not in unreadable}
    return Discovery(readable, absent, unreadable, frozenset(catalog))


def _unordered(values: Values, tables: Mapping[str, StreamTable], connection: Connection) -> list[tuple[str, Problem]]:
    """The tables whose ids come in blocks: a session may use a smaller id long after another one has used a larger."""
    by_id: dict[Any, StreamTable] = {}
    rows: Sequence[Sequence[Any]] = ()
    if not values["singleWriter"]:
        by_id = {table.relation or table.name: table for table in tables.values() if table.keys.mode == INCREMENTING}
    if by_id and connection.dialect.system == "postgresql":
        rows = connection.rows(_POSTGRESQL_BLOCKS, [[key for key in by_id if isinstance(key, int)]])
    elif by_id and connection.dialect.system == "mariadb":
        rows = _mariadb_blocks(values, connection)
    return [
        (by_id[key].name, Problem("incrementingColumn", f"is {column} of {by_id[key].name}, whose ids come in blocks "
         f"({sequence}): a smaller one may be used after a larger one was read. Give incremental={BOTH} and "
         "timestampColumns; or singleWriter=true if the ids are used in their order."))
        for key, column, sequence in rows if key in by_id and column == by_id[key].keys.incrementing
    ]  # fmt: skip


def _mariadb_blocks(values: Values, connection: Connection) -> Sequence[Sequence[Any]]:
    if is_stream_of_tables(values):
        return connection.rows(_MARIADB_BLOCKS.format(name="table_name", condition="table_schema = database()"))
    table, _ = source_of(values, connection.dialect)
    if table is None:
        return ()
    condition = f"table_schema = {'%s' if table.schema else 'database()'} AND table_name = %s"
    names = [str(table), *filter(None, [table.schema]), table.name]
    return connection.rows(_MARIADB_BLOCKS.format(name="%s", condition=condition), names)


def _with_schema(name: str) -> Problem:
    text = f'names "{name}", and the default schema has no such table.'
    return Problem("tables", f"{text} Give names without a schema; the url sets the default one.")


def _single(values: Values, connection: Connection) -> CatalogTable:
    table, _ = source_of(values, connection.dialect)
    selection = read_selection(values, connection)
    columns = tuple((column.name, column.sql) for column in selection.columns)
    entry = catalog_table(connection, table) if table else None
    if entry is None:
        return CatalogTable(table, columns, source=selection.source, stored=False)
    return CatalogTable(table, entry.columns, entry.primary, entry.not_null, entry.oid, entry.stored, selection.source)


def _stream_table(values: Values, table: CatalogTable, dialect: Dialect) -> StreamTable:
    keys = keys_of(values, table, dialect)
    oid = table.oid if dialect.keeps_table_ids and table.stored else None  # elsewhere another table may get the number
    plain = PLAIN if dialect.plain_values else ""
    kind = plain or kind_of(keys.time_type, dialect.system)
    nulls = not set(keys.columns()[-1:] if keys.mode == INCREMENTING else keys.columns()) <= table.not_null
    source = table.source or (dialect.table(table.table) if table.table else "")
    types = [table.type_of(name) or "" for name in keys.timestamps]
    by_day_or_transaction = kind in (DAY, PLAIN) or keys.by_transaction
    tick = 0.0 if by_day_or_transaction else max((tick_of(sql, dialect.system) for sql in types), default=0.0)
    return StreamTable(table.name, source, keys, table.columns, oid, kind, nulls, table.oid, tick)


def keys_of(values: Values, table: CatalogTable, dialect: Dialect) -> Keys:
    """The keys of a table. Raises :class:`Misconfigured`, naming table and option."""
    problems = list(_problems(values, table, dialect))
    if problems:
        raise Misconfigured(NAME, problems)
    mode = mode_wanted(values)
    times = tuple(_name(table, name) or "" for name in values["timestampColumns"])
    number = (_number(values, table) or "") if mode in (INCREMENTING, BOTH) else ""
    time_type = table.type_of(times[0]) or "" if times else ""
    by_transaction = bool(times) and dialect.shows_writers and table.stored
    return Keys(mode, number, times, time_type, (table.type_of(number) or "") if number else "", by_transaction)


def _problems(values: Values, table: CatalogTable, dialect: Dialect) -> Iterator[Problem]:
    mode, where = mode_wanted(values), str(table.table) if table.table else "the query"
    listing = ", ".join(name for name, _ in table.columns)
    way_out = " Name the tables to be read by tables." if values["tables"] else ""
    for name in values["timestampColumns"]:
        column = _name(table, name)
        kind = table.type_of(column) if column else None
        if column is None:
            yield Problem("timestampColumns", f'names "{name}", but the columns of {where} are {listing}.{way_out}')
        elif not dialect.plain_values and not kind_of(kind or "", dialect.system):
            yield Problem("timestampColumns", f'names "{name}" of {where}, which is no time but {kind}.')
    if mode not in (INCREMENTING, BOTH):
        return
    number = _number(values, table)
    if number is None and values["incrementingColumn"]:
        text = f'names "{values["incrementingColumn"]}", but the columns of {where} are {listing}.{way_out}'
        yield Problem("incrementingColumn", text)
    elif number is None:
        text = f"missing; {where} has no primary key of one column with whole numbers. Give the column, or incremental={BULK}."
        text += way_out
        yield Problem("incrementingColumn", text)
    elif not _is_whole(table.type_of(number) or "", dialect):
        text = f'names "{number}" of {where}, whose type is {table.type_of(number)}, no whole number.'
        yield Problem("incrementingColumn", text)


def _number(values: Values, table: CatalogTable) -> str | None:
    """The column of ids: the named one, else a primary key of whole numbers."""
    if values["incrementingColumn"]:
        return _name(table, values["incrementingColumn"])
    primary: Sequence[str] = table.primary
    return primary[0] if len(primary) == 1 and _WHOLE.fullmatch(table.type_of(primary[0]) or "") else None


def _is_whole(kind: str, dialect: Dialect) -> bool:
    """True for whole numbers. A type of SQLite tells little about values, so its largest id decides (:mod:`.probe`)."""
    return not _FRACTIONS.match(kind) if dialect.plain_values else _WHOLE.fullmatch(kind) is not None


def _name(table: CatalogTable, name: str) -> str | None:
    """A column's own name for ``name``, which may differ in case if there is only one such."""
    return own_name(name, [column for column, _ in table.columns])

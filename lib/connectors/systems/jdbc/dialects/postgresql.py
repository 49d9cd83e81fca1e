"""PostgreSQL, by psycopg; rows are loaded by ADBC's binary COPY straight from Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from ....ground import machine
from ....ground.errors import ConnectorError, Fatal, Misconfigured, Problem
from ....ground.state import digest
from ..column_types import family
from ..connection import Connection, ServerSession, repeated_keys
from ..statement import BoundStatement, Statement
from .base import Dialect
from .tables import Column, Table, ascii_lower

_OUTAGES = ("08", "53", "57P", "40", "55006", "XX000", "58")
"""SQLSTATEs of lost connections, no resources, shutdown, deadlock, serialization, a database in use, and server errors."""
_BAD_ROWS = ("22", "23", "44", "P0001")
"""SQLSTATEs of bad data, constraints, views with a check, and errors raised by triggers."""
_LOST = ("terminating connection", "server closed the connection", "no connection", "conflict with recovery", "restarting")
_CONFIGURATION = (
    "password", "authentication", "does not exist", "no pg_hba.conf entry", "not permitted to log in",
    "server does not support SSL", "certificate verify failed", "does not match host name",
)  # fmt: skip
_LOOP = "inline_code_block"
"""PostgreSQL's name for the DO that runs a statement of the user's own, in the context of an error."""
_SLOTS_PER_BLOCK = 512
_PAGE_BYTES = 8192
_ROW_HEADER_BYTES = 24
_READ = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "oid": pa.int64(), "float4": pa.float32(),
    "float8": pa.float64(), "text": pa.string(), "varchar": pa.string(), "bpchar": pa.string(), "name": pa.string(),
    "bytea": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
}  # fmt: skip
_ANY_NUMERIC = pa.decimal128(38, 18)
"""Spark's type for a numeric without precision, or with a precision for which Spark has no type."""


_DOMAIN_BASE = """
    (WITH RECURSIVE types AS (
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL SELECT p.typbasetype FROM types JOIN pg_type p ON p.oid = types.typbasetype WHERE p.typtype = 'd'
    ) SELECT format_type(p.oid, NULL) FROM types JOIN pg_type p ON p.oid = types.typbasetype WHERE p.typtype <> 'd')
"""
_COLUMNS = f"""
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), t.typname::text, NOT a.attnotnull,
    a.atthasdef OR a.attidentity <> '', {_DOMAIN_BASE}
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_UNIQUE_KEYS = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indisprimary ORDER BY i.indisprimary DESC, i.indexrelid
"""
_COMMIT_GAP = """
SELECT CASE WHEN c.relkind = 'f' THEN 'is a foreign table, whose server commits by itself'
            ELSE 'is unlogged, so that a crash of the server empties it' END
FROM pg_class c WHERE (c.relkind = 'f' OR c.relpersistence = 'u')
AND (c.oid = to_regclass(%s) OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%s)))) LIMIT 1
"""
_PARAMETER_TYPES = f"""
SELECT ARRAY(
    SELECT coalesce({_DOMAIN_BASE}, p.type::text) FROM unnest(parameter_types) WITH ORDINALITY AS p (type, number)
    JOIN pg_type t ON t.oid = p.type ORDER BY number
) FROM pg_prepared_statements WHERE name = 'connectors_statement'
"""
_HOLDERS = """
SELECT pid, coalesce(usename::text, ''), coalesce(client_addr::text, 'a local client'), coalesce(state, ''), state_change::text
FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() AND pid IN (
    SELECT pid FROM pg_locks WHERE granted AND (
        locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32) + objid::bigint = %s
        OR locktype = 'relation' AND mode <> 'AccessShareLock'
            AND relation IN (SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS name)
    )
) ORDER BY xact_start LIMIT 3
"""
_WRITERS = """
SELECT pid, coalesce(usename::text, ''), coalesce(client_addr::text, 'a local client'), coalesce(state, ''), state_change::text
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 3
"""
_SETTLE_SECONDS = 0.2


class PostgreSql(Dialect):
    """PostgreSQL 14 and later (ranges of row ids)."""

    name = system = "postgresql"
    port = 5432
    url_parameters = {  # noqa: RUF012
        "sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey",
        "applicationname": "application_name", "application_name": "application_name",
        "connect_timeout": "connect_timeout", "options": "options", "gssencmode": "gssencmode",
    }  # fmt: skip
    packages = {"psycopg": "psycopg[binary]>=3.2", "adbc_driver_postgresql": "adbc-driver-postgresql>=1.3"}  # noqa: RUF012
    prepares = loads_exactly = refuses_zero_bytes = True
    shares_snapshots = samples_pages = keeps_table_ids = shows_writers = True
    keeps_order = False
    rows_at_once = 0
    quoted = rf"[eE]'(?:[^'\\]|''|\\.)*'|\$((?:[^\W\d]\w*)?)\$.*?\$\1\$|{Dialect.quoted}"
    arrow_driver = "adbc"
    clock = "SELECT clock_timestamp()"
    text_type = "text"
    prepared_needs = "max_prepared_transactions above 0 in the server's settings"
    at_begin = ("SET CONSTRAINTS ALL IMMEDIATE",)  # a violation of a deferred one must not appear only at COMMIT
    tells_repeated_keys = True
    types = {  # noqa: RUF012
        "bool": "boolean", "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint", "float32": "real",
        "float64": "double precision", "decimal": "numeric({kind.precision}, {kind.scale})", "string": "text",
        "binary": "bytea", "date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp", "json": "jsonb",
    }  # fmt: skip

    def parameters(self) -> dict[str, str]:
        seconds = max(1, round(self.timeout))
        limits = {"connect_timeout": seconds, **_network_limits(seconds, "keepalives")}
        return {**{name: str(value) for name, value in limits.items()}, **self.address.more}

    def open(self) -> Any:
        where, psycopg = self.address, self.module("psycopg")
        raw = psycopg.connect(
            host=where.host, port=where.port, user=where.user, password=where.password, dbname=where.database,
            autocommit=True, **self.parameters(),
        )  # fmt: skip
        with raw.cursor() as cursor:
            cursor.execute("; ".join(self.settings()))
        return raw

    def open_to_read(self) -> Any:
        """Opens a session in which a statement accepts its own times in text."""
        raw = self.open()
        with raw.cursor() as cursor:
            cursor.execute("SET DateStyle = 'ISO'")
        return raw

    def statement_timeout(self, seconds: float | None) -> str:
        return f"SET statement_timeout = {'DEFAULT' if seconds is None else round(1000 * seconds)}"

    def settings(self) -> tuple[str, ...]:
        """The first statements of every session. They make the server notice soon that a client's network is lost."""
        limits = {"lock_timeout": round(self.timeout * 1000), **_network_limits(max(1, round(self.timeout)), "tcp_keepalives")}
        return ("SET TimeZone = 'UTC'", *(f"SET {name} = {value}" for name, value in limits.items()))

    def limit_transaction(self) -> tuple[str, ...]:
        return (f"SET LOCAL idle_in_transaction_session_timeout = {round(self.idle_seconds * 1000)}",)

    def reading_settings(self) -> tuple[str, ...]:
        """The settings of a reading session, in which the same statement gives the same rows in the same order."""
        return ("SET synchronize_seqscans = off", "SET max_parallel_workers_per_gather = 0", "SET DateStyle = 'ISO'")

    def planning_settings(self) -> tuple[str, ...]:
        """As in the base class. To compile a query of the catalog takes half a second, and to run it some milliseconds."""
        return ("SET jit = off",)

    def load_url(self) -> str:
        """The address in ADBC's form."""
        where = self.address
        user = quote(where.user or "", safe="") + (f":{quote(where.password, safe='')}" if where.password else "")
        more = "&".join(f"{name}={quote(value, safe='')}" for name, value in self.parameters().items())
        host = f"[{where.host}]" if ":" in where.host else where.host
        return f"postgresql://{user}{'@' if user else ''}{host}:{where.port}/{quote(where.database, safe='')}?{more}"

    def errors(self) -> tuple[type[Exception], ...]:
        return (self.module("psycopg").Error, self.module("adbc_driver_manager").Error)

    def judge(self, error: Exception) -> ConnectorError:
        state = getattr(error, "sqlstate", None) or ""
        if state == "21000" and _LOOP not in str(error):
            return repeated_keys()
        if state.startswith(_BAD_ROWS):
            return self.poison(error)
        if state == "55P03":
            return self.lock_timeout(error)
        if not state or state.startswith(_OUTAGES):
            return self.transient(error)
        return self.fatal(error)

    def judge_text(self, error: Exception) -> ConnectorError:
        """The connector's error for an ``error`` while rows arrive.

        ADBC gives no code for it, only PostgreSQL's text in the session's language.
        """
        text = str(error)
        if "ReadRecord failed" in text:
            way_out = "read the column with the value as string, by .schema(…)"
            return Fatal(f"the driver cannot decode a value of {self.address}: {self.error_text(error)}", way_out=way_out)
        if "PGRES_FATAL_ERROR" not in text or any(reason in text for reason in _LOST):
            return self.transient(error)
        return self.fatal(error)

    def refused(self, error: Exception) -> ConnectorError:
        text = self.error_text(error)
        if any(reason in text for reason in _CONFIGURATION):
            return Misconfigured("connectors.jdbc", [Problem("url", f"{self.address} cannot be used: {text}")])
        return self.unreachable(error)

    def folded(self, name: str) -> str:
        return ascii_lower(name)  # as in an encoding whose letters have several bytes, such as UTF-8

    def columns(self, connection: Connection, table: Table) -> list[Column]:
        rows = connection.rows(_COLUMNS, [self.table(table)])
        return [
            Column(name, sql, _loaded_type(kind, sql), nullable, default, base=base or "")
            for name, sql, kind, nullable, default, base in rows
        ]

    def unique_keys(self, connection: Connection, table: Table) -> list[frozenset[str]]:
        return [frozenset(names) for (names,) in connection.rows(_UNIQUE_KEYS, [self.table(table)])]

    def commit_gap(self, connection: Connection, table: Table) -> str:
        return "".join(reason for (reason,) in connection.rows(_COMMIT_GAP, [self.table(table)] * 2))

    def tables(self, connection: Connection, schema: str, prefix: str) -> list[str]:
        where = "relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)" if schema else "pg_table_is_visible(oid)"
        sql = f"SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND starts_with(relname, %s) AND {where}"
        return [name for (name,) in connection.rows(sql, [prefix, *([schema] if schema else [])])]

    def described(self, connection: Connection, source: str) -> list[Column]:
        with connection.judged(), self.cursor(connection.raw) as cursor:
            cursor.execute(f"SELECT * FROM {source} LIMIT 0")
            types = [(column.name, column.type_display, column.type_code) for column in cursor.description or ()]
        unknown = sorted({code for _, sql, code in types if sql == str(code)})
        query = "SELECT oid::int8, format_type(oid, NULL) FROM pg_type WHERE oid = ANY(%s)"
        names: dict[int, str] = dict(connection.rows(query, [unknown])) if unknown else {}
        return [Column(name, names.get(code, sql), read_type(names.get(code, sql))) for name, sql, code in types]

    def size(self, connection: Connection, table: Table | None, source: str, columns: Sequence[Column]) -> int | None:
        if pages := self.pages(connection, table) if table else 0:
            return pages * _PAGE_BYTES
        ((plans,),) = connection.rows(f"EXPLAIN (FORMAT JSON) SELECT * FROM {source}")
        return int(plans[0]["Plan"]["Plan Rows"]) * (int(plans[0]["Plan"]["Plan Width"]) + _ROW_HEADER_BYTES)

    def pages(self, connection: Connection, table: Table) -> int:
        sql = (
            "SELECT (pg_relation_size(c.oid) + coalesce((SELECT sum(pg_relation_size(t.relid)) FROM pg_partition_tree(c.oid) t "
            "WHERE t.relid <> c.oid), 0))::int8 / current_setting('block_size')::int8 "
            "FROM pg_class c WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p', 'm')"
        )
        pages = connection.rows(sql, [self.table(table)])
        return int(pages[0][0]) if pages else 0

    def readable(self, column: Column, as_kind: pa.DataType) -> str:
        """As in the base class. Types without an equal in Arrow are text, as PostgreSQL writes them.

        A number that is no ``decimal(38,18)`` stays unchanged here, and is refused later with the name of its column.
        """
        name, kind = self.quote(column.name), column.kind
        if kind is None or (pa.types.is_string(as_kind) and not pa.types.is_string(kind)):
            return f"CAST({name} AS text)"
        if kind == as_kind == _ANY_NUMERIC:
            return f"CASE WHEN {name} = 0 OR abs({name}) >= 5e-19 THEN round({name}, 18) ELSE {name} END"
        if pa.types.is_list(kind):
            return _flat_array(column, name, as_kind)
        return f"CAST({name} AS int8)" if column.sql == "oid" else name

    def create_stage(self, table: Table, columns: Sequence[tuple[str, str]], *, temporary: bool = False) -> tuple[str, ...]:
        (sql,) = super().create_stage(table, columns, temporary=temporary)
        return (f"{sql} ON COMMIT DROP" if temporary else sql.replace("CREATE TABLE", "CREATE UNLOGGED TABLE", 1),)

    def drop_stage(self, table: Table) -> str:
        """Waits longer than ``deadlock_timeout``, after which autovacuum gives way."""
        return f"SET LOCAL lock_timeout = '2s'; {super().drop_stage(table)}"

    def add_column(self, table: Table, column: str, sql: str) -> str:
        return super().add_column(table, column, sql).replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS", 1)

    def sql_type(self, kind: pa.DataType, *, key: bool = False) -> str | None:
        """As in the base class. Arrays of plain values are arrays, since JSON has no form for binary values."""
        if pa.types.is_list(kind) and family(kind.value_type) not in ("json", "binary", ""):
            return f"{super().sql_type(kind.value_type)}[]"
        return super().sql_type(kind, key=key)

    def cast(self, expression: str, staged: pa.DataType, target: Column) -> str:
        """Casts text for columns of other types; PostgreSQL converts everything else itself, or refuses it.

        A cast to a length would cut a longer text, so the column checks the length.
        """
        kind = target.base or target.sql
        item = kind.removesuffix("[]")
        is_text = item.upper().startswith(("TEXT", "VARCHAR", "CHAR"))
        whole = "text" if is_text else "bit varying" if item.startswith("bit") else item
        if pa.types.is_list(staged) and item != kind:
            return self._array(expression, family(staged.value_type), whole)
        if (is_text and item == kind) or family(staged) not in ("string", "json"):
            return expression
        return f"CAST({expression} AS {whole}{kind[len(item):]})"

    def _array(self, expression: str, staged: str, item: str) -> str:
        """``expression``, a JSON array with elements of the family ``staged``, as an array of the type ``item``.

        PostgreSQL itself converts times with a zone, as outside of arrays, and refuses the text of a nested value.
        """
        if staged == "json" and item not in ("json", "jsonb"):
            return expression
        value = "decode(value, 'base64')" if staged == "binary" else "value"
        items = f"ARRAY(SELECT {value} FROM jsonb_array_elements_text({expression}::jsonb))"
        kind = self.types[staged] if staged in ("binary", "timestamp") else item
        return f"CASE WHEN {expression} IS NOT NULL THEN CAST({items} AS {kind}[]) END"

    def bind(
        self, connection: Connection, statement: Statement, values: Sequence[tuple[str, pa.DataType]]
    ) -> BoundStatement:
        """As in the base class. Text is cast to what the statement takes there, as in an INSERT that is generated."""
        text = statement.rendered(lambda number: f"${number + 1}")
        types = ["unknown" if family(kind) in ("string", "json") else str(self.sql_type(kind)) for _, kind in values]
        expected = self._parameter_types(connection, text, types)
        casts = [self.cast(value, kind, Column("", sql, None)) for (value, kind), sql in zip(values, expected, strict=True)]
        return BoundStatement(text, tuple(casts))

    def _parameter_types(self, connection: Connection, text: str, types: list[str]) -> list[str]:
        """``types`` with those that the statement itself decides in place of ``unknown``; text if it decides none."""
        undecided = self.module("psycopg").errors.IndeterminateDatatype
        with connection.judged():
            while True:
                try:
                    with connection.transaction():  # on one server, also behind a pool of connections
                        named = f"({', '.join(types)}) " if types else ""
                        connection.raw.execute(f"PREPARE connectors_statement {named}AS {text}")
                        ((decided,),) = connection.rows(_PARAMETER_TYPES)
                        connection.execute("DEALLOCATE connectors_statement")
                    return list(decided)
                except undecided as error:
                    number = int(re.findall(r"\$(\d+)", str(error))[0])
                    types[number - 1] = "text"

    def run_for_rows(self, connection: Connection, text: str, select: str, count: int) -> None:
        """As in the base class, in a loop of the server, so that no row leaves it."""
        values = ", ".join(f"connectors_values.v{number}" for number in range(count))
        run = f"EXECUTE {_literal(text)}{f' USING {values}' if count else ''}"
        loop = f"FOR connectors_values IN {select} LOOP {run}; END LOOP"
        connection.execute(f"DO {_literal(f'DECLARE connectors_values record; BEGIN {loop}; END')}")

    def literal(self, value: str | int | float) -> str:
        return str(value) if isinstance(value, int) else _literal(str(value))

    def settle(self, connection: Connection, seconds: float) -> None:
        """As in the base class: every transaction that has written by now has ended."""
        if connection.rows("SELECT pg_is_in_recovery()")[0][0]:
            text = "reaches a standby, which may be behind the log; give its primary's."
            raise Misconfigured("connectors.jdbc", [Problem("url", text)])
        ((now,),) = connection.rows("SELECT pg_current_xact_id()::text::bigint")
        until = machine.monotonic() + seconds
        while connection.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0][0] < now:
            if machine.monotonic() > until:
                writers = [str(ServerSession(*row)) for row in connection.rows(_WRITERS)]
                prepared = connection.rows("SELECT gid FROM pg_prepared_xacts")
                writers += [f"the prepared transaction {gid}" for (gid,) in prepared]
                raise Fatal(
                    f"transactions that have written are open for more than {seconds:g} seconds: {', '.join(writers)}",
                    way_out="call again when they have ended, or wait for longer",
                )
            machine.sleep(_SETTLE_SECONDS)

    def positions(self, connection: Connection, stage: Table) -> tuple[int, int]:
        name = self.table(stage).replace("'", "''")
        ((size,),) = connection.rows(f"SELECT pg_relation_size('{name}') / current_setting('block_size')::int")
        return 0, int(size) * _SLOTS_PER_BLOCK - 1

    def position(self) -> str:
        return f"(ctid::text::point)[0]::bigint * {_SLOTS_PER_BLOCK} + (ctid::text::point)[1]::bigint"

    def between(self, first: int, last: int) -> str:
        """A condition by ctid: PostgreSQL reads only those blocks, without an index."""
        low, high = divmod(first, _SLOTS_PER_BLOCK), divmod(last, _SLOTS_PER_BLOCK)
        return f"ctid >= '({low[0]},{low[1]})'::tid AND ctid <= '({high[0]},{high[1]})'::tid"

    def most_prepared(self, connection: Connection) -> int:
        ((most,),) = connection.rows("SHOW max_prepared_transactions")
        return int(most)

    def prepared(self, connection: Connection, prefix: str) -> dict[str, float]:
        sql = (
            "SELECT gid, extract(epoch FROM now() - prepared)::float FROM pg_prepared_xacts "
            "WHERE database = current_database() AND starts_with(gid, %s)"
        )
        return dict(connection.rows(sql, [prefix]))

    def lock(self, connection: Connection, name: str) -> None:
        connection.execute(f"SET idle_session_timeout = {round(self.idle_seconds * 1000)}")
        connection.rows("SELECT pg_advisory_lock(%s)", [_lock_number(name)])

    def unlock(self, connection: Connection, name: str) -> None:
        connection.rows("SELECT pg_advisory_unlock(%s)", [_lock_number(name)])

    def lock_holders(self, connection: Connection, tables: Sequence[Table], lock: str) -> list[ServerSession]:
        names = [self.table(table) for table in tables]
        rows = connection.rows(_HOLDERS, [_lock_number(lock), names])
        return [ServerSession(*row) for row in rows]

    def end_session(self, number: int) -> str:
        return f"SELECT pg_terminate_backend({number})"


def _network_limits(seconds: int, prefix: str) -> dict[str, int]:
    """Settings that end a connection ``seconds`` after unacknowledged data, or after twice as many of silence."""
    keepalives = {f"{prefix}_idle": seconds, f"{prefix}_interval": max(1, seconds // 3), f"{prefix}_count": 3}
    return {"tcp_user_timeout": seconds * 1000, **keepalives}


def _literal(text: str) -> str:
    """``text`` as a string of SQL, whatever ``standard_conforming_strings`` is."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f" E'{doubled}'"


def _lock_number(name: str) -> int:
    """The number of an advisory lock, at most 60 bits long."""
    return int(digest(name, length=15), 16)


def _flat_array(column: Column, name: str, as_kind: pa.DataType) -> str:
    """``column``, an array, with 1 as the index of its first element: ADBC's driver supports few others.

    The driver would flatten an array of several dimensions, so the statement refuses it.
    """
    if pa.types.is_list(as_kind) and pa.types.is_nested(as_kind.value_type):
        return f"CAST(to_json({name}) AS text)"
    sql = "text[]" if column.sql.startswith("numeric") else column.sql
    text = f"the column {column.name} has an array of several dimensions; by .schema(…) read it as string or array<array<…>>"
    error = "'" + text.replace("'", "''") + f": ' || left(CAST({name} AS text), 100)"
    return f"CASE WHEN array_ndims({name}) > 1 THEN CAST({error} AS {sql}) ELSE (CAST({name} AS {sql}))[:] END"


def _loaded_type(name: str, sql: str) -> pa.DataType | None:
    """The type to load into a column of the type ``name``, ``sql`` with its modifier; ``None`` if Arrow has no equal."""
    if name == "numeric":
        kind = read_type(sql.replace(" ", ""))
        return None if kind == _ANY_NUMERIC and sql != "numeric(38,18)" else kind
    return None if name == "oid" else _READ.get("text" if name == "citext" else name)


def read_type(sql: str) -> pa.DataType | None:
    """The Arrow type to read a column as; ``sql`` is psycopg's name of its type. ``None`` is text."""
    if sql.endswith("[]"):
        item = read_type(sql[:-2])
        return None if item is None else pa.list_(item)
    base, _, modifier = sql.partition("(")
    if base != "numeric":
        return _READ.get(base)
    precision, _, scale = modifier.rstrip(")").partition(",")
    if not precision or int(precision) > 38 or not 0 <= int(scale or 0) <= int(precision):
        return _ANY_NUMERIC
    return pa.decimal128(int(precision), int(scale or 0))

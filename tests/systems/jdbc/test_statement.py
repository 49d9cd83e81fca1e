"""A statement of the user's own: each row runs it once, in order and with its values, in the transaction of the ledger."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Misconfigured, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.jdbc import JdbcSink, writers
from connectors.systems.jdbc.dialects import MariaDb, PostgreSql, Sqlite
from connectors.systems.jdbc.dialects.base import Dialect
from connectors.systems.jdbc.statement import Statement

from .contexts import DatabaseContext, DuckDbContext, MariaDbContext, PostgresContext, SqliteContext
from .test_bad_rows import letters
from .test_operations import DATABASES, content, rows, write

BODY = "id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100), n INTEGER"


def counting(database: DatabaseContext) -> dict[str, str]:
    """The options of a statement that adds up ``n`` and appends to ``name``, so that it shows repetitions and their order."""
    table = database.table
    if isinstance(database, MariaDbContext):
        changes = "ON DUPLICATE KEY UPDATE n = n + VALUES(n), name = concat(name, VALUES(name))"
    else:
        changes = "ON CONFLICT (id) DO UPDATE SET n = t.n + EXCLUDED.n, name = t.name || EXCLUDED.name"
    alias = "" if isinstance(database, MariaDbContext) else " AS t"
    return {"statement": f"INSERT INTO {table}{alias} (id, n, name) VALUES ({{id}}, {{n}}, {{name}}) {changes}"}


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    class Totals(request.param):  # type: ignore[name-defined, misc]
        body = BODY

    with contextlib.closing(Totals(tmp_path / "target")) as database:
        yield database


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[PostgresContext]:
    class Totals(PostgresContext):
        body = BODY

    with contextlib.closing(Totals(tmp_path / "target")) as database:
        yield database


def test_each_row_runs_it_once_also_rows_with_one_key(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1), (2, "b", 5), (1, "c", 2)), rows((2, "d", 7))], **counting(database))
    write(database, [rows((1, "e", 4))], **counting(database))
    totals = content(database)
    assert [(key, n, "".join(sorted(name))) for key, name, n in totals] == [(1, 7, "ace"), (2, 12, "bd")]


def test_the_rows_of_a_task_keep_their_order(database: DatabaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also across loads, pieces, record batches, and pages with room for a small row behind a large one."""
    monkeypatch.setattr(writers.load, "LOADED_AT_ONCE", 2000)
    monkeypatch.setattr(Dialect, "rows_at_once", 100)
    database.run(f"DROP TABLE {database.table}")
    database.run(f"CREATE TABLE {database.table} (place BIGINT, id BIGINT)")
    place = f"SELECT count(*) FROM (SELECT * FROM {database.table}) AS earlier"
    sink = JdbcSink.of({**database.options(), "statement": f"INSERT INTO {database.table} SELECT ({place}), {{id}}"})
    sizes = random.Random(7)
    tasks = [
        [rows(*[(task * 1000 + number, "x" * sizes.choice((1, 20, 3900)), 0) for number in range(first, first + 50)])
         for first in range(0, 300, 50)]
        for task in range(2)
    ]  # fmt: skip
    batch = Batch(sink.sink_id(), "11111111-query", 0)
    staged = [stage(sink, batch, parts[0].schema, index, iter(parts)) for index, parts in enumerate(tasks)]
    Commit(sink).finish(batch, staged)
    order = [key for (key,) in database.query(f"SELECT id FROM {database.table} ORDER BY place")]
    for task in range(2):
        assert [key for key in order if key // 1000 == task] == [task * 1000 + number for number in range(300)]


def test_a_replayed_batch_changes_nothing(database: DatabaseContext) -> None:
    sink = JdbcSink.of({**database.options(), **counting(database)})
    batch = Batch(sink.sink_id(), "11111111-query", 0)
    for _ in range(2):
        part = rows((1, "a", 1), (1, "b", 1))
        Commit(sink).finish(batch, [stage(sink, batch, part.schema, 0, iter([part]))])
    assert content(database) == [(1, "ab", 2)]


TYPES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "boolean": (pa.bool_(), "BOOLEAN BOOLEAN BOOLEAN BOOL", [True, False]),
    "byte": (pa.int8(), "SMALLINT SMALLINT TINYINT SMALLINT", [-128, 127]),
    "integer": (pa.int32(), "INTEGER INTEGER INTEGER INTEGER", [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), "BIGINT BIGINT BIGINT BIGINT", [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), "REAL REAL REAL FLOAT", [0.1, -1.5]),
    "double": (pa.float64(), "FLOAT8 DOUBLE DOUBLE DOUBLE", [0.1, 1e300, -2.5e-300]),
    "decimal": (pa.decimal128(38, 10), "NUMERIC(38,10) TEXT DECIMAL(38,10) DECIMAL(38,10)",
                [Decimal("10.7500000000"), Decimal("-9999999999999999999999999999.9999999999")]),
    "text": (pa.string(), "TEXT TEXT VARCHAR LONGTEXT~CHARACTER~SET~utf8mb4",
             ["", "it's; -- {x} %s \\ $1 \"q\"", "😀 naïve", "x" * 100_000]),
    "binary": (pa.binary(), "BYTEA BLOB BLOB LONGBLOB", [b"", b"\0\xff\\'"]),
    "date": (pa.date32(), "DATE DATE DATE DATE", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), "TIMESTAMPTZ DATETIME TIMESTAMPTZ DATETIME(6)",
                  [datetime.datetime(1500, 2, 3, 4, 5, 6, 123456, datetime.timezone.utc),
                   datetime.datetime(2026, 7, 1, tzinfo=datetime.timezone.utc)]),
    "timestamp_ntz": (pa.timestamp("us"), "TIMESTAMP DATETIME TIMESTAMP DATETIME(6)",
                      [datetime.datetime(2026, 7, 1, 2, 3, 4, 5)]),
    "struct": (pa.struct([("a", pa.int32())]), "JSONB TEXT JSON LONGTEXT", [{"a": 1}]),
    "array": (pa.list_(pa.int32()), "INTEGER[] TEXT JSON LONGTEXT", [[1, None, 3]]),
    "text of a uuid": (pa.string(), "UUID TEXT UUID CHAR(36)", ["6f2c1a5e-0000-4000-8000-0123456789ab"]),
    "text of a number": (pa.string(), "BIGINT BIGINT BIGINT BIGINT", ["42"]),
}  # fmt: skip
"""Type of the column, types in PostgreSQL, SQLite, DuckDB and MariaDB, and values."""


@pytest.mark.parametrize("case", TYPES)
def test_values_are_bound_as_generated_statements_write_them(database: DatabaseContext, case: str) -> None:
    kind, columns, values = TYPES[case]
    kinds = (PostgresContext, SqliteContext, DuckDbContext, MariaDbContext)
    column = next(column for kind, column in zip(kinds, columns.split(), strict=True) if isinstance(database, kind))
    database.run(f"DROP TABLE {database.table}")
    database.run(f"CREATE TABLE {database.table} (way INTEGER, id INTEGER, v {column.replace('~', ' ')})")
    schema = pa.schema([("way", pa.int32()), ("id", pa.int32()), ("v", kind)])
    cells = [*values, None]
    write(database, [rows(*[(0, number, cell) for number, cell in enumerate(cells)], schema=schema)])
    own = f"INSERT INTO {database.table} VALUES (1, {{id}}, {{v}})"
    write(database, [rows(*[(1, number, cell) for number, cell in enumerate(cells)], schema=schema)], statement=own)
    generated, bound = (
        database.query(f"SELECT v FROM {database.table} WHERE way = {way} ORDER BY id") for way in (0, 1)
    )
    assert len(generated) == len(cells)
    assert repr(bound) == repr(generated)


def test_text_goes_into_expressions(postgres: PostgresContext) -> None:
    """The database cannot tell the type of a value in a function of any type; then it is the column's own."""
    postgres.run(f"ALTER TABLE {postgres.table} ADD COLUMN j jsonb")
    document = "jsonb_build_object('k', {name}, 'n', {n})"
    own = f"INSERT INTO {postgres.table} (id, name, n, j) VALUES ({{id}}, {{name}}, {{n}}, {document})"
    write(postgres, [rows((1, "a'b", 3))], statement=own)
    assert postgres.query(f"SELECT j FROM {postgres.table}") == [({"k": "a'b", "n": 3},)]


def test_a_function_of_the_database_runs_for_each_row(postgres: PostgresContext) -> None:
    schema = postgres.table.split(".")[0]
    postgres.run(
        f"CREATE FUNCTION {schema}.add(k bigint, v int) RETURNS void LANGUAGE sql AS "
        f"'INSERT INTO {postgres.table} AS t (id, n) VALUES (k, v) ON CONFLICT (id) DO UPDATE SET n = t.n + v'"
    )
    write(postgres, [rows((1, "a", 1), (1, "b", 2))], statement=f"SELECT {schema}.add({{id}}, {{n}});")
    assert content(postgres) == [(1, None, 3)]


def test_updates_deletes_and_text_of_the_statement_itself(database: DatabaseContext) -> None:
    write(database, [rows((1, "a", 1), (2, "b", 2), (3, "c", 3))])
    own = f"UPDATE {database.table} SET name = '{{{{%s; ?}}}} -- $1' /* ; */ WHERE id = {{id}} AND n % 7 = {{n}}; -- the end"
    write(database, [rows((1, "", 1), (2, "", 9))], statement=own)
    write(database, [rows((3, "", 0))], statement=f"DELETE FROM {database.table} WHERE id = {{id}}")
    assert content(database) == [(1, "{%s; ?} -- $1", 1), (2, "b", 2)]


def test_a_refused_row_leaves_nothing_of_the_batch(database: DatabaseContext) -> None:
    with pytest.raises(Poison):
        write(database, [rows((1, "a", 1), (2, "x" * 10, None))], **refusing(database))
    assert content(database) == []


def refusing(database: DatabaseContext) -> dict[str, str]:
    database.run(f"DROP TABLE {database.table}")
    database.run(f"CREATE TABLE {database.table} (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(400), n INTEGER NOT NULL)")
    return counting(database)


def test_refused_rows_become_dead_letters_and_the_others_keep_their_order(database: DatabaseContext, tmp_path: Path) -> None:
    options = refusing(database)
    first = [(7, chr(65 + number % 26), None if number in (3, 77) else 1) for number in range(100)]
    parts = [rows(*first), rows((8, "bad", None), (9, "z", 2))]
    write(database, parts, **options, errors="deadLetter", deadLetterPath=str(tmp_path / "letters"))
    word = "".join(name for _, name, n in first if n)
    assert content(database) == [(7, word, 98), (9, "z", 2)]
    assert [json.loads(record)["name"] for record in letters(tmp_path / "letters")] == ["D", "Z", "bad"]


def test_a_text_that_is_not_what_the_statement_expects_is_a_bad_row(postgres: PostgresContext) -> None:
    own = f"INSERT INTO {postgres.table} (id, n) VALUES ({{name}}, {{n}})"
    write(postgres, [rows((0, "1", 1), (0, "two", 2), (0, "3", 3))], statement=own, errors="skip")
    assert content(postgres) == [(1, None, 1), (3, None, 3)]


def test_straight_into_the_table_at_least_once(database: DatabaseContext) -> None:
    part = rows(*[(1, chr(97 + number), 1) for number in range(10)])
    own = {**counting(database), "guarantee": "at-least-once", "batchsize": "4", "commit": "auto"}
    options = {**database.options(), **own}
    sink = JdbcSink.of(options)
    stage(sink, Batch(sink.sink_id(), "query", 0), part.schema, 0, iter([part]))
    assert content(database) == [(1, "abcdefghij", 10)]
    if sink.dialect().savepoints:
        refusing(database)
        sink = JdbcSink.of({**options, "errors": "skip"})
        part = rows(*[(1, chr(97 + number), None if number == 5 else 1) for number in range(10)])
        stage(sink, Batch(sink.sink_id(), "query", 0), part.schema, 0, iter([part]))
        assert content(database) == [(1, "abcdeghij", 9)]


def test_an_overwrite_empties_the_table_first(database: DatabaseContext) -> None:
    write(database, [rows((5, "old", 1))])
    write(database, [rows((1, "a", 1), (1, "b", 1))], replace=True, **counting(database))
    assert content(database) == [(1, "ab", 2)]


@pytest.mark.parametrize(
    "own",
    [
        "INSERT INTO nowhere_at_all (id) VALUES ({id})", "INSERT INTO {table} (nothing) VALUES ({id})",
        "INSERT INTO {table} VALU ({id})",
    ],
)
def test_what_the_database_refuses_is_said_at_the_start(database: DatabaseContext, own: str) -> None:
    sink = JdbcSink.of({**database.options(), "statement": own.replace("{table}", database.table)})
    with pytest.raises(Misconfigured, match=r"statement +cannot be run: "):
        sink.check_target(rows().schema)


def test_the_table_must_exist_and_have_transactions(tmp_path: Path) -> None:
    with contextlib.closing(MariaDbContext(tmp_path / "target")) as database:
        own = {"statement": f"INSERT INTO {database.table} (id) VALUES ({{id}})"}
        missing = JdbcSink.of({**database.options(), **own, "dbtable": "nowhere"})
        with pytest.raises(Misconfigured, match=r"names no table nowhere in [^;]*; make it\."):
            missing.check_target(rows().schema)
        database.run(f"ALTER TABLE {database.table} ENGINE = MyISAM")
        with pytest.raises(Misconfigured, match="without transactions"):
            JdbcSink.of({**database.options(), **own}).check_target(rows().schema)


OWN = {"url": "jdbc:postgresql://h/d", "dbtable": "t", "statement": "INSERT INTO t (id) VALUES ({id})"}
BESIDE = {
    "operation": "upsert", "keyColumns": "id", "updateColumns": "n", "orderColumn": "n", "deleteColumn": "gone",
    "createTable": "true", "evolveSchema": "true", "commit": "prepared", "guarantee": "idempotent",
}  # fmt: skip


@pytest.mark.parametrize("option", BESIDE)
def test_options_of_generated_statements_are_refused_beside_it(option: str) -> None:
    more = {"keyColumns": "id"} if option in ("operation", "orderColumn", "deleteColumn") else {}
    with pytest.raises(Misconfigured, match=f"statement +(is given beside|has no use with) {option}"):
        JdbcSink.of({**OWN, **more, option: BESIDE[option]})


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ("  \n", "must be a statement; leave the option out"),
        ("-- nothing", "is empty"),
        (";", "is empty"),
        ("INSERT INTO t VALUES ({id}); DELETE FROM t", "has several statements"),
        ("INSERT INTO t VALUES ('user-{id}')", "inside quotes or in a comment"),
        ("INSERT INTO t VALUES ($$ {id} $$)", "inside quotes or in a comment"),
        ("INSERT INTO t VALUES (1) -- {id}", "inside quotes or in a comment"),
        ("INSERT INTO t VALUES ({})", "a brace of its own is doubled"),
        ("INSERT INTO t VALUES ({id!r})", "a brace of its own is doubled"),
        ("INSERT INTO t VALUES ({id:5})", "a brace of its own is doubled"),
        ("INSERT INTO t VALUES ({id)", "a brace of its own is doubled"),
        ("COMMIT", "begins with COMMIT"),
        ("/* INSERT */ DROP TABLE t", "begins with DROP"),
        ("CALL add({id})", "begins with CALL"),
        ("DO 'BEGIN DELETE FROM t; END'", "begins with DO"),
    ],
)
def test_texts_that_are_no_statement(own: str, problem: str) -> None:
    with pytest.raises(Misconfigured, match=f"statement .*{problem}"):
        JdbcSink.of({**OWN, "statement": own})


def test_a_column_that_the_rows_do_not_have() -> None:
    sink = JdbcSink.of({**OWN, "statement": "INSERT INTO t VALUES ({id}, {colour})"})
    with pytest.raises(Misconfigured, match=r'statement +names the column "colour", which the rows do not have: id, name, n'):
        sink.refuse_frame(rows().schema, placed=False)


def test_each_database_has_its_own_quotes() -> None:
    def is_one(text: str, dialect: type[Dialect]) -> bool:
        with contextlib.suppress(ValueError):
            return bool(Statement.of(text, dialect))
        return False

    slash = r"UPDATE t SET a = 'C:\', b = {id} -- ';"
    assert (is_one(slash, PostgreSql), is_one(slash, Sqlite), is_one(slash, MariaDb)) == (True, True, False)
    quote = r"UPDATE t SET a = 'it\'s; ', b = {id}"
    assert (is_one(quote, PostgreSql), is_one(quote, MariaDb)) == (False, True)
    assert is_one(r"UPDATE t SET a = E'it\'s; ', b = {id}", PostgreSql)
    assert is_one("UPDATE t SET a = $x$ ; $$ ; $x$, b = {id}", PostgreSql)
    assert is_one("UPDATE t SET a = 5--{id}", MariaDb)
    assert not is_one("UPDATE t SET a = 1 # {id}", MariaDb)
    assert not is_one("DO add({id})", MariaDb)
    assert Statement.of("SELECT f({a}, {b}, {a}) ;\n", PostgreSql) == Statement(("SELECT f(", ", ", ", ", ")"), ("a", "b", "a"))


@pytest.mark.parametrize("start", ["/*!", "/*M!", "/*!50000 ", "/*M!100100 "])
def test_comments_that_mariadb_runs_are_code(start: str) -> None:
    def parsed(text: str, dialect: type[Dialect] = MariaDb) -> Statement:
        return Statement.of(text.replace("/*!", start), dialect)

    own = "INSERT INTO t (id /*!, n */) VALUES ({id} /*!, {n} */) /* {{}} */"
    assert parsed(own).columns == ("id", "n")
    with pytest.raises(ValueError, match="in a comment"):
        parsed(own, PostgreSql)
    with pytest.raises(ValueError, match="several statements"):
        parsed("INSERT INTO t VALUES ({id}) /*! ; DELETE FROM t */")
    with pytest.raises(ValueError, match="begins with TRUNCATE"):
        parsed("/*!TRUNCATE TABLE t -- */ INSERT INTO t VALUES (1)")
    with pytest.raises(ValueError, match="in a comment"):
        parsed("INSERT INTO t VALUES (1 /*! /* {id} */ */)")


def test_a_column_in_a_comment_that_mariadb_runs_is_bound(tmp_path: Path) -> None:
    with contextlib.closing(type("Totals", (MariaDbContext,), {"body": BODY})(tmp_path / "target")) as database:
        own = f"INSERT INTO {database.table} (id /*!, n */) VALUES ({{id}} /*!, {{n}} */)"
        write(database, [rows((1, "a", 5))], statement=own)
        assert content(database) == [(1, None, 5)]


UTC = datetime.timezone.utc
DOMAINS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "numbers": ("numeric(10, 2)", pa.string(), ["10.75", "1e3"]),
    "times": ("timestamptz", pa.timestamp("us", "UTC"), [datetime.datetime(2026, 7, 1, tzinfo=UTC)]),
    "text of times": ("timestamptz", pa.string(), ["2026-07-01T02:00:00+02:00"]),
    "text of a document": ("jsonb", pa.string(), ['{"a": 1}']),
    "a document": ("jsonb", pa.list_(pa.int32()), [[1, None, 2], []]),
    "arrays": ("integer[]", pa.list_(pa.int64()), [[1, None, 2], []]),
    "arrays of text": ("text[]", pa.list_(pa.string()), [['a"b', "c,d", "NULL"]]),
    "arrays of bytes": ("bytea[]", pa.list_(pa.binary()), [[b"\0\xff"]]),
}  # fmt: skip
"""The type of a domain, the type of the rows' column, and values."""


@pytest.mark.parametrize("case", DOMAINS)
def test_values_for_a_domain_are_those_for_its_type(postgres: PostgresContext, case: str) -> None:
    base, kind, values = DOMAINS[case]
    name = f"{postgres.table.split('.')[0]}.of"
    postgres.run(f"CREATE DOMAIN {name} AS {base}")
    postgres.run(f"CREATE DOMAIN {name}_it AS {name}")
    postgres.run(f"DROP TABLE {postgres.table}")
    postgres.run(f"CREATE TABLE {postgres.table} (id BIGINT, plain {base}, domain {name}_it)")
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    own = f"INSERT INTO {postgres.table} VALUES ({{id}}, {{v}}, {{v}})"
    write(postgres, [rows(*enumerate([*values, None]), schema=schema)], statement=own)
    cells = postgres.query(f"SELECT plain, domain FROM {postgres.table} ORDER BY id")
    assert len(cells) == len(values) + 1
    assert [plain for plain, _ in cells] == [domain for _, domain in cells]


def test_a_text_too_long_for_a_domain_is_a_bad_row_and_not_cut(postgres: PostgresContext) -> None:
    postgres.run(f"CREATE DOMAIN {postgres.table.split('.')[0]}.short AS varchar(3)")
    postgres.run(f"ALTER TABLE {postgres.table} ALTER name TYPE {postgres.table.split('.')[0]}.short")
    own = f"INSERT INTO {postgres.table} (id, name) VALUES ({{id}}, {{name}})"
    write(postgres, [rows((1, "abc", 1), (2, "abcd", 1))], statement=own, errors="skip")
    assert content(postgres) == [(1, "abc", None)]


NESTED: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "struct": (pa.struct([("a", pa.int32()), ("s", pa.string())]), "STRUCT(a INTEGER, s VARCHAR)",
               [{"a": 1, "s": 'x\n"\\'}, {"a": None, "s": None}]),
    "struct with fewer fields": (pa.struct([("a", pa.int32())]), "STRUCT(a INTEGER, b INTEGER)", [{"a": 1}]),
    "list of text": (pa.list_(pa.string()), "VARCHAR[]", [["a\nb", 'c"d\\', None, "NULL", "1,2"], []]),
    "list of lists": (pa.list_(pa.list_(pa.int64())), "BIGINT[][]", [[[2**62], None, []]]),
    "list of binary": (pa.list_(pa.binary()), "BLOB[]", [[b"\0\xff", None], []]),
    "list of lists of binary": (pa.list_(pa.list_(pa.binary())), "BLOB[][]", [[[b"\0\xff", None], None, []]]),
    "struct of binary": (pa.struct([("a b", pa.binary()), ("n", pa.int32()), ("s", pa.list_(pa.struct([("b", pa.binary())])))]),
                         'STRUCT("a b" BLOB, n INTEGER, s STRUCT(b BLOB)[])',
                         [{"a b": b"\0\xff", "n": 1, "s": [{"b": b"x"}, None]}, {"a b": None, "n": None, "s": None}]),
    "map of binary": (pa.map_(pa.string(), pa.binary()), "MAP(VARCHAR, BLOB)", [[("a", b"\0\xff"), ("b", None)], []]),
    "map by binary": (pa.map_(pa.binary(), pa.struct([("b", pa.binary())])), "MAP(BLOB, STRUCT(b BLOB))",
                      [[(b"\xff", {"b": b"\xfe"})]]),
    "list of times": (pa.list_(pa.timestamp("us", "UTC")), "TIMESTAMP[]", [[datetime.datetime(2026, 7, 1, tzinfo=UTC)]]),
    "list of structs": (pa.list_(pa.struct([("a", pa.float64())])), "STRUCT(a DOUBLE)[]", [[{"a": 0.1}, {"a": None}]]),
    "map": (pa.map_(pa.string(), pa.int32()), "MAP(VARCHAR, INTEGER)", [[("a\n", 1), ('"', None)], []]),
    "map of numbers": (pa.map_(pa.int32(), pa.string()), "MAP(INTEGER, VARCHAR)", [[(1, "a")]]),
    "document": (pa.struct([("a", pa.list_(pa.string()))]), "JSON", [{"a": ["\n"]}]),
}  # fmt: skip
"""The type of the rows' column, its type in DuckDB, and values."""


@pytest.mark.parametrize("case", NESTED)
def test_nested_values_are_bound_in_duckdb_as_generated_statements_write_them(tmp_path: Path, case: str) -> None:
    kind, column, values = NESTED[case]
    body = f"way INTEGER, id INTEGER, v {column}"
    with contextlib.closing(type("Nested", (DuckDbContext,), {"body": body})(tmp_path / "target")) as database:
        schema = pa.schema([("way", pa.int32()), ("id", pa.int32()), ("v", kind)])
        cells = [*values, None]
        own = {"statement": f"INSERT INTO {database.table} VALUES ({{way}}, {{id}}, {{v}})"}
        for way, more in enumerate(({}, own)):
            write(database, [rows(*[(way, *cell) for cell in enumerate(cells)], schema=schema)], **more)
        generated, bound = (
            database.query(f"SELECT v FROM {database.table} WHERE way = {way} ORDER BY id") for way in (0, 1)
        )
        assert len(generated) == len(cells)
        assert repr(bound) == repr(generated)
        if "BLOB" in column:
            expected = [dict(value) if pa.types.is_map(kind) and value is not None else value for value in cells]
            assert [value for (value,) in bound] == expected


def test_nested_values_have_their_type_inside_a_statement_of_duckdb(tmp_path: Path) -> None:
    body = "id INTEGER, names VARCHAR[], text VARCHAR"
    with contextlib.closing(type("Nested", (DuckDbContext,), {"body": body})(tmp_path / "target")) as database:
        schema = pa.schema([("id", pa.int32()), ("v", pa.list_(pa.string()))])
        own = f"INSERT INTO {database.table} VALUES ({{id}}, list_append({{v}}, 'z'), to_json({{v}}))"
        write(database, [rows((1, ["a\n"]), schema=schema)], statement=own)
        assert database.query(f"SELECT * FROM {database.table}") == [(1, ["a\n", "z"], '["a\\n"]')]


def test_repeated_keys_of_one_statement_are_no_matter_of_an_order_column(postgres: PostgresContext) -> None:
    select = "SELECT 1, v FROM generate_series(1, 2) v WHERE v <> {n}"
    own = f"INSERT INTO {postgres.table} (id, n) {select} ON CONFLICT (id) DO UPDATE SET n = 0"
    with pytest.raises(Fatal) as wrong:
        write(postgres, [rows((1, "a", 9))], statement=own)
    assert "orderColumn" not in str(wrong.value)

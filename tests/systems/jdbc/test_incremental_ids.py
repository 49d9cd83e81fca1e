"""Ids that become visible late are read once: of prepared transactions over a restart, and of open ones in MySQL."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core.planning import Offset
from connectors.ground.errors import Misconfigured
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.connection import Connection
from connectors.systems.jdbc.incremental.keys import Keys
from connectors.systems.jdbc.incremental.positions import INCREMENTING, ids_between
from connectors.systems.jdbc.incremental.probe import Probe
from connectors.systems.jdbc.incremental.steps import step_by_id
from connectors.systems.jdbc.incremental.tables import StreamTable, stream_tables
from connectors.systems.jdbc.incremental.writers import Holes, Writers
from connectors.systems.jdbc.source import JdbcSource
from connectors.testing.servers import PostgresServer
from connectors.testing.source_suite import SourceQuery

from .contexts import MariaDbContext, MySqlContext, PostgresContext
from .incremental_writers import Schedule, Writer
from .test_incremental_writers import BODY, Growing

MARIADB_BODY = "id BIGINT AUTO_INCREMENT PRIMARY KEY, version BIGINT, changed DATETIME(6)"


@pytest.fixture(params=[MariaDbContext, MySqlContext], ids=["mariadb", "mysql"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Growing]:
    database = type("Database", (request.param,), {"body": MARIADB_BODY})
    with contextlib.closing(type("System", (Growing,), {"database": database})(tmp_path / "system")) as system:
        yield system


def insert(connection: Any, table: str) -> None:
    connection.execute(f"INSERT INTO {table} (version, changed) VALUES (0, now())")


def ids(reading: SourceQuery, log: list[Offset]) -> list[int]:
    return [row["id"] for row in reading.rest(log)]


IN_BLOCKS = {
    "an identity with a cache": (PostgresContext, BODY.replace("AS IDENTITY", "AS IDENTITY (CACHE 20)")),
    "an identity in steps": (PostgresContext, BODY.replace("AS IDENTITY", "AS IDENTITY (INCREMENT BY 50)")),
    "an identity that falls": (PostgresContext, BODY.replace("AS IDENTITY", "AS IDENTITY (INCREMENT BY -1)")),
    "a default": (PostgresContext, BODY.replace("GENERATED ALWAYS AS IDENTITY", "DEFAULT nextval('blocks')")),
    "a sequence of MariaDB": (MariaDbContext, MARIADB_BODY.replace("AUTO_INCREMENT", "DEFAULT nextval(blocks)")),
}


@pytest.mark.parametrize("case", IN_BLOCKS)
def test_ids_that_a_sequence_hands_out_in_blocks_are_refused(tmp_path: Path, case: str) -> None:
    """A session would use a smaller id of its block after a larger one was read: nothing is missing in between."""
    kind, body = IN_BLOCKS[case]

    class Own(kind):  # type: ignore[misc, valid-type]
        def make(self) -> None:
            if "blocks" in body:
                self.run("CREATE SEQUENCE IF NOT EXISTS blocks CACHE 20")
            super().make()

        def close(self) -> None:
            super().close()
            self.run("DROP SEQUENCE IF EXISTS blocks")

    Own.body = body
    with contextlib.closing(type("System", (Growing,), {"database": Own})(tmp_path / "system")) as system:
        system.target.run(f"INSERT INTO {system.target.table} (version, changed) VALUES (0, now())")
        with pytest.raises(Misconfigured, match=r"incrementingColumn +is id of .* in blocks"):
            SourceQuery(system).next([])
        assert len(SourceQuery(system, singleWriter="true").rest(list[Offset]())) == 1


def test_no_query_of_the_catalog_is_compiled(tmp_path: Path) -> None:
    """For a thousand tables PostgreSQL would expect a costly query."""
    with contextlib.closing(Growing(tmp_path / "system")) as system:
        query = SourceQuery(system)
        query.next([])
        assert query.planner.enumerator._connection.rows("SHOW jit") == [("off",)]  # type: ignore[attr-defined]
        query.planner.close()


@pytest.mark.parametrize("many", [False, True])
def test_a_look_for_tables_opens_none_of_other_schemas(system: Growing, many: bool) -> None:
    run, schema = system.target.run, f"other_{uuid.uuid4().hex[:8]}"
    run(f"CREATE DATABASE {schema}")
    try:
        for number in range(100):
            run(f"CREATE TABLE {schema}.t{number} (id int)")
        with contextlib.closing(system.target.connect()) as connection:
            name = {"tables": system.target.table} if many else {"dbtable": system.target.table}
            options = {**system.options(), **name}
            if many:
                del options["dbtable"]
            values = JdbcSource.of(options, streaming=True).values
            connection.execute("FLUSH TABLES")
            before, after = (_opened(connection), (stream_tables(values, connection), _opened(connection))[1])
            assert after - before < 100
    finally:
        run(f"DROP DATABASE {schema}")


def _opened(connection: Connection) -> int:
    ((_, number),) = connection.rows("SHOW SESSION STATUS LIKE 'Opened_table_definitions'")
    return int(number)


@pytest.mark.parametrize("case", ["a view", "a partition", "two sequences"])
def test_ids_in_blocks_are_refused_wherever_the_sequence_is(tmp_path: Path, case: str) -> None:
    with contextlib.closing(Growing(tmp_path / "system")) as system:
        run, table = system.target.run, system.target.table
        run(f"CREATE TABLE {table}_b (id bigint DEFAULT 7, version bigint, changed timestamptz) PARTITION BY LIST (version)")
        run(f"CREATE TABLE {table}_0 PARTITION OF {table}_b FOR VALUES IN (0)")
        run(f"CREATE VIEW {table}_v AS SELECT * FROM {table}_b")
        for owner, number in ((f"{table}_0", 0), *([(f"{table}_b", 1), (f"{table}_b", 2)] if case == "two sequences" else [])):
            run(f"CREATE SEQUENCE {table}_s{number} CACHE 20 OWNED BY {owner}.id")
            run(f"ALTER TABLE {owner} ALTER id SET DEFAULT nextval('{table}_s{number}')")
        try:
            name = f"{table}_v" if case == "a view" else f"{table}_b"
            with pytest.raises(Misconfigured, match=r"incrementingColumn +is id of .* in blocks"):
                SourceQuery(system, dbtable=name, incrementingColumn="id").next([])
        finally:
            run(f"DROP TABLE {table}_b CASCADE")


def test_ids_of_a_transaction_that_was_prepared_before_a_restart_are_read_when_it_is_committed(tmp_path: Path) -> None:
    with PostgresServer() as server:

        class Own(PostgresContext):
            body = BODY

            def address(self) -> dict[str, str]:
                return {"url": server.jdbc, "user": server.user}

        system = type("System", (Growing,), {"database": Own})(tmp_path / "system")
        table = system.target.table
        with contextlib.closing(system.target.connect()) as writer:
            writer.execute("BEGIN")
            insert(writer, table)
            system.target.run(f"INSERT INTO {table} (version, changed) VALUES (0, now())")
            reading, log = SourceQuery(system), list[Offset]()
            assert ids(reading, log) == [2]
            writer.execute("PREPARE TRANSACTION 'late'")
        server.kill()
        server.relaunch()
        with contextlib.closing(system.target.connect()) as other:
            insert(other, table)
            ((after,),) = other.rows(f"SELECT max(id) FROM {table}")  # a crash may skip some ids of a sequence
            assert ids(reading, log) == [after]
            other.execute("COMMIT PREPARED 'late'")
        assert ids(reading, log) == [1]
        reading.planner.close()


def test_a_hole_that_was_given_up_is_not_watched_for_a_transaction_that_a_restart_has_renamed() -> None:
    holes, hole = Holes(), [(1, 1)]
    holes.watch("t", hole, Writers(frozenset({"3/12"}), frozenset({"3/12"})))
    assert holes.open("t", hole, Writers()) == []
    renamed = frozenset({"-1/700"})
    assert holes.open("t", hole, Writers(renamed, renamed, renamed)) == []


def test_ids_are_committed_out_of_order_and_each_is_read_once(system: Growing) -> None:
    table = system.target.table
    with contextlib.closing(system.target.connect()) as first, contextlib.closing(system.target.connect()) as second:
        first.execute("BEGIN")
        insert(first, table)
        insert(second, table)
        reading, log = SourceQuery(system), list[Offset]()
        assert ids(reading, log) == [2]
        insert(second, table)
        assert ids(reading, log) == [3]
        first.commit()
        assert ids(reading, log) == [1]
        reading.planner.close()


def test_ids_are_read_of_a_prepared_transaction_whose_session_is_gone(system: Growing) -> None:
    table, name = system.target.table, f"'{uuid.uuid4().hex}'"
    with contextlib.closing(system.target.connect()) as other:
        with contextlib.closing(system.target.connect()) as writer:
            writer.execute(f"XA START {name}")
            insert(writer, table)
            insert(other, table)
            reading, log = SourceQuery(system), list[Offset]()
            assert ids(reading, log) == [2]
            writer.execute(f"XA END {name}")
            writer.execute(f"XA PREPARE {name}")
        insert(other, table)
        assert ids(reading, log) == [3]
        while other.rows("SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = 0") == []:
            pass
        other.execute(f"XA COMMIT {name}")
        assert ids(reading, log) == [1]
        reading.planner.close()


class InSessions(Schedule):
    """Writers of MySQL and MariaDB, which have no PREPARE of an ordinary transaction."""

    def insert(self, writer: Writer) -> None:
        rows = ", ".join(["(0, now(6))"] * self.chance.randint(1, 3))
        self.run_sql(writer, f"INSERT INTO {self.table} (version, changed) VALUES {rows}")

    def end(self, writer: Writer) -> None:
        if writer.busy:
            self.run_sql(writer, self.chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))
            writer.busy, writer.depth = False, 0


@pytest.mark.parametrize("seed", range(4))
def test_every_id_is_read_once_whatever_the_order_of_commits(system: Growing, seed: int) -> None:
    InSessions(system, seed, updates=False).run(45)


def test_a_user_who_may_not_see_other_transactions_is_told_what_to_grant(system: Growing) -> None:
    user, table = f"u{uuid.uuid4().hex[:12]}", system.target.table
    with contextlib.closing(JdbcSource.of({**system.options(), "user": "root", "password": ""}).dialect().connect()) as root:
        root.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'x'")
        root.execute(f"GRANT ALL ON {table.split('.')[0]}.* TO {user}@'%'")
        root.execute(f"GRANT SELECT ON test.* TO {user}@'%'")
    system.mode = {**system.mode, "user": user, "password": "x"}
    insert_one(system)
    with pytest.raises(Misconfigured, match=r"user +may not see .* GRANT PROCESS .*singleWriter=true"):
        ids(SourceQuery(system), [])
    assert ids(SourceQuery(system, singleWriter="true"), []) == [1]


def insert_one(system: Growing) -> None:
    with contextlib.closing(system.target.connect()) as connection:
        insert(connection, system.target.table)


def test_single_writer_is_refused_where_rows_are_read_by_time(system: Growing) -> None:
    with pytest.raises(Misconfigured, match=r"singleWriter +has no use with incremental=timestamp"):
        SourceQuery(system, incremental="timestamp", timestampColumns="changed", incrementingColumn="", singleWriter="true")


class Watching(Holes):
    """The holes of a database whose writers the test names."""

    names: frozenset[str] = frozenset()

    def writers(self, connection: Connection, oid: int | None) -> Writers:
        return Writers(self.names, self.names)


class Ids:
    """A table of ids in SQLite, read step by step as if ``writers`` were writing."""

    def __init__(self, folder: Path) -> None:
        self.connection = JdbcSink.of({"url": f"sqlite:///{folder}/ids.db", "dbtable": "ids"}).dialect().connect()
        self.connection.execute("CREATE TABLE ids (id INTEGER PRIMARY KEY)")
        self.table = StreamTable("ids", "ids", Keys(INCREMENTING, "id"), (("id", "INTEGER"),))
        self.holes = Watching()
        self.state: dict[str, Any] = {}

    def add(self, ids: Iterable[int]) -> None:
        self.connection.execute(f"INSERT INTO ids VALUES {', '.join(f'({number})' for number in ids)}")

    def step(self, *writers: str) -> dict[str, Any]:
        """The state after one more batch, while ``writers`` write."""
        probe, self.holes.names = Probe(self.connection), frozenset(writers)
        newest = probe.newest([self.table], {})["ids"]
        step = step_by_id(probe, self.table, self.state, newest, self.holes)
        self.state = (step and step.state(None)) or self.state
        return self.state


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Ids]:
    table = Ids(tmp_path)
    with contextlib.closing(table.connection):
        yield table


def test_a_hole_that_becomes_more_holes_than_are_watched_lets_the_stream_wait(table: Ids) -> None:
    table.add([1201])
    table.step("A", "B")
    table.add(range(2, 1200, 2))
    table.add(range(1202, 1300, 2))
    state = table.step("A", "B")
    assert (state["id"], len(state["holes"])) == (1202, 600)
    table.add([1400])
    assert table.step("A", "B") == state
    assert table.step("C")["id"] == 1400


def test_ids_behind_many_gaps_are_read_when_those_who_wrote_at_the_first_look_are_gone(table: Ids) -> None:
    table.add(range(2, 10_001, 2))
    assert table.step("A")["id"] == 1000
    assert table.step("A", "B")["id"] == 1000
    table.add([10_001, 10_003])
    assert table.step("B") == {"id": 10_003, "holes": [[10_002, 10_002]]}
    table.add([10_002])
    assert table.step() == {"id": 10_003}


def test_a_gap_of_another_table_with_the_same_name_is_watched_anew(table: Ids) -> None:
    table.add(range(2, 4001, 2))
    table.step("A")
    table.connection.execute("DELETE FROM ids")
    table.state = {}
    table.add([1])
    assert table.step("B") == {"id": 1, "min": 1}
    table.add([2001, 2003])
    assert table.step("B")["holes"] == [[2, 2000], [2002, 2002]]


class Transactions:
    """Transactions in a random order, over a table that is read now and then; whoever is open is a writer."""

    def __init__(self, table: Ids, seed: int) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.open: dict[str, list[int]] = {}
        self.begins = 0
        self.last_id = 0
        self.committed: list[int] = []
        self.read: list[int] = []

    def run(self, events: int) -> None:
        for event in self.random.choices([self.begin, self.take_id, self.end, self.step], [3, 5, 2, 2], k=events):
            event()
        while self.open:
            self.end()
        before = None
        while before != self.table.state:
            before = self.table.state
            self.step()

    def begin(self) -> None:
        self.begins += 1
        self.open[str(self.begins)] = []

    def take_id(self) -> None:
        if self.open:
            self.last_id += 1
            self.random.choice(list(self.open.values())).append(self.last_id)

    def end(self) -> None:
        """Commits a transaction, or rolls it back."""
        ids = self.open.pop(self.random.choice(list(self.open))) if self.open else []
        if ids and self.random.random() < 0.7:
            self.table.add(ids)
            self.committed += ids

    def step(self) -> None:
        if self.committed:
            before = self.table.state
            ranges = ids_between(before, self.table.step(*self.open))
            self.read += [n for n in self.committed if any((first or 0) <= n <= last for first, last in ranges)]


@pytest.mark.parametrize("seed", range(20))
def test_each_id_is_read_once_with_more_gaps_than_are_watched(table: Ids, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.systems.jdbc.incremental.steps.HOLE_LIMIT", 1 + seed % 4)
    monkeypatch.setattr("connectors.systems.jdbc.incremental.probe._GAPS", 3)
    transactions = Transactions(table, seed)
    transactions.run(200)
    assert sorted(transactions.read) == sorted(transactions.committed)
